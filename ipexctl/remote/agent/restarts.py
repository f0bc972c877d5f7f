"""Whether another attempt of a run follows one that has ended: pure, for `keeper_state`."""

import re
from typing import Any, Tuple

from ipexctl.protocol import rank_records
from ipexctl.protocol.journal import Reason

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_USAGE = 2  # the status of a script that refuses its arguments, as argparse's


def describe_place(end: "rank_records.RankEnded") -> str:
    """Returns where a rank failed, with its exception; "" where that is not known."""
    frames = _FRAME.findall(end.traceback)
    return "%s:%s: %s" % (frames[-1] + (end.error,)) if frames and end.error else ""


def judge_end(run: "Any") -> "Tuple[bool, str]":
    """Returns whether this attempt of a run (`KeeperRun`) is followed by another, and if not for a reason that the user
    cannot know, that."""
    spec = run.spec
    if not spec.restarts or run.halted:
        return False, ""
    stalled = run.reason == Reason.LIMIT and run.verdict and spec.head_spec.stall_restart
    failed = run.reason in (Reason.RANK, Reason.LOST) or (run.reason == Reason.LAUNCH and run.restart > 0)
    if not failed and not stalled:
        return False, ""
    if run.reason == Reason.RANK and run.failure.status == _USAGE:
        return False, "not started again: exit status 2 is a refusal of its arguments"
    same = run.failure.where and run.failure[1:] == run.before[1:]  # no newer checkpoint is known since
    if run.reason == Reason.RANK and same:
        return False, "not started again: the attempt before failed there too, %s" % run.failure.where
    if run.restart >= spec.restarts:
        return False, "no restart is left of %d" % spec.restarts
    return True, ""
