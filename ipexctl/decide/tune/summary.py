"""A study in words: what its answer says, and the playbook of the launch that it recommends."""

from math import exp

from ipexctl.decide.tune.knobs import list_given, list_run_words
from ipexctl.decide.tune.study import Study, Verdict
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.hints import Hint
from ipexctl.model.tasks import Run
from ipexctl.model.text import pluralize

MARK = "# Written by the command tune"
_ENOUGH = 4  # pairs that show how great a gain is
_GREAT = 2.0  # times as fast, from where on nobody thinks in percent
_UNITS = {"pace": "steps/s", "samples_s": "samples/s", "tokens_s": "tokens/s"}


def summarize_study(study: Study, task: Run, tuned: Run, *, interrupted: bool) -> TuneAnswer:
    """Returns the answer of a study of ``task`` whose best launch is ``tuned``."""
    verdict, ranking = study.judge(), study.ranking
    rows = ranking.list_launches()
    words = Hint(list_run_words(tuned)) if verdict.recommended else None
    unit = _UNITS.get(ranking.metric, ranking.metric)
    return TuneAnswer(
        task.script, unit, rows, verdict.best.name if verdict.best else None, verdict.pairs, verdict.gain,
        verdict.error, verdict.recommended, describe_verdict(verdict, len(rows) > 1, interrupted=interrupted),
        len(study.tried), study.watch(), study.started.budget, interrupted, next=words,
    )  # fmt: skip


def describe_verdict(verdict: Verdict, others: bool, *, interrupted: bool) -> str:
    """Returns what a study found, as a sentence; ``others``: not only the default was tried."""
    pairs = f"in {pluralize(verdict.pairs, 'pair')} of runs in turn"
    gain = _describe_gain(verdict)
    if verdict.best is None:
        return (
            "no launch was faster than the default" if others else "no other launch was tried: the budget ended before"
        )
    name = verdict.best.name
    if verdict.recommended:
        doubt = "" if verdict.pairs >= _ENOUGH else "; so few show that it is faster, and not by how much"
        return f"{name}: {gain} against the default {pairs}{doubt}"
    if verdict.pairs < 2:
        why = "interrupted" if interrupted else "the budget ended"
        return f"best so far: {name}, {100 * verdict.gain:+.1f} %; {why} before it was confirmed"
    return f"the default is as good: the best other launch, {name}, had {gain} {pairs}"


def _describe_gain(verdict: Verdict) -> str:
    """``+31.0 % (+27.1 to +35.0 %)``; a great gain as a factor."""
    value, low, high = ((1 + verdict.gain) * exp(error) for error in (0.0, -verdict.error, verdict.error))
    if high < _GREAT:
        return f"{100 * (value - 1):+.1f} % ({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)"
    return f"{value:.3g} times as fast ({low:.2g} to {high:.2g} times)"


def build_playbook(task: Run, verdict: str, when: str) -> dict[str, object]:
    """Returns the playbook that starts a task, as a value for YAML."""
    words = {name: _escape(value) for name, value in list_given(task).items()}
    return {"name": f"{task.script} as tuned on {when}", "steps": [{"name": verdict[:200], "run": words}]}


def _escape(value: object) -> object:
    """The value with no word that a playbook would take for a variable."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, list):
        return [_escape(each) for each in value]
    return {key: _escape(each) for key, each in value.items()} if isinstance(value, dict) else value
