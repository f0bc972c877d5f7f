"""What a run starts: what a word means, placeholders, one process a host, roles; and how hosts look for a program."""

import http.server
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.decide.launch.build import build_launch
from ipexctl.decide.launch.emit import write_launch
from ipexctl.decide.launch.programs import (
    FIND_MODULE,
    FIND_PROGRAM,
    Start,
    find_doubtful_words,
    find_linked_mpi,
    parse_file,
)
from ipexctl.decide.launch.run_spec import Identity, build_run_specs
from ipexctl.decide.parsing.playbook import parse_playbook
from ipexctl.decide.run.report import complete_failure
from ipexctl.model.errors import Failure, UsageError
from ipexctl.model.events import Started
from ipexctl.model.hosts import Completed, Host
from ipexctl.model.launch import Launch
from ipexctl.model.run_state import RunState
from ipexctl.model.tasks import Run
from ipexctl.protocol.placeholders import NAMES, fill
from ipexctl.protocol.run_spec import RankSpec
from ipexctl.remote.agent.ready_sign import answers_url, await_answer, find_taken_sign
from ipexctl.verbs.run.programs import _find_program
from ipexctl.verbs.run.request import read_request
from tests.tables import read_table
from tests.unit.agent.runs import SPEC
from tests.unit.launch.two import facts, runtime
from tests.unit.launch.two import launch as launch_two

VALUES = dict.fromkeys(NAMES, "?") | {"rank": "3", "port": "29500", "head": "192.0.2.10"}


@pytest.mark.parametrize(("text", "filled"), read_table("programs/only_placeholders_are_replaced"))
def test_only_placeholders_are_replaced(text: str, filled: str) -> None:
    assert fill(text, VALUES) == filled


def test_a_word_that_is_nearly_a_placeholder_is_a_warning() -> None:
    notes = list(find_doubtful_words(["{ranks}", '{"rank": 1}', "{print}", "{{ranks}}", "{rank}"]))
    assert [note.text for note in notes] == ["{ranks} is no placeholder and stays as it is; {rank} is one"]


@pytest.mark.parametrize(
    ("name", "data", "mode", "start"),
    [
        ("train.py", b"#!/bin/sh\n", 0o755, ("python", (), True)),
        ("train", b"import torch\n", 0o644, ("python", (), True)),
        ("train", b"#!/usr/bin/env python3\nimport torch\n", 0o755, ("python", (), True)),
        ("a.sh", b"#!/bin/sh\necho\n", 0o644, ("file", ("/bin/sh",), False)),
        ("a.sh", b"#! /usr/bin/env -S bash -x\n", 0o755, ("file", ("/usr/bin/env", "-S bash -x"), False)),
        ("a.out", b"\x7fELF\0\0", 0o755, ("file", (), False)),
        ("train.pyz", b"PK\3\4\0", 0o644, ("python", (), True)),
    ],
)
def test_a_file_is_started_as_it_says(
    name: str, data: bytes, mode: int, start: tuple[str, tuple[str, ...], bool]
) -> None:
    made = parse_file(name, data, bool(mode & 0o100), ("-x",))
    assert (made.kind, made.words, made.is_python) == start
    words = {"python": ("P", "-u", name, "-x"), "file": (*made.words, f"./{name}", "-x")}
    assert made.build_words(("P", "-u")) == words[made.kind]


@pytest.mark.parametrize(("line", "program"), read_table("programs/first_lines"))
def test_the_program_of_a_first_line_is_known_before_the_start(line: str, program: str) -> None:
    assert parse_file("a.x", f"#!{line}\n".encode(), True, ()).program == program


@pytest.mark.parametrize(
    ("data", "executable", "sentence"),
    [
        (b"echo a; if true; then echo; fi\n", True, "a b does not say what starts it"),
        (b"\x7fELF\0", False, "a b is a program without the x bit"),
    ],
)
def test_a_file_that_does_not_say_what_starts_it_is_refused(data: bytes, executable: bool, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_file("a b", data, executable, ())
    assert refused.value.sentence == sentence
    assert refused.value.hint in ("begin it with a line such as #!/bin/sh", "chmod +x 'a b'")


@pytest.mark.parametrize(
    ("name", "data", "program"),
    [
        ("./go.sh", b"torchrun $1; echo\nif true; then\n", "bash"),
        ("src/Fit.java", b"public class Fit {}\n", "java"),
        ("fit.R", b"x <- 1\n", "Rscript"),
    ],
)
def test_a_script_of_another_language_without_a_first_line_is_answered_with_the_command_that_starts_it(
    name: str, data: bytes, program: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parse_file(name, data, False, ("a b",))
    assert str(refused.value.hint).splitlines()[-1] == f"ipexctl run --program {program} {name} 'a b'"


def test_source_code_is_to_be_built_first() -> None:
    with pytest.raises(UsageError) as refused:
        parse_file("src/ring.c", b"#include <mpi.h>\nint main(void) {\n", False, ("9",))
    assert refused.value.sentence == "src/ring.c is source code, not a program"
    assert "(mpicc src/ring.c -o src/ring)" in str(refused.value.hint)
    assert str(refused.value.hint).splitlines()[-1] == "ipexctl run src/ring 9"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("pass\n")
    Path("train.ipynb").write_text("{}")
    Path("trl").mkdir()
    return tmp_path


def read_starts(**settings: Any) -> list[Start]:
    return list(read_request(Run(**settings), {}, dry=True, emit=None).starts)


@pytest.mark.usefixtures("here")
def test_a_word_is_a_file_a_module_a_program_of_the_environment_or_of_the_hosts() -> None:
    assert read_starts(script="train.py") == [Start("python", "train.py")]
    assert read_starts(script="trl.scripts.sft", module=True, args=("-m", "x")) == [
        Start("module", "trl.scripts.sft", ("-m", "x"))
    ]
    for settings in ({"script": "train.py"}, {"script": "pkg.train", "module": True}):
        (start,) = read_starts(**settings, args=("--", "--depth=2", "--"))  # a line of torchrun's
        assert start.args == ("--depth=2", "--")
    assert read_starts(script="vllm", args=("--", "x")) == [Start("env", "vllm", ("--", "x"))]
    assert read_starts(script="/opt/x/llama-server", program=True) == [
        Start("host", "/opt/x/llama-server", is_python=False)
    ]
    head, rest = read_starts(script="ray", args=("start",), role=("rest:ray 'two words'",), per_host=True)
    assert (head.args, rest.args) == (("start",), ("two words",))
    head, rest = read_starts(program=True, role=("rest:/opt/b '{head}'", "head:a"))
    assert (head.name, rest.name, rest.args) == ("a", "/opt/b", ("{head}",))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("settings", "sentence"), read_table("programs/what_no_host_can_start", frozen=True))
def test_what_no_host_can_start_is_refused_before_any_is_contacted(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_starts(**settings)
    assert refused.value.sentence == sentence


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("word", "module", "hint"),
    [
        ("tools/app/", False, "tools/app/__main__.py --lr 1"),
        ("./app", False, "app/__main__.py --lr 1"),
        ("pkg.train", False, "-m pkg.train --lr 1"),
        ("trl", False, "give the path of a file on this machine; --program takes one of the hosts"),
        ("pdb train.py", True, "train.py --lr 1"),
        ("python -m pdb -c continue train.py", False, "train.py --lr 1"),
    ],
)
def test_what_python_starts_otherwise_than_a_file_is_answered_with_the_command(
    word: str, module: bool, hint: str
) -> None:
    for file in ("tools/app/__main__.py", "app/__main__.py", "src/pkg/train.py"):
        Path(file).parent.mkdir(parents=True)
        Path(file).write_text("pass\n")
    script, *args = word.split()
    with pytest.raises(UsageError) as refused:
        read_starts(script=script, module=module, args=(*args, "--lr", "1"))
    assert str(refused.value.hint).splitlines()[-1].removeprefix("ipexctl run ") == hint


def launch(task: Run, *starts: Start) -> Launch:
    from ipexctl.decide.checks.network import InterfaceChoice
    from ipexctl.decide.launch.environment import HostRuntime
    from ipexctl.model.errors import Note
    from ipexctl.model.hosts import Host

    addresses = {"node0": "192.0.2.10", "node1": "192.0.2.11"}
    runtimes = {
        name: HostRuntime(
            facts(2, 4, machine_id=name),
            InterfaceChoice("eth0", address, Note("x", "x")),
            runtime(),
            "/r",
            f"/w/{name}",
        )
        for name, address in addresses.items()
    }
    hosts = [Host(name, address) for name, address in addresses.items()]
    return build_launch(task, "r1", hosts, runtimes, task.script, {}, starts=starts)


def test_a_process_per_host_has_the_cores_of_all_its_ranks_and_no_number_of_one() -> None:
    task = Run(script="torchrun", per_host=True, ppn=2, env={"A": "{rank}"})
    made = launch(
        task, Start("env", "torchrun", ("--node-rank={host_rank}", "{rank}/{world_size}", "{cores}", "{port}"))
    )
    assert [(place.host, place.rank, place.cpus) for place in made.places] == [
        ("node0", 0, tuple(range(8))),
        ("node1", 1, tuple(range(8))),
    ]
    assert [list(place.argv) for place in made.places] == [
        ["torchrun", "--node-rank=0", "0/4", "8", "PORT"],
        ["torchrun", "--node-rank=1", "2/4", "8", "PORT"],
    ]
    assert [place.env["OMP_NUM_THREADS"] for place in made.places] == ["4", "4"]
    assert made.backend == "gloo"
    names = set(made.nodes[1].env)
    assert "NODE_RANK" in names
    assert not names & {"TORCHELASTIC_RUN_ID", "GROUP_RANK", "ROLE_NAME"}
    spec = build_run_specs(made, task, Identity("n", "t", "o", 0.0))["node1"]
    assert (spec.per_host, spec.fills, spec.filled, spec.meeting) == (True, True, ["A"], False)
    text = str(made)
    assert "rank 1 on node1:\n  torchrun --node-rank=1 2/4 8 PORT\n" in text
    assert "each process its own: NODE_RANK; no RANK, WORLD_SIZE" in text
    with pytest.raises(UsageError, match="only a Python file"):
        write_launch(made, "sh", "")


def test_node0_starts_something_else_and_what_is_not_python_tells_no_stages() -> None:
    task = Run(script="a", program=True, role=("rest:b",))
    made = launch(task, Start("host", "a", is_python=False), Start("env", "b", ("{address}",)))
    assert {place.host: list(place.argv) for place in made.places} == {"node0": ["a"], "node1": ["b", "192.0.2.11"]}
    assert [node.stages for node in made.nodes] == [False, True]


def test_a_program_of_another_mpi_is_refused_before_each_of_its_ranks_is_alone() -> None:
    elf = b"\x7fELF\x02\x01\0\0\0libm.so.6\0libmpi.so.40\0libc.so.6\0"
    assert find_linked_mpi(elf) == "libmpi.so.40"
    assert find_linked_mpi(elf.replace(b"libmpi.so.40", b"libompi.so.4")) == find_linked_mpi(elf[1:]) == ""
    task = Run(script="./a", program=True)
    with pytest.raises(UsageError, match=r"a is linked to libmpi\.so\.40, and the ranks") as refused:
        launch(task, Start("file", "./a", is_python=False, mpi="libmpi.so.40"))
    assert str(refused.value.hint).endswith("ipexctl install --mpi openmpi --like node0")
    launch(task, Start("file", "./a", is_python=False, mpi="libmpi.so.12"))
    launch(Run(script="./a", program=True, per_host=True), Start("file", "./a", is_python=False, mpi="libmpi.so.40"))


@pytest.mark.parametrize(
    ("args", "env", "words"),
    [
        (("--log", "{rank}.txt"), {}, ["0.txt", "1.txt", "2.txt"]),
        ((), {"SLURM_PROCID": "{rank}"}, ["train.py"] * 3),
        (("{{print}}",), {"A": "{}"}, None),
    ],
)
def test_placeholders_of_a_python_file_are_replaced_where_it_has_any(
    args: tuple[str, ...], env: dict[str, str], words: list[str] | None
) -> None:
    made = launch_two(Run(script="train.py", args=args, env=env))
    assert made.fills == (words is not None)
    assert [place.argv[-1] for place in made.places if place.argv] == (words or [])


def test_in_a_playbook_a_program_and_a_module_are_no_paths() -> None:
    text = "hosts: h\nsteps: [{run: {script: vllm}}, {run: {script: a.b, module: true}}, {run: {script: ./vllm}}]"
    play = parse_playbook(text, "play.yaml", base="/base")
    assert [step.task.script for step in play.steps] == ["vllm", "a.b", "/base/vllm"]  # type: ignore[attr-defined]


def test_a_script_without_its_ending_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    link: Any = SimpleNamespace(host=Host("a", "a"), run=lambda command: Completed(1))
    failure = _find_program(link, Start("env", "train", ("3",)), runtime())
    assert isinstance(failure, Failure)
    assert str(failure.hint).split("\n") == ["a file here:", "ipexctl run train.py 3"]
    state = RunState()
    state.command = Started("run", "", (), words=("run", "-n", "2", "train", "3"))
    assert complete_failure(state, failure).hint == "a file here:\nipexctl run -n 2 train.py 3"


def find_program(path: str, name: str) -> str:
    return subprocess.check_output(["/bin/sh", "-c", FIND_PROGRAM, "find", path, name], text=True).strip()


def test_a_program_is_found_on_its_path_only_and_known_as_python_by_its_first_lines(tmp_path: Path) -> None:
    programs = {
        "trl": "#!/opt/env/bin/python3\n",
        "long": "#!/bin/sh\n'''exec' /opt/a/b/bin/python \"$0\" \"$@\"\n",
        "tool": "#!/bin/sh\n",
        "test": "#!/bin/sh\n",
        "data": "none",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644 if name == "data" else 0o755)
    answers = {name: find_program(f"/nowhere:{tmp_path}", name) for name in (*programs, "none", "sh")}
    assert answers == {"trl": "python", "long": "python", "tool": "other", "test": "other"} | dict.fromkeys(
        ("data", "none", "sh"), ""
    )
    assert find_program("/nowhere", "/bin/sh") == "other"


@pytest.mark.parametrize(
    ("name", "known"),
    [("http.server", 0), ("json", 2), ("json.tool", 0), ("unittest", 0), ("a.b", 1), ("http.nosuch", 2)],
)
def test_a_module_is_found_if_it_can_be_started_and_none_is_imported(name: str, known: int) -> None:
    assert subprocess.run([sys.executable, "-c", FIND_MODULE, name], check=False).returncode == known


@pytest.mark.parametrize("sign", ["{port}", "http://127.0.0.1:{port}/"])
def test_a_sign_is_the_answer_of_a_port_or_a_url(sign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        came = threading.Event()
        await_answer(sign.replace("{port}", str(server.server_port)), "192.0.2.1", came.set)
        values, env = {"address": "192.0.2.1"}, {"MASTER_PORT": str(server.server_port)}
        spec = SPEC._replace(ready=sign, env=env, ranks={0: RankSpec(0, values=values)})
        assert find_taken_sign(spec) == sign.replace("{port}", str(server.server_port))
        assert not find_taken_sign(spec._replace(env={})), "the keeper chooses a free one"
        server.shutdown()
    assert came.is_set()
    assert not find_taken_sign(spec)
    assert os.environ["http_proxy"]


def test_a_stranger_whose_answer_has_no_end_holds_no_guard() -> None:
    """The host was lost by it: who asks answers nobody meanwhile."""
    over = threading.Event()

    def answer_slowly(listener: socket.socket) -> None:
        connection = listener.accept()[0]
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\r\nA: ")
        for _ in range(200):
            if not over.wait(0.1):
                connection.sendall(b"a")
        connection.sendall(b"\r\n\r\n")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger = threading.Thread(target=answer_slowly, args=(listener,))
        stranger.start()
        sign = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        ranks = {0: RankSpec(0, values={"address": "127.0.0.1"})}
        spec = SPEC._replace(ready=sign, ranks=ranks, timings=SPEC.timings._replace(node_lease=3.0))
        assert find_taken_sign(spec) == ""
        over.set()
        stranger.join()


def test_a_redirect_whose_text_has_no_end_takes_no_memory_of_the_guard() -> None:
    """It read that whole before it went on: 2 GiB in three seconds."""
    sent = 0

    def redirect(listener: socket.socket) -> None:
        nonlocal sent
        with listener.accept()[0] as connection, suppress(OSError):
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /up\r\n\r\n")
            for _ in range(200):
                connection.sendall(bytes(1 << 20))
                sent += 1 << 20
        with listener.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger = threading.Thread(target=redirect, args=(listener,))
        stranger.start()
        assert answers_url(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        stranger.join()
    assert sent < 100 << 20
