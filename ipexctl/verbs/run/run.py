"""``ipexctl run``: probe the hosts, send the script, compute the launch, start it, watch it to its proved end.

The run belongs to its keeper on the head, which this command watches: Ctrl-C is an order, a closed terminal is not."""

from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.act.context import Context
from ipexctl.data import read_data
from ipexctl.model.answers.run import EmitAnswer, RunPlanAnswer
from ipexctl.model.errors import Exit
from ipexctl.model.events import Ended, Message, Planned, Workflow, finish_verb
from ipexctl.model.hosts import Inventory
from ipexctl.model.tasks import Run
from ipexctl.model.text import pluralize, printable
from ipexctl.verbs.common.nested import advise_without_share, run_nested
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.common.select import make_started
from ipexctl.verbs.run.request import RunRequest, read_request

if TYPE_CHECKING:
    from ipexctl.verbs.run.prepare import Prepared


def run(
    task: Run, inventory: Inventory, context: Context, *, dry: bool = False, emit: str | None = None
) -> Workflow[None]:
    """Starts a script on all hosts and watches it to its proved end. ``dry`` ends after the plan; ``emit`` instead
    answers with the launch written for another program, in ``text``. Raises `UsageError`, before the first event where
    this machine alone can tell that something is wrong."""
    request = read_request(task, context.environ, dry=dry, emit=emit)
    prepared = yield from prepare_run("run", request, inventory, context)
    if prepared is not None:
        yield from _launch(prepared, context)


def prepare_run(verb: str, request: RunRequest, inventory: Inventory, context: Context) -> Workflow["Prepared | None"]:
    """Begins the command ``verb``: probes the hosts and prepares what is asked for. None where that failed, which ends
    the command."""
    task = request.task
    context.masker.add_secrets(setting.value for setting in request.settings.values() if setting.secret)
    context.masker.add_words(task.args)
    started = make_started(verb, request.script.name or task.script, inventory, task.venv)
    if context.by_playbook:  # else the user's own words
        from ipexctl.model.run_words import list_run_words

        started = replace(started, words=tuple(list_run_words(task)))
    yield started
    facts, _ = yield from probe_hosts(inventory, context, venv=task.venv, meanwhile=_load_what_follows)
    from ipexctl.verbs.run.prepare import prepare_launch

    preparing = prepare_launch(request, inventory, facts, context)
    if verb != "run":
        preparing = run_nested(preparing, lambda _: True, advise_without_share)
    prepared = yield from preparing
    if prepared is None:
        yield Ended(verb, Exit.OK)  # the failures are events already
    return prepared


def _load_what_follows() -> None:
    import ipexctl.verbs.run.prepare  # noqa: F401
    from ipexctl.act.agent import compute_agent_id

    compute_agent_id()


def _launch(prepared: "Prepared", context: Context) -> Workflow[None]:
    from ipexctl.verbs.run.prepare import make_attempt

    request = prepared.request
    attempt = make_attempt(prepared, context)
    launch = attempt.launch
    if request.emit:
        from ipexctl.decide.launch.emit import write_launch

        text = write_launch(launch, request.emit, read_data("emit.j2"))
        yield from finish_verb("run", EmitAnswer(text, launch.public()))
        return
    yield Planned("run", str(launch), launch.public())
    for warning in launch.warnings:
        yield Message(str(warning), "warning", code=warning.code)
    task, option = request.task, " ".join(request.resume[:1])
    if task.keep and not request.dry:
        text = f"checkpoints in {printable(task.keep, 200)} go to {pluralize(task.keep_copies, 'other host')}"
        given = f"; --resume auto gives the script {option}" if option and task.resume == "off" else ""
        yield Message(f"{text}{given}", code="keep")
    if request.dry:
        from ipexctl.decide.launch.tuning import name_wins

        yield from name_wins(read_data("tuning.toml"), prepared.facts, task)
        yield from finish_verb("run", RunPlanAnswer(str(launch), launch.public()))
        return
    detached = yield from attempt.execute()
    yield from attempt.watcher.report_end("run", detached)
