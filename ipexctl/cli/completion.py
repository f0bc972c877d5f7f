"""What a shell offers when Tab is pressed: words that files here know. Contacts nobody, and never says an error."""

import os
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

import typer


def complete_hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Hosts and groups of the hostfile the command names, for the last piece of a list."""
    before, comma, last = incomplete.rpartition(",")
    sign = last[:1] if last[:1] in ("!", "&") else ""
    names = _select_matching((*_list_hosts(ctx), "@failed"), last.removeprefix(sign))
    return [before + comma + sign + name for name in names]


def complete_saved_runs(incomplete: str) -> list[str]:
    """Returns names of saved runs, the newest first."""
    from ipexctl.loop import get_state_directory
    from ipexctl.store.record import list_saved_runs, read_name

    newest = reversed(list_saved_runs(get_state_directory() / "runs"))
    return _select_matching(("last", *map(read_name, newest)), incomplete)


def complete_examples(incomplete: str) -> list[str]:
    """Returns names of the playbooks and examples that come with ipexctl."""
    from ipexctl.act.bundled_files import list_bundled_files

    examples = (path.name for path in list_bundled_files("examples"))
    return _select_matching((*_list_bundled_playbooks(), *examples), incomplete)


def complete_playbooks(incomplete: str) -> list[str]:
    """Playbooks of this directory, and the names of those that come with ipexctl."""
    local = (path.name for pattern in ("*.yaml", "*.yml") for path in sorted(Path.cwd().glob(pattern)))
    return _select_matching((*local, *_list_bundled_playbooks(), "lint"), incomplete)


def _list_bundled_playbooks() -> list[str]:
    from ipexctl.act.bundled_files import list_bundled_files

    return [path.stem for path in list_bundled_files("playbooks")]


def _select_matching(words: Iterable[str], incomplete: str) -> list[str]:
    """Only words that no shell reads as more than a word: a file of a repository may be called ``$(reboot).yaml``."""
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete) and quote(word) == word]


def _list_hosts(ctx: typer.Context) -> list[str]:
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.common.select import select_hosts

    hostfile, hosts = (ctx.params.get(name) for name in ("hostfile", "hosts"))
    try:
        inventory = select_hosts(hostfile=hostfile, hosts=hosts, limit=None, environ=os.environ, cwd=Path.cwd())
    except UsageError:
        return []
    return [*inventory.names, *dict.fromkeys(group for host in inventory for group in host.groups)]
