"""What is asked of a host, and the parser of its answer → Facts."""

from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_command import probe
from ipexctl.decide.facts.probe_output import Bundle, parse_bundle, unframe
from ipexctl.decide.facts.uarch import Uarchs, parse_uarchs

__all__ = ["Bundle", "Uarchs", "parse_bundle", "parse_facts", "parse_uarchs", "probe", "unframe"]
