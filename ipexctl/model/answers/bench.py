"""The answer of ``bench``."""

from collections.abc import Mapping
from statistics import median

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonRecord, field

BENCH_MODES: Mapping[str, str] = {"train": "training", "infer": "inference"}


class BenchResult(JsonRecord):
    """One form of the model. Samples per second: ``hosts`` each alone (all at the same time), ``cluster`` all together;
    None where it was not measured, and ``why``. ``spread`` is how far apart the middle half of a host's steps is, as a
    share of their median; ``repetitions`` the steps that the least measured host has. ``refused`` is why these figures
    are no result: too few steps, or hosts further apart than their processors can be."""

    mode: str
    engine: str
    how: str
    dtype: str
    hosts: Mapping[str, float]
    cluster: float | None
    why: str | None
    spread: Mapping[str, float] = field(default_factory=dict)
    repetitions: int = 0
    refused: str | None = None

    @property
    def name(self) -> str:
        """For people: ``stock torch bf16``."""
        stock = "stock torch" if self.how == "eager" else "torch.compile"
        return f"{'IPEX' if self.engine == 'ipex' else stock} {self.dtype}"

    @property
    def host(self) -> float | None:
        """The rate of the median host; None without a result."""
        return median(self.hosts.values()) if self.hosts and not self.refused else None


class BenchAnswer(AnyAnswer):
    """``bench``: ``text`` is the table for people, ``title`` what was measured on which stack."""

    model: str
    size: str
    batch: int
    rows: tuple[BenchResult, ...]
    notes: tuple[str, ...]
    text: str
    title: str = ""
