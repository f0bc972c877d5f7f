"""Parse the user's variables for ranks: ``--env``, ``--env-file``, ``--pass-env``. No others are passed on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.launch import Setting
from ipexctl.protocol.paths import DIRECTORY_ENV, RANK_ENV, RUN_ENV

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OURS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", RUN_ENV, DIRECTORY_ENV, RANK_ENV}
# Never passed from this machine: they name things of this machine, or would make its loader act on a host.
_NOT_PASSED = {"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "PATH", "HOME"}


def parse_user_env(
    env: Mapping[str, str], env_files: Mapping[str, str], pass_env: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Setting]:
    """The user's variables, later sources winning: files (name → text) in order, then `pass_env`, then `env`.

    Values from files and from this machine are treated as secrets: they are never shown. Raises `UsageError` with all
    problems at once.
    """
    problems: list[str] = []
    settings: dict[str, Setting] = {}
    for file, text in env_files.items():
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            name, equals, value = line.removeprefix("export ").partition("=")
            if not equals or not _is_settable(name.strip()):
                problems.append(f"{Origin(file, number)}: not a NAME=value line: {_escape_name(line)}")
                continue
            value = value.strip()
            quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
            value = value[1:-1] if quoted else value
            settings[name.strip()] = Setting(value, f"--env-file {file}", secret=True, by_user=True)
    for name in pass_env:
        if name in _NOT_PASSED or not _is_settable(name):
            problems.append(f"--pass-env {_escape_name(name)}: must not be passed on")
        elif name not in environ:
            problems.append(f"--pass-env {_escape_name(name)}: not set on this machine")
        else:
            settings[name] = Setting(environ[name], "--pass-env", secret=True, by_user=True)
    for name, value in env.items():
        if not _is_settable(name):
            why = "set by ipexctl" if name in _OURS else "not a valid variable name"
            problems.append(f"--env {_escape_name(name)}: {why}")
        elif "\0" in value:
            problems.append(f"--env {name}: a value cannot hold a NUL byte")
        else:
            settings[name] = Setting(value, "--env", by_user=True)
    if problems:
        raise UsageError("invalid variables for the ranks", reasons=problems)
    return settings


def _is_settable(name: str) -> bool:
    return bool(_NAME.match(name)) and name not in _OURS


def _escape_name(text: str) -> str:
    """Part of a line that may hold a secret: its beginning, escaped."""
    return text.partition("=")[0][:40].encode("unicode_escape").decode()
