"""oneDNN's lines leave a rank's output, whatever pieces it comes in, and nothing else does."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.protocol import hooks
from ipexctl.remote.agent import output_relay
from ipexctl.remote.agent.output_relay import OneDnnLog

VERBOSE = b"onednn_verbose,v1,primitive,exec,cpu,matmul\n"
TEXT = b"loss 0.5\n" + VERBOSE + b"on the way\r 40 %\r" + b"\n" + b"dnnl_verbose,exec\nonednn_verb\n" + VERBOSE + b"o"
PASSED = b"loss 0.5\non the way\r 40 %\r\nonednn_verb\no"


def read_stored(directory: Path) -> bytes:
    path = directory / hooks.PROFILE / f"3{hooks.KERNELS}"
    return path.read_bytes() if path.exists() else b""


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_the_pieces_do_not_matter(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    directory = tmp_path_factory.mktemp("run")
    log = OneDnnLog(str(directory), 3, {})
    ends = [0, *sorted(cuts), len(TEXT)]
    passed = b"".join(log.filter_output(TEXT[a:b]) for a, b in pairwise(ends)) + log.finish()
    assert passed == PASSED
    assert read_stored(directory) == VERBOSE + b"dnnl_verbose,exec\n" + VERBOSE


def test_who_asked_for_the_lines_gets_them_as_well(tmp_path: Path) -> None:
    log = OneDnnLog(str(tmp_path), 3, {"ONEDNN_VERBOSE": "1"})
    assert log.filter_output(TEXT) + log.finish() == TEXT
    assert read_stored(tmp_path).startswith(VERBOSE)


def test_what_is_stored_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_relay, "STORED_LIMIT", 100)
    log = OneDnnLog(str(tmp_path), 3, {})
    assert log.filter_output(VERBOSE * 50) + log.finish() == b""
    assert len(read_stored(tmp_path)) < 100 + len(VERBOSE)


def test_a_full_disk_does_not_reach_the_rank(tmp_path: Path) -> None:
    (tmp_path / hooks.PROFILE).write_text("a file in the way")
    log = OneDnnLog(str(tmp_path), 3, {})
    assert log.filter_output(TEXT) + log.finish() == PASSED
