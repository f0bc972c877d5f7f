"""Files that come slowly to a host: from where, how fast, how the others fare, and what else can be done."""

import pytest

from ipexctl.decide.run.slow_download import describe_slow_download
from ipexctl.model import events as e
from ipexctl.model.events import Progress, Stamped
from tests.unit.show.streams import fold_state

MIB = 1 << 20
WORDS = ("install", "--torch", "2.13.0", "--venv", "/x")


def fetch(
    rates: dict[str, int], seconds: int = 12, words: tuple[str, ...] = WORDS, step: str = "install"
) -> str | None:
    """What is said when each host has got so many bytes a second of 100 MiB for so long; a host that had all, ends."""
    last = {name: Progress(name, step, 0, 100 * MIB, "B", "from pypi.example") for name in rates}
    stream = [Stamped(100.0, e.Started(words[0], "", tuple(rates), words=words))]
    for second in range(seconds):
        for name, rate in rates.items():
            last[name] = Progress(name, step, min(second * rate, 100 * MIB), 100 * MIB, "B", "from pypi.example")
            stream.append(Stamped(100.0 + second, last[name]))
            if second * rate >= 100 * MIB:
                stream.append(Stamped(100.0 + second, e.StepEnded(name, step, "changed")))
    return describe_slow_download(fold_state(stream), last[min(rates, key=rates.__getitem__)])


def test_a_host_whose_wheels_crawl_is_named_with_source_rate_time_left_and_the_others() -> None:
    assert fetch({"a": 100 * MIB, "b": 93 << 10, "c": 5 * MIB}) == (
        "b: install from pypi.example at 93 KiB/s, at most 18 min left; c at 5.0 MiB/s; a had it sooner\n"
        "fetched once, here, and sent to the hosts:\n"
        "ipexctl install --torch 2.13.0 --venv /x --wheels-from controller"
    )


def test_all_hosts_that_crawl_are_one_line() -> None:
    text = fetch({"a": 90 << 10, "b": 93 << 10}, words=("play", "train.yaml"))
    assert text == "a, b: install from pypi.example at 90 KiB/s, at most 19 min left"


def test_what_crawls_to_the_controller_has_no_other_way() -> None:
    text = fetch({"": 90 << 10}, step="fetch the wheels")
    assert text == "fetch the wheels from pypi.example at 90 KiB/s, at most 19 min left"


def test_a_side_that_the_user_chose_is_not_changed() -> None:
    assert "ipexctl" not in (fetch({"a": 90 << 10}, words=(*WORDS, "--wheels-from", "hosts")) or "")


def test_what_comes_over_no_network_is_no_download() -> None:
    event = Progress("a", "install", 12 * (90 << 10), 100 * MIB, "B", "unpacking", local=True)
    stream = [Stamped(100.0, e.Started("install", "", ("a",), words=WORDS))]
    last = [Progress("a", "install", second * (90 << 10), 100 * MIB) for second in range(12)]
    stream += [Stamped(100.0 + second, each) for second, each in enumerate(last)]
    assert describe_slow_download(fold_state(stream), last[-1]) is not None
    assert describe_slow_download(fold_state(stream), event) is None


@pytest.mark.parametrize(("rate", "seconds"), [(90 << 10, 9), (2 * MIB, 20), (0, 20), (1, 20)])
def test_nothing_is_said_of_what_began_just_now_ends_soon_or_waits(rate: int, seconds: int) -> None:
    assert fetch({"a": rate}, seconds) is None
