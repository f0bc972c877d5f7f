"""A study in words and rows: what its answer says, and the playbook of the launch that it recommends."""

from math import exp
from statistics import fmean, median

from ipexctl.decide.tune.knobs import list_given, list_run_words
from ipexctl.decide.tune.study import Study, Verdict
from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.events import CandidateTried, describe_values
from ipexctl.model.hints import Hint
from ipexctl.model.tasks import Run
from ipexctl.model.text import pluralize

MARK = "# Written by the command tune"
_ENOUGH = 4  # pairs that show how great a gain is
_GREAT = 2.0  # times as fast, from where on nobody thinks in percent
_UNITS = {"pace": "steps/s", "samples_s": "samples/s", "tokens_s": "tokens/s"}


def summarize_study(
    study: Study, task: Run, tuned: Run, seconds: float, budget: float, *, interrupted: bool
) -> TuneAnswer:
    """Returns the answer of a study of ``task`` whose best launch is ``tuned``."""
    verdict = study.judge()
    groups: dict[str, list[CandidateTried]] = {}
    for tried in study.tried:
        groups.setdefault(tried.launch if tried.values else "", []).append(tried)
    rows = [_summarize_launch(study, runs) for runs in groups.values()]
    rows.sort(key=lambda row: (row.dropped, -(row.ratio or 0.0)))
    best = describe_values(verdict.values) if verdict.values else None
    words = Hint(list_run_words(tuned)) if verdict.recommended else None
    unit = _UNITS.get(study.metric, study.metric)
    return TuneAnswer(
        task.script, unit, tuple(rows), best, len(verdict.pairs), verdict.gain,
        verdict.error, verdict.recommended, describe_verdict(verdict, len(rows) > 1, interrupted=interrupted),
        len(study.tried), seconds, budget, interrupted, next=words,
    )  # fmt: skip


def _summarize_launch(study: Study, runs: list[CandidateTried]) -> TriedLaunch:
    first, good = runs[0], [each for each in runs if each.outcome != "failed"]
    scored = [(each, exp(score)) for each in good if (score := study.compare(each)) is not None]
    rates = [each.rates[study.metric] for each, _ in scored]
    ratios = [ratio for _, ratio in scored]
    if len(scored) == 1:
        each, ratio = scored[0]
        ratios += [ratio * edge / rates[0] for edge in (each.low, each.high) if edge]
    return TriedLaunch(
        describe_values(first.values), first.values, len(runs), median(rates) if rates else None,
        fmean(ratio for _, ratio in scored) if scored else None, min(ratios, default=None), max(ratios, default=None),
        all(each.outcome == "dropped" for each in runs), next((each.why for each in runs if each.why), ""),
        first.changes,
    )  # fmt: skip


def describe_verdict(verdict: Verdict, others: bool, *, interrupted: bool) -> str:
    """Returns what a study found, as a sentence; ``others``: not only the default was tried."""
    pairs = f"in {pluralize(len(verdict.pairs), 'pair')} of runs in turn"
    gain = _describe_gain(verdict)
    if verdict.recommended:
        doubt = "" if len(verdict.pairs) >= _ENOUGH else "; so few show that it is faster, and not by how much"
        return f"{describe_values(verdict.values)}: {gain} against the default {pairs}{doubt}"
    if not verdict.values:
        return (
            "no launch was faster than the default" if others else "no other launch was tried: the budget ended before"
        )
    if len(verdict.pairs) < 2:
        why = "interrupted" if interrupted else "the budget ended"
        best = f"{describe_values(verdict.values)}, {100 * verdict.gain:+.1f} %"
        return f"best so far: {best}; {why} before it was confirmed"
    return f"the default is as good: the best other launch, {describe_values(verdict.values)}, had {gain} {pairs}"


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
