"""``python -m tests.fuzz.guided SECONDS [TARGET…]``: inputs that reach new code, for so many seconds each target, as
many targets at once as there are cores.

The grammars of `targets` give texts that parsers accept, about a hundred in a second. Here libFuzzer, by way of
atheris, changes the bytes of such texts thousands of times a second, and goes on from those that reached a line that
none before had. A finding (an exception, 20 s of CPU without an answer, 2 GB) is kept in ``corpus/TARGET`` and printed;
the exit is 1 then.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz import corpus

# libFuzzer's: https://llvm.org/docs/LibFuzzer.html#options. Its times go by the clock, by which an input may wait for
# minutes on a busy machine: they are for what no signal of Python's interrupts.
LIMITS = ("-timeout=600", "-report_slow_units=600", "-rss_limit_mb=2000", "-max_len=4096")
PATIENCE = 20.0  # seconds of CPU for one input
TARGETS = "tests.fuzz.targets"
ROOT = Path(__file__).resolve().parents[2]
_SEEDS = 150  # texts to start from
_TRIED = re.compile(r"^stat::number_of_executed_units: (\d+)$", re.MULTILINE)


class TooSlowError(BaseException):
    """An input takes too long. No parser takes this for a fault of its input."""


@dataclass(frozen=True)
class Round:
    """``tried`` is None where the fuzzer could not say: ``output`` is all that it wrote."""

    tried: int | None
    findings: tuple[bytes, ...]
    output: str


def fuzz(target: str, *limits: str, module: str = TARGETS, patience: float = PATIENCE) -> Round:
    """One target of ``module`` in a process of its own, within limits in libFuzzer's words (``-max_total_time=60``) and
    ``patience`` seconds of CPU for an input."""
    with tempfile.TemporaryDirectory(prefix="ipexctl-fuzz-") as place:
        Path(place, "seeds").mkdir()
        Path(place, "found").mkdir()
        words = [sys.executable, "-m", "tests.fuzz.guided", "--one", module, target, place, str(patience)]
        words += [*LIMITS, *limits]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, check=False)
        output = done.stdout.decode("utf-8", "replace")
        tried = _TRIED.search(output)
        result = tuple(path.read_bytes() for path in sorted(Path(place, "found").iterdir()))
        return Round(int(tried[1]) if tried else None, result, output)


def fuzz_here(module: str, name: str, place: Path, patience: float, limits: list[str]) -> None:
    """The process of one target: nothing of ipexctl may have been imported before. Does not return."""
    import atheris

    with atheris.instrument_imports(include=["ipexctl", module], enable_loader_override=False):
        targets = import_module(module)
    [target] = [target for target in targets.TARGETS if target.name == name]
    seeds = place / "seeds"
    for title, data in corpus.read(name):
        (seeds / title).write_bytes(data)

    @settings(max_examples=_SEEDS, database=None, deadline=None, suppress_health_check=list(HealthCheck),
              phases=(Phase.generate,))  # fmt: skip
    @given(target.grammar)
    def write_seed(data: bytes) -> None:
        (seeds / f"{len(os.listdir(seeds))}").write_bytes(data)

    write_seed()

    def end_attempt(*_: object) -> None:
        raise TooSlowError(f"no answer after {patience:g} s of CPU")

    def attempt(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, patience)
        target.accepts(data)

    signal.signal(signal.SIGPROF, end_attempt)
    words = [f"-artifact_prefix={place}/found/", "-print_final_stats=1", *limits, str(seeds)]
    atheris.Setup([sys.argv[0], *words], attempt)
    atheris.Fuzz()


def list_targets() -> list[str]:
    """Their names. In a process of its own, like all that imports them here."""
    code = f"from {TARGETS} import TARGETS\nfor target in TARGETS: print(target.name)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, check=True)
    return done.stdout.decode().split()


def main(argv: list[str]) -> int:
    seconds, names = float(argv[0]), argv[1:] or list_targets()
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rounds = pool.map(lambda name: fuzz(name, f"-max_total_time={seconds:.0f}"), names)
        for name, done in zip(names, rounds, strict=True):
            print(f"{name:14} {'?' if done.tried is None else done.tried:>9} tried", flush=True)
            failed += bool(done.findings) or done.tried is None
            for finding in done.findings:
                print(f"{name}: {finding!r} is kept in {corpus.keep(name, finding)}", flush=True)
            if done.findings or done.tried is None:
                print("\n".join(done.output.splitlines()[-40:]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        fuzz_here(sys.argv[2], sys.argv[3], Path(sys.argv[4]), float(sys.argv[5]), sys.argv[6:])
    sys.exit(main(sys.argv[1:]))
