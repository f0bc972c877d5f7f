"""All facts other than the processor: addresses, libraries, Pythons, the environment, disks, limits."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from ipexctl.decide.facts.numbers import parse_integer
from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.model.facts import Disk, Installed, Interface, Python

_NET = "/sys/class/net"
_BEHIND_BRIDGES = re.compile(
    r"(docker|br-[0-9a-f]{12}$|virbr|cni|flannel|cali|veth|lxc|lxdbr|podman|kube|vmnet|vnet|tunl|dummy|ifb|wg|tailscale)"
)
_LINES = 4096  # of any answer


def read_environment(bundle: ProbeOutput) -> dict[str, str]:
    """`NAME=value` lines; further lines of one value are dropped. Repeated names keep their first value."""
    environ: dict[str, str] = {}
    for line in bundle.command("env").splitlines():
        name, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]+", name):
            environ.setdefault(name, value)
    return environ


def read_path_marks(bundle: ProbeOutput) -> frozenset[str]:
    """The marker paths that exist on the host."""
    lines = bundle.command("env").splitlines()
    return frozenset(line.removeprefix("there=") for line in lines if line.startswith("there="))


def find_container(bundle: ProbeOutput, path_marks: frozenset[str]) -> str | None:
    groups = bundle.files.get("/proc/self/cgroup", "")
    for word, trace in (("docker", "/docker"), ("kubernetes", "/kubepods"), ("lxc", "/lxc"), ("podman", "/libpod")):
        if trace in groups:
            return word
    for word, path in (("podman", "/run/.containerenv"), ("docker", "/.dockerenv")):
        if path in path_marks:
            return word
    return None


# --- network ---------------------------------------------------------------------------------------------------------


def read_interfaces(bundle: ProbeOutput) -> tuple[Interface, ...]:
    """From `ip addr` or `ifconfig -a`, completed by sysfs and the routing table."""
    output = bundle.command("ip addr")
    links = _parse_ip_addr(output) or _parse_ifconfig(output)
    default = _find_default_interfaces(bundle)
    # a bridge is real where something that is real is plugged into it
    below = [path[len(_NET) + 1 :].split("/") for path in bundle.files if path.startswith(_NET + "/")]
    ported = {words[0] for words in below if words[1:2] == ["brif"] and not _BEHIND_BRIDGES.match(words[-1])}
    # does sysfs say which interfaces have hardware? Where none has (containers), all are equally real
    sysfs_has_hardware = any(words[1:] in (["device"], ["bonding"]) for words in below)
    interfaces = []
    for name, (mtu, up, addresses) in list(links.items())[:256]:
        speed = parse_integer(bundle.file(f"{_NET}/{name}/speed"))
        real = f"{_NET}/{name}/device" in bundle.files or f"{_NET}/{name}/bonding" in bundle.files or name in ported
        vlan = "." in name and f"{_NET}/{name.partition('.')[0]}/device" in bundle.files
        interfaces.append(
            Interface(
                name,
                tuple(addresses),
                mtu,
                speed or None,
                up,
                name in default,
                bool(_BEHIND_BRIDGES.match(name)) or not (real or vlan or name == "lo" or not sysfs_has_hardware),
            )
        )
    return tuple(interfaces)


_Links = dict[str, tuple[int | None, bool | None, list[str]]]


def _parse_ip_addr(text: str) -> _Links:
    links: _Links = {}
    addresses: list[str] = []
    for line in text.splitlines()[:_LINES]:
        if head := re.match(r"[0-9]+:\s+([^\s:@]{1,32})(?:@\S+)?:\s+<([^>]*)>.*?\bmtu ([0-9]{1,7})", line):
            flags = set(head[2].split(","))
            addresses = []
            links[head[1]] = (
                int(head[3]),
                "UP" in flags and ("LOWER_UP" in flags or "NO-CARRIER" not in flags),
                addresses,
            )
        elif (body := re.match(r"\s+inet6?\s+(\S+)", line)) and _is_address(body[1]):
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
        addresses = []
        for address, mask in re.findall(r"inet (?:addr:)?([0-9.]+).*?(?:netmask |Mask:)(\S+)", block):
            if (bits := _parse_netmask(mask)) is not None and _is_address(f"{address}/{bits}"):
                addresses.append(f"{address}/{bits}")
        for address, bits6 in re.findall(r"inet6 (?:addr: ?)?([0-9a-fA-F:]+)(?:/|\s+prefixlen )([0-9]+)", block):
            if _is_address(f"{address}/{bits6}"):
                addresses.append(f"{address}/{bits6}")
        links[head[1]] = (int(mtu[1]) if mtu else None, bool(re.search(r"\bUP\b", block)), addresses)
    return links


def _parse_netmask(mask: str) -> int | None:
    try:
        number = int(mask, 16) if mask.startswith("0x") else int(IPv4Address(mask))
    except ValueError:
        return None
    bits = bin(number).count("1")
    return bits if number == (0xFFFFFFFF << (32 - bits)) & 0xFFFFFFFF else None


def _is_address(text: str) -> bool:
    address, _, bits = text.partition("/")
    try:
        return 0 <= int(bits or "0") <= ip_address(address).max_prefixlen
    except ValueError:
        return False


def _find_default_interfaces(bundle: ProbeOutput) -> frozenset[str]:
    rows = (line.split() for line in bundle.files.get("/proc/net/route", "").splitlines())
    return frozenset(row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000")


def parse_ssh_address(connection: str | None) -> str | None:
    """SSH_CONNECTION is: client, its port, our address, our port."""
    words = (connection or "").split()
    if len(words) != 4:
        return None
    try:
        address: IPv4Address | IPv6Address = ip_address(words[2].partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def read_resolved_names(bundle: ProbeOutput) -> Mapping[str, tuple[str, ...]]:
    """The addresses of each looked-up name on the host; unresolved names are missing."""
    addresses_by_name: dict[str, list[str]] = {}
    name = ""
    for line in bundle.command("getent hosts").splitlines()[:_LINES]:
        queried_name, tab, answer = line.partition("\t")
        name, answer = (queried_name, answer) if tab else (name, line)
        word = answer.split()[0] if answer.split() else ""
        if name and word and _is_address(word):
            addresses_by_name.setdefault(name, []).append(word)
    return {name: tuple(addresses) for name, addresses in addresses_by_name.items()}


# --- software --------------------------------------------------------------------------------------------------------


def read_distribution(bundle: ProbeOutput) -> str | None:
    fields = dict(line.partition("=")[::2] for line in bundle.files.get("/etc/os-release", "").splitlines())
    name = fields.get("PRETTY_NAME") or " ".join(filter(None, (fields.get("NAME"), fields.get("VERSION_ID"))))
    return name.strip().strip("\"'")[:120] or None


def read_glibc(bundle: ProbeOutput) -> str | None:
    """The version; None also for musl, see `uses_musl`."""
    first = next(iter(bundle.command("libraries").splitlines()), "")
    match = re.search(r"(?:^glibc |GLIBC |GNU libc\) )([0-9]\.[0-9]{1,3})\b", first)
    return match[1] if match else None


def uses_musl(bundle: ProbeOutput) -> bool:
    return read_glibc(bundle) is None and "ld-musl-" in bundle.command("libraries")


def read_library_paths(bundle: ProbeOutput) -> dict[str, str]:
    """soname → path, of what the loader would find; the first one counts."""
    paths: dict[str, str] = {}
    venv_fields = (line.partition("\t") for line in bundle.command("venv").splitlines()[:_LINES])
    lines = [*bundle.command("libraries").splitlines(), *(path for word, _, path in venv_fields if word == "library")]
    for line in lines[:_LINES]:
        cached = re.match(r"\s*(\S+) \(([^)]*)\) => (\S+)", line)
        if cached and "x86-64" in cached[2]:
            paths.setdefault(cached[1], cached[3])
        elif line.startswith("/"):
            paths.setdefault(posixpath.basename(line.strip()), line.strip())
    return paths


def find_glibcxx(paths: Mapping[str, str]) -> str | None:
    """libstdc++.so.6.0.30 is the one that knows GLIBCXX_3.4.30 (GCC's ABI policy, 6.0.9 and later)."""
    numbers = [int(match[1]) for name in paths if (match := re.fullmatch(r"libstdc\+\+\.so\.6\.0\.([0-9]{1,3})", name))]
    return f"GLIBCXX_3.4.{max(numbers)}" if numbers else None


def find_libraries(paths: Mapping[str, str]) -> tuple[str, ...]:
    sonames = {re.sub(r"^(libstdc\+\+\.so\.6)\..*", r"\1", name) for name in paths}
    return tuple(sorted(name for name in sonames if re.fullmatch(r"lib(stdc\+\+|zstd|z|gomp|numa)\.so\.[0-9]+", name)))


def find_allocators(paths: Mapping[str, str]) -> dict[str, str]:
    allocators: dict[str, str] = {}
    for word, pattern in (
        ("tcmalloc", r"libtcmalloc(_minimal)?\.so(\.[0-9]+)*"),
        ("jemalloc", r"libjemalloc\.so(\.[0-9]+)*"),
        ("iomp5", r"libiomp5\.so"),
    ):
        for name, path in sorted(paths.items()):
            if re.fullmatch(pattern, name):
                allocators.setdefault(word, path)
    return allocators


def read_pythons(bundle: ProbeOutput) -> tuple[Python, ...]:
    """In search order. A Python that did not report its version is unusable."""
    outputs: dict[str, str] = {}
    versions: dict[str, str] = {}
    for line in bundle.command("python -V").splitlines()[:_LINES]:
        path, tab, output = line.partition("\t")
        if not tab or not path.startswith("/") or len(path) > 4096:
            continue
        outputs.setdefault(path, output)
        if output:
            versions[path] = output
    cut = bundle.unread.get("python -V", "")
    return tuple(_describe_python(path, versions.get(path, ""), cut, uses_musl(bundle)) for path in list(outputs)[:64])


def _describe_python(path: str, output: str, cut: str, on_musl: bool) -> Python:
    if output == "listed":
        full = re.search(r"(?:versions/|cpython-|python-?)([0-9]\.[0-9]{1,2}\.[0-9]{1,2})\b", path)
        short = re.search(r"python([0-9]\.[0-9]{1,2})$", path)
        version = full[1] if full else short[1] if short else None
    else:
        match = re.fullmatch(r"Python ([0-9]\.[0-9]{1,2}\.[0-9]{1,3})\S*", output.strip())
        version = match[1] if match else None
        if version is None:
            return Python(path, None, False, _escape_text(output) if output else cut or "does not start")
    if on_musl:
        return Python(path, version, False, "linked to musl: there are no such wheels")
    return Python(path, version)


def _escape_text(text: str) -> str:
    return ascii(text[:80])[1:-1]


def read_installed(bundle: ProbeOutput) -> Installed | None:
    """The installed environment, read from its directory without starting its Python."""
    lines = bundle.command("venv").splitlines()[:_LINES]
    venv, exists, minor, packages = None, False, None, {}
    siblings: list[str] = []
    file_lines: dict[str, list[str]] = {}
    current_lines: list[str] | None = None
    for line in lines:
        word, tab, value = line.partition("\t")
        if tab and word == "file":
            current_lines = file_lines.setdefault(value, [])
        elif current_lines is not None:
            current_lines.append(line)
        elif tab and word == "venv":
            venv = value
        elif tab and word == "beside":
            siblings.append(value)
        elif tab and word == "python":
            exists = True
        elif tab and word == "dist":
            minor = value.split("/")[0].removeprefix("python")
            match = re.fullmatch(r".*/([^/]+?)-([^/-]+)\.dist-info", value)
            if match:
                packages[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    if venv is None:
        return None
    settings = "\n".join(file_lines.get("pyvenv.cfg", []))
    marker = _parse_marker("\n".join(file_lines.get("ipexctl.json", [])))
    return Installed(
        venv, exists, _read_python_version(settings, minor) if exists else None, packages, marker, tuple(siblings)
    )


def _read_python_version(settings: str, minor: str | None) -> str | None:
    """As pyvenv.cfg has it (venv writes ``version``, virtualenv and uv ``version_info``), else from the directory."""
    match = re.search(r"^version(?:_info)? *= *([0-9]\.[0-9]{1,2}(?:\.[0-9]{1,3})?)\b", settings, re.MULTILINE)
    return match[1] if match else minor


def _parse_marker(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_launchers(bundle: ProbeOutput) -> tuple[str, ...]:
    """Each mpirun on PATH with the first two lines of its version output."""
    output_lines: dict[str, list[str]] = {}
    for path, tab, line in (line.partition("\t") for line in bundle.command("mpirun --version").splitlines()[:_LINES]):
        if tab:
            output_lines.setdefault(path, []).append(line)
    return tuple(
        f"{path}: {' '.join(' '.join(lines[:2]).split())[:200]}" for path, lines in list(output_lines.items())[:64]
    )


def read_tools(bundle: ProbeOutput) -> dict[str, str]:
    paths = (line.strip() for line in bundle.command("command -v").splitlines()[:256])
    return {posixpath.basename(path): path for path in paths if path.startswith("/")}


def find_scheduler(environ: Mapping[str, str], path_marks: frozenset[str], tools: Mapping[str, str]) -> str | None:
    for word, variable, files, commands in (
        ("slurm", "SLURM_JOB_ID", {"/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"}, {"srun", "sbatch", "sinfo"}),
        ("pbs", "PBS_JOBID", {"/etc/pbs.conf"}, {"qsub"}),
        ("lsf", "LSB_JOBID", {"/etc/lsf.conf"}, {"bsub"}),
    ):
        if variable in environ or files & path_marks or commands & set(tools):
            return word
    return None


# --- disks and limits -------------------------------------------------------------------------------------------------


def read_disks(bundle: ProbeOutput) -> tuple[Disk, ...]:
    disks: dict[str, Disk] = {}
    types = dict(_read_mounts(bundle))
    for command in ("df -Pk", "df -Pk /dev/shm /tmp"):
        requested_paths: dict[str, tuple[str, bool]] = {}
        sizes: dict[str, tuple[int | None, int | None]] = {}
        for line in bundle.command(command).splitlines()[:_LINES]:
            words = line.split("\t")
            if words[0] == "path" and len(words) == 4:
                requested_paths[words[1]] = (words[2], words[3] == "rw")
            elif room := re.fullmatch(r".*?\s([0-9]+)\s+-?[0-9]+\s+(-?[0-9]+)\s+(?:[0-9]+%|-)\s+(/.*)", line):
                sizes[room[3]] = (parse_integer(room[1]), max(int(room[2][:18]), 0))
        for path, (existing_path, writable) in requested_paths.items():
            mount = _find_mount(existing_path, sizes)
            size, free = sizes.get(mount, (None, None))
            disks.setdefault(
                path,
                Disk(
                    path,
                    None if free is None else free << 10,
                    mount,
                    types.get(mount, ""),
                    None if size is None else size << 10,
                    writable,
                ),
            )
    return tuple(disks.values())


def _read_mounts(bundle: ProbeOutput) -> Iterator[tuple[str, str]]:
    for line in bundle.files.get("/proc/self/mountinfo", "").splitlines():
        before, dash, after = line.partition(" - ")
        if dash and len(before.split()) > 4:
            yield before.split()[4], after.split()[0] if after.split() else ""


def _find_mount(path: str, mounts: Mapping[str, Any]) -> str:
    above = [mount for mount in mounts if path == mount or path.startswith(mount.rstrip("/") + "/")]
    return max(above, key=len, default="")


_LIMITS = {
    "Max open files": "nofile",
    "Max processes": "nproc",
    "Max locked memory": "memlock",
    "Max stack size": "stack",
}


def read_limits(bundle: ProbeOutput) -> dict[str, int | None]:
    """The soft limits; None for unlimited."""
    limits: dict[str, int | None] = {}
    for line in bundle.files.get("/proc/self/limits", "").splitlines():
        match = re.match(r"(Max [a-z ]+?)\s{2,}(\S+)", line)
        if match and match[1] in _LIMITS:
            limits[_LIMITS[match[1]]] = parse_integer(match[2])
    return limits


def read_thp(bundle: ProbeOutput) -> str | None:
    match = re.search(r"\[(\w+)\]", bundle.files.get("/sys/kernel/mm/transparent_hugepage/enabled", ""))
    return match[1] if match else None


def read_hugepages(bundle: ProbeOutput) -> dict[str, int]:
    """What is set apart at boot or by sysctl, of the default size; empty where the kernel has none."""
    hugepages: dict[str, int] = {}
    text = bundle.files.get("/proc/meminfo", "")
    for word, name in (("HugePages_Total", "total"), ("HugePages_Free", "free"), ("Hugepagesize", "size_kb")):
        if match := re.search(rf"^{word}:\s*([0-9]{{1,15}})\b", text, re.MULTILINE):
            hugepages[name] = int(match[1])
    return hugepages


def read_clock(bundle: ProbeOutput) -> float | None:
    match = re.fullmatch(r"([0-9]{9,11})(?:\.([0-9]{1,9}))?.*", bundle.command("date").strip())
    return float(f"{match[1]}.{match[2] or 0}") if match else None


def read_load(bundle: ProbeOutput) -> float | None:
    match = re.match(r"([0-9]{1,6}\.[0-9]{1,3}) ", bundle.files.get("/proc/loadavg", ""))
    return float(match[1]) if match else None


# Those below 10 % are passed over by the expression itself: a busy host has a thousand lines, and none of them counts.
_HEAVY = re.compile(r"^ *([0-9]{2,6}(?:\.[0-9])?) +(\S+) +(\S+) +[0-9]+ +(\S.*)$", re.MULTILINE)
_YOUNG = re.compile(r"(00:)*0?0:0\d")


def read_busy(bundle: ProbeOutput, user: str | None) -> tuple[str, ...]:
    """Processes that use more than half a CPU over their life, heaviest first: "alice python (212 %)". Those younger
    than ten seconds do not count: nearly all of them belong to the probe."""
    processes: list[tuple[float, str]] = []
    for share, age, who, name in _HEAVY.findall(bundle.command("ps")):
        if float(share) >= 50 and not _YOUNG.fullmatch(age):
            processes.append((float(share), f"{who} {name.strip()[:40]} ({float(share):.0f} %)"))
    return tuple(text for _, text in sorted(processes, reverse=True)[:8])


def read_ports(bundle: ProbeOutput) -> tuple[int, int] | None:
    match = re.fullmatch(r"([0-9]{1,5})\s+([0-9]{1,5})", (bundle.file("/proc/sys/net/ipv4/ip_local_port_range") or ""))
    return (int(match[1]), int(match[2])) if match else None
