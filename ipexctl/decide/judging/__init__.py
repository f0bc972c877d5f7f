"""Facts → findings with codes, and the interface of each host."""

from ipexctl.decide.judging.catalogue import Catalogue, document, explain, parse_catalogue
from ipexctl.decide.judging.cluster import Cluster, Hit
from ipexctl.decide.judging.judge import judge
from ipexctl.decide.judging.network import Choice, choose_interfaces
from ipexctl.decide.judging.processor import advice, common_level

__all__ = [
    "Catalogue",
    "Choice",
    "Cluster",
    "Hit",
    "advice",
    "choose_interfaces",
    "common_level",
    "document",
    "explain",
    "judge",
    "parse_catalogue",
]
