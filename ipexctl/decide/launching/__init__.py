"""Hosts × Facts × Run → Launch: who computes where, with which settings, started by which line."""

from ipexctl.decide.launching.launch import compute

__all__ = ["compute"]
