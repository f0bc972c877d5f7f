"""A full disk under a run's directory, or a used-up quota, changes no rank's end and does not end the guard."""

import errno
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ipexctl.protocol import messages, paths, run_spec
from ipexctl.remote.agent import files, rpc
from tests.unit.agent.runs import PLAIN, SPEC, TOKEN, remote
from tests.waiting import wait

SMALL = 'mount -t tmpfs -o size=300k,mode=700 none "$0" && cd "$0" && mkdir -m 700 run run/ranks && exec "$@"'


def on_small_disk(place: Path, *words: str) -> list[str]:
    """The words' command line, with ``place`` a file system of 300 KiB which only that process sees."""
    return ["unshare", "-rm", "/bin/sh", "-c", SMALL, str(place), *words]


needs_mounts = pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="this account may not mount",
)

# On the small disk: the wrapper of rank 0, with or without space kept for its record.
WRAPPED = """
import json, os, sys
from ipexctl.remote.agent import files, wrapper
spec, reserve = json.loads(sys.argv[1]), sys.argv[2] == "reserve"
files._write_atomically("run/spec.json", spec)
files._write_atomically("run/port.json", {"port": 1})
if reserve:
    files.reserve_space("run")
os.environ["IPEXCTL_OUTPUT"] = os.devnull
test = os.getpid()
status = wrapper.main([os.path.abspath("run")])
if os.getpid() != test:
    os._exit(status)
end = files.read_json("run/ranks", "0.end.json") if os.path.exists("run/ranks/0.end.json") else {}
print(json.dumps({"wrapper": status, "record": end.get("status", "none")}))
"""


@needs_mounts
@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("reserve", ["reserve", "none"])
def test_a_rank_that_fills_the_disk_ends_as_its_script_does(tmp_path: Path, status: int, reserve: str) -> None:
    script = f"import sys; open('{tmp_path}/ballast', 'wb', 0).write(bytes(10**6)); sys.exit({status})"
    spec = run_spec.encode_spec(SPEC._replace(argv=[sys.executable, "-c", script], host="w1")).decode()
    done = subprocess.run(
        on_small_disk(tmp_path, sys.executable, "-c", WRAPPED, spec, reserve),
        env={**PLAIN, "PMI_RANK": "0", "PMI_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    reported = json.loads(done.stdout)
    recorded = reserve == "reserve"
    assert reported == {"wrapper": int(not recorded), "record": status if recorded else "none"}, done.stderr
    unreported = "ipexctl: the end of rank 0 on w1 is not recorded: No space left on device\n"
    assert done.stderr == ("" if reserve == "reserve" else unreported)


def test_a_used_up_quota_takes_the_reserve_as_a_full_disk_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels without quotas stand aside: nothing can be opened while the reserve is there."""
    really = os.open

    def under_quota(path: str, *more: Any) -> int:
        if (tmp_path / paths.RESERVE).exists():
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)
        return really(path, *more)

    files.reserve_space(str(tmp_path))
    monkeypatch.setattr(os, "open", under_quota)
    files.write_json(str(tmp_path), "end.json", {"reason": "done"})
    assert json.loads((tmp_path / "end.json").read_text()) == {"reason": "done"}


FILLED = """
import os, sys
from ipexctl.remote.agent import files, head, watcher
open("run/spec.json", "w").write(sys.argv[1])
try:
    while True:
        open("ballast", "ab", 0).write(bytes(4096))
except OSError:
    pass
"""


@needs_mounts
def test_of_a_keeper_without_space_the_watcher_says_what_it_died_of(tmp_path: Path) -> None:
    spec = run_spec.encode_spec(SPEC).decode()
    begin = f"run = '{tmp_path}/run'; head.main([run]); sys.stdout.flush(); watcher.watch([run, '0', '0', '0'])"
    words = on_small_disk(tmp_path, sys.executable, "-c", FILLED + begin, spec)
    done = subprocess.run(words, env=PLAIN, stdin=subprocess.PIPE, capture_output=True, timeout=30)
    assert done.stdout.endswith(b"gone No space left on device: %s/run" % bytes(tmp_path)), done


# A rank that takes all space, even what was kept, and tells of it and of the polite stop in a file elsewhere.
GREEDY = """
import os, signal, sys
run, said = sys.argv[1], open(sys.argv[2], "a", 1)
signal.signal(signal.SIGTERM, lambda *_: (said.write("told\\n"), os._exit(0)))
said.write("%d kept\\n" % os.path.getsize(run + "/reserve"))
for name in ("/ballast", "/reserve"):
    open(run + name, "wb", 0).write(bytes(10**6))
said.write("full\\n")
while True:
    signal.pause()
"""


@needs_mounts
def test_the_guard_has_space_of_its_own_and_outlives_a_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    output, rank = tmp_path / "said", tmp_path / "rank.py"
    rank.write_text(GREEDY)
    output.touch()
    spec = run_spec.encode_spec(SPEC._replace(head=None, proxy_env={paths.NODE_ENV: f"{SPEC.run}:h0.ipexctl"})).decode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        write = f"open('run/spec.json', 'w').write({spec!r})"
        words = remote("guard", "run", "127.0.0.1", str(listener.getsockname()[1]), before=write)
        words[-3] = str(small / "run")
        guard = subprocess.Popen(on_small_disk(small, *words), env=PLAIN, stdout=subprocess.PIPE, text=True)
        link = welcomed(listener)
    assert guard.communicate(timeout=60)[0] == '{"kind": "GuardReady"}\n'
    link.send(messages.StartProxy(["/bin/sh", "-c", f"'{sys.executable} {rank} {small}/run {output} & wait'"]))
    wait(lambda: "full" in output.read_text())
    link.send(messages.Terminate())
    wait(lambda: "told" in output.read_text())
    assert output.read_text() == "262144 kept\nfull\ntold\n"
    assert messages.Cleaned([]) in answers(link, messages.Finish())


def welcomed(listener: socket.socket) -> rpc.Wire:
    """The guard, as the keeper meets it."""
    link = rpc.Wire(listener.accept()[0])
    rpc.send_challenge(link)
    met: list[str] = []

    def believed() -> list[str]:
        met.extend(rpc.verify_caller(link, message, TOKEN) for message in link.receive())
        return met

    wait(believed)
    assert met == ["guard"]
    return link


def answers(link: rpc.Wire, order: messages.Message) -> list[rpc.Received]:
    """All that is said from this order on, until the guard ends."""
    link.send(order)
    result: list[rpc.Received] = []
    limit = time.monotonic() + 60.0
    while link.open and time.monotonic() < limit:
        select.select([link], [], [], 0.5)
        result += link.receive()
    return result
