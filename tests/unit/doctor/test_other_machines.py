"""Odd machines, by the words of their lscpu and /proc/cpuinfo: what they tell is read, what they do not is unknown."""

import json
from typing import Any

import pytest

from ipexctl.data import read_data
from ipexctl.decide.checks.catalogue import parse_catalogue
from ipexctl.decide.checks.cluster import Cluster
from ipexctl.decide.checks.processor import recommend_settings
from ipexctl.decide.checks.run_checks import run_checks
from ipexctl.decide.facts.numbers import parse_cpu_list
from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.decide.releases.table import parse_table
from ipexctl.model.errors import Note
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.text import format_cpus
from tests.tables import read_table
from tests.unit.doctor.corpus import uarchs

CATALOGUE, TABLE = parse_catalogue(read_data("findings.toml")), parse_table(read_data("stacks.toml"))
TILES = "avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8"
SAPPHIRE = f"vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 143\nstepping\t: 8\nflags\t: fpu lm {TILES}\n"

POWER9 = """Architecture:        ppc64le
CPU(s):              160
On-line CPU(s) list: 0-159
Thread(s) per core:  4
Core(s) per socket:  20
Socket(s):           2
NUMA node(s):        4
Model name:          POWER9, altivec supported
NUMA node0 CPU(s):   0-79
NUMA node8 CPU(s):   80-159
NUMA node252 CPU(s):
NUMA node253 CPU(s):
"""
MAINFRAME = """Architecture:        s390x
CPU(s):              4
On-line CPU(s) list: 0-3
Thread(s) per core:  1
Core(s) per socket:  1
Socket(s) per book:  1
Book(s) per drawer:  1
Drawer(s):           4
Vendor ID:           IBM/S390
Hypervisor vendor:   IBM
Virtualization type: full
"""
ARM = """Architecture:                    aarch64
CPU(s):                          96
On-line CPU(s) list:             0-95
Vendor ID:                       ARM
Model name:                      Neoverse-V1
Thread(s) per core:              1
Core(s) per cluster:             96
Socket(s):                       -
Cluster(s):                      1
NUMA node0 CPU(s):               0-95
"""
RISCV = "Architecture:          riscv64\nCPU(s):                4\n  On-line CPU(s) list: 0-3\n"
GERMAN = "Architektur:         x86_64\nCPU(s):              8\nListe der Online-CPU(s): 0-7\n"
SMALL = {"Architecture": "x86_64", "CPU(s)": 8, "Thread(s) per core": 2, "Core(s) per socket": 4, "Socket(s)": 1}


def facts(lscpu: str = "", as_json: str = "", cpuinfo: str = "", **commands: str) -> Any:
    return parse_facts(
        ProbeOutput({"/proc/cpuinfo": cpuinfo}, {"lscpu": lscpu, "lscpu -J -B": as_json, **commands}), uarchs()
    )


@pytest.mark.parametrize(
    ("lscpu", "arch", "sockets", "cores", "threads", "online", "nodes"),
    [
        (POWER9, "ppc64le", 2, 40, 4, 160, {0: 80, 8: 80, 252: 0, 253: 0}),
        (MAINFRAME, "s390x", 4, 4, 1, 4, {}),
        (ARM, "aarch64", None, 96, 1, 96, {0: 96}),
        (RISCV, "riscv64", None, None, None, 4, {}),
        (GERMAN, None, None, None, None, 8, {}),
        ("", None, None, None, None, None, {}),
    ],
    ids=["POWER9", "s390x", "ARM without packages", "RISC-V", "a German lscpu", "an empty one"],
)
def test_lscpu_of_other_processors_and_languages_is_read_as_far_as_it_goes(
    lscpu: str,
    arch: str | None,
    sockets: int | None,
    cores: int | None,
    threads: int | None,
    online: int | None,
    nodes: dict[int, int],
) -> None:
    result = facts(lscpu)
    assert (result.arch, result.sockets, result.physical_cores) == (arch, sockets, cores)
    assert (result.threads_per_core, result.logical_online, result.isa_level) == (threads, online, None)
    assert {node.id: len(node.cpus) for node in result.numa or ()} == nodes


@pytest.mark.parametrize(
    ("vendor", "flags"),
    [("ARM", "fp asimd evtstrm"), ("IBM/S390", "esan3 zarch stfle"), ("Loongson", "cpucfg lam ual fpu lsx")],
)
def test_flags_of_other_processors_make_them_no_x86(vendor: str, flags: str) -> None:
    result = facts(f"CPU(s): 4\nVendor ID: {vendor}\nFlags: {flags}\n")
    assert (result.arch, result.isa_level, result.logical_online) == (None, None, 4)


def old_kernel(online: dict[int, str], **more: str) -> dict[str, str]:
    """Two packages with two cores of two threads, by the masks of kernels before 2.6.26. CPU 4 is beside 0."""
    system = "/sys/devices/system"
    files = {f"{system}/cpu/cpu{cpu}/online": f"{text}\n" for cpu, text in online.items()}
    for cpu in range(8):
        if online.get(cpu) == "0":
            continue
        topology = f"{system}/cpu/cpu{cpu}/topology"
        alive = sum(1 << sibling for sibling in (cpu % 4, cpu % 4 + 4) if online.get(sibling) != "0")
        files[f"{topology}/thread_siblings"] = f"00000000,{alive:08x}\n"
        files[f"{topology}/physical_package_id"] = f"{cpu % 2}\n"
    nodes = {f"{system}/node/node{node}/cpumap": f"0,{mask:08x}\n" for node, mask in ((0, 0x55), (1, 0xAA))}
    return {**files, **nodes, **more}


def test_masks_are_read_where_the_kernel_kept_no_lists() -> None:
    result = parse_facts(ProbeOutput(old_kernel({})), uarchs())
    assert (result.sockets, result.cores_per_socket, result.threads_per_core) == (2, 2, 2)
    assert (result.physical_cores, result.logical_online, result.cpus_offline) == (4, 8, ())
    assert [(node.id, node.cpus) for node in result.numa or ()] == [(0, (0, 2, 4, 6)), (1, (1, 3, 5, 7))]
    result = parse_facts(ProbeOutput(old_kernel({2: "0", 7: "0"})), uarchs())
    assert (result.physical_cores, result.threads_per_core, result.cpus_offline) == (4, None, (2, 7))
    lists = {"/sys/devices/system/node/node0/cpulist": "0-7\n"}
    result = parse_facts(ProbeOutput(old_kernel({}, **lists)), uarchs())
    assert [node.cpus for node in result.numa or ()] == [tuple(range(8))]  # a list is believed before a mask


@pytest.mark.parametrize("rubbish", ["", ",", "xyz", "123456789", "0," * 1000 + "1"])
def test_masks_that_are_none_tell_nothing(rubbish: str) -> None:
    files = {f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings": rubbish for cpu in range(2)}
    assert parse_facts(ProbeOutput(files), uarchs()).physical_cores is None


def processor(number: int, package: int | None, siblings: int, cores: int) -> str:
    physical = "" if package is None else f"physical id\t: {package}\n"
    return (
        f"processor\t: {number}\nvendor_id\t: GenuineIntel\n{physical}siblings\t: {siblings}\n"
        f"core id\t\t: {number % cores}\ncpu cores\t: {cores}\nflags\t\t: fpu lm tsc\n"
    )


@pytest.mark.parametrize("between", ["\n", "", " \t\n\n"])
def test_processors_are_distinguished_with_and_without_empty_lines_between_them(between: str) -> None:
    result = facts(cpuinfo=between.join(processor(cpu, cpu // 2, 2, 2) for cpu in range(4)))
    assert (result.sockets, result.cores_per_socket, result.threads_per_core) == (2, 2, 1)
    assert (result.logical_online, [core.cpus for core in result.cores]) == (4, [(0,), (1,), (2,), (3,)])


def test_processors_without_a_package_number_are_one_package_if_all_of_it_are_there() -> None:
    result = facts(cpuinfo="\n".join(processor(cpu, None, 4, 2) for cpu in range(4)))
    assert (result.sockets, result.physical_cores, result.threads_per_core, result.logical_online) == (1, 2, 2, 4)
    result = facts(cpuinfo="\n".join(processor(cpu, None, 4, 2) for cpu in range(3)))
    assert (result.sockets, result.physical_cores, result.logical_online) == (None, None, None)


def test_threads_of_packages_that_differ_are_not_known_where_core_numbers_repeat() -> None:
    """As of two dies of one package: those of the first package are not those of all."""
    blocks = [processor(cpu, 0, 4, 2) for cpu in range(4)]
    blocks += [processor(cpu, 1, 2, 2).replace("core id\t\t: 1", "core id\t\t: 0") for cpu in (4, 5)]
    result = facts(cpuinfo="\n".join(blocks))
    assert (result.sockets, result.physical_cores, result.threads_per_core, result.cores) == (2, 4, None, ())


def contained(number: int, package: int, core: int) -> str:
    """One CPU of a container, counted anew, on a computer of two packages with 64 cores and 128 threads each."""
    block = processor(number, package, 128, 64)
    return block.replace(f"core id\t\t: {number % 64}", f"core id\t\t: {core}")


@pytest.mark.parametrize(
    ("places", "sockets", "per_socket", "threads", "cores"),
    [
        ([(0, core) for core in range(8)], 1, 8, 1, 8),
        ([(0, 12), (0, 13), (0, 12), (0, 13)], 1, 2, 2, 2),
        ([(0, 3), (0, 3), (0, 5)], 1, 2, None, 2),
        ([(0, 1), (1, 1), (1, 2)], 2, 2, 1, 3),
    ],
)
def test_a_container_that_counts_its_cpus_anew_has_those_and_not_the_computer_s(
    places: list[tuple[int, int]], sockets: int, per_socket: int, threads: int | None, cores: int
) -> None:
    result = facts(cpuinfo="\n".join(contained(cpu, *place) for cpu, place in enumerate(places)))
    assert (result.sockets, result.cores_per_socket, result.threads_per_core) == (sockets, per_socket, threads)
    assert (result.physical_cores, result.cpus_online) == (cores, tuple(range(len(places))))


def test_a_container_whose_texts_count_different_cpus_cannot_be_told() -> None:
    """LXCFS: /proc/cpuinfo has the container's eight CPUs with the computer's numbers, lscpu the computer's."""
    text = "Architecture: x86_64\nCPU(s): 256\nOn-line CPU(s) list: 0-255\nThread(s) per core: 2\n"
    text += "Core(s) per socket: 128\nSocket(s): 1\n"
    cpuinfo = "\n".join(processor(cpu, 0, 256, 128) for cpu in range(8))
    result = facts(text, cpuinfo=cpuinfo)
    assert (result.arch, result.sockets, result.cores_per_socket, result.threads_per_core) == (
        "x86_64",
        None,
        None,
        None,
    )
    assert (result.physical_cores, result.logical_online, result.cores) == (None, None, ())
    assert facts(text, cpuinfo=processor(0, 0, 256, 128)).physical_cores == 128  # a sample of one


@pytest.mark.parametrize("numbers", [[0], [4, 5], [0, 2]])
def test_some_cpus_with_the_numbers_of_their_computer_are_no_container_of_their_own(numbers: list[int]) -> None:
    result = facts(cpuinfo="\n".join(contained(cpu, 0, cpu) for cpu in numbers))
    assert (result.sockets, result.physical_cores, result.logical_online) == (None, None, None)
    whole = [processor(0, 0, 1, 1), processor(1, 1, 4, 2)]  # of the first package all are there
    assert facts(cpuinfo="\n".join(whole)).sockets is None


@pytest.mark.parametrize(
    ("name", "model", "stepping", "silicon"),
    read_table("other_machines/what_is_switched_off_for_good_is_hidden_by_nobody"),
)
def test_what_is_switched_off_is_hidden_by_nobody(name: str, model: int, stepping: int, silicon: str | None) -> None:
    text = f"processor: 0\nvendor_id: GenuineIntel\ncpu family: 6\nmodel: {model}\nmodel name: {name}\n"
    result = facts(cpuinfo=f"{text}stepping: {stepping}\nflags: fpu lm tsc sse4_2 movbe popcnt aes\n")
    assert (result.silicon, result.isa_level) == (silicon, "below")
    cluster = Cluster(Inventory((Host("n1", "n1"),)), {"n1": result}, {}, TABLE, live=False)
    codes = {finding.code for finding in run_checks(cluster, CATALOGUE)}
    assert "CPU001" in codes
    assert ("CPU003" in codes) is (silicon not in ("below", None))


@pytest.mark.parametrize(
    ("cpuinfo", "arch", "online"),
    read_table("other_machines/processors_that_are_only_numbered_are_counted"),
    ids=["ARM", "ARM of Linux 3", "POWER", "one of many?", "one is missing"],
)
def test_processors_that_are_only_numbered_are_counted(cpuinfo: str, arch: str | None, online: int | None) -> None:
    result = facts(cpuinfo=cpuinfo)
    assert (result.arch, result.logical_online, result.sockets, result.physical_cores) == (arch, online, None, None)


def test_a_nul_behind_a_file_of_sys_is_not_a_part_of_it() -> None:
    topology = "/sys/devices/system/cpu/cpu0/topology"
    files = {
        "/sys/devices/system/cpu/online": "0\n\0",
        f"{topology}/thread_siblings_list": "0\n\0",
        f"{topology}/physical_package_id": " 36\n\0",
        "/sys/devices/system/node/node0/cpulist": "0\n\0",
    }
    result = parse_facts(ProbeOutput(files), uarchs())
    assert (result.sockets, result.physical_cores, result.logical_online) == (1, 1, 1)
    assert [node.cpus for node in result.numa or ()] == [(0,)]


def sysfs(siblings: dict[int, str], packages: dict[int, int], nodes: dict[int, str]) -> dict[str, str]:
    """The kernel's own files: CPU → its siblings, CPU → its package, node → its CPUs."""
    system = "/sys/devices/system"
    files = {f"{system}/cpu/cpu{cpu}/topology/thread_siblings_list": f"{text}\n" for cpu, text in siblings.items()}
    files |= {f"{system}/cpu/cpu{cpu}/topology/physical_package_id": f"{at}\n" for cpu, at in packages.items()}
    return files | {f"{system}/node/node{node}/cpulist": f"{cpus}\n" for node, cpus in nodes.items()}


@pytest.mark.parametrize("model", [79, 253], ids=["a known Xeon", "a Xeon of the future"])
def test_more_threads_in_a_core_than_an_x86_processor_has_are_not_believed(model: int) -> None:
    """Dom0 of Xen: all its CPUs are siblings. The CPUs are counted, the cores cannot be."""
    block = f"processor: 0\nvendor_id: GenuineIntel\ncpu family: 6\nmodel: {model}\nstepping: 1\nflags: lm avx2 fma\n"
    files = {"/proc/cpuinfo": block, "/sys/hypervisor/type": "xen\n"}
    files |= sysfs(dict.fromkeys(range(4), "0-3"), dict.fromkeys(range(4), 0), {})
    result = parse_facts(ProbeOutput(files), uarchs())
    assert (result.threads_per_core, result.cores_per_socket, result.physical_cores, result.cores) == (
        None,
        None,
        None,
        (),
    )
    assert (result.logical_online, result.sockets, result.hypervisor) == (4, 1, "Xen")
    text = "CPU(s): 4\nOn-line CPU(s) list: 0-3\nThread(s) per core: 4\nCore(s) per socket: 1\nSocket(s): 1\n"
    result = facts(text, cpuinfo=block)
    assert (result.threads_per_core, result.physical_cores, result.logical_online) == (None, None, 4)


@pytest.mark.parametrize(
    ("threads", "cores", "sockets", "online", "nodes", "reported"),
    [
        ("8", 4, 1, "0-3,16-19", {0: "0-3,16-19"}, (4, None, 4)),
        ("", 4, 1, "0-3", {0: "0-3"}, (4, 1, 4)),
        ("0", 4, 1, "0-3,16-19", {0: "0-3,16-19"}, (4, None, 4)),
        ("1", 2, 2, "0-2,8,9", {0: "0-2", 1: "8-9"}, (3, 1, 5)),
        ("1", 2, 2, "0-3,8", {0: "0-3,8"}, (None, 1, 5)),
        ("16", 2, 2, "0-3,8", {0: "0-3", 1: "8"}, (None, None, None)),
    ],
    ids=["a mean over all CPUs", "no threads", "zero threads", "uneven sockets", "and one node", "and a mean"],
)
def test_cores_are_reported_where_most_cpus_are_off_line_if_the_text_can(
    threads: str, cores: int, sockets: int, online: str, nodes: dict[int, str], reported: tuple[int | None, ...]
) -> None:
    offline = format_cpus(tuple(set(range(32)) - set(parse_cpu_list(online) or ())))
    lines = ["CPU(s): 32", f"On-line CPU(s) list: {online}", f"Off-line CPU(s) list: {offline}"]
    lines += [f"Thread(s) per core: {threads}"] if threads else []
    lines += [f"Core(s) per socket: {cores}", f"Socket(s): {sockets}"]
    lines += [f"NUMA node{node} CPU(s): {cpus}" for node, cpus in nodes.items()]
    result = facts("\n".join(lines))
    assert result.sockets == sockets
    assert (result.cores_per_socket, result.threads_per_core, result.physical_cores) == reported


def test_cores_that_are_off_line_are_not_counted_where_cpuinfo_goes_on_to_state_them() -> None:
    result = facts(cpuinfo="\n".join(processor(cpu, 0, 4, 16) for cpu in (0, 1, 2, 3)))
    assert (result.sockets, result.cores_per_socket, result.physical_cores, result.logical_online) == (1, 4, 4, 4)
    assert result.threads_per_core == 1


@pytest.mark.parametrize(
    "files",
    read_table("other_machines/the_cpuset_of_a_batch_system_is_reported_wherever_it_stands"),
    ids=["by its cgroup", "before cgroups", "mounted elsewhere", "with another controller", "of a group above", "mask"],
)
def test_the_cpuset_of_a_batch_system_is_reported_wherever_it_stands(files: dict[str, str]) -> None:
    everything = sysfs({cpu: str(cpu) for cpu in range(8)}, dict.fromkeys(range(8), 0), {})
    result = parse_facts(ProbeOutput({**everything, **files}), uarchs())
    assert result.cpus_allowed == (2, 3, 4, 5)
    inventory = Inventory((Host("a", "a"),))
    hits = run_checks(Cluster(inventory, {"a": result}, {}, TABLE, live=False), CATALOGUE)
    assert [hit.evidence for hit in hits if hit.code == "CPU005"] == ["allowed: 2-5"]


def test_the_kinds_of_a_hybrid_are_reported_by_threads_and_only_by_those() -> None:
    """Neither the kernel's lists nor frequencies say which cores are which."""
    block = "processor: 0\nvendor_id: GenuineIntel\ncpu family: 6\nmodel: 183\nstepping: 1\nflags: lm avx2 fma\n"
    pairs = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
    for siblings, kinds in (
        (pairs | {4: "4", 5: "5"}, {"p_cpus": (0, 1, 2, 3), "e_cpus": (4, 5)}),
        ({cpu: str(cpu) for cpu in range(6)}, None),
    ):
        files = {"/proc/cpuinfo": block} | sysfs(siblings, dict.fromkeys(siblings, 0), {})
        assert parse_facts(ProbeOutput(files), uarchs()).hybrid == kinds
        files["/sys/devices/system/cpu/present"] = "0-7\n"  # two siblings may be off line
        assert parse_facts(ProbeOutput(files), uarchs()).hybrid is None


def test_a_container_may_number_its_processors_from_anywhere() -> None:
    result = facts(
        cpuinfo="\n".join(f"processor: {cpu}\nvendor_id: AuthenticAMD\nflags: lm\n" for cpu in range(12, 16))
    )
    assert (result.cpus_online, result.sockets, result.physical_cores) == ((12, 13, 14, 15), None, None)
    result = facts(cpuinfo="\n".join(processor(cpu, 1, 4, 4) for cpu in range(12, 16)))
    assert (result.cpus_online, result.sockets, result.physical_cores) == ((12, 13, 14, 15), 1, 4)


@pytest.mark.parametrize(
    ("nodes", "ppn"),
    [
        (dict.fromkeys(range(8), "0-7"), 1),
        ({0: "0-5", 1: "4-7", 2: "2-7"}, 1),
        ({0: "0-3", 1: "4-7", 2: "0-3", 3: "6-7"}, 2),
        ({0: "0-1", 1: "2-3", 2: "4-5,6-7", 3: "0,2"}, 2),
        ({0: "0-3", 1: "4-7", 2: ""}, 2),
    ],
)
def test_numa_nodes_that_share_cpus_count_as_one(nodes: dict[int, str], ppn: int) -> None:
    files = sysfs({cpu: str(cpu) for cpu in range(8)}, dict.fromkeys(range(8), 0), nodes)
    result = parse_facts(ProbeOutput(files), uarchs())
    assert len({core.numa for core in result.cores}) == ppn
    cluster = Cluster(Inventory((Host("a", "a"),)), {"a": result}, {}, TABLE, live=False)
    assert f"--ppn {ppn} (" in recommend_settings(cluster)[-1]
    (finding,) = (finding for finding in run_checks(cluster, CATALOGUE) if finding.code == "CPU010")
    assert f"(--ppn {ppn})" in finding.fix
    assert ("nodes overlap" in finding.title) == (nodes[2] != "")


def test_a_virtual_mainframe_is_a_virtual_machine() -> None:
    assert facts(MAINFRAME).is_vm is True


def test_numbers_in_json_are_read_whether_they_are_texts_or_not() -> None:
    rows = [{"field": f"{name}:", "data": value} for name, value in SMALL.items()]
    result = facts(as_json=json.dumps({"lscpu": rows}))
    assert (result.sockets, result.physical_cores, result.logical_online) == (1, 4, 8)
    assert facts(as_json=json.dumps({"lscpu": SMALL})).logical_online is None  # no lscpu writes it so


@pytest.mark.parametrize(
    ("answer", "level"),
    [("granted\n", "AMX"), ("", "AMX"), ("refused 95\n", "AVX512_FP16"), ("refused 38\n", "AVX512_FP16")],
)
def test_amx_counts_unless_the_kernel_refuses_tiles_to_a_process(answer: str, level: str) -> None:
    result = facts(cpuinfo=SAPPHIRE, amx=answer)
    assert result.isa_level == level
    refusal = result.isa_refused.get("AMX")
    error = "arch_prctl refuses AMX tiles: error " + (answer.split() or [""])[-1]
    assert refusal == (Note("no-tiles", error) if level != "AMX" else None)


def test_reserved_huge_pages_are_reported_with_their_size() -> None:
    text = "MemTotal: 1000 kB\nHugePages_Total:     512\nHugePages_Free:      500\nHugepagesize:       2048 kB\n"
    assert parse_facts(ProbeOutput({"/proc/meminfo": text}), uarchs()).hugepages == {
        "total": 512,
        "free": 500,
        "size_kb": 2048,
    }
    assert parse_facts(ProbeOutput({"/proc/meminfo": "MemTotal: 1000 kB\n"}), uarchs()).hugepages == {}
