"""What a bench says: every form has a row, what was not measured says why, and nothing is made up."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from ipexctl.data import read_data
from ipexctl.decide import bench_report
from ipexctl.model.answers import BenchResult
from ipexctl.show import chart

WAYS = [("stock", "eager"), ("stock", "compile"), ("ipex", "eager")]


def line(engine: str, how: str, dtype: str, rate: float | None, mode: str = "train", why: str = "") -> dict[str, Any]:
    return {"mode": mode, "engine": engine, "how": how, "dtype": dtype, "samples_per_s": rate, "why": why}


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
    found = rows("train")
    assert list(found) == [
        "stock torch fp32", "stock torch bf16", "torch.compile fp32", "torch.compile bf16", "IPEX fp32", "IPEX bf16",
    ]  # fmt: skip
    assert found["IPEX bf16"].why == "not measured: no IPEX in this environment"
    assert "C++ compiler" in (found["torch.compile fp32"].why or "")
    assert found["torch.compile bf16"].why == "not measured"


def test_the_table_compares_with_stock_fp32_and_names_a_slow_host() -> None:
    text = bench_report.format_rows(tuple(rows("train").values()), "BERT", ["medians of 10 steps"])
    lines = text.splitlines()
    (bf16,) = [one for one in lines if one.startswith("stock torch bf16")]
    assert bf16.split()[3:6] == ["40.0", "-", "2.00"]
    assert bf16.endswith("█" * 24)
    assert "slowest node0 10.0, fastest node2 30.0" in text
    assert "IPEX fp32           not measured: no IPEX in this environment" in lines
    assert lines[-1] == "medians of 10 steps"


def test_a_rate_that_is_no_number_is_none() -> None:
    odd = [("node0", line("stock", "eager", "fp32", True)), ("node0", line("stock", "eager", "fp32", -1.0))]
    (row, _) = bench_report.build_rows(("train",), [("stock", "eager")], odd, [], {})
    assert (row.host, row.why) == (None, "not measured")


def test_the_picture_is_xml_with_a_bar_for_each_number_whatever_the_labels() -> None:
    bars_of = {"training": [("fp32", 10.0, ""), ("bf\x1b16", 20.0, ""), ("IPEX", None, "none")]}
    picture = chart.draw_chart(read_data("chart.j2"), "BERT <&>", bars_of, "x/s")
    root = ET.fromstring(picture)
    bars = [float(bar.get("width", "0")) for bar in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert len(bars) == 2
    assert bars[1] == 2 * bars[0]
    assert "\x1b" not in picture
