"""Whether all hosts stay with a new environment: asked of the host that decides."""

import hashlib
import hmac
import threading
import time
from typing import List

from ipexctl.remote.session import relay

CONFIRM_TIMEOUT = 60.0  # seconds between a switch and its confirmation, after which the controller counts as gone


def prove_token(token: str, role: str, question: str) -> bytes:
    """Returns what only one who knows the token can say to this question, in this role."""
    return hmac.new(token.encode(), ("%s %s" % (role, question)).encode(), hashlib.sha256).hexdigest().encode()


def is_confirmed(base: str, token: str) -> bool:
    """Returns whether the host that decides stays with the new environment, which it says in time. It answers 404 until
    it knows, and not at all after it has gone back; who does not know the token cannot answer in its place."""
    answers: List[bool] = []
    asking = threading.Thread(target=lambda: answers.append(_ask_for_confirmation(base, token)), daemon=True)
    asking.start()
    asking.join(2 * CONFIRM_TIMEOUT)  # an answer may be one without an end, and this host holds the lock
    return answers == [True]


def _ask_for_confirmation(base: str, token: str) -> bool:
    import http.client  # slow to import, and asked for by a lost controller alone
    import urllib.error
    import urllib.request

    question = relay.make_token()
    proof = prove_token(token, "asks", question).decode()
    request = urllib.request.Request(base + "/" + question, headers={"Authorization": proof})
    until = time.monotonic() + CONFIRM_TIMEOUT
    while time.monotonic() < until:
        try:
            with relay.open_directly(request, 5) as answer:
                return hmac.compare_digest(answer.read(100), prove_token(token, "stays", question))
        except urllib.error.HTTPError:
            time.sleep(0.1)
        except (OSError, http.client.HTTPException):
            break
    return False
