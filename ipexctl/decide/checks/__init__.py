"""Facts → findings with codes, and the interface of each host."""

from ipexctl.decide.checks.catalogue import Catalogue, document, explain, parse_catalogue
from ipexctl.decide.checks.cluster import CheckHit, Cluster
from ipexctl.decide.checks.network import Choice, choose_interfaces
from ipexctl.decide.checks.processor import advice, common_level
from ipexctl.decide.checks.run_checks import run_checks

__all__ = [
    "Catalogue",
    "CheckHit",
    "Choice",
    "Cluster",
    "advice",
    "choose_interfaces",
    "common_level",
    "document",
    "explain",
    "parse_catalogue",
    "run_checks",
]
