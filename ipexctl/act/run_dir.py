"""A run's directory on a host: made before the run, removed after it."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace

from ipexctl.act import agent
from ipexctl.act.bundled_files import read_script
from ipexctl.act.transfer import send
from ipexctl.model.hosts import Command, Host, Link
from ipexctl.model.json_values import Record
from ipexctl.protocol import paths, run_spec
from ipexctl.protocol.paths import AGENT, AGENTS, HOOKS, PART, PIPES, ROLE, SHIM, SPEC, STDIN
from ipexctl.store.record import PLAIN_NAME

_MODES = {SHIM: 0o700, ROLE: 0o700}

# Starts the interpreter $p so that nothing in the account's files or variables can influence it; the host's own where
# $p is gone, because its environment was removed after the run, or where others may have put something else there.
START_PYTHON = f"""{read_script("ownership.sh")}[ -x "$p" ] && check_interpreter "$p" || p=python3
exec "$p" -E -s -S"""


def build_agent_command(
    directory: str, role: str, *words: str, env: Mapping[str, str] = {}, timeout: float = 20.0
) -> Command:
    """Returns what executes the agent of the run in ``directory``, unless others can have put another one there."""
    script = read_script("ownership.sh") + read_script("run_agent.sh")
    return Command((f"{directory}/{ROLE}", role, *words), script, env=env, timeout=timeout, cwd="/", brief=True)


def is_run_dir(directory: str, run: str) -> bool:
    """Returns whether a path that a host names can be that of a run's directory: it is executed, and removed."""
    home, _, name = directory.partition(f"/{paths.RUNS}/")
    plain = PLAIN_NAME.fullmatch(run) is not None and not run.startswith("-")
    inside = directory.startswith("/") and not {"..", "\0"} & {*home.split("/"), *home}
    return plain and inside and re.fullmatch(rf"{re.escape(run)}-h[0-9]{{1,6}}", name) is not None


class RemoteRunDir(Record):
    """A run's place on one host."""

    host: Host
    directory: str
    python: str

    def build_command(self, role: str, *words: str, timeout: float = 30.0, run: str = "") -> Command:
        env = {paths.RUN_ENV: run} if run else {}
        return build_agent_command(self.directory, role, *words, env=env, timeout=timeout)

    def wrap_agent(self) -> bytes:
        """Returns the agent as a program."""
        agent = shlex.quote(f"{self.directory}/{AGENT}")
        return f'#!/bin/sh\np={shlex.quote(self.python)}; {START_PYTHON} {agent} "$@"\n'.encode()

    def build_shim(self) -> bytes:
        """Returns the program that the launcher calls in place of ssh."""
        pipes = shlex.quote(f"{self.directory}/{PIPES}")
        return f"#!/bin/sh\npipes={pipes}\n{read_script('shim.sh')}".encode()


def create_run_dir(link: Link, site: RemoteRunDir, spec: run_spec.RunSpec, stdin: bytes = b"") -> None:
    """Creates the run's directory: specification (0600: ranks' environment), agent, shim, hooks, rank 0's ``stdin``.
    Raises `LinkError` when the host cannot be reached or the directory cannot be made safely."""
    files = {SPEC: run_spec.encode_spec(spec), ROLE: site.wrap_agent(), SHIM: site.build_shim()}
    files |= {STDIN: stdin} if stdin and (0 in spec.ranks or spec.reserve) else {}
    hooks = agent.read_hooks(profile=bool(spec.profile))
    tree = b"".join(
        (
            send.build_tar_directory("tree"),
            *(send.build_tar_file(f"tree/{name}", data, _MODES.get(name, 0o600)) for name, data in files.items()),
            send.build_tar_directory(f"tree/{HOOKS}"),
            *(send.build_tar_file(f"tree/{HOOKS}/{name}", data, 0o600) for name, data in hooks.items()),
        )
    )
    if not _run_script(link, site, tree):
        _run_script(link, site, tree + send.build_tar_file("agent", agent.build_archive(), 0o600))


def _run_script(link: Link, site: RemoteRunDir, tree: bytes) -> bool:
    """False where nothing was made, because the host has not had this agent and the stream lacks it."""
    number = agent.compute_agent_id()
    words, stdin = (site.directory, AGENTS, number, AGENT, PART), tree + send.TREE_END
    done = link.run(send.build_script_command("make_run_dir.sh", *words, begins="ownership.sh", stdin=stdin))
    if not done.ok:
        raise send.make_remote_error(link, done.status, done.err)
    return done.text.strip() != number


def remove_run_dir(link: Link, site: RemoteRunDir) -> bool:
    """Takes the run's directory away (only one that holds a run's specification or agent, or what was to become them);
    a guard that writes its last word there meanwhile is waited for. False where it stays, as something is mounted there
    or cannot be removed."""
    words = (site.directory, SPEC, ROLE, AGENT, PART)
    command = send.build_script_command("remove_run.sh", *words, begins="target_directory.sh")
    return link.run(replace(command, timeout=30.0)).ok
