"""Accelerate's configuration, written and read, and the two ways to start it."""

from pathlib import Path
from typing import Any

import pytest

from ipexctl.decide.checks.network import InterfaceChoice
from ipexctl.decide.launch import accelerate
from ipexctl.decide.launch.accelerate import AccelerateConfig, build_interpreter_arguments, read_config, write_config
from ipexctl.decide.launch.build import build_launch
from ipexctl.decide.launch.environment import HostRuntime
from ipexctl.decide.launch.run_spec import Identity, build_run_specs
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.model.errors import Exit, Note, UsageError
from ipexctl.model.facts import Installed
from ipexctl.model.hosts import Host
from ipexctl.model.launch import Launch, Setting
from ipexctl.model.tasks import Run
from tests.tables import read_table
from tests.unit.launch.two import NONCE, facts, runtime

OPTIONS = parse_options((Path(__file__).parents[3] / "ipexctl/data/options.toml").read_text("utf-8"))
IPEX = {"intel-extension-for-pytorch": "2.8.0"}
ONE = AccelerateConfig(precision="bf16", ipex=True)
FOUR = AccelerateConfig(ranks=16, hosts=4, address="36.112.23.24", port=29500, precision="bf16", ipex=True)


def launch(config: AccelerateConfig | None = None, packages: dict[str, str] | None = None, **settings: Any) -> Launch:
    """Of two hosts, through Accelerate."""
    asked = settings.pop("asked", {})
    task = Run(script="train.py", launcher="accelerate", **settings)
    installed = Installed("/opt/ai", True, "3.11", packages or {"accelerate": "1.7.0", **IPEX})
    hosts = (Host("node0", "192.0.2.10"), Host("node1", "192.0.2.11"))
    stations = {
        host.name: HostRuntime(
            facts(nodes, 4, installed=installed),
            InterfaceChoice("eth0", host.address, Note("shared-subnet", "192.0.2.0/24")),
            runtime(),
            "/home/alice/.local/state/ipexctl/runs/r1",
            "/home/alice/ipexctl/job",
        )
        for nodes, host in enumerate(hosts, 1)
    }
    return build_launch(task, "r1", hosts, stations, "train.py", asked, config=config, options=OPTIONS)


# the file -----------------------------------------------------------------------------------------------------------


def test_one_host_is_the_guides_first_scenario() -> None:
    text, output = write_config(ONE, "1.7.0", OPTIONS)
    for line in ("compute_environment: LOCAL_MACHINE", "distributed_type: 'NO'", "ipex_config:\n  ipex: true",
                 "mixed_precision: bf16", "num_machines: 1", "num_processes: 1", "use_cpu: true"):  # fmt: skip
        assert f"{line}\n" in text
    assert "main_process_ip" not in text
    assert output == ()


def test_four_hosts_are_the_guides_second_scenario() -> None:
    text, _ = write_config(FOUR, "0.19.0", OPTIONS)
    guide = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
downcast_bf16: 'no'
ipex_config:
  ipex: true
machine_rank: 0
main_process_ip: 36.112.23.24
main_process_port: 29500
main_training_function: main
mixed_precision: bf16
num_machines: 4
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: true
"""
    assert text == guide


def test_accelerate_starts_mpirun_where_a_hostfile_is_given() -> None:
    text, _ = write_config(AccelerateConfig(4, 2, "10.0.0.1", hostfile="/root/hostfile", workers=2), "1.7.0", OPTIONS)
    assert "mpirun_config:\n  mpirun_ccl: '2'\n  mpirun_hostfile: /root/hostfile\n" in text
    newest, output = write_config(AccelerateConfig(4, 2, "10.0.0.1", hostfile="/root/hostfile"), "1.15.0", OPTIONS)
    assert "mpirun_config:\n  mpirun_hostfile: /root/hostfile\n" in newest
    assert output == ()
    eldest, output = write_config(AccelerateConfig(4, 2, "10.0.0.1", hostfile="/root/hostfile"), "0.27.2", OPTIONS)
    assert "mpirun_config" not in eldest
    assert "accelerate 0.27.2 does not know mpirun_config yet (from 0.28.0 on)" in output[0]


def test_a_version_without_ipex_gets_the_same_for_stock_torch_and_a_word_about_it() -> None:
    text, output = write_config(ONE, "1.13.0", OPTIONS)
    assert "ipex" not in text
    assert "mixed_precision: bf16\n" in text
    (sentence,) = output
    assert "accelerate 1.13.0 does not know ipex_config any more (until 1.13.0); instead: nothing" in sentence


@pytest.mark.parametrize("config", [ONE, FOUR, AccelerateConfig(4, 2, "::1", 1234, "no", False, "/h", 3)])
def test_what_is_written_is_read_back(config: AccelerateConfig) -> None:
    assert read_config(write_config(config, "1.7.0", OPTIONS)[0], "default_config.yaml") == config


def test_accelerate_starts_one_process_for_no_distribution_whatever_the_number() -> None:
    assert read_config("distributed_type: 'NO'\nnum_processes: 8\n", "c.yaml").ranks == 1
    mpirun = "mpirun_config:\n  mpirun_hostfile: /h\n"
    assert read_config(f"distributed_type: 'NO'\nnum_processes: 8\n{mpirun}", "c.yaml").ranks == 8
    assert read_config("num_processes: 8\n", "c.yaml").ranks == 8


def test_the_guides_own_file_of_an_unquoted_no_is_read() -> None:
    assert read_config("distributed_type: NO\nmixed_precision: no\n", "c.yaml") == AccelerateConfig()


@pytest.mark.parametrize(("text", "output"), read_table("accelerate/not_for_cpus"))
def test_a_configuration_that_is_not_for_cpus_is_refused_with_its_line(text: str, output: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_config(text, "c.yaml")
    assert output in str(refused.value)


# mpirun starts accelerate -------------------------------------------------------------------------------------------


def words(of: Launch) -> list[str]:
    return list(of.argv[1:])


def test_what_a_configuration_says_of_compiling_and_debugging_is_passed_on() -> None:
    dynamo = "  dynamo_backend: INDUCTOR\n  dynamo_mode: reduce-overhead\n  dynamo_use_dynamic: true\n"
    dynamo += "  dynamo_use_fullgraph: false\n  dynamo_use_regional_compilation: true\n"
    flags = ["--dynamo_backend=inductor", "--dynamo_mode=reduce-overhead", "--dynamo_use_dynamic"]
    config = read_config(f"debug: true\ndynamo_config:\n{dynamo}", "c.yaml")
    assert config.flags == ("--debug", *flags, "--dynamo_use_regional_compilation")
    assert {*config.flags} <= {*build_interpreter_arguments(config, {"accelerate": "1.15.0"}, {}, OPTIONS)}
    assert read_config("dynamo_config:\n  dynamo_backend: NO\n", "c.yaml") == AccelerateConfig()


def test_each_rank_is_launched_with_the_precision_and_ipex_of_the_configuration() -> None:
    result = words(launch(ONE, args=("-x",)))
    assert result[:5] == ["-u", "-m", "accelerate.commands.launch", "--cpu", "--ipex"]
    assert result[result.index("--mixed_precision") + 1] == "bf16"
    assert result[-2:] == ["train.py", "-x"]


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ({"accelerate": "1.7.0", **IPEX}, True),
        ({"accelerate": "1.7.0"}, False),
        ({"accelerate": "1.15.0"}, False),
        ({"accelerate": "1.13.0", **IPEX}, False),
    ],
)
def test_ipex_is_asked_for_where_it_is_installed(packages: dict[str, str], expected: bool) -> None:
    assert ("--ipex" in words(launch(packages=packages))) is expected


def test_variables_of_the_user_win_over_the_configuration() -> None:
    asked = {"ACCELERATE_MIXED_PRECISION": Setting("no", "--env"), "ACCELERATE_USE_IPEX": Setting("false", "--env")}
    result = words(launch(ONE, asked=asked))
    assert "--ipex" not in result
    assert result[result.index("--mixed_precision") + 1] == "no"


def test_models_stay_where_ipex_has_packed_their_weights() -> None:
    def device(of: Launch) -> list[str | None]:
        return [one.value if (one := seat.env.get("ACCELERATE_TORCH_DEVICE")) else None for seat in of.nodes]

    assert device(launch(FOUR)) == ["cpu", "cpu"]
    assert device(launch(FOUR, {"accelerate": "1.15.0"})) == [None, None], "stock torch trains what it computes with"
    asked = {"ACCELERATE_TORCH_DEVICE": Setting("cpu:0", "--env")}
    assert device(launch(FOUR, asked=asked)) == ["cpu:0", "cpu:0"]


def test_versions_that_fail_beside_ipex_are_refused_with_the_reason() -> None:
    with pytest.raises(UsageError) as refused:
        launch(packages={"accelerate": "1.12.0", **IPEX})
    assert refused.value.exit is Exit.STEP
    assert "accelerate 1.12.0 cannot be launched rank by rank where IPEX is installed" in str(refused.value)


def test_ranks_and_port_come_from_the_configuration_unless_they_are_given() -> None:
    assert (launch(AccelerateConfig(2, 2, port=4321)).size, launch(AccelerateConfig(2, 2, port=4321)).port) == (2, 4321)
    given = launch(AccelerateConfig(2, 2, port=4321), ppn=2, port=5000)
    assert (given.size, given.port) == (4, 5000)
    assert "says num_machines 2 and num_processes 2; this run has 2 and 4" in "\n".join(map(str, given.warnings))


def test_a_configuration_for_an_mpirun_that_accelerate_starts_runs_as_any_other() -> None:
    made = launch(AccelerateConfig(4, 2, precision="bf16", ipex=True, hostfile="/anything"))
    assert made.size == 4
    assert made.mpiexec == launch(AccelerateConfig(4, 2)).mpiexec
    assert " ".join(words(made)).startswith("-u -m accelerate.commands.launch --cpu")


def test_the_configuration_is_read_with_that_launcher_only() -> None:
    assert accelerate.apply_config(None, Run(script="x.py")) == Run(script="x.py")


# arguments of the script --------------------------------------------------------------------------------------------


def test_arguments_that_the_installed_trainer_does_not_know_are_warned_of() -> None:
    made = launch(packages={"accelerate": "1.15.0", "transformers": "5.23.0"}, args=("--no_cuda", "--bf16"))
    assert tuple(map(str, made.warnings)) == (
        "transformers 5.23.0 does not know --no_cuda any more (until 5.0.0); instead: --use_cpu",
    )


@pytest.mark.parametrize(("config", "alone"), [(AccelerateConfig(), True), (AccelerateConfig(ranks=2, hosts=2), False)])
def test_one_rank_alone_is_no_distributed_training(config: AccelerateConfig, alone: bool) -> None:
    task, made = Run(script="train.py", launcher="accelerate"), launch(config)
    reported = build_run_specs(made, task, Identity(NONCE, "token", "me", 0.0))
    assert {host.alone for host in reported.values()} == {alone}


def test_without_accelerate_nothing_is_started_through_it() -> None:
    with pytest.raises(UsageError, match="no accelerate") as refused:
        launch(packages=dict(IPEX))
    assert (refused.value.exit, refused.value.hint) == (Exit.STEP, "ipexctl install --with accelerate==1.7.0")


BF16 = {"ACCELERATE_MIXED_PRECISION": Setting("bf16", "--env")}
TRAINER = {"accelerate": "1.7.0", "transformers": "4.52.4", **IPEX}


@pytest.mark.parametrize(
    ("packages", "settings", "level", "refused"),
    [
        ({"accelerate": "1.7.0", **IPEX}, {"asked": BF16}, "AVX2", True),
        ({"accelerate": "1.7.0", **IPEX}, {"asked": BF16}, "AMX", False),
        ({"accelerate": "1.7.0", **IPEX}, {"asked": BF16}, None, False),  # not known
        ({"accelerate": "1.7.0", **IPEX}, {}, "AVX2", False),  # fp32
        ({"accelerate": "1.7.0"}, {"asked": BF16}, "AVX2", False),
        ({"accelerate": "1.13.0", **IPEX}, {"asked": BF16}, "AVX2", False),
        (TRAINER, {"args": ("--bf16", "--use_ipex")}, "AVX2", True),
        (TRAINER, {"args": ("--bf16",)}, "AVX2", False),
        ({**TRAINER, "transformers": "4.53.0"}, {"args": ("--bf16", "--use_ipex")}, "AVX2", False),
    ],
)
def test_bf16_with_ipex_is_warned_of_where_ipex_refuses_it(
    packages: dict[str, str], settings: dict[str, Any], level: str | None, refused: bool
) -> None:
    task = Run(script="train.py", args=settings.get("args", ()))
    more = {"installed": Installed("/opt/ai", True, "3.11", {"torch": "2.6.0", **packages}), "isa_level": level}
    runtimes = {
        name: HostRuntime(
            facts(1, 4, machine_id=name, **more),
            InterfaceChoice("eth0", address, Note("shared-subnet", "192.0.2.0/24")),
            runtime(), "/run", "/work",
        )
        for name, address in (("node0", "192.0.2.10"), ("node1", "192.0.2.11"))
    }  # fmt: skip
    hosts = (Host("node0", "192.0.2.10"), Host("node1", "192.0.2.11"))
    asked: dict[str, Setting] = settings.get("asked", {})
    made = build_launch(task, "r1", hosts, runtimes, "train.py", asked, options=OPTIONS)
    notes = [note for note in made.warnings if note.code == "ipex-bf16"]
    assert [note.hosts for note in notes] == [("node0", "node1")] * refused


def test_who_watches_learns_backend_and_the_precision_that_is_set() -> None:
    asked = launch(packages={"accelerate": "1.15.0"}, args=("--bf16",)).running
    assert asked.precision == "bf16"
    assert asked.backend
    assert launch(packages={"accelerate": "1.15.0"}).running.precision == ""  # the script decides
    configured = launch(packages={"accelerate": "1.15.0"}, config=ONE).running
    assert configured.precision == "bf16"


def test_a_long_key_of_a_configuration_is_not_repeated_for_each_one_below_it() -> None:
    """A megabyte took tens of gigabytes."""
    below = "".join(f" b{number}: x\n" for number in range(20_000))
    assert read_config(f"? {'a' * 200_000}\n:\n{below}mixed_precision: bf16\n", "x.yaml").precision == "bf16"
