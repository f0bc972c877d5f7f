"""The JSON lines of a bench's worker (``examples/bench/bert.py``) as screens and pages show them; they are saved as
written."""

import json
from collections.abc import Mapping

_BEGIN = b'{"bench": '


def reword_lines(text: bytes) -> bytes:
    """Lines of standard output, those of a bench in words."""
    if _BEGIN not in text:
        return text
    return b"".join(map(_reword_line, text.splitlines(keepends=True)))


def _reword_line(line: bytes) -> bytes:
    try:
        value = json.loads(line) if line.startswith(_BEGIN) else None
    except (ValueError, RecursionError):
        value = None
    words = _describe_measurement(value) if isinstance(value, dict) else ""
    return f"{words}\n".encode() if words else line


def _describe_measurement(line: Mapping[str, object]) -> str:
    """``training, stock torch bf16: 12.3 samples/s``; empty where these are no measurement of a bench."""
    from ipexctl.model.answers.bench import BENCH_MODES, BenchResult  # no other command needs it

    mode, engine, how, dtype = (str(line.get(key)) for key in ("mode", "engine", "how", "dtype"))
    if "samples_per_s" not in line or mode not in BENCH_MODES:
        return ""
    name, rate = BenchResult(mode, engine, how, dtype, {}, None, None).name, line["samples_per_s"]
    if isinstance(rate, int | float):
        result = f"{rate:.1f} samples/s"
    else:
        result = f"not measured: {line.get('why') or '?'}"
    return f"{BENCH_MODES[mode]}, {name}: {result}"
