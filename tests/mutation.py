"""Breaks one decision of the code after the other, and looks whether tests notice: `make mutation NUMBER=30 SEED=1`.

A mutant is one change of one line: a comparison turned, a condition negated, "and" in place of "or", a number off by
one. It is tried in a copy of the checkout, the only place that it can write: by the tests that name its function or its
module, and with ``--all`` by those of `make fast`; one of impi_torch by those of `make test-impi`. A test that fails
without the mutant as well has not caught it. What survives changes nothing, or a test is missing."""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = ("ipexctl/decide", "ipexctl/remote", "impi_torch/src")
OPPOSITES = ((ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.In, ast.NotIn), (ast.Is, ast.IsNot))
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {**dict(OPPOSITES), **{other: one for one, other in OPPOSITES}}
LIMIT = 1800.0  # seconds for one run of tests; a mutant that hangs them is caught
CAGE = """for place in /*; do
    case $place in /proc | /sys | /dev | /tmp | /run) continue ;; esac
    [ ! -d "$place" ] || [ -L "$place" ] || { mount --rbind "$place" "$place" && mount -o remount,bind,ro "$place"; }
done
exec "$@"
"""


def list_changes(path: Path) -> Iterator[tuple[str, int, str]]:
    """Function, line and text of the whole file with each change of one expression within a function."""
    text = path.read_text()
    for function in [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)]:
        for node in [each for each in ast.walk(function) if isinstance(each, ast.expr)]:
            changed = change(node)
            if changed is not None and node.lineno == node.end_lineno:
                lines = text.encode().splitlines(keepends=True)
                line, middle = lines[node.lineno - 1], f"({ast.unparse(changed)})".encode()
                lines[node.lineno - 1] = line[: node.col_offset] + middle + line[node.end_col_offset :]
                yield function.name, node.lineno, b"".join(lines).decode()


def change(node: ast.expr) -> ast.expr | None:
    """What could stand in place of an expression."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in TURNED:
        return ast.Compare(node.left, [TURNED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value not in (0, 1):  # False, True
        return ast.Constant(node.value + 1)
    return node.body if isinstance(node, ast.IfExp) else None


def find_failure(checkout: Path, python: str, words: Sequence[str]) -> str:
    """The name of the first test that fails; empty where all pass."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", CAGE, "sh", python, "-m", "pytest"]
    places = {"HOME": f"{checkout.parent}/home", "TMPDIR": f"{checkout.parent}"}
    env = {**os.environ, **places, "PYTHONPATH": f"{checkout}:{checkout}/impi_torch/src"}
    command += ["-q", "-x", "-p", "no:cacheprovider", *words]
    try:
        done = subprocess.run(
            command, cwd=checkout, env=env, capture_output=True, text=True, check=False, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return "no end"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = [line.partition(" ")[2].partition(" - ")[0] for line in lines] or [f"pytest ended with {done.returncode}"]
    return failed[0] if done.returncode not in {0, 5} else ""  # 5: no test


def list_trials(checkout: Path, name: str, function: str) -> Iterator[tuple[str, list[str]]]:
    """The interpreters and the words of pytest by which a mutant is tried."""
    if name.startswith("impi_torch"):
        yield str(ROOT / ".venv/impi-2.13.0/bin/python"), ["--timeout", "600", "impi_torch/tests"]
        return
    for word in (function.strip("_"), Path(name).stem):
        tests = [str(path) for path in sorted((checkout / "tests/unit").rglob("test_*.py")) if word in path.read_text()]
        yield sys.executable, ["-n", "2", *(tests or ["tests/unit/test_house.py"])]
    yield sys.executable, ["-n", "2", "--dist", "loadfile", "tests/unit", "tests/contract"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    asked = parser.parse_args()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}  # a function has one mutant at most
    for name in [name for name in tracked if name.startswith(PLACES) and name.endswith(".py")]:
        for function, line, text in list_changes(ROOT / name):
            found.setdefault((name, function), []).append((line, text))
    dice, caught = random.Random(asked.seed), 0
    chosen = [(key, dice.choice(found[key])) for key in dice.sample(sorted(found), asked.number)]
    chosen.sort(key=lambda each: each[0][0].startswith("impi"))  # which take longest
    with tempfile.TemporaryDirectory() as directory:
        checkout = Path(directory, "checkout")
        Path(directory, "home").mkdir(mode=0o700)
        for name in filter(None, tracked):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
        for (name, function), (line, text) in chosen:
            before, result = (checkout / name).read_text(), ""
            for python, words in [*list_trials(checkout, name, function)][: None if asked.all else 2]:
                (checkout / name).write_text(text)
                result = result or find_failure(checkout, python, words)
                (checkout / name).write_text(before)
                if "::" in result and find_failure(checkout, python, [result]):
                    result = ""
            caught += bool(result)
            print(
                f"{name}:{line} {function}: {result or 'SURVIVED'}: {text.splitlines()[line - 1].strip()}", flush=True
            )
    print(f"{caught} of {asked.number} caught (seed {asked.seed})")


if __name__ == "__main__":
    main()
