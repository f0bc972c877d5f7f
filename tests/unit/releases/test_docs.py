"""docs/stacks.md says what the version table says."""

from pathlib import Path

from ipexctl.decide.releases.table import parse_table
from tools.releases_page import LEVELS, PYTHONS, render_releases_page

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "stacks.md"


def written() -> str:
    return render_releases_page((ROOT / "ipexctl" / "data" / "stacks.toml").read_text("utf-8"))


def test_the_page_is_written_from_the_table() -> None:
    assert PAGE.read_text("utf-8") == written(), "write it anew: python -m tests.unit.releases.test_docs"


def test_the_page_has_a_decision_for_every_row_on_every_python_and_cpu_level() -> None:
    rows = parse_table((ROOT / "ipexctl" / "data" / "stacks.toml").read_text("utf-8")).releases
    sections = [
        part.splitlines() for part in PAGE.read_text("utf-8").split("### ")[1:]
    ]  # it is what is written, by the above
    assert len(sections) == len(rows) + 3  # and the wishes that name no version
    decided = "\n".join(line for section in sections for line in section)
    for row in rows:
        assert f"torch {row.torch} + " + (f"ipex {row.ipex}" if row.ipex else "impi-rt") in decided
    for title, *lines in sections:
        cells = [line.split(" | ") for line in lines if line.startswith("| 3.")]
        pairs = [
            (python, level) for cell in cells for python in cell[0][2:].split(", ") for level in cell[1].split(", ")
        ]
        assert sorted(pairs) == sorted((python, level) for python in PYTHONS for level in LEVELS), title


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
