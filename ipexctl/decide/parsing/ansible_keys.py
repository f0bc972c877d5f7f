"""Words of Ansible that a playbook of ours does not have, on purpose: what to write instead.

A playbook here is a list of steps that can be read from top to bottom: nothing is evaluated but `when`, nothing jumps,
and no step waits to be called. For what that leaves out, the error names the replacement instead of a spelling mistake.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_ONLY_IF_NEEDED = "every step does only what is not done yet: "
_LIST = "steps are not repeated: write one step for each, or pass the list to the script"
_NO_ROOT = "ipexctl needs no root: log in as the user who trains (user= in the hostfile)"
_NO_TREE = "a playbook is one file with steps in order: write the steps out, or play one file after the other"
_COMMAND = "command: {argv: [word, word]} runs one command on every host, without a shell"
_INSTALL = "install: {with: [package]} puts packages into the environment"
_SYNC = "sync: {source: directory} carries files, changed ones only"

STEP: Mapping[str, str] = {
    **dict.fromkeys(("handlers", "listen"), _ONLY_IF_NEEDED + "put the step below the one that would notify it"),
    "notify": _ONLY_IF_NEEDED + "put the step that would be notified below this one",
    "register": "steps hand nothing on: `when` looks at a host's facts, and --json has every answer",
    "set_fact": "steps hand nothing on: `when` looks at a host's facts, vars holds texts",
    **dict.fromkeys(("become", "become_user", "become_method"), _NO_ROOT),
    "remote_user": "the user stands in the hostfile: user@host or user=",
    "connection": "SSH is the only way; local=yes in the hostfile is this machine itself",
    **dict.fromkeys(("loop", "loop_control"), _LIST),
    **dict.fromkeys(
        ("until", "retries", "delay"),
        "nothing is tried again in a loop: run has restarts, connections have --connect-timeout",
    ),
    **dict.fromkeys(("block", "include_tasks", "import_tasks"), _NO_TREE),
    **dict.fromkeys(("rescue", "always"), "ignore_errors: true goes on after a step that failed"),
    **dict.fromkeys(("delegate_to", "run_once"), "limit: HOST chooses the hosts of a step"),
    "changed_when": "command has changes: false for a command that only looks",
    "failed_when": "a command fails by its exit status; ignore_errors: true goes on",
    "no_log": "secrets have no place in a playbook: run has env_file",
    "environment": "run has env, for the ranks",
    "vars": "vars stand at the top of the playbook",
    "hosts": "limit chooses a part of the hosts; hosts stand at the top of the playbook",
    **dict.fromkeys(("async", "poll"), "run has detach: true"),
    "throttle": "serial makes batches; --forks bounds how many hosts are worked on at once",
    "gather_facts": "facts are looked at where a step needs them",
    "debug": "--list-steps and --check show what would be done; doctor shows the facts",
    "fail": "doctor fails on hosts that are not fit",
    "assert": "doctor fails on hosts that are not fit; when chooses hosts by their facts",
    **dict.fromkeys(("shell", "raw"), _COMMAND),
    "script": "run: {script: FILE} starts a Python script on all hosts; " + _COMMAND,
    **dict.fromkeys(("copy", "synchronize", "file", "git"), _SYNC),
    "template": _SYNC + "; nothing is filled in",
    "pip": _INSTALL,
    **dict.fromkeys(("package", "apt", "dnf", "yum"), _INSTALL + "; packages of the system are not ours to install"),
}

PLAY: Mapping[str, str] = {
    **{key: STEP[key] for key in ("handlers", "become", "become_user", "become_method", "remote_user", "connection")},
    **{key: STEP[key] for key in ("gather_facts", "environment", "register", "block")},
    "tasks": "they are called steps here",
    **dict.fromkeys(("pre_tasks", "post_tasks"), "they are called steps here, and are done in their order"),
    **dict.fromkeys(("roles", "import_playbook", "collections"), _NO_TREE),
    "vars_files": "vars stand at the top of the playbook; --var NAME=value wins over them",
    "vars_prompt": "--var NAME=value gives a variable from outside",
    "serial": "serial stands at a step: a run needs all its hosts at once",
    "tags": "tags stand at a step",
    "when": "when stands at a step",
    "ignore_errors": "ignore_errors stands at a step",
    "limit": "limit stands at a step; --limit is for the whole play",
    "strategy": "every step is done on all hosts before the next one begins",
    "order": "hosts are taken in the order of the hostfile; the first is node0",
}


def suggest_replacement(word: str, of: Mapping[str, str], valid: Iterable[str]) -> str | None:
    """What to write instead of an Ansible word; None where it is none, or rather a slip of one of ours."""
    if word in of:
        return of[word]
    if word.startswith("with_") and not difflib.get_close_matches(word, list(valid), n=1, cutoff=0.8):
        return _LIST
    if word.startswith(("ansible.", "community.")):
        return (
            suggest_replacement(word.rpartition(".")[2], of, valid)
            or "modules of Ansible are not used: see docs/playbook.md"
        )
    return None
