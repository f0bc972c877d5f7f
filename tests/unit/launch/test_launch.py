"""The launch of two hosts of different shapes: its words, its environments, and what the plan says of them."""

import re
from dataclasses import replace
from typing import Any

import pytest

from ipexctl.decide.facts.isa import LEVELS
from ipexctl.decide.launch import mpi_launchers, tuning
from ipexctl.decide.launch.build import choose_backend, identify_machines
from ipexctl.decide.launch.environment import parse_user_env
from ipexctl.decide.launch.run_spec import Identity, build_run_specs, read_timings_from_environ
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import Facts, Installed, Interface
from ipexctl.model.hosts import Host
from ipexctl.model.launch import Launch, PlannedVariable, Setting
from ipexctl.model.stack import MpiLauncher
from ipexctl.model.tasks import Run
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.protocol.timings import Timings
from tests.tables import read_table
from tests.unit.launch.two import NONCE, launch, runtime

TCMALLOC, IOMP = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4", "/opt/ai/lib/libiomp5.so"


def run(**settings: Any) -> Run:
    return Run(script="train.py", **settings)


def value(of: Launch, host: int, name: str) -> str | None:
    setting = of.nodes[host].env.get(name)
    return setting.value if setting else None


# what frameworks look for ------------------------------------------------------------------------------------------


ELASTIC = {
    "GROUP_RANK": "1", "NODE_RANK": "1", "GROUP_WORLD_SIZE": "2", "ROLE_NAME": "default", "ROLE_WORLD_SIZE": "3",
    "TORCHELASTIC_RUN_ID": "r1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
}  # fmt: skip


def test_ranks_get_what_torchrun_gives_its_workers_each_with_a_reason() -> None:
    two = launch()
    assert {name: value(two, 1, name) for name in ELASTIC} == ELASTIC
    assert [value(two, host, "GROUP_RANK") for host in (0, 1)] == ["0", "1"]
    for name, known in ELASTIC.items():
        assert re.search(rf"^  {name}={known}    # \S", str(two), re.MULTILINE)
    # Rank 0 serves the store: there is no agent with one.
    assert value(two, 0, "TORCHELASTIC_USE_AGENT_STORE") is None


def test_a_restart_counts_as_torchruns_do_and_the_users_own_values_win() -> None:
    again = launch(run(restarts=3), {"IPEXCTL_RESTART": Setting("2", "starts before this one")})
    names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
    assert [value(again, 0, name) for name in names] == ["2", "3"]
    own = {name: Setting("mine", "--env", by_user=True) for name in (*ELASTIC, "ACCELERATE_USE_CPU")}
    assert {value(launch(asked=own), 1, name) for name in own} == {"mine"}


def test_instances_know_nothing_of_each_other() -> None:
    alone = launch(run(instances="per-node"), first=WITH_ACCELERATE, second=WITH_ACCELERATE)
    assert not [name for name in (*ELASTIC, "ACCELERATE_USE_CPU") if name in alone.nodes[0].env]


def has(*packages: str, devices: tuple[str, ...] = ()) -> dict[str, Any]:
    versions = dict(package.split("==") for package in packages)
    return {"installed": Installed("/opt/ai", True, "3.11", versions), "accelerators": devices}


WITH_ACCELERATE = has("torch==2.13.0", "accelerate==1.15.0")


@pytest.mark.parametrize(
    ("second", "wanted"),
    [
        (WITH_ACCELERATE, "true"),
        (has("torch==2.13.0", "accelerate==1.15.0", devices=("/dev/nvidia0",)), None),
        (has("torch==2.13.0", "accelerate==1.15.0", devices=("/dev/dri/renderD128",)), "true"),
        (has("torch==2.13.0+xpu", "accelerate==1.15.0", devices=("/dev/dri/renderD128",)), None),
        (has("torch==2.13.0+cpu", "accelerate==1.15.0", devices=("/dev/nvidia0", "/dev/kfd")), "true"),
        (has("torch==2.13.0+cpu", "accelerate==1.15.0", devices=("/dev/davinci0",)), None),
    ],
)
def test_accelerate_is_asked_for_processors_only(second: dict[str, Any], wanted: str | None) -> None:
    two = launch(first=WITH_ACCELERATE, second=second)
    assert value(two, 0, "ACCELERATE_USE_CPU") == wanted


def test_accelerate_that_is_not_there_or_has_one_rank_is_asked_for_nothing() -> None:
    assert value(launch(), 0, "ACCELERATE_USE_CPU") is None
    assert value(launch(run(n=1), first=WITH_ACCELERATE), 0, "ACCELERATE_USE_CPU") is None


@pytest.mark.parametrize(
    "address", ["localhost", "LOCALHOST.", "127.0.1.1", "::1", "[::1]", "0.0.0.0", "localhost6", "::ffff:127.0.0.1"]
)
def test_ranks_on_two_hosts_cannot_meet_at_an_address_of_each_host_itself(address: str) -> None:
    asked = {"MASTER_ADDR": Setting(address, "--env")}
    with pytest.raises(UsageError, match=r"means each host itself; rank 0, .* runs on node0") as refused:
        launch(asked=asked)
    assert refused.value.exit is Exit.INPUT
    assert "leave it out: ipexctl sets it to 192.0.2.10" in str(refused.value.hint)
    assert value(launch(run(n=1), asked), 0, "MASTER_ADDR") == address, "one host meets itself there"
    assert value(launch(run(instances="per-node"), asked), 0, "MASTER_ADDR") == address


def test_nor_at_another_hosts_address_but_at_what_may_be_the_heads() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.11 is node1's address"):
        launch(asked={"MASTER_ADDR": Setting("192.0.2.11", "--env")})
    for address in ("192.0.2.10", "node0", "localhost.example.org", "10.1.2.3"):
        assert value(launch(asked={"MASTER_ADDR": Setting(address, "--env")}), 1, "MASTER_ADDR") == address


def test_many_ranks_of_gloo_connect_when_they_first_talk() -> None:
    assert value(launch(run(ppn=255)), 0, "TORCH_GLOO_LAZY_INIT") is None
    assert value(launch(run(ppn=256)), 0, "TORCH_GLOO_LAZY_INIT") == "1"
    own = {"TORCH_GLOO_LAZY_INIT": Setting("0", "--env")}
    assert value(launch(run(ppn=256), own), 0, "TORCH_GLOO_LAZY_INIT") == "0"


def test_ucx_of_mpich_and_of_open_mpi_is_given_the_interface_of_each_host() -> None:
    for engine, wanted in (("impi", [None, None]), ("mpich", ["eth0", "ens3"]), ("openmpi", ["eth0", "ens3"])):
        two = launch(engine=engine)
        assert [value(two, host, "UCX_NET_DEVICES") for host in (0, 1)] == wanted
    fast = {"interfaces": (Interface("ib0", ("192.0.2.10/24",), up=True),)}
    assert value(launch(engine="mpich", first=fast, second=fast), 0, "UCX_NET_DEVICES") is None


# each host its own --------------------------------------------------------------------------------------------------


def test_every_host_gets_its_own_cores_interface_and_directory() -> None:
    two = launch()
    assert [(place.rank, place.host, place.local, place.cpus) for place in two.places] == [
        (0, "node0", 0, (0, 1, 2, 3)),
        (1, "node0", 1, (4, 5, 6, 7)),
        (2, "node1", 0, (0, 1, 2, 3, 4, 5)),
    ]
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE"):
        assert [value(two, host, name) for host in (0, 1)] == ["eth0", "ens3"]
    assert [value(two, host, "MASTER_ADDR") for host in (0, 1)] == ["192.0.2.10"] * 2
    assert [place.env["OMP_NUM_THREADS"] for place in two.places] == ["4", "4", "6"]


def test_oneccl_has_cores_of_its_own_and_knows_them() -> None:
    two = launch(run(backend="ccl", ccl_workers=2), module="oneccl_bindings_for_pytorch")
    assert [(place.cpus, place.workers) for place in two.places] == [
        ((0, 1), (2, 3)),
        ((4, 5), (6, 7)),
        ((0, 1, 2, 3), (4, 5)),
    ]
    assert [value(two, host, "CCL_WORKER_AFFINITY") for host in (0, 1)] == ["2,3,6,7", "4,5"]
    assert [value(two, host, "CCL_WORKER_COUNT") for host in (0, 1)] == ["2", "2"]
    assert [value(two, host, "CCL_KVS_IFACE") for host in (0, 1)] == ["eth0", "ens3"]


@pytest.mark.parametrize(
    ("wish", "affinity"),
    [
        ({"ppn": 8, "ccl_workers": 2}, ["0,0,1,1,2,2,3,3,4,4,5,5,6,6,7,7", "0,0,1,1,2,2,3,3,4,4,5,5,0,0,1,1"]),
        ({"ppn": 1, "cpus": "0"}, ["0", "0"]),
        ({"ppn": 1, "cpus": "0,1", "ccl_workers": 2}, ["1,1", "1,1"]),
    ],
)
def test_without_a_core_for_oneccl_ranks_keep_their_own(wish: dict[str, Any], affinity: list[str]) -> None:
    two = launch(run(backend="ccl", **wish), module="oneccl_bindings_for_pytorch")
    assert [value(two, host, "CCL_WORKER_OFFLOAD") for host in (0, 1)] == ["0", "0"]
    # oneCCL wants ranks times workers entries, and compares their number with the rank's cores where it has no list.
    assert [value(two, host, "CCL_WORKER_AFFINITY") for host in (0, 1)] == affinity
    for node, listed in zip(two.nodes, affinity, strict=True):
        assert {int(cpu) for cpu in listed.split(",")} <= {cpu for rank in node.ranks for cpu in rank.cpus}
    notes = [str(note) for note in two.warnings if note.code == "ccl-workers"]
    assert [note.partition(":")[0] for note in notes] == ["node0", "node1"]
    assert "none left for" in notes[0]
    assert "its own threads do their work" in str(two)


def test_where_cores_are_left_oneccls_workers_run_and_nothing_is_reported() -> None:
    two = launch(run(backend="ccl"), module="oneccl_bindings_for_pytorch")
    assert [value(two, host, "CCL_WORKER_OFFLOAD") for host in (0, 1)] == [None, None]
    assert not [note for note in two.warnings if note.code == "ccl-workers"]
    unknown = launch(run(backend="ccl"), module="torch_ccl", first={"cpus_online": ()})
    assert value(unknown, 0, "CCL_WORKER_AFFINITY") is None  # its cores are unknown: oneCCL's own choice is as good


def test_impis_thread_has_a_core_of_its_own_where_enough_are_left_to_compute() -> None:
    two = launch(run(backend="impi"), impi=True)
    assert [(place.cpus, place.workers) for place in two.places] == [
        ((0, 1, 2), (3,)),
        ((4, 5, 6), (7,)),
        ((0, 1, 2, 3, 4), (5,)),
    ]
    assert [place.env["IMPI_TORCH_WORKER_CORES"] for place in two.places] == ["3", "7", "5"]
    assert [place.env["OMP_NUM_THREADS"] for place in two.places] == ["3", "3", "5"]
    assert "impi worker" in str(two)
    small = launch(run(backend="impi", ppn=3), impi=True)
    assert [place.workers for place in small.places] == [()] * 6
    assert not any("IMPI_TORCH_WORKER_CORES" in place.env for place in small.places)


@pytest.mark.parametrize(
    ("module", "impi", "backend", "because"),
    [
        ("oneccl", True, "ccl", "the environment has oneccl_bind_pt"),
        ("", True, "impi", "the environment has impi_torch, and no oneccl_bind_pt"),
        ("", False, "gloo", "the environment has neither oneccl_bind_pt nor impi_torch"),
    ],
)
def test_auto_takes_the_best_that_is_installed(module: str, impi: bool, backend: str, because: str) -> None:
    two = launch(module=module, impi=impi)
    assert value(two, 0, "IPEXCTL_BACKEND") == backend
    assert f"\nbackend {backend}: {because}\n" in str(two)
    assert two.public().backend_reason == because


def test_auto_takes_no_impi_where_accelerate_launch_closes_its_connection() -> None:
    hosts = {"node0": runtime(impi=True)}
    for launcher, backend in (("script", "impi"), ("accelerate", "gloo")):
        assert choose_backend(run(launcher=launcher), hosts)[0] == backend


def test_an_override_lets_scripts_that_say_gloo_use_impi() -> None:
    two = launch(run(backend_override=True), impi=True, module="oneccl")
    assert [value(two, host, "IMPI_TORCH_OVERRIDE") for host in (0, 1)] == ["1", "1"]
    assert value(two, 0, "IPEXCTL_BACKEND") == "impi"
    assert value(launch(run(backend="impi"), impi=True), 0, "IMPI_TORCH_OVERRIDE") is None


@pytest.mark.parametrize(
    ("settings", "engine", "impi", "says", "exit"),
    [
        ({"backend": "impi"}, "impi", False, "has no impi_torch", Exit.STEP),
        ({"backend_override": True}, "impi", False, "has no impi_torch", Exit.STEP),
        ({"backend": "impi"}, "mpich", True, "no library of the name that mpi4py asks for", Exit.STEP),
    ],
)
def test_what_impi_cannot_do_here_is_refused(
    settings: dict[str, object], engine: str, impi: bool, says: str, exit: Exit
) -> None:
    with pytest.raises(UsageError) as refused:
        launch(run(**settings), engine=engine, impi=impi)
    assert says in refused.value.sentence
    assert refused.value.exit == exit


@pytest.mark.parametrize(("impi", "hint"), [(True, "run without --backend: the environment has impi"),
                                            (False, "ipexctl install --backend ccl")])  # fmt: skip
def test_without_oneccl_the_backend_that_is_there_is_named(impi: bool, hint: str) -> None:
    with pytest.raises(UsageError, match="has no oneccl_bind_pt, which the backend ccl needs") as refused:
        launch(run(backend="ccl"), impi=impi)
    assert hint in (refused.value.hint or "")


def test_under_open_mpi_mpi4py_is_reported_so_and_under_debians_mpich_auto_stays_with_gloo() -> None:
    assert value(launch(engine="openmpi", impi=True), 0, "MPI4PY_MPIABI") == "openmpi"
    assert launch(engine="openmpi", impi=True).backend == "impi"
    assert launch(engine="mpich", impi=True).backend == "gloo"


def test_what_the_user_asks_for_wins_over_everything_of_ours() -> None:
    asked = {"OMP_NUM_THREADS": Setting("1", "--env"), "FI_PROVIDER": Setting("psm3", "--env")}
    two = launch(asked=asked)
    assert value(two, 0, "FI_PROVIDER") == "psm3"
    assert value(two, 0, "OMP_NUM_THREADS") == "1"
    assert all("OMP_NUM_THREADS" not in place.env for place in two.places)


def test_a_fast_network_is_left_to_libfabric_where_all_hosts_have_it() -> None:
    """Else each host would choose a provider of its own, and no rank could talk to those of another host."""
    cable = Interface("ib0", ("192.0.2.10/24",), up=True)
    here, there = {"interfaces": (cable,)}, {"interfaces": (replace(cable, addresses=("192.0.2.11/24",)),)}
    assert [value(launch(first=here, second=there), host, "FI_PROVIDER") for host in (0, 1)] == [None, None]
    loose = {"interfaces": (replace(cable, up=False),)}
    for first, second in ((here, {}), ({}, here), (here, loose)):
        assert [value(launch(first=first, second=second), host, "FI_PROVIDER") for host in (0, 1)] == ["tcp", "tcp"]


def test_a_range_of_ports_reaches_the_launcher_and_the_ranks_of_every_mpi() -> None:
    """Measured in tests/e2e/test_engines.py; the last two ports are for the keeper and the rendezvous."""
    asked = run(port_range="40000-40019")
    intel, mpich, openmpi = (launch(asked, engine=engine) for engine in ("impi", "mpich", "openmpi"))
    for two in (intel, mpich, openmpi):
        assert [value(two, host, "FI_TCP_PORT_LOW_RANGE") for host in (0, 1)] == ["40002", "40002"]
        assert [value(two, host, "FI_TCP_PORT_HIGH_RANGE") for host in (0, 1)] == ["40017", "40017"]
        identity = Identity(NONCE, "token", "alice", 0.0)
        assert build_run_specs(two, asked, identity)["node0"].head_spec.ports == [40000, 40019]
    assert intel.mpiexec_env["I_MPI_PORT_RANGE"] == "40000:40017"
    assert mpich.mpiexec_env["MPIEXEC_PORT_RANGE"] == "40000:40017"
    oob = "OMPI_MCA_oob_tcp_dynamic_ipv4_ports"
    assert openmpi.mpiexec_env[oob] == "40000"
    assert [node.proxy_env[oob] for node in openmpi.nodes] == ["40001", "40001"]


def test_the_port_of_the_rendezvous_is_the_users_or_one_that_is_free() -> None:
    assert "; MASTER_PORT=29501\n" in f"{launch(run(port=29501))}\n"
    assert "; MASTER_PORT=(one that is free on the head at the start)\n" in f"{launch()}\n"


def test_what_no_range_of_ports_can_hold_is_a_warning_or_refused() -> None:
    assert any("Gloo listens on any free port" in str(note) for note in launch(run(port_range="40000-40019")).warnings)
    assert not any(
        "--port-range" in str(note)
        for two in (launch(), launch(run(port_range="40000-40019"), impi=True))
        for note in two.warnings
    )
    for text, says in (("40000-40004", "a host with 2 ranks needs 6"), ("50000-40000", "1024"), ("1000-2000", "1024")):
        with pytest.raises(UsageError) as refused:
            launch(run(port_range=text))
        assert says in " ".join([refused.value.sentence, *refused.value.reasons])


# engines ------------------------------------------------------------------------------------------------------------


def test_mpich_is_started_in_its_words_and_sees_none_of_intel_mpi() -> None:
    two = launch(engine="mpich")
    words = two.mpiexec
    assert words[0] == "/usr/bin/mpiexec.mpich"
    assert words[words.index("-hosts") + 1 : words.index("-hosts") + 4] == ("h0.ipexctl:2,h1.ipexctl:1", "-n", "3")
    assert two.launcher == "MPICH 4.0.2"
    assert {"I_MPI_ROOT", "LD_LIBRARY_PATH"}.isdisjoint(two.head.env)
    assert "I_MPI_PIN" not in two.mpiexec_env


def test_a_launcher_is_asked_for_ipv6_where_the_head_is_reached_by_it() -> None:
    alone = {"interfaces": (Interface("eth0", ("2001:db8::1/64",)),)}
    assert "-v6" not in launch().mpiexec
    assert launch(first=alone, address="2001:db8::1").mpiexec[1] == "-v6"
    launch(first=alone, address="2001:db8::1", engine="openmpi-5")
    for arch, other in (("x86_64", "impi"), ("aarch64", "openmpi")):
        with pytest.raises(UsageError, match="MPICH needs an IPv4 address, and node0 has 2001") as refused:
            launch(first={**alone, "arch": arch}, address="2001:db8::1", engine="mpich")
        assert other in str(refused.value.hint)
    both = {"interfaces": (Interface("eth0", ("192.0.2.10/24", "2001:db8::1/64")),)}
    assert launch(first=both, address="2001:db8::1", engine="mpich").launcher == "MPICH 4.0.2"


def test_under_open_mpi_oneccl_is_given_its_local_ranks() -> None:
    two = launch(run(backend="ccl"), engine="openmpi", module="oneccl_bind_pt")
    assert value(two, 0, "CCL_PROCESS_LAUNCHER") == "none"
    assert [(place.env["CCL_LOCAL_RANK"], place.env["CCL_LOCAL_SIZE"]) for place in two.places] == [
        ("0", "2"), ("1", "2"), ("0", "1"),
    ]  # fmt: skip


def test_open_mpi_shares_no_memory_between_hosts_that_are_one_machine() -> None:
    apart = launch(engine="openmpi")
    together = launch(run(allow_duplicates=True), engine="openmpi", second={"machine_id": "2x4"})
    assert value(apart, 0, "OMPI_MCA_btl") is None
    assert [value(together, host, "OMPI_MCA_btl") for host in (0, 1)] == ["self,tcp"] * 2


def test_an_interface_that_oneccl_would_mistake_is_warned_of() -> None:
    both = {"interfaces": (Interface("eth0", ("192.0.2.10/24",)), Interface("eth01"))}
    two = launch(run(backend="ccl"), module="oneccl_bind_pt", first=both)
    assert tuple(map(str, two.warnings)) == ("node0: oneCCL may take eth01 for eth0: it compares parts of names",)


SAYS = {
    "/usr/bin/mpirun.openmpi": "mpirun.openmpi (OpenRTE) 4.1.4  Report bugs to http://www.open-mpi.org/",
    "/usr/bin/mpirun": "mpirun (Open MPI) 4.1.4  Report bugs to http://www.open-mpi.org/community/help/",
    "/usr/bin/mpiexec.mpich": "HYDRA build details:     Version:                                 4.0.2     Release",
    "/opt/ompi5/bin/mpirun": "mpirun (Open MPI) 5.0.3  Report bugs to https://www.open-mpi.org/community/help/",
    "/opt/intel/bin/mpiexec.hydra": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 2026",
    "/usr/bin/srun": "slurm-wlm 22.05.8",
}
BESIDE = "hydra_bstrap_proxy hydra_pmi_proxy orted"


@pytest.mark.parametrize(("wish", "program", "engine"), read_table("launch/an_mpirun_is_known_by_what_it_says"))
def test_an_mpirun_is_known_by_what_it_says(wish: str, program: str, engine: str) -> None:
    assert str(mpi_launchers.parse_launcher_answer(wish, f"{program}\t{SAYS[program]}\t {BESIDE}\n")) == engine


@pytest.mark.parametrize(
    ("wish", "output", "why"),
    [
        ("mpich", "", "mpich was not found on its PATH"),
        ("mpich", f"/usr/bin/mpirun\t{SAYS['/usr/bin/mpirun']}\torted\n", "mpich was not found on its PATH"),
        ("/nope", "", "there is no /nope"),
        ("/usr/bin/srun", f"/usr/bin/srun\t{SAYS['/usr/bin/srun']}\t\n", "is not a known MPI: slurm-wlm 22.05.8"),
        ("openmpi", f"/opt/ompi5/bin/mpirun\t{SAYS['/opt/ompi5/bin/mpirun']}\torted\n", "there is no prted beside"),
        ("openmpi", f"/usr/bin/mpirun\t{SAYS['/usr/bin/mpirun']}\t\n", "there is no orted beside /usr/bin/mpirun"),
    ],
)
def test_an_mpirun_that_cannot_be_used_is_refused_with_the_reason(wish: str, output: str, why: str) -> None:
    answer = mpi_launchers.parse_launcher_answer(wish, output)
    assert isinstance(answer, str)
    assert why in answer


def test_hosts_with_different_mpis_are_refused() -> None:
    one = MpiLauncher("mpich", "MPICH", "/usr/bin/mpiexec", "4.0.2")
    other = MpiLauncher("mpich", "MPICH", "/usr/bin/mpiexec", "4.2.0")
    assert mpi_launchers.choose_common_launcher("mpich", {"a": one, "b": one}) == one
    with pytest.raises(UsageError) as refused:
        mpi_launchers.choose_common_launcher("mpich", {"a": one, "b": other})
    assert list(refused.value.reasons) == ["a: MPICH 4.0.2 at /usr/bin/mpiexec", "b: MPICH 4.2.0 at /usr/bin/mpiexec"]


# the script ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "script", "words"),
    [
        ({}, "train.py", ["-u", "train.py", "-x", "1"]),
        ({}, "-odd.py", ["-u", "./-odd.py", "-x", "1"]),
        ({"module": True}, "pkg.train", ["-u", "-m", "pkg.train", "-x", "1"]),
    ],
)
def test_python_is_given_the_script_as_asked(settings: dict[str, Any], script: str, words: list[str]) -> None:
    task = Run(script=script, args=("-x", "1"), **settings)
    assert list(launch(task).argv) == ["/opt/ai/bin/python", *words]


def test_accelerate_starts_one_process_and_no_mpirun() -> None:
    held = {"installed": Installed("/opt/ai", True, "3.11", {"torch": "2.8.0", "accelerate": "1.7.0"})}
    asked = {"ACCELERATE_MIXED_PRECISION": Setting("bf16", "--env")}
    argv = launch(run(launcher="accelerate", args=("-x",)), asked, first=held, second=held).argv
    assert argv[1:5] == ("-u", "-m", "accelerate.commands.launch", "--cpu")
    assert argv[argv.index("--num_processes") + 1] == "1"
    assert argv[argv.index("--mixed_precision") + 1] == "bf16"
    assert argv[-2:] == ("train.py", "-x")
    assert not [word for word in argv if "mpirun" in word]


# allocators, OpenMP, memory -----------------------------------------------------------------------------------------


def preloaded(of: Launch) -> list[list[str]]:
    return [[library.path for library in seat.preload] for seat in of.nodes]


def test_each_host_preloads_what_it_has() -> None:
    two = launch(
        first={"allocators": {"tcmalloc": TCMALLOC, "iomp5": IOMP}}, second={"allocators": {"jemalloc": "/j.so.2"}}
    )
    assert preloaded(two) == [[TCMALLOC, IOMP], ["/j.so.2"]]
    assert [value(two, host, "KMP_BLOCKTIME") for host in (0, 1)] == ["1", None]
    assert value(two, 0, "MALLOC_CONF") is None
    assert "background_thread:true" in str(value(two, 1, "MALLOC_CONF"))
    assert [library.path for library in reported(two)["node0"].preload] == [TCMALLOC, IOMP]


def test_intels_openmp_binds_its_threads_to_the_ranks_own_cores() -> None:
    has = {"allocators": {"iomp5": IOMP}}
    two = launch(run(backend="ccl"), module="oneccl_bind_pt", first=has)
    assert [place.env.get("KMP_AFFINITY") for place in two.places] == [
        "granularity=fine,explicit,proclist=[0,1,2]",
        "granularity=fine,explicit,proclist=[4,5,6]",
        None,
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [TCMALLOC, IOMP]),
        ({"allocator": "jemalloc"}, ["/j.so.2", IOMP]),
        ({"allocator": "default"}, [IOMP]),
        ({"omp": "gnu"}, [TCMALLOC]),
        ({"allocator": "default", "omp": "gnu"}, []),
    ],
)
def test_preloads_are_those_asked_for(settings: dict[str, object], expected: list[str]) -> None:
    has = {"allocators": {"tcmalloc": TCMALLOC, "jemalloc": "/j.so.2", "iomp5": IOMP}}
    assert preloaded(launch(run(**settings), first=has, second=has)) == [expected, expected]


def test_what_was_asked_for_and_is_not_there_is_reported_for_each_host() -> None:
    two = launch(run(allocator="jemalloc", omp="intel"), first={"allocators": {"jemalloc": "/j.so.2", "iomp5": IOMP}})
    assert [str(warning).partition(",")[0] for warning in two.warnings] == [
        "node1: --allocator jemalloc: not found; using the C library's malloc",
        "node1: --omp intel: libiomp5.so not found; using GNU OpenMP",
    ]


def test_a_library_whose_path_would_be_two_is_not_preloaded() -> None:
    two = launch(first={"allocators": {"tcmalloc": "/opt/my libs/libtcmalloc.so.4"}})
    assert preloaded(two) == [[], []]
    assert "cannot be preloaded" in two.warnings[0].text


def test_the_users_own_preload_is_left_as_it_is() -> None:
    two = launch(asked={"LD_PRELOAD": Setting("/mine.so", "--env")}, first={"allocators": {"tcmalloc": TCMALLOC}})
    assert preloaded(two) == [[], []]
    assert value(two, 0, "LD_PRELOAD") == "/mine.so"


def test_memory_is_bound_to_the_nodes_of_a_ranks_cores_when_asked() -> None:
    bound = launch(run(membind=True))
    assert "its memory only on its NUMA nodes (--membind)" in str(bound)
    ranks = reported(bound)["node0"].ranks
    assert [(rank.cpus, rank.membind) for rank in ranks.values()] == [([0, 1, 2, 3], [0]), ([4, 5, 6, 7], [1])]
    assert all(rank.membind == [] for rank in reported(launch())["node0"].ranks.values())


def test_huge_pages_are_asked_for_and_a_kernel_without_is_named() -> None:
    two = launch(run(hugepages=True), second={"thp": "never"})
    assert value(two, 0, "THP_MEM_ALLOC_ENABLE") == "1"
    assert tuple(map(str, two.warnings)) == ("node1: --hugepages: transparent huge pages are disabled in its kernel",)


# instruction sets ---------------------------------------------------------------------------------------------------


def flags(*levels: str) -> frozenset[str]:
    return frozenset(flag for level in levels for flag in LEVELS[level])


SAPPHIRE = {
    "isa_level": "AMX",
    "flags": flags("AMX", "AVX512_FP16", "AVX512_BF16", "AVX512_VNNI", "AVX512", "AVX2_VNNI", "AVX2"),
}
MILAN = {"isa_level": "AVX2", "flags": flags("AVX2")}
GENOA = {"isa_level": "AVX512_BF16", "flags": flags("AVX512_BF16", "AVX512_VNNI", "AVX512", "AVX2")}
ALDER = {"isa_level": "AVX2_VNNI", "flags": flags("AVX2_VNNI", "AVX2")}
SKYLAKE = {"isa_level": "AVX512", "flags": flags("AVX512", "AVX2")}
MASKED = {"isa_level": "AVX512_FP16", "flags": SAPPHIRE["flags"]}  # tiles refused by the kernel


@pytest.mark.parametrize(
    ("first", "second", "level"),
    [
        (SAPPHIRE, GENOA, "AVX512_BF16"),
        (SAPPHIRE, MILAN, "AVX2"),
        (ALDER, SKYLAKE, "AVX2"),  # one level does not imply those below it
        (ALDER, SAPPHIRE, "AVX2_VNNI"),
        (MASKED, SAPPHIRE, "AVX512_FP16"),
        (SAPPHIRE, SAPPHIRE, "AMX"),
        (SAPPHIRE, {}, None),
    ],
)
def test_the_common_instruction_set_is_one_that_every_host_has(
    first: dict[str, Any], second: dict[str, Any], level: str | None
) -> None:
    assert tuning.find_common_isa({"a": Facts(**first), "b": Facts(**second)}) == level


def test_a_mixed_cluster_is_capped_only_when_asked_and_warned_of_otherwise() -> None:
    plain = launch(first=SAPPHIRE, second=GENOA)
    assert value(plain, 0, "ATEN_CPU_CAPABILITY") is None
    assert "node0 AMX, node1 AVX512_BF16; --isa common makes them equal" in plain.warnings[0].text
    capped = launch(run(isa="common"), first=SAPPHIRE, second=GENOA)
    assert capped.warnings == ()
    for host in (0, 1):
        assert value(capped, host, "ATEN_CPU_CAPABILITY") == "avx512_bf16"
        assert value(capped, host, "ONEDNN_MAX_CPU_ISA") == "AVX512_CORE_BF16"


def test_arm_hosts_are_capped_to_neon_the_one_level_that_can_be_named() -> None:
    v1 = {"arch": "aarch64", "isa_level": "SVE_BF16", "flags": frozenset({"asimd", "sve", "bf16", "i8mm", "asimddp"})}
    n1 = {"arch": "aarch64", "isa_level": "NEON_DOT", "flags": frozenset({"asimd", "asimddp"})}
    stock = {"installed": Installed("/opt/ai", True, "3.11", {"torch": "2.13.0"})}
    assert (
        "node0 SVE_BF16, node1 NEON_DOT; --isa common" in launch(first=v1 | stock, second=n1 | stock).warnings[0].text
    )
    for isa in ("common", "NEON"):
        capped = launch(run(isa=isa), first=v1 | stock, second=n1 | stock)
        assert capped.warnings == ()
        assert value(capped, 1, "ATEN_CPU_CAPABILITY") == "default"
        assert value(capped, 1, "ONEDNN_MAX_CPU_ISA") == "ADVANCED_SIMD"
    other = launch(run(isa="AVX512"), first=v1 | stock, second=n1 | stock)
    assert {note.text for note in other.warnings} == {
        "--isa AVX512 cannot raise it above SVE_BF16",
        "--isa AVX512 cannot raise it above NEON_DOT",
    }
    assert tuning.supports_isa(Facts(isa_level="SVE_BF16"), "NEON_DOT")  # by the order, without flags


def test_equal_hosts_are_not_capped_to_what_they_have() -> None:
    assert value(launch(run(isa="common"), first=SAPPHIRE, second=SAPPHIRE), 0, "ATEN_CPU_CAPABILITY") is None


def test_stock_torch_gets_only_names_that_it_knows() -> None:
    stock = {"installed": Installed("/opt/ai", True, "3.11", {"torch": "2.13.0"})}
    two = launch(run(isa="AMX"), first=SAPPHIRE | stock, second=SAPPHIRE | stock)
    assert value(two, 0, "ATEN_CPU_CAPABILITY") == "avx512"
    assert value(two, 0, "ONEDNN_MAX_CPU_ISA") == "AVX512_CORE_AMX"


def test_a_level_above_a_hosts_own_is_reported_not_to_help() -> None:
    two = launch(run(isa="AMX"), first=SAPPHIRE, second=MILAN)
    assert tuple(map(str, two.warnings)) == ("node1: --isa AMX cannot raise it above AVX2",)


# the plan -----------------------------------------------------------------------------------------------------------


def reported(of: Launch) -> dict[str, RunSpec]:
    identity = Identity(NONCE, "token", "alice", 0.0)
    return build_run_specs(of, run(), identity)


def test_the_plan_is_complete_and_what_it_says_is_what_the_hosts_get() -> None:
    two = launch(run(backend="ccl"), module="oneccl_bind_pt", first={"allocators": {"iomp5": IOMP}})
    text = str(two)
    for host, spec in reported(two).items():
        for name, setting in spec.env.items():
            assert f"{name}={setting}    # " in text, (host, name)
        for rank in spec.ranks.values():
            assert all(f"{name}={setting}" in text for name, setting in rank.env.items())
        assert all(library.path in text for library in spec.preload)
        assert str(spec.workdir) in text
    assert ["0", "node0", "0", "0", "0-2", "3", "eth0", "192.0.2.10"] in [line.split() for line in text.splitlines()]


def test_timings_are_those_of_the_protocol_unless_a_test_gives_others() -> None:
    assert read_timings_from_environ({}) == Timings()
    assert read_timings_from_environ({"IPEXCTL_TIMINGS": '{"quiet": 4}'}) == Timings(quiet=4)


@pytest.mark.parametrize(
    ("settings", "seconds"), [({}, 5.0), ({"metrics_every": 0}, 0.0), ({"metrics_every": 2.5}, 2.5)]
)
def test_every_host_is_sampled_as_often_as_was_asked_for(settings: dict[str, Any], seconds: float) -> None:
    specs = build_run_specs(launch(), run(**settings), Identity(NONCE, "token", "alice", 0.0))
    assert [spec.timings.sample for spec in specs.values()] == [seconds] * 2


def test_secrets_are_neither_in_the_plan_nor_in_its_json() -> None:
    two = launch(asked={"TOKEN": Setting("hunter2", "--pass-env", secret=True)})
    assert "TOKEN=(secret)    # --pass-env" in str(two)
    assert "hunter2" not in str(two) + str(two.public())
    assert two.public().hosts["node0"].env["TOKEN"] == PlannedVariable("(secret)", "--pass-env")


def test_the_launchers_proxy_gets_no_variable_whose_name_only_begins_like_one_of_its_own() -> None:
    asked = {"HOME_TOKEN": Setting("hunter2", "--pass-env", secret=True), "UCX_TLS": Setting("tcp", "--env")}
    for spec in reported(launch(asked=asked)).values():
        assert spec.proxy_env.get("UCX_TLS") == "tcp"
        assert "HOME_TOKEN" not in spec.proxy_env


def test_no_word_of_the_plan_can_reach_the_terminal_as_a_control_code() -> None:
    two = launch(asked={"EVIL": Setting("\x1b[2J", "--env")})
    assert all(c.isprintable() or c == "\n" for c in str(two))


# the user's variables, and what a launch refuses ---------------------------------------------------------------------


def test_later_sources_of_a_variable_win_and_those_that_may_be_secret_are_marked() -> None:
    files = {
        "a.env": "# job\n\nexport A=1\nB='x y'\nC=f\n",
        "b.env": 'A = "2"\nD="#\\"\\\\" # "x"\nE=a b#c\t# "\nF=#\nG= # x\n',
    }
    read = parse_user_env({"C": "c", "API_KEY": "k"}, files, ["B"], {"B": "b", "A": "no"})
    assert {name: (one.value, one.source, one.secret) for name, one in read.items()} == {
        "A": ("2", "--env-file b.env", True),
        "B": ("b", "--pass-env", True),
        "C": ("c", "--env", False),
        "D": ('#"\\', "--env-file b.env", True),
        "E": ("a b#c", "--env-file b.env", True),
        "F": ("#", "--env-file b.env", True),
        "G": ("", "--env-file b.env", True),
        "API_KEY": ("k", "--env", True),
    }
    assert all(one.by_user for one in read.values())


def test_all_variables_that_cannot_be_set_are_reported_at_once_without_their_values() -> None:
    with pytest.raises(UsageError) as caught:
        parse_user_env(
            {"RANK": "3", "PMI_RANK": "0", "1X": "y", "N": "a\0b"},
            {"a.env": "fine=1\nhunter2\nRANK=hunter3\nKEY=\"hunter4\nA='b'c\n"},
            ["PATH", "GONE"],
            {"PATH": "/bin"},
        )
    assert caught.value.reasons == (
        "a.env:2: not a NAME=value line: hunter2",
        "a.env:3: set by ipexctl: RANK",
        "a.env:4: not a NAME=value line: KEY",
        "a.env:5: not a NAME=value line: A",
        "--pass-env PATH: must not be passed on",
        "--pass-env GONE: not set on this machine",
        "--env RANK: set by ipexctl",
        "--env PMI_RANK: set by ipexctl",
        "--env 1X: not a valid variable name",
        "--env N: a value cannot hold a NUL byte",
    )


def test_two_entries_for_one_machine_are_refused_unless_allowed_or_of_one_lab() -> None:
    one, two = Host("n1", "192.0.2.1"), Host("n2", "192.0.2.2")
    facts = {"n1": Facts(machine_id="m"), "n2": Facts(machine_id="m")}
    with pytest.raises(UsageError, match="some entries are one machine") as caught:
        identify_machines([one, two], facts, allowed=False)
    assert (caught.value.exit, caught.value.reasons) == (Exit.STEP, ("n1 (192.0.2.1) = n2 (192.0.2.2)",))
    assert identify_machines([one, two], facts, allowed=True) == {"n1": "m", "n2": "m"}
    lab = [replace(host, vars={"lab": "x"}) for host in (one, two)]
    assert identify_machines(lab, facts, allowed=False) == {"n1": "m", "n2": "m"}
    unknown = dict.fromkeys(facts, Facts())
    assert identify_machines([one, two], unknown, allowed=False) == {"n1": "host n1", "n2": "host n2"}


def test_a_backend_that_the_environment_lacks_is_refused_with_the_command_that_helps() -> None:
    with pytest.raises(UsageError, match="no oneccl_bind_pt") as caught:
        launch(run(backend="ccl"))
    assert caught.value.hint == "run with --backend gloo, or install it:\nipexctl install --backend ccl --like node0"


def test_no_instruction_set_in_common_is_a_warning_and_sets_nothing() -> None:
    two = launch(run(isa="common"), first={"flags": frozenset({"masked"})}, second={"isa_level": "AVX2"})
    assert [note.text for note in two.warnings if note.code == "no-common-isa"] == [
        "--isa common: the hosts share no instruction set of AVX2 or later"
    ]
    assert value(two, 0, "ATEN_CPU_CAPABILITY") is None


def test_an_intel_mpi_of_the_hosts_brings_its_own_libraries_and_providers() -> None:
    mpi = MpiLauncher("impi", "Intel MPI", "/opt/mpi/bin/mpirun", "2021.13", "/opt/mpi/libfabric/lib/prov")
    ready = mpi_launchers.switch_launcher(runtime(), mpi, ccl=False)
    assert ready.library_path == ("/opt/mpi/lib", "/opt/mpi/libfabric/lib")
    assert (ready.env["I_MPI_ROOT"], ready.env["FI_PROVIDER_PATH"]) == ("/opt/mpi", "/opt/mpi/libfabric/lib/prov")


def test_an_mpi_is_looked_for_by_its_names_or_at_its_path_and_its_lack_says_what_to_install() -> None:
    assert mpi_launchers.build_launcher_query("/opt/x/mpirun", "look")[-1] == "/opt/x/mpirun"
    assert "mpiexec.mpich" in " ".join(mpi_launchers.build_launcher_query("mpich", "look"))
    assert "apt install openmpi-bin" in mpi_launchers.suggest_mpi_install("openmpi", "node0")
    assert mpi_launchers.suggest_mpi_install("/opt/x/mpirun", "node0") == "run without --mpi"


def test_the_root_of_a_project_is_on_the_path_unless_the_user_says_another() -> None:
    nodes = launch(modules=("/scratch/app", "/scratch/app/src")).nodes
    assert "PYTHONPATH" not in nodes[0].env
    assert nodes[1].env["PYTHONPATH"].value == "/scratch/app:/scratch/app/src"
    own = launch(asked={"PYTHONPATH": Setting("lib", "--env")}, modules=("/scratch/app",)).nodes
    assert [node.env["PYTHONPATH"].value for node in own] == ["lib", "lib"]


# spares ------------------------------------------------------------------------------------------------------------


def test_a_spare_host_is_planned_like_the_others_and_has_no_rank_at_first() -> None:
    task = run(restarts=1, spares=1)
    planned = launch(task)
    assert [node.host for node in planned.nodes] == ["node0"]
    assert [node.host for node in planned.spares] == ["node1"]
    assert planned.size == len(planned.nodes[0].ranks)
    assert "h1.ipexctl" not in " ".join(planned.mpiexec)
    assert "spare: node1" in str(planned)
    specs = build_run_specs(planned, task, Identity(NONCE, "token", "alice", 0.0))
    head = specs["node0"].head_spec
    assert (head.used, {spec.size for spec in specs.values()}) == (1, {planned.size})
    assert "h1.ipexctl" in " ".join(head.mpiexec), "a later attempt may need it"
    assert specs["node1"].ranks
    assert specs["node1"].reserve is None, "of two hosts none can take the other's place"


def test_halves_of_two_hosts_may_wait_and_then_either_may_lead() -> None:
    task = run(restarts=1, min_hosts=1, on_split="wait")
    specs = build_run_specs(launch(task), task, Identity(NONCE, "token", "alice", 0.0))
    head, reserve = specs["node0"].head_spec, specs["node1"].reserve
    assert reserve is not None
    assert {(spec.min_hosts, spec.split_hosts) for spec in (head, reserve)} == {(2, 1)}
    assert [*specs["node1"].leaders] == ["node0", "node1"]


def test_a_copy_of_a_checkpoint_is_kept_below_each_hosts_own_directory() -> None:
    task = run(restarts=1, keep="out/../ckpt", keep_copies=2, resume="auto")
    specs = build_run_specs(launch(task), task, Identity(NONCE, "token", "alice", 0.0), resume=["--resume", "{}"])
    keeps = [spec.keep for spec in specs.values() if spec.keep]
    assert [keep.path for keep in keeps] == ["/home/alice/ipexctl/job/ckpt", "/scratch/job/ckpt"]
    assert keeps[0].addresses == {"node0": "192.0.2.10", "node1": "192.0.2.11"}
    assert (keeps[0].copies, keeps[0].fresh, keeps[0].adopt, keeps[0].words) == (2, False, True, ["--resume", "{}"])


@pytest.mark.parametrize("given", [{"min_hosts": 2}, {"min_hosts": 1, "spares": 1}])
def test_halves_wait_only_where_one_could_go_on_alone(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="--on-split wait is for --min-hosts 1 or less, and ranks on 2 hosts or more"):
        launch(run(restarts=1, on_split="wait", **given))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"spares": 2}, "--spares 2 leaves none of 2 hosts"),
        ({"min_hosts": 3}, "--min-hosts 3 asks for more than the run's 2 hosts"),
        ({"spares": 1, "per_host": True}, "--per-host with --min-hosts or --spares needs the same number of ranks on"),
    ],
)
def test_hosts_are_enough_for_the_spares_and_the_least_number_and_alike_for_one_count(
    given: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        launch(run(restarts=1, **given))
