"""What is asked of a host, and the parser of its answer → Facts."""

from ipexctl.decide.probing.ask import probe
from ipexctl.decide.probing.bundle import Bundle, parse_bundle, unframe
from ipexctl.decide.probing.read import read
from ipexctl.decide.probing.uarch import Uarchs, parse_uarchs

__all__ = ["Bundle", "Uarchs", "parse_bundle", "parse_uarchs", "probe", "read", "unframe"]
