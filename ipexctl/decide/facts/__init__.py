"""The probe command of a host, and the parser of its output → Facts."""

from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_command import build_probe_command
from ipexctl.decide.facts.probe_output import ProbeOutput, parse_bundle, parse_probe_output
from ipexctl.decide.facts.uarch import Uarchs, parse_uarchs

__all__ = [
    "ProbeOutput",
    "Uarchs",
    "build_probe_command",
    "parse_bundle",
    "parse_facts",
    "parse_probe_output",
    "parse_uarchs",
]
