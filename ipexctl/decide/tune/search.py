"""Which launch is tried next. Optuna proposes (ask and tell) and drops what is out of the race (successive halving)."""

from collections.abc import Mapping, Sequence
from typing import Any

from ipexctl.model.errors import UsageError
from ipexctl.model.events import Value, Values

_RANDOM = 10  # launches before the sampler has a model


class OptunaSearch:
    """A seeded study of Optuna over ``knobs``, each with its values beside the default's. ``first`` are tried first;
    ``steps`` is what a whole trial measures. Raises `UsageError` where Optuna is not installed."""

    def __init__(self, knobs: Mapping[str, Sequence[Value]], seed: int, steps: int, first: Sequence[Values]) -> None:
        optuna = import_optuna()
        self._optuna = optuna
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=_RANDOM)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=max(steps // 4, 1), reduction_factor=2)
        self._study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        categories = {name: (None, *values) for name, values in knobs.items()}
        self._space = {name: optuna.distributions.CategoricalDistribution(each) for name, each in categories.items()}
        for values in first:
            self._study.enqueue_trial({name: values.get(name) for name in knobs})
        self._trials: dict[int, Any] = {}
        self._pruned: set[int] = set()

    def ask(self) -> tuple[int, Values]:
        """Returns a proposal and its number."""
        trial = self._study.ask(self._space)
        self._trials[trial.number] = trial
        return trial.number, {name: value for name, value in trial.params.items() if value is not None}

    def is_out(self, number: int, score: float, step: int) -> bool:
        """Notes the score of the first ``step`` steps of a proposal, of which the default has 0 and the best the most;
        True where others are better."""
        trial = self._trials[number]
        trial.report(score, step)
        if trial.should_prune():
            self._pruned.add(number)
        return number in self._pruned

    def tell(self, number: int, score: float | None) -> None:
        """Takes the score of a proposal; None where it has none."""
        states, trial = self._optuna.trial.TrialState, self._trials.pop(number)
        if number in self._pruned:
            self._study.tell(trial, state=states.PRUNED)
        elif score is None:
            self._study.tell(trial, state=states.FAIL)
        else:
            self._study.tell(trial, score)

    def learn(self, values: Values, score: float) -> None:
        """Takes a score of values that were not proposed here."""
        params = {name: values.get(name) for name in self._space}
        known = {name for name, space in self._space.items() if params[name] in space.choices}
        if set(values) <= known == set(self._space):
            make = self._optuna.trial.create_trial
            self._study.add_trial(make(params=params, distributions=self._space, value=score))


class ListSearch:
    """The values of each knob, each tried once and to its end."""

    def __init__(self, knobs: Mapping[str, Sequence[Value]]) -> None:
        self._left: list[Values] = [{name: value} for name, values in knobs.items() for value in values]

    def ask(self) -> tuple[int, Values]:
        """Returns the next value; the default's after the last."""
        return 0, self._left.pop(0) if self._left else {}

    def is_out(self, number: int, score: float, step: int) -> bool:
        """Returns False: each is measured to its end."""
        return False

    def tell(self, number: int, score: float | None) -> None:
        """Does nothing: a score changes nothing in the order."""

    def learn(self, values: Values, score: float) -> None:
        """Does nothing, as `tell`."""


def import_optuna() -> Any:
    """Returns Optuna, which says nothing by itself. Raises `UsageError` where it is not installed."""
    try:
        import optuna
    except ImportError:
        what = "tune searches with Optuna, which is not installed beside ipexctl"
        raise UsageError(what, hint="pip install 'ipexctl[tune]', or uv tool install 'ipexctl[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
