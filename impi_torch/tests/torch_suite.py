"""torch's own DistributedTest over impi in Gloo's place, beside Gloo: what passes there passes here, but for what
expected.txt names, with its reason. `make test-torch`; the tests are those in the wheel of the torch that is there."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import HERE, environment, mpirun

LOADING, LIMIT = 300.0, 90.0  # seconds until the ranks have loaded the tests; for one test


def list_names() -> list[str]:
    """The names of all tests, without loading them: loading asks for a backend."""
    spec = find_spec("torch.testing")
    assert spec
    assert spec.origin
    source = Path(spec.origin).parent / "_internal/distributed/distributed_test.py"
    (outer,) = [
        each
        for each in ast.parse(source.read_text()).body
        if isinstance(each, ast.ClassDef) and each.name == "DistributedTest"
    ]
    (inner,) = [each for each in outer.body if isinstance(each, ast.ClassDef)]
    return [each.name for each in inner.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]


def read_expected() -> dict[str, str]:
    """Tests that pass over Gloo and not over impi: name and reason."""
    lines = (HERE / "expected.txt").read_text().splitlines()
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def run_suite(backend: str, ranks: int, names: list[str], directory: Path) -> dict[str, str]:
    """The result of each test; after one that failed or hangs the next ones get fresh ranks."""
    results: dict[str, str] = {}
    for name in names:
        (directory / name / "barrier").mkdir(parents=True)
        (directory / name / "test_dir").mkdir()
    while len(results) < len(names):
        rest = [name for name in names if name not in results]
        env = environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=29511, IMPI_TORCH_OVERRIDE=int(backend == "impi"))
        words = [mpirun(), "-n", str(ranks), sys.executable, str(HERE / "ranks/distributed_tests.py"), backend]
        log = (directory / f"log-{len(results)}").open("wb")
        (directory / "loaded").unlink(missing_ok=True)
        process = subprocess.Popen(
            [*words, str(directory), *rest], env=env, stdout=log, stderr=log, start_new_session=True
        )
        results |= watch(process, ranks, rest, directory)
        log.close()
    return results


def watch(process: subprocess.Popen[bytes], ranks: int, names: list[str], directory: Path) -> dict[str, str]:
    """The results until one fails, hangs, or the ranks end."""
    results: dict[str, str] = {}
    until = time.monotonic() + LOADING
    while not (directory / "loaded").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    for name in names:
        until, told, failed = time.monotonic() + LIMIT, list[str](), list[str]()
        ended = False
        while len(told) < ranks and not ended and time.monotonic() < until:
            time.sleep(0.02)
            ended = process.poll() is not None  # asked before the results are read
            told = [path.read_text() for path in (directory / name).glob("result-*")]
            failed = [text for text in told if text != "ok" and not text.startswith("skipped")]
            if failed:  # the others fail with it, or wait for it in vain
                until = min(until, time.monotonic() + 5)
        if failed:
            results[name] = failed[0]
        elif len(told) == ranks:
            results[name] = "ok" if "ok" in told else told[0]
        elif process.poll() is None:
            results[name] = f"hangs for {LIMIT:.0f} s"
        else:
            results[name] = f"its ranks ended with {process.returncode}"
        if len(told) < ranks or (failed and "ok" in told):
            break
    if process.poll() is None and len(results) < len(names):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    return results


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_passes_over_gloo_passes_over_impi(tmp_path: Path, ranks: int) -> None:
    names, expected = list_names(), read_expected()
    gloo = run_suite("gloo", ranks, names, tmp_path / "gloo")
    passing = [name for name in names if gloo[name] == "ok"]
    assert len(passing) > 90, gloo
    impi = run_suite("impi", ranks, passing, tmp_path / "impi")
    failed = {name: result for name, result in impi.items() if result != "ok"}
    print(f"{ranks} ranks: {len(passing)} tests pass over Gloo, {len(passing) - len(failed)} of them over impi")
    assert set(failed) <= set(expected), "\n".join(f"{name}: {failed[name]}" for name in {*failed} - {*expected})
