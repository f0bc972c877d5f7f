"""Flags → one Task → its verb. What each flag means is said once, here; the playbook keys are the same words.

Everything heavy is imported inside the command that needs it: ``ipexctl --help`` touches no host and no SSH library.
"""

from ipexctl.cli.main import app, main

__all__ = ["app", "main"]
