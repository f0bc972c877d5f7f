"""Hosts × Facts × Run → Launch: who computes where, with which settings, started by which line."""

from ipexctl.decide.launch.build import compute

__all__ = ["compute"]
