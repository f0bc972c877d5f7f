"""What --fix does, and what it leaves alone; when a stack is imported, and what its error means."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.decide.checks.cluster import Cluster
from ipexctl.decide.checks.run_checks import run_checks
from ipexctl.decide.checks.software import check_imports, needs_import_check
from ipexctl.decide.releases.env_health import Repair, find_repair
from ipexctl.model.answers.doctor import AppliedFix
from ipexctl.model.answers.install import InstallAnswer
from ipexctl.model.errors import Kind, UsageError
from ipexctl.model.events import HostFailed
from ipexctl.model.facts import Installed
from ipexctl.model.hosts import Command, Completed, Host, Inventory
from ipexctl.model.stack import InstallMarker
from ipexctl.model.tasks import Doctor, Install
from ipexctl.protocol import messages
from ipexctl.protocol.paths import RUNS
from ipexctl.verbs.doctor import fix
from ipexctl.verbs.doctor.doctor import doctor
from ipexctl.verbs.doctor.fix import apply_fixes
from tests.fakes import FakeOpener
from tests.markers import MARKER
from tests.tables import read_table
from tests.unit.doctor.test_findings import CATALOGUE, TABLE, healthy

HOSTS = Inventory(tuple(Host(f"n{n}", f"n{n}") for n in (1, 2)))
WHOLE = Installed("/env", True, "3.11", {"torch": "2.8.0"}, MARKER)


def ended(story: Generator[Any, None, Any]) -> tuple[list[Any], Any]:
    events = []
    while True:
        try:
            events.append(next(story))
        except StopIteration as end:
            return events, end.value


def fixing(place: Path, answers: bool, status: int = 0, **changes: Any) -> tuple[list[str], list[str], Any, list[Any]]:
    """Questions, commands, what was done and failed, events."""
    changes = {"user": "root", **changes}
    facts = {host.name: replace(healthy(n), installed=WHOLE, **changes) for n, host in enumerate(HOSTS, 1)}
    asked: list[str] = []
    commands: list[str] = []

    def answer(host: Host, command: Command) -> Completed:
        if command.argv[:2] == ("sh", "-c"):
            commands.append(f"{host.name}: {command.argv[2]}")
            return Completed(status, b"", b"Read-only file system\n" if status else b"")
        return Completed(0, messages.KINDS.write(messages.RunListing()))

    def ask(question: str) -> bool:
        asked.append(question)
        return answers

    context = Context(FakeOpener(answer), place, place)
    findings = run_checks(Cluster(HOSTS, facts, {}, TABLE), CATALOGUE)
    events, done = ended(apply_fixes(findings, CATALOGUE, HOSTS, facts, context, ask=ask, venv=None))
    return asked, commands, done, events


def test_a_safe_fix_is_done_on_its_hosts_after_a_yes(tmp_path: Path) -> None:
    asked, commands, (fixed, failed), _ = fixing(tmp_path, True, thp="never")
    text = "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled"
    [question] = asked
    assert question.startswith("MEM003 n1, n2: ")
    assert question.endswith(f"\n  {text} ?")
    assert sorted(commands) == [f"n1: {text}", f"n2: {text}"]
    assert fixed == [AppliedFix("MEM003", ("n1", "n2"), text)]
    assert failed == []


def test_without_a_yes_nothing_is_done(tmp_path: Path) -> None:
    asked, commands, done, _ = fixing(tmp_path, False, thp="never", governor="powersave")
    assert len(asked) == 2
    assert (commands, done) == ([], ([], []))


def test_who_is_not_root_is_not_asked_for_what_only_root_can_do(tmp_path: Path) -> None:
    asked, commands, _, _ = fixing(tmp_path, True, thp="never", user="alice")
    assert (asked, commands) == ([], [])


def test_a_fix_that_does_not_work_is_a_failure_of_its_host(tmp_path: Path) -> None:
    _, _, (fixed, failed), events = fixing(tmp_path, True, status=1, thp="never")
    assert fixed == []
    assert [failure.what for failure in failed] == ["could not be fixed: Read-only file system"] * 2
    assert [type(event) for event in events].count(HostFailed) == 2


@pytest.mark.parametrize("status", [0, 1])
def test_what_a_run_left_counts_as_removed_where_it_was(tmp_path: Path, status: int) -> None:
    """It counted, with exit 0, whatever came of it."""
    place = f"/home/u/{RUNS}/4-lost-h1"

    def answer(_: Host, command: Command) -> Completed:
        if command.argv[0] == "ipexctl-list_runs.sh":
            orphan = messages.OrphanDirectory("4-lost", place)
            return Completed(0, messages.KINDS.write(messages.RunListing([], [orphan])))
        if command.argv[0] == "ipexctl-remove_run.sh":
            return Completed(status, b"")
        return Completed(0, messages.KINDS.write(messages.ProcessesLeft([])))

    context = Context(FakeOpener(answer), tmp_path, tmp_path)
    facts = {host.name: replace(healthy(n), installed=WHOLE) for n, host in enumerate(HOSTS, 1)}
    _, done = ended(apply_fixes([], CATALOGUE, HOSTS, facts, context, ask=lambda _: True, venv=None))
    fixed, failed = done
    assert [each.action for each in fixed] == ([] if status else ["ipexctl stop --orphans 4-lost"])
    assert [failure.kind for failure in failed] == ([Kind.RESIDUE] if status else [])


def test_a_host_alone_is_no_model_of_what_is_installed_on_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two had a wheel of its choice installed on the third, by its word; asked again, it could give
    another one."""
    strange = replace(MARKER, requested=("colour @ https://elsewhere.example/colour-1-py3-none-any.whl",))
    envs = {"n1": strange, "n2": MARKER, "n3": None}
    inventory = Inventory(tuple(Host(name, name) for name in envs))
    facts = {
        name: replace(healthy(n), installed=replace(WHOLE, exists=bool(marker), marker=marker))
        for n, (name, marker) in enumerate(envs.items(), 1)
    }
    called: list[Any] = []

    def install(task: Install, *_: Any, model: InstallMarker | None = None) -> Generator[Any, None, Any]:
        called.append((task.like, model))
        yield from ()
        return InstallAnswer((), {})

    monkeypatch.setattr(fix, "install", install)
    nothing = Completed(0, messages.KINDS.write(messages.RunListing()))
    context = Context(FakeOpener(lambda *_: nothing), tmp_path, tmp_path)
    findings = run_checks(Cluster(inventory, facts, {}, TABLE), CATALOGUE)
    ended(apply_fixes(findings, CATALOGUE, inventory, facts, context, ask=lambda _: True, venv=None))
    assert called == [("n2", MARKER)]
    assert find_repair({"n1": facts["n1"], "n3": facts["n3"]}) is not None, "the only one has nobody who contradicts"
    same = dict.fromkeys(("n1", "n2"), facts["n1"]) | {"n3": facts["n2"], "n4": facts["n3"]}
    assert find_repair(same) == Repair("n1", ("n4",)), "two say so"


def test_a_fix_nobody_can_be_asked_for_is_refused_before_any_host_is_contacted(tmp_path: Path) -> None:
    opener = FakeOpener({})
    with pytest.raises(UsageError, match="which needs a terminal"):
        list(doctor(Doctor(fix=True), HOSTS, Context(opener, tmp_path, tmp_path)))
    assert opener.links == {}


@pytest.mark.parametrize(
    ("packages", "marker", "expected"),
    [
        ({"torch": "2.8.0", "intel-extension-for-pytorch": "2.8.0"}, MARKER, False),
        ({"torch": "2.13.0", "intel-extension-for-pytorch": "2.8.0"}, MARKER, True),
        ({"torch": "2.8.0+cpu", "oneccl-bind-pt": "2.7.0"}, MARKER, True),
        ({"torch": "2.8.0"}, None, True),
    ],
)
def test_a_stack_is_doubtful_that_nobody_tried_or_that_does_not_fit(
    packages: dict[str, str], marker: InstallMarker | None, expected: bool
) -> None:
    assert needs_import_check(Installed("/env", True, "3.11", packages, marker)) is expected


@pytest.mark.parametrize(("output", "packages", "meaning"), read_table("fix/an_import_error_is_explained"))
def test_an_import_error_is_explained(output: str, packages: dict[str, str], meaning: str) -> None:
    facts = {"n1": replace(healthy(1), installed=Installed("/env", True, "3.11", packages))}
    (hit,) = check_imports(Cluster(HOSTS, facts, {}, TABLE), {"n1": (output,)})
    assert (hit.code, hit.values["what"], hit.evidence) == ("STK007", meaning, output)


def test_a_stack_that_loads_is_no_finding() -> None:
    assert not list(check_imports(Cluster(HOSTS, {"n1": healthy(1)}, {}, TABLE), {"n1": ()}))
