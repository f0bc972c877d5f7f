"""The launch written for other programs. ``golden/`` holds each form; `python -m tests.unit.launch.test_emit`
writes it anew (then read the difference)."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ipexctl.cli.options import Emit
from ipexctl.data import read_data
from ipexctl.decide.launch.emit import write_launch
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.launch import Launch, NodePlan, Setting
from ipexctl.model.tasks import Run
from tests.unit.launch.two import ENGINES, launch

GOLDEN = Path(__file__).parent / "golden"
FORMS = get_args(Emit)
SECRET = Setting("hunter2", "--pass-env", secret=True, by_user=True)
ODD = Setting('it\'s $HOME; `x` "y" {{ z }}\nnext', "--env", by_user=True)


def example(form: str, engine: str = "impi") -> Launch:
    """With all that is awkward: secrets, quotes, lines; preloads, bound memory."""
    task = Run(script="train.py", args=("--name", "two words", "$(touch x)"), ppn=2, membind=True, backend="gloo")
    first = {"allocators": {"tcmalloc": "/usr/lib/libtcmalloc.so.4", "iomp5": "/opt/ai/lib/libiomp5.so"}}
    return launch(task, {"HF_TOKEN": SECRET, "ODD": ODD}, engine=engine, first=first)


def written(launch: Launch, form: str) -> str:
    return write_launch(launch, form, read_data("emit.j2"))


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_as_it_was_read_last(form: str) -> None:
    assert written(example(form), form) == (GOLDEN / f"{form}.txt").read_text()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ["impi", *ENGINES])
def test_no_form_holds_a_secret_and_all_ask_for_it_in_a_script_that_a_shell_can_read(form: str, engine: str) -> None:
    text = written(example(form, engine), form)
    assert "hunter2" not in text
    assert "HF_TOKEN" in text
    done = subprocess.run(["/bin/sh", "-n"], input=text, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("form", FORMS)
def test_a_line_end_in_the_name_of_a_script_begins_no_line_of_the_launch(form: str) -> None:
    text = written(launch(Run(script="a\ntouch pwned;.py", ppn=2)), form)
    assert "\ntouch pwned;.py:" not in text


def test_a_script_for_hosts_with_ipv6_addresses_asks_the_launcher_for_it() -> None:
    assert "    -v6 \\\n" in written(launch(address="2001:db8::1"), "sh")


@pytest.mark.parametrize("form", FORMS)
def test_impi_is_written_only_for_what_starts_an_mpirun(form: str) -> None:
    two = launch(Run(script="train.py", ppn=2, backend="impi"), impi=True)
    if form in {"sbatch", "torchrun"}:
        with pytest.raises(UsageError, match="without mpirun"):
            written(two, form)
    else:
        assert "IPEXCTL_BACKEND" in written(two, form)


def many(count: int, engine: str) -> Launch:
    """So many hosts of two ranks each, whose mpirun does nothing."""
    base = example("sh", engine)
    first = base.nodes[0]

    def seat(number: int) -> NodePlan:
        ranks = tuple(replace(place, host=f"n{number}", rank=2 * number + place.local) for place in first.ranks)
        return replace(first, host=f"n{number}", address=f"192.0.2.{number}", ranks=ranks)

    return replace(base, nodes=tuple(map(seat, range(count))), mpiexec=("/bin/true", *base.mpiexec[1:]))


def test_a_script_for_hundreds_of_hosts_starts(tmp_path: Path) -> None:
    """A word of a command may have 128 KiB, and all of them what the stack allows."""
    text = written(many(400, "impi"), "sh").replace("$(/opt/ai/bin/python", f"$({sys.executable}")
    done = subprocess.run(["/bin/sh"], input=text, text=True, capture_output=True, env={"HF_TOKEN": "x"}, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("engine", [*ENGINES])
def test_an_mpirun_that_takes_one_word_for_all_hosts_is_not_given_more_than_fits(engine: str) -> None:
    assert "$each" in written(many(16, engine), "sh")
    with pytest.raises(UsageError, match="does not fit into one word") as refused:
        written(many(400, engine), "sh")
    assert refused.value.exit == Exit.STEP
    assert "--mpi impi" in (refused.value.hint or "")


def test_a_form_that_wants_equal_hosts_refuses_others() -> None:
    with pytest.raises(UsageError) as refused:
        written(launch(), "torchrun")
    assert list(refused.value.reasons) == ["node0: 2", "node1: 1"]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for form in FORMS:
        (GOLDEN / f"{form}.txt").write_text(written(example(form), form))
