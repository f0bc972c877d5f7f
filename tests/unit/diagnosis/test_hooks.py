"""What our sitecustomize does in a rank, with a torch.distributed of nothing but a rendezvous."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.act import agent
from ipexctl.protocol import hooks
from tests.tables import read_table

SCRIPT = """
import sys, threading
import torch.distributed
if sys.argv[1] != "alone":
    torch.distributed.init_process_group()
begun = threading.Event()
def late():  # as torch's: it wants Python's lock, to let go of a tensor, when the script has come to its end
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write("pt_gloo_runloop")
    begun.set()
    for _ in range(10**12 if sys.argv[1] == "alone" else 3_000_000):  # a while; nobody may wait for the first
        pass
    print("let go", flush=True)
    threading.Event().wait()
threading.Thread(target=late, daemon=True).start()
begun.wait()
if sys.argv[1] == "destroyed":
    torch.distributed.destroy_process_group()
"""
TORCH = """
def init_process_group(): pass
def destroy_process_group(): print("destroyed", flush=True)
def broadcast(): raise ValueError("no such root")
def get_world_size(): return 2
def get_rank(): return 1
"""
EXITS = """
import sys
import torch.distributed as dist
dist.init_process_group()
try:
    dist.broadcast()
except ValueError:
    sys.exit({})
"""
TOLD = {"connected": "let go\n", "destroyed": "let go\ndestroyed\n", "alone": ""}


def run_with_hooks(directory: Path, script: str, *words: str, leads: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a script as rank 3 of a run whose directory is ``directory/run``."""
    torch = directory / "torch/distributed"
    torch.mkdir(parents=True)
    (torch.parent / "__init__.py").touch()
    (torch / "__init__.py").write_text("from .distributed_c10d import *\n")
    (torch / "distributed_c10d.py").write_text(TORCH)
    (directory / "run/ranks").mkdir(parents=True)
    own = directory / "own"
    own.mkdir()
    for name, data in agent.read_hooks().items():
        (own / name).write_bytes(data)
    (directory / "rank.py").write_text(script)
    env = {"PYTHONPATH": f"{own}{os.pathsep}{directory}", "IPEXCTL_DIR": str(directory / "run"), "IPEXCTL_RANK": "3"}
    command = [sys.executable, str(directory / "rank.py"), *words]
    env["IPEXCTL_MEETING"] = "node0 1 1"
    env = {**os.environ, **env}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, start_new_session=leads)


def test_a_python_without_hooks_of_threads_has_the_other_hooks(tmp_path: Path) -> None:
    """Python 3.7, where something has imported threading before."""
    late = "import threading, sys; del threading.excepthook; sys.modules.pop('sitecustomize'); import sitecustomize"
    done = run_with_hooks(tmp_path, f"import atexit; atexit._clear(); {late}; print(atexit._ncallbacks())")
    assert (done.stdout, done.stderr) == ("3\n", "")


HOOK = """
import os, sys
def write(*_):
    print("sorry", flush=True)
    os._exit(4)
"""


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (f"{HOOK}sys.excepthook = write\nimport torch.distributed as dist\n", 4),
        ("import sys, torch.distributed as dist\nsys.excepthook = lambda *_: print('sorry')\n", 1),
        ("import torch.distributed as dist\n", 1),
    ],
)
def test_an_exception_is_kept_whatever_hook_the_script_has(tmp_path: Path, script: str, status: int) -> None:
    done = run_with_hooks(tmp_path, f"{script}dist.broadcast()\n")
    assert (done.returncode, done.stdout) == (status, "sorry\n" if "sorry" in script else "")
    record = json.loads(next((tmp_path / "run/ranks").glob("3.*.error")).read_text())
    assert record["error"] == "ValueError: no such root"
    assert f'{tmp_path}/rank.py", line {script.count(chr(10)) + 1}' in record["traceback"]


@pytest.mark.parametrize("call", ["dist.broadcast()", "try: dist.broadcast()\nexcept ValueError: raise KeyError(1)"])
def test_a_traceback_has_no_frames_of_ours(tmp_path: Path, call: str) -> None:
    done = run_with_hooks(tmp_path, f"import torch.distributed as dist\n{call}\n")
    assert done.returncode == 1
    record = json.loads(next((tmp_path / "run/ranks").glob("3.*.error")).read_text())
    for text in (done.stderr, record["traceback"]):
        assert "distributed_c10d.py" in text
        assert "ValueError: no such root" in text
        assert "sitecustomize" not in text


def test_of_a_deep_recursion_as_many_calls_are_read_as_python_prints(tmp_path: Path) -> None:
    """A million calls were parsed, for minutes, in which the others waited."""
    deep = "import sys\ndef f(n): return f(n - 1) if n else 1 / 0\nsys.setrecursionlimit(5000)\nf(3000)\n"
    run_with_hooks(tmp_path, deep)
    (report,) = (tmp_path / "run" / "ranks").glob("3.*.error")
    assert "[Previous line repeated 997 more times]" in json.loads(report.read_text())["traceback"]


def test_a_file_that_may_not_grow_is_no_full_disk(tmp_path: Path) -> None:
    """torch has the same words for both."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
    raises = "raise RuntimeError('[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598')\n"
    for place, script, observed in (("a", limit + raises, [hooks.FILE_LIMIT, "1048576"]), ("b", raises, None)):
        run_with_hooks(tmp_path / place, script)
        record = json.loads(next((tmp_path / place / "run/ranks").glob("3.*.error")).read_text())
        assert record["observed"] == observed


def test_what_a_queue_of_another_process_cannot_pickle_is_kept(tmp_path: Path) -> None:
    """Its thread writes a traceback and goes on; who waits for the object, as for a batch, waited for nothing known."""
    work = "def work():\n    queue.put(lambda: 0)\n    queue.close()\n    queue.join_thread()\n"
    start = "p = context.Process(target=work)\np.start()\np.join()\n"
    head = "import multiprocessing\ncontext = multiprocessing.get_context('fork')\nqueue = context.Queue()\n"
    run_with_hooks(tmp_path, f"{head}{work}{start}")
    (kept,) = (tmp_path / "run/ranks").glob(f"3.*{hooks.THREAD_ERROR}")
    report = json.loads(kept.read_text())
    assert (report["thread"], "pickle" in report["error"]) == ("the thread of a queue", True)


def test_the_error_of_a_groups_result_is_what_the_group_says(tmp_path: Path) -> None:
    text = "Cannot extract tensors from value: ImpiError: impi: allreduce #9: rank 1 left\\n\\nAt:\\n  a.py(1): f"
    done = run_with_hooks(tmp_path, f"raise RuntimeError('{text}')\n")
    record = json.loads(next((tmp_path / "run/ranks").glob("3.*.error")).read_text())
    assert record["error"] == "RuntimeError: ImpiError: impi: allreduce #9: rank 1 left"
    assert done.stderr.endswith(f"\n{record['error']}\n")


TASKS = """
import sys
import torch.distributed as dist
from concurrent.futures import ThreadPoolExecutor
dist.init_process_group()
def save(): raise OSError("no room")
with ThreadPoolExecutor(1) as pool:
    task = pool.submit(save)
"""


@pytest.mark.parametrize(
    ("then", "lost"),
    [
        ("", True),
        ("del task", True),
        ("task.exception()", False),
        ("task.exception(); pool = ThreadPoolExecutor(1); task = pool.submit(sys.exit); pool.shutdown()", False),
        ("try: task.result()\nexcept OSError: pass", False),
        ("task.exception(); pool = ThreadPoolExecutor(1); task = pool.submit(next, iter([])); pool.shutdown()", False),
        ("task.exception(); task = type(task)(); task.set_exception(RuntimeError('closed'))", False),
        ("task.add_done_callback(lambda task: task.exception())", False),
    ],
)
def test_the_exception_of_a_task_whose_result_nobody_asks_for_is_kept(tmp_path: Path, then: str, lost: bool) -> None:
    """A rank whose checkpoints were not written ended well without a word."""
    assert run_with_hooks(tmp_path, TASKS + then).returncode == 0
    reports = [json.loads(kept.read_text()) for kept in (tmp_path / "run/ranks").glob(f"3.*{hooks.THREAD_ERROR}")]
    assert [(report["error"], report["grouped"]) for report in reports] == [("OSError: no room", True)] * lost


def test_the_exception_of_a_task_is_kept_whatever_its_base(tmp_path: Path) -> None:
    """That of torch's checkpoints is no Exception: what async_save had not written was lost at a good end."""
    lost = TASKS.replace("def save(): raise OSError", "class Lost(BaseException): pass\ndef save(): raise Lost")
    assert run_with_hooks(tmp_path, lost).returncode == 0
    (kept,) = (tmp_path / "run/ranks").glob(f"3.*{hooks.THREAD_ERROR}")
    assert json.loads(kept.read_text())["error"].endswith("Lost: no room")


@pytest.mark.parametrize(("code", "status", "error"), read_table("hooks/exits"))
def test_an_exit_is_kept_with_its_line_and_what_the_script_handled(
    tmp_path: Path, code: str, status: int, error: str | None
) -> None:
    done = run_with_hooks(tmp_path, EXITS.format(code))
    assert (done.returncode, done.stderr) == (status, "bad config\n" if "config" in code else "")
    record = json.loads(next((tmp_path / "run/ranks").glob("3.*.error")).read_text())
    assert (record["status"], record.get("error")) == (status, error)
    assert record["exit_line"] == f"{tmp_path}/rank.py:8"
    assert ("distributed_c10d.py" in record.get("traceback", "")) == bool(status)


@pytest.mark.parametrize(
    ("value", "error", "observed"), [("[0.91]", "[0.91]", [hooks.EXIT_VALUE, "list"]), ("OSError('no')", "no", None)]
)
def test_a_result_that_is_given_to_exit_is_kept_with_its_type(
    tmp_path: Path, value: str, error: str, observed: object
) -> None:
    """Python prints it and ends with 1: a run that had done its work failed, with nothing but that result."""
    assert run_with_hooks(tmp_path, f"import sys\nsys.exit({value})", leads=True).returncode == 1
    record = json.loads(next((tmp_path / "run/ranks").glob("3.*.error")).read_text())
    assert (record["error"], record.get("observed")) == (error, observed)


@pytest.mark.parametrize("name", ["exit", "quit"])
def test_an_exit_of_a_keyboard_is_kept_as_that_of_sys(tmp_path: Path, name: str) -> None:
    assert run_with_hooks(tmp_path, EXITS.format(3).replace("sys.exit", name)).returncode == 3
    record = json.loads(next((tmp_path / "run/ranks").glob("3.*.error")).read_text())
    assert (record["status"], record["exit_line"]) == (3, f"{tmp_path}/rank.py:8")


@pytest.mark.parametrize(
    "start", ["threading.Thread(target=sys.exit, args=(3,)).start()", "_thread.start_new_thread(sys.exit, (3,))"]
)
def test_an_exit_of_a_thread_is_no_more_than_its_end(tmp_path: Path, start: str) -> None:
    """Python writes nothing of it; ours was written like an exception, or kept as the end of the script."""
    script = f"import _thread, sys, time, threading\nimport torch.distributed\n{start}\ntime.sleep(0.5)\n"
    done = run_with_hooks(tmp_path, script, leads=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("run/ranks/*.error"))


EXITS_AGAIN = """
import sys
import torch.distributed
try:
    {}
except SystemExit as caught:
    {}
"""


@pytest.mark.parametrize(
    ("first", "again", "code"),
    [
        ("sys.exit(0)", "sys.exit(caught)", 0),
        ("sys.exit(7)", "sys.exit(caught)", 7),
        ("sys.exit()", "sys.exit(caught)", 0),
        ("raise SystemExit(7)", "sys.exit(caught)", 7),
        ("raise type('Own', (SystemExit,), {})(7)", "sys.exit(caught)", 7),
        ("sys.exit((7,))", "raise", 7),
        ("sys.exit((7, 8))", "raise", 1),
        ("sys.exit('no')", "sys.exit(caught.code)", 1),
        ("sys.exit(ValueError('no'))", "sys.exit(caught)", 1),
    ],
)
def test_an_exit_is_as_without_hooks(tmp_path: Path, first: str, again: str, code: int) -> None:
    """What was caught and given to ``sys.exit`` again was a value that is no status, and a failure."""
    script = EXITS_AGAIN.format(first, again)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/rank.py").write_text(script.replace("import torch.distributed\n", ""))
    plain = subprocess.run([sys.executable, tmp_path / "plain/rank.py"], capture_output=True, text=True)
    done = run_with_hooks(tmp_path / "ours", script, leads=True)
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr) == (code, done.stderr)


def test_an_exit_is_kept_whoever_collects_at_the_end(tmp_path: Path) -> None:
    """torch.compile prints its times then, by a table of tabulate where that is installed."""
    collects = "import atexit, gc\natexit.register(lambda: gc.collect())\n"
    assert run_with_hooks(tmp_path, collects + EXITS.format(3)).returncode == 3
    record = json.loads(next((tmp_path / "run/ranks").glob("3.*.error")).read_text())
    assert record["exit_line"] == f"{tmp_path}/rank.py:10"


@pytest.mark.parametrize(("code", "kept"), [("1", True), ("2", False)])
@pytest.mark.parametrize("leads", [True, False])
def test_an_exit_before_the_script_meets_others_is_kept_unless_it_is_a_helpers(
    tmp_path: Path, code: str, kept: bool, leads: bool
) -> None:
    """What a script handles that refuses its arguments, with status 2, is its parser's own affair."""
    done = run_with_hooks(tmp_path, EXITS.format(code).replace("dist.init_process_group()", ""), leads=leads)
    assert (done.returncode, done.stderr) == (int(code), "")
    records = [json.loads(path.read_text()) for path in (tmp_path / "run/ranks").glob("3.*.error")]
    assert [(record["status"], "traceback" in record) for record in records] == [(int(code), kept)] * leads


def test_an_exit_that_another_process_raised_can_be_sent(tmp_path: Path) -> None:
    script = EXITS.format("3").replace("sys.exit(3)", "pickle.loads(pickle.dumps(caught))")
    script = script.replace("except ValueError", "except SystemExit as caught").replace(
        "dist.broadcast()", "sys.exit(3)"
    )
    done = run_with_hooks(tmp_path, f"import pickle{script}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("stage", TOLD)
def test_who_was_connected_waits_for_gloos_threads_before_the_end(tmp_path: Path, stage: str) -> None:
    done = run_with_hooks(tmp_path, SCRIPT, stage)
    assert done.returncode == 0, done.stderr
    assert done.stdout == TOLD[stage]
    assert (tmp_path / "run/ranks/3.connected.json").exists() == (stage != "alone")


def import_with_hook(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """What the hook got when ``name`` was imported twice."""
    hooked: list[str] = []

    finder = hooks.ModuleHooks({name: lambda module: hooked.append(f"{module.__name__} {module.VALUE}")})
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    importlib.invalidate_caches()
    try:
        importlib.import_module(name)
        importlib.reload(sys.modules[name])
    finally:
        sys.modules.pop(name, None)
    return hooked


def test_a_hook_gets_the_module_after_its_code_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooked_module.py").write_text("VALUE = 3\n")
    assert import_with_hook(tmp_path, monkeypatch, "hooked_module") == ["hooked_module 3"]


def test_a_missing_module_is_left_to_other_finders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError):
        import_with_hook(tmp_path, monkeypatch, "no_such_module")


def test_a_function_is_called_as_before_whatever_is_noted_around_it() -> None:
    noted: list[object] = []

    class Owner:
        @staticmethod
        def add(a: int, *, b: int = 0) -> int:
            "Adds."
            noted.append("add")
            if b < 0:
                raise ValueError(b)
            return a + b

    def fail(*_: object) -> None:
        noted.append("fail")
        raise OSError("the disk is full")

    hooks.call_around(Owner, "add", lambda *given: noted.append(given), fail)
    assert (Owner.add(1, b=2), Owner.add.__name__, Owner.add.__doc__) == (3, "add", "Adds.")
    assert noted == [((1,), {"b": 2}), "add", "fail"]
    with pytest.raises(ValueError, match="-1"):
        Owner.add(1, b=-1)
    assert noted[3:] == [((1,), {"b": -1}), "add"], "it has not returned"


def test_what_is_written_once_stays_is_whole_and_is_nobody_elses(tmp_path: Path) -> None:
    file = tmp_path / "3.import.json"
    for text in ("first", "second"):
        hooks.write_once(str(file), text)
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("first", 0o600)
    assert [*tmp_path.iterdir()] == [file]
    (tmp_path / f"other.{os.getpid()}").symlink_to(file)
    with pytest.raises(FileExistsError):
        hooks.write_once(str(tmp_path / "other"), "through a link")
    assert file.read_text() == "first"
