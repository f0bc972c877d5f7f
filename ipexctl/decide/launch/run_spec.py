"""The `protocol.run_spec.RunSpec` of each host of a run."""

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ipexctl.decide.launch import mpi_launchers
from ipexctl.decide.launch.dialects import get_dialect
from ipexctl.decide.profile.steps import parse_profile_steps
from ipexctl.model.json_values import select_attributes
from ipexctl.model.launch import Launch, Leading, NodePlan, RankPlacement
from ipexctl.model.notifications import split_command
from ipexctl.model.tasks import Run
from ipexctl.protocol import paths
from ipexctl.protocol.run_spec import HeadSpec, KeepSpec, Library, NodeSpec, RankSpec, RunSpec
from ipexctl.protocol.timings import Timings

# Variables of ours that another attempt changes → what they hold, as `protocol.rank_layout` calls it.
_VARYING = {
    "IPEXCTL_RESTART": "restart",
    "TORCHELASTIC_RESTART_COUNT": "restart",
    "GROUP_RANK": "host_rank",
    "NODE_RANK": "host_rank",
    "GROUP_WORLD_SIZE": "hosts",
    "ROLE_WORLD_SIZE": "world_size",
}
# What the launcher's proxy sees of the ranks' environment, and so processes that ranks spawn by MPI.
_PROXY_NAMES = re.compile("PATH|LD_LIBRARY_PATH|HOME|LANG|(FI_|UCX_|OMP_|MPI4PY_).*")


class Identity(NamedTuple):
    """What makes this start this one: the nonce of its frames, the token of its parts, who began it, when."""

    nonce: str
    token: str
    owner: str
    started: float  # Unix seconds


def read_timings_from_environ(environ: Mapping[str, str]) -> Timings:
    """The timings of a run. ``IPEXCTL_TIMINGS`` replaces some of them by a JSON object, for tests that cannot wait."""
    return Timings(**json.loads(environ.get("IPEXCTL_TIMINGS", "{}")))


def build_run_specs(
    launch: Launch, task: Run, identity: Identity, timings: Timings = Timings(), *, resume: Sequence[str] = ()
) -> dict[str, RunSpec]:
    """Host → its specification. A specification holds only its host's environment; the head's also how to start mpirun.
    The user's timings replace those of ``timings``. ``resume`` are the words by which the script goes on from a
    checkpoint."""
    timings = timings._replace(
        **select_attributes(task, "node_lease", "grace", "stall_warn", "straggler_warn"),
        lease=task.lease or 0.0,
        time_limit=task.time_limit or 0.0,
        sample=task.metrics_every,
    )
    leading = launch.leading or {launch.head.host: Leading(launch.mpiexec, launch.mpiexec_env)}
    heads = {
        node.host: _make_head_spec(launch, task, node, leading[node.host])
        for node in launch.planned
        if node.host in leading
    }
    leaders = {node.host: node.address for node in launch.planned if node.host in leading}
    varying = _VARYING | ({"MASTER_ADDR": "head"} if len(leaders) > 1 else {})
    result = {}
    dialect = get_dialect(launch.dialect, launch.mpi_version)
    profile = "{}:{}".format(*parse_profile_steps(task.profile)) if task.profile else ""
    for node in launch.planned:
        env = {name: setting.value for name, setting in node.env.items()}
        venv = node.env.get("VIRTUAL_ENV")
        result[node.host] = RunSpec(
            **identity._asdict(),
            **select_attributes(launch, "run", "title", "size", "independent"),
            command=list(launch.command),
            **select_attributes(launch, "backend", "precision", "fills", "per_host"),
            **select_attributes(node, "host", "label", "workdir"),
            **select_attributes(task, "share", "wait", "fail_fast", "restarts"),
            # Accelerate takes any local rank for one of several, and -1 for its own "no distributed training".
            alone=launch.size == 1 and task.launcher == "accelerate",
            argv=list(node.argv or launch.argv),
            stages=node.stages,
            ready=task.ready or "",
            environment="" if venv is None or venv.by_user else venv.value,
            filled=list(task.env),
            meeting=not launch.per_host or task.engine is not None,
            env=env,
            ranks={place.rank: _make_rank_spec(place, launch.membind) for place in node.ranks},
            proxy_env={
                **{name: env[name] for name in env if _PROXY_NAMES.fullmatch(name) and env[name]},
                **node.proxy_env,
                paths.RUN_ENV: launch.run,
                paths.NODE_ENV: f"{launch.run}:{node.label}",
                paths.DIRECTORY_ENV: node.directory,
                paths.PYTHON_ENV: node.python,
                paths.AGENT_ENV: f"{node.directory}/{paths.AGENT}",
            },
            proxies=list(dialect.proxies),
            rank_variable=dialect.rank_variable,
            rank_prefixes=list(dialect.rank_prefixes),
            preload=[Library(library.name, library.path) for library in node.preload],
            head=heads[node.host] if node is launch.head else None,
            reserve=None if node is launch.head else heads.get(node.host),
            leaders=leaders,
            timings=timings,
            profile=profile,
            keep=_make_keep_spec(launch, task, node, resume),
            varying={name: meaning for name, meaning in varying.items() if name in env and not node.env[name].by_user},
        )
    return result


def _make_head_spec(launch: Launch, task: Run, head: NodePlan, leading: Leading) -> HeadSpec:
    nodes = sorted(launch.planned, key=lambda node: node is not head)  # the ranks meet at the first one
    min_hosts, split_hosts = task.min_hosts or 0, 0
    if task.on_split == "wait":
        min_hosts, split_hosts = len(nodes) // 2 + 1, (len(nodes) + 1) // 2
    workdirs = {node.workdir for node in nodes}
    return HeadSpec(
        address=head.address,
        workdir=workdirs.pop() if len(workdirs) == 1 else "/",
        port=launch.port,
        ports=list(mpi_launchers.parse_ports(task.port_range)),
        hosts={
            node.host: NodeSpec(node.label, [place.rank for place in node.ranks], node.directory, node.python, node.isa)
            for node in nodes
        },
        mpiexec=list(leading.mpiexec),
        mpiexec_env=dict(leading.mpiexec_env),
        stall_kill=task.stall_kill or task.stall == "kill",
        straggler_kill=task.straggler_kill,
        stall_restart=task.stall == "restart",
        min_hosts=min_hosts,
        split_hosts=split_hosts,
        used=len(launch.nodes) if launch.spares else 0,
        notify=split_command("--host-notify", task.host_notify) if task.host_notify else [],
    )


def _make_keep_spec(launch: Launch, task: Run, node: NodePlan, resume: Sequence[str]) -> KeepSpec | None:
    if task.keep is None:
        return None
    return KeepSpec(
        path=posixpath.normpath(posixpath.join(node.workdir, task.keep)),
        copies=task.keep_copies,
        fresh=task.resume == "off",
        adopt=task.resume == "auto",
        words=list(resume) if task.resume == "auto" else [],
        addresses={each.host: each.address for each in launch.planned},
        ports=list(mpi_launchers.parse_ports(task.port_range)),
    )


def _make_rank_spec(place: RankPlacement, membind: bool) -> RankSpec:
    nodes = list(place.nodes) if membind else []
    return RankSpec(place.local, list(place.cpus), nodes, dict(place.env), dict(place.values))
