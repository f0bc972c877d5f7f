"""Choose settings that make ranks fast on a host: memory allocator, OpenMP library, huge pages, and the common
instruction set of mixed hosts.

Sources: the launcher of intel_extension_for_pytorch (ipexrun) and torch.backends.xeon.run_cpu for preloads and their
variables; the dispatch code of IPEX 2.1 to 2.8 and oneDNN's CPU dispatcher for the names of instruction sets."""

import re
from collections.abc import Iterator, Mapping, Sequence

from ipexctl.decide.facts.isa import ARM_LEVELS, LEVELS, get_order
from ipexctl.model.errors import Note
from ipexctl.model.events import Message
from ipexctl.model.facts import Facts, HostFacts
from ipexctl.model.launch import Preload, RankPlacement, Setting
from ipexctl.model.tasks import Run
from ipexctl.model.text import join_names
from ipexctl.model.toml import parse_toml

_JEMALLOC = "oversize_threshold:1,background_thread:true,metadata_thp:{thp}"  # run_cpu's, but for always

# Level → ATEN_CPU_CAPABILITY as stock torch and as IPEX spells it, and ONEDNN_MAX_CPU_ISA. IPEX couples the two; stock
# torch does not, and warns of names that only IPEX knows. Stock torch has no level above avx512. IPEX has avx512_fp16
# only above AMX, so a host with the one and without the other goes by avx512_bf16. Of ARM's levels oneDNN can be held
# to NEON alone: its names of those of SVE are misspelt ("sve_ ## bits" in oneDNN:src/cpu/aarch64/cpu_isa_traits.hpp).
_SPELLINGS: Mapping[str, tuple[str, str, str]] = {
    "AMX_FP8": ("avx512", "avx512_fp16", "AVX10_2_512_AMX_2"),
    "AMX_FP16": ("avx512", "avx512_fp16", "AVX512_CORE_AMX_FP16"),
    "AMX": ("avx512", "amx", "AVX512_CORE_AMX"),
    "AVX512_FP16": ("avx512", "avx512_bf16", "AVX512_CORE_FP16"),
    "AVX512_BF16": ("avx512", "avx512_bf16", "AVX512_CORE_BF16"),
    "AVX512_VNNI": ("avx512", "avx512_vnni", "AVX512_CORE_VNNI"),
    "AVX512": ("avx512", "avx512", "AVX512_CORE"),
    "AVX2_VNNI": ("avx2", "avx2_vnni", "AVX2_VNNI"),
    "AVX2": ("avx2", "avx2", "AVX2"),
    "NEON": ("default", "default", "ADVANCED_SIMD"),
}
_LEVELS = LEVELS | ARM_LEVELS


def choose_preloads(task: Run, facts: Facts, host: str) -> tuple[tuple[Preload, ...], tuple[Note, ...]]:
    """Returns the libraries to preload on this host, and warnings about requested ones that are missing. The rank's
    wrapper tries whether they can be loaded."""
    libraries: list[Preload] = []
    warnings: list[Note] = []
    candidates = {"auto": ("tcmalloc", "jemalloc"), "default": ()}.get(task.allocator, (task.allocator,))
    if name := next(filter(facts.allocators.get, candidates), None):
        libraries.append(Preload(name, facts.allocators[name], f"--allocator {task.allocator}"))
    elif task.allocator in {"tcmalloc", "jemalloc"}:
        text = f"--allocator {task.allocator}: not found; using the C library's malloc"
        warnings.append(Note("no-allocator", text, (host,)))
    if task.omp != "gnu" and (path := facts.allocators.get("iomp5")):
        libraries.append(Preload("iomp5", path, f"--omp {task.omp}"))
    elif task.omp == "intel":
        text = "--omp intel: libiomp5.so not found; using GNU OpenMP"
        warnings.append(Note("no-iomp5", text, (host,)))
    for library in [library for library in libraries if re.search(r"[\s:]", library.path)]:
        text = f"{library.path} cannot be preloaded: its path contains a blank or a colon"
        warnings.append(Note("preload-path", text, (host,)))
        libraries.remove(library)
    return tuple(libraries), tuple(warnings)


def build_host_settings(
    task: Run, facts: Facts, preload: Sequence[Preload], host: str
) -> tuple[dict[str, Setting], list[Note]]:
    """Variables for this host's preloads and huge pages, and warnings."""
    env: dict[str, Setting] = {}
    warnings: list[Note] = []
    names = {library.name for library in preload}
    if "jemalloc" in names:
        env["MALLOC_CONF"] = Setting(_JEMALLOC.format(thp="always" if task.hugepages else "auto"), "for jemalloc")
    if "iomp5" in names:
        env["KMP_BLOCKTIME"] = Setting("1", "for Intel's OpenMP: idle threads sleep after 1 ms")
    if task.hugepages:
        env["THP_MEM_ALLOC_ENABLE"] = Setting("1", "--hugepages", by_user=True)
        if facts.thp == "never":
            text = "--hugepages: transparent huge pages are disabled in its kernel"
            warnings.append(Note("no-hugepages", text, (host,)))
    return env, warnings


def build_rank_settings(place: RankPlacement, preload: Sequence[Preload], threads: int) -> dict[str, str]:
    """Intel's OpenMP binds one thread to each core that the rank computes on, and never to one of oneCCL's."""
    if not any(library.name == "iomp5" for library in preload) or not place.cpus or threads > len(place.cpus):
        return {}
    return {"KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, place.cpus))}]"}


def cap_isa(task: Run, facts: HostFacts, ipex: bool) -> tuple[dict[str, Setting], tuple[Note, ...]]:
    """Variables that restrict all ranks to one instruction set, and warnings. ``ipex``: IPEX is installed."""
    known = {host: fact.isa_level for host, fact in facts.items() if fact.isa_level in _LEVELS}
    levels = set(known.values())
    shown = [f"{host} {level}" for host, level in known.items()]
    if len(levels) < 2 and task.isa in {"native", "common"}:
        return {}, ()
    if task.isa == "native":
        text = f"hosts differ in instruction sets, and therefore in speed and rounding: {join_names(shown, 6)}"
        return {}, (Note("mixed-isa", f"{text}; --isa common makes them equal"),)
    warnings: list[Note] = []
    if task.isa == "common":
        level = find_common_isa(facts)
        if level is None:
            text = "--isa common: the hosts share no instruction set of AVX2 or later"
            return {}, (Note("no-common-isa", text),)
    else:
        level = task.isa
        for host, fact in facts.items():
            if fact.isa_level and not supports_isa(fact, level):
                warnings.append(Note("isa-limit", f"--isa {level} cannot raise it above {fact.isa_level}", (host,)))
    stock, own, onednn = _SPELLINGS[level]
    source = f"--isa {task.isa}" + (f": {level}" if task.isa == "common" else "")
    spelled, speller = (own, "IPEX") if ipex else (stock, "torch")
    return {
        "ATEN_CPU_CAPABILITY": Setting(spelled, f"{source}, as {speller} spells it", by_user=True),
        "ONEDNN_MAX_CPU_ISA": Setting(onednn, source, by_user=True),
    }, tuple(warnings)


def find_common_isa(facts: HostFacts) -> str | None:
    """Returns the highest level that every host has (one level does not imply all those below it) and that ranks can be
    held to; None without one."""
    shared = (level for level in _SPELLINGS if all(supports_isa(fact, level) for fact in facts.values()))
    return next(shared, None)


def supports_isa(facts: Facts, level: str) -> bool:
    """Returns whether ranks on this host can use this level; without known flags, decided by the order of levels."""
    order = get_order(facts.isa_level)
    if facts.isa_level not in _LEVELS or level not in order:
        return False
    if level.startswith("AMX") and not facts.isa_level.startswith("AMX"):
        return False  # the flags may be there, and the kernel refuses the tiles
    if facts.flags:
        return set(_LEVELS[level]) <= facts.flags
    return order.index(facts.isa_level) <= order.index(level)


def name_wins(table: str, facts: HostFacts, task: Run) -> Iterator[Message]:
    """Yields one message about those that can matter on these hosts and are not in use, if there are any."""
    preloads = {library.name for fact in facts.values() for library in choose_preloads(task, fact, "")[0]}
    missing = {
        "allocator": not preloads & {"tcmalloc", "jemalloc"},
        "omp": "iomp5" not in preloads,
        "membind": any(len({core.numa for core in fact.cores or ()}) > 1 for fact in facts.values()),
        "hugepages": any(fact.thp == "madvise" for fact in facts.values()),  # on request only
    }
    idle = {name for name, is_missing in missing.items() if is_missing and getattr(task, name) in ("auto", False)}
    if titles := [title for name, title in parse_toml(table).items() if name in idle]:
        yield Message(f"tuning usually wins on such hosts: {'; '.join(titles)}", code="tuning")
