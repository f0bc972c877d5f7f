"""As torch's: a trace of a rank that enters a collective 10 ms after the rank before it; all leave it together."""

import json
import os
import sys
import time

DAY = 86_400_000_000_000  # all ranks begin at one time, which is not far from that of their steps


class ProfilerActivity:
    CPU = 0


class profile:
    def __init__(self, activities: object, record_shapes: bool) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        rank = int(os.environ["RANK"])
        start = 10_000 * (rank + 1)
        work = {"cat": "user_annotation", "name": "gloo:all_reduce", "ts": start, "dur": 60_000 - start}
        op = {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": start}
        events = [{"ph": "X", "pid": 1, "tid": 1, **each} for each in (op, work)]
        text = json.dumps({"baseTimeNanoseconds": time.time_ns() // DAY * DAY, "traceEvents": events})
        with open(path, "w") as out:
            out.write(text[:-30] if f"damage{rank}" in sys.argv else text)
