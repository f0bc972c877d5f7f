"""The screens on a terminal made of memory, compared with what a person has looked at."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.data import read_data
from ipexctl.model.text import format_size, pluralize
from ipexctl.show import phrases
from ipexctl.show.pipe import Pipe, choose_terminal_encoding
from tests.tables import read_table
from tests.unit.show.pictures import HEIGHT, PICTURES, ROOT, WIDTH, Picture, files, read, recorded, write, write_plainly
from tests.unit.show.terminal import Terminal, as_text, read_screen

AGAIN = "python -m tests.unit.show.pictures writes it anew; look at the difference"
COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|9[0-7]|4[0-8])(?:;[0-9;]*)?m")
ESCAPED = re.compile(r"\\[uUxN0-7]")
LONG = next(picture for picture in PICTURES if picture.name == "hang")


@pytest.mark.parametrize(("path", "make"), [pytest.param(*each, id=each[0].name) for each in files()])
def test_the_screens_are_those_that_were_looked_at(path: Path, make: Callable[[], str]) -> None:
    assert make() == path.read_text(), AGAIN
    assert path.stat().st_size < (100_000 if path.parent.name == "screens" else 30_000)
    if path.suffix == ".svg":
        assert len(ElementTree.fromstring(path.read_text()).findall(".//{*}text")) > 3


def test_the_page_of_screens_has_every_sheet_and_no_other() -> None:
    links = re.findall(r"\(images/screens/([^)\s]+)\)", (ROOT / "docs/screens.md").read_text())
    assert sorted(links) == sorted(
        path.name for path, _ in files() if path.parent.name == "screens" and path.suffix == ".svg"
    )
    assert sorted(links) == sorted(path.name for path in (ROOT / "docs/images/screens").iterdir())


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_no_color_takes_colours_away_and_no_word(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = as_text(read(picture, WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    assert as_text(read(picture, WIDTH)) == coloured
    assert not COLOUR.search(write(picture, WIDTH))


def test_colours_are_there_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert COLOUR.search(write(LONG, WIDTH))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_dumb_terminal_gets_lines_and_no_sequence(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert re.search(r"\w", text := write_plainly(picture))
    assert text.isascii()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", text)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_terminal_of_ascii_gets_signs_for_signs(picture: Picture) -> None:
    data = write(picture, WIDTH, encoding="ascii")
    assert data.isascii()
    plain, whole = as_text(read_screen(data, WIDTH, HEIGHT)), as_text(read(picture, WIDTH))
    assert len(plain.splitlines()) == len(whole.splitlines())
    assert plain.count("?") == whole.count("?"), "a sign that has none of ASCII"


def _printed_texts() -> Iterator[tuple[str, str]]:
    """The string constants of everything that can be printed on a terminal, with their files, but files in ASCII."""
    for path in sorted((ROOT / "ipexctl").rglob("*.py")):
        if {"remote", "page"} & {*path.relative_to(ROOT).parts}:
            continue
        source = path.read_text("utf-8")
        if source.isascii() and not ESCAPED.search(source):  # to parse all files takes long
            continue
        nodes = [*ast.walk(ast.parse(source))]
        prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield path.name, node.value
    for name in ("errors.toml", "findings.toml", "harmless.toml", "migrate.toml", "stacks.toml"):
        yield name, "\n".join(line for line in read_data(name).splitlines() if not line.startswith("#"))


def test_every_sign_of_ours_has_one_of_ascii() -> None:
    """All that are not in the text of others: a terminal without them shows a question mark."""
    signs = {
        (name, sign) for name, text in _printed_texts() for sign in text if ord(sign) > 0x9F and sign.isprintable()
    }
    pipe = Pipe(raw := Terminal("ascii"))
    missing = []
    for name, sign in sorted(signs):
        raw.seek(0)
        raw.truncate()
        pipe.write(sign)
        missing += [(name, sign)] if raw.getvalue() == b"?" else []
    assert not [each for each in missing if each[1] not in OF_OTHERS]


@pytest.mark.parametrize(("environ", "encoding"), read_table("pictures/ascii_terminals"))
def test_a_terminal_that_shows_ascii_only_is_known_by_its_environment(environ: dict[str, str], encoding: str) -> None:
    assert choose_terminal_encoding(environ) == encoding
    pipe = Pipe(raw := Terminal(), choose_terminal_encoding(environ))
    pipe.write("✓ 3 × 4 …")
    assert raw.getvalue().decode() == ("+ 3 x 4 ~" if encoding else "✓ 3 × 4 …")


OF_OTHERS = {"®", "\ufffd", "▶"}  # in what processors and programs write; what could not be read


SINGULAR = re.compile(
    r"(?<![\d.,:/×-])\b1 (?:hosts|ranks|bytes|files|steps|processes|events|lines|runs|errors|warnings|samples|cores)\b"
)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_words_are_true_on_every_screen(picture: Picture) -> None:
    """Plurals; units of one kind; nothing of 100 % that waits; no mark of success beside a failure; a command last."""
    for width in (40, 160):
        lines = as_text(read(picture, width, whole=True)).splitlines()
        text = "\n".join(lines)
        assert not SINGULAR.search(text)
        assert not re.search(r"\d ?(?:kB|MB|GB)\b(?!/s)", text), "sizes are in binary units"
        assert not re.search(r"\b100 ?%.*(?:wait|left)", text)
        for line in lines:
            assert not (line.startswith("✓") and re.search(r"\b(?:failed|exit [1-9]|waits|not begun)\b", line)), line
            assert not (re.search(r"✗.*\bok=\d", line) and "failed=0" in line and "unreachable=0" in line), line
        commands = [number for number, line in enumerate(lines) if line.startswith("ipexctl ")]
        below = "".join(line for line in lines[(commands or [len(lines)])[-1] + 1 :])
        over = picture.at is None  # else what goes on is below
        assert not over or " " not in below.strip() or width == 40, (
            "nothing is below the command but, on a narrow screen, its end"
        )


@given(st.floats(1, 1e15))
def test_a_size_has_a_binary_unit_and_at_most_three_digits(size: float) -> None:
    assert re.fullmatch(r"(?:\d{1,3}|\d\.\d) (?:B|KiB|MiB|GiB|TiB)", format_size(size))


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_a_step_that_goes_on_is_never_at_100_percent(done: int, total: int) -> None:
    for text in (phrases.format_amount(done, total, "files"), phrases.format_short_amount(done, total, "files")):
        assert "100 %" not in text


@given(st.integers(0, 3), st.sampled_from(["host", "process", "rank", "byte", "box", "switch"]))
def test_one_is_singular_and_nothing_else(count: int, noun: str) -> None:
    assert (pluralize(count, noun) == f"{count} {noun}") == (count == 1)


# What a person must find on the screen of 80 × 24 characters: host and rank, the line of the script, and what to type.
FOUND = {
    "hang": ("rank 1 on node0 does not", "rank 1       train.py:17 read_batch", "[Ctrl-C] stop"),
    "hang-ended": ("rank 1 on node0 does not", "rank 1       train.py:17 read_batch", "ipexctl logs"),
    "failed": ("rank 1 on node0 exited with code 1", 'train.py", line 39, in train', "ipexctl logs"),
    "loader": ("rank 1 on node1 does not", "minutes.py:16 read_batch", "ipexctl stop"),
    "exception": ("rank 1 on node1 exited with code 1", 'minutes.py", line 18, in read_batch', "ipexctl logs"),
    "memory": ("rank 1 on node1 was killed (out of memory", "minutes.py:44 <module>", "ipexctl doctor -f hosts"),
    "cable": ("node1 lost", "end not observed: rank 1 on node1", "ipexctl doctor -f hosts"),
    "slow-host": ("node1: its control group limits CPU", " 1 ◀   node1", "--limit '!node1'"),
    "nan": ("NaN on all 3 ranks since step 12", " 1     node1", "ipexctl stop"),
    "disk": ("rank 0 on node0 exited with code 1", "line     minutes.py:29", "ipexctl exec"),
    "busy": ("node[0-2]: busy with run", "of root@vm", "ipexctl stop"),
    "wrong-torch": ("node1: the environment was changed", "torch is 2.13.0+cpu", "--like node0 --limit node1"),
    "mirror": ("node1: install from 10.77.0.1", "node[0,2] had", "--wheels-from controller"),
}


@pytest.mark.parametrize("name", FOUND)
def test_who_where_and_what_to_type_are_on_the_last_24_lines(name: str) -> None:
    picture = next(picture for picture in PICTURES if picture.name == name)
    rows = read_screen(write(picture, WIDTH) + b"$ ", WIDTH, HEIGHT)  # the shell's prompt takes a line
    assert len(rows) <= HEIGHT
    assert not [words for words in FOUND[name] if words not in as_text(rows)]
    if picture.at is None:  # the command is the last line before the prompt, and nothing else is on it
        command = r"ipexctl [a-z]+( \S+)*"
        *_, above, last = as_text(rows).splitlines()[:-1]
        assert re.fullmatch(command, last) or re.fullmatch(command, above), "which the terminal may have wrapped"


def test_the_lines_of_the_script_are_what_the_pictures_say() -> None:
    lines = (Path(__file__).parents[2] / "data/screens/train.py").read_text().splitlines()
    assert "/tmp/features" in lines[16 - 1] + lines[17 - 1]
    assert "out.write(" in lines[28 - 1]
    assert "raise ValueError" in lines[39 - 1]
    lines = (Path(__file__).parents[2] / "e2e/ranks/minutes.py").read_text().splitlines()
    assert "time.sleep(600)" in lines[16 - 1]
    assert "raise KeyError" in lines[18 - 1]
    assert "torch.save(" in lines[29 - 1]
    assert "ballast.append" in lines[43 - 1] + lines[44 - 1]
    assert len(list(recorded("hang")())) > 90
