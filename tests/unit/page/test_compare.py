"""Runs side by side."""

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ipexctl.decide.page.compare import _drop_common_words, compare_runs, overlay_figures
from ipexctl.model import events as e
from ipexctl.model.answers.saved import CompareAnswer, RunDifference
from ipexctl.model.errors import Exit
from ipexctl.model.events import Stamped
from ipexctl.model.launch import PlannedVariable
from ipexctl.model.page import RunPage
from ipexctl.model.reports import SlowHost
from ipexctl.show import screens, typeset
from ipexctl.show.page.render import render_comparison, render_run
from ipexctl.show.pipe import Pipe
from tests.markers import MARKER
from tests.unit.page.runs import EVIL, fold_page, make_run
from tests.unit.page.test_render import Reader
from tests.unit.show.streams import START


def make_other(every: float = 0.5, backend: str = "gloo", threads: str = EVIL) -> Iterator[Stamped]:
    """The same run with another backend, another variable, an older torch, and steps of another length."""
    for stamped in make_run("good", every=every):
        event = stamped.event
        if isinstance(event, e.Planned) and event.launch:
            hosts = {
                name: replace(host, env={**host.env, "OMP_NUM_THREADS": PlannedVariable(threads, "-e")})
                for name, host in event.launch.hosts.items()
            }
            event = replace(event, launch=replace(event.launch, backend=backend, hosts=hosts))
        if isinstance(event, e.FactsRead) and event.facts.installed:
            installed = replace(event.facts.installed, packages={"torch": "2.7.0"})
            event = replace(event, facts=replace(event.facts, installed=installed))
        yield replace(stamped, event=event)


@pytest.fixture(scope="module")
def pages() -> list[tuple[str, RunPage]]:
    return [("run-a", fold_page(make_run("good"))), ("run-b", fold_page(make_other()))]


@pytest.fixture(scope="module")
def answer(pages: list[tuple[str, RunPage]]) -> CompareAnswer:
    return compare_runs(pages)


def test_a_run_that_ended_well_without_a_host_is_no_good_one(pages: list[tuple[str, RunPage]]) -> None:
    page = pages[0][1]
    lost = replace(page, report=replace(page.report, exit=Exit.LOST))
    answer = compare_runs([*pages[:1], ("lost", lost)])
    assert [run.result for run in answer.compared] == ["ok", "lost"]
    assert "B was lost" in answer.summary[0]


def test_the_checkpoint_that_one_of_two_runs_went_on_from_comes_first(pages: list[tuple[str, RunPage]]) -> None:
    def resume(stamped: Stamped) -> Stamped:
        event = stamped.event
        if isinstance(event, e.RunStarted):
            event = replace(event, resumed=e.ResumedFrom("checkpoints/step_99.pt"))
        return replace(stamped, event=event)

    resumed = fold_page(map(resume, make_run("good")))
    summary = compare_runs([("a", resumed), pages[0]]).summary
    assert "differs: begins with no checkpoint (A: checkpoints/step_99.pt)" in summary[1]


def test_what_differed_in_plan_variables_and_stack_is_named_with_both_values(answer: CompareAnswer) -> None:
    assert {(each.of, each.name): each.values for each in answer.differences} == {
        ("plan", "backend"): ("ccl", "gloo"),
        ("variable", "OMP_NUM_THREADS"): ("55", EVIL),
        ("stack", "torch"): ("2.8.0", "2.7.0"),
        ("stack", "intel-extension-for-pytorch"): ("2.8.0", "-"),
        ("stack", "oneccl-bind-pt"): ("2.8.0", "-"),
    }


def test_what_nobody_recorded_is_no_difference_nor_are_the_ids_of_environments() -> None:
    def make(environment: str, *, attached: bool) -> Iterator[Stamped]:
        for stamped in make_run("good"):
            event = stamped.event
            if isinstance(event, e.FactsRead) and attached:
                continue
            if isinstance(event, e.FactsRead) and event.facts.installed:
                installed = replace(event.facts.installed, marker=replace(MARKER, id=environment))
                event = replace(event, facts=replace(event.facts, installed=installed))
            if isinstance(event, e.Planned) and event.launch:
                prefix = f"/root/env.d/{environment}"
                path = {"PATH": PlannedVariable(f"{prefix}/bin", "the environment")}
                hosts = {
                    name: replace(host, python=f"{prefix}/bin/python", env={**host.env, **path})
                    for name, host in event.launch.hosts.items()
                }
                event = replace(event, launch=replace(event.launch, hosts=hosts))
            yield replace(stamped, event=event)

    watched, attached = (make(f"torch2.13.0-{attached}", attached=attached) for attached in (False, True))
    compared = compare_runs([("a", fold_page(watched)), ("b", fold_page(attached))])
    assert compared.differences == ()


def test_figures_have_the_spread_between_ranks_and_their_ratio_to_the_first_run(answer: CompareAnswer) -> None:
    first, second = answer.compared
    assert (first.figures["pace"].least, first.figures["pace"].median, first.figures["pace"].greatest) == (0.8, 1, 1)
    assert second.figures["pace"].median == 2
    ratios = {each.figure: (each.ratio, each.apart) for each in answer.ratios}
    assert ratios["pace"] == (2.0, True)
    assert not ratios["loss"][1]  # the losses of ranks differ more than those of the runs
    assert ratios["energy"][0] == pytest.approx(1.0, rel=0.02)
    assert first.joules == 540.0 * 51 * 2


def test_text_and_page_say_which_of_several_runs_is_compared(pages: list[tuple[str, RunPage]]) -> None:
    first, second = pages[0][1], pages[1][1]
    answer = compare_runs([("a", first), ("b", replace(second, earlier=4))])
    words = f"(run {second.run}, the last of 5)"
    lines = show(answer, 120).splitlines()
    assert [words in line for line in lines if line.startswith(("A ", "B  "))] == [False, True]
    assert Reader(render_comparison(answer, ())).text.count(words) == 1


def test_equal_runs_have_no_difference(pages: list[tuple[str, RunPage]]) -> None:
    answer = compare_runs([("a", pages[0][1]), ("b", pages[0][1])])
    assert answer.differences == ()
    assert {each.ratio for each in answer.ratios} == {1.0}
    assert not any(each.apart for each in answer.ratios if each.figure == "pace")


def test_a_run_whose_plan_was_not_saved_is_compared_by_its_script_and_ranks() -> None:
    unplanned = [each for each in make_run("good") if not isinstance(each.event, e.Planned)]
    answer = compare_runs([("run-a", fold_page(make_run("good"))), ("run-b", fold_page(unplanned))])
    plan = {row.name: row.values for row in answer.differences if row.of == "plan"}
    assert "script" not in plan
    assert plan["backend"][1] != plan["backend"][0] == "ccl"


def test_a_record_that_names_no_rank_is_compared(pages: list[tuple[str, RunPage]]) -> None:
    """As one that is damaged may: it was exit code 70."""
    (name, page), other = pages
    compared = compare_runs([(name, replace(page, rows=())), other])
    assert [len(run.phases) > 0 for run in compared.compared] == [False, True]
    assert show(compared)


def show(answer: CompareAnswer, width: int = 100) -> str:
    stream = io.BytesIO()
    pipe = Pipe(io.TextIOWrapper(stream, "utf-8"))
    typeset.print_items(typeset.make_console(pipe, width), pipe, screens.format_answer(answer))
    pipe.flush()
    return stream.getvalue().decode()


def test_the_terminal_has_a_column_per_run(answer: CompareAnswer, pages: list[tuple[str, RunPage]]) -> None:
    (_, first), (_, second) = pages
    lines = show(answer).splitlines()
    assert lines[0] == "B is 100 % faster than A: pace 2 (A: 1)"
    assert lines[1].startswith("differs: backend gloo (A: ccl); ")
    assert "whole run 61.0 s (A: 61.0 s)" in " ".join(lines[:6])
    assert show(compare_runs([("b", second), ("a", first)])).startswith("B is 50 % slower than A: pace 1 (A: 2)")
    assert ["A", "run-a", "train.py"] in [line.split() for line in lines]
    row = next(line for line in lines if line.startswith("pace"))
    assert row.split() == ["pace", "1", "it/s", "(0.8", "to", "1)", "2", "it/s", "(1.6", "to", "2)", "×", "2"]
    assert any(line.split() == ["backend", "ccl", "gloo"] for line in lines)
    packages = tuple(RunDifference("stack", f"package-{number}", ("-", "1")) for number in range(84))
    rows = show(replace(answer, differences=packages)).splitlines()
    shown = [" ".join(row.split()) for row in rows if "package-8" in row or "more" in row]
    assert shown == ["package-8 - 1", "… 75 more: --json"]
    plan = replace(answer, differences=answer.differences[:1])
    assert [["plan"] in [line.split() for line in show(each).splitlines()] for each in (answer, plan)] == [True, False]
    assert "\x1b" not in "\n".join(lines)
    assert max(map(len, show(answer, 60).splitlines())) <= 60


def test_two_runs_are_told_apart_by_their_own_words_by_a_slow_host_and_by_their_phases() -> None:
    """Words that both have are left out, and what follows from another difference is not named beside it."""

    def change(stamped: Stamped) -> Stamped:
        event = stamped.event
        if isinstance(event, e.Planned) and event.launch:
            argv = ("/other/python", "-u", "train.py", "--steps", "9")
            event = replace(event, launch=replace(event.launch, argv=argv))
        if isinstance(event, e.RankStage) and event.stage == "running":
            event = replace(event, at=event.at + 20)
            stamped = replace(stamped, at=stamped.at + 20)  # as long after that as before
        return replace(stamped, event=event)

    first = fold_page(make_run("good"))
    second = fold_page(map(change, make_run("good")))
    assert second.report.run
    slow = SlowHost("xeon02", (2, 3), START, 0.5, 1.0, "throttled", (), ())
    second = replace(second, report=replace(second.report, run=replace(second.report.run, slow_host=slow)))
    commands = ("ipexctl run train.py", "ipexctl run train.py --steps 9")
    first, second = (replace(page, again=again) for page, again in zip((first, second), commands, strict=True))
    answer = compare_runs([("a", first), ("b", second)])
    assert RunDifference("plan", "command", commands) in answer.differences
    pace, differs, phases = answer.summary
    assert pace == "B is as fast as A: pace 1 (A: 1)"
    assert differs == "differs: slow host xeon02: throttled (A: -); words of the script --steps 9 (A: -)"
    assert phases == "whole run 61.0 s (A: 61.0 s); rendezvous 22.2 s (A: 2.2 s); running 33.3 s (A: 53.3 s)"


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ("train.py --steps 8", "train.py --steps 9", ("--steps 8", "--steps 9")),
        ("train.py --fast", "train.py --fast --steps 9", ("-", "--steps 9")),
        ("train.py --lr 1 x", "train.py --lr 1 y", ("x", "y")),
    ],
)
def test_of_two_commands_the_words_from_the_first_other_option_on_are_shown(
    one: str, other: str, shown: tuple[str, str]
) -> None:
    assert _drop_common_words(one, other) == shown


def test_a_mended_script_a_package_and_the_result_are_told_and_no_pace_of_a_failed_run() -> None:
    def change(stamped: Stamped) -> Stamped:
        event = stamped.event
        if isinstance(event, e.Planned) and event.launch:
            event = replace(event, launch=replace(event.launch, script_sha256="b" * 64))
        if isinstance(event, e.FactsRead) and event.facts.installed:
            packages = {**event.facts.installed.packages, "einops": "0.8.1"}
            event = replace(
                event, facts=replace(event.facts, installed=replace(event.facts.installed, packages=packages))
            )
        return replace(stamped, event=event)

    first, second = fold_page(make_run("good")), fold_page(map(change, make_run("good")))
    failed = replace(first, report=fold_page(make_run("failed")).report)
    answer = compare_runs([("a", failed), ("b", second)])
    assert [run.result for run in answer.compared] == ["failed", "ok"]
    assert answer.summary[0] == "A failed, B ended well: their pace is not compared"
    assert answer.summary[1] == f"differs: text of the script SHA-256 {'b' * 12} (A: -); einops 0.8.1 (A: -)"


def test_runs_that_print_no_rate_have_no_pace_to_compare(pages: list[tuple[str, RunPage]]) -> None:
    silent = fold_page(each for each in make_run("good") if not isinstance(each.event, e.Output))
    assert compare_runs([pages[0], ("silent", silent)]).summary[0] == "no pace of both is known"


def make_rates(*rates: float, samples: float, every: float = 1.0) -> RunPage:
    """The page of a run whose only rank prints these paces, and at the end samples per second."""
    words = [f"loss 0.5 {rate} it/s" for rate in rates] + [f"{samples} samples/s"]
    events = [each for each in make_run("good", 1, 1) if not isinstance(each.event, e.Output)]
    for number, text in enumerate(words):
        events.append(Stamped(START + 11 + number * every, e.Output(0, "xeon01", "out", f"{text}\n".encode())))
    return fold_page(sorted(events, key=lambda stamped: stamped.at))


@pytest.mark.parametrize(
    ("second", "line"),
    [
        (make_rates(*[2.0] * 30, samples=60), "B is 100 % faster than A: pace 2 (A: 1)"),
        (make_rates(*[2.0] * 30, samples=25), "neither is clearly faster: pace 2 (A: 1), samples_s 25 (A: 30) con"),
        (make_rates(*[0.5, 1.2, 1.8] * 10, samples=31), "neither is clearly faster: pace 1.2 (A: 1), samples_s 31"),
        (make_rates(*[2.0] * 30, samples=60, every=0.3), "too short to say which is faster: pace 2 (A: 1), sampl"),
        (make_rates(2.0, 2.0, samples=60, every=9), "too short to say which is faster: pace 2 (A: 1), samples_s 60"),
    ],
)  # fmt: skip
def test_a_run_is_faster_only_where_enough_was_measured_and_nothing_contradicts(second: RunPage, line: str) -> None:
    answer = compare_runs([("a", make_rates(*[1.0] * 30, samples=30)), ("b", second)])
    assert answer.summary[0].startswith(line)
    assert "overlap" not in show(answer)  # of one rank


def test_a_loss_that_is_no_number_is_the_result_and_the_backend_in_use_is_compared() -> None:
    def change(stamped: Stamped) -> Stamped:
        event = stamped.event
        if isinstance(event, e.Planned) and event.launch:
            planned = {"IPEXCTL_BACKEND": PlannedVariable("impi", "asked")}
            hosts = {name: replace(host, env={**host.env, **planned}) for name, host in event.launch.hosts.items()}
            event = replace(event, launch=replace(event.launch, hosts=hosts))
        return replace(stamped, event=event)

    lost = Stamped(START + 62.1, e.Output(0, "xeon01", "out", b"step 52 loss nan\n"))
    first = fold_page(map(change, sorted([*make_run("good"), lost], key=lambda stamped: stamped.at)))
    answer = compare_runs([("a", first), ("b", fold_page(make_run("good")))])
    lines = [line.split() for line in show(answer).splitlines()]
    assert ["result", *["NaN", "since", "step", "52"], "ok"] in lines
    assert next(line for line in lines if line[:1] == ["loss"])[1:5] == ["NaN", "since", "step", "52"]
    assert answer.summary[0] == "A has a loss that is NaN since step 52, B ended well: their pace is not compared"
    assert answer.differences == ()


def test_a_figure_that_was_printed_once_is_compared_and_has_no_chart() -> None:
    def evaluate(loss: float) -> RunPage:
        line = f"eval_loss {loss} eval_accuracy 0.9\n".encode()
        return fold_page([*make_run("good"), Stamped(START + 60, e.Output(0, "xeon01", "out", line))])

    answer = compare_runs([("a", evaluate(0.2)), ("b", evaluate(0.4))])
    assert {each.figure: each.ratio for each in answer.ratios}["eval_loss"] == 2
    assert ["evaluation", "loss", "0.2", "0.4", "×", "2"] in [line.split() for line in show(answer).splitlines()]
    text = Reader(render_run(evaluate(0.2))).text
    assert "evaluation loss" not in text
    assert "eval loss0.2" in text


def test_the_page_overlays_both_runs_escaped(pages: list[tuple[str, RunPage]], answer: CompareAnswer) -> None:
    reader = Reader(render_comparison(answer, overlay_figures(pages)))
    assert [attributes["data-name"] for tag, attributes in reader.elements if tag == "polyline"] == [
        "run-a",
        "run-b",
    ] * 2
    assert [tag for tag, _ in reader.elements].count("script") == 1
    assert not [attributes for _, attributes in reader.elements if "onerror" in attributes]
    assert "2 it/s (1.6 to 2)  × 2" in reader.text
    assert "2.7.0" in reader.text
