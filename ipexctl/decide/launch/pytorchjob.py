"""A launch as a job for Kubeflow's training operator, version 1: a pod for each host, where torchrun starts the ranks.

What belongs to our hosts (paths, addresses, interfaces, cores) is not a pod's. The operator tells torchrun where to
meet, by variables named PET_… (kubeflow/training-operator, pkg/controller.v1/pytorch/elastic.go).
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from ipexctl.model.launch import Launch, Setting

# Of the variables that nobody asked for, those that hold in any pod.
_ANYWHERE = {"LANG", "PYTHONUNBUFFERED", "CCL_ATL_TRANSPORT", "KMP_BLOCKTIME", "ACCELERATE_TORCH_DEVICE"}
_TORCHRUN = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}  # it sets them
_PORT = 23456  # the operator's own
# The bindings' variables, of whichever generation the image has (they were torch_ccl before 1.12).
_SOURCED = (
    'import importlib.util as u; n = "oneccl_bindings_for_pytorch"; '
    'print(__import__(n if u.find_spec(n) else "torch_ccl").cwd)'
)


def write_job(launch: Launch) -> str:
    """YAML for ``kubectl apply``, of a launch with the same number of ranks on every host."""
    ranks, pods, name = len(launch.head.ranks), len(launch.nodes), make_job_name(launch.title)
    words = ["python", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    words += ["--no-python", "python", *launch.argv[1:]]
    if launch.backend == "ccl":
        words = ["/bin/sh", "-c", f". \"$(python -c '{_SOURCED}')/env/setvars.sh\"; exec {shlex.join(words)}"]
    threads = min(int(place.env.get("OMP_NUM_THREADS") or place.threads) for place in launch.places)
    settings = {"OMP_NUM_THREADS": Setting(str(threads), "of the smallest host"), **_portable_settings(launch)}
    # Logical CPUs of the ranks of the smallest host: all pods are alike.
    each = [[place.threads + len({*place.workers} - {*place.cpus}) for place in node.ranks] for node in launch.nodes]
    amount = {"cpu": min(map(sum, each)), "memory": "MEMORY"}
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": "IMAGE",
        "workingDir": "WORKDIR",
        "command": [_escape_references(word) for word in words],
        "env": [_env_entry(key, setting, name) for key, setting in sorted(settings.items())],
        "resources": {"requests": dict(amount), "limits": amount},
        "ports": [{"name": "pytorchjob-port", "containerPort": launch.port or _PORT}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "containers": [container],
        "restartPolicy": "Never",
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None"},  # their logs stay until the job is deleted
            "elasticPolicy": {"rdzvBackend": "c10d", "minReplicas": pods, "maxReplicas": pods, "maxRestarts": 0},
            "pytorchReplicaSpecs": {"Worker": {"replicas": pods, "restartPolicy": "Never", "template": {"spec": pod}}},
        },
    }
    return yaml.safe_dump(job, sort_keys=False, width=1000)


def _portable_settings(launch: Launch) -> dict[str, Setting]:
    """What the user has asked for, and what holds anywhere; of hosts that differ, what they share."""
    head, *others = [node.env for node in launch.nodes]
    return {
        name: setting
        for name, setting in head.items()
        if (name in _ANYWHERE or setting.by_user)
        and name not in _TORCHRUN
        and all(other.get(name) == setting for other in others)
    }


def _env_entry(name: str, setting: Setting, job: str) -> dict[str, Any]:
    if setting.secret:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": job, "key": name}}}
    return {"name": name, "value": _escape_references(setting.value)}


def _escape_references(text: str) -> str:
    """Kubernetes puts variables in place of ``$(NAME)``; ``$$`` is a dollar before a parenthesis."""
    return text.replace("$(", "$$(")


def make_job_name(title: str) -> str:
    """A name for the job's pods and services (RFC 1035): short, in small letters, begun by one."""
    stem = title.rpartition("/")[2].removesuffix(".py").lower()
    word = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40].strip("-")
    return word if word[:1].isalpha() else f"job-{word}".strip("-")
