"""A study in words: its result, and the playbook of the launch that it recommends."""

from math import exp

from ipexctl.decide.tune.knobs import list_given
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.tasks import Run
from ipexctl.model.text import pluralize

_MARK = "# Written by the command tune"
PAIRS = 2, 6  # A B, at least and at most
_ENOUGH = 4  # pairs that show how great a gain is


def describe_verdict(answer: TuneAnswer, *, exhausted: bool = False) -> str:
    """Returns the result of a study, as a sentence; ``exhausted``: no other launch was left to try."""
    if answer.best is None and len(answer.launches) > 1:
        return "no launch was clearly faster than the default"
    left = answer.budget - answer.seconds
    if answer.interrupted:
        why = "interrupted"
    elif any(row.why and row.name in ("default", answer.best) for row in answer.launches):
        why = "one of its runs, or of the default's, failed"
    elif left > 0:
        why = f"{left:.0f} s of the budget are left, too few for another pair of runs"
    else:
        why = "the budget ended"
    if answer.best is None and exhausted:
        return "there is no other launch to try"
    if answer.best is None:
        return f"no other launch was tried: {why}"
    value, low, high = (f"{(1 + answer.gain) * exp(error):.3g}" for error in (0.0, -answer.error, answer.error))
    gain = f"{value} times as fast ({low} to {high}) in {pluralize(answer.pairs, 'pair')} of runs in turn"
    if answer.recommended:
        doubt = "" if answer.pairs >= _ENOUGH else "; so few show that it is faster, and not by how much"
        return f"{answer.best}: {gain}{doubt}"
    if answer.pairs < PAIRS[0]:
        return f"best so far: {answer.best}, {value} times as fast, not confirmed: {why}"
    return f"the default is as good: the best other launch, {answer.best}, was {gain}"


def write_playbook(task: Run, verdict: str, when: str) -> str:
    """Returns the text of the playbook that starts a task; nothing in it is taken for a variable."""
    import yaml

    step = {"name": verdict[:200], "run": list_given(task)}
    book = {"name": f"{task.script} as tuned on {when}", "steps": [step]}
    text = yaml.safe_dump(book, sort_keys=False, allow_unicode=True, width=100)
    return f"{_MARK}\n{text.replace('${', '$${')}"


def is_tuned_playbook(text: str) -> bool:
    """Returns whether `write_playbook` wrote this."""
    return text.startswith(_MARK)
