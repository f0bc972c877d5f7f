"""What a shell offers when Tab is pressed: words that files here know. Contacts nobody, and never says an error."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import typer

_RECENT = 20  # saved runs that are looked into


def limit(ctx: typer.Context, incomplete: str) -> list[str]:
    """Hosts and groups of the hostfile the command names, for the last piece of a list."""
    before, comma, last = incomplete.rpartition(",")
    sign = last[:1] if last[:1] in ("!", "&") else ""
    names = [*_hosts(ctx), "@failed"]
    return [before + comma + sign + name for name in names if name.startswith(last.removeprefix(sign))]


def saved(incomplete: str) -> list[str]:
    """Names of saved runs, the newest first."""
    return [name for name in ("last", *(path.name for path in _saved())) if name.startswith(incomplete)]


def run(incomplete: str) -> list[str]:
    """Ids of runs that were started from here lately."""
    from ipexctl.verbs.run.replay import read_run_id

    found = (read_run_id(path) for path in _saved()[:_RECENT])
    return [name for name in dict.fromkeys(found) if name and name.startswith(incomplete)]


def step(incomplete: str) -> list[str]:
    """Names of the playbook's steps."""
    return _begun((name for name, _ in _steps()), incomplete)


def tag(incomplete: str) -> list[str]:
    """Tags of the playbook's steps."""
    return _begun((tag for _, tags in _steps() for tag in tags), incomplete)


def _begun(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def _hosts(ctx: typer.Context) -> list[str]:
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.common.select import select_hosts

    try:
        found = select_hosts(
            hostfile=ctx.params.get("hostfile"),
            hosts=ctx.params.get("hosts"),
            limit=None,
            environ=os.environ,
            cwd=Path.cwd(),
        )
    except UsageError:
        return []
    return [*found.names, *dict.fromkeys(group for host in found for group in host.groups)]


def _steps() -> list[tuple[str, tuple[str, ...]]]:
    """Title and tags of each step; of a playbook that still has errors, none."""
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.common.select import read_playbook

    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""  # bash; the other shells
    file = next((word for word in line.split() if word.endswith((".yaml", ".yml"))), None)
    if file is None:
        return []
    try:
        play = read_playbook(file, environ=os.environ, cwd=Path.cwd())
    except UsageError:
        return []
    return [(each.title, each.tags) for each in play.steps]


def _saved() -> list[Path]:
    from ipexctl.loop import state_directory
    from ipexctl.show.record import saved as every

    return every(state_directory() / "runs")[::-1]
