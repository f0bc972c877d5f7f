"""The table of microarchitectures, as the tests of this room and of launches read it."""

from functools import cache
from pathlib import Path

from ipexctl.decide.facts.uarch import Uarchs, parse_uarchs

ROOT = Path(__file__).parents[3]


@cache
def uarchs() -> Uarchs:
    return parse_uarchs((ROOT / "ipexctl" / "data" / "cpus.toml").read_text())
