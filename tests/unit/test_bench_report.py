"""What a bench says: every form has a row, what was not measured says why, and nothing is made up."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Generator
from typing import Any

import pytest

from ipexctl.data import read_data
from ipexctl.decide import bench_report
from ipexctl.model import events as e
from ipexctl.model.answers.bench import BenchResult
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.facts import Facts
from ipexctl.model.hints import advise
from ipexctl.model.toml import parse_toml
from ipexctl.show import chart
from ipexctl.show.answers.bench import format_rows
from ipexctl.show.pipe import Pipe
from ipexctl.show.sinks import Plain
from ipexctl.verbs.common.nested import collect_metrics
from tests.unit.show.streams import feed, fold_state

WAYS = [("stock", "eager"), ("stock", "compile"), ("ipex", "eager")]


def line(
    engine: str, how: str, dtype: str, rate: float | None, mode: str = "train", why: str = "", measured: int = 10
) -> dict[str, Any]:
    times = {"median_s": 8 / rate, "quartiles_s": [7.6 / rate, 8.8 / rate]} if rate else {}
    form = {"mode": mode, "engine": engine, "how": how, "dtype": dtype, "measured": measured}
    return {**form, **times, "samples_per_s": rate, "why": why}


ALONE = [
    ("node0", line("stock", "eager", "fp32", 10.0)),
    ("node1", line("stock", "eager", "fp32", 20.0)),
    ("node2", line("stock", "eager", "fp32", 30.0)),
    ("node0", line("stock", "eager", "bf16", 40.0)),
    ("node0", line("stock", "compile", "fp32", None, why="torch.compile needs a C++ compiler (g++)")),
    ("node0", line("stock", "eager", "fp32", 7.0, mode="infer")),
    ("node1", line("stock", "eager", "fp32", 8.0, mode="infer")),
]
TOGETHER = [("node0", line("stock", "eager", "fp32", 48.0)), ("node1", line("stock", "eager", "fp32", 47.0))]


def rows(mode: str) -> dict[str, BenchResult]:
    made = bench_report.build_rows((mode,), WAYS, ALONE, TOGETHER, {"ipex": bench_report.NO_IPEX})
    return {row.name: row for row in made}


def test_a_host_is_the_one_in_the_middle_and_the_cluster_is_what_was_measured_together() -> None:
    row = rows("train")["stock torch fp32"]
    assert (row.host, row.cluster) == (20.0, 48.0)
    assert rows("train")["stock torch bf16"].cluster is None


def test_the_inference_of_a_cluster_is_the_sum_of_its_hosts() -> None:
    assert rows("infer")["stock torch fp32"].cluster == 15.0


def test_every_form_has_a_row_and_says_why_it_was_not_measured() -> None:
    result = rows("train")
    assert list(result) == [
        "stock torch fp32", "stock torch bf16", "torch.compile fp32", "torch.compile bf16", "IPEX fp32", "IPEX bf16",
    ]  # fmt: skip
    assert result["IPEX bf16"].why == "not measured: no IPEX in this environment"
    assert "C++ compiler" in (result["torch.compile fp32"].why or "")
    assert result["torch.compile bf16"].why == "not measured"


def test_the_table_compares_with_stock_fp32_and_names_a_slow_host() -> None:
    lines = format_rows(tuple(rows("train").values()), "BERT", ["medians of 10 steps"])
    (bf16,) = [one for one in lines if one.startswith("stock torch bf16")]
    assert bf16.split()[3:8] == ["40.0", "8", "%", "-", "2.00"]
    assert bf16.endswith("█" * 24)
    assert "  slowest node0 10.0, fastest node2 30.0" in lines
    assert "IPEX fp32           not measured: no IPEX in this environment" in lines
    assert lines[-1] == "medians of 10 steps"


@pytest.mark.parametrize("width", [40, 54, 80])
def test_a_narrow_table_keeps_rate_spread_and_ratio(width: int) -> None:
    lines = format_rows(tuple(rows("train").values()), "BERT", (), width)
    (fp32,) = [one for one in lines if one.startswith("stock torch fp32")]
    assert len(fp32) <= width
    assert fp32.split()[3:5] == ["20.0", "8"]
    assert fp32.split()[-1] == "1.00" or width == 80
    assert ("48.0" in fp32) == (width >= 54)


@pytest.mark.parametrize("width", [40, 60])
def test_no_two_cells_of_a_table_touch(width: int) -> None:
    rates = {"fp32": (12403.6, 14000.0), "bf16": (18.51, 9.7)}
    lines = [
        (
            f"node{n}",
            {**line("stock", "eager", dtype, rate, mode="infer"), "quartiles_s": [0.1 * 8 / rate, 6 * 8 / rate]},
        )
        for dtype, each in rates.items()
        for n, rate in enumerate(each)
    ]
    table = format_rows(bench_report.build_rows(("infer",), [("stock", "eager")], lines, [], {}), "", (), width)
    fp32, bf16 = (one.split() for one in table if one.startswith("stock torch"))
    assert (fp32[3:6], fp32[-1]) == (["13202", "295", "%"], "1.00")
    assert bf16[-1] == "0.001", "a ratio is never shown as 0"


def facts(cores: int, level: str | None) -> Facts:
    return Facts(isa_level=level, cpus_online=tuple(range(cores)))


PEAKS = bench_report.PeakTable(**parse_toml(read_data("peaks.toml")))


def refusal(slow: float, fast: float, *hosts: Facts, dtype: str = "fp32", measured: int = 10) -> str | None:
    rates = {"node0": slow, "node1": fast}
    lines = [(host, line("stock", "eager", dtype, rate, measured=measured)) for host, rate in rates.items()]
    peaks = bench_report.compute_peaks({f"node{n}": host for n, host in enumerate(hosts)}, PEAKS)
    made = bench_report.build_rows(("train",), [("stock", "eager")], lines, [], {}, peaks)
    (row,) = [row for row in made if row.dtype == dtype]
    assert row.host == (None if row.refused else (slow + fast) / 2)
    return row.refused


def test_two_equal_hosts_1100_times_apart_are_no_result() -> None:
    equal = facts(4, "AVX512_BF16")
    why = refusal(0.04, 44.0, equal, equal) or ""
    assert "node0 0.04 and node1 44 are 1,100 times apart, by their processors 5 at most" in why
    assert refusal(0.04, 44.0), "nothing is known of their processors"
    assert refusal(10.0, 44.0, equal, equal) is None


def test_hosts_may_be_as_far_apart_as_their_cores_and_instructions_are() -> None:
    small, large = facts(4, "AVX2"), facts(64, "AMX")
    assert refusal(1.0, 100.0, small, large) is None
    assert refusal(1.0, 200.0, small, large) is not None
    assert refusal(1.0, 2000.0, small, large, dtype="bf16") is None
    assert refusal(1.0, 100.0, large, small) is not None


def test_few_steps_are_no_result() -> None:
    assert refusal(1.0, 1.0, measured=4) == "4 steps measured, 5 are the least"
    lines = [("a", line("stock", "eager", "fp32", 1.0, measured=1))]
    table = format_rows(bench_report.build_rows(("train",), WAYS, lines, [], {}), "")
    assert "stock torch fp32    no result: 1 step measured, 5 are the least" in table


def test_a_cluster_faster_than_its_hosts_is_no_result() -> None:
    alone = [("a", line("stock", "eager", "fp32", 1.0)), ("b", line("stock", "eager", "fp32", 1.0))]
    joint = [("a", line("stock", "eager", "fp32", 30.0))]
    row = bench_report.build_rows(("train",), WAYS, alone, joint, {})[0]
    assert row.refused == "all hosts together 30, the sum of each alone 2: they were disturbed alone"


def test_what_the_workers_write_is_shown_in_words() -> None:
    measured = {"bench": "bert", **line("ipex", "eager", "bf16", 12.34)}
    failed = {"bench": "bert", **line("stock", "compile", "fp32", None, why="no compiler")}
    others = ['{"bench": "bert", "x": 1}', '{"bench": [', '{"loss": 1.5}', "plain"]
    written = "".join(f"{each}\n" for each in (json.dumps(measured), json.dumps(failed), *others)).encode()
    event = e.Output(0, "a", "out", written)
    words = ["training, IPEX bf16: 12.3 samples/s", "training, torch.compile fp32: not measured: no compiler", *others]
    assert show(event) == [f"0│{each}" for each in words]
    assert show(event, raw=True) == [f"0│{each}" for each in written.decode().splitlines()]
    stream = [e.Stamped(1.0, e.RunStarted("k7", "a", ("a",), "mpirun")), e.Stamped(1.0, event)]
    (lines,) = fold_state(stream).lines
    assert lines.data.decode().splitlines() == words


def test_a_run_that_measures_saves_what_its_ranks_wrote_and_never_advises_to_share_hosts() -> None:
    written = e.Output(0, "a", "out", json.dumps({"bench": "bert", **line("ipex", "eager", "bf16", 12.34)}).encode())
    hint = advise(
        "stop",
        "k7",
        text="wait for it (run --wait), start beside it (run --share; in a playbook: share: true), or stop it:",
    )
    other = e.HostFailed(Failure("b", Kind.STEP, "no space", "make room", "disk"))

    def run() -> Generator[e.Event, None, None]:
        yield written
        yield e.HostFailed(Failure("a", Kind.BUSY, "busy with run k7", hint, "busy"))
        yield other

    output, busy, *rest = collect_metrics(run())
    assert (output, rest) == (written, [other])
    assert isinstance(busy, e.HostFailed)
    assert busy.failure.hint == "wait for it, or stop it:\nipexctl stop k7"


def show(event: e.Output, *, raw: bool = False) -> list[str]:
    """The lines that ``logs`` prints of an output."""
    out, err = io.BytesIO(), io.BytesIO()
    plain = Plain(Pipe(out), Pipe(err), raw=raw)
    feed(plain, [e.Stamped(1.0, event)])
    return out.getvalue().decode().splitlines()


def test_a_rate_that_is_no_number_is_none() -> None:
    odd = [("node0", line("stock", "eager", "fp32", True)), ("node0", line("stock", "eager", "fp32", -1.0))]
    (row, _) = bench_report.build_rows(("train",), [("stock", "eager")], odd, [], {})
    assert (row.host, row.why) == (None, "not measured")


@pytest.mark.parametrize("quartiles", [None, [0.1], ["a", 0.2]])
def test_a_spread_that_cannot_be_computed_is_none(quartiles: object) -> None:
    rate = line("stock", "eager", "fp32", 48.0) | {"quartiles_s": quartiles}
    (row, _) = bench_report.build_rows(("train",), [("stock", "eager")], [("node0", rate)], [], {})
    assert (row.host, row.spread) == (48.0, {})


def test_the_picture_is_xml_with_a_bar_for_each_number_whatever_the_labels() -> None:
    bars_of = {"training": [("fp32", 10.0, ""), ("bf\x1b16", 20.0, ""), ("IPEX", None, "none")]}
    picture = chart.draw_chart(read_data("chart.j2"), "BERT <&>", bars_of, "x/s")
    root = ET.fromstring(picture)
    bars = [float(bar.get("width", "0")) for bar in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert len(bars) == 2
    assert bars[1] == 2 * bars[0]
    assert "\x1b" not in picture
