"""The profile of a run: where the profiled steps of all ranks spent their time. Times are in seconds."""

from ipexctl.model.json_values import JsonRecord


class ProfiledRank(JsonRecord):
    """A rank's part. ``seconds`` is the time of its ``steps``, ``collectives`` that in collectives, waiting included.
    ``waiting`` sums, over the collectives that all ranks took part in and leave together, the time from this rank's
    start to that of the last rank; ``awaited`` the time by which this rank was later than the last but one."""

    rank: int
    host: str
    steps: int
    seconds: float
    collectives: float
    waiting: float
    awaited: float


class UnprofiledRank(JsonRecord):
    """A rank without a trace that can be used, and why."""

    rank: int
    host: str
    why: str


class OperatorTime(JsonRecord):
    """An operator, of all ranks and steps together: ``own`` is without the operators that it called."""

    name: str
    calls: int
    own: float


class CollectiveTime(JsonRecord):
    """A collective, of all ranks and steps together; ``matched`` counts those that all ranks took part in."""

    name: str
    calls: int
    matched: int
    seconds: float
    waiting: float
    longest_wait: float


class KernelTime(JsonRecord):
    """Primitives that oneDNN executed, of all ranks: ``implementation`` in its own words, as
    ``brg_matmul:avx512_core_amx``, ``isa`` the instruction set in these, empty where there is none; ``dtype`` as
    ``bf16`` or ``src bf16, dst f32``."""

    primitive: str
    implementation: str
    isa: str
    dtype: str
    calls: int
    seconds: float


class Profile(JsonRecord):
    """The profile of the steps ``first`` to ``last``; the ranks' traces lie beside it."""

    run: str
    first: int
    last: int
    ranks: tuple[ProfiledRank, ...]
    missing: tuple[UnprofiledRank, ...] = ()
    operators: tuple[OperatorTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    notes: tuple[str, ...] = ()
