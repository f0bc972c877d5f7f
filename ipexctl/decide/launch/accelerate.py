"""Hugging Face Accelerate for CPUs: its ``default_config.yaml``, written and read, and the words that start it.

mpirun starts ``accelerate launch`` for each rank, also where the configuration has a ``mpirun_config``, which is for
those who start mpirun by Accelerate without us. Which keys and flags a version knows is in ``data/options.toml``; the
rest is from the wheels of 0.19.0 to 1.15.0."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ipexctl.decide.launch.tuning import supports_isa
from ipexctl.decide.parsing import yaml_nodes
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.releases.framework_options import FrameworkOption, normalise_arguments, supports_option
from ipexctl.decide.releases.table import parse_version
from ipexctl.model.errors import Exit, Note, UsageError, advise
from ipexctl.model.facts import Facts, HostFacts
from ipexctl.model.json_values import Record
from ipexctl.model.launch import Setting
from ipexctl.model.tasks import Run
from ipexctl.model.text import printable

PORT = 29500  # what Accelerate's own questionnaire and torch take
_SECTIONS = {"ipex_config", "mpirun_config", "dynamo_config"}
_NO_DYNAMO = ("--dynamo_backend", "no")
_YES = {"1", "true", "yes", "y", "t", "on"}
_PRECISIONS = ("no", "fp16", "bf16", "fp8")


class AccelerateConfig(Record):
    """What a configuration says. ``hostfile`` is that of an mpirun which Accelerate starts, ``workers`` are oneCCL's
    threads a rank there; ``flags`` are those of ``accelerate launch`` for its other keys."""

    ranks: int = 1
    hosts: int = 1
    address: str = ""
    port: int | None = None
    precision: str = "no"
    ipex: bool = False
    hostfile: str = ""
    workers: int = 1
    flags: tuple[str, ...] = _NO_DYNAMO


def write_config(
    config: AccelerateConfig, version: str, options: Sequence[FrameworkOption]
) -> tuple[str, tuple[str, ...]]:
    """Returns the file as ``accelerate config`` of that version writes it, byte for byte, for the same answers; and a
    sentence for each thing asked for that the version cannot say."""
    import yaml

    several = config.hosts > 1 or config.ranks > 1
    value: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE", "debug": False, "distributed_type": "MULTI_CPU" if several else "NO",
        "downcast_bf16": "no", "enable_cpu_affinity": False, "machine_rank": 0, "main_training_function": "main",
        "mixed_precision": config.precision, "num_machines": config.hosts, "num_processes": config.ranks,
        "rdzv_backend": "static", "same_network": True, "tpu_env": [], "tpu_use_cluster": False,
        "tpu_use_sudo": False, "use_cpu": True,
    }  # fmt: skip
    if config.hosts > 1:
        value |= {"main_process_ip": config.address, "main_process_port": config.port or PORT}
    value["ipex_config"] = {"ipex": config.ipex}
    if several and config.hostfile:
        value["mpirun_config"] = {"mpirun_ccl": str(config.workers), "mpirun_hostfile": config.hostfile}
        if not supports_option(options, "accelerate", "mpirun_ccl", version):
            del value["mpirun_config"]["mpirun_ccl"]
    unknown = [name for name in value if not supports_option(options, "accelerate", name, version)]
    wanted = [name for name in unknown if name == "mpirun_config" or (name == "ipex_config" and config.ipex)]
    unsupported = [
        option.explain_support(version) for option in options if option.of == "accelerate" and option.name in wanted
    ]
    supported = {name: inner for name, inner in value.items() if name not in unknown}
    return yaml.safe_dump(supported, allow_unicode=True), tuple(dict.fromkeys(unsupported))


def read_config(text: str, source: str) -> AccelerateConfig:
    """The configuration in a file of any version. Raises `UsageError` for one not for CPUs, with line and key."""
    problems = InputErrors(source)
    root = yaml_nodes.read_yaml_node(text, source, problems)
    if root is not None and not isinstance(root, yaml_nodes.Map):
        problems.add(root.origin, f"an Accelerate configuration must be a mapping, not {yaml_nodes.name_kind(root)}")
    scalars = _list_scalars(root) if isinstance(root, yaml_nodes.Map) else {}

    def read(path: str, default: str = "") -> str:
        return scalars[path].text.strip() if path in scalars else default

    def refuse(path: str, what: str) -> None:
        problems.add(scalars[path].origin, f"{path} {what}", value=read(path))

    def read_number(path: str, default: int, least: int = 1, most: int = 999_999) -> int:
        text = read(path, str(default))
        if text == str(default) or (text.isdecimal() and len(text) < 7 and least <= int(text) <= most):
            return int(text)
        refuse(path, f"must be a number from {least} to {most}")
        return default

    kind, hostfile = read("distributed_type").upper(), read("mpirun_config.mpirun_hostfile")
    if kind not in {"", "NO", "FALSE", "MULTI_CPU"}:  # an unquoted NO is false to YAML
        refuse("distributed_type", "must be NO or MULTI_CPU: hosts here train on CPUs")
    precision = read("mixed_precision", "no").lower()
    precision = "no" if precision in {"false", "null"} else precision
    if precision not in _PRECISIONS:
        refuse("mixed_precision", f"must be one of {', '.join(_PRECISIONS)}")
    is_alone = kind in {"NO", "FALSE"} and not hostfile  # Accelerate starts one process, whatever the number
    config = AccelerateConfig(
        ranks=1 if is_alone else read_number("num_processes", 1),
        hosts=read_number("num_machines", 1),
        address=read("main_process_ip"),
        port=read_number("main_process_port", 0, 1024, 65535) or None,
        precision=precision,
        ipex=read("ipex_config.ipex", read("ipex_config.ipex_enabled")).lower() in {"true", "yes"},  # the latter: 0.19
        hostfile=hostfile,
        workers=read_number("mpirun_config.mpirun_ccl", 1),
        flags=(*(["--debug"] if read("debug").lower() in _YES else []), *_list_dynamo_flags(scalars)),
    )
    problems.raise_if_any()
    return config


def _list_dynamo_flags(scalars: Mapping[str, yaml_nodes.Scalar]) -> Iterator[str]:
    """How Accelerate is to compile the model; a wrong word is refused by it, with the right ones."""
    section = {path.rpartition(".")[2]: scalar.text.strip().lower() for path, scalar in scalars.items()}
    backend = section.get("dynamo_backend", "no")
    if backend in {"no", "false"}:  # an unquoted NO
        yield from _NO_DYNAMO
        return
    yield f"--dynamo_backend={backend}"
    if "dynamo_mode" in section:
        yield f"--dynamo_mode={section['dynamo_mode']}"
    for name in ("use_fullgraph", "use_dynamic", "use_regional_compilation"):
        if section.get(f"dynamo_{name}") in _YES:
            yield f"--dynamo_{name}"


def _list_scalars(node: yaml_nodes.Map, prefix: str = "") -> dict[str, yaml_nodes.Scalar]:
    """Returns the values that are set, by their keys: ``mpirun_config.mpirun_ccl``."""
    scalars: dict[str, yaml_nodes.Scalar] = {}
    for key, value in node.pairs:
        if isinstance(value, yaml_nodes.Map) and key.text in _SECTIONS:
            scalars |= _list_scalars(value, f"{prefix}{key.text}.")
        elif isinstance(value, yaml_nodes.Scalar) and not value.is_null:
            scalars[prefix + key.text] = value
    return scalars


def apply_config(config: AccelerateConfig | None, task: Run) -> Run:
    """Returns the task with what only the configuration says: the number of ranks, and the port."""
    if config is None:
        return task
    ranks = config.ranks if task.n is None and task.ppn is None else task.n
    return replace(task, n=ranks, port=task.port or config.port)


def compare_config(config: AccelerateConfig | None, hosts: int, ranks: int) -> list[Note]:
    """Returns what a run does otherwise than its configuration says."""
    if config is None or (config.hosts, config.ranks) in {(hosts, ranks), (1, 1)}:
        return []
    counts = f"num_machines {config.hosts} and num_processes {config.ranks}"
    return [Note("accelerate-config", f"the Accelerate configuration says {counts}; this run has {hosts} and {ranks}")]


def require_accelerate(packages: Mapping[str, str]) -> None:
    """Raises `UsageError` (exit 4) where the environment has no Accelerate to start a script with."""
    if "accelerate" not in packages:
        hint = advise("install", "--with", "accelerate==1.7.0" if has_ipex(packages) else "accelerate")
        raise UsageError("the environment has no accelerate for --launcher accelerate", hint=hint, exit=Exit.STEP)


def build_interpreter_arguments(
    config: AccelerateConfig | None,
    packages: Mapping[str, str],
    user_env: Mapping[str, str],
    options: Sequence[FrameworkOption],
) -> tuple[str, ...]:
    """Returns what the interpreter is given before the script where mpirun starts ``accelerate launch`` for each rank:
    it must neither look for a configuration on the host nor start mpirun again. ``user_env`` are the user's variables:
    what they say of precision and IPEX wins over the configuration. Raises `UsageError` (exit 4) for the three versions
    that cannot be started so beside IPEX."""
    version = packages.get("accelerate", "")
    flags = ["--cpu"]
    if version and has_ipex(packages) and not supports_option(options, "accelerate", "--ipex", version):
        if supports_option(options, "accelerate", "ipex_config", version):  # it asks for what its flags no longer set
            raise UsageError(
                f"accelerate {printable(version)} cannot be launched rank by rank where IPEX is installed",
                reasons=["1.10 to 1.12 have no flag --ipex any more, and fail without what it sets"],  # measured
                hint=advise("install", "--with", "accelerate<1.10", text="run with --launcher script, or:"),
                exit=Exit.STEP,
            )
    elif version and uses_ipex(config, packages, user_env):
        flags.append("--ipex")
    flags += ["--num_processes", "1", "--num_machines", "1", "--mixed_precision", choose_precision(config, user_env)]
    return ("-u", "-m", "accelerate.commands.launch", *flags, *(config.flags if config else _NO_DYNAMO))


def choose_device(packages: Mapping[str, str], cpus_alone: bool) -> dict[str, Setting]:
    """Accelerate's device of a rank, where it matters. ``cpus_alone``: several ranks, and no accelerator for any. By
    itself it takes cpu:0, and ``Tensor.to("cpu:0")`` copies what is on ``cpu``: optimizers then train copies of the
    weights that IPEX has packed for its layers, and the model never learns (seen with 1.7.0 and IPEX 2.8.0). And unless
    it is asked for processors it takes ranks without an accelerator for single processes: each of them trains alone, as
    does each one of the Trainer (`PartialState._prepare_backend`; seen with 1.15.0 and transformers 5.24.0)."""
    if "accelerate" not in packages:
        return {}
    alone = Setting("true", "no host has an accelerator: else each rank of Accelerate and of the Trainer trains alone")
    ours = Setting("cpu", "else Accelerate moves models away from IPEX's weights")
    together = {"ACCELERATE_USE_CPU": alone} if cpus_alone else {}
    return together | ({"ACCELERATE_TORCH_DEVICE": ours} if has_ipex(packages) else {})


def has_accelerator(facts: Facts) -> bool:
    """Whether torch may find an accelerator on this host: by its device files, and by what torch was built for."""
    torch = (facts.installed.packages if facts.installed else {}).get("torch", "")
    # A build for Intel's GPUs says so; to others a render node is but a screen. One for processors sees none at all,
    # but for those that come with a package of their own.
    unseen = {"xpu": (), "cpu": ("/dev/dri/", "/dev/nvidia", "/dev/kfd")}.get(torch.partition("+")[2], ("/dev/dri/",))
    return any(not path.startswith(unseen) for path in facts.accelerators)


def find_bf16_refusals(
    facts: HostFacts, args: Sequence[str], options: Sequence[FrameworkOption], by_config: bool
) -> Iterator[Note]:
    """Hosts (name → facts) on which IPEX refuses bf16, where the Trainer's arguments or Accelerate's settings
    (``by_config``: "bf16", and IPEX is to optimise) ask for it. IPEX asserts "avx_ne_convert or avx512bw, avx512vl and
    avx512dq" (frontend.py). Accelerate calls it until 1.12, from 1.8 on with torch before 2.7 (pulls 3608, 3883)."""
    packages = next((fact.installed.packages for fact in facts.values() if fact.installed), {})
    trainer, version, torch = (packages.get(name, "") for name in ("transformers", "accelerate", "torch"))
    old = parse_version(version) < parse_version("1.8") or parse_version(torch) < parse_version("2.7")
    by_config &= old and bool(version) and supports_option(options, "accelerate", "ipex_config", version)
    by_trainer = has_ipex(packages) and {"--use_ipex", "--bf16"} <= {*normalise_arguments(args)}
    by_trainer &= bool(trainer) and supports_option(options, "transformers", "--use_ipex", trainer)
    known = {name: fact for name, fact in facts.items() if fact.isa_level and "avx_ne_convert" not in fact.flags}
    refusing = tuple(name for name, fact in known.items() if not supports_isa(fact, "AVX512"))
    if refusing and (by_config or by_trainer):
        without = "without --use_ipex" if by_trainer else "--env ACCELERATE_USE_IPEX=false"
        text = f"IPEX refuses bf16 on a processor without AVX-512: fp32 with IPEX, or bf16 without it ({without})"
        yield Note("ipex-bf16", text, refusing)


def has_ipex(packages: Mapping[str, str]) -> bool:
    """Returns whether IPEX is among these packages, name → version."""
    return "intel-extension-for-pytorch" in packages


def uses_ipex(config: AccelerateConfig | None, packages: Mapping[str, str], user_env: Mapping[str, str]) -> bool:
    """Whether IPEX is to optimise: as the variable, else the configuration says; without either, where it is there."""
    by_default = str(config is None or config.ipex)
    return has_ipex(packages) and user_env.get("ACCELERATE_USE_IPEX", by_default).lower() in _YES


def choose_precision(config: AccelerateConfig | None, user_env: Mapping[str, str]) -> str:
    """Returns the mixed precision: that of the variable, else of the configuration, else "no"."""
    return user_env.get("ACCELERATE_MIXED_PRECISION") or (config.precision if config else "no")


def find_set_precision(config: AccelerateConfig | None, user_env: Mapping[str, str], args: Sequence[str]) -> str:
    """The precision that variables, a configuration or the Trainer's arguments set; "" where the script decides."""
    chosen = choose_precision(config, user_env)
    if chosen in ("no", ""):
        chosen = next((name for name in ("bf16", "fp16") if f"--{name}" in normalise_arguments(args)), "")
    return chosen
