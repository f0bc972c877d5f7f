"""Each check finds what it is for, on the host it is on, and stays silent on healthy hosts."""

import json
import re
import string
from dataclasses import replace
from typing import Any

import pytest

from ipexctl.data import read_data
from ipexctl.decide.checks.catalogue import CatalogueEntry, explain_finding, parse_catalogue
from ipexctl.decide.checks.cluster import CheckHit, Cluster
from ipexctl.decide.checks.processor import find_common_level, recommend_settings
from ipexctl.decide.checks.run_checks import run_checks
from ipexctl.decide.checks.software import check_imports
from ipexctl.decide.facts.isa import find_isa_level
from ipexctl.decide.parsing.host_patterns import limit_inventory
from ipexctl.decide.releases.table import parse_table as parse_table
from ipexctl.model.errors import Failure, Hint, Kind, Origin, UsageError
from ipexctl.model.facts import Core, Disk, Facts, Installed, Interface, NumaNode, Python
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.json_values import parse_json, to_json
from ipexctl.model.reports import Finding
from tests.markers import MARKER
from tests.stopwatch import Stopwatch
from tests.tables import read_table
from tests.unit.doctor.corpus import ROOT

CATALOGUE = parse_catalogue(read_data("findings.toml"))
TABLE = parse_table(read_data("stacks.toml"))
GIB = 1 << 30
AVX2 = frozenset(["avx2", "fma"])
VNNI = AVX2 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"])
BF16 = VNNI | {"avx512_bf16"}
AMX = BF16 | frozenset(["amx_tile", "amx_bf16", "amx_int8", "avx512_fp16"])


def isa(flags: frozenset[str], silicon: str, uarch: str, **more: Any) -> dict[str, Any]:
    level, refused = find_isa_level(flags, silicon, **more)
    return {"flags": flags, "isa_level": level, "isa_refused": refused, "silicon": silicon, "uarch": uarch}


def healthy(n: int, **changes: Any) -> Facts:
    """Host number n of a cluster without any finding."""
    cores = tuple(Core((cpu,), 0, 0) for cpu in range(8))
    facts = Facts(
        arch="x86_64",
        vendor="GenuineIntel",
        model_name="Intel(R) Xeon(R) Platinum 8480+",
        **isa(AMX, "AMX", "sapphire_rapids"),
        sockets=1,
        cores_per_socket=8,
        threads_per_core=1,
        physical_cores=8,
        logical_online=8,
        cpus_online=tuple(range(8)),
        cpus_offline=(),
        numa=(NumaNode(0, tuple(range(8)), 64 << 20),),
        is_vm=False,
        mem_total_kb=64 << 20,
        mem_available_kb=60 << 20,
        cores=cores,
        cpus_allowed=tuple(range(8)),
        shm_free=32 * GIB,
        hostname=f"n{n}",
        self_addresses=(f"10.0.0.{n}",),
        interfaces=(
            Interface("lo", ("127.0.0.1/8",), 65536, None, True),
            Interface("eth0", (f"10.0.0.{n}/24",), 1500, 10000, True, True),
        ),
        ssh_address=f"10.0.0.{n}",
        machine_id=f"#{n}",
        distribution="Debian GNU/Linux 12 (bookworm)",
        glibc="2.36",
        glibcxx="GLIBCXX_3.4.30",
        libraries=("libstdc++.so.6", "libz.so.1", "libzstd.so.1"),
        limits={"nofile": 65536, "nproc": 100000, "memlock": 8 << 20},
        clock_offset=0.01,
        clock_error=0.02,
        load=0.1,
        thp="madvise",
        pythons=(Python("/usr/bin/python3.11", "3.11.2"),),
        installed=Installed("/home/u/env", True, "3.11.2", {"torch": "2.8.0+cpu"}, MARKER),
        allocators={"tcmalloc": "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"},
        disks=(Disk("/home/u/env", 100 * GIB, "/", "ext4", 200 * GIB, True),),
    )
    return replace(facts, **changes)


def result(*changes: dict[str, Any], failures: dict[str, Failure] | None = None, **options: Any) -> tuple[Finding, ...]:
    """The findings of a cluster a, b, c … whose hosts have these changes."""
    facts = {chr(96 + n): healthy(n, **change) for n, change in enumerate(changes, 1)}
    return run_checks(cluster(facts, failures or {}, **options), CATALOGUE)


def cluster(facts: dict[str, Facts], failures: dict[str, Failure] | None = None, **options: Any) -> Cluster:
    hosts = tuple(Host(name, name) for name in [*facts, *(failures or {})])
    return Cluster(Inventory(hosts), facts, failures or {}, TABLE, **options)


def one(code: str, findings: tuple[Finding, ...]) -> Finding:
    """The only finding of a code; others may be there."""
    matching = [finding for finding in findings if finding.code == code]
    assert len(matching) == 1, [f"{finding.code} {finding.title}" for finding in findings]
    return matching[0]


def test_healthy_hosts_have_no_findings() -> None:
    assert result({}, {}, {}) == ()


def test_a_word_that_a_check_does_not_know_stays_as_it_is_written() -> None:
    (finding,) = run_checks(cluster({"a": healthy(1)}), CATALOGUE, [CheckHit("DSK003", "a")])
    assert "{path}" in finding.title


def test_evidence_of_many_lines_costs_no_more_than_it_is() -> None:
    """A host that found another way to one host 120,000 times took a minute."""
    watch = Stopwatch()
    (finding,) = run_checks(
        cluster({"a": healthy(1)}), CATALOGUE, [CheckHit("NET010", "a", {}, f"{n}\nx") for n in range(40_000)]
    )
    assert finding.evidence.splitlines()[-1] == "and 39995 more"
    assert watch.read() < 5


def test_a_host_with_less_is_named_with_what_it_costs_and_how_to_leave_it_out() -> None:
    odd = isa(VNNI, "AVX512_VNNI", "cascade_lake")
    finding = one("CPU002", result({}, {}, odd))
    assert (finding.level, finding.hosts) == ("error", ("c",))
    assert finding.title == "lowers the cluster to AVX512_VNNI (bf16 would be emulated there)"
    assert "--limit '!c'" in finding.fix
    assert "run --isa common" in finding.fix
    assert "cascade_lake" in finding.evidence


def test_a_host_is_left_out_by_a_limit_that_works() -> None:
    """The hosts that the user has left out stay out; where every host has the fault, none is advised to be."""
    busy: dict[str, Any] = {"load": 7.5}
    facts = {f"node{n}": healthy(n, **(busy if n < 2 else {})) for n in range(4)}
    several = cluster(facts)
    limited = Cluster(replace(several.inventory, limit="node[0-3]"), facts, {}, TABLE)
    assert [
        re.findall("--limit '(.*)'", one("CPU011", run_checks(each, CATALOGUE)).fix) for each in (several, limited)
    ] == [["!node[0-1]"], ["node[2-3]"]]
    assert [host.name for host in limit_inventory(several.inventory, "!node[0-1]")] == ["node2", "node3"]
    everywhere = one("CPU011", result(busy, busy))
    assert "--limit" not in everywhere.fix
    assert "when they have ended" in everywhere.fix


def test_what_a_whole_cluster_can_have_is_not_mended_by_leaving_hosts_out() -> None:
    compared = {"CPU002", "CPU013", "CPU014", "SPD001"}  # with most of the others, so that never all have it
    advised = {code for code, entry in CATALOGUE.items() if "{out}" in entry.fix and not entry.fix_all}
    assert advised == compared


def test_the_explanation_has_the_fix_for_all_hosts_with_its_command() -> None:
    assert (
        "fix: leave it out (--limit '‹out›'), or install plain torch everywhere:\nipexctl install --track native\n\n"
        "where all hosts have it: install plain torch everywhere:\nipexctl install --track native\n"
    ) in explain_finding("CPU001", CATALOGUE)
    assert "where all hosts" not in explain_finding("CPU002", CATALOGUE)
    assert "fix: depends on the host: doctor names it" in explain_finding("SYS010", CATALOGUE)


def test_each_host_is_reported_what_it_alone_would_lower_the_cluster_to() -> None:
    findings = result({}, isa(BF16, "AVX512_BF16", "zen4"), isa(VNNI, "AVX512_VNNI", "cascade_lake"))
    titles = {finding.hosts: finding.title.split(" (")[0] for finding in findings if finding.code == "CPU002"}
    assert titles == {("b",): "lowers the cluster to AVX512_BF16", ("c",): "lowers the cluster to AVX512_VNNI"}


def test_a_bigger_host_is_no_straggler() -> None:
    sizes = [{"physical_cores": count} for count in (8, 8, 8, 16, 4)]
    assert one("CPU013", result(*sizes)).hosts == ("e",)


def test_less_that_still_computes_in_bf16_is_a_warning() -> None:
    assert one("CPU002", result({}, isa(BF16, "AVX512_BF16", "zen4"))).level == "warning"


def test_the_common_level_is_that_of_the_common_flags_not_the_lowest_name() -> None:
    facts = {
        "client": healthy(1, **isa(AVX2 | {"avx_vnni"}, "AVX2_VNNI", "alder_lake")),
        "server": healthy(2, **isa(VNNI, "AVX512_VNNI", "cascade_lake")),
    }
    assert find_common_level(cluster(facts)) == "AVX2"


def test_the_common_level_is_unknown_while_one_host_does_not_tell() -> None:
    facts = {"a": healthy(1), "b": healthy(2, isa_level=None, flags=frozenset())}
    assert find_common_level(cluster(facts)) is None


def test_many_cores_take_no_time() -> None:
    """16,384 cores of a host, or so it said, cost `doctor` 6 s: each was compared with all."""
    cpus, watch = tuple(range(16384)), Stopwatch()
    host = healthy(1, cores=tuple(Core((cpu,), 0, 0) for cpu in cpus), cpus_online=cpus, cpus_allowed=cpus)
    assert "--ppn 1 (16384 cores;" in recommend_settings(cluster({"a": host}))[1]
    assert watch.read() < 2


def test_advice_is_bf16_only_where_every_host_computes_in_it() -> None:
    assert "bf16: every host has AMX" in recommend_settings(cluster({"a": healthy(1), "b": healthy(2)}))[0]
    slow = healthy(2, **isa(VNNI, "AVX512_VNNI", "cascade_lake"))
    assert "float32" in recommend_settings(cluster({"a": healthy(1), "b": slow}))[0]


@pytest.mark.parametrize("flags", [VNNI, frozenset({"sse4_2"})])
def test_one_weak_host_of_many_does_not_turn_the_advice_for_all(flags: frozenset[str]) -> None:
    facts = {f"node{n}": healthy(n) for n in range(50)}
    facts["node17"] = healthy(17, **isa(flags, "AVX512_VNNI" if flags == VNNI else "below", "old"))
    first, second, _ = recommend_settings(cluster(facts))
    assert first.startswith("node17: less than most; with --limit '!node17' the common level is AMX")
    assert second.startswith("bf16: every host has AMX")


def test_advice_says_what_holds_where_nothing_better_does() -> None:
    old = isa(frozenset({"avx"}), "below", "ivy_bridge_ep")
    hosts = {"a": healthy(1, **old), "b": healthy(2, **old, cores=tuple(Core((cpu,), 0, 0) for cpu in range(4)))}
    assert recommend_settings(cluster(hosts)) == (
        "plain torch in float32: IPEX needs AVX2",
        "hosts differ in cores or NUMA nodes: one rank per NUMA node of each is the default",
    )


def test_advice_is_the_placement_of_a_run() -> None:
    nodes = (NumaNode(0, (0, 1, 2, 3)), NumaNode(1, (4, 5, 6, 7)), NumaNode(2, ()))
    host = healthy(1, numa=nodes, cores=tuple(Core((cpu,), 0, cpu // 4) for cpu in range(8)))
    assert "--ppn 2" in recommend_settings(cluster({"a": host}))[-1]
    assert "--ppn 1" in recommend_settings(cluster({"a": replace(host, cpus_allowed=(0, 1))}))[-1]
    # Without the nodes of its cores, a run places one rank.
    assert "--ppn 1" in recommend_settings(cluster({"a": healthy(1, numa=nodes)}))[-1]


@pytest.mark.parametrize(
    ("best", "less", "cost"),
    [
        (isa(VNNI, "AVX512_VNNI", "cascade_lake"), isa(AVX2, "AVX2", "haswell"), "vectors half as wide"),
        (isa(BF16, "AVX512_BF16", "cooper_lake"), isa(VNNI, "AVX512_VNNI", "cascade_lake"), "bf16 would be emulated"),
        (
            isa(VNNI, "AVX512_VNNI", "cascade_lake"),
            isa(VNNI - {"avx512_vnni"}, "AVX512", "skylake_avx512"),
            "others have AVX512_VNNI",
        ),
    ],
)
def test_what_a_host_with_less_costs_is_reported(best: dict[str, Any], less: dict[str, Any], cost: str) -> None:
    assert cost in one("CPU002", result(best, best, less)).title


def test_advice_has_no_more_threads_than_a_quota_allows() -> None:
    assert "--ppn 1 (3 cores; 2 threads " in recommend_settings(cluster({"a": healthy(1, cgroup_cpus=3.5)}))[-1]


def test_amx_that_the_kernel_refuses_is_not_amx() -> None:
    refused = isa(AMX, "AMX", "sapphire_rapids", tiles="refused 95")
    assert refused["isa_level"] == "AVX512_FP16"
    finding = one("CPU004", result(refused))
    assert "arch_prctl refuses AMX tiles: error 95" in finding.title
    assert find_common_level(cluster({"a": healthy(1), "b": healthy(2, **refused)})) == "AVX512_FP16"


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "an old processor": ("CPU001", "error", isa(frozenset({"avx"}), "below", "ivy_bridge_ep")),
    "a masked processor": ("CPU003", "warning", {**isa(BF16, "AMX", "sapphire_rapids"), "is_vm": True}),
    "a cpuset": ("CPU005", "warning", {"cpus_allowed": (0, 1)}),
    "a quota": ("CPU006", "warning", {"cgroup_cpus": 2.5}),
    "a quota below one": ("CPU006", "error", {"cgroup_cpus": 0.2}),
    "a saving governor": ("CPU007", "warning", {"governor": "powersave"}),
    "off-line CPUs": ("CPU008", "info", {"cpus_offline": (8, 9)}),
    "two kinds of cores": ("CPU009", "info", {"hybrid": {"p_cpus": (0, 1, 2, 3), "e_cpus": (4, 5, 6, 7)}}),
    "several NUMA nodes": ("CPU010", "info", {"numa": (NumaNode(0, (0, 1)), NumaNode(1, (2, 3)))}),
    "other people's work": ("CPU011", "warning", {"load": 7.5, "busy": ("bob python (700 %)",)}),
    "another architecture": ("CPU012", "error", {"arch": "riscv64", "isa_level": None}),
    "a memory limit": ("MEM001", "warning", {"mem_limit_kb": 8 << 20}),
    "memory in use": ("MEM002", "warning", {"mem_available_kb": 4 << 20}),
    "no huge pages": ("MEM003", "info", {"thp": "never"}),
    "a small /dev/shm": ("MEM004", "warning", {"shm_free": 64 << 20}),
    "few open files": ("LIM001", "warning", {"limits": {"nofile": 256}}),
    "few processes": ("LIM003", "warning", {"limits": {"nproc": 512}}),
    "a full disk": ("DSK001", "error", {"disks": (Disk("/home/u/env", 1 << 20, "/home", "ext4"),)}),
    "a name that is loopback": ("NET001", "warning", {"self_addresses": ("127.0.1.1",)}),
    "an old C library": ("SYS002", "error", {"glibc": "2.12"}),
    "an older C library": ("SYS002", "warning", {"glibc": "2.17"}),
    "an old libstdc++": ("SYS003", "info", {"glibcxx": "GLIBCXX_3.4.28"}),
    "a missing library": ("SYS004", "info", {"libraries": ("libz.so.1",)}),
    "a wrong clock": ("SYS001", "warning", {"clock_offset": -90.0}),
    "the current directory in PATH": ("SYS008", "warning", {"path": "/usr/bin:.:/bin"}),
    "an empty entry in PATH": ("SYS008", "warning", {"path": "/usr/bin:"}),
    "a directory that everybody may change": ("SYS009", "warning", {"open_directories": ("/opt/tools",)}),
    "glibc's malloc only": ("SYS010", "warning", {"allocators": {"iomp5": "/home/u/env/lib/libiomp5.so"}}),
    "a pip.conf": ("PY003", "warning", {"ignored_settings": ("/etc/pip.conf",)}),
    "an index of uv": ("PY003", "warning", {"ignored_settings": ("UV_CACHE_DIR", "UV_DEFAULT_INDEX")}),
    "a cache of pip": ("PY003", "info", {"ignored_settings": ("PIP_CACHE_DIR",)}),
    "a scheduler": ("SYS006", "info", {"scheduler": "slurm"}),
    "an old Python only": ("PY001", "error", {"pythons": (Python("/usr/bin/python3.5", "3.5.2"),)}),
    "a new Python only": ("PY001", "warning", {"pythons": (Python("/usr/bin/python3.15", "3.15.0"),)}),
    "no Python": ("PY001", "error", {"pythons": ()}),
    "an MPI of another kind": ("MPI001", "info", {"mpi": ("/usr/bin/mpirun: mpirun (Open MPI) 4.1.4",)}),
    "less memory": ("CPU013", "warning", {"mem_total_kb": 32 << 20, "mem_available_kb": 30 << 20}),
    "another distribution": ("SYS005", "info", {"distribution": "Rocky Linux 9.4"}),
    "a full /tmp": ("DSK001", "warning", {"disks": (Disk("/tmp", 1 << 20, "/tmp", "tmpfs"),)}),
    "a home that cannot be written": (
        "DSK002",
        "error",
        {
            "home": "/home/u",
            "installed": Installed("/home/u/env", True),
            "disks": tuple(Disk(at, 9 * GIB, "/", "nfs4", None, False) for at in ("/home/u/env", "/home/u", "/tmp")),
        },
    ),
    "a place that cannot be written": (
        "DSK002",
        "error",
        {
            "installed": Installed("/home/u/env"),
            "disks": (Disk("/home/u/env", 100 * GIB, "/", "ext4", 200 * GIB, False),),
        },
    ),
    "a home that executes nothing": (
        "DSK004",
        "error",
        {
            "home": "/home/u",
            "installed": Installed("/home/u/env", True),
            "disks": tuple(Disk(at, 9 * GIB, "/", "ext4", None, True, False) for at in ("/home/u", "/tmp")),
        },
    ),
    "an environment that another user has replaced": (
        "STK008",
        "error",
        {"installed": Installed("/home/u/env", fault="/home/u/env.d/e1 belongs to another user")},
    ),
    "an environment that is being installed": (
        "STK006",
        "error",
        {"installed": Installed("/home/u/env", True, "3.11.2", {"torch": "2.13.0"}, beside=("tmp",), locked=True)},
    ),
    "an environment without torch": ("STK006", "error", {"installed": Installed("/home/u/env", True, "3.11.2")}),
    "an answer that is missing": ("DOC001", "error", {"unread": {"df -Pk": "timed out after 10 s"}}),
    "facts that are missing": ("DOC002", "error", {"mem_total_kb": None}),
}


@pytest.mark.parametrize(("code", "level", "change"), CASES.values(), ids=CASES.keys())
def test_a_host_with_it_is_named(code: str, level: str, change: dict[str, Any]) -> None:
    findings = result({}, change, {})
    finding = one(code, findings)
    assert (finding.level, finding.hosts) == (level, ("b",))
    assert finding.fix
    assert not [each for each in findings if "{" in each.title + each.fix], "a word that is not filled in"


def installed(**packages: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    return {"installed": Installed("/home/u/env", True, "3.11.2", named)}


def test_torch_under_an_ipex_for_another_torch_is_found_with_the_torch_it_needs() -> None:
    wrong = installed(torch="2.13.0+cpu", intel_extension_for_pytorch="2.8.0")
    finding = one("STK001", result(wrong))
    assert finding.level == "error"
    assert finding.fix == "ipexctl install --torch 2.8.0"
    assert not [
        other
        for other in result(installed(torch="2.8.0", intel_extension_for_pytorch="2.8.0"))
        if other.level == "error"
    ]


def test_a_binding_for_another_torch_is_found() -> None:
    assert one("STK005", result(installed(torch="2.8.0", oneccl_bind_pt="2.7.0+cpu"))).level == "error"


def test_the_host_with_another_stack_is_the_odd_one_and_local_versions_do_not_count() -> None:
    same = [installed(torch="2.8.0+cpu"), installed(torch="2.8.0"), installed(torch="2.7.0")]
    assert one("STK002", result(*same)).hosts == ("c",)


def test_a_host_whose_environment_has_other_packages_is_found_as_a_run_does() -> None:
    def has(**packages: str) -> dict[str, Any]:
        marker = replace(MARKER, id=f"torch2.8.0-{len(packages)}", packages=packages)
        return {"installed": Installed("/home/u/env", True, "3.11.2", packages, marker)}

    same, other = has(torch="2.8.0"), has(torch="2.8.0", tabulate="0.9")
    assert not {each.code for each in result(same, same)} & {"STK002"}
    finding = one("STK002", result(other, same, same))
    assert (finding.level, finding.hosts) == ("error", ("a",))
    assert finding.title.endswith("other versions of tabulate, or none")
    assert finding.fix.endswith("ipexctl install --like b --limit a")


def test_a_host_whose_environment_was_changed_by_hand_is_found_as_a_run_does() -> None:
    """`doctor` called fit what `run` refused."""

    def has(**packages: str) -> dict[str, Any]:
        locked = replace(MARKER, packages={"torch": "2.8.0", "numpy": "2.1.0"})
        held = {"torch": "2.8.0", "numpy": "2.1.0", **packages}
        return {"installed": Installed("/home/u/env", True, "3.11.2", held, locked)}

    finding = one("STK010", result(has(), has(numpy="1.26.0"), has()))
    assert (finding.level, finding.hosts) == ("error", ("b",))
    assert finding.title.endswith("since its install: numpy is 1.26.0, not 2.1.0")
    assert finding.fix.endswith("ipexctl install --like a --limit b")
    added = has(einops="0.8.0")
    assert not {each.code for each in result(added, added, has())} & {"STK002", "STK009", "STK010"}
    finding = one("STK009", result(added, has(einops="0.5.0"), added))
    assert (finding.level, finding.hosts) == ("warning", ("b",))
    assert finding.title.endswith("by hand: einops 0.5.0 (most: 0.8.0)")
    assert finding.fix.endswith("ipexctl install --with einops")


def test_an_mpi_that_was_added_by_hand_has_changed_the_environment() -> None:
    """`pip install mpich` beside impi-rt overwrites mpirun and libmpi.so.12: doctor called that fit, and the ranks of a
    run did not meet."""
    locked = {"torch": "2.13.0", "impi-rt": "2021.18.1"}
    held = Installed("/home/u/env", True, "3.11.2", {**locked, "mpich": "5.0.2"}, replace(MARKER, packages=locked))
    finding = one("STK010", result({"installed": held}))
    assert finding.title.endswith("since its install: mpich took the place of impi-rt")


def test_an_environment_of_the_users_own_is_named_since_no_run_starts_with_it() -> None:
    finding = one("STK011", result(installed(torch="2.8.0")))
    assert (finding.level, finding.title) == ("info", "has an environment at /home/u/env that ipexctl did not make")
    assert not {each.code for each in result(installed())} & {"STK011"}


def test_a_host_without_the_environment_that_others_have_is_found() -> None:
    bare = {"installed": Installed("/home/u/env", False)}
    assert one("STK003", result({}, bare)).hosts == ("b",)
    assert one("STK004", result(bare, bare)).hosts == ("a", "b")


def test_ipex_has_an_end_of_life_notice() -> None:
    assert one("EOL001", result(installed(torch="2.8.0", intel_extension_for_pytorch="2.8.0"))).level == "info"


def test_a_host_without_a_compiler_is_reported_where_torch_compile_takes_the_place_of_ipex() -> None:
    bare, able = {"tools": {"tar": "/usr/bin/tar"}}, {"tools": {"g++": "/usr/bin/g++"}}
    finding = one("SYS007", result(bare | installed(torch="2.13.0+cpu"), able | installed(torch="2.13.0+cpu")))
    assert (finding.level, finding.hosts) == ("info", ("a",))
    with_ipex = installed(torch="2.8.0", intel_extension_for_pytorch="2.8.0")
    assert "SYS007" not in {other.code for other in result(bare | with_ipex)}


@pytest.mark.parametrize(("distribution", "command"), read_table("findings/tcmalloc_commands"))
def test_a_host_without_tcmalloc_gets_the_command_of_its_distribution(distribution: str, command: str) -> None:
    assert one("SYS010", result({"allocators": {}, "distribution": distribution})).fix == command


@pytest.mark.parametrize("distribution", ["Amazon Linux 2023", "CentOS Linux 7 (Core)", None])
def test_no_package_is_guessed_for_other_distributions(distribution: str | None) -> None:
    fix = one("SYS010", result({"allocators": {}, "distribution": distribution})).fix
    assert fix.startswith("for an administrator: install tcmalloc (gperftools) or jemalloc")


def test_hosts_of_different_distributions_without_tcmalloc_are_one_finding() -> None:
    debian: dict[str, Any] = {"allocators": {}}
    fedora = {**debian, "distribution": "Fedora Linux 42 (Server Edition)"}
    finding = one("SYS010", result(debian, fedora, {}, debian))
    assert finding.hosts == ("a", "b", "d")
    packages = "on a, d: sudo apt-get install libtcmalloc-minimal4; on b: sudo dnf install gperftools-libs"
    assert finding.fix == f"for an administrator: {packages}"


@pytest.mark.parametrize("change", read_table("findings/other_allocators"))
def test_a_host_with_jemalloc_or_with_unknown_libraries_does_not_lack_an_allocator(change: dict[str, Any]) -> None:
    assert "SYS010" not in {finding.code for finding in result(change)}


def test_hosts_without_a_common_python_are_found() -> None:
    other = {"pythons": (Python("/usr/bin/python3.12", "3.12.1"),)}
    assert one("PY002", result({}, {}, other)).hosts == ("c",)
    newer = {"pythons": (Python("/usr/bin/python3.14", "3.14.1"),)}  # of plain torch
    assert one("PY002", result({}, {}, newer)).hosts == ("c",)
    assert one("PY001", result({}, {}, newer)).title.startswith("has no Python for IPEX (it exists for 3.")


def test_a_host_without_any_python_for_torch_does_not_hear_of_ipex_alone() -> None:
    title = one("PY001", result({"pythons": ()})).title
    assert re.fullmatch(r"has no Python for torch \(it exists for 3\.6 to 3\.1[4-9]\)", title)


def test_entries_that_are_one_machine_are_both_named_and_refused() -> None:
    finding = one("DUP001", result({"machine_id": "#1"}, {"machine_id": "#1"}, {}))
    assert (finding.level, finding.hosts) == ("error", ("a", "b"))


def test_hosts_of_one_lab_are_one_machine_on_purpose() -> None:
    facts = {name: healthy(1) for name in ("a", "b")}
    inventory = Inventory(tuple(Host(name, "127.0.0.1", vars={"lab": "x"}) for name in facts))
    findings = run_checks(Cluster(inventory, facts, {}, TABLE), CATALOGUE)
    assert "DUP001" not in {finding.code for finding in findings}


def card(n: int, *, mtu: int = 1500, net: str = "10.0.0", speed: int = 10000) -> dict[str, Any]:
    return {"interfaces": (Interface("eth0", (f"{net}.{n}/24",), mtu, speed, True),), "ssh_address": f"{net}.{n}"}


def test_a_different_mtu_on_the_interface_of_the_run_is_found() -> None:
    finding = one("NET004", result(card(1, mtu=9000), card(2, mtu=9000), card(3)))
    assert finding.hosts == ("c",)
    assert finding.fix == "for an administrator: sudo ip link set eth0 mtu 9000"


def test_the_name_of_an_interface_is_no_command_in_a_fix_that_root_may_type() -> None:
    """Who typed the line executed what the host had called its interface."""
    odd = (Interface("e$(reboot);x", ("10.0.0.3/24",), 1500, 1000, True),)
    findings = result(card(1, mtu=9000), card(2, mtu=9000), {**card(3), "interfaces": odd})
    assert one("NET004", findings).fix == "for an administrator: sudo ip link set 'e$(reboot);x' mtu 9000"
    assert "ethtool 'e$(reboot);x'" in one("NET005", findings).fix


def test_a_slower_link_is_found() -> None:
    assert one("NET005", result(card(1), card(2), card(3, speed=100))).hosts == ("c",)


def test_hosts_without_a_common_subnet_are_warned_about() -> None:
    finding = one("NET003", result(card(1), card(2, net="10.9.9")))
    assert finding.level == "warning"
    cloud = [{"interfaces": (Interface("ens4", (f"10.128.0.{n}/32",), 1460, None, True),)} for n in (2, 3)]
    assert one("NET003", result(*cloud)).level == "info"


def test_a_public_address_is_graver_where_a_private_one_is_left_unused() -> None:
    def has(n: int, *more: Interface) -> dict[str, Any]:
        return {"interfaces": (Interface("eth0", (f"8.8.4.{n}/24",), up=True), *more), "ssh_address": f"8.8.4.{n}"}

    def inner(n: int) -> Interface:
        return Interface("eth1", (f"10.0.0.{n}/24",), up=True)

    assert one("NET014", result(has(1), has(2))).level == "info"
    finding = one("NET014", result(has(1, inner(1)), has(2, inner(2))))
    assert (finding.level, finding.hosts) == ("warning", ("a", "b"))
    assert "NET014" not in {each.code for each in result({"interfaces": (inner(1),)}, {"interfaces": (inner(2),)})}


def test_an_interface_in_a_subnet_of_its_own_is_found_and_graver_where_the_shared_one_is_missing() -> None:
    def cards(n: int, *more: str) -> dict[str, Any]:
        words = (f"10.0.0.{n}/24", *more)
        return {"interfaces": tuple(Interface(f"eth{at}", (word,), 1500, 10000, True) for at, word in enumerate(words))}

    aside = "10.9.9.9/24"
    assert one("NET013", result(cards(1), cards(2), cards(3, aside))).level == "info"
    mistaken = one("NET013", result(cards(1, "10.1.0.1/24"), cards(2, "10.1.0.2/24"), cards(3, aside)))
    assert (mistaken.hosts, mistaken.level) == (("c",), "warning")
    assert "eth1 10.9.9.9/24" in mistaken.title


def test_a_host_whose_interfaces_are_all_down_has_none_for_a_run() -> None:
    down = {"interfaces": (Interface("eth0", ("10.0.0.2/24",), 1500, 10000, False),)}
    errors = [finding.hosts for finding in result({}, down) if (finding.code, finding.level) == ("NET003", "error")]
    assert errors == [("b",)]


def test_locked_memory_is_too_little_where_a_fast_network_registers_it() -> None:
    fast = Interface("ib0", ("10.5.0.1/24",), 2044, 100000, True)
    finding = one("LIM002", result({"interfaces": (*healthy(1).interfaces, fast)}))
    assert finding.title == "allows 8.0 MiB of locked memory, and has RDMA hardware (ib0)"
    assert "LIM002" not in {each.code for each in result({})}


def test_docker0_is_good_to_know() -> None:
    docker = Interface("docker0", ("172.17.0.1/16",), 1500, None, True, virtual=True)
    assert one("NET002", result({"interfaces": (*healthy(1).interfaces, docker)})).level == "info"


def test_when_all_hosts_are_off_by_the_same_the_clock_of_this_machine_is_wrong() -> None:
    finding = one("SYS001", result({"clock_offset": 100.0}, {"clock_offset": 100.1}))
    assert "this machine" in finding.evidence


def test_a_host_that_failed_is_reported_by_how_it_failed() -> None:
    failures = {
        "x": Failure("x", Kind.UNREACHABLE, "no answer within 10 s", code="timeout"),
        "y": Failure("y", Kind.UNREACHABLE, "its key is not known (SHA256:…)", code="host-key-unknown"),
        "z": Failure("z", Kind.UNREACHABLE, "the host key has CHANGED", code="host-key-changed"),
    }
    codes = {finding.hosts: finding.code for finding in result({}, failures=failures)}
    assert codes == {("x",): "SSH001", ("y",): "SSH002", ("z",): "SSH003"}


def test_a_host_that_does_not_answer_is_tried_by_hand_where_we_went() -> None:
    host = Host("node3", "10.1.0.3", user="me", port=2222, key="/home/me/my key")
    failure = Failure("node3", Kind.UNREACHABLE, "connection refused", code="refused")
    findings = run_checks(Cluster(Inventory((host,)), {}, {"node3": failure}, TABLE), CATALOGUE)
    assert one("SSH001", findings).fix == "ssh -p 2222 -i '/home/me/my key' me@10.1.0.3 true"
    host = replace(host, vars={"known_hosts": "/lab/known_hosts"})
    findings = run_checks(Cluster(Inventory((host,)), {}, {"node3": failure}, TABLE), CATALOGUE)
    assert "-o UserKnownHostsFile=/lab/known_hosts me@10.1.0.3 true" in one("SSH001", findings).fix


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("key-file", "key= of node3 in hosts:3:1 must name a private key of this machine"),
        ("dns", "write its address=IP in hosts:3:1, or HostName for node3 in ~/.ssh/config"),
    ],
)
def test_a_wrong_word_of_the_hostfile_is_named_with_its_line(code: str, fix: str) -> None:
    host = Host("node3", "node3.wrong", key="/home/me/none", origin=Origin("hosts", 3, 1))
    failure = Failure("node3", Kind.UNREACHABLE, "", code=code)
    [finding] = run_checks(Cluster(Inventory((host,)), {}, {"node3": failure}, TABLE), CATALOGUE)
    assert finding.fix == fix


def test_limits_that_are_just_enough_are_no_finding() -> None:
    assert result({"limits": {"nofile": 4096, "nproc": 4096}}) == ()
    short = result({"limits": {"nofile": 1024, "nproc": 4095}})
    assert [(finding.code, finding.level) for finding in short] == [("LIM003", "warning"), ("LIM001", "info")]
    assert one("LIM001", result({"limits": {"nofile": 1023}})).level == "warning"


def test_the_gravest_findings_come_first_and_hosts_with_the_same_finding_are_together() -> None:
    findings = result(
        {"thp": "never"}, {"thp": "never", "governor": "powersave"}, {"arch": "aarch64", "isa_level": None}
    )
    assert [finding.level for finding in findings] == sorted(
        (f.level for f in findings), key=["error", "warning", "info"].index
    )
    assert one("MEM003", findings).hosts == ("a", "b")


def test_what_a_host_says_is_shown_escaped() -> None:
    evil = {"governor": "powersave", "mpi": ("/usr/bin/mpirun: \x1b]52;c;evil\x07",), "model_name": "\x1b[31mred"}
    for finding in result({**isa(frozenset(), "below", "x"), **evil}):
        assert "\x1b" not in f"{finding.title}{finding.evidence}{finding.fix}"


def test_braces_in_what_a_host_says_are_only_text() -> None:
    assert "{x}" in one("SYS006", result({"scheduler": "{x}"})).title


def test_a_recorded_probe_may_hold_a_part_only() -> None:
    finding = one("DOC002", result({"mem_total_kb": None}, live=False))
    assert finding.level == "info"


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_code_has_a_story_and_only_words_that_its_checks_fill(code: str) -> None:
    entry = CATALOGUE[code]
    assert len(entry.story) > 40
    assert entry.title
    assert entry.fix or entry.command
    assert not entry.command or not entry.fix or entry.fix.endswith(":")
    assert bool(entry.do) == (entry.safe == "root")
    assert all(
        name is None or name.isidentifier()
        for _, name, _, _ in string.Formatter().parse(entry.title + entry.fix + entry.command)
    )
    assert code in explain_finding(code.lower(), CATALOGUE)


@pytest.mark.parametrize(
    ("message", "meaning"),
    [
        ("libmkl.so.2: cannot open shared object file", "a library is missing"),
        ("version `GLIBCXX_3.4.30' not found", "its libstdc++ is too old"),
        ("RuntimeError: no", "it ends with an error"),
    ],
)
def test_an_import_error_has_its_meaning_in_words(message: str, meaning: str) -> None:
    (hit,) = check_imports(cluster({"a": healthy(1)}), {"a": [message, "more"], "b": []})
    assert (hit.host, hit.values, hit.evidence) == ("a", {"what": meaning}, f"{message}\nmore")


@pytest.mark.parametrize(("code", "hint"), read_table("findings/explaining_an_unknown_code_names_the_nearest"))
def test_explaining_an_unknown_code_names_the_nearest(code: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"no finding {code}") as refused:
        explain_finding(code, CATALOGUE)
    assert (refused.value.hint or "").startswith(hint)


def test_names_of_other_hosts_that_a_host_does_not_resolve_are_good_to_know() -> None:
    known = {"names": {"n1": ("10.0.0.1",), "b": ("10.0.0.2",)}}
    finding = one("NET006", result({"names": {"n1": (), "a": (), "b": ()}}, known))
    assert (finding.hosts, finding.evidence) == (("b",), "a")


def test_the_entries_of_the_catalogue_have_the_types_of_their_fields() -> None:
    written = json.dumps({code: to_json(entry) for code, entry in CATALOGUE.items()})
    assert parse_json(dict[str, CatalogueEntry], written) == CATALOGUE


def test_every_code_of_the_catalogue_is_given_by_a_check_and_the_other_way_round() -> None:
    sources = [path.read_text() for path in (ROOT / "ipexctl" / "decide" / "checks").glob("*.py")]
    given = {code for text in sources for code in re.findall(r'"([A-Z]{2,3}[0-9]{3})"', text)}
    assert given - {"AVX512"} == set(CATALOGUE)  # a level, not a code


MADE = replace(MARKER, id="torch2.13.0-1", packages={"torch": "2.13.0"})
NATIVE = {"installed": Installed("/home/u/env", True, "3.11.2", {"torch": "2.13.0"}, MADE)}
OTHER = replace(MADE, id="torch2.8.0-2", packages={"torch": "2.8.0"})
BROKEN: dict[str, dict[str, Any]] = {
    "none": {"installed": Installed("/home/u/env", False)},
    "none and an old Python": {"installed": Installed("/home/u/env", False), "pythons": ()},
    "half": {"installed": Installed("/home/u/env", True, "3.11.2")},
    "another": {"installed": Installed("/home/u/env", True, "3.11.2", {"torch": "2.8.0"}, OTHER)},
    "changed": {"installed": Installed("/home/u/env", True, "3.11.2", {"torch": "2.8.0"}, MADE)},
    "under IPEX": installed(torch="2.13.0", intel_extension_for_pytorch="2.8.0"),
    "an old processor": isa(frozenset({"avx"}), "below", "ivy_bridge_ep"),
    "an old C library": {"glibc": "2.17"},
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_advised_install_changes_no_host_that_has_what_most_have(name: str) -> None:
    found = result(NATIVE, {**NATIVE, **BROKEN[name]}, NATIVE, NATIVE)
    installs = [
        finding.fix.words for finding in found if isinstance(finding.fix, Hint) and finding.fix.words[0] == "install"
    ]
    assert installs
    for words in installs:
        options = dict(zip(words[1::2], words[2::2], strict=True))
        assert options["--like"] in "acd"  # keeps release, MPI, packages and path, but for what is named beside it
        assert options.get("--limit") == "b" or options.keys() & {"--torch", "--track"}
    if "installed" in BROKEN[name]:
        assert ("install", "--like", "a", "--limit", "b") in installs


def test_an_environment_that_all_hosts_have_changed_is_repaired_from_its_own_lock() -> None:
    hosts = cluster({"a": healthy(1, **NATIVE), "b": healthy(2, **NATIVE)})
    hits = [CheckHit("STK007", host, {"what": "x"}) for host in "ab"]
    assert one("STK007", run_checks(hosts, CATALOGUE, hits)).fix.splitlines()[-1] == "ipexctl install --like a"
