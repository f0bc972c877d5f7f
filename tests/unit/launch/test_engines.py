"""Engines: what each file of ``data/engines`` makes hosts start, and what is refused."""

import shlex
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from ipexctl.decide.launch.programs import Start, wrap_start
from ipexctl.model.engines import read_engines
from ipexctl.model.errors import UsageError
from ipexctl.model.harmless import find_harmless
from ipexctl.model.tasks import Run
from ipexctl.protocol.placeholders import NAMES, fill
from ipexctl.verbs.common.known_errors import read_known_errors
from ipexctl.verbs.run.request import RunRequest, read_request
from tests.tables import read_table

ENGINES = read_engines()
VALUES = {name: f"<{name}>" for name in NAMES}


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_one_short_file_whose_program_is_asked_for_and_what_is_started_whole(name: str) -> None:
    assert len(files("ipexctl.data").joinpath(f"engines/{name}.toml").read_text("utf-8").splitlines()) <= 30
    head = wrap_start(ENGINES[name], Start("python", "train.py", ("--x", '{"a": 1}')))[0]
    assert head.program == ENGINES[name].program
    assert head.build_words(("python",))[-3:] == ("train.py", "--x", '{"a": 1}')
    module = wrap_start(ENGINES[name], Start("module", "pkg.train"))[0]
    assert module.build_words(("python",))[-2:] == ("-m", "pkg.train")


def test_torchrun_is_told_its_host_and_the_port_of_the_run() -> None:
    (start,) = wrap_start(ENGINES["torchrun"], Start("python", "train.py"))
    assert " ".join(fill(word, VALUES) for word in start.build_words(())) == (
        "torchrun --nnodes=<hosts> --node-rank=<host_rank> --nproc-per-node=<ppn> --master-addr=<head>"
        " --master-port=<port> train.py"
    )


def test_deepspeed_counts_hosts_and_ranks_by_a_file_that_is_gone_when_it_starts(tmp_path: Path) -> None:
    """The words in a real shell, with a program that prints what it is given in DeepSpeed's place."""
    (tmp_path / "deepspeed").write_text('#!/bin/sh\necho "$@"; cat /proc/self/fd/3\n')
    (tmp_path / "deepspeed").chmod(0o755)
    (start,) = wrap_start(ENGINES["deepspeed"], Start("module", "pkg.train", ("--x", "a b")))
    values = {"hosts": "2", "ppn": "3", "host_rank": "1", "head": "192.0.2.1", "port": "4"}
    words = [fill(word, values) for word in start.build_words(())]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    arguments, *hosts = done.stdout.splitlines()
    assert arguments.endswith("--node_rank=1 --master_addr=192.0.2.1 --master_port=4 --module pkg.train --x a b")
    assert hosts == ["host0 slots=3", "host1 slots=3"]
    assert [path.name for path in tmp_path.iterdir()] == ["deepspeed"]


def test_errors_and_harmless_lines_of_engines_are_known() -> None:
    assert find_harmless("2026-11-25 18:18:52,523 INFO worker.py:2038 -- Connected to Ray cluster.") is not None
    errors = {code for engine in ENGINES.values() for code in engine.errors}
    assert errors <= {each.code for each in read_known_errors()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("pass\n")
    Path("a.sh").write_text("#!/bin/sh\n")
    return tmp_path


def read(**settings: Any) -> RunRequest:
    return read_request(Run(**settings), {}, dry=True, emit=None)


@pytest.mark.usefixtures("here")
def test_an_engine_is_started_once_on_each_host() -> None:
    request = read(script="train.py", engine="torchrun")
    assert request.task.per_host
    assert request.engine is ENGINES["torchrun"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("settings", "sentence"), read_table("engines/what_an_engine_cannot_start_is_refused"))
def test_what_an_engine_cannot_start_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(**settings)
    assert refused.value.sentence == sentence


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "OMP_NUM_THREADS=4 CUDA_VISIBLE_DEVICES= python train.py --lr 1",
            "--threads 4 -e CUDA_VISIBLE_DEVICES= train.py --lr 1",
        ),
        ("'python train.py --lr 1'", "train.py --lr 1"),
        ("'train.py --lr 1'", "train.py --lr 1"),
        ("uv run torchrun --nproc_per_node 2 train.py", "-n 2 --ppn 2 train.py"),
        ("uv run --with einops --no-sync -p 3.11 torchrun --nproc_per_node 2 train.py", "-n 2 --ppn 2 train.py"),
        ("uvx --with einops python train.py", "train.py"),
        ("bash -c 'torchrun --nproc_per_node 1 train.py'", "-n 1 --ppn 1 train.py"),
        ("nohup python -m pkg.train 'a b'", "-m pkg.train 'a b'"),
        ("python3.11 train.py", "train.py"),
        ("/usr/bin/env X=1 python train.py --lr 1", "-e X=1 train.py --lr 1"),
        ("python3.11 none.py", ""),
        ("X=1 ls", ""),
    ],
)
def test_whoever_types_a_line_of_a_shell_is_given_the_command(line: str, advice: str) -> None:
    word, *args = shlex.split(line)
    with pytest.raises(UsageError) as refused:
        read(script=word, args=tuple(args))
    assert ("not a line that starts one: " in refused.value.sentence) is bool(advice)
    assert not advice or str(refused.value.hint).splitlines()[-1] == f"ipexctl run {advice}"
    assert ("install --with PACKAGE adds" in str(refused.value.hint)) is ("--with" in args)


def test_a_program_of_the_system_is_no_script_whose_directory_goes_to_the_hosts() -> None:
    with pytest.raises(UsageError, match="/bin/sh is a program of this machine, and no script") as refused:
        read(script="/bin/sh", args=("-c", "date"))
    assert str(refused.value.hint).splitlines()[-1] == "ipexctl run --program /bin/sh -c date"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("word", "module", "args", "advice"),
    read_table("engines/whoever_types_a_launcher_is_given_the_command_with_his_own_script"),
)
def test_whoever_types_a_launcher_is_given_the_command(word: str, module: bool, args: str, advice: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(script=word, module=module, args=tuple(args.split()))
    assert str(refused.value.hint).splitlines()[-1] == f"ipexctl run {advice}"
    assert read(script=word, module=module, args=tuple(args.split()), per_host=True)
