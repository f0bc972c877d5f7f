"""Pages as HTML: whole, safe, bounded, and never the reason why a run fails."""

import base64
import hashlib
import re
import stat
from collections.abc import Generator, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ipexctl import loop
from ipexctl.act.context import Context
from ipexctl.act.ssh import Links
from ipexctl.model import events as e
from ipexctl.model.answers.doctor import LinkSpeed
from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.events import Stamped
from ipexctl.model.facts import Facts, NumaNode
from ipexctl.model.page import Curve, Figure
from ipexctl.model.profile import OperatorTime, Profile, ProfiledRank
from ipexctl.model.reports import Diagnosis, SeparateWorlds
from ipexctl.show.page.drawings import choose_scale, draw_chart, draw_heat_map, draw_topology
from ipexctl.show.page.render import render_run
from ipexctl.show.page.verdict import make_verdict
from ipexctl.store.masking import Masker
from ipexctl.store.record import RunRecord, make_name
from ipexctl.verbs.common.known_errors import read_known_errors
from ipexctl.verbs.common.pages import write_page
from ipexctl.verbs.run.page_sink import PAGE, PageSink
from ipexctl.verbs.run.report import read_page
from tests.unit.page.runs import EVIL, KINDS, fold_page, make_doctor, make_run
from tests.unit.page.test_build import read_recorded
from tests.unit.show.streams import START, feed, fold, names, save


class Reader(HTMLParser):
    """The elements of a page with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = [*self._inside, tag] if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside[:-1] if tag in ("script", "style") else self._inside

    def handle_data(self, data: str) -> None:
        self.text += "" if self._inside else data


def test_a_finding_that_the_run_refutes_is_not_shown() -> None:
    doctor = make_doctor(names(2))
    late = replace(doctor.findings[0], code="STK004", title="has no environment yet", momentary=True)
    text = Reader(render_run(fold_page(make_run("good"), replace(doctor, findings=(*doctor.findings, late))))).text
    assert doctor.findings[0].title in text
    assert late.title not in text


def test_ranks_that_have_not_met_make_a_good_end_a_warning() -> None:
    separate = SeparateWorlds("never-met", {"1": 4}, "the ranks have not met", ("for this reason",))
    events = [*make_run("good")]
    middle = len(events) // 2
    compared = Stamped(events[middle].at, e.WorldsCompared(separate))
    page = fold_page([*events[:middle], compared, *events[middle:]])
    verdict = make_verdict(page)
    assert verdict.state == "warn"
    assert verdict.headline.endswith(", but did not work together")
    assert verdict.lines == ("the ranks have not met",)
    assert ("why", "for this reason") in verdict.details
    assert "the ranks have not met" in Reader(render_run(page)).text


def test_the_exception_stands_above_the_end_of_a_message_of_many_lines() -> None:
    last = "ValueError: a bad loc\n" + "\n".join(f"tensor {n}" for n in range(40))
    failed = [
        Stamped(each.at, replace(each.event, error=last, traceback=f"Traceback\n{last}"))
        if isinstance(each.event, e.RankEnded) and each.event.status
        else each
        for each in make_run("failed")
    ]
    lines = make_verdict(fold_page(failed)).lines
    assert (lines[:3], lines[-1]) == (("ValueError: a bad loc", "…", "tensor 12"), "tensor 39")


@pytest.mark.parametrize(("detail", "state"), [("measured", "good"), ("dropped", "good"), ("ipexctl stop", "warn")])
def test_a_launch_that_a_study_ended_is_no_failure(detail: str, state: str) -> None:
    stopped = [
        Stamped(each.at, replace(each.event, detail=detail)) if isinstance(each.event, e.RunEnded) else each
        for each in make_run("hang")
    ]
    page = fold_page(stopped)
    assert make_verdict(page).state == state


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_one_file_that_loads_nothing_and_runs_only_our_script(kind: str) -> None:
    html = render_run(fold_page(make_run(kind), make_doctor(names(2))))
    reader = Reader(html)
    counts = [tag for tag, _ in reader.elements]
    assert (counts.count("script"), counts.count("style"), counts.count("img"), counts.count("link")) == (1, 1, 0, 0)
    for tag, attributes in reader.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")], (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(attributes["content"] or "" for tag, attributes in reader.elements if "http-equiv" in attributes)
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        inner = re.search(f"<{tag}>(.*)</{tag}>", html, re.DOTALL)
        assert inner
        digest = base64.b64encode(hashlib.sha256(inner[1].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_what_ranks_hosts_and_files_are_called_is_text_and_nothing_else() -> None:
    def poison(value: str) -> str:
        return EVIL if value in ("xeon02", "train.py") else value

    def rename(event: e.Event) -> e.Event:
        if isinstance(event, e.RunStarted):
            return replace(event, ranks=tuple(map(poison, event.ranks)), title=EVIL)
        if isinstance(event, e.Planned):
            return replace(event, text=EVIL)
        return replace(event, host=poison(event.host)) if hasattr(event, "host") else event  # type: ignore[call-arg]

    stream = [Stamped(each.at, rename(each.event)) for each in make_run("failed", script=EVIL)]
    page = fold_page(stream)
    html = render_run(replace(page, rows=tuple(replace(row, straggles=f"{EVIL} is slow") for row in page.rows)))
    reader = Reader(html)
    assert [tag for tag, _ in reader.elements].count("script") == 1
    assert not [attributes for _, attributes in reader.elements if "onerror" in attributes]
    assert '</title></p><script>alert("rank")</script>' in reader.text
    assert "{{ 7 * 7 }}" in reader.text
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert r"\x1b[2J\u202e" in reader.text


def test_the_page_says_the_first_cause_each_variable_with_its_reason_and_each_section() -> None:
    text = Reader(render_run(fold_page(make_run("failed"), make_doctor(names(2))))).text
    assert "✗ rank 3 on xeon02 exited with code 1 after" in text
    assert "ValueError" in text
    for words in ("one thread per core of the rank", "ens1f1", "socket 1 · NUMA 1 · CPUs 56-111", "19.2", "NET004"):
        assert words in text
    for title in ("Time", "Figures of the script", "Hosts over time", "Network", "Plan", "Stack", "Findings", "Logs"):
        assert title in text


def test_a_known_error_has_its_words_and_the_whole_command() -> None:
    page = fold_page(make_run("failed"))
    assert page.report.run
    known = Diagnosis(
        "x", "native code crashed", "", "whether it is the release:", command=advise("doctor", "--verify")
    )
    page = replace(page, report=replace(page.report, run=replace(page.report.run, diagnosis=known)))
    assert "whether it is the release: ipexctl doctor --verify" in Reader(render_run(page)).text


def list_legends(html: str) -> list[tuple[str, ...]]:
    """The words of each legend of a page: that of the time axis, then those of the charts."""
    lists = re.findall(r'<ul class="legend">(.*?)</ul>', html, re.DOTALL)
    return [tuple(Reader(item).text.strip() for item in each.split("</li>")[:-1]) for each in lists]


@pytest.mark.parametrize(("ranks", "hosts", "words"), [
    (2, 2, ("rank 0", "rank 1")),
    (16, 2, ("rank 0", "rank 1", "15 ranks, least to greatest")),  # rank 1 is slower
])  # fmt: skip
def test_every_curve_and_mark_has_its_legend(ranks: int, hosts: int, words: tuple[str, ...]) -> None:
    html = render_run(fold_page(make_run("good", ranks, hosts)))
    axis, loss, *_ = list_legends(html)
    assert axis[:6] == ("start", "Python", "torch", "rendezvous", "setup of the script", "running")
    assert axis[6:7] == ("✓ ended well",)
    assert axis[7:] == (("◀ slower than the others",) if ranks > 2 else ())
    assert loss == words
    names = [attributes["data-name"] for tag, attributes in Reader(html).elements if tag == "polyline"]
    assert {name for name in names if name and name.startswith("rank")} == {*words} - {"15 ranks, least to greatest"}


def test_a_loss_that_is_no_number_is_said_in_the_figures_the_verdict_and_the_chart() -> None:
    page = fold_page(read_recorded("nan"))
    html = render_run(page)
    assert "2.5 → 2.39 → no number" in Reader(html).text
    assert "● the run was stopped" in Reader(html).text
    assert any(name.startswith("no number from 00:00:") for name in list_legends(html)[1])
    assert re.search('<line [^>]*class="nan"', html)
    good = replace(page.report.run, reason="done") if page.report.run else None
    ranks = tuple(replace(rank, state="ok") for rank in good.ranks) if good else ()
    report = replace(page.report, run=replace(good, ranks=ranks) if good else None)
    assert make_verdict(replace(page, report=report)).headline.endswith(", but the loss is no number")


@pytest.mark.parametrize("name", ["cable", "exception", "nan", "slow-host"])
def test_figures_and_verdict_say_the_same_time(name: str) -> None:
    html = render_run(fold_page(read_recorded(name)))
    took = re.search(r"<dt>time</dt><dd>([^<]*)</dd>", html)
    assert took
    assert f"after {took[1]}" in Reader(html).text


def test_a_band_holds_each_of_its_curves_and_ends_at_a_restart() -> None:
    curves = tuple(Curve(f"rank {n}", tuple((at + n / 10, n + at) for at in range(0, 100, 10))) for n in range(6))
    drawing = draw_chart(Figure("loss", "loss", "", "rank", curves), 100, breaks=(55.0,))
    first, second = (
        [tuple(map(float, point.split(","))) for point in points.split()]
        for points in re.findall(r'<polygon points="([^"]*)"', drawing)
    )
    assert max(x for x, _ in first) < 550 < min(x for x, _ in second)
    heights = [max(y for at, y in first if at == x) - min(y for at, y in first if at == x) for x, _ in first]
    assert min(heights[5:20]) > 3  # also where only some of them have a point


def test_harmless_lines_are_folded_and_logs_are_cut_in_the_middle() -> None:
    stream = list(make_run("good"))
    noise = [
        Stamped(START + 12, e.Output(0, "xeon01", "err", b"x" * 3000 + b"\n" if n % 2 else b"<" * 900 + b"\n"))
        for n in range(9000)
    ]
    html = render_run(fold_page([*stream[:60], *noise, *stream[60:]]))
    assert "of this rank&#39;s output are left out" in html
    assert len(html) < 15 << 20


def make_long_run() -> Iterator[Stamped]:
    """64 ranks for 24 hours; each writes more than its page can hold, of characters that grow when they are escaped."""
    for number, stamped in enumerate(make_run("good", 64, 8, 86_400, 960.0)):
        yield stamped
        if isinstance(stamped.event, e.Output) and number % 50 < 25:
            data = b'<\x1b&"' * 500 + b"\n" + b"a line of a script\n" * 8
            yield Stamped(stamped.at, replace(stamped.event, data=data))


def test_the_page_of_64_ranks_and_24_hours_is_below_15_mb() -> None:
    page = fold_page(make_long_run())
    assert page.length > 86_000
    html = render_run(page)
    assert 1_000_000 < len(html.encode()) < 15_000_000


def test_a_profile_is_part_of_the_page() -> None:
    rank = ProfiledRank(0, "xeon01", 5, 1.0, 0.4, 0.2, 0.1)
    profile = Profile("k7", 3, 7, (rank,), operators=(OperatorTime(EVIL, 10, 0.5),))
    stream = [*make_run("good"), Stamped(START + 99, e.Answer(RunAnswer("k7", "done", False, profile)))]
    reader = Reader(render_run(fold_page(stream)))
    assert "profile of steps 3 to 7" in reader.text
    assert "alert" in reader.text
    assert [tag for tag, _ in reader.elements].count("script") == 1
    assert "profile of steps" not in Reader(render_run(fold_page(make_run("good")))).text


def test_a_run_that_ended_well_without_a_host_is_no_good_one_and_no_curve_goes_over_its_restart() -> None:
    stream = [each for each in make_run("lost") if not isinstance(each.event, e.CleanupChecked)]
    again = next(each.at for each in stream if isinstance(each.event, e.RunStarted) and each.at > START + 9)
    stream += [Stamped(again + 8 + n, e.Output(0, "xeon01", "out", b"step 1 loss 1.5\n")) for n in range(3)]
    page = fold_page(sorted(stream, key=lambda each: each.at))
    html = render_run(page)
    assert "● 2 ranks on 1 host ended well" in Reader(html).text
    lines = [dict(attributes) for tag, attributes in Reader(html).elements if tag == "polyline"]
    loss = next(figure for figure in page.figures if figure.key == "loss")
    cut = 1000 * page.restarts[0] / page.length
    of_rank = [line for line in lines[: 2 * len(loss.curves)] if line["data-name"] == "rank 0"]
    places = [[float(point.split(",")[0]) for point in (line["points"] or "").split()] for line in of_rank]
    assert len(places) >= 2
    assert max(places[0]) < cut < min(places[1])


# the record -------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    record = RunRecord(tmp_path / "runs", make_name(START))
    stream = list(make_run("failed"))
    token = Stamped(START + 30, e.Output(0, "xeon01", "out", b"using hf_abcdefghijklmnopqrstuv and hunter2!\n"))
    return save(record, [*stream[:100], token, *stream[100:]]).directory


def make_context(state: Path, environ: dict[str, str]) -> Context:
    return Context(Links(), state, state, masker=Masker(environ))


def test_a_saved_run_is_drawn_again_as_it_was_and_secrets_are_masked(saved: Path) -> None:
    page = read_page(saved, make_context(saved.parent, {"MY_TOKEN": "hunter2!"}), read_known_errors)
    fresh = fold_page(make_run("failed"))
    assert [row.spans for row in page.rows] == [row.spans for row in fresh.rows]
    assert page.launch == fresh.launch
    text = render_run(page)
    assert "using *** and ***" in text
    assert "hunter2" not in text
    assert "hf_abc" not in text


def test_a_record_without_ranks_has_no_page(tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "runs", make_name(START))
    record.handle_event(Stamped(START, e.Started("sync", "", ())))
    record.close(None)
    with pytest.raises(UsageError, match="no rank was started"):
        read_page(record.directory, make_context(tmp_path, {}), read_known_errors)


def test_each_run_leaves_its_page_readable_for_its_owner_alone(tmp_path: Path) -> None:
    warnings: list[str] = []
    sink = PageSink(tmp_path, tmp_path, warnings.append)
    stream = list(make_run("good"))
    feed(sink, stream)
    sink.close(fold(stream))
    sink.close(fold(stream))
    assert stat.S_IMODE((tmp_path / PAGE).stat().st_mode) == 0o600
    assert "ended well" in (tmp_path / PAGE).read_text()
    assert not warnings


def test_the_page_and_the_report_name_the_backend_that_was_used() -> None:
    assert "Intel MPI 2021.18.1 · ccl · " in render_run(fold_page(make_run()))
    events = [*make_run()]
    at = next(number for number, each in enumerate(events) if isinstance(each.event, e.RunStarted)) + 1
    page = fold_page([*events[:at], Stamped(events[at].at, e.BackendChosen("gloo")), *events[at:]])
    assert page.report.run
    assert page.report.run.backend == "gloo"
    assert "Intel MPI 2021.18.1 · gloo (planned: ccl) · " in render_run(page)


def test_a_page_that_cannot_be_made_is_one_warning_and_nothing_else(tmp_path: Path) -> None:
    warnings: list[str] = []
    stream = list(make_run("good"))
    (tmp_path / "file").touch()
    sink = PageSink(tmp_path / "file", tmp_path, warnings.append)  # not a directory
    feed(sink, stream)
    sink.close(fold(stream))
    assert len(warnings) == 1
    assert "the run is not affected" in warnings[0]

    sink = PageSink(tmp_path, tmp_path, warnings.append)
    feed(sink, stream).run.attempts[0].ranks[0].host = 7  # type: ignore[assignment]
    sink.close(fold(stream))
    assert len(warnings) == 2
    assert not (tmp_path / PAGE).exists()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_recorded_command_leaves_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    monkeypatch.setattr(loop, "get_state_directory", lambda: tmp_path)
    monkeypatch.setattr(loop, "get_cache_directory", lambda: tmp_path)

    def workflow(_: object) -> Generator[e.Event, None, None]:
        yield from (stamped.event for stamped in make_run("good"))

    options = loop.OutputOptions(output="plain", report=wanted)
    assert loop.run_command(workflow, options, acting=True) is Exit.OK
    [record] = (tmp_path / "runs").iterdir()
    assert (record / PAGE).is_file() == wanted


def test_a_page_replaces_a_file_whole_and_never_writes_through_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link.html"
    target.write_text("mine")
    link.symlink_to(target)
    with pytest.raises(UsageError, match="not a regular file"):
        write_page(link, "page")
    assert target.read_text() == "mine"
    write_page(target, "page \udcff")
    assert target.read_text() == "page ?"
    assert {path.name for path in tmp_path.iterdir()} == {"target", "link.html"}


# drawings ---------------------------------------------------------------------------------------------------------


def test_axes_have_round_numbers_around_all_values() -> None:
    assert choose_scale([0.3, 2.31]) == (0.0, 2.5)
    assert choose_scale([98.0, 99.0]) == (98.0, 99.0)
    assert choose_scale([98.0, 99.0], zero=True) == (0.0, 100.0)
    low, high = choose_scale([5.0])
    assert low < 5 < high
    low, high = choose_scale([-1e-12, 1e12])
    assert low <= -1e-12 < 1e12 <= high


@pytest.mark.parametrize("values", [(1e308, -1e308), (1.7e308,), (5e-324,), (0.0, 5e-324)])
def test_values_that_have_no_scale_of_their_own_are_drawn(values: tuple[float, ...]) -> None:
    """A run whose ranks printed them had no page, and `report` ended with exit code 70."""
    low, high = choose_scale(values)
    assert low < high
    curve = Curve("rank 0", tuple((float(at), value) for at, value in enumerate(values)))
    assert "inf" not in draw_chart(Figure("loss", "loss", "", "rank", (curve,)), 2.0)


def test_a_time_before_all_runs_takes_no_time_to_draw() -> None:
    """One sample of a host held the page without an end, and took all memory."""
    curve = Curve("rank 0", ((-9e15, 1.0), (1.0, 2.0), (9e15, 2.0)))
    drawing = draw_chart(Figure("rank cpu", "CPU per rank", "cores", "rank", (curve,) * 5), 2.0)
    assert len(drawing) < 20_000


def test_the_name_of_a_socket_is_harmless() -> None:
    drawing = draw_topology("a", Facts(cpus_online=(0,), socket_cpus={"\x1b[31m\u202e<\udc80": (0,)}), None)
    assert r"socket \x1b[31m\u202e&lt;\x80 · CPUs" in drawing


def test_processors_and_links_without_an_end_are_drawn_in_part() -> None:
    """Hosts that tell of 262,144 CPUs each, in 30 bytes, made a page of gigabytes."""
    nodes = (NumaNode(0, tuple(range(1 << 18))), NumaNode(1, (1 << 18,)))
    assert draw_topology("a", Facts(numa=nodes, socket_cpus={"0": nodes[0].cpus}), None).count("<rect") == 2_049
    hosts = [f"h{number}" for number in range(3_000)]
    assert draw_heat_map(hosts, [LinkSpeed("h0", "h1", 1e-5, 1e9)], "latency").count("<rect") == 256**2


def test_only_a_page_that_is_served_asks_for_itself_again() -> None:
    page = fold_page([Stamped(START, e.RunStarted("k7", "a", ("a",), "train.py", START))])
    assert "No rank wrote anything." in render_run(page)
    for renew in (True, False):
        (body,) = (attributes for tag, attributes in Reader(render_run(page, renew=renew)).elements if tag == "body")
        assert ("data-renew" in body) == renew
