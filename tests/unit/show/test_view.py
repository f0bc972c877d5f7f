"""How a person looks at a run: rows, a rank's log, searches, panels."""

from collections.abc import Mapping, Sequence

import pytest

from ipexctl.model import events as e
from ipexctl.model.events import Event, Stamped
from ipexctl.show.run_frame import find_pace, list_paces
from ipexctl.show.view import View
from tests.unit.show import streams
from tests.unit.show.test_live import LiveView, drawn, watch
from tests.unit.test_unusual import HOST_NAME


def made(
    *outputs: tuple[int, bytes], ranks: tuple[str, ...] = ("a", "a", "b", "b"), isas: Mapping[str, str] | None = None
) -> LiveView:
    events: list[Event] = [e.Started("run", "x.py", ("a", "b")), e.RunStarted("k7", "a", ranks, "", isas=isas or {})]
    events += [e.Output(rank, ranks[rank], "out", data) for rank, data in outputs]
    return watch(streams.stamp(events), keys=True)


def print_twice(run: LiveView, line: str, paces: Sequence[float] = (2.0,) * 4) -> None:
    """Each rank prints a step now, and another one at its pace a second later."""
    begun = run.state.at
    for second in range(2):
        for rank, pace in enumerate(paces):
            text = line % (7 + (second - 1) * pace)
            run.handle_event(Stamped(begun + second, e.Output(rank, "ab"[rank // 2], "out", text.encode())))


def press(view: View, *keys: str) -> str:
    for key in keys:
        view.press(key)
    return "\n".join(drawn(view))


def test_figures_are_columns_and_more_of_them_where_there_is_room() -> None:
    isas = {"a": "AMX", "b": "AVX512_BF16"}
    run = made(isas=isas)
    print_twice(run, "step %d/90 loss 0.5 2.0 it/s\n")
    run.keys = False
    for rank in run.state.ranks:
        rank.cpu, rank.rss = 3.98, 12 << 30
    heads = {width: drawn(run, width)[1].split() for width in (30, 40, 80, 120, 160)}
    assert heads[30] == ["rank", "host", "stage", "step"]
    assert heads[40] == ["rank", "host", "stage", "step", "loss"]
    assert heads[80] == ["rank", "host", "stage", "step", "loss", "it/s", "pace"]
    assert heads[120] == ["rank", "host", "isa", "stage", "step", "loss", "it/s", "pace", "cpu", "memory"]
    assert heads[160] == [*heads[120], "last", "line"]
    row = drawn(run, 160)[2].split()
    assert row[:4] == ["0", "a", "AMX", "running"]
    assert row[-10:] == ["398", "%", "12", "GiB", "step", "7/90", "loss", "0.5", "2.0", "it/s"]


def test_the_header_says_what_runs_where_and_how() -> None:
    isas = {"a": "AVX512_BF16", "b": "AVX512_BF16"}
    started = e.RunStarted("k7", "a", ("a", "a", "b", "b"), "", backend="impi", precision="bf16", isas=isas)
    run = watch(streams.stamp([e.Started("run", "train_ddp.py", ("a", "b")), started]))
    heads = {width: drawn(run, width)[0] for width in (30, 40, 60, 80)}
    assert heads[80].startswith("train_ddp.py   4 ranks on 2 hosts · impi · bf16 · AVX512_BF16  ")
    assert heads[80].endswith("  k7  00:00:00")
    assert heads[60].startswith("train_ddp.py   4 ranks on 2 hosts · impi  ")
    assert heads[40] == "train_ddp.py                k7  00:00:00"
    assert heads[30] == "train_ddp.py      k7  00:00:00"
    run.handle_event(Stamped(streams.START + 1, e.BackendChosen("gloo")))
    assert " · gloo (planned: impi) · bf16  " in drawn(run)[0], "what the script uses"


def test_a_slow_rank_is_marked_against_the_median_and_drawn() -> None:
    run = made()
    print_twice(run, "step %d loss 0.5 9.9 it/s\n", (2.0, 2.0, 1.0, 2.0))
    rows = [line.split() for line in drawn(run)[2:6]]
    assert [("×0.5" in row) for row in rows] == [False, False, True, False]
    assert [row[-1][-1] for row in rows] == ["█", "█", "▄", "█"]


def test_of_a_pace_the_latest_is_seen_where_not_all_has_room() -> None:
    run, at = made(), streams.START
    for second in range(31):
        step = 20 * second if second < 30 else 581
        run.handle_event(Stamped(at + second, e.Output(0, "a", "out", b"step %d loss 0.5\n" % step)))
    row = drawn(run)[2].rstrip()
    assert row.endswith("▁")
    assert "…" not in row


def test_a_pace_is_computed_from_steps_and_falls_to_zero_when_they_stop() -> None:
    run = made()
    for step in range(20):
        run.handle_event(Stamped(100.0 + step / 2, e.Output(0, "a", "out", b"step %d\n" % step)))
    (rank, *_) = run.state.ranks
    assert [find_pace(rank, now) for now in (109.5, 118.0, 125.0)] == pytest.approx([2.0, 2.0, 0.0])
    assert list_paces(rank, 125.0)[-8:] == pytest.approx([2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])


def test_harmless_lines_are_one_number_that_a_key_opens() -> None:
    run = made((0, b"one\n-----\n"))
    for rank in range(4):
        run.handle_event(Stamped(run.state.at, e.Output(rank, "a", "err", HOST_NAME * 6)))
    view = run
    shown = press(view)
    rows = [line.split()[-1] for line in shown.splitlines()[2:6]]
    assert rows == ["one", "s", "s", "s"], "the last line of a rank is one that says something"
    assert shown.splitlines()[-2].endswith("── 24 known harmless lines hidden [w] ─")
    assert "cannot be retrieved" not in shown
    shown = press(view, "w")
    assert "  24  c10d-host-name  ranks 0-3" in shown
    assert "the name is wanted for messages only" in shown
    assert "cannot be retrieved" not in press(view, "escape")


def test_arrows_and_letters_choose_a_rank_and_tab_one_that_the_others_wait_for() -> None:
    view = made()
    chosen = []
    for key in ("down", "j", "down", "down", "up", "k"):
        view.press(key)
        chosen.append(view.rank)
    assert chosen == [1, 2, 3, 3, 2, 1]
    press(view, "tab")
    assert view.rank == 2
    view.handle_event(Stamped(view.state.at, e.Stalled((0,), 60.0, "some", {})))
    assert "›0 ◀ " in press(view, "tab")


def test_rows_are_hosts_beyond_16_ranks_and_enter_opens_one() -> None:
    view = made(ranks=tuple(f"n{rank // 4}" for rank in range(20)))
    rows = press(view, "down", "down").splitlines()[2:7]
    assert [row.split()[:2] for row in rows] == [["0-3", "n0"], ["4-7", "n1"], ["›8-11", "n2"], ["12-15", "n3"], ["16-19", "n4"]]  # fmt: skip  # noqa: E501
    rows = press(view, "enter", "down").splitlines()[2:6]
    assert [row.split()[:2] for row in rows] == [["8", "n2"], ["›9", "n2"], ["10", "n2"], ["11", "n2"]]
    assert "─ rank 9 ─" in press(view, "enter").splitlines()[1]  # the log has the whole screen
    assert press(view, "escape", "escape").splitlines()[4].startswith("›8-11")


LOG = b"".join(b"line %d\n" % number for number in range(1, 301)) + b"the Needle\nlast\n"


def test_a_log_is_leafed_through_and_followed_again() -> None:
    view = made((0, LOG))
    assert press(view, "enter").splitlines()[-2] == "last"
    shown = press(view, "pageup").splitlines()
    assert f"─ rank 0 · line {302 - view.page} of 302 ─" in shown[1]
    assert shown[-2] == f"line {302 - view.page}"
    view.handle_event(Stamped(view.state.at, e.Output(0, "a", "out", b"newer\n")))
    assert drawn(view)[-2] == shown[-2]  # what is read stays where it is
    assert press(view, "g").splitlines()[2] == "line 1"
    assert press(view, "pagedown", "G").splitlines()[-2] == "newer"


def test_a_search_goes_up_on_and_down() -> None:
    view = made((0, LOG), (1, b"other\n"))
    shown = press(view, "/", *"line 29", "enter")
    assert view.match == 299
    assert "─ rank 0 · line 302 of 302 · «line 29» ─" in shown
    assert "▌ line 299" in shown
    press(view, "n", "n")
    assert view.match == 297
    press(view, "N")
    assert view.match == 298
    press(view, "/", *"needle", "enter")
    assert view.match == 301  # in lower case finds either case
    assert press(view, "/", *"Line", "enter").splitlines()[-1].startswith("no «Line» in the log of rank 0")
    assert "«" not in press(view, "escape")


def test_keys_are_explained() -> None:
    view = made()
    detachable = made()
    detachable.can_detach = True
    shown = press(detachable, "?")
    for word in ("Enter", "detach", "Ctrl-C"):
        assert word in shown
    assert "the run goes on without this screen" not in press(view, "?")
    assert "─ rank 0 ─" in press(view, "?")
