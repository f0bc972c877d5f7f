"""Hosts × Facts × Run → Launch: where ranks run, with which settings, and the command that starts them."""

from ipexctl.decide.launch.build import build_launch

__all__ = ["build_launch"]
