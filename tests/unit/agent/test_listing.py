"""The runs of a host are found although the environments they were started from are gone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ipexctl.act import run_control
from ipexctl.act.run_control import RemoteRunDir
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.model.hosts import Host
from ipexctl.model.links import LinkError
from ipexctl.protocol import journal
from ipexctl.protocol.messages import RunListing, StopRun
from ipexctl.protocol.paths import ROLE, RUNS
from tests.unit.agent.runs import SPEC

HERE = Host("here", "localhost")
GONE = "/removed/bin/python"


@pytest.fixture
def link(tmp_path: Path) -> LocalLink:
    return LocalLink(HERE, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def ended(link: LocalLink, home: Path, run: str, python: str) -> RemoteRunDir:
    """A run that ended there."""
    site = RemoteRunDir(HERE, f"{home}/{RUNS}/{run}-h0", python)
    run_control.prepare(link, site, SPEC._replace(run=run))
    (home / RUNS / f"{run}-h0" / "end.json").write_text(
        json.dumps(journal.KINDS.to_object(journal.RunEnd(run, "done")))
    )
    return site


def without_fallback(site: RemoteRunDir) -> None:
    """As versions before wrote it."""
    Path(site.directory, ROLE).write_text(f'#!/bin/sh\nexec {GONE} -E -s -S {site.directory}/agent.pyz "$@"\n')


def test_where_the_environment_is_gone_the_hosts_own_python_does(link: LocalLink, tmp_path: Path) -> None:
    site = ended(link, tmp_path, "0101-old", GONE)
    assert [row.run for row in run_control.runs(link).runs] == ["0101-old"]
    assert run_control.describe(link, site.directory).run == "0101-old"
    assert not run_control.send_order(link, site, StopRun("test")), "its keeper is gone"
    assert run_control.find_leftover_processes(link, site, "0101-old") == ()
    done = link.run(site.agent("watch", site.directory, "0", "0", "0", "once"))
    assert done.out.endswith(b"now"), done.err


def test_an_old_agent_that_does_not_start_hides_no_run(link: LocalLink, tmp_path: Path) -> None:
    without_fallback(ended(link, tmp_path, "0101-old", GONE))
    assert [row.run for row in run_control.runs(link).runs] == ["0101-old"]
    Path(tmp_path, RUNS, "0101-old-h0/agent.pyz").write_bytes(b"rubbish")
    ended(link, tmp_path, "0102-new", "python3")
    assert [row.run for row in run_control.runs(link).runs] == ["0101-old", "0102-new"]


def test_when_no_agent_starts_that_is_not_taken_for_no_runs(link: LocalLink, tmp_path: Path) -> None:
    assert run_control.runs(link) == RunListing()
    Path(ended(link, tmp_path, "0101-old", GONE).directory, "agent.pyz").write_bytes(b"rubbish")
    with pytest.raises(LinkError, match="its runs cannot be listed: "):
        run_control.runs(link)
