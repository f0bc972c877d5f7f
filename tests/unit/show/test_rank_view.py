"""What the live screen knows of a rank from its lines: each is searched for figures once."""

from __future__ import annotations

from ipexctl.show.rank_view import RankView


def feed(rank: RankView, text: str, at: float) -> None:
    rank.feed("o", text.encode(), at)
    rank.refresh(at)


def test_a_pace_that_was_printed_once_is_no_step_of_now() -> None:
    """Its line is still among the last ones when others come."""
    rank = RankView(0, "node0")
    feed(rank, "12.5 it/s\n", 100.0)
    assert rank.pace == 12.5
    feed(rank, "saves the model\n", 105.0)
    assert rank.pace == 12.5
    feed(rank, "still saves it\n", 111.0)
    assert rank.pace == 0.0
    feed(rank, "12 it/s\n", 112.0)
    assert rank.pace == 12.0


def test_of_many_lines_at_once_the_last_ones_are_read() -> None:
    rank = RankView(0, "node0")
    feed(rank, "".join(f"step {step} loss {step / 10}\n" for step in range(1, 1001)), 100.0)
    assert rank.figures == {"step": 1000.0, "loss": 100.0}
    feed(rank, "".join(f"line {number}\n" for number in range(8)) + "step 1001 ", 101.0)
    assert rank.figures["step"] == 1001.0, "a line that has not ended is read as well"
    feed(rank, "loss 0.5\n", 102.0)
    assert rank.figures == {"step": 1001.0, "loss": 0.5}


def test_figures_of_one_step_may_stand_on_several_lines() -> None:
    rank = RankView(0, "node0")
    feed(rank, "epoch 3\nstep 7\nloss 1.5\n", 100.0)
    feed(rank, "step 8\n", 101.0)
    assert rank.figures == {"epoch": 3.0, "step": 8.0, "loss": 1.5}
