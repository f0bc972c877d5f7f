"""Whether a program is up: it answers at a URL or a port."""

import time
from typing import Any, Callable, List

from ipexctl.protocol.placeholders import fill
from ipexctl.protocol.run_spec import RunSpec

INTERVAL = 0.5  # seconds between two questions
ANSWER_TIMEOUT = 5.0  # seconds an answer may take


def is_asked(sign: str) -> bool:
    """Whether the sign is no text of the program's output."""
    return sign.isdigit() or "://" in sign


def await_answer(sign: str, address: str, report: "Callable[[], None]") -> None:
    """Asks until the answer comes, then calls ``report``. ``sign`` is a URL, or a port of this host at this address or
    its loopback."""
    while not _answers(sign, address):
        time.sleep(INTERVAL)
    report()


def find_taken_sign(spec: RunSpec) -> str:
    """The sign of a rank of this host which a program gives before any rank was started; or nothing. Takes a third of
    the node lease at most, in which the guard is deaf: who answers there may never come to an end."""
    port = spec.env.get("MASTER_PORT", "{port}")
    places = [dict(rank.values, port=port) for rank in spec.ranks.values() if spec.ready]
    signs = {fill(spec.ready, values): values["address"] for values in places}
    taken: List[str] = []

    def ask() -> None:
        taken.extend(sign for sign, address in signs.items() if is_asked(sign) and _answers(sign, address))

    if signs:
        import threading  # few runs have one

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(spec.timings.node_lease / 3)
    return "".join(taken[:1])


def _answers(sign: str, address: str) -> bool:
    return answers_port(sign, address) if sign.isdigit() else answers_url(sign)


def answers_port(port: str, address: str) -> bool:
    import socket  # few runs have such a sign

    for host in (address, "127.0.0.1"):
        try:
            socket.create_connection((host, int(port)), ANSWER_TIMEOUT).close()
        except (OSError, OverflowError):
            continue
        return True
    return False


def answers_url(url: str) -> bool:
    """Whether it answers with success. No proxy is asked: it is a program of this run."""
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler, ProxyHandler, build_opener  # the sign may be a port

    class Redirect(HTTPRedirectHandler):
        def redirect_request(self, request: Any, answer: Any, *details: Any) -> Any:
            answer.close()  # it would be read whole, and a program of others that answers there may go on for ever
            return super().redirect_request(request, answer, *details)

    try:
        build_opener(ProxyHandler({}), Redirect()).open(url, timeout=ANSWER_TIMEOUT).close()
    except (OSError, ValueError, HTTPException):
        return False
    return True
