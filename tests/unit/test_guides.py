"""docs/guides.md: every test it names exists; every option of the table and every key it promises stand in it."""

import ast
import re
from pathlib import Path

import pytest

from ipexctl.decide.releases.framework_options import FrameworkOption, parse_options

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides.md").read_text("utf-8")
OPTIONS = parse_options((ROOT / "ipexctl/data/options.toml").read_text("utf-8"))


def named() -> list[tuple[str, str]]:
    """(file, test) of every test that the page names."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


@pytest.mark.parametrize(("file", "test"), sorted(set(named())))
def test_every_test_that_is_named_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_names_a_test() -> None:
    tables = PAGE.partition("## Options by version")[0]
    rows = [line for line in tables.splitlines() if line.startswith("| ") and not line.startswith("| in the guide")]
    rows = [row for row in rows if not row.startswith("| ---")]
    assert len(rows) > 30
    assert [row for row in rows if "::" not in row.split(" | ")[-1]] == []


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.of} {option.name}")
def test_every_option_stands_in_the_page_with_its_versions(option: FrameworkOption) -> None:
    versions = " | ".join(version or "–" for version in (option.since, option.idle, option.gone or option.fails))
    assert f"| {option.of} | `{option.name}` | {versions} | {option.instead} |" in PAGE
