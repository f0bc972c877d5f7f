"""A study in words: its result, and the playbook of the launch that it recommends."""

from math import exp

from ipexctl.decide.tune.knobs import list_given
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.tasks import Run
from ipexctl.model.text import pluralize

_MARK = "# Written by the command tune"
_ENOUGH = 4  # pairs that show how great a gain is


def describe_verdict(answer: TuneAnswer) -> str:
    """Returns the result of a study, as a sentence."""
    if answer.best is None and len(answer.launches) > 1:
        return "no launch was faster than the default"
    why = "interrupted" if answer.interrupted else "the budget ended"
    if answer.best is None:
        return f"no other launch was tried: {why}"
    value, low, high = (f"{(1 + answer.gain) * exp(error):.3g}" for error in (0.0, -answer.error, answer.error))
    gain = f"{value} times as fast ({low} to {high}) in {pluralize(answer.pairs, 'pair')} of runs in turn"
    if answer.recommended:
        doubt = "" if answer.pairs >= _ENOUGH else "; so few show that it is faster, and not by how much"
        return f"{answer.best}: {gain}{doubt}"
    if answer.pairs < 2:
        return f"best so far: {answer.best}, {value} times as fast; {why} before it was confirmed"
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
