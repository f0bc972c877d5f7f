"""Facts → findings with codes, and the interface of each host."""

from ipexctl.decide.checks.catalogue import Catalogue, explain_finding, parse_catalogue, render_findings_page
from ipexctl.decide.checks.cluster import CheckHit, Cluster
from ipexctl.decide.checks.network import InterfaceChoice, choose_interfaces
from ipexctl.decide.checks.processor import find_common_level, recommend_settings
from ipexctl.decide.checks.run_checks import run_checks

__all__ = [
    "Catalogue",
    "CheckHit",
    "Cluster",
    "InterfaceChoice",
    "choose_interfaces",
    "explain_finding",
    "find_common_level",
    "parse_catalogue",
    "recommend_settings",
    "render_findings_page",
    "run_checks",
]
