"""Files as users give them: missing, special, huge, foreign, and open to others."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ipexctl.act.bundled_files import list_bundled_files
from ipexctl.act.inputs import expand_local_paths, read_env_file, read_input
from ipexctl.cli import app
from ipexctl.model import tasks
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.plays import Play
from ipexctl.model.tasks import Install, Run
from ipexctl.verbs.common.playbooks import Permits, read_playbook, select_play_hosts
from ipexctl.verbs.common.select import select_hosts
from ipexctl.verbs.files.project import Project
from ipexctl.verbs.run.programs import find_local_module
from ipexctl.verbs.run.replay import find_saved_run
from tests.tables import read_table


def refusal(path: str | Path, cwd: Path | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        read_input(path, cwd=cwd)
    assert caught.value.exit is Exit.INPUT
    return str(caught.value)


@pytest.mark.parametrize(("mode", "text", "why"), read_table("files/open_secrets"))
def test_a_file_of_secrets_that_is_open_to_others_is_refused(tmp_path: Path, mode: int, text: str, why: str) -> None:
    path = tmp_path / "names.env"
    path.write_text(text)
    path.chmod(mode)
    if why:
        with pytest.raises(UsageError, match=f"holds secrets and is open to others .{why}.*\nhint: chmod 600 "):
            read_env_file(str(path))
    else:
        assert read_env_file(str(path)) == text


@pytest.mark.fault("A1")
def test_a_mistyped_path_is_named_as_it_was_given(tmp_path: Path) -> None:
    assert refusal("hosts.tyop", tmp_path) == "hosts.tyop does not exist"
    (tmp_path / "hosts.typo").write_text("")
    assert refusal("hosts.tyop", tmp_path) == "hosts.tyop does not exist (did you mean hosts.typo?)"
    assert refusal("z.typo", tmp_path) == "z.typo does not exist", "only the endings are alike"
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters/lab.yaml").write_text("")
    assert refusal("clutsers/lab.yml", tmp_path) == "clutsers/lab.yml does not exist (did you mean clusters/lab.yaml?)"
    (tmp_path / "file").write_text("")
    assert "does not exist" in refusal("file/x", tmp_path)
    assert "does not exist" in refusal("a\0b", tmp_path)
    assert "\\x1b" in refusal("\x1b[2Jhosts", tmp_path)
    assert "is empty" in refusal("", tmp_path)


@pytest.mark.fault("A2")
def test_special_files_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert refusal(tmp_path).endswith("is a directory")
    assert refusal(tmp_path / "fifo").endswith("is not a regular file")
    assert refusal("/dev/zero") == "/dev/zero is not a regular file"
    (tmp_path / "loop").symlink_to("loop")
    assert "too many symbolic links" in refusal(tmp_path / "loop")


@pytest.mark.fault("A2")
def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 40)
    assert refusal(tmp_path / "big").endswith("is larger than 1 MiB")


@pytest.mark.fault("A2")
def test_an_unreadable_file_is_named() -> None:
    """As another user where we are root, since root can read everything."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = Path(directory) / "hosts"
        path.write_text("n1")
        path.chmod(0)
        if os.geteuid() != 0:
            assert refusal(path) == f"{path} cannot be read: permission denied"
            return
        code = "import os, sys\nfrom ipexctl.act.inputs import read_input\nos.setuid(65534)\n"
        code += "try: read_input(sys.argv[1])\nexcept Exception as error: print(error)"
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        assert done.stdout.strip() == f"{path} cannot be read: permission denied", done.stderr


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"n1\nn\xff\n", "is not UTF-8 text: byte \\xff in line 2"),
        ("n1\n".encode("utf-16"), "is UTF-16 text, not UTF-8"),
    ],
)
def test_other_encodings_are_named(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "hosts").write_bytes(data)
    assert refusal("hosts", tmp_path) == f"hosts {why}"


def test_files_that_others_can_write_are_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "$(date)"
    path.write_text("n1")
    path.chmod(0o600)
    assert read_input(path).warnings == ()
    path.chmod(0o664)
    assert f"can be written by others (mode 0664): chmod go-w '{path}'" in read_input(path).warnings[0]
    path.chmod(0o600)
    tmp_path.chmod(0o777)
    assert "directory that everyone can write to" in read_input(path).warnings[0]
    tmp_path.chmod(0o700)


def chosen(tmp_path: Path, *, environ: dict[str, str] | None = None, **flags: str) -> tuple[str, ...]:
    given: dict[str, Any] = {"hostfile": None, "hosts": None, "limit": None, **flags}
    return select_hosts(**given, environ=environ or {}, cwd=tmp_path).names


def test_flags_win_over_the_environment_which_wins_over_the_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for name in ("hostfile", "mine", "yours"):
        (tmp_path / name).write_text(f"{name}-1\n{name}-2\n")
    (tmp_path / "nodes").write_text("p1\np1\np2\n")
    environ = {
        "IPEXCTL_HOSTFILE": "yours",
        "SLURM_JOB_NODELIST": "s[1-2]",
        "LSB_HOSTS": "l1 l2",
        "PBS_NODEFILE": "nodes",
    }
    assert chosen(tmp_path, hosts="a,b", environ=environ) == ("a", "b")
    assert chosen(tmp_path, hosts="slurm", environ=environ) == ("s1", "s2")
    assert chosen(tmp_path, hosts="lsf", environ=environ) == ("l1", "l2")
    assert chosen(tmp_path, hosts="pbs", environ=environ) == ("p1", "p2")
    with pytest.raises(UsageError, match="--hosts pbs found no allocation"):
        chosen(tmp_path, hosts="pbs")
    with pytest.raises(UsageError, match="gone does not exist"):
        chosen(tmp_path, hosts="pbs", environ={"PBS_NODEFILE": "gone"})
    assert chosen(tmp_path, hostfile="mine", environ=environ) == ("mine-1", "mine-2")
    assert chosen(tmp_path, environ=environ) == ("yours-1", "yours-2")
    assert chosen(tmp_path, limit="!hostfile-1") == ("hostfile-2",)
    with pytest.raises(UsageError, match="exclude each other"):
        chosen(tmp_path, hosts="a", hostfile="mine")


def test_nothing_ever_falls_back_to_this_machine(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(UsageError, match="no hosts were given") as caught:
        chosen(tmp_path)
    assert "--hosts node0,node1" in str(caught.value.hint)
    record = tmp_path / "runs" / "1120-083015-a3f2"
    record.mkdir(parents=True)
    place = ["--hosts", "lab0:2", "--venv", "/e"]
    started = {"at": 1.0, "event": "started", "verb": "run", "title": "", "hosts": ["lab0"], "place": place}
    (record / "events.jsonl").write_text(f"{json.dumps(started)}\n")
    for words, better in (
        ("run t.py", "run --hosts lab0:2 --venv /e t.py"),
        ("play demo", "play demo --hosts lab0:2"),
        ("ps", "ps --hosts lab0:2"),
    ):
        asked: dict[str, Any] = {"cwd": tmp_path, "runs": tmp_path / "runs", "words": words.split()}
        with pytest.raises(UsageError, match="no hosts were given") as caught:
            select_hosts(hostfile=None, hosts=None, limit=None, environ={}, **asked)
        assert str(caught.value.hint).endswith(f"those of the last command:\nipexctl {better}")
    (record / "events.jsonl").write_text(f"{json.dumps({**started, 'place': ['-f']})}\n")  # of a stranger's saved run
    with pytest.raises(UsageError, match="no hosts were given"):
        select_hosts(hostfile=None, hosts=None, limit=None, environ={}, **asked)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/hostfile").write_text(f"lab0 port=7 key={tmp_path}/lab/id_ed25519 lab=lab-1\n")
    with pytest.raises(UsageError, match="no hosts were given") as caught:
        select_hosts(hostfile=None, hosts=None, limit=None, environ={}, cwd=tmp_path, runs=tmp_path / "runs")
    assert str(caught.value.hint).endswith(f"ipexctl doctor -f {tmp_path}/lab/hostfile")
    for hostfile, environ in (("lab/hostfile", {}), (None, {"IPEXCTL_HOSTFILE": "lab/hostfile"})):
        given: dict[str, Any] = {"hostfile": hostfile, "environ": environ, "hosts": None, "limit": None}
        with pytest.raises(UsageError, match="the lab of this hostfile is down") as caught:
            select_hosts(**given, cwd=tmp_path, runs=tmp_path / "runs")
        assert caught.value.hint == "ipexctl lab up"
    (tmp_path / "lab/hostfile").unlink()
    with pytest.raises(UsageError, match="lab/hostfile does not exist") as caught:
        select_hosts(**given, cwd=tmp_path, runs=tmp_path / "runs")
    assert caught.value.hint == "ipexctl lab up"
    nowhere: tuple[dict[str, Any], ...] = ({"hostfile": "gone"}, {"hosts": ""}, {"hostfile": ""})
    for flags in nowhere:
        with pytest.raises(UsageError):
            chosen(tmp_path, **flags)
    with pytest.raises(UsageError, match="gone does not exist"):
        chosen(tmp_path, environ={"IPEXCTL_HOSTFILE": "gone"})
    (tmp_path / "hostfile").symlink_to("gone")
    with pytest.raises(UsageError, match="hostfile does not exist"):
        chosen(tmp_path)


def test_a_hostfile_found_where_anyone_can_write_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("n1")
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError) as caught:
        chosen(tmp_path)
    assert "./hostfile is ignored" in str(caught.value)
    assert chosen(tmp_path, hostfile="hostfile") == ("n1",)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("name", ["demo", "trl/sft.py"])
def test_what_another_user_puts_where_everyone_may_is_not_taken_for_what_comes_with_us_or_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`play demo` and `run -m trl.sft` in /tmp: both ran on the hosts as the user."""
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("steps: [{doctor: }]\n")

    def take() -> object:
        if name == "demo":
            return read_playbook("demo", environ={}, cwd=tmp_path)
        return find_local_module("trl.sft", Project(tmp_path))

    tmp_path.chmod(0o1777)
    assert take()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    for path in (Path(name), *Path(name).parents[:-1]):
        if path.stat().st_uid == 0:
            os.chown(path, 12346, -1)
    with pytest.raises(UsageError, match="is another user's, in a directory that everyone can write to"):
        take()
    tmp_path.chmod(0o700)


def test_relative_keys_start_at_the_hostfile(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "hosts").write_text("a key=id known_hosts=known\nb key=/k known_hosts=~/.ssh/known_hosts")
    inventory = select_hosts(hostfile="lab/hosts", hosts=None, limit=None, environ={}, cwd=tmp_path)
    assert (inventory["a"].key, inventory["a"].vars["known_hosts"]) == (
        str(tmp_path / "lab/id"), str(tmp_path / "lab/known"),
    )  # fmt: skip
    assert (inventory["b"].key, inventory["b"].vars["known_hosts"]) == ("/k", "~/.ssh/known_hosts")


@pytest.mark.parametrize("key", ["key", "known_hosts", "ansible_private_key_file"])
def test_a_path_in_the_home_of_nobody_is_refused_with_its_place(tmp_path: Path, key: str) -> None:
    (tmp_path / "hosts").write_text(f"a\nb {key}=~nosuchuser/x\n")
    (tmp_path / "play.yaml").write_text(f"hosts: [a, b {key}=~nosuchuser/x]\nsteps: [{{doctor: }}]")
    with pytest.raises(UsageError, match=r"^hosts:2:1: ~nosuchuser/x cannot be found: there is no user nosuchuser$"):
        select_hosts(hostfile="hosts", hosts=None, limit=None, environ={}, cwd=tmp_path)
    with pytest.raises(UsageError, match=r"^play.yaml:1:\d+: ~nosuchuser/x cannot be found: there is no user"):
        read_playbook("play.yaml", environ={}, cwd=tmp_path)


@pytest.mark.parametrize("path", ["~nosuchuser/x", "~nosuchuser", "~\0/x"])
def test_no_command_takes_a_path_in_the_home_of_nobody_for_a_fault_of_ours(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be found: there is no user"):
        find_saved_run(tmp_path, path)


def test_a_tilde_means_the_home_directory_in_every_path_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    asked = Install(requirements=("~/a", "b/~"), find_links=("https://x/~", "~/w"), lock="~/l", venv="~/v", wheels="w")
    assert expand_local_paths(asked) == Install(
        requirements=("/home/me/a", "b/~"), find_links=("https://x/~", "/home/me/w"), lock="/home/me/l", venv="~/v",
        wheels="w",
    )  # fmt: skip
    assert expand_local_paths(Run(script="~/t.py", stdin="-")) == Run(script="/home/me/t.py", stdin="-")
    with pytest.raises(UsageError, match=r"^~nosuchuser/x cannot be found: there is no user nosuchuser$"):
        expand_local_paths(Run(script="t.py", env_file=("~nosuchuser/x",)))


def test_every_path_of_a_task_is_one_on_this_machine_or_on_the_hosts() -> None:
    kinds = [kind for kind in vars(tasks).values() if isinstance(kind, type) and issubclass(kind, tasks.Task)]
    every = {(each.name, each.metadata["flag"].metavar or "") for kind in kinds for each in dataclasses.fields(kind)}
    paths = {name for name, metavar in every if re.search("PATH|FILE|DIRECTORY", metavar)}
    assert {name for name, _ in every} >= tasks.LOCAL_PATHS
    assert paths - tasks.LOCAL_PATHS == {"venv", "workdir", "python", "mpi", "keep"}, "these are on the hosts"


@pytest.mark.parametrize("line", read_table("files/an_option_takes_a_path_in_a_home_directory"))
def test_an_option_takes_a_path_in_a_home_directory(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPEXCTL_HOSTS", "a")
    result = CliRunner().invoke(app, line.format("~nosuchuser/x").split())
    assert result.exit_code == Exit.INPUT
    assert "~nosuchuser/x cannot be found: there is no user nosuchuser" in result.output


def test_a_playbook_takes_a_path_in_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "play.yaml").write_text("hosts: [a]\nsteps: [{run: {script: ~/train.py}}, {sync: {source: ~/none}}]")
    result = CliRunner().invoke(app, ["play", "--dry-run", "play.yaml"])
    assert result.exit_code == Exit.INPUT
    assert re.findall("(?m)^ +(.*does not exist)$", result.output) == [
        f"play.yaml:2:54: sync.source {tmp_path}/none does not exist"
    ]
    (tmp_path / "play.yaml").write_text("hosts: [a]\nsteps: [{install: {requirements: [~nosuchuser/x]}}]")
    for command in (["play", "--dry-run"], ["play", "--check"], ["play", "lint"]):
        result = CliRunner().invoke(app, [*command, "play.yaml"])
        assert result.exit_code == Exit.INPUT, result.output
        where = "play.yaml:2:35: install.requirements"
        assert f"{where}: ~nosuchuser/x cannot be found: there is no user nosuchuser" in result.output


def test_variables_of_a_playbook_with_the_names_of_secrets_are_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were in the plan, the record and the archive of `support`, as words of a step's command."""
    monkeypatch.chdir(tmp_path)
    steps = "steps: [{name: 'a ${db_password}', command: {argv: [first, '${db_password}']}}]"
    (tmp_path / "play.yaml").write_text(f"hosts: [a]\nvars: {{db_password: geheim-x 7}}\n{steps}")
    result = CliRunner().invoke(app, ["play", "play.yaml", "--list-steps"])
    assert ("a ***" in result.output, "geheim" in result.output) == (True, False)


def test_a_play_brings_its_hosts_unless_flags_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "plays").mkdir()
    (tmp_path / "plays" / "hosts").write_text("f1\nf2 key=id\n")
    (tmp_path / "plays" / "file.yaml").write_text("hosts: hosts\nsteps: [{doctor: }]")
    (tmp_path / "plays" / "list.yaml").write_text("hosts: [l1 key=id, l2]\nsteps: [{doctor: }]")
    (tmp_path / "plays" / "none.yaml").write_text("steps: [{run: {script: train.py}}]")
    (tmp_path / "plays" / "wrong.yaml").write_text("hosts: node1\nsteps: [{doctor: }]")

    def names(play: str, **flags: str) -> tuple[str, ...]:
        read = read_playbook(f"plays/{play}.yaml", environ={}, cwd=tmp_path)
        given: dict[str, Any] = {"hostfile": None, "hosts": None, **flags}
        return select_play_hosts(read, **given, environ={}, cwd=tmp_path).names

    assert names("file") == ("f1", "f2")
    assert names("list") == ("l1", "l2")
    assert names("list", hosts="x,y") == ("x", "y")
    assert names("none", hosts="x") == ("x",)
    with pytest.raises(UsageError, match="no hosts were given"):
        names("none")
    with pytest.raises(UsageError, match=r"plays/wrong.yaml:1:8: hosts: .*/plays/node1 does not exist") as caught:
        names("wrong")
    assert "hosts: [node0, node1]" in str(caught.value)
    play = read_playbook("plays/list.yaml", environ={}, cwd=tmp_path)
    assert play.inventory is not None
    assert play.inventory["l1"].key == str(tmp_path / "plays" / "id")
    (step,) = read_playbook("plays/none.yaml", environ={}, cwd=tmp_path).steps
    assert isinstance(step.task, Run)
    assert step.task.script == str(tmp_path / "plays" / "train.py")


def write_hostile(directory: Path) -> Path:
    """A playbook that took a private key and a variable to its own host, and wrote below ~/.config."""
    home = directory / "home"
    for folder in (home / ".ssh", home / ".config", directory / "repo", directory / "here"):
        folder.mkdir(parents=True)
    (directory / "repo" / "link").symlink_to(home / ".config")
    return home


def read_steps(directory: Path, steps: str, permits: Permits = Permits(), **variables: str) -> Play:
    path = directory / "repo" / "play.yaml"
    path.write_text(steps)
    return read_playbook(
        str(path), environ={"TOKEN": "geheim"}, cwd=directory / "here", variables=variables, permits=permits
    )


@pytest.mark.parametrize("step", read_table("files/outside_files"))
def test_a_playbook_uses_no_file_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    home = write_hostile(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    text = f"steps:\n  - {step.replace('HOME', str(home))}\n"
    with pytest.raises(UsageError, match=r"play\.yaml:2:\d+: .* is outside of the playbook's directory") as refused:
        read_steps(tmp_path, text)
    assert (refused.value.hint or "").startswith(f"--allow-path {home}")
    read_steps(tmp_path, text, Permits((str(home),)))
    word, _, path = (refused.value.hint or "").partition(" ")
    assert word == "--allow-path"
    read_steps(tmp_path, text, Permits((path,)))  # the hint helps


@pytest.mark.parametrize("step", ["run: {script: a.py}", "sync: {source: a.py}"])
def test_a_playbook_sends_no_project_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    write_hostile(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    script = tmp_path / "repo/a.py"
    text = f"steps:\n  - {step}\n"
    read_steps(tmp_path, text)
    (tmp_path / ".git").mkdir()
    with pytest.raises(UsageError, match=r"play\.yaml:2:\d+: (run|sync) sends the project of its script: ") as refused:
        read_steps(tmp_path, text)
    assert refused.value.hint == f"--allow-path {tmp_path}"
    read_steps(tmp_path, text, Permits((str(tmp_path),)))
    read_steps(tmp_path, text.replace("a.py", "a.py, project: ."))
    read_steps(tmp_path, text.replace("a.py", "'${script}'"), script=str(script))


def test_a_directory_named_tilde_leads_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check reads ~ as the home, and who opens the file perhaps as this directory."""
    home = write_hostile(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    (tmp_path / "here/~").symlink_to(home / ".ssh")
    (home / ".ssh/loop").symlink_to("loop")  # ended `play` with an exception
    for name in ("id", "loop"):
        with pytest.raises(UsageError, match="is outside of the playbook's directory"):
            read_steps(tmp_path, f"steps: [{{run: {{script: a.py, env_file: [~/{name}]}}}}]")


def test_pages_of_an_index_are_no_files(tmp_path: Path) -> None:
    write_hostile(tmp_path)
    text = "steps: [{install: {find_links: ['https://a/b/'], index_url: 'https://a/simple', with: ['a[b]==1', 'c>2']}}]"
    assert read_steps(tmp_path, text).uses == ()


def test_the_hostfile_of_a_playbook_may_lie_anywhere_and_is_read_as_nothing_else(tmp_path: Path) -> None:
    home = write_hostile(tmp_path)
    play = read_steps(tmp_path, "hosts: ../home/hosts\nsteps: [{doctor: }]")
    (home / "hosts").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n")
    with pytest.raises(UsageError):
        select_play_hosts(play, hostfile=None, hosts=None, environ={}, cwd=tmp_path)


def test_paths_beside_the_playbook_in_the_current_directory_and_of_variables_are_allowed(tmp_path: Path) -> None:
    write_hostile(tmp_path)
    read_steps(tmp_path, "steps: [{sync: {source: .}}, {fetch: {paths: [x]}}, {run: {script: src/train.py}}]")
    read_steps(tmp_path, f"steps: [{{sync: {{source: {tmp_path}/here/data}}}}]")
    text = "vars: {data: here, all: '${data}/x'}\nsteps: [{sync: {source: '${all}%s'}}]"
    read_steps(tmp_path, text % "", data=str(tmp_path / "home"))
    with pytest.raises(UsageError, match="outside"):  # only what lies below the user's word
        read_steps(tmp_path, text % "/../../../home2", data=str(tmp_path / "home"))
    with pytest.raises(UsageError, match="outside"):  # only where it is used
        read_steps(tmp_path, "vars: {a: b}\nsteps: [{sync: {source: ../home}}]", a=str(tmp_path / "home"))


@pytest.mark.parametrize(
    "text",
    [
        "env_allow: [TOKEN]\nsteps: [{command: {argv: [echo, '${env:TOKEN}']}}]",
        "vars: {a: b}\nsteps: [{run: {script: train.py, pass_env: [TOKEN]}}]",
    ],
)
def test_a_playbook_takes_no_variable_of_the_environment_that_the_user_did_not_name(tmp_path: Path, text: str) -> None:
    write_hostile(tmp_path)
    with pytest.raises(UsageError, match="takes the environment variable TOKEN") as refused:
        read_steps(tmp_path, text)
    assert refused.value.hint == "--allow-env TOKEN"
    assert read_steps(tmp_path, text, Permits(env=("TOKEN",))).steps
    both = text.replace("steps: [", "steps: [{sync: {source: ../home}}, ")
    with pytest.raises(UsageError) as refused:
        read_steps(tmp_path, both)
    assert refused.value.hint is not None
    assert "--allow-env TOKEN" in refused.value.hint
    assert f"--allow-path {tmp_path / 'home'}" in refused.value.hint


def test_bundled_playbooks_use_the_bundled_examples(tmp_path: Path) -> None:
    for file in list_bundled_files("playbooks"):
        assert read_playbook(file.stem, environ={}, cwd=tmp_path).steps
