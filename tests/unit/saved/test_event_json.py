"""Events to JSON and back."""

import json
from dataclasses import replace

import pytest

from ipexctl.model import events as e
from ipexctl.model.answers import UnknownAnswer
from ipexctl.model.errors import Note
from ipexctl.model.events import Event, Stamped
from ipexctl.model.facts import Core, Facts, NumaNode
from ipexctl.model.reports import OutOfMemory, SeparateWorlds
from ipexctl.store import event_json
from tests.tables import read_table
from tests.unit.show import streams

EVERY = [*streams.doctor(12), *streams.install(3), *streams.run(2, fails=1), *streams.hostile()]
EVERY += streams.stamp([e.LauncherOutput("err", b"\xff"), e.RankEnded(3, "h", None, 11)])
SEPARATE = SeparateWorlds("never-met", {"1": 2}, "the ranks have not met", ("a cause",))
EVERY += streams.stamp([e.WorldsCompared(SEPARATE, 7.5), e.WorldsCompared(None)])
EVERY += streams.stamp([e.BackendChosen("gloo"), e.HostSilent("h", 12.0, 7.5)])
EVERY += streams.stamp([e.RendezvousChanged(1, "h", "10.0.0.1", "localhost", "1", 2, "/x/a.py:3", 7.5)])
EVERY += streams.stamp([e.RankEnded(4, "h", None, 9, oom=OutOfMemory(3, 4))])
EVERY += streams.stamp([e.HostSample("h", 7.5, 5.0, 1.5, 4, 3 << 30, 1 << 34)])
EVERY += streams.stamp([
    e.HostSample("h", 7.5, 5.0, 1.5, 4, 3, 9, 1, {"eth0": 5, "mlx5_0/1": 6}, {"eth0": 1 << 40}, 1, 2, 2100.5,
                 61.0, 440.25, {"cpu": 0.25, "io": 0.0}, (e.RankSample(0, 0.9, 1 << 33), e.RankSample(1, 0.0, 0))),
])  # fmt: skip
EVERY += streams.stamp([
    e.StudyStarted({"ppn": (1, 2), "allocator": ("tcmalloc",)}, {"script": "a.py"}, "it/s", False, 900.0, 7, 20),
    e.CandidateTried({"ppn": 2}, "dropped", 12.5, 10.0, {"it/s": 1.5}, "too slow"),
])  # fmt: skip


def test_the_streams_hold_every_kind_of_event() -> None:
    assert {type(stamped.event) for stamped in EVERY} == set(Event.__subclasses__())


def test_every_event_comes_back_equal_through_json() -> None:
    for stamped in EVERY:
        line = event_json.dump_ascii_json(event_json.encode_event(stamped))
        assert line.isascii()
        assert line.isprintable()
        back = event_json.decode_event(json.loads(line))
        assert event_json.encode_event(back) == event_json.encode_event(stamped)
        assert type(back.event) is type(stamped.event)
        if not isinstance(stamped.event, e.Answer) or not isinstance(stamped.event.value, UnknownAnswer):
            assert back == stamped


def test_bytes_that_are_not_utf8_are_text_and_base64() -> None:
    line = event_json.encode_event(Stamped(1.0, e.Output(0, "h", "out", b"a\xff\n")))
    assert (line["data"], line["data_base64"]) == ("a\ufffd\n", "Yf8K")
    assert "data_base64" not in event_json.encode_event(Stamped(1.0, e.Output(0, "h", "out", "é".encode())))


def test_numbers_that_json_does_not_know_become_null() -> None:
    line = event_json.encode_event(
        Stamped(1.0, e.FactsRead("h", Facts(load=float("nan"), cgroup_cpus=float("inf"), clock=1.5)))
    )
    facts = json.loads(event_json.dump_ascii_json(line))["facts"]
    assert (facts["load"], facts["cgroup_cpus"], facts["clock"]) == (None, None, 1.5)


def test_facts_that_have_forms_of_their_own_in_json_come_back() -> None:
    """CPU lists as the kernel writes them, also below a mapping; flags as one text; of a reason its sentence."""
    facts = Facts(
        cpus_online=(0, 1, 8),
        numa=(NumaNode(0, (0, 1)),),
        hybrid={"p_cpus": (0, 1), "e_cpus": (8,)},
        flags=frozenset({"avx512f", "avx2"}),
        isa_refused={"AMX": Note("", "no XTILEDATA permission")},
        cores=(Core((0,), 0),),
    )
    line = json.loads(event_json.dump_ascii_json(event_json.encode_event(Stamped(1.0, e.FactsRead("h", facts)))))
    shown = line["facts"]
    assert (shown["cpus_online"], shown["hybrid"]["p_cpus"], shown["flags"]) == ("0-1,8", "0-1", "avx2 avx512f")
    assert shown["isa_refused"] == {"AMX": "no XTILEDATA permission"}
    assert "cores" not in shown
    assert event_json.decode_event(line).event == e.FactsRead("h", replace(facts, cores=()))


@pytest.mark.parametrize("cpus", ["0-9_000_000", "0- 9000000", "0-+9000000", "\\u0030-9000000", "0-\\u0039000000"])
def test_a_list_of_cpus_is_bounded_however_it_is_written(cpus: str) -> None:
    """One of 10^9 took all memory: blanks, signs, underscores and escapes hid its digits."""
    line = f'{{"at": 1, "event": "facts-read", "host": "h", "facts": {{"cpus_online": "{cpus}"}}}}'
    for data in (line.encode(), line.encode("utf-16")):
        with pytest.raises(event_json.DamagedRecordError):
            event_json.decode_event(event_json.read_line(data))


@pytest.mark.parametrize("line", read_table("event_json/what_is_not_an_event_is_reported_to_be_damaged"))
def test_what_is_not_an_event_is_reported_to_be_damaged(line: dict[str, object]) -> None:
    with pytest.raises(event_json.DamagedRecordError):
        event_json.decode_event(line)


@pytest.mark.parametrize("key", ["hosts", "ranks"])
def test_more_names_than_a_run_can_have_are_no_event(key: str) -> None:
    """The page of a run of three million ranks took gigabytes, and minutes."""
    record = {"at": 1.0, "event": "started" if key == "hosts" else "run-started", key: ["h"] * 65_537}
    record |= {"verb": "run", "title": "x"} if key == "hosts" else {"run": "r", "head": "h", "command": "c"}
    with pytest.raises(event_json.DamagedRecordError, match="more than 65,536"):
        event_json.decode_event(record)
