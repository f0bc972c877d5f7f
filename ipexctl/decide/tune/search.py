"""Which launch is tried next: Optuna proposes (ask and tell) and prunes what is slow (successive halving)."""

from collections.abc import Sequence
from typing import Any

from ipexctl.model.errors import UsageError
from ipexctl.model.events import StudyStarted, Values

_RANDOM = 10  # launches before the sampler has a model


class OptunaSearch:
    """A seeded study of Optuna over the values of each knob, beside the default's. It proposes the ``listed`` launches
    first. Raises `UsageError` where Optuna is not installed."""

    def __init__(self, started: StudyStarted, listed: Sequence[Values]) -> None:
        optuna = import_optuna()
        sampler = optuna.samplers.TPESampler(seed=started.seed, multivariate=True, n_startup_trials=_RANDOM)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=max(started.steps // 4, 1), reduction_factor=2)
        self._study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        self._failed = optuna.trial.TrialState.FAIL
        choices = {name: (None, *values) for name, values in started.knobs.items()}
        self._space = {name: optuna.distributions.CategoricalDistribution(each) for name, each in choices.items()}
        self._trial: Any = None  # the proposal that has no score yet
        for values in listed:
            if all(value in choices.get(name, ()) for name, value in values.items()):
                self._study.enqueue_trial({name: values.get(name) for name in choices})

    def ask(self) -> Values:
        """Returns the values of a launch, which `tell` takes the score of."""
        self._trial = self._study.ask(self._space)
        return {name: value for name, value in self._trial.params.items() if value is not None}

    def is_out(self, score: float, step: int) -> bool:
        """Returns whether others are better than the proposal, which has this score after so many steps."""
        if self._trial is None:
            return False
        self._trial.report(score, step)
        return bool(self._trial.should_prune())

    def tell(self, score: float | None) -> None:
        """Takes the score of the proposal; None where it has none."""
        state = self._failed if score is None else None
        self._study.tell(self._trial, score, state)
        self._trial = None


def import_optuna() -> Any:
    """Returns Optuna, which prints nothing by itself. Raises `UsageError` where it is not installed."""
    try:
        import optuna
    except ImportError:
        what = "tune searches with Optuna, which is not installed beside ipexctl"
        raise UsageError(what, hint="pip install 'ipexctl[tune]', or uv tool install 'ipexctl[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
