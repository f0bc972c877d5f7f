"""What the documentation shows can be done: its commands parse, its links lead somewhere, its tables are the code's."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from ipexctl.cli import app
from ipexctl.decide import parsing
from ipexctl.decide.parsing import playbook
from ipexctl.model.errors import Exit
from ipexctl.store.event_json import _CLASSES, _FIELDS, _KEYS
from tests.unit.test_hints import parse
from tools.project_page import list_urls, write_description

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "examples/README.md")
PAGES = [*(ROOT / page for page in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yaml"))
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, *kinds: str) -> Iterator[str]:
    return (body for kind, body in FENCE.findall(page.read_text("utf-8")) if kind in kinds)


def commands() -> Iterator[Any]:
    """Every command line of ours in a shell block, and those in the text that have flags and no gaps to fill, and those
    above the playbooks."""
    for page in PAGES:
        lines = [line for body in blocks(page, "sh", "console") for line in body.splitlines()]
        output = re.findall(r"`(ipexctl [^`]*)`", FENCE.sub("", page.read_text("utf-8")))
        lines += [re.sub(r"   \(.*\)$", "", line) for line in output if " -" in line]
        for line in dict.fromkeys(line.split("#")[0].strip() for line in lines):
            if line.startswith("ipexctl ") and not re.search(r"[A-Z]{3,}|…|\|", line):
                yield pytest.param(line, id=f"{name(page)}: {line}")
    for file in PLAYBOOKS:
        for line in re.findall(r"^#\s+(ipexctl .*)", file.read_text("utf-8"), re.MULTILINE):
            yield pytest.param(re.split(r" {3,}", line)[0], id=f"{name(file)}: {line}")


@pytest.mark.parametrize("line", [*commands()])
def test_every_command_shown_is_one(line: str) -> None:
    parse(shlex.split(line)[1:])


@pytest.mark.parametrize(
    "line", ["instal", "install --torhc 2.8.0", "fetch", "lab upp", "logs r1 --rank", "stop --orphans --no"]
)
def test_a_command_that_is_none_is_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r"No such (option|command)|Missing (argument|parameter)|requires an argument"):
        parse(shlex.split(line))


def test_what_stands_after_the_script_is_the_scripts() -> None:
    parse(shlex.split("run --ppn 2 train.py --ppn 7 --no-such-flag -x"))


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text("utf-8"))):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        assert not anchor or there.suffix != ".md" or anchor in anchors(there), target


@pytest.mark.parametrize("home", ["", "https://git.example/x"])
def test_the_page_on_a_package_index_has_no_link_to_a_file_beside_it(home: str) -> None:
    text = write_description((ROOT / "README.md").read_text("utf-8"), home, "1.2.3")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert all(target.startswith("https://") for target in targets)
    assert (f"{home}/raw/v1.2.3/docs/images/first-run.svg" in targets) == bool(home)
    assert (f"{home}/blob/v1.2.3/docs/failures.md" in targets) == bool(home)
    assert ("know why a run failed, hangs or is slow; resume it | Failures, resume |" in text) != bool(home)
    assert [*list_urls(home, "1.2.3")][:2] == (["Source", "Documentation"] if home else [])


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index] == ["index.md"]


def test_the_readme_names_every_command() -> None:
    top: Any = typer.main.get_command(app)
    table = (ROOT / "README.md").read_text("utf-8").partition("## Commands")[2].partition("\n## ")[0]
    names = {name for name, command in top.commands.items() if not command.hidden}
    assert names - {words.split()[0] for words in re.findall(r"`([^`]+)`", table)} == set()


def test_the_exit_codes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", (ROOT / "docs/exit-codes.md").read_text("utf-8"), re.MULTILINE)
    assert {int(code) for row in rows for code in row.split(",")} == {*map(int, Exit)}


def test_the_make_targets_named_exist() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    named = set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) | set(re.findall(r"`make ([a-z-]+)", text))
    assert {"demo", "test"} <= named <= made


def test_the_demo_ends_with_what_runs_a_script_of_ones_own() -> None:
    recipe = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    said = recipe[recipe.index("printf") :].replace("${XDG_STATE_HOME:-$HOME/.local/state}", "~/.local/state")
    lines = ["ipexctl lab up", "ipexctl run -f ~/.local/state/ipexctl/lab/hostfile train.py"]
    blocks = [block for _, block in FENCE.findall((ROOT / "README.md").read_text())]
    assert [". .venv/bin/activate", *lines] in [block.splitlines() for block in blocks]
    assert all(line in said for line in ["/bin/activate", *lines])


def test_the_readmes_hostfile_is_read() -> None:
    (text,) = blocks(ROOT / "README.md", "hostfile")
    hosts = parsing.parse_inventory(text, "hostfile")
    assert len(hosts) == 9
    assert hosts.head.name == "node0"


def test_the_readmes_playbook_is_read() -> None:
    (text,) = blocks(ROOT / "README.md", "yaml")
    play = playbook.parse_playbook(text, "playbook.yaml", base=str(ROOT), environ={}, variables={})
    assert [step.action for step in play.steps] == ["doctor", "install", "run"]


@pytest.mark.parametrize("file", PLAYBOOKS, ids=name)
def test_every_ready_made_playbook_is_read_and_reported(file: Path) -> None:
    play = playbook.parse_playbook(file.read_text("utf-8"), file.name, base=str(file.parent), environ={}, variables={})
    for step in play.steps:
        for path in (getattr(step.task, "script", None), getattr(step.task, "source", None)):
            assert path is None or (ROOT / "playbooks" / path).exists()
    assert f"(../playbooks/{file.name})" in (ROOT / "docs/playbooks.md").read_text("utf-8")


@pytest.mark.parametrize("file", sorted((ROOT / "docs/images").glob("*.svg")), ids=name)
def test_pictures_fetch_nothing(file: Path) -> None:
    text = file.read_text("utf-8")
    assert "<svg" in text
    assert not re.search(r"@import|url\(['\"]?http|xlink:href|<script|<image", text)


def test_the_page_of_the_bindings_begins_with_what_works_without_intels_index() -> None:
    page = (ROOT / "docs/recipe-oneccl.md").read_text("utf-8")
    first = next(blocks(ROOT / "docs/recipe-oneccl.md", "sh")).splitlines()
    installs = [line for line in first if line.startswith("ipexctl install ")]
    own = ("--find-links", "--extra-index-url", "--wheels")
    assert [[flag for flag in own if flag in line] for line in installs] == [[flag] for flag in own] + [[]]
    assert page.index("--find-links") < page.index("# Intel's index")
    assert "the order of its imports" in page


def test_the_page_of_the_output_has_every_event_with_its_keys() -> None:
    rows: dict[str, str] = {}
    page = (ROOT / "docs/output.md").read_text("utf-8")
    for names, keys in re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \| (.*) \|$", page, re.MULTILINE):
        rows |= dict.fromkeys(re.findall(r"[a-z-]+", names), keys)
    keys_of = {name: {_KEYS.get(each, each) for each in _FIELDS[cls]} for name, cls in _CLASSES.items()}
    assert {
        name: missing
        for name, keys in keys_of.items()
        if (missing := sorted(key for key in keys if f"`{key}`" not in rows.get(name, "")))
    } == {}


def test_the_playbook_that_changes_nothing_counts_no_change() -> None:
    lines = (ROOT / "playbooks/check.yaml").read_text("utf-8").splitlines()
    assert [line for line in lines if " command:" in line and "changes: false" not in line] == []
