"""Small traces as torch.profiler writes them."""

import gzip
import json
from typing import Any


def op(name: str, ts: float, dur: float, *, tid: int = 7, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 4902, "tid": tid, "ts": ts, "dur": dur, **more}


def work(name: str, ts: float, dur: float, tid: int = 9) -> dict[str, Any]:
    return op(name, ts, dur, tid=tid, cat="user_annotation")


def pack(*events: object) -> bytes:
    """Events as the file of a rank."""
    return gzip.compress(json.dumps({"traceEvents": events}).encode())
