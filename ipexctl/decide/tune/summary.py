"""A study in words: its result, and the playbook of the launch that it recommends."""

from math import exp

from ipexctl.decide.tune.knobs import list_given
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.tasks import Run
from ipexctl.model.text import pluralize

MARK = "# Written by the command tune"
_ENOUGH = 4  # pairs that show how great a gain is
_GREAT = 2.0  # times as fast, from where on nobody thinks in percent


def describe_verdict(answer: TuneAnswer) -> str:
    """Returns the result of a study, as a sentence."""
    pairs = f"in {pluralize(answer.pairs, 'pair')} of runs in turn"
    gain = _describe_gain(answer)
    if answer.best is None and len(answer.launches) > 1:
        return "no launch was faster than the default"
    if answer.best is None:
        return f"no other launch was tried: {'interrupted' if answer.interrupted else 'the budget ended before'}"
    if answer.recommended:
        doubt = "" if answer.pairs >= _ENOUGH else "; so few show that it is faster, and not by how much"
        return f"{answer.best}: {gain} against the default {pairs}{doubt}"
    if answer.pairs < 2:
        why = "interrupted" if answer.interrupted else "the budget ended"
        return f"best so far: {answer.best}, {100 * answer.gain:+.1f} %; {why} before it was confirmed"
    return f"the default is as good: the best other launch, {answer.best}, had {gain} {pairs}"


def _describe_gain(answer: TuneAnswer) -> str:
    """``+31.0 % (+27.1 to +35.0 %)``; a great gain as a factor."""
    value, low, high = ((1 + answer.gain) * exp(error) for error in (0.0, -answer.error, answer.error))
    if high < _GREAT:
        return f"{100 * (value - 1):+.1f} % ({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)"
    return f"{value:.3g} times as fast ({low:.2g} to {high:.2g} times)"


def write_playbook(task: Run, verdict: str, when: str) -> str:
    """Returns the text of the playbook that starts a task; nothing in it is taken for a variable."""
    import yaml

    step = {"name": verdict[:200], "run": list_given(task)}
    book = {"name": f"{task.script} as tuned on {when}", "steps": [step]}
    text = yaml.safe_dump(book, sort_keys=False, allow_unicode=True, width=100)
    return f"{MARK}\n{text.replace('${', '$${')}"
