"""The request loop of every session program: one request at a time, until the input ends or a signal comes."""

import errno
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any, Callable, Dict, Optional, Tuple

from ipexctl.protocol import session
from ipexctl.protocol.session import Failed, Message, SessionError

KEEPALIVE = 2.0  # seconds between signs of life during a long command

ENDED = threading.Event()  # the controller is gone
_REQUESTS: "queue.Queue[Optional[Tuple[str, Dict[str, Any]]]]" = queue.Queue()  # None: the input has ended
_WRITING = threading.Lock()

Run = Callable[[str, Dict[str, Any]], Any]  # command, arguments → answer


def serve_requests(run: Run, clear: Callable[[], None], keepalive: float = 0.0) -> None:
    """Answers requests with what ``run`` returns (`Nothing` for None), until the session ends; then clears.
    `SessionError` and `OSError` become failures of the request. Another exception is a fault of ours: it is sent with
    its traceback, for the controller's log. During a request, signs of life are sent for ``keepalive`` seconds."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Not in a handler, which runs in this thread at any point: this thread may hold a lock that ending takes.
    arrival, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_at_signal, args=(arrival,), daemon=True).start()
    threading.Thread(target=_read_requests, daemon=True).start()
    try:
        send(session.Ready())
        while not ENDED.is_set():
            request = _REQUESTS.get()
            if request is None:
                break
            over = threading.Event()
            if keepalive:
                threading.Thread(target=_send_keepalives, args=(over, keepalive), daemon=True).start()
            try:
                send(_answer_request(run, *request))
            finally:
                over.set()
    finally:
        clear()
    os._exit(0)  # the interpreter's own end aborts while a thread of ours waits for input


def call_by_name(*functions: Callable[..., Any]) -> Run:
    """For programs whose requests are called as these functions."""
    by_name = {function.__name__: function for function in functions}
    return lambda command, arguments: by_name[command](**arguments)


def _answer_request(run: Run, command: str, arguments: Dict[str, Any]) -> Message:
    try:
        answer = run(command, arguments)
        return session.Done(session.Nothing() if answer is None else answer)
    except SessionError as error:
        return Failed(error.code, error.what, error.details)
    except OSError as error:
        code = "no-space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "os"
        what = error.strerror or str(error) or type(error).__name__
        return Failed(code, "%s: %s" % (error.filename, what) if error.filename else what, {})
    except Exception as error:
        what = "%s: %s" % (type(error).__name__, error)
        return Failed(session.INTERNAL, what[:300], {"traceback": traceback.format_exc()[-8000:]})


def send(message: Message) -> None:
    """To the controller; without one, the session ends."""
    data = session.KINDS.write(message) + b"\n"
    with _WRITING:
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            ENDED.set()


def report_progress(done: int, total: int) -> None:
    """Bytes, or files, done of all."""
    send(session.Progress(done, total))


def _send_keepalives(over: threading.Event, seconds: float) -> None:
    for _ in range(int(seconds / KEEPALIVE)):
        if over.wait(KEEPALIVE):
            return
        send(session.KeepAlive())


def _read_requests() -> None:
    try:
        for line in sys.stdin.buffer:
            _REQUESTS.put(session.decode_request(line))
    finally:
        end_session()


def _end_at_signal(arrival: int) -> None:
    os.read(arrival, 1)
    end_session()


def end_session() -> None:
    """As if the input had ended. Not for signal handlers: it takes locks."""
    ENDED.set()
    _REQUESTS.put(None)
