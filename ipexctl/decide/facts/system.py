"""All facts other than the processor: addresses, libraries, Pythons, the environment, disks, limits."""

import posixpath
import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Interface

from ipexctl.decide.facts.numbers import parse_ip_interface
from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.model.facts import Disk, Installed, Interface, Python
from ipexctl.model.stack import read_marker
from ipexctl.model.text import group_pairs, parse_integer, printable
from ipexctl.protocol.paths import HUB, MARKER

_NET = "/sys/class/net"
_BEHIND_BRIDGES = re.compile(
    r"(docker|br-[0-9a-f]{12}$|virbr|cni|flannel|cali|veth|lxc|lxdbr|podman|kube|vmnet|vnet|tunl|dummy|ifb|wg|tailscale)"
)


_NAME = re.compile(r"[A-Za-z_]+")


def read_environment_variables(bundle: ProbeOutput) -> dict[str, str]:
    """`NAME=value` lines; further lines of one value are dropped. Repeated names keep their first value."""
    environ: dict[str, str] = {}
    for line in bundle.command("env").splitlines():
        name, equals, value = line.partition("=")
        if equals and _NAME.fullmatch(name):
            environ.setdefault(name, value)
    return environ


def find_container(bundle: ProbeOutput, path_marks: frozenset[str]) -> str | None:
    """By the name of the control group, else by a file that the container's manager has left."""
    groups = bundle.files.get("/proc/self/cgroup", "")
    traces = {"/docker": "docker", "/kubepods": "kubernetes", "/lxc": "lxc", "/libpod": "podman"}
    marks = {"/run/.containerenv": "podman", "/.dockerenv": "docker"}
    named = [word for trace, word in traces.items() if trace in groups]
    return next(iter([*named, *(word for path, word in marks.items() if path in path_marks)]), None)


def find_hub_cache(path_marks: frozenset[str]) -> str | None:
    """Returns the cache of the Hugging Face hub, where `sync hf:` has put a snapshot into it."""
    homes = (path.partition(f"/{HUB}/") for path in path_marks)
    return next((f"{home}/{HUB}" for home, cache, _ in homes if cache), None)


def read_interfaces(bundle: ProbeOutput) -> tuple[Interface, ...]:
    """From `ip addr` or `ifconfig -a`, completed by sysfs and the routing table."""
    output = bundle.command("ip addr")
    links = _parse_ip_addr(output) or _parse_ifconfig(output)
    routes = (line.split() for line in bundle.files.get("/proc/net/route", "").splitlines())
    default = {row[0] for row in routes if len(row) > 7 and row[1] == row[7] == "00000000"}
    below = [path[len(_NET) + 1 :].split("/") for path in bundle.files if path.startswith(_NET + "/")]
    hardware = {words[0] for words in below if words[1:] in (["device"], ["bonding"])}
    # a bridge is real where something that is real is plugged into it
    ported = {words[0] for words in below if words[1:2] == ["brif"] and not _BEHIND_BRIDGES.match(words[-1])}

    def is_virtual(name: str) -> bool:
        """By its name; or without hardware, where sysfs knows any (in containers all interfaces are equally real)."""
        real = name in hardware | ported | {"lo"} or ("." in name and name.partition(".")[0] in hardware)  # a VLAN
        return bool(_BEHIND_BRIDGES.match(name)) or (bool(hardware) and not real)

    speeds = {name: parse_integer(bundle.file(f"{_NET}/{name}/speed")) or None for name in links}
    return tuple(
        Interface(name, tuple(addresses), mtu, speeds[name], up, name in default, is_virtual(name))
        for name, (mtu, up, addresses) in list(links.items())[:256]
    )


_Links = dict[str, tuple[int | None, bool | None, list[str]]]
_LINK = re.compile(r"[0-9]+:\s+([^\s:@]{1,32})(?:@\S+)?:\s+<([^>]*)>.*?\bmtu ([0-9]{1,7})")
_ADDRESS = re.compile(r"\s+inet6?\s+(\S+)")


def _parse_ip_addr(text: str) -> _Links:
    links: _Links = {}
    addresses: list[str] = []
    for line in text.splitlines()[:4096]:
        if head := _LINK.match(line):
            flags = set(head[2].split(","))
            addresses = []
            up = "UP" in flags and ("LOWER_UP" in flags or "NO-CARRIER" not in flags)
            links[head[1]] = (int(head[3]), up, addresses)
        elif (body := _ADDRESS.match(line)) and parse_ip_interface(body[1]):
            addresses.append(body[1])
    return links


def _parse_ifconfig(text: str) -> _Links:
    """Both layouts: "eth0: flags=… mtu 1500 / inet 10.0.0.1 netmask …" and "eth0 Link encap… / inet addr:… Mask:…"."""
    links: _Links = {}
    for block in re.split(r"\n(?=\S)", text[: 1 << 18]):
        head = re.match(r"([^\s:]{1,32}):?\s", block)
        if not head or not re.search(r"\bmtu[ :]", block, re.IGNORECASE):
            continue
        mtu = re.search(r"\b(?:mtu |MTU:)([0-9]{1,7})", block)
        masks = re.findall(r"^[ \t]+inet (?:addr:)?([0-9.]{1,15}) .*?(?:netmask |Mask:)(\S+)", block, re.MULTILINE)
        lengths = re.findall(r"inet6 (?:addr: ?)?([0-9a-fA-F:]+)(?:/|\s+prefixlen )([0-9]+)", block)
        words = [f"{address}/{_count_bits(mask)}" for address, mask in masks] + ["/".join(pair) for pair in lengths]
        addresses = [word for word in words if parse_ip_interface(word)]
        links[head[1]] = (int(mtu[1]) if mtu else None, bool(re.search(r"\bUP\b", block)), addresses)
    return links


def _count_bits(mask: str) -> int | str:
    """255.255.0.0 and 0xffff0000 have 16; "?" for what is no mask."""
    try:
        return IPv4Network((0, str(IPv4Address(int(mask, 16))) if mask.startswith("0x") else mask)).prefixlen
    except ValueError:
        return "?"


def parse_own_ssh_address(connection: str | None) -> str | None:
    """SSH_CONNECTION is: client, its port, our address, our port."""
    words = (connection or "").split()
    address = parse_ip_interface(words[2].partition("%")[0]) if len(words) == 4 else None
    if address is None:
        return None
    mapped = address.ip.ipv4_mapped if isinstance(address, IPv6Interface) else None
    return str(mapped or address.ip)


def read_resolved_names(bundle: ProbeOutput) -> Mapping[str, tuple[str, ...]]:
    """Returns the addresses of each looked-up name on the host; unresolved names are missing."""
    found: list[tuple[str, str]] = []
    for line in bundle.lines("getent hosts"):
        name, _, answer = line.partition("\t")
        word = answer.split()[0] if answer.split() else ""
        if name and word and parse_ip_interface(word):
            found.append((name, word))
    return {name: tuple(addresses) for name, addresses in group_pairs(found).items()}


def read_distribution(bundle: ProbeOutput) -> str | None:
    lines = bundle.files.get("/etc/os-release", "").splitlines()
    fields = {name: value.strip().strip("\"'") for name, _, value in (line.partition("=") for line in lines)}
    name = fields.get("PRETTY_NAME") or " ".join(filter(None, (fields.get("NAME"), fields.get("VERSION_ID"))))
    return name[:120] or None


def read_glibc(bundle: ProbeOutput) -> str | None:
    """Returns the version; None also for musl."""
    first = next(iter(bundle.command("libraries").splitlines()), "")
    match = re.search(r"(?:^glibc |GLIBC |GNU libc\) )([0-9]\.[0-9]{1,3})\b", first)
    return match[1] if match else None


_CACHED = re.compile(r"\s*(\S+) \(([^)]*)\) => (\S+)")


def read_library_paths(bundle: ProbeOutput) -> dict[str, str]:
    """soname → path, of what the loader would find; the first one counts."""
    paths: dict[str, str] = {}
    of_venv = [line.removeprefix("library\t") for line in bundle.lines("venv") if line.startswith("library\t")]
    for line in [*bundle.lines("libraries"), *of_venv]:
        cached = _CACHED.match(line)
        if cached and re.search("x86-64|AArch64", cached[2]):
            paths.setdefault(cached[1], cached[3])
        elif line.startswith("/"):
            paths.setdefault(posixpath.basename(line.strip()), line.strip())
    return paths


def find_glibcxx(paths: Mapping[str, str]) -> str | None:
    """libstdc++.so.6.0.30 is the one that knows GLIBCXX_3.4.30 (GCC's ABI policy, 6.0.9 and later)."""
    numbers = [int(match[1]) for name in paths if (match := re.fullmatch(r"libstdc\+\+\.so\.6\.0\.([0-9]{1,3})", name))]
    return f"GLIBCXX_3.4.{max(numbers)}" if numbers else None


_NEEDED = re.compile(r"(libstdc\+\+\.so\.6)(?:\..*)?|lib(?:stdc\+\+|zstd|z|gomp|numa)\.so\.[0-9]+")


def find_libraries(paths: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the sonames of those that some rows of the version table need."""
    return tuple(sorted({match[1] or match[0] for name in paths if (match := _NEEDED.fullmatch(name))}))


_ALLOCATORS = {
    "tcmalloc": re.compile(r"libtcmalloc(_minimal)?\.so(\.[0-9]+)*"),
    "jemalloc": re.compile(r"libjemalloc\.so(\.[0-9]+)*"),
    "iomp5": re.compile(r"libiomp5\.so"),
}


def find_allocators(paths: Mapping[str, str]) -> dict[str, str]:
    """Libraries that ranks may preload, and where they are."""
    names = {word: [name for name in paths if pattern.fullmatch(name)] for word, pattern in _ALLOCATORS.items()}
    return {word: paths[min(fitting)] for word, fitting in names.items() if fitting}


def read_pythons(bundle: ProbeOutput) -> tuple[Python, ...]:
    """In search order. A Python that did not report its version is unusable."""
    outputs: dict[str, str] = {}
    for path, tab, output in (line.partition("\t") for line in bundle.lines("python -V")):
        if tab and path.startswith("/") and len(path) <= 4096:
            outputs[path] = output or outputs.get(path, "")
    cut = bundle.unread.get("python -V", "")
    on_musl = read_glibc(bundle) is None and "ld-musl-" in bundle.command("libraries")
    return tuple(_describe_python(path, output, cut, on_musl) for path, output in list(outputs.items())[:64])


def _describe_python(path: str, output: str, cut: str, on_musl: bool) -> Python:
    if output == "listed":
        match = re.search(r"(?:versions/|cpython-|python-?)([0-9]\.[0-9]{1,2}\.[0-9]{1,2})\b", path)
        match = match or re.search(r"python([0-9]\.[0-9]{1,2})$", path)
    else:
        match = re.fullmatch(r"Python ([0-9]\.[0-9]{1,2}\.[0-9]{1,3})\S*", output.strip())
    version = match[1] if match else None
    if version is None and output != "listed":
        return Python(path, None, False, ascii(output[:80])[1:-1] if output else cut or "does not start")
    if on_musl:
        return Python(path, version, False, "linked to musl: there are no such wheels")
    return Python(path, version)


def read_installed_environment(bundle: ProbeOutput) -> Installed | None:
    """Returns the installed environment, read from its directory without starting its Python."""
    head, *contents = re.split(r"^file\t(.*)$", "\n".join(bundle.lines("venv")), flags=re.MULTILINE)
    files = dict(zip(contents[::2], contents[1::2], strict=True))
    cut = (line.partition("\t") for line in head.splitlines())
    values = group_pairs((word, value) for word, tab, value in cut if tab)
    if "venv" not in values:
        return None
    if fault := values.get("fault"):  # the first: names of what another user has put there may have several lines
        return Installed(values["venv"][0], fault=printable(fault[0], 400))
    dists = values.get("dist", [])
    named = (re.fullmatch(r".*/([^/]+?)-([^/-]+)\.dist-info", dist) for dist in dists)
    packages = {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in named if match}
    # venv writes ``version``, virtualenv and uv ``version_info``; else the directory has it
    pattern = r"^version(?:_info)? *= *([0-9]\.[0-9]{1,2}(?:\.[0-9]{1,3})?)\b"
    written = re.search(pattern, files.get("pyvenv.cfg", ""), re.MULTILINE)
    marker, python = read_marker(files.get(MARKER, "")), None
    if "python" in values and written:
        python = written[1]
    elif "python" in values and dists:
        python = dists[-1].split("/")[0].removeprefix("python")
    beside, locked = tuple(values.get("beside", ())), "locked" in values
    return Installed(values["venv"][0], "python" in values, python, packages, marker, beside, locked=locked)


def read_launchers(bundle: ProbeOutput) -> tuple[str, ...]:
    """Returns each mpirun on PATH with the first two lines of its version output."""
    cut = (line.partition("\t") for line in bundle.lines("mpirun --version"))
    outputs = group_pairs((path, line) for path, tab, line in cut if tab)
    return tuple(f"{path}: {' '.join(' '.join(lines[:2]).split())[:200]}" for path, lines in [*outputs.items()][:64])


def read_tools(bundle: ProbeOutput) -> dict[str, str]:
    paths = (line.strip() for line in bundle.command("command -v").splitlines()[:256])
    return {posixpath.basename(path): path for path in paths if path.startswith("/")}


def find_scheduler(environ: Mapping[str, str], path_marks: frozenset[str], tools: Mapping[str, str]) -> str | None:
    """Returns the batch system that this login is inside of, or could ask for hosts."""
    for word, variable, files, commands in (
        ("slurm", "SLURM_JOB_ID", {"/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"}, {"srun", "sbatch", "sinfo"}),
        ("pbs", "PBS_JOBID", {"/etc/pbs.conf"}, {"qsub"}),
        ("lsf", "LSB_JOBID", {"/etc/lsf.conf"}, {"bsub"}),
    ):
        if variable in environ or files & path_marks or commands & set(tools):
            return word
    return None


_ROOM = re.compile(r".*?\s([0-9]+)\s+-?[0-9]+\s+(-?[0-9]+)\s+(?:[0-9]+%|-)\s+(/.*)")


def read_disks(bundle: ProbeOutput) -> tuple[Disk, ...]:
    """Of each path that was asked for: the file system it would be created on."""
    disks: dict[str, Disk] = {}
    mounts = (line.partition(" - ") for line in bundle.files.get("/proc/self/mountinfo", "").splitlines())
    fields = ((before.split(maxsplit=5), after) for before, dash, after in mounts if dash)
    lines = [(words, after.partition(" ")[0].strip()) for words, after in fields if len(words) > 5]
    types = {words[4]: filesystem for words, filesystem in lines}
    executable = {words[4]: "noexec" not in words[5].split()[0].split(",") for words, _ in lines}
    for command in ("df -Pk", "df -Pk /dev/shm /tmp"):
        requested_paths: dict[str, tuple[str, bool]] = {}
        sizes: dict[str, tuple[int, int]] = {}
        for line in bundle.lines(command):
            words = line.split("\t")
            if words[0] == "path" and len(words) == 4:
                requested_paths[words[1]] = (words[2], words[3] == "rw")
            elif room := _ROOM.fullmatch(line):
                sizes[room[3]] = (int(room[1][:18]) << 10, max(int(room[2][:18]), 0) << 10)
        for path, (existing_path, writable) in requested_paths.items():
            above = [at for at in sizes if existing_path == at or existing_path.startswith(at.rstrip("/") + "/")]
            mount = max(above, key=len, default="")
            size, free = sizes.get(mount, (None, None))
            disk = Disk(path, free, mount, types.get(mount, ""), size, writable, executable.get(mount))
            disks.setdefault(path, disk)
    return tuple(disks.values())


_LIMITS = {"open files": "nofile", "processes": "nproc", "locked memory": "memlock", "stack size": "stack"}


def read_resource_limits(bundle: ProbeOutput) -> dict[str, int | None]:
    """Returns the soft limits, and the hard one of open files; None for unlimited."""
    text = bundle.files.get("/proc/self/limits", "")
    lines = re.findall(r"^Max ([a-z]+(?: [a-z]+)*) {2,}(\S+)", text, re.MULTILINE)
    limits = {_LIMITS[name]: parse_integer(value) for name, value in lines if name in _LIMITS}
    if hard := re.search(r"^Max open files +\S+ +(\S+)", text, re.MULTILINE):
        limits["nofile_hard"] = parse_integer(hard[1])
    return limits


def read_hugepages(bundle: ProbeOutput) -> dict[str, int]:
    """Returns what is set apart at boot or by sysctl, of the default size; empty where the kernel has none."""
    names = {"HugePages_Total": "total", "HugePages_Free": "free", "Hugepagesize": "size_kb"}
    counts = {name: read_meminfo(bundle, word) for word, name in names.items()}
    return {name: count for name, count in counts.items() if count is not None}


def read_meminfo(bundle: ProbeOutput, name: str, path: str = "/proc/meminfo") -> int | None:
    """Returns a number of /proc/meminfo, in kB where it is a size; ``path`` names the file of one NUMA node."""
    return parse_integer(bundle.search(path, rf"\b{name}:\s*([0-9]{{1,15}})\b"))


def read_clock(bundle: ProbeOutput) -> float | None:
    match = re.fullmatch(r"([0-9]{9,11})(?:\.([0-9]{1,9}))?.*", bundle.command("date").strip())
    return float(f"{match[1]}.{match[2] or 0}") if match else None


# Those below 10 % are passed over by the expression itself: a busy host has a thousand lines, and none of them counts.
_BUSY_PROCESS = re.compile(r"^ *([0-9]{2,6}(?:\.[0-9])?) +(\S+) +(\S+) +[0-9]+ +(\S.*)$", re.MULTILINE)
_JUST_STARTED = re.compile(r"(00:)*0?0:0\d")


def read_busy_processes(bundle: ProbeOutput) -> tuple[str, ...]:
    """Processes that use more than half a CPU over their life, heaviest first: "alice python (212 %)". Those younger
    than ten seconds do not count: nearly all of them belong to the probe."""
    lines = _BUSY_PROCESS.findall(bundle.command("ps"))
    old = [(float(share), who, name) for share, age, who, name in lines if not _JUST_STARTED.fullmatch(age)]
    heavy = sorted(((share, f"{who} {name.strip()[:40]}") for share, who, name in old if share >= 50), reverse=True)
    return tuple(f"{what} ({share:.0f} %)" for share, what in heavy[:8])


def read_ephemeral_ports(bundle: ProbeOutput) -> tuple[int, int] | None:
    match = re.fullmatch(r"([0-9]{1,5})\s+([0-9]{1,5})", (bundle.file("/proc/sys/net/ipv4/ip_local_port_range") or ""))
    return (int(match[1]), int(match[2])) if match else None
