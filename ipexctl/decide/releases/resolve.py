"""Which stack: first the rows that mean what was wished (else exit 2), then the newest of them that all hosts can
hold (else exit 4). A wish for exact versions is never bent; a default is, and then says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ipexctl.decide.releases.table import Table, Wrong, family, number, plain
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import Facts, Python
from ipexctl.model.notes import Note
from ipexctl.model.stack import MpiKind, MpiLauncher, Stack, StackRelease, StackRequest

# What IPEX asks of a CPU at import (csrc/cpu/isa/cpu_feature.cpp). Flags decide; where none were read, the level does.
_FLAGS = {"AVX2": {"avx2", "fma"}, "AVX512": {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}}
# What impi_torch, packed here, asks for (impi_torch/pyproject.toml).
_IMPI_TORCH, _MPI4PY = "2.6", "mpi4py>=4"
# Which package holds it, of Debian and of Red Hat's family.
_PACKAGES = {
    "libzstd.so.1": ("libzstd1", "libzstd"),
    "libz.so.1": ("zlib1g", "zlib"),
    "libgomp.so.1": ("libgomp1", "libgomp"),
}
_BELOW = {"AVX2": {"below"}, "AVX512": {"below", "AVX2", "AVX2_VNNI"}}


def resolve(wish: StackRequest, facts: Mapping[str, Facts], table: Table) -> Stack:
    """The stack for these hosts (in the order of ``facts``; none: the stack without regard to hosts).

    Raises `UsageError`: exit 2 for a combination that exists nowhere, exit 4 when the hosts cannot hold it.
    """
    rows = _meant(wish, table)
    if wish.python and (unfit := [row for row in rows if wish.python not in row.pythons]) == list(rows):
        raise UsageError(
            f"there are no wheels of {unfit[0].name} for Python {wish.python}",
            reasons=(f"it has wheels for Python {_spoken(unfit[0].pythons)}",),
            hint=_with_python(wish, table),
        )
    notes: list[Note] = []
    refusals: list[tuple[StackRelease, tuple[Note, ...]]] = []
    for row in rows:
        if wish.python and wish.python not in row.pythons:
            continue
        reasons, python = _hold(row, wish, facts)
        if not reasons:
            if refusals:
                skipped, because = refusals[0]
                notes.append(Note("older-release", f"not {skipped.name}: {'; '.join(map(str, because))}"))
            return _stack(row, wish, python, facts, table, notes)
        refusals.append((row, reasons))
    row, reasons = refusals[0]
    if wish.python and not _hold(row, replace(wish, python=None), facts)[0]:
        raise _no_python(wish.python, facts)
    raise UsageError(
        f"these hosts cannot hold {row.name}",
        reasons=[str(reason) for reason in reasons],
        hint=_way_out(wish, facts, table),
        exit=Exit.STEP,
    )


def _no_python(wanted: str, facts: Mapping[str, Facts]) -> UsageError:
    """Only the Python that was asked for stands in the way."""
    have = {host: [python for python in fact.pythons if minor(python.version or "") == wanted]
            for host, fact in facts.items()}  # fmt: skip
    lacking = [host for host, found in have.items() if not any(python.usable for python in found)]
    found_unusable = any(have[host] for host in lacking)
    what = f"{'usable ' if found_unusable else ''}Python {wanted}"
    alone = "has no" if len(lacking) == 1 else "have no"
    seen: dict[str, list[str]] = {}
    for host in lacking:
        seen.setdefault(_found(facts[host]), []).append(host)
    return UsageError(
        f"no host has {'a ' if found_unusable else ''}{what}"
        if len(lacking) == len(facts)
        else f"{_spoken(lacking)} {alone} {what}",
        reasons=[f"{_spoken(hosts)}: {found}" for found, hosts in seen.items()],
        hint="leave out --python",
        exit=Exit.STEP,
    )


def holds(row: StackRelease, wish: StackRequest, facts: Mapping[str, Facts]) -> tuple[Note, ...]:
    """Every reason why some host cannot hold the row; none: all can."""
    return _hold(row, wish, facts)[0]


def why(wish: StackRequest, table: Table) -> tuple[str, ...]:
    """Sentences on why the wish is met as it is, or why it cannot be. Never raises."""
    try:
        stack = resolve(wish, {}, table)
    except UsageError as refusal:
        return (refusal.sentence, *refusal.reasons)
    row = stack.row
    said = [f"{stack.name} go together ({row.source})", *map(str, stack.notes)]
    if row.isa:
        said.append(
            f"IPEX {row.ipex} needs {row.isa} or better, glibc {row.glibc}"
            + (f", GLIBCXX_{row.glibcxx}" if row.glibcxx else "")
        )
    return tuple(dict.fromkeys(said))


def _meant(wish: StackRequest, table: Table) -> list[StackRelease]:
    """The rows that fit the words of the wish, best first. Raises `UsageError` with every reason if there are none."""
    _refuse_wrong(wish, table)
    rows = [row for row in table.rows if wish.torch is None or row.torch == plain(wish.torch)]
    if not rows:
        raise UsageError(
            f"torch {wish.torch} is not in the version table",
            reasons=(f"of {family(wish.torch or '')} it has {_spoken(near)}",)
            if (near := _same_family(wish.torch or "", table))
            else (f"it goes from torch {table.rows[0].torch} to {table.rows[-1].torch}",),
            hint="ipexctl stacks",
        )
    if wish.track == "native" and (wish.ipex or wish.oneccl or wish.backend == "ccl"):
        word = "intel_extension_for_pytorch" if wish.ipex else "oneccl_bind_pt"
        raise UsageError(f"track native is plain torch: it has no {word}", hint="leave out --track, or the versions")
    if wish.backend in {"gloo", "impi"} and wish.oneccl:
        raise UsageError(
            f"backend {wish.backend} does not use oneccl_bind_pt, and --oneccl asks for it",
            hint="leave out one of the two",
        )
    complete = wish.track != "native"
    found = list(rows)
    for word, wanted, member in (
        ("intel_extension_for_pytorch", wish.ipex, "ipex"),
        ("oneccl_bind_pt", wish.oneccl, "oneccl"),
    ):
        if wanted is None:
            continue
        kept = [row for row in found if getattr(row, member) == plain(wanted)]
        if not kept:
            raise _no_pair(word, member, wanted, found, wish, table)
        found = kept
    if (wish.track == "ipex" or wish.ipex) and not any(row.ipex for row in found):
        last = _newest(table.rows, lambda row: bool(row.ipex))
        raise UsageError(
            f"there is no intel_extension_for_pytorch for torch {wish.torch}",
            reasons=(f"it ended with {last.ipex}, for torch {last.torch}",),
            hint=f"ipexctl install --track native --torch {wish.torch}",
        )
    if wish.backend == "ccl" and not any(row.oneccl for row in found):
        last = _newest(table.rows, lambda row: bool(row.oneccl))
        raise UsageError(
            f"backend ccl needs oneccl_bind_pt, and there is none for CPUs for {found[-1].name}",
            reasons=(f"the last one is {last.oneccl}, for torch {last.torch}",),
            hint=f"--torch {last.torch}, or --backend {'impi' if _has_impi(found[-1]) else 'gloo'}",
        )
    if wish.backend == "impi":
        if not any(_has_impi(row) for row in found):
            raise UsageError(
                f"backend impi needs torch {_IMPI_TORCH} or newer, and there is none in {found[-1].name}",
                hint=f"ipexctl install --backend {'ccl' if found[-1].oneccl else 'gloo'}",
            )
        found = [row for row in found if _has_impi(row)]
    if not complete:
        native = {row.torch: _without(row, "ipex", "oneccl") for row in found}
        return sorted(native.values(), key=lambda row: number(row.torch), reverse=True)
    return _complete(found, wish)


def _complete(found: Sequence[StackRelease], wish: StackRequest) -> list[StackRelease]:
    """Rows with as much of torch, IPEX and binding as the wish lets them have, best first."""
    if wish.backend in {"gloo", "impi"}:
        if wish.torch is None and wish.ipex is None:
            found = [row for row in found if row.ipex]
        found = [_without(row, "oneccl") for row in found]
    elif (wish.torch is None and wish.ipex is None) or wish.backend == "ccl" or wish.oneccl:
        # Without a version: the newest that holds all three together.
        found = [row for row in found if row.oneccl]
    if wish.track == "ipex":
        found = [row for row in found if row.ipex]

    def best(row: StackRelease) -> tuple[object, ...]:
        return (not row.unconfirmed, not row.avoid, number(row.torch), number(row.ipex), number(row.oneccl))

    exact = wish.torch is not None
    return sorted(
        found,
        key=(lambda row: best(row)) if not exact else (lambda row: (bool(row.ipex), *best(row))),
        reverse=True,
    )


def _refuse_wrong(wish: StackRequest, table: Table) -> None:
    for wrong in table.wrong:
        if wrong.package == "oneccl" and wish.oneccl and plain(wish.oneccl) == wrong.version:
            torch = wish.torch and plain(wish.torch)
            if torch == wrong.torch:
                raise UsageError(wrong.why, hint=_instead(wrong))


def _instead(wrong: Wrong) -> str:
    return f"ipexctl install --torch {wrong.torch} --oneccl {wrong.instead}"


def _no_pair(
    word: str, member: str, wanted: str, found: Sequence[StackRelease], wish: StackRequest, table: Table
) -> UsageError:
    having = sorted({getattr(row, member) for row in found} - {""}, key=number)
    elsewhere = sorted({row.torch for row in table.rows if getattr(row, member) == plain(wanted)}, key=number)
    reasons = []
    subject = f"torch {wish.torch}" if wish.torch else ""
    if not subject and wish.ipex and member == "oneccl":
        subject = f"intel_extension_for_pytorch {wish.ipex}"
    if subject:
        reasons.append(f"{subject} goes with {_spoken(having)}" if having else f"{subject} has no {word} for CPUs")
    reasons.append(
        f"{word} {wanted} goes with torch {_spoken(elsewhere)}"
        if elsewhere
        else f"{word} {wanted} is not in the version table"
    )
    return UsageError(
        f"{word} {wanted} does not go with {subject}" if subject and elsewhere else f"{word} {wanted} is not known",
        reasons=reasons,
        hint=f"ipexctl stacks --for-torch {wish.torch or (elsewhere or ['2.7.0'])[-1]}",
    )


def _hold(row: StackRelease, wish: StackRequest, facts: Mapping[str, Facts]) -> tuple[tuple[Note, ...], str]:
    """Every reason why some host cannot hold the row (what a host could not tell is not held against it), and the
    Python that all of them have."""
    reasons: dict[tuple[str, str], list[str]] = {}

    def against(host: str, code: str, text: str) -> None:
        reasons.setdefault((code, text), []).append(host)

    for host, fact in facts.items():
        if fact.arch not in {None, "x86_64"}:
            against(host, "arch", f"{fact.arch}, and wheels of Intel MPI are for x86_64 only")
            continue
        if row.isa and not _meets(fact, row.isa):
            level = "a CPU without AVX2" if fact.isa_level == "below" else f"a CPU of level {fact.isa_level}"
            against(host, "isa", f"{level}, intel_extension_for_pytorch {row.ipex} needs {row.isa}")
        if row.glibc and fact.glibc and number(fact.glibc) < number(row.glibc):
            against(host, "glibc", f"glibc {fact.glibc}, the wheels need {row.glibc}")
        if row.glibcxx and fact.glibcxx and number(_symbol(fact.glibcxx)) < number(row.glibcxx):
            against(
                host,
                "glibcxx",
                f"libstdc++ ends at GLIBCXX_{_symbol(fact.glibcxx)}, intel_extension_for_pytorch {row.ipex} "
                f"needs GLIBCXX_{row.glibcxx}: {remedy('libstdc++.so.6')}",
            )
        for library in row.libraries:
            if fact.libraries and library not in fact.libraries:
                what = f"{library} is not there, intel_extension_for_pytorch {row.ipex} loads it"
                against(host, "library", f"{what}: {remedy(library)}")
    python, unfit = _python(row, wish, facts)
    for host, text in unfit:
        against(host, "python", text)
    order = list(facts)
    notes = [Note(code, text, tuple(hosts)) for (code, text), hosts in reasons.items()]
    return tuple(sorted(notes, key=lambda note: order.index(note.hosts[0]))), python


def remedy(said: str) -> str:
    """What gets a host the library that a reason or an error of the loader names; empty for one we do not know."""
    if "GLIBCXX_" in said or "libstdc++.so.6" in said:
        return "that is in the libstdc++ of GCC 12 or newer, as Debian 12 and Ubuntu 22.04 have it"
    for library, (debian, redhat) in _PACKAGES.items():
        if library in said:
            return f"apt install {debian}, or dnf install {redhat}"
    return ""


def _meets(fact: Facts, isa: str) -> bool:
    if fact.flags:
        return _FLAGS[isa] <= fact.flags
    return fact.isa_level not in _BELOW[isa]  # None: it could not tell, so nothing is held against it


def _symbol(text: str) -> str:
    return text.removeprefix("GLIBCXX_")


def _python(row: StackRelease, wish: StackRequest, facts: Mapping[str, Facts]) -> tuple[str, list[tuple[str, str]]]:
    """The newest Python of the row that every host has; else, per host, what it has instead."""
    wanted = (wish.python,) if wish.python else row.pythons
    usable = {
        host: {minor(python.version) for python in fact.pythons if python.usable and python.version}
        for host, fact in facts.items()
    }
    common = set(wanted).intersection(*usable.values()) if usable else set(wanted)
    if common:
        # The distribution's own Python before others: it is at the same path everywhere and nobody takes it away.
        own = [
            {minor(p.version) for p in fact.pythons if p.usable and p.version and _own(p)} for fact in facts.values()
        ]
        return max(common.intersection(*own) or common, key=number), []
    lacking = [host for host in facts if not usable[host] & set(wanted)]
    if lacking:
        return "", [(host, f"{_found(facts[host])}; needed is Python {_spoken(wanted)}") for host in lacking]
    return "", [
        (
            host,
            f"has Python {_spoken(sorted(usable[host] & set(wanted), key=number))}, and all hosts must have the same",
        )
        for host in facts
    ]


def _own(python: Python) -> bool:
    return python.path.startswith("/usr/bin/")


def _found(fact: Facts) -> str:
    seen = [
        f"{python.path} is {python.version}"
        if python.usable and python.version
        else f"{python.path} {python.why or 'does not work'}"
        for python in fact.pythons
    ]
    return ", ".join(seen[:4]) or "no Python found"


def minor(version: str) -> str:
    """``3.11.2`` is a ``3.11``."""
    return ".".join(version.split(".")[:2])


def _stack(
    row: StackRelease, wish: StackRequest, python: str, facts: Mapping[str, Facts], table: Table, notes: Sequence[Note]
) -> Stack:
    glibcs = [fact.glibc for fact in facts.values() if fact.glibc]
    glibc = min(glibcs, key=number) if glibcs else ""
    mpi: MpiKind = "binding" if row.oneccl else "ipex" if row.ipex_mpi else "impi-rt"
    old = bool(glibc) and number(glibc) < number(table.impi["newest_glibc"])
    impi = table.impi["older" if old else "newest"]
    version = {"binding": row.binding_mpi, "ipex": row.ipex_mpi, "impi-rt": impi}[mpi]
    pins = [f"torch=={row.torch}"]
    if row.ipex:
        pins.append(f"intel-extension-for-pytorch=={row.ipex}")
    if row.oneccl:
        pins.append(f"oneccl-bind-pt=={row.oneccl}")
    if mpi == "impi-rt":
        pins.append(f"impi-rt=={version}")
    pins += row.requires
    if not any(pin.startswith("numpy") for pin in pins):  # torch works without it, badly, and does not ask for it
        pins.append("numpy")
    said = list(notes)
    if row.unconfirmed:
        words = {"ipex": f"IPEX {row.ipex}", "oneccl": f"oneccl_bind_pt {row.oneccl or '(none)'}"}
        members = " and ".join(words[member] for member in row.unconfirmed)
        text = f"unconfirmed: no source of Intel lists {members} with torch {row.torch}"
        said.append(Note("unconfirmed", text))
    if row.yanked:
        text = f"intel_extension_for_pytorch {row.ipex} is yanked ({row.yanked}): only an exact pin gets it"
        said.append(Note("yanked", text))
    if mpi == "impi-rt" and old:
        text = f"impi-rt {version}, because glibc {glibc} is older than {table.impi['newest_glibc']}"
        said.append(Note("older-impi-rt", text))
    backend: Literal["ccl", "impi", "gloo"] = "ccl" if row.oneccl else "gloo"
    if wish.backend in {"auto", "impi"} and not row.oneccl and _has_impi(row):
        backend = "impi"
        pins.append(_MPI4PY)
        if wish.backend == "auto":
            said.append(Note("backend-impi", f"backend impi: there is no oneccl_bind_pt in {row.name}"))
    interpreters = {
        host: min(
            (p for p in fact.pythons if p.usable and p.version and minor(p.version) == python),
            key=lambda p: not _own(p),
        ).path
        for host, fact in facts.items()
    }
    return Stack(
        row=row,
        backend=backend,
        mpi=mpi,
        mpi_version=version,
        python=python,
        pins=tuple(pins),
        indexes=tuple(table.indexes[name] for name in row.indexes),
        interpreters=interpreters,
        glibc=glibc,
        notes=(*said, *(Note("release", text) for text in row.notes)),
    )


def _has_impi(row: StackRelease) -> bool:
    return number(row.torch) >= number(_IMPI_TORCH)


def with_gloo(stack: Stack, why: str) -> Stack:
    """The same stack where impi_torch cannot be had, and why."""
    pins = tuple(pin for pin in stack.pins if pin != _MPI4PY)
    notes = tuple(note for note in stack.notes if note.code != "backend-impi")
    gloo = Note("backend-gloo", f"backend gloo, not impi: {why}")
    return replace(stack, backend="gloo", pins=pins, notes=(*notes, gloo))


def with_mpi(stack: Stack, launcher: MpiLauncher) -> Stack:
    """The same stack, its ranks started by an MPI that the hosts have: impi-rt is not installed then."""
    instead = "; impi-rt is not installed" if stack.mpi == "impi-rt" else ""
    note = Note("host-mpi", f"mpirun is the hosts' own: {launcher} at {launcher.program}{instead}")
    stack = replace(stack, launcher=launcher, notes=(*stack.notes, note))
    if stack.mpi != "impi-rt":
        return stack
    pins = tuple(pin for pin in stack.pins if not pin.startswith("impi-rt"))
    return replace(stack, pins=pins, mpi="system", mpi_version=launcher.version)


def _without(row: StackRelease, *members: str) -> StackRelease:
    """The row without a member; without IPEX it is plain torch, and nothing of IPEX's demands is left."""
    if "ipex" in members:
        return StackRelease(
            torch=row.torch,
            pythons=row.torch_pythons,
            torch_pythons=row.torch_pythons,
            glibc=row.glibc,
            requires=tuple(pin for pin in row.requires if not pin.startswith("setuptools")),
            indexes=("torch-cpu",),
            source=row.source,
        )
    return replace(
        row,
        oneccl="",
        binding_mpi="",
        binding_layout="",
        unconfirmed=tuple(name for name in row.unconfirmed if name != "oneccl"),
    )


def _with_python(wish: StackRequest, table: Table) -> str | None:
    """The newest row of the track that has wheels for that Python."""
    rows = [
        row
        for row in table.rows
        if wish.python in row.pythons and not row.unconfirmed and (bool(row.ipex) or wish.track == "native")
    ]
    return f"for Python {wish.python}: --torch {rows[-1].torch}" if rows else None


def _way_out(wish: StackRequest, facts: Mapping[str, Facts], table: Table) -> str | None:
    """A row that these hosts could hold, if the wish gave up its versions."""
    ways = (
        StackRequest(backend=wish.backend, track=wish.track),
        StackRequest(backend="gloo"),
        StackRequest(track="native"),
    )
    kept = [replace(other, python=wish.python) for other in ways] if wish.python else []
    for other in (*kept, *ways):
        if other == wish:
            continue
        for row in _meant(other, table):
            if not _hold(row, other, facts)[0]:
                words = [f"--torch {row.torch}"]
                words += ["--backend gloo"] if other.backend == "gloo" else []
                words += ["--track native"] if not row.ipex else []
                words += ["without --python"] if wish.python and not other.python else []
                return f"these hosts can hold {row.name}: {' '.join(words)}"
    return None


def _same_family(version: str, table: Table) -> list[str]:
    return sorted({row.torch for row in table.rows if family(row.torch) == family(version)}, key=number)


def _newest(rows: Sequence[StackRelease], having: Callable[[StackRelease], bool]) -> StackRelease:
    return max((row for row in rows if having(row) and not row.unconfirmed), key=lambda row: number(row.torch))


def _spoken(words: Sequence[str]) -> str:
    words = list(words)
    if len(words) > 4 and all(word.startswith("3.") for word in words):
        return f"{words[0]}–{words[-1]}"
    return ", ".join(words)
