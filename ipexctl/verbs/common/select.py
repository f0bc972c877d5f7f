"""Selecting the hosts of a command. Never falls back to this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ipexctl.act.inputs import expand_home, is_writable_by_all, read_input, read_variable_files
from ipexctl.decide import parsing
from ipexctl.decide.parsing import validators
from ipexctl.decide.parsing.dialects import write_list_entry
from ipexctl.decide.parsing.host_patterns import FAILED
from ipexctl.decide.parsing.schedulers import find_node_file
from ipexctl.model.errors import Hint, UsageError, advise, complete_hint
from ipexctl.model.events import Started
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.text import join_names, printable

_LOOKED_BACK = 20  # saved commands
LAB_HOSTFILE = "lab/hostfile"  # in the state directory, while a lab is up
_ABOUT_RUNS = {"ps", "attach", "logs", "stop", "reap"}  # not counted as the last command that worked on hosts


def select_hosts(
    *,
    hostfile: str | None,
    hosts: str | None,
    limit: str | None,
    environ: Mapping[str, str],
    cwd: Path,
    runs: Path | None = None,
    words: Sequence[str] = ("doctor",),
) -> Inventory:
    """Returns the hosts of ``--hosts``, else ``--hostfile``, else ``IPEXCTL_HOSTFILE``, else ``./hostfile``; then
    ``--limit``. ``--hosts slurm``, ``pbs`` and ``lsf`` are the allocation of ``environ``. Identity files and
    known_hosts written as relative paths are relative to the hostfile. ``runs`` holds the saved runs, for ``--limit
    @failed``; ``words`` are the user's, for a hint. Raises `UsageError`; ``.warnings`` holds what should be reported
    although it is no error."""
    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile exclude each other: give one of them")
    variable = environ.get("IPEXCTL_HOSTFILE")
    if hosts is not None:
        inventory = resolve_paths(_read_hosts(hosts, environ, cwd), cwd)
    elif hostfile is not None or variable:
        path = variable or "" if hostfile is None else hostfile
        hint: str | None = "IPEXCTL_HOSTFILE names this file" if hostfile is None else None
        if runs and runs.parent / LAB_HOSTFILE == cwd / path:
            hint = advise("lab", "up")
        inventory = read_hostfile(path, cwd=cwd, hint=hint)
    else:
        inventory = _read_default_hostfile(cwd, runs, words)
    _check_lab(inventory, runs)
    return inventory if limit is None else limit_hosts(inventory, limit, runs)


def _check_lab(inventory: Inventory, runs: Path | None) -> None:
    """Raises `UsageError` for hosts of this user's lab that is down, or has other ports since it was started again."""
    directory = runs.parent / "lab" if runs else Path()
    key = str(directory / "id_ed25519")
    ports = {host.name: host.port for host in inventory if host.vars.get("lab") and host.key == key}
    if not ports:
        return
    from ipexctl.act.lab import find_dead_hosts, load_lab

    lab = load_lab(directory)
    if lab is None or find_dead_hosts(lab) == [*lab.names]:
        raise UsageError("the lab of this hostfile is down", hint=advise("lab", "up"))
    if not ports.items() <= {server.name: server.port for server in lab.servers}.items():
        what = f"{printable(inventory.source)} is of an earlier start of the lab, which has other ports now"
        raise UsageError(what, hint=shlex.join(["cp", str(lab.path("hostfile")), inventory.source]))


def _read_hosts(hosts: str, environ: Mapping[str, str], cwd: Path) -> Inventory:
    scheduler = hosts.strip()
    if scheduler not in parsing.SCHEDULERS:
        return _read_host_list(hosts, cwd)
    nodefile = find_node_file(scheduler, environ)
    text = read_input(nodefile, cwd=cwd).text if nodefile else ""
    return parsing.parse_allocation(scheduler, environ, text)


def _read_host_list(hosts: str, cwd: Path) -> Inventory:
    """The hosts of a list; a hostfile in its place is refused, or warned of where a host may have the same name."""
    if not os.path.isfile(cwd / hosts):  # noqa: PTH113  # false also for a name that no file can have
        return parsing.parse_list(hosts)
    what = f"--hosts takes names; {printable(hosts, 300)} is a file here, which -f takes"
    if "/" in hosts:
        raise UsageError(what, meant=("--hosts", "--hostfile"))
    inventory = parsing.parse_list(hosts)
    return replace(inventory, warnings=(*inventory.warnings, what))


def limit_hosts(inventory: Inventory, limit: str, runs: Path | None) -> Inventory:
    """Returns the hosts that ``--limit`` chooses; ``@failed`` in it stands for those that failed in the last saved
    command. Raises `UsageError`."""
    if FAILED not in limit:
        return parsing.limit_inventory(inventory, limit)
    command, failed = _find_last_failed_hosts(runs) if runs else ("", ())
    known = [name for name in failed if name in inventory.names]
    if not command:
        raise UsageError(f"--limit {FAILED}: no command of ipexctl is saved yet")
    if not failed:
        raise UsageError(f"--limit {FAILED}: no host failed in the last command, {command}")
    if not known:
        names, source = join_names(failed, 8), printable(inventory.source)
        raise UsageError(f"--limit {FAILED}: {names}, which failed in {command}, are not among the hosts of {source}")
    return parsing.limit_inventory(inventory, limit.replace(FAILED, ",".join(known)))


def _find_last_failed_hosts(runs: Path) -> tuple[str, tuple[str, ...]]:
    """Returns the last saved command that worked on hosts itself, and the hosts that failed in it."""
    from ipexctl.store.record import list_saved_runs, read_name, read_report

    for directory in reversed(list_saved_runs(runs)):
        report = read_report(directory)  # None: it goes on, or is damaged
        if report is None or report.verb in _ABOUT_RUNS:
            continue
        ranks = report.run.ranks if report.run else ()
        lost = {rank.host for rank in ranks if rank.state in ("failed", "lost")}
        if report.hosts:
            return read_name(directory), tuple(host.host for host in report.hosts if not host.good or host.host in lost)
    return "", ()


def _repeat_with_hosts(words: Sequence[str], flags: Sequence[str]) -> Hint | None:
    """The hint to type the command again with the options of the last one; None where it takes none of them."""
    text = "name a file (-f HOSTFILE), or the hosts; those of the last command:"
    hint = complete_hint(advise(*words, text=text), flags)
    if words[0] in ("hosts", "play"):  # `complete_hint` leaves the hosts of these to the playbook
        pairs = zip(flags[::2], flags[1::2], strict=False)
        hint = Hint([*words, *(word for pair in pairs if pair[0] != "--venv" for word in pair)], text)
    return None if [*hint.words] == [*words] else hint


def _find_last_flags(runs: Path, cwd: Path) -> Sequence[str]:
    """The options that choose the hosts of the last command that is saved; none of a hostfile that is gone."""
    from ipexctl.store.record import list_saved_runs, read_selection_flags

    for directory in [*reversed(list_saved_runs(runs))][:_LOOKED_BACK]:
        flags = read_selection_flags(directory)
        if flags[1:] and (flags[0] != "-f" or (cwd / flags[1]).is_file()):
            return flags
    return ()


def suggest_limit(hosts: Sequence[str]) -> str:
    """Returns the option that leaves these hosts out of the same command."""
    if len(hosts) > 4:
        return f"without {join_names(hosts, 4)}: --limit '!NAME,!NAME'"
    return f"without {', '.join(hosts)}: --limit '{','.join(f'!{name}' for name in hosts)}'"


def list_flags(inventory: Inventory, venv: str | None) -> tuple[str, ...]:
    """The options by which another command finds these hosts and their environment, where they are not the defaults."""
    source = inventory.source
    if source == "--hosts":
        words = {"--hosts": ",".join(map(write_list_entry, inventory))}
    else:
        words = {"--hosts" if source in parsing.SCHEDULERS else "-f": source, "--limit": inventory.limit}
    pairs = {**words, "--venv": venv}.items()
    return tuple(word for name, value in pairs if value and value != "hostfile" for word in (name, value))


def make_started(verb: str, title: str, inventory: Inventory, venv: str | None = None) -> Started:
    """Returns the first event of a verb that works on these hosts. Raises `UsageError` for a wrong ``--venv``."""
    if venv and (why := validators.environment(venv)):
        env = validators.strip_program(venv)
        raise UsageError(f"--venv {printable(venv, 300)}: {why}", meant=(venv, env) if env else None)
    return Started(verb, title, inventory.names, selection_flags=list_flags(inventory, venv))


def read_hostfile(path: str, *, cwd: Path, hint: str | None = None) -> Inventory:
    """Returns the hosts of one hostfile or inventory, with the variables of ``group_vars/`` and ``host_vars/`` beside
    it. Raises `UsageError`."""
    if path and (cwd / path).is_dir():
        files = [file.name for file in sorted((cwd / path).iterdir()) if file.is_file() and file.name[:1] != "."]
        hint = f"name the file: -f {shlex.quote(printable(str(Path(path, files[0])), 300))}" if files else hint
        raise UsageError(f"{printable(path, 300)} is a directory", hint=hint)
    if path == "-" or (cwd / path).is_fifo():
        hint = "write the list of hosts into a file: later commands read it again"
        raise UsageError(f"{printable(path, 300)} is not a regular file", hint=hint)
    file = read_input(path, cwd=cwd, hint=hint)
    inventory = parsing.parse_inventory(file.text, path)
    groups = dict.fromkeys(("all", "ungrouped", *(group for host in inventory for group in host.groups)))
    warnings = list(file.warnings)
    variables = []
    for kind, names in (("group", [*groups]), ("host", inventory.names)):
        for name, place, found in read_variable_files(Path(path).parent / f"{kind}_vars", names, cwd):
            variables.append(parsing.VariableFile(kind, name, place, found.text))
            warnings += found.warnings
    if variables:
        inventory = parsing.parse_inventory(file.text, path, variables)
    inventory = resolve_paths(inventory, file.path.parent)
    return replace(inventory, warnings=(*inventory.warnings, *dict.fromkeys(warnings)))


def _read_default_hostfile(cwd: Path, runs: Path | None, words: Sequence[str]) -> Inventory:
    """``./hostfile``, unless every user of this machine could have put it there."""
    if not os.path.lexists(cwd / "hostfile"):
        reasons = ["looked at --hosts, --hostfile, IPEXCTL_HOSTFILE and ./hostfile"]
        hint = advise("doctor", "--hosts", "node0,node1", text="name a file (-f HOSTFILE), or the hosts, such as:")
        if runs and (lab := runs.parent / LAB_HOSTFILE).is_file():
            again = [words[0], "-f", str(lab), *words[1:]]
            hint = advise(*again, text="name a file (-f HOSTFILE), or the hosts; a lab is up:")
        elif runs:
            hint = _repeat_with_hosts(words, _find_last_flags(runs, cwd)) or hint
        raise UsageError("no hosts were given", reasons=reasons, hint=hint, code="no-hosts")
    if is_writable_by_all(cwd):
        reasons = ["./hostfile is ignored: everyone can write to the directory it lies in"]
        raise UsageError("no hosts were given", reasons=reasons, hint="name it, if it is yours: -f hostfile")
    return read_hostfile("hostfile", cwd=cwd)


def resolve_paths(inventory: Inventory, directory: Path) -> Inventory:
    """Makes relative paths of files on this machine absolute; ``~`` is expanded by those who open the file. Raises
    `UsageError` for one in the home of a user that does not exist."""

    def resolve(path: str, host: Host) -> str:
        if path.startswith("~"):
            expand_home(path, str(host.origin or host.name))
        return path if path.startswith(("/", "~")) else str(directory.absolute() / path)

    def resolve_host(host: Host) -> Host:
        variables = {key: resolve(value, host) if key == "known_hosts" else value for key, value in host.vars.items()}
        return replace(host, key=resolve(host.key, host) if host.key else None, vars=variables)

    return replace(inventory, hosts=tuple(map(resolve_host, inventory)))
