"""Programs that a session starts, which end with it."""

import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, Tuple

from ipexctl.protocol.session import SessionError
from ipexctl.remote.agent import procs
from ipexctl.remote.session.loop import ENDED

Watch = Optional[Callable[[int], Any]]  # takes the process id; returns something that changes with progress


def execute(argv: List[str], env: Dict[str, str], watch: Watch, stall: float, timeout: float) -> Tuple[int, str, str]:
    """Runs a program to its end; returns (status, output, errors). Ended when the controller is gone, after
    ``timeout`` seconds, or when ``watch`` has seen no progress for ``stall`` seconds."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files: Dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        child = subprocess.Popen(argv, env=env, **files, start_new_session=True, preexec_fn=procs.die_with_parent)
        began = moved = beat = time.time()
        last = None
        reason = None
        while child.poll() is None:
            ENDED.wait(0.1)
            now = time.time()
            if watch and now - beat >= 0.5:
                beat, mark = now, watch(child.pid)
                if mark != last:
                    last, moved = mark, now
            if ENDED.is_set():
                reason = "gone"
            elif now - began > timeout:
                reason = "took more than %d s" % timeout
            elif watch and now - moved > stall:
                reason = "no progress for %d s" % stall
            if reason:
                kill_process_group(child)
        texts = []
        for file in (out, err):
            file.seek(max(0, file.seek(0, 2) - 65536))
            texts.append(file.read().decode("utf-8", "replace"))
    if reason == "gone":
        raise SessionError("gone", "the controller is gone")
    if reason:
        raise SessionError("stalled", reason, errors=texts[1][-2000:])
    return child.returncode, texts[0], texts[1]


def kill_process_group(child: "subprocess.Popen[bytes]") -> None:
    for sign, wait in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        with suppress(OSError):
            os.killpg(child.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            child.wait(wait)
