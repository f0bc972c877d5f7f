"""Flags → one Task → its verb. Each flag is described once, by its task; playbook keys have the same names.

Everything heavy is imported inside the command that needs it: ``ipexctl --help`` touches no host and no SSH library."""

from ipexctl.cli.main import app, main

__all__ = ["app", "main"]
