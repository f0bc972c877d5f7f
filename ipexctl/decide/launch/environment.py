"""The environment of ranks: the user's variables, and that of each host, each value with its source. The controller's
own environment is not passed on."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ipexctl.decide.checks.network import InterfaceChoice, means_itself
from ipexctl.decide.launch import tuning
from ipexctl.decide.launch.dialects import get_dialect
from ipexctl.decide.launch.dialects.base import MpiDialect
from ipexctl.decide.releases.runtime import Runtime
from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import Record
from ipexctl.model.launch import NodePlan, Preload, RankPlacement, Setting
from ipexctl.model.secrets import holds_secret, looks_secret
from ipexctl.model.tasks import Run
from ipexctl.model.text import format_cpus, printable
from ipexctl.protocol.hooks import MEETING_ENV, PROFILE_ENV
from ipexctl.protocol.paths import DIRECTORY_ENV, RANK_ENV, RUN_ENV
from ipexctl.protocol.placeholders import fill

_RDMA = ("ib", "opa", "hfi", "hsi", "roce")  # names Linux gives to InfiniBand and Omni-Path interfaces
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
# Ranks from which on Gloo connects only those that talk to each other. Each group is a full mesh otherwise, and asks
# rank 0's store once for each pair: too slow for a thousand (pytorch/gloo#419). Measured with torch 2.13.0, 42 ranks on
# 3 hosts with 2 cores in all: a group in 0.2 to 0.7 s instead of 1.8, with 60 sockets a rank instead of 107; barrier,
# all_reduce, broadcast, send, new_group, all_gather_object and DDP as before. But a group that was destroyed and made
# anew at once failed (12 ranks, 3 of 3), and who waits for a dead peer may wait longer (pytorch/gloo#520).
_LAZY_INIT_RANKS = 512
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# As python-dotenv reads it, but nothing is replaced in values: quotes around a value, a comment behind a blank.
_FILE_VALUE = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\s*(?:\#.*)?|([^"'].*?)?(?:\s\#.*)?""")
_OURS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", RUN_ENV, DIRECTORY_ENV, RANK_ENV, MEETING_ENV,
         PROFILE_ENV, "PMI_RANK", "PMI_SIZE", "PMI_FD"}  # fmt: skip
# Never passed from this machine: they name things of this machine, or would make its loader act on a host.
_NOT_PASSED = {"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "PATH", "HOME"}


class HostRuntime(Record):
    """The facts of one host, and what was prepared there for a run."""

    facts: Facts
    interface: InterfaceChoice
    runtime: Runtime
    directory: str  # of the run, there
    workdir: str
    import_paths: tuple[str, ...] = ()  # directories of the project's modules


class RunSettings(Record):
    """What all hosts of a launch share. ``workers`` are cores of each rank's collectives; ``rdma`` is `has_rdma`."""

    task: Run
    head: InterfaceChoice
    hosts: int
    backend: str
    workers: int
    isa_settings: Mapping[str, Setting]
    user_env: Mapping[str, Setting]
    rdma: bool
    port_env: Mapping[str, str]  # for ``--port-range``
    run: str
    size: int  # ranks
    cpus_alone: bool  # several ranks, and no accelerator for any


def has_rdma(hosts: Iterable[Facts]) -> bool:
    """Returns whether every host has an active RDMA interface: libfabric's provider must be the same on all hosts, but
    each host would choose its own."""
    return all(any(card.name.startswith(_RDMA) and card.up is not False for card in host.interfaces) for host in hosts)


def build_host_env(
    run: RunSettings, host: HostRuntime, places: Sequence[RankPlacement], tuned: Mapping[str, Setting]
) -> dict[str, Setting]:
    """Variables of all ranks (``places``) on this host. ``tuned`` is from `tuning`; the user's variables override every
    other value."""
    task, facts, runtime, interface = run.task, host.facts, host.runtime, host.interface.name
    env: dict[str, Setting] = {}

    def put(name: str, value: str, source: str, by_user: bool = False) -> None:
        env[name] = Setting(value, source, by_user=by_user)

    put("PATH", ":".join(dict.fromkeys([*runtime.path, *SYSTEM_PATH])), "environment")
    if runtime.library_path:
        put("LD_LIBRARY_PATH", ":".join(runtime.library_path), "environment")
    for name, value in runtime.env.items():
        put(name, value, "environment")
    put("HOME", facts.home or "/", "account")
    if facts.user:
        put("USER", facts.user, "account")
        put("LOGNAME", facts.user, "account")
    put("LANG", "C.UTF-8", "ipexctl")
    put("PYTHONUNBUFFERED", "1", "ipexctl: output as it is written")
    if host.import_paths:
        put("PYTHONPATH", ":".join(host.import_paths), "the project's root")
    if facts.hub and not {"HF_HOME", "HF_HUB_CACHE"} & {*run.user_env}:
        put("HF_HUB_CACHE", facts.hub, "sync hf:")
        put("HF_HUB_OFFLINE", "1", "sync hf: has put there what ranks need")
    put("MASTER_ADDR", run.head.address, "the head's address on its interface")
    if task.port:
        put("MASTER_PORT", str(task.port), "--port", by_user=True)
    put("GLOO_SOCKET_IFNAME", interface, "interface of this host")
    put("TP_SOCKET_IFNAME", interface, "interface of this host, for torch.distributed.rpc")
    if run.size >= _LAZY_INIT_RANKS:
        put("TORCH_GLOO_LAZY_INIT", "1", f"{run.size} ranks: Gloo else connects each to each other")
    put("FI_TCP_IFACE", interface, "interface of this host")
    if not run.rdma:
        put("FI_PROVIDER", "tcp", "not every host has an RDMA interface that is up")
    for name, value in run.port_env.items():
        put(name, value, "--port-range", by_user=True)
    dialect = get_dialect(runtime.dialect, runtime.version)
    for name, value in dialect.build_interface_env(interface, run.rdma).items():
        put(name, value, "interface of this host")
    asked = "--backend" if task.backend != "auto" else "what the environment has"
    put("IPEXCTL_BACKEND", run.backend, asked, by_user=True)
    if task.backend_override:
        put("IMPI_TORCH_OVERRIDE", "1", "--backend-override", by_user=True)
    if run.backend == "ccl":
        put("CCL_WORKER_COUNT", str(run.workers), "--ccl-workers", by_user=True)
        put("CCL_ATL_TRANSPORT", "ofi", "Hugging Face's guide for many CPUs")
        put("CCL_KVS_IFACE", interface, "interface of this host")
        if not dialect.informs_oneccl:
            put("CCL_PROCESS_LAUNCHER", "none", f"{dialect.title} tells oneCCL no ranks that it reads")
        if any(place.cpus and not place.workers for place in places):
            put("CCL_WORKER_OFFLOAD", "0", "no core is left for workers: the ranks' own threads do their work")
        # Read even without workers; oneCCL's own choice fails or leaves the rank's cores (src/common/env/env.cpp).
        bound = [cpu for place in places for cpu in place.workers or place.cpus[-1:] * run.workers]
        if bound:
            put("CCL_WORKER_AFFINITY", ",".join(map(str, bound)), "last cores of each rank")
    return {**env, **run.isa_settings, **tuned, **run.user_env}


def check_master_address(user_env: Mapping[str, Setting], interfaces: Mapping[str, InterfaceChoice]) -> None:
    """Raises `UsageError` (exit 2) for a MASTER_ADDR of the user's at which rank 0, on the first of these hosts, cannot
    be met: an address by which each host means itself, or another host's own."""
    head, *others = interfaces
    setting = user_env.get("MASTER_ADDR")
    if setting is None or not others or means_itself(interfaces[head].address):
        return
    value = setting.value.strip().strip("[]")
    owner = next((host for host in others if interfaces[host].address == value), "")
    if owner or means_itself(value):
        whose = f"is {owner}'s address" if owner else "means each host itself"
        raise UsageError(
            f"MASTER_ADDR={printable(value, 100)} {whose}; rank 0, which the others look for there, runs on {head}",
            reasons=[f"set by {setting.source}"],
            hint=f"leave it out: ipexctl sets it to {interfaces[head].address}",
        )


def build_elastic_env(run: RunSettings, number: int) -> dict[str, Setting]:
    """Returns what torchrun tells its workers beyond what each wrapper sets, on host ``number`` of the run. The list is
    that of torch/distributed/run.py and local_elastic_agent.py (torch 2.13.0). Left out: for
    TORCHELASTIC_USE_AGENT_STORE all ranks would be clients of a store that nobody serves (rendezvous.py); for
    TORCH_NCCL_ASYNC_ERROR_HANDLING there is no NCCL. NODE_RANK is Lightning's own name for GROUP_RANK."""
    host, restart = str(number), run.user_env.get("IPEXCTL_RESTART")
    return {
        "GROUP_RANK": Setting(host, "number of this host, as torchrun counts its agents"),
        "NODE_RANK": Setting(host, "the same for Lightning"),
        "GROUP_WORLD_SIZE": Setting(str(run.hosts), "hosts of the run"),
        "ROLE_NAME": Setting("default", "torchrun's, where no role is named"),
        "ROLE_WORLD_SIZE": Setting(str(run.size), "all ranks have one role"),
        "TORCHELASTIC_RUN_ID": Setting(run.run, "this run: frameworks take its ranks as torchrun's"),
        "TORCHELASTIC_RESTART_COUNT": Setting(restart.value if restart else "0", "starts before this one"),
        "TORCHELASTIC_MAX_RESTARTS": Setting(str(run.task.restarts), "--restarts"),
    }


def build_rank_env(
    run: RunSettings, place: RankPlacement, of_host: int, dialect: MpiDialect, preload: Sequence[Preload]
) -> dict[str, str]:
    """Variables of one rank of ``of_host`` on its host: OpenMP threads (one per core), for oneCCL its local rank where
    the launcher does not tell it, and for impi the cores of its communication."""
    env: dict[str, str] = {}
    count = run.task.threads or place.threads
    if run.task.threads or place.cpus:
        env["OMP_NUM_THREADS"] = str(count)
        env |= tuning.build_rank_settings(place, preload, count)
    if run.backend == "ccl" and not dialect.informs_oneccl:
        env |= {"CCL_LOCAL_RANK": str(place.local), "CCL_LOCAL_SIZE": str(of_host)}
    if run.backend == "impi" and place.workers:
        env["IMPI_TORCH_WORKER_CORES"] = format_cpus(place.workers)
    return {name: value for name, value in env.items() if name not in run.user_env}


def add_placeholder_values(
    node: NodePlan, number: int, ranks: Sequence[RankPlacement], of_run: Mapping[str, object], task: Run
) -> NodePlan:
    """Returns the host of this number with the values of placeholders for each of its processes, and their command
    lines. ``ranks`` has its ranks, of which the process of ``--per-host`` stands for all."""
    of_host = {"host_rank": number, "ppn": len(ranks), "address": node.address, "workdir": node.workdir, **of_run}

    def fill_values(place: RankPlacement) -> RankPlacement:
        rank = ranks[0].rank if task.per_host else place.rank
        own = {"rank": rank, "local_rank": place.local, "cores": len(place.cpus)}
        values = {name: str(value) for name, value in {**own, **of_host}.items()}
        shown = values | {"port": str(task.port or "PORT")}
        return replace(place, values=values, argv=tuple(fill(word, shown) for word in node.argv))

    return replace(node, ranks=tuple(map(fill_values, node.ranks)))


def parse_user_env(
    env: Mapping[str, str], env_files: Mapping[str, str], pass_env: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Setting]:
    """Returns the user's variables, later sources winning: files (name → text) in order, then `pass_env`, then `env`.
    Values from files and from this machine, and those with secret names, are never shown. Raises `UsageError`."""
    problems: list[str] = []
    settings: dict[str, Setting] = {}
    for file, text in env_files.items():
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            name, equals, rest = line.removeprefix("export ").partition("=")
            name, value = name.strip(), "" if re.match(r"\s+\#", rest) else rest.lstrip()
            match = _FILE_VALUE.fullmatch(value) if equals else None
            if not match or not _is_settable(name):
                why = "set by ipexctl" if name in _OURS else "not a NAME=value line"
                problems.append(f"{Origin(file, number)}: {why}: {_escape_variable_name(line)}")
                continue
            value = re.sub(r'\\(["\\])', r"\1", match[1]) if match[1] else match[2] or (match[3] or "").rstrip()
            settings[name] = Setting(value, f"--env-file {file}", secret=True, by_user=True)
    for name in pass_env:
        if name in _NOT_PASSED or not _is_settable(name):
            problems.append(f"--pass-env {_escape_variable_name(name)}: must not be passed on")
        elif name not in environ:
            problems.append(f"--pass-env {_escape_variable_name(name)}: not set on this machine")
        else:
            settings[name] = Setting(environ[name], "--pass-env", secret=True, by_user=True)
    for name, value in env.items():
        if not _is_settable(name):
            why = "set by ipexctl" if name in _OURS else "not a valid variable name"
            problems.append(f"--env {_escape_variable_name(name)}: {why}")
        elif "\0" in value:
            problems.append(f"--env {name}: a value cannot hold a NUL byte")
        else:
            settings[name] = Setting(value, "--env", secret=looks_secret(name) or holds_secret(value), by_user=True)
    if problems:
        raise UsageError("invalid variables for the ranks", reasons=problems)
    return settings


def _is_settable(name: str) -> bool:
    return bool(_NAME.match(name)) and name not in _OURS


def _escape_variable_name(text: str) -> str:
    """Part of a line that may hold a secret: its beginning, escaped."""
    return text.partition("=")[0][:40].encode("unicode_escape").decode()
