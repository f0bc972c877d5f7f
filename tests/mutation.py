"""Breaks one decision of the code after the other, and looks whether the tests of `make fast` notice:
``python -m tests.mutation --number 30 --seed 1``.

A mutant is one change of one line in `ipexctl/decide`, `ipexctl/remote` or `impi_torch/src`: a comparison turned, a
condition negated, "and" in place of "or", a number off by one, a value that is not returned. It is tried in a copy of
the checkout: first the tests that name its function or its module, then all unit and contract tests. What survives is
printed with its line; it is either a mutant that changes nothing, or a test is missing. Only what git tracks is
copied.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PLACES = ("ipexctl/decide", "ipexctl/remote", "impi_torch/src")
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ALL = ("tests/unit", "tests/contract")
NEAR = 25  # test files that are tried first
# A mutant may write anywhere: only /tmp, the processes' own places and a home of its own can be written.
CAGE = """
for place in /*; do
    case $place in /proc | /sys | /dev | /tmp | /run) continue ;; esac
    [ -d "$place" ] && [ ! -L "$place" ] || continue
    mount --rbind "$place" "$place" && mount -o remount,bind,ro "$place"
done
exec "$@"
"""


class Mutant(NamedTuple):
    path: str  # below the checkout
    line: int
    function: str
    what: str
    text: str  # of the whole file, with the change


def find_mutants(path: Path) -> Iterator[Mutant]:
    """Each change of one expression or statement within a function of a file."""
    text = path.read_text()
    tree = ast.parse(text)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in [each for each in ast.walk(function) if isinstance(each, ast.expr)]:
                for what, changed in change(node):
                    place = str(path.relative_to(ROOT))
                    yield Mutant(place, node.lineno, function.name, what, replace(text, node, changed))


def change(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What could stand in place of an expression."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in TURNED:
        turned = copy.deepcopy(node)
        turned.ops[0] = TURNED[type(node.ops[0])]()
        yield "comparison turned", turned
    elif isinstance(node, ast.BoolOp):
        other = copy.deepcopy(node)
        other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and, or", other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not left out", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value not in (0, 1):  # False, True
        yield "number off by one", ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield "first value always", node.body


def replace(text: str, node: ast.expr, changed: ast.expr) -> str:
    lines = text.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = lines[first][: node.col_offset]
    after = lines[last][node.end_col_offset :]
    middle = f"({ast.unparse(changed)})".encode()
    return b"".join([*lines[:first], before, middle, after, *lines[last + 1 :]]).decode()


def choose(number: int, seed: int) -> list[Mutant]:
    """A function has one mutant at most."""
    names = subprocess.run(["git", "ls-files", *PLACES], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in names.split() if name.endswith(".py")]
    by_function: dict[tuple[str, str], list[Mutant]] = {}
    for path in files:
        for mutant in find_mutants(path):
            by_function.setdefault((mutant.path, mutant.function), []).append(mutant)
    dice = random.Random(seed)
    return [dice.choice(by_function[key]) for key in dice.sample(sorted(by_function), number)]


def find_failure(checkout: Path, paths: Sequence[str], workers: str) -> str:
    """The line of the first test that fails; empty where all pass."""
    cage = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", CAGE, "sh"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n", workers, "--dist", "loadfile", "-p", "no:cacheprovider"]
    env = {**os.environ, "HOME": str(checkout.parent / "home"), "TMPDIR": str(checkout.parent)}
    done = subprocess.run([*cage, *pytest, *paths], cwd=checkout, env=env, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (failed or [done.stdout[-200:]])[0] if done.returncode else ""


def find_near_tests(checkout: Path, mutant: Mutant) -> list[str]:
    tests = [*checkout.glob("tests/unit/**/test_*.py"), *checkout.glob("tests/contract/**/test_*.py")]
    names = {mutant.function.strip("_"), Path(mutant.path).stem}
    return [str(path) for path in tests if any(name in path.read_text() for name in names)][:NEAR]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", default="3")
    asked = parser.parse_args()
    survivors = []
    with tempfile.TemporaryDirectory() as directory:
        checkout = Path(directory) / "checkout"
        (Path(directory) / "home").mkdir(mode=0o700)
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
        if failure := find_failure(checkout, ALL, asked.workers):
            raise SystemExit(f"the tests fail without a mutant: {failure}")
        for mutant in choose(asked.number, asked.seed):
            path = checkout / mutant.path
            before = path.read_text()
            path.write_text(mutant.text)
            near = find_near_tests(checkout, mutant)
            result = (near and find_failure(checkout, near, asked.workers)) or find_failure(
                checkout, ALL, asked.workers
            )
            path.write_text(before)
            print(f"{mutant.path}:{mutant.line} {mutant.function}: {mutant.what}: {result or 'SURVIVED'}", flush=True)
            survivors += [] if result else [mutant]
    print(f"{asked.number - len(survivors)} of {asked.number} caught by make fast (seed {asked.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
