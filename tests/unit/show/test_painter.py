"""The painter: what it writes, on a terminal made of memory (pyte)."""

import random
import re

import pyte
import pytest
from rich.console import Group
from rich.text import Text

from ipexctl.show.live import Live
from ipexctl.show.painter import Painter
from ipexctl.show.pipe import Pipe
from ipexctl.show.run_frame import draw_run
from tests.unit.show import streams
from tests.unit.show.terminal import Terminal, make_console
from tests.unit.show.test_live import watch


class _Tmux(pyte.HistoryScreen):
    """Keeps a screen that is cleared at once in its history, as tmux does."""

    def erase_in_display(self, how: int = 0, *args: object, **kwargs: object) -> None:
        if how == 0 and (self.cursor.x, self.cursor.y) == (0, 0):
            self.history.top.extend(self.buffer[y] for y in range(self.lines) if self.display[y].strip())
            for y in range(self.lines):
                self.buffer.pop(y, None)
        super().erase_in_display(how, *args, **kwargs)


class Screen:
    """A painter, and the terminal it paints on."""

    def __init__(self, width: int = 40, height: int = 10, *, colours: bool = True) -> None:
        self.raw = Terminal()
        self.pipe = Pipe(self.raw)
        self.console = make_console(self.pipe, width, height, colours=colours)
        self.painter = Painter(self.console, self.pipe)
        self.terminal = _Tmux(width, height, history=1000)
        self._stream = pyte.ByteStream(self.terminal)

    def paint(self, *lines: str | Text, above: tuple[str, ...] = ()) -> str:
        """Shows these lines; returns the bytes that it took."""
        self.painter.paint(Group(*(Text(line) if isinstance(line, str) else line for line in lines)), above)
        return self.take()

    def take(self) -> str:
        data = self.raw.getvalue()
        self.raw.seek(0)
        self.raw.truncate()
        self._stream.feed(data.replace(b"\n", b"\r\n"))
        return data.decode()

    @property
    def above(self) -> list[str]:
        """What has scrolled out of the screen."""
        columns = range(self.terminal.columns)
        return ["".join(line[x].data for x in columns).rstrip() for line in self.terminal.history.top]

    @property
    def shown(self) -> list[str]:
        lines = [line.rstrip() for line in self.terminal.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def test_only_parts_of_lines_that_changed_are_written_inside_a_synchronized_update() -> None:
    screen = Screen()
    first, second = (Text.assemble(("train.py", "bold"), f" 00:00:0{count}") for count in (1, 2))
    screen.paint(first, "rank 0 running", "footer")
    written = screen.paint(second, "rank 0 running", "footer")
    assert written == "\x1b[?2026h\x1b[2A\x1b[9G 00:00:02\x1b[2B\x1b[?2026l"
    assert screen.shown == ["train.py 00:00:02", "rank 0 running", "footer"]
    assert screen.paint(second, "rank 0 running", "footer") == ""


def test_what_is_printed_goes_above_and_stays() -> None:
    screen = Screen()
    screen.paint("a", "b")
    for number in range(20):
        screen.paint("a", "b", f"{number}", above=(f"message {number}",))
    assert screen.shown[-4:] == ["message 19", "a", "b", "19"]
    assert screen.above == [f"message {number}" for number in range(20 - 10 + 4 - 1)]


def test_erasing_leaves_what_was_printed_and_gives_the_cursor_back() -> None:
    screen = Screen()
    written = screen.paint("a", "b", above=("message",))
    assert written.startswith("\x1b[?25l")
    screen.painter.erase()
    assert screen.take().endswith("\x1b[?25h")
    assert screen.shown == ["message"]
    screen.painter.erase()
    assert screen.take() == ""
    screen.paint("again")
    assert screen.shown == ["message", "again"]


def test_a_frame_as_high_as_the_screen_is_not_in_its_history() -> None:
    screen = Screen()
    frame = [f"line {number}" for number in range(9)]
    screen.paint(*frame)
    screen.paint(*frame, above=("first",))
    screen.paint(*frame, above=("second",))
    screen.painter.erase()
    screen.take()
    assert screen.above + screen.shown == ["first", "second"]


@pytest.mark.parametrize(("width", "height"), [(20, 10), (60, 10), (40, 6), (40, 30)])
def test_a_resize_leaves_nothing_dead_behind(width: int, height: int) -> None:
    screen = Screen()
    lines = ["x" * 39, "y" * 20, "a", "b", "footer"]
    screen.paint(*lines)
    screen.console._width, screen.console._height = width, height
    # A terminal that wraps lines anew when it becomes narrower: each of these takes the rows it needs.
    again = Screen(width, height)
    again.painter._lines, again.painter._size = screen.painter._lines, (40, 10)
    again._stream.feed(b"before\r\n" + "\r\n".join(lines).encode())
    written = again.paint(*(line[: width - 1] for line in lines))
    assert "\x1b[J" in written
    assert again.shown == ["before", *(line[: width - 1] for line in lines)][-height:]


@pytest.mark.parametrize("colours", [True, False])
def test_a_thousand_random_frames_are_what_the_terminal_shows(colours: bool) -> None:
    """Of wide characters too, lines as wide as the screen, and frames that grow and shrink."""
    chance = random.Random(7)
    screen = Screen(12, 8, colours=colours)
    for _ in range(1000):
        lines = []
        for _ in range(chance.randint(1, 7)):
            line = Text()
            while line.cell_len < chance.randint(0, 12):
                word = chance.choice(["a", "bc", "界", "▌", " "])
                if line.cell_len + Text(word).cell_len <= 12:
                    line.append(word, chance.choice(["", "bold", "red", "dim"]))
            lines.append(line)
        screen.paint(*lines)
        expected = [line.plain.rstrip() for line in lines]
        while expected and not expected[-1]:
            expected.pop()
        # pyte shows a wide character as itself and an empty cell
        assert [re.sub("界 ?", "界", line).rstrip() for line in screen.shown] == [
            re.sub("界 ?", "界", line).rstrip() for line in expected
        ]


def test_a_frame_higher_than_the_screen_is_cut() -> None:
    screen = Screen(20, 5)
    screen.paint(*map(str, range(30)))
    assert screen.shown == ["0", "1", "2", "3"]
    screen.paint(*map(str, range(10, 40)))
    assert screen.shown == ["10", "11", "12", "13"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (160, 50)])
def test_a_silent_run_of_8_ranks_costs_less_than_a_kilobyte_a_second(width: int, height: int) -> None:
    """A minute of frames as the screen draws them where only time goes by; full frames would be 13 times as much."""
    screen, view = Screen(width, height), watch(streams.run(4), until=15.0, keys=True)
    screen.painter.paint(draw_run(view, width, height - 1, view.state.at))
    screen.take()
    seconds, sent = 60, 0
    for frame in range(round(seconds / Live.IDLE)):
        screen.painter.paint(draw_run(view, width, height - 1, view.state.at + frame * Live.IDLE))
        sent += len(screen.take())
    assert 0 < sent / seconds < 1000
    assert "00:01:1" in screen.shown[0]
