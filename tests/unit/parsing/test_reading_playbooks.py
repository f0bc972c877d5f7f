"""Playbooks: what they may say, and what is said of bad ones."""

import json

import pytest

from ipexctl.data import read_data
from ipexctl.decide.parsing import playbook
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.plays import Play, Share
from ipexctl.model.tasks import Doctor, Execute, Fetch, Install, Run, Sync
from tests.tables import read_table


def play(text: str, **given: object) -> Play:
    return playbook.parse_playbook(text, "play.yaml", base="/plays", ansible=read_data("ansible.toml"), **given)  # type: ignore[arg-type]


def refusal(text: str, **given: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        play(text, **given)
    assert caught.value.exit is Exit.INPUT
    return caught.value


FULL = """\
name: Train
hosts: ../hostfile
env_allow: [MODEL]
vars:
  epochs: 3
  out: ${env:MODEL}/e${epochs}
steps:
  - name: look
    doctor:
  - install: {torch: 2.8, python: 3.10, check: yes, with: [transformers<4.53], requirements: [r.txt, /abs/r.txt]}
    tags: [setup, slow]
  - sync: {workdir: "${out}", exclude: ["*.pt"]}
  - run:
      script: ./train.py
      args: [--epochs, "${epochs}", --lr, 1e-3, yes, 010, "$${HOME}", ""]
      ppn: 2
      time_limit: 1.5
      env: {A: 1, B: "x y"}
    limit: node[0-1]
    tags: slow
  - command: {argv: [hostname, -f], timeout: 5s}
"""


def test_steps_are_the_tasks_of_the_command_line() -> None:
    read = play(FULL, environ={"MODEL": "/m", "SECRET": "x"})
    assert (read.name, read.hostfile, read.inventory) == ("Train", "/plays/../hostfile", None)
    assert [step.task for step in read.steps] == [
        Doctor(),
        Install(torch="2.8", python="3.10", check=True, with_=("transformers<4.53",),
                requirements=("/plays/r.txt", "/abs/r.txt")),
        Sync(source="/plays", workdir="/m/e3", exclude=("*.pt",)),
        Run(script="/plays/train.py", args=("--epochs", "3", "--lr", "1e-3", "yes", "010", "${HOME}", ""), ppn=2,
            time_limit=1.5, env={"A": "1", "B": "x y"}),
        Execute(argv=("hostname", "-f"), timeout=5),
    ]  # fmt: skip
    assert [step.title for step in read.steps] == ["look", "install", "sync", "run", "command"]
    assert [step.tags for step in read.steps] == [(), ("setup", "slow"), (), ("slow",), ()]
    assert read.steps[3].limit == "node[0-1]"
    assert str(read.steps[1].origin) == "play.yaml:10:5"


def test_hosts_may_be_lines_or_an_inventory() -> None:
    lines = play("hosts:\n  - bob@node[0-1]:4\n  - n2 port=22 venv='/a b'\nsteps: [{doctor: }]")
    assert lines.inventory is not None
    assert lines.inventory.names == ("node0", "node1", "n2")
    assert lines.inventory["n2"].vars["venv"] == "/a b"
    assert str(lines.inventory["n2"].origin) == "play.yaml:3:5"
    groups = play("hosts: {all: {hosts: {'node[1:2]': {slots: 2}}, vars: {port: 9}}}\nsteps: [{doctor: }]")
    assert groups.inventory is not None
    assert [(host.name, host.slots, host.port) for host in groups.inventory] == [("node1", 2, 9), ("node2", 2, 9)]


def test_variables_from_outside_win() -> None:
    text = "vars: {a: 1, b: '${a}'}\nsteps: [{command: {argv: ['${a}', '${b}', '${c}']}}]"
    (step,) = play(text, variables={"a": "9", "c": "7"}).steps
    assert step.task == Execute(argv=("9", "9", "7"))


@pytest.mark.parametrize(
    ("text", "output"),
    read_table("playbooks/what_is_not_yaml_is_reported_in_plain_words_and_where"),
)  # fmt: skip
def test_what_is_not_yaml_is_reported_in_plain_words_and_where(text: str, output: str) -> None:
    assert refusal(text).sentence == f"play.yaml:{output}"


@pytest.mark.parametrize("text", ['name: "\\UFFFFFFFF"', f"%YAML 1.{'1' * 5000}\n---\nname: x"])
def test_yaml_that_its_own_reader_fails_at_is_none(text: str) -> None:
    """It ended the command with exit code 70."""
    assert "not YAML" in str(refusal(text))


def test_a_variable_from_outside_that_the_playbook_does_not_know_is_an_error() -> None:
    text = "vars: {ppn: 1}\nsteps: [{command: {argv: ['${ppn}', '${used}']}}]"
    assert play(text, variables={"used": "1"}).variables == {"ppn": "1", "used": "1"}
    wrong = refusal(text, variables={"used": "1", "ppm": "4"})
    assert (wrong.sentence, wrong.reasons) == ("the playbook has no variable 'ppm' (did you mean ppn?)", ())
    assert play(text, variables={"used": "1", "ppm": "4"}, strict=False).steps
    assert refusal("steps: [{doctor: }]", variables={"a": "1"}).sentence == "the playbook has no variable 'a'"
    both = refusal(text, variables={"usde": "1"})
    assert both.reasons == (
        "play.yaml:2:37: variable 'used' is not set (did you mean usde?), found '${used}'",
        "the playbook has no variable 'usde' (did you mean used?)",
    )


def test_a_hint_of_several_errors_is_one_that_helps_with_all() -> None:
    unset = "{command: {argv: ['${a}']}}"
    assert refusal(f"steps: [{unset}]").hint == "--var a=VALUE, or set it in vars"
    assert refusal(f"steps: [{unset}, {unset}]").hint == "--var a=VALUE, or set it in vars"
    assert refusal(f"steps: [{unset}, {{doctr: }}]").hint is None
    assert refusal("steps: [{command: {argv: ['${a b}']}}]").hint == "$${ is a literal ${"


def test_a_variable_that_looks_like_one_is_not_replaced_again() -> None:
    (step,) = play("steps: [{command: {argv: ['${a}']}}]", variables={"a": "${b}"}).steps
    assert step.task == Execute(argv=("${b}",))


BAD = """\
host: x
hosts:
  - node1 slots=4
  - -oProxyCommand=touch
serial: two
max_fail_percentage: 130
steps:
  - run: {script: t.py, ppn: 0, n: two, args: --foo, arg: [1], backend: mpi}
    sync: {source: ""}
  - instal: {}
  - name: nothing
  - doctor: 3
  - run: {}
  - sync: {source: "${unset}/x", delete: perhaps}
  - command: {argv: []}
  - command: {argv: [x, [1]]}
"""


def test_a_text_in_the_place_of_a_list_is_written_as_one_in_the_hint() -> None:
    texts = ("a==1 b", "a, b", "3", 'x "y"')
    hints = {text: refusal(f"steps:\n- install:\n    with: {text}\n").hint for text in texts}
    assert hints == {
        "a==1 b": "with: [a==1, b]", "a, b": "with: [a, b]", "3": "with: ['3']", 'x "y"': None,
    }  # fmt: skip


@pytest.mark.fault("A9")
def test_everything_wrong_is_reported_at_once_with_its_place() -> None:
    error = refusal(BAD)
    assert list(error.reasons) == [
        "play.yaml:1:1: unknown key 'host' of a playbook (did you mean hosts?)",
        "play.yaml:4:5: host begins with a dash, found '-oProxyCommand=touch'",
        "play.yaml:5:1: 'serial' is left out on purpose: serial stands at a step: a run needs all its hosts at once",
        "play.yaml:6:22: max_fail_percentage must be a number from 0 to 100, found '130'",
        "play.yaml:8:30: run.ppn must be greater than or equal to 1, found '0'",
        "play.yaml:8:36: run.n must be a whole number, found 'two'",
        "play.yaml:8:47: run.args must be a list, found '--foo'",
        "play.yaml:8:54: unknown key 'arg' of run (did you mean args or share?)",
        "play.yaml:8:73: run.backend must be 'auto', 'ccl', 'impi' or 'gloo', found 'mpi'",
        "play.yaml:9:5: step has 2 actions: run, sync",
        "play.yaml:9:20: sync.source is empty",
        "play.yaml:10:5: unknown key 'instal' of a step (did you mean install or serial?)",
        f"play.yaml:11:5: step has no action (one of {', '.join(playbook.ACTIONS)})",
        "play.yaml:12:13: doctor must be a mapping of its keys, not a single value",
        "play.yaml:13:5: run.script is missing",
        "play.yaml:14:20: variable 'unset' is not set, found '${unset}/x'",
        "play.yaml:14:42: sync.delete must be yes or no, found 'perhaps'",
        "play.yaml:15:21: command.argv is empty",
        "play.yaml:16:25: command.argv.1 must be a single value",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *read_table("playbooks/a_bad_playbook_is_refused_with_its_reason"),
        ("[" * 1000, "nested deeper than 50 levels"),
        ("steps: [{run: {script: t.py, args: ['{{a(" + " " * 100_000 + "'], zzz: 1}}]", "unknown key 'zzz'"),
    ],
)
def test_a_bad_playbook_is_refused_with_its_reason(text: str, why: str) -> None:
    assert why in str(refusal(text))


def test_names_are_compared_for_the_first_errors_alone() -> None:
    """Of 20,000 variables and 1000 wrong names the nearest ones took minutes."""
    error = refusal("steps:\n" + "- sync: {workdir: '${sourc}'}\n" * 100, variables={"source": "x"}, strict=False)
    assert [("did you mean source" in reason) for reason in error.reasons] == [True] * 20 + [False] * 30 + [False]


@pytest.mark.fault("A8")
@pytest.mark.parametrize("value", read_table("playbooks/tags_are_refused_by_file_line_and_name"))
@pytest.mark.parametrize("place", ["steps:\n  - run: {}\n", "steps: [{{doctor: }}]\nname: {}\n", "hosts: {}\n", "{}\n"])
def test_tags_are_refused_by_file_line_and_name(value: str, place: str) -> None:
    error = str(refusal(place.format(value)))
    assert f"found '{value.split()[0] if '<' not in value else 'tag:example.org,2000:x'}'" in error
    assert "play.yaml:" in error


def test_the_text_of_a_scalar_is_never_reinterpreted() -> None:
    argv = ["1_000", "010", "12:30", "yes", "null", "2026-01-01", "0x10", "1e3", ".5", "~"]
    (step,) = play(f"steps: [{{command: {{argv: {json.dumps(argv)}}}}}]").steps
    assert step.task == Execute(argv=tuple(argv))
    (step,) = play("steps: [{command: {argv: [1_000, 010, 12:30, yes, 2026-01-01, 0x10]}}]").steps
    assert step.task == Execute(argv=("1_000", "010", "12:30", "yes", "2026-01-01", "0x10"))


def test_a_step_says_where_when_and_what_a_failure_means() -> None:
    text = """\
any_errors_fatal: yes
max_fail_percentage: 10
steps:
  - doctor:
    when: isa_level >= AVX512_BF16
    serial: [1, 25%, "50 %"]
    ignore_errors: true
  - command: {argv: [x], changes: no}
    when: [slots > 1, 'host != "a"']
    any_errors_fatal: no
    max_fail_percentage: 33.3%
  - run: {script: t.py}
    serial: 100%
"""
    look, command, run = play(text).steps
    assert (look.when, look.serial) == (
        "isa_level >= AVX512_BF16",
        (Share(1), Share(25, percent=True), Share(50, percent=True)),
    )
    assert (look.ignore_errors, look.any_errors_fatal, look.max_fail_percentage) == (True, True, 10.0)
    assert command.when == '(slots > 1) and (host != "a")'
    assert (command.ignore_errors, command.any_errors_fatal, command.max_fail_percentage) == (False, False, 33.3)
    assert run.serial == (Share(100, percent=True),)


@pytest.mark.parametrize(("text", "why"), read_table("playbooks/refused_keys"))
def test_what_a_step_may_not_say_is_refused_with_what_to_do_instead(text: str, why: str) -> None:
    assert why in str(refusal(text))


@pytest.mark.parametrize(("text", "where"), read_table("playbooks/a_template_is_one_error_at_its_place"))
def test_a_template_is_one_error_at_its_place(text: str, where: str) -> None:
    error = refusal(text)
    assert error.sentence.startswith(f"play.yaml:{where}: templates are not evaluated")
    assert not error.reasons


def test_a_template_has_what_to_write_instead() -> None:
    def hint(value: str) -> str | None:
        return refusal(f'steps: [{{run: {{script: "{value}"}}}}]').hint

    assert hint("{{ s }}") == hint("a/{{s}}.py") == "write ${s}"
    assert (
        hint("{{ lookup('env', 'HOME') }}/x") == "write ${env:HOME}, and env_allow: [HOME] at the top of the playbook"
    )
    assert hint("{{ a.b | default('c') }}") == "write ${NAME}, with NAME below vars or from --var"


@pytest.mark.parametrize("word", read_table("playbooks/templates_of_other_programs_are_passed_on"))
def test_templates_of_other_programs_are_passed_on(word: str) -> None:
    text = (
        f"steps: [{{run: {{script: t.py, args: ['{word}'], env: {{A: '{word}'}}}}}}, {{command: {{argv: ['{word}']}}}}]"
    )
    run, command = (step.task for step in play(text).steps)
    assert isinstance(run, Run)
    assert isinstance(command, Execute)
    assert run.args == command.argv == (word,)


def test_a_fetch_looks_where_the_last_sync_or_run_has_put_things() -> None:
    text = """\
steps:
  - fetch: {paths: [a]}
  - sync: {source: ../code}
  - fetch: {paths: [a], into: out}
  - run: {script: deep/train.py, project: deep}
  - fetch: {paths: [a], from: "rank:0", into: /abs}
  - fetch: {paths: [a], source: mine}
"""
    tasks = [step.task for step in play(text).steps if isinstance(step.task, Fetch)]
    assert [task.source for task in tasks] == ["/plays", "/plays/../code", "/plays/deep/train.py", "/plays/mine"]
    assert [task.into for task in tasks] == ["/plays/fetched", "/plays/out", "/abs", "/plays/fetched"]
    assert [task.project for task in tasks] == [None, None, "/plays/deep", None]
    assert tasks[2].from_ == "rank:0"


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ("- {doctor: , limit: n1}\n" * 5_000, "more than 1,000 steps"),
        ("- fetch: {paths: [a]}\n" * 20_000, "more than 1,000 steps"),
        (f"- {{doctor: , limit: '{'n1,' * 4000}'}}\n" * 20, "limits of more than 100,000 characters in all"),
    ],
    ids=["limits", "fetches", "pieces"],
)
def test_steps_without_an_end_are_refused(steps: str, why: str) -> None:
    """Each step is compared with all hosts, or with the steps above it."""
    assert why in str(refusal(f"hosts: ['n[1-4096]']\nsteps:\n{steps}"))


def test_the_nearest_of_long_names_is_looked_for_by_their_beginnings() -> None:
    names = "".join(f"  b{number}: x\n" for number in range(20))
    steps = "".join(f"- {{doctor: , name: '${{{'a' * 90}{number}}}'}}\n" for number in range(20))
    assert "is not set" in str(refusal(f"vars:\n  ? {'a' * 300_000}\n  : x\n{names}steps:\n{steps}"))


@pytest.mark.parametrize("step", read_table("playbooks/numbers_beyond_what_clocks_and_hosts_have_are_refused"))
def test_numbers_beyond_what_clocks_and_hosts_have_are_refused(step: str) -> None:
    """The first two ended the play with an exception, the third took hundreds of gigabytes before a host was asked."""
    assert "must be" in str(refusal(f"steps:\n- {step}\n"))
