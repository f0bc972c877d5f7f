"""What oneDNN reported of the primitives it executed.

Format: oneDNN's developer guide, "Verbose Mode", and the line ``…,info,template:`` that the library writes itself:
``onednn_verbose[,v1][,timestamp][,primitive],exec,engine,primitive,implementation,prop_kind,memory_descriptors,
attributes,auxiliary,problem_desc,exec_time``; the time is in milliseconds. Old libraries begin with dnnl_verbose."""

import io
import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ipexctl.model.profile import KernelTime
from ipexctl.protocol import hooks

KIND_LIMIT = 2000  # of kernels of their own; oneDNN has a few hundred implementations
# The instruction sets in the names of implementations (oneDNN: src/cpu/x64/cpu_isa_traits.hpp, and aarch64's).
_ISA = re.compile(
    r"avx10_\d+(?:_\d+)?(?:_amx(?:_\d|_fp16)?)?|avx512_core(?:_amx_fp16|_amx|_fp16|_bf16_ymm|_bf16|_vnni)?"
    r"|avx2_vnni_2|avx2_vnni|avx2|avx|sse41|sve_\d+|asimd"
)
_TYPE = re.compile(r"(?:^| )(src|wei|dst)\w*?[:_](bf16|f16|f32|f64|s8|u8|s32|s4|u4|f8_\w+|f4_\w+|tf32)(?=:)")


class Kernel(NamedTuple):
    """What two calls must have in common to be added up."""

    primitive: str
    implementation: str
    dtype: str


class KernelReport(NamedTuple):
    """Of one rank: kernel → calls and seconds; ``isa`` is the instruction set that oneDNN reports, or empty."""

    sums: dict[Kernel, tuple[int, float]]
    isa: str = ""


def parse_kernels(text: bytes) -> KernelReport:
    """Returns what one rank wrote, whatever it is: lines of another form are left out."""
    sums: dict[Kernel, tuple[int, float]] = {}
    isa = ""
    for line in io.BytesIO(text):
        if not line.startswith(hooks.VERBOSE) or len(line) > 10_000:
            continue
        fields = line.decode("utf-8", "replace").rstrip("\r\n").split(",")
        if "exec" not in fields[1:5]:
            match = re.search(r",info,cpu,isa:(.{1,200})", ",".join(fields))
            isa = match[1] if match else isa
            continue
        at = fields.index("exec", 1)
        time = _parse_milliseconds(fields[-1])
        if len(fields) < at + 7 or "graph" in fields[1:at] or time is None:
            continue
        kernel = Kernel(fields[at + 2][:60], fields[at + 3][:100], _format_types(fields[at + 5]))
        if kernel in sums or len(sums) < KIND_LIMIT:
            calls, seconds = sums.get(kernel, (0, 0.0))
            sums[kernel] = (calls + 1, seconds + time / 1e3)
    return KernelReport(sums, isa)


def _parse_milliseconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 1e9 else None


def _format_types(descriptors: str) -> str:
    types: dict[str, str] = dict(_TYPE.findall(descriptors))
    if len(set(types.values())) <= 1:
        return next(iter(types.values()), "")
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def find_isa(implementation: str) -> str:
    """``avx512_core_amx`` of ``brg_matmul:avx512_core_amx``; empty where the name has none (``ref:any``)."""
    match = _ISA.search(implementation)
    return match[0] if match else ""


def sum_kernels(reports: Iterable[tuple[str, KernelReport]]) -> Iterator[KernelTime]:
    """Yields the kernels of all ranks (each with its host), the costliest first."""
    every: dict[Kernel, tuple[int, float]] = {}
    hosts: dict[Kernel, dict[str, None]] = {}
    for host, report in reports:
        for kernel, (calls, seconds) in report.sums.items():
            before = every.get(kernel, (0, 0.0))
            every[kernel] = (before[0] + calls, before[1] + seconds)
            hosts.setdefault(kernel, {})[host] = None
    for kernel, (calls, seconds) in sorted(every.items(), key=lambda item: -item[1][1]):
        isa = find_isa(kernel.implementation)
        yield KernelTime(
            kernel.primitive, kernel.implementation, isa, kernel.dtype, calls, seconds, tuple(hosts[kernel])
        )
