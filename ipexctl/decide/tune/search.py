"""Which launch is tried next: Optuna proposes (ask and tell) and prunes what is slow (successive halving)."""

from typing import Any

from ipexctl.model.errors import UsageError
from ipexctl.model.events import StudyStarted, Values

_RANDOM = 10  # launches before the sampler has a model


class OptunaSearch:
    """A seeded study of Optuna over the values of each knob, beside the default's. Raises `UsageError` where Optuna is
    not installed."""

    def __init__(self, started: StudyStarted) -> None:
        optuna = import_optuna()
        sampler = optuna.samplers.TPESampler(seed=started.seed, multivariate=True, n_startup_trials=_RANDOM)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=max(started.steps // 4, 1), reduction_factor=2)
        self._study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        self._make_trial, self._failed = optuna.trial.create_trial, optuna.trial.TrialState.FAIL
        categories = {name: (None, *values) for name, values in started.knobs.items()}
        self._space = {name: optuna.distributions.CategoricalDistribution(each) for name, each in categories.items()}

    def ask(self) -> tuple[Any, Values]:
        """Returns a trial of Optuna's and its values."""
        trial = self._study.ask(self._space)
        return trial, {name: value for name, value in trial.params.items() if value is not None}

    def is_out(self, trial: Any, score: float, step: int) -> bool:
        """Returns whether others are better than a trial that has this score after so many steps."""
        trial.report(score, step)
        return bool(trial.should_prune())

    def tell(self, trial: Any, values: Values, score: float | None) -> None:
        """Takes the score of a trial, None where it has none; or, of no trial, that of values tried before."""
        params = {name: values.get(name) for name in self._space}
        if trial is not None:
            self._study.tell(trial, score, self._failed if score is None else None)
        elif score is not None and {*values} <= {*params}:
            self._study.add_trial(self._make_trial(params=params, distributions=self._space, value=score))


def import_optuna() -> Any:
    """Returns Optuna, which says nothing by itself. Raises `UsageError` where it is not installed."""
    try:
        import optuna
    except ImportError:
        what = "tune searches with Optuna, which is not installed beside ipexctl"
        raise UsageError(what, hint="pip install 'ipexctl[tune]', or uv tool install 'ipexctl[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
