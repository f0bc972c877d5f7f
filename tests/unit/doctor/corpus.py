"""The recorded machines beside the repository: real text, and what is true of each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.decide.facts.uarch import Uarchs, parse_uarchs
from ipexctl.model.facts import Facts

ROOT = Path(__file__).parents[3]
MACHINES = ROOT.parent / "shared" / "data" / "machines"

needs_machines = pytest.mark.skipif(
    not MACHINES.is_dir(), reason=f"the recorded machines are not beside this repository ({MACHINES})"
)


@cache
def uarchs() -> Uarchs:
    return parse_uarchs((ROOT / "ipexctl" / "data" / "cpus.toml").read_text())


def machines() -> list[Path]:
    return sorted(path.parent for path in MACHINES.glob("*/truth.json"))


@cache
def bundle(machine: Path) -> ProbeOutput:
    files = json.loads(path.read_text()) if (path := machine / "files.json").exists() else {}
    commands: dict[str, Any] = {}
    for name, target, key in (
        ("cpuinfo.txt", files, "/proc/cpuinfo"),
        ("meminfo.txt", files, "/proc/meminfo"),
        ("lscpu.txt", commands, "lscpu"),
        ("lscpu.json", commands, "lscpu -J -B"),
    ):
        if (path := machine / name).exists():
            target[key] = path.read_text()
    return ProbeOutput(files, commands)


@cache
def facts(machine: Path) -> Facts:
    return parse_facts(bundle(machine), uarchs())


@cache
def truth(machine: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((machine / "truth.json").read_text())
    return value
