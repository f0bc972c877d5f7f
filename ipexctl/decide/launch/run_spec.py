"""What each host of a run is told: the ``spec.json`` that keeper, guard and wrappers read there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipexctl.model.launch import Launch, NodePlan
from ipexctl.model.tasks import Run

READY = 30.0  # seconds in which all guards must have reached the head
START = 60.0  # seconds in which the first rank must have started
AGENT = "agent.pyz"  # in the run's directory on each host


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes this start this one: the tag's nonce, the token its parts know each other by, who began it, when."""

    nonce: str
    token: str
    owner: str
    started: float  # Unix seconds


def specs(
    launch: Launch, task: Run, identity: Identity, pythons: Mapping[str, str], of_rank: Mapping[int, Mapping[str, str]]
) -> dict[str, dict[str, Any]]:
    """Host → its specification. A host is told its own environment only; the head also how to start mpirun.

    ``pythons`` are the interpreters per host, ``of_rank`` what each rank sees beyond its host's environment.
    """
    told = {node.host: _host(node, launch, task, identity, pythons[node.host], of_rank) for node in launch.nodes}
    told[launch.head.host].update(
        address=launch.head.address,
        port=launch.port,
        nonce=identity.nonce,
        hosts={
            node.host: {
                "label": node.label,
                "ranks": [place.rank for place in node.ranks],
                "directory": node.directory,
                "python": pythons[node.host],
            }
            for node in launch.nodes
        },
        mpiexec=list(launch.mpiexec),
        mpiexec_env=dict(launch.mpiexec_env),
        files=dict(launch.files),
        grace=task.grace,
        lease=task.lease,
        time_limit=task.time_limit,
        stall_warn=task.stall_warn,
        stall="kill" if task.stall_kill else task.stall,
        straggler_warn=task.straggler_warn,
        straggler_kill=task.straggler_kill,
        log_cap=task.log_cap * 1000000,
        ready_timeout=READY,
        start_timeout=START,
    )
    return told


def _host(
    node: NodePlan, launch: Launch, task: Run, identity: Identity, python: str, of_rank: Mapping[int, Mapping[str, str]]
) -> dict[str, Any]:
    env = {name: setting.value for name, setting in node.env.items()}
    proxy = {name: env[name] for name in env if name in {"PATH", "LD_LIBRARY_PATH", "HOME", "LANG"} and env[name]}
    return {
        "run": launch.run,
        "title": launch.title,
        "owner": identity.owner,
        "started": identity.started,
        "token": identity.token,
        "host": node.host,
        "label": node.label,
        "head": node is launch.head,
        "size": launch.size,
        # Accelerate takes any local rank for one of several, and -1 for its own "no distributed training".
        "alone": launch.size == 1 and task.launcher == "accelerate",
        "argv": [python, *launch.argv[1:]],
        "workdir": node.workdir,
        "env": env,
        "ranks": {
            str(place.rank): {
                "local": place.local,
                "cpus": list(place.cpus),
                "workers": list(place.workers),  # oneCCL binds its threads there by itself
                "membind": list(place.nodes) if launch.membind else [],
                "env": dict(of_rank[place.rank]),
            }
            for place in node.ranks
        },
        "proxy_env": {
            **proxy,
            **node.proxy_env,
            "IPEXCTL_RUN": launch.run,
            "IPEXCTL_SEAT": f"{launch.run}:{node.label}",
            "IPEXCTL_DIR": node.directory,
            "IPEXCTL_PYTHON": python,
            "IPEXCTL_AGENT": f"{node.directory}/{AGENT}",
        },
        "preload": [{"name": library.name, "path": library.path} for library in node.preload],
        "frames": identity.nonce if launch.framed else "",
        "nofile": True,
        "share": task.share,
        "independent": launch.independent,
        "fail_fast": task.fail_fast,
        "node_lease": task.node_lease,
    }
