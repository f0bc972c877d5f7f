"""The step ``command``, and ``exec``: one command on every host, its output host by host."""

import shlex
from collections.abc import Callable
from dataclasses import replace

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.decide.releases.env_health import DEFAULT_VENV
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.answers.play import CommandAnswer, CommandOutput, FailedCommand
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Planned, StepOutcome, Workflow, finish_verb
from ipexctl.model.hosts import Command, Completed, Host, Inventory, Link
from ipexctl.model.tasks import Execute
from ipexctl.model.text import pluralize
from ipexctl.verbs.common.select import make_started

# What the host itself does not have, a person expects in the environment; and what a shell has, as over ssh: ulimit.
_FIND_IN_ENV = 'case $e in /*) ;; *) e=$HOME/${e#"~/"} ;; esac; PATH=$PATH:$e/bin; export PATH; "$0" "$@"'


def execute(
    task: Execute,
    inventory: Inventory,
    context: Context,
    *,
    dry: bool = False,
    verb: str = "command",
    prepare: Callable[[Host, Command], Command] = lambda _, command: command,
) -> Workflow[None]:
    """Runs the command on every host, without a shell, as ``prepare`` makes it for that host; a status other than 0 is
    a failure of the host."""
    context.masker.add_words(task.argv)  # a playbook's
    command = Command(task.argv, timeout=task.timeout)
    yield make_started(verb, str(command), inventory)
    plan = f"on {pluralize(len(inventory), 'host')}: {command}"
    yield Planned(verb, plan)
    if dry:
        yield from finish_verb(verb, DryRun(plan))
        return
    completed: dict[str, Completed] = {}

    def run_command(link: Link, _: Emit) -> Completed | Failure:
        result = completed[link.host.name] = link.run(prepare(link.host, command))
        last = result.get_tail(1)
        what = f"{task.argv[0]} ended with status {result.status}{f': {last}' if last else ''}"
        return result if result.ok else Failure(link.host.name, Kind.STEP, what)

    def describe(result: Completed) -> tuple[StepOutcome, str]:
        return "changed" if task.changes else "ok", pluralize(len(result.out), "byte") + (
            ", cut" if result.truncated else ""
        )

    _, failures = yield from run_on_hosts(context, inventory, "command", run_command, outcome=describe)
    answers = tuple(
        _describe_output(host, completed[host]) if host in completed else FailedCommand(host, failures[host].what)
        for host in inventory.names
    )
    yield from finish_verb(verb, CommandAnswer(answers))


def search_environment(host: Host, command: Command) -> Command:
    """Returns a command that also finds the programs of the host's environment, behind those of the host."""
    return replace(command, script=f"e={shlex.quote(host.vars.get('venv', DEFAULT_VENV))}; {_FIND_IN_ENV}")


def _describe_output(host: str, result: Completed) -> CommandOutput:
    out, err = result.text, result.err.decode("utf-8", "replace")
    return CommandOutput(host, result.status, out, err, True if result.truncated else None)
