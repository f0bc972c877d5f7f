"""Playbooks and examples that come with ipexctl: listed, shown, copied, and played by their names."""

import ast
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ipexctl import loop
from ipexctl.act.bundled_files import find_by_name, list_bundled_files
from ipexctl.cli import app
from ipexctl.decide.bundled import read_title
from ipexctl.decide.script_imports import list_module_names
from tests.tables import read_table

PLAYBOOKS = [path.stem for path in list_bundled_files("playbooks")]
EXAMPLES = [path.name for path in list_bundled_files("examples")]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setattr(loop, "get_state_directory", lambda: tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IPEXCTL_HOSTFILE", raising=False)
    return CliRunner()


def test_each_playbook_and_example_is_listed_with_its_first_sentence(cli: CliRunner) -> None:
    listed = json.loads(cli.invoke(app, ["examples", "--json"]).output)["examples"]
    assert [each["name"] for each in listed] == [*PLAYBOOKS, *EXAMPLES]
    assert "README.md" not in EXAMPLES
    assert all(10 < len(each["title"]) < 150 and "\n" not in each["title"] for each in listed)
    shown = cli.invoke(app, ["examples"], env={"COLUMNS": "80"}).output
    assert all(f"  {each['name']} " in shown for each in listed)


@pytest.mark.parametrize("words", ["stacks", "examples", "play --list", "play lint playbook.yaml", "runs"])
def test_every_json_answer_is_an_object_with_what_comes_next(cli: CliRunner, words: str) -> None:
    assert cli.invoke(app, ["examples", "copy", "demo", "."]).exit_code == 0
    Path("demo.yaml").rename("playbook.yaml")
    answer = json.loads(cli.invoke(app, [*words.split(), "--json"]).output)
    assert (answer["next"], answer["codes"], answer["exit"]) == ([], [], 0)


def test_play_lists_the_playbooks_only(cli: CliRunner) -> None:
    listed = json.loads(cli.invoke(app, ["play", "--list", "--json"]).output)
    assert [each["name"] for each in listed["examples"]] == PLAYBOOKS


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_a_bundled_playbook_is_played_by_its_name(cli: CliRunner, name: str) -> None:
    listed = cli.invoke(app, ["play", name, "--list-steps", "--hosts", "node0,node1", "--var", "script=train.py"][:5])
    assert listed.exit_code == 0, listed.output


def test_a_file_of_this_directory_comes_before_the_bundled_playbook(cli: CliRunner) -> None:
    Path("demo").write_text("hosts: [node0]\nsteps: [{doctor: , name: mine}]\n")
    assert "mine" in cli.invoke(app, ["play", "demo", "--list-steps"]).output


@pytest.mark.parametrize(("words", "sentence", "hint"), read_table("examples/unknown_names"))
def test_an_unknown_name_is_refused_with_the_nearest(cli: CliRunner, words: str, sentence: str, hint: str) -> None:
    refused = cli.invoke(app, words.split(), env={"COLUMNS": "300"})
    lines = refused.stderr.splitlines()
    assert (refused.exit_code, lines[0], lines[-1]) == (2, f"error: {sentence}", f"  hint: {hint}")
    assert words != "play zzz" or f"  bundled playbooks: {', '.join(PLAYBOOKS)}" in lines


def test_a_path_that_is_none_is_no_name(cli: CliRunner) -> None:
    assert "demo.yaml does not exist" in cli.invoke(app, ["play", "demo.yaml"]).output
    assert "there is no playbook" not in cli.invoke(app, ["play", "./demo"]).output


@pytest.mark.parametrize("name", ["demo", "train_ddp.py", "train_ddp", "hostfile"])
def test_an_example_is_printed_as_it_is(cli: CliRunner, name: str) -> None:
    path = find_by_name(name, "playbooks", "examples")
    assert path is not None
    assert cli.invoke(app, ["examples", "show", name]).stdout == path.read_text("utf-8")


@pytest.mark.parametrize("name", [*PLAYBOOKS, *EXAMPLES])
def test_a_copy_works_where_nothing_else_is(cli: CliRunner, name: str) -> None:
    copied = cli.invoke(app, ["examples", "copy", name, "my own", "--json"])
    assert copied.exit_code == 0, copied.output
    answer = json.loads(copied.output)
    directory = Path("my own")
    assert {path.name for path in directory.iterdir()} == {*answer["files"]}
    for path in directory.glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        needed = {f"{module}.py" for node in ast.walk(tree) for module in list_module_names(node)} & {*EXAMPLES}
        assert needed <= {*answer["files"]}
    [words] = answer["next"]
    assert words[0] == "ipexctl"
    if name in PLAYBOOKS:
        assert words[1:] == ["play", f"my own/{name}.yaml"]
        linted = cli.invoke(app, ["play", "lint", words[2]])
        assert linted.exit_code == 0, linted.output


def test_other_files_are_overwritten_by_force_only(cli: CliRunner) -> None:
    words = ["examples", "copy", "train_ipex.py"]
    assert [cli.invoke(app, words).exit_code for _ in range(2)] == [0, 0], "equal files are no obstacle"
    Path("models.py").write_text("mine")
    refused = cli.invoke(app, words, env={"COLUMNS": "300"})
    assert refused.exit_code == 2
    assert Path("models.py").read_text() == "mine"
    hint = refused.stderr.splitlines()[-1].partition("ipexctl ")[2]
    assert cli.invoke(app, shlex.split(hint)).exit_code == 0
    assert Path("models.py").read_text() != "mine"


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_what_has_no_end_in_the_place_of_an_example_is_another_file(cli: CliRunner, kind: str) -> None:
    """A pipe was waited for, and a link of a repository to /dev/zero read until the memory was full."""
    os.mkfifo("train_ipex.py") if kind == "pipe" else Path("train_ipex.py").symlink_to("/dev/zero")
    refused = cli.invoke(app, ["examples", "copy", "train_ipex.py"])
    assert refused.exit_code == 2, refused.output
    assert "other files of these names" in refused.output


def test_a_link_that_a_repository_has_in_the_place_of_an_example_is_replaced(cli: CliRunner, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    Path("train_ipex.py").symlink_to(outside)
    assert cli.invoke(app, ["examples", "copy", "train_ipex.py"]).exit_code == 0
    assert (outside.exists(), Path("train_ipex.py").is_symlink()) == (False, False)


def test_a_directory_that_cannot_be_written_is_named(cli: CliRunner) -> None:
    Path("file").write_text("")
    refused = cli.invoke(app, ["examples", "copy", "demo", "file/below"])
    assert refused.exit_code == 4
    assert "error: file/below/demo.yaml cannot be written: not a directory" in refused.stderr


@pytest.mark.parametrize(("text", "title"), read_table("examples/the_first_sentence_is_the_title"))
def test_the_first_sentence_is_the_title(text: str, title: str) -> None:
    assert read_title(text) == title


@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_request_that_is_wrong_costs_the_router_of_serve_no_replica(address: str, family: int) -> None:
    with socket.create_server((address, 0), family=family) as free:
        port = free.getsockname()[1]

    def ask(data: bytes) -> bytes:
        with socket.create_connection((address, port), timeout=30) as client:
            client.sendall(data)
            return client.recv(1 << 16).split(b" ", 2)[1]

    env = {**os.environ, "MASTER_ADDR": address, "MASTER_PORT": str(port), "RANK": "0", "SERVE_TOKEN": "k"}
    key = "Authorization: Bearer k\r\n"
    words = [sys.executable, "-u", str(find_by_name("serve.py", "examples"))]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        try:
            assert server.stdout
            assert server.stdout.readline().startswith("the API is at http://")
            assert server.stdout.readline().startswith("replica 0 is up at ")
            for length in ("-1", "x", "1\r\nTransfer-Encoding: chunked"):
                request = f"POST /v1/completions HTTP/1.1\r\n{key}Content-Length: {length}\r\n\r\n"
                assert ask(request.encode()) == b"411"
            # Nobody waits for the body of a client without the key.
            assert ask(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 16000000\r\n\r\n") == b"401"
            assert ask(f"GET /\x01 HTTP/1.1\r\n{key}\r\n".encode()) == b"400"
            assert ask(f"GET /v1/models HTTP/1.1\r\n{key}\r\n".encode()) == b"200"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
