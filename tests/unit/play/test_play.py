"""The story of a play, over hosts that exist only here: who goes on, who is left out, when it ends, what it says."""

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.decide.parsing import parse_list, playbook
from ipexctl.model.answers.play import PlayAnswer
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message, Stamped, Started, StepEnded
from ipexctl.model.hosts import Command, Completed, Host, Inventory
from ipexctl.model.json_values import to_json
from ipexctl.model.reports import CommandReport, HostOutcome, RankOutcome, RunOutcome
from ipexctl.verbs.common.playbooks import read_play_hosts
from ipexctl.verbs.common.select import limit_hosts, list_flags
from ipexctl.verbs.play.execute import search_environment
from ipexctl.verbs.play.lint import lint
from ipexctl.verbs.play.play import PlayOptions, find_errors, keep_excluded, list_steps, play
from tests.fakes import FakeOpener
from tests.tables import read_table
from tests.unit.show.streams import fold

HOSTS = parse_list("n[0-3]")
Does = Callable[[Host, Command], Completed]


def fine(_: Host, command: Command) -> Completed:
    return Completed(1 if command.argv[0] == "false" else 0, b"done\n")


def bad(*names: str) -> Does:
    """Hosts on which every command fails whose first word is their name or ``flaky``."""

    def does(host: Host, command: Command) -> Completed:
        return Completed(1 if command.argv[0] == "flaky" and host.name in names else 0, b"x\n", b"broken\n")

    return does


def played(
    text: str, does: Does = fine, how: PlayOptions | None = None, down: Mapping[str, Failure] | None = None
) -> tuple[CommandReport, list[dict[str, Any]], list[Event], FakeOpener]:
    book = playbook.parse_playbook(text, "p.yaml", base="/nowhere")
    opener = FakeOpener(does, down=down)
    events = [*play(book, HOSTS, Context(opener, Path("state"), Path("cache")), how)]
    answer = next(e.value for e in events if isinstance(e, Answer) and isinstance(e.value, PlayAnswer))
    report = fold(Stamped(float(i), event) for i, event in enumerate(events))
    return report, to_json(answer.steps), events, opener


def counts(report: CommandReport) -> dict[str, tuple[int, int, int, int, int]]:
    return {host.host: (host.ok, host.changed, host.unreachable, host.failed, host.skipped) for host in report.hosts}


def asked(opener: FakeOpener) -> dict[str, list[str]]:
    return {name: [command.argv[0] for command in link.commands] for name, link in sorted(opener.links.items())}


def output(events: list[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Message))


THREE = """\
steps:
  - command: {argv: [first]}
  - name: shaky
    command: {argv: [flaky]}
  - command: {argv: [last]}
"""


def test_a_host_that_fails_is_left_out_and_the_others_go_on() -> None:
    report, steps, _, opener = played(THREE, bad("n1"))
    assert report.exit is Exit.STEP
    assert [row["exit"] for row in steps] == [0, 4, 0]
    assert asked(opener) == {name: ["first", "flaky", *(["last"] if name != "n1" else [])] for name in HOSTS.names}
    assert counts(report)["n1"] == (1, 1, 0, 1, 0)
    assert counts(report)["n2"] == (3, 3, 0, 0, 0)


def test_a_step_that_is_refused_as_a_whole_has_failed_on_every_host(tmp_path: Path) -> None:
    """Else the recap above the error would say failed=0."""
    (script := tmp_path / "t.py").touch()
    text = f"steps: [{{command: {{argv: [x]}}}}, {{run: {{script: {script}, accelerate_config: {script}}}}}]"
    story = play(playbook.parse_playbook(text, "p.yaml"), HOSTS, Context(FakeOpener(fine), tmp_path, tmp_path))
    events: list[Event] = []
    with pytest.raises(UsageError) as refused:
        events.extend(story)
    failed = [event for event in events if isinstance(event, StepEnded) and event.outcome == "failed"]
    assert [(event.host, event.detail) for event in failed] == [(name, refused.value.sentence) for name in HOSTS.names]


def test_a_secret_among_the_words_of_a_playbooks_command_is_one_wherever_it_stands() -> None:
    """Only those of the command line and of scripts were: what the hosts printed showed it, also in the record."""
    book = playbook.parse_playbook("steps: [{command: {argv: [x, --api-key, q7Zk-93mv]}}]", "p.yaml")
    context = Context(FakeOpener(fine), Path("state"), Path("cache"))
    assert [*play(book, HOSTS, context)]
    assert context.masker.mask_text("got q7Zk-93mv") == "got ***"


def test_a_command_that_failed_without_a_word_leaves_no_colon() -> None:
    def silent(_: Host, command: Command) -> Completed:
        return Completed(3)

    report, *_ = played("steps: [{command: {argv: [sh]}}]", silent)
    assert {failure.what for host in report.hosts for failure in host.failures} == {"sh ended with status 3"}


def test_a_host_out_of_reach_is_left_out_too() -> None:
    gone = {"n2": Failure("n2", Kind.UNREACHABLE, "connection refused", code="refused")}
    report, steps, _, opener = played(THREE, bad(), down=gone)
    assert report.exit is Exit.UNREACHABLE
    assert [row["exit"] for row in steps] == [3, 0, 0]
    assert counts(report)["n2"] == (0, 0, 1, 0, 0)
    assert "n2" not in asked(opener)


@pytest.mark.parametrize(
    ("key", "ends"),
    [
        ("any_errors_fatal: true", "any_errors_fatal"),
        ("max_fail_percentage: 20", "more than 20 % of the hosts failed"),
        ("max_fail_percentage: 25", ""),
    ],
)
@pytest.mark.parametrize("of", ["play", "step"])
def test_a_play_may_end_at_the_first_failure_or_at_too_many(key: str, ends: str, of: str) -> None:
    text = f"{key}\n{THREE}" if of == "play" else THREE.replace("  - name: shaky\n", f"  - name: shaky\n    {key}\n")
    report, steps, events, _ = played(text, bad("n1"))
    assert report.exit is Exit.STEP
    assert [row["exit"] for row in steps] == [0, 4, None if ends else 0]
    assert (f"the play ends here: {ends}" in output(events)) is bool(ends)


def test_no_host_left_ends_the_play() -> None:
    _, steps, events, _ = played(THREE, bad(*HOSTS.names))
    assert [row["exit"] for row in steps] == [0, 4, None]
    assert "the play ends here: no host is left" in output(events)


def test_what_is_ignored_is_no_failure_but_out_of_reach_is() -> None:
    text = THREE.replace("  - name: shaky\n", "  - name: shaky\n    ignore_errors: yes\n")
    report, steps, _, opener = played(text, bad("n1"))
    assert report.exit is Exit.OK
    assert steps[1] == {"step": "shaky", "action": "command", "exit": 4, "note": "ignored"}
    assert counts(report)["n1"] == (3, 2, 0, 0, 0)
    assert asked(opener)["n1"] == ["first", "flaky", "last"]
    gone = {"n2": Failure("n2", Kind.UNREACHABLE, "connection refused")}
    report, _, _, _ = played("steps: [{command: {argv: [x]}, ignore_errors: yes}]", down=gone)
    assert report.exit is Exit.UNREACHABLE


def test_what_a_step_refuses_may_be_ignored_too() -> None:
    text = "steps: [{fetch: {paths: [x], from: 'rank:0'}, ignore_errors: yes}, {command: {argv: [last]}}]"
    report, steps, events, opener = played(text)
    assert report.exit is Exit.OK
    assert [row["exit"] for row in steps] == [2, 0]
    assert "fetch: --from rank:0 needs a run, and none is saved here; ignored" in output(events)
    assert asked(opener)["n0"] == ["last"]
    with pytest.raises(UsageError, match="needs a run"):
        played(text.replace(", ignore_errors: yes", ""))


def test_batches_go_one_after_the_other_and_stop_when_one_fails_whole() -> None:
    text = "steps: [{command: {argv: [flaky]}, serial: [1, 50%]}, {command: {argv: [last]}}]"
    _, steps, events, _ = played(text)
    begun = [event.hosts for event in events if isinstance(event, Started) and event.verb == "command"]
    assert begun == [("n0",), ("n1", "n2"), ("n3",), HOSTS.names]
    assert [row["exit"] for row in steps] == [0, 0]
    _, steps, events, opener = played(text, bad("n1", "n2"))
    assert asked(opener) == {"n0": ["flaky"], "n1": ["flaky"], "n2": ["flaky"]}
    assert [row["exit"] for row in steps] == [4, None]
    assert "all hosts of a batch failed" in output(events)


def test_a_run_does_not_begin_without_one_of_its_hosts(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.touch()
    text = f"{THREE}  - name: train\n    run: {{script: {script}}}\n  - command: {{argv: [after]}}\n"
    report, steps, events, opener = played(text, bad("n1"))
    assert steps[3] == {"step": "train", "action": "run", "exit": None, "note": "not begun without n1: failed in shaky"}
    assert steps[4]["exit"] is None
    assert "run does not begin without n1: failed in shaky" in output(events)
    assert report.exit is Exit.STEP
    assert not any("after" in words for words in asked(opener).values())
    assert counts(report)["n0"][4] == 1


def test_when_chooses_hosts_and_the_others_are_skipped() -> None:
    text = """\
steps:
  - command: {argv: [first]}
    when: host in ('n1', 'n2')
  - command: {argv: [second], changes: false}
    when: host == 'nobody'
"""
    report, steps, events, opener = played(text)
    assert asked(opener) == {"n1": ["first"], "n2": ["first"]}  # what the hostfile says needs no look at a host
    assert counts(report) == {
        "n0": (0, 0, 0, 0, 2), "n1": (1, 1, 0, 0, 1), "n2": (1, 1, 0, 0, 1), "n3": (0, 0, 0, 0, 2)
    }  # fmt: skip
    assert steps[1]["note"] == "skipped: when is true of no host"
    assert StepEnded("n0", "command", "skipped", "when: host in ('n1', 'n2')") in events
    assert report.exit is Exit.OK


def test_a_check_changes_nothing_and_a_second_play_says_that_nothing_changed() -> None:
    text = "steps: [{command: {argv: [look], changes: false}}, {command: {argv: [do]}}]"
    report, _, _, opener = played(text, how=PlayOptions(dry=True))
    assert not opener.links
    assert report.exit is Exit.OK
    _, _, events, _ = played(text)
    assert "nothing was changed" not in output(events)
    report, _, events, _ = played("steps: [{command: {argv: [look], changes: false}}]")
    assert "nothing was changed" in output(events)
    assert counts(report)["n0"] == (1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("install", "dry", "exit"), [("{}", True, 0), ("{}", False, 4), ("{check: true}", True, 4), ("{venv: /b}", True, 4)]
)
def test_a_check_of_a_run_needs_no_environment_that_the_play_installs_before(
    install: str, dry: bool, exit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(step: Any, hosts: Inventory, *_: Any) -> Any:
        yield Started(step.action, "", hosts.names)
        if step.action == "run":
            yield from (HostFailed(Failure(name, Kind.STEP, "none at /e", code="no-env")) for name in hosts.names)
        yield Ended(step.action, Exit.STEP if step.action == "run" else Exit.OK)

    monkeypatch.setattr("ipexctl.verbs.play.play._make_workflow", make)
    text = f"steps: [{{install: {install}}}, {{run: {{script: sh, program: true}}}}]"
    report, steps, events, _ = played(text, how=PlayOptions(dry=dry))
    assert (report.exit, steps[1]["exit"]) == (exit, exit)
    assert ("n0, n1, n2, n3: planned once the environment is installed" in output(events)) is (exit == 0)


def test_only_the_hosts_that_failed_and_no_run_without_the_others(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.touch()
    text = f"steps: [{{command: {{argv: [x]}}}}, {{run: {{script: {script}}}}}]"
    report, steps, _, opener = played(text, how=PlayOptions(hosts=frozenset({"n1"}), again=True))
    assert asked(opener) == {"n1": ["x"]}
    assert steps[1]["note"].startswith("not begun without n0, n2, n3: --limit @failed")
    assert report.exit is Exit.OK


def test_a_step_whose_hosts_are_outside_the_limit_is_skipped() -> None:
    _, steps, _, opener = played(
        "steps: [{command: {argv: [x]}, limit: n0}, {command: {argv: [y]}}]", how=PlayOptions(hosts=frozenset({"n1"}))
    )
    assert asked(opener) == {"n1": ["y"]}
    assert steps[0]["note"] == "skipped: --limit leaves it no host"


def test_files_that_are_missing_are_reported_before_anything_is_done() -> None:
    text = "steps: [{command: {argv: [x]}}, {run: {script: no.py}}, {sync: {source: nodir}}]"
    with pytest.raises(UsageError) as refused:
        played(text)
    assert [reason.partition(" does")[0] for reason in refused.value.reasons] == [
        "p.yaml:1:48: run.script /nowhere/no.py",
        "p.yaml:1:73: sync.source /nowhere/nodir",
    ]


def test_the_list_of_steps_contacts_nobody() -> None:
    book = playbook.parse_playbook(THREE + "    limit: n[0-1]\n    tags: [a, b]\n    when: sockets > 1\n", "p.yaml")
    (value,) = [event.value for event in list_steps(book, HOSTS, PlayOptions()) if isinstance(event, Answer)]
    assert to_json(value)["list"][2] == {
        "step": 3, "name": "command", "action": "command", "hosts": "n0,n1", "tags": "a,b", "when": "sockets > 1"
    }  # fmt: skip


def record(runs: Path, name: str, hosts: Mapping[str, tuple[int, int]], *ranks: RankOutcome) -> None:
    directory = runs / name
    directory.mkdir(parents=True)
    (directory / "events.jsonl").touch()
    rows = tuple(HostOutcome(host, failed=failed, unreachable=away) for host, (failed, away) in hosts.items())
    run = RunOutcome((), {}, (), "r", "n0", "rank", "", 0.0, 0.0, ranks, None, None, (), ()) if ranks else None
    report = replace(fold([]), verb=name.rpartition("-")[2], hosts=rows, run=run)
    (directory / "report.json").write_text(json.dumps(to_json(report)))


def test_failed_means_the_hosts_that_failed_in_the_last_saved_command(tmp_path: Path) -> None:
    record(tmp_path, "2026-01-01T1000-play", {"n0": (1, 0)})
    record(tmp_path, "2026-01-01T1100-play", {"n0": (0, 0), "n1": (1, 0), "n2": (0, 1), "elsewhere": (1, 0)})
    assert limit_hosts(HOSTS, "@failed", tmp_path).names == ("n1", "n2")
    assert limit_hosts(HOSTS, "@failed,!n2", tmp_path).names == ("n1",)
    ranks = RankOutcome(0, "n3", "failed"), RankOutcome(1, "n0", "ok")
    record(tmp_path, "2026-01-01T1200-run", {"n0": (0, 0), "n3": (0, 0)}, *ranks)
    assert limit_hosts(HOSTS, "@failed", tmp_path).names == ("n3",)
    record(tmp_path, "2026-01-01T1230-attach", {"n0": (0, 0)})
    assert limit_hosts(HOSTS, "@failed", tmp_path).names == ("n3",)
    record(tmp_path, "2026-01-01T1240-play", {"elsewhere": (0, 1)})
    with pytest.raises(UsageError, match="elsewhere, which failed in 2026-01-01T1240-play, are not among the hosts of"):
        limit_hosts(HOSTS, "@failed", tmp_path)
    record(tmp_path, "2026-01-01T1300-sync", {"n0": (0, 0)})
    with pytest.raises(UsageError, match="no host failed in the last command, 2026-01-01T1300-sync"):
        limit_hosts(HOSTS, "@failed", tmp_path)
    with pytest.raises(UsageError, match="no command of ipexctl is saved yet"):
        limit_hosts(HOSTS, "@failed", tmp_path / "none")


def test_requirements_that_would_have_to_be_built_are_reported_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("numpy\n-e .\n")
    steps = "steps:\n- install:\n    with: [numpy, ./pkg]\n    requirements: [list.txt]\n"
    (tmp_path / "p.yaml").write_text(steps)
    with pytest.raises(UsageError) as refused:
        [*lint(["p.yaml"], environ={}, cwd=tmp_path, variables={})]
    what = "p.yaml:3:11: install: install takes wheels, and builds nothing"
    assert refused.value.reasons == (
        f"{what}: --with: ./pkg is a local project",
        f"{what}: {tmp_path}/list.txt:2: -e . is a local project",
    )


def test_a_script_that_is_a_directory_is_refused_and_a_module_is_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    book = tmp_path / "play.yaml"
    book.write_text("steps: [{sync: {source: there}}, {run: {script: ./there}}]")
    with pytest.raises(UsageError) as refused:
        [*lint([book.name], environ={}, cwd=tmp_path, variables={})]
    assert refused.value.reasons == (f"play.yaml:1:49: run.script {tmp_path}/there is a directory",)
    book.write_text("steps: [{sync: {source: there}}, {run: {script: there, module: true}}]")
    assert [*lint([book.name], environ={}, cwd=tmp_path, variables={})]


def test_every_file_that_a_step_reads_must_exist(tmp_path: Path) -> None:
    keys = "requirements: [list.txt], wheels: wheels, find_links: [links, 'https://example.org/x']"
    ranks = "script: trl, project: project, env_file: [names.env], launcher: accelerate, accelerate_config: a.yaml"
    (tmp_path / "p.yaml").write_text(f"steps:\n- install: {{{keys}}}\n- run: {{{ranks}}}\n")
    with pytest.raises(UsageError) as refused:
        [*lint(["p.yaml"], environ={}, cwd=tmp_path, variables={})]
    named = [reason.split(": ", 1)[1].replace(f"{tmp_path}/", "") for reason in refused.value.reasons]
    assert named == [
        *("install.requirements list.txt does not exist", "install.wheels wheels does not exist"),
        *("install.find_links links does not exist", "run.project project does not exist"),
        *("run.env_file names.env does not exist", "run.accelerate_config a.yaml does not exist"),
    ]
    for name in ("list.txt", "wheels", "links", "project", "names.env", "a.yaml"):
        (tmp_path / name).touch()
    assert [*lint(["p.yaml"], environ={}, cwd=tmp_path, variables={})]


def test_values_that_a_step_would_refuse_are_refused_before_the_first_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    run = "run: {script: train.py, env: {'A B': x}}"
    steps = ("command: {argv: [x]}", "sync: {workdir: ../x}", "install: {torch: banana}", run, "fetch: {paths: [../x]}")
    book = "steps:\n" + "".join(f"- {step}\n" for step in steps)
    (tmp_path / "p.yaml").write_text(book)
    with pytest.raises(UsageError) as refused:
        [*lint(["p.yaml"], environ={}, cwd=tmp_path, variables={})]
    workdir, version, variables, fetched = refused.value.reasons
    assert fetched == "p.yaml:6:18: fetch.paths ../x: has '..' in it"
    assert workdir == "p.yaml:3:19: sync.workdir ../x: has '..' in it"
    assert version.startswith("p.yaml:4:20: install: torch 'banana' is not a version")
    assert variables == "p.yaml:5:32: run: invalid variables for the ranks; --env A B: not a valid variable name"
    passes = "steps: [{run: {script: train.py, pass_env: [LACKING]}}]"
    [run_step] = playbook.parse_playbook(passes, "p.yaml", base=str(tmp_path)).steps
    assert "--pass-env LACKING: not set on this machine" in next(find_errors([run_step], {}))


def test_options_of_a_run_that_do_not_fit_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "steps:\n- run: {script: trl, min_hosts: 2}\n- run: {script: trl, profile: '1:2'}\n- install: {venv: env}\n"
    )
    with pytest.raises(UsageError) as refused:
        [*lint(["p.yaml"], environ={}, cwd=tmp_path, variables={})]
    restarts, profile, venv = refused.value.reasons
    assert restarts == "p.yaml:2:3: run: --min-hosts says how to start a run again; add --restarts 1"
    assert profile.startswith("p.yaml:3:3: run: --profile cannot begin at step 1; ")
    assert venv.startswith("p.yaml:4:19: install.venv env: the path of an environment begins with / or with ~/")


def test_lint_says_all_errors_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("hosts: hostfile\nsteps: [{doctor: , limit: nope}]")
    (tmp_path / "b.yaml").write_text("steps: [{run: {script: no.py}}]")
    (tmp_path / "c.yaml").write_text("steps: [{instal: }]")
    (tmp_path / "d.yaml").write_text("steps: [{doctor: }]")
    (tmp_path / "hostfile").write_text("n0\n")

    def linted(*names: str, **variables: str) -> list[Event]:
        return [*lint([f"{name}.yaml" for name in names], environ={}, cwd=tmp_path, variables=variables)]

    with pytest.raises(UsageError) as refused:
        linted("a", "b", "c", "d", "e")
    assert refused.value.sentence == "5 playbooks: 4 errors"
    assert [
        reason.split(": ", 1)[1].split(" (")[0].replace(str(tmp_path), "") for reason in refused.value.reasons[:3]
    ] == ["limit: no host or group has this name", "run.script /no.py does not exist", "unknown key 'instal' of a step"]
    assert refused.value.exit is Exit.INPUT
    with pytest.raises(UsageError, match="the playbook has no variable 'x'"):
        linted("d", x="1")
    (tmp_path / "f.yaml").write_text("vars: {x: 1}\nsteps: [{doctor: }]")
    assert linted("d", "f", x="1")
    with pytest.raises(UsageError) as refused:
        linted("d", "f", y="1")
    assert refused.value.reasons == ("the playbooks have no variable 'y'",)
    assert [to_json(event.value) for event in linted("d") if isinstance(event, Answer)] == [
        {"playbooks": [{"playbook": "d.yaml", "steps": 1}]}
    ]


@pytest.mark.parametrize(
    ("source", "venv", "words"),
    read_table("play/a_hint_names_hosts_and_environment_where_they_are_not_the_defaults", frozen=True),
)
def test_a_hint_names_what_is_not_the_default(source: str, venv: str | None, words: tuple[str, ...]) -> None:
    inventory = Inventory((Host("a", "a"), Host("b", "b"), Host("c", "c")), source)
    assert list_flags(limit_hosts(inventory, "a,b", None), venv) == words
    assert "--limit" not in list_flags(inventory, venv)
    twice = limit_hosts(limit_hosts(inventory, "!c", None), "b", None)
    assert words[:1] != ("-f",) or list_flags(twice, venv)[3] == "b"


@pytest.mark.parametrize(
    "hosts", ["ann@n1:4,n2 port=2222", "n3 address=10.0.0.3 venv=/x", "ann@[::1]", "ann@n slots=22"]
)
def test_a_hint_describes_hosts_that_only_the_command_line_names(hosts: str) -> None:
    assert list_flags(parse_list(hosts), None) == ("--hosts", hosts)


def test_a_hint_describes_the_hosts_that_a_playbook_lists() -> None:
    book = playbook.parse_playbook("hosts: [ann@n1:4]\nsteps: [{doctor: }]", "p.yaml")
    hosts = read_play_hosts(book, Path())
    assert hosts is not None
    assert list_flags(hosts, None) == ("--hosts", "ann@n1:4")


def test_a_run_leaves_out_what_a_sync_of_the_same_project_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("app", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "app")
    Path("train.py").touch()
    text = """
steps:
  - run: {script: train.py}
  - sync: {source: ., exclude: [data/]}
  - sync: {source: ../other, exclude: ["*.pt"]}
  - run: {script: train.py, exclude: [logs/]}
"""
    book = playbook.parse_playbook(text, "p.yaml", base=str(tmp_path / "app"))
    tasks = [step.task for step in keep_excluded(tuple(book.steps))]
    assert [getattr(task, "exclude") for task in tasks] == [(), ("data/",), ("*.pt",), ("data/", "logs/")]  # noqa: B009


@pytest.mark.parametrize("venv", ["e v", "~/e v", "{home}/e v"])
def test_exec_searches_the_environment_and_shows_the_words_of_its_user_alone(tmp_path: Path, venv: str) -> None:
    program = tmp_path / "e v/bin/named"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho $1\n")
    program.chmod(0o755)
    host = Host("a", "a", vars={"venv": venv.format(home=tmp_path)})
    command = search_environment(host, Command(("named", "x  y")))
    assert str(command) == "named 'x  y'"
    line = ["/bin/sh", "-c", command.format_line()]
    assert subprocess.check_output(line, text=True, env={"HOME": str(tmp_path), "PATH": "/bin:/usr/bin"}) == "x y\n"
    line[-1] = search_environment(host, Command(("ulimit", "-c"))).format_line()
    assert subprocess.run(line, capture_output=True, check=False).returncode == 0, "what a shell alone has"
