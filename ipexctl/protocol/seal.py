"""Proof on a connection between the keeper and its guards and watchers: who speaks, and each line.

Both sides know the run's token, which never travels, and give a nonce each. From these come a proof of either side, and
for either direction a key. Every line after the greeting is sealed: an HMAC-SHA256 of its number and its bytes goes
before it. A line that was altered, repeated, left out, moved, sent back or added on the way does not open. Seals do not
hide what the lines say (docs/decisions/0013-lines-are-sealed.md). No clock and no random numbers here."""

import hashlib
import hmac
import json
from typing import NamedTuple, Optional

VERSION = "ipexctl-run-2"
KEEPER, CALLER = "keeper", "caller"  # the sides of a connection
SEAL = 64  # letters before each line


class Greeting(NamedTuple):
    """Everything sent before the first sealed line; proofs and keys depend on it."""

    challenge: str  # the keeper's nonce
    nonce: str  # the caller's
    role: str
    name: str
    clock: float


def compute_proof(token: str, side: str, greeting: "Greeting") -> str:
    """Returns what shows that this side of a connection knows the token."""
    return _derive_key(token, "proof", side, greeting).hex()


def verify_proof(token: str, side: str, greeting: "Greeting", proof: str) -> bool:
    """Returns whether ``proof``, which may be any text, is that of this side."""
    return hmac.compare_digest(proof.encode("utf-8", "surrogatepass"), compute_proof(token, side, greeting).encode())


class Seals:
    """One direction of a connection, from its first line on: seals lines at one end, opens them at the other."""

    def __init__(self, token: str, side: str, greeting: "Greeting") -> None:
        """``side`` is the one that sends."""
        self.key = hmac.new(_derive_key(token, "lines", side, greeting), digestmod=hashlib.sha256)
        self.count = 0

    def seal(self, line: bytes) -> bytes:
        """Returns the next line, sealed."""
        return self._compute_mac(line) + line

    def open(self, sealed: bytes) -> "Optional[bytes]":
        """Returns the next line; None where it is not what the other side sent next. Nothing after that one opens."""
        line = sealed[SEAL:]
        return line if hmac.compare_digest(sealed[:SEAL], self._compute_mac(line)) else None

    def _compute_mac(self, line: bytes) -> bytes:
        seal = self.key.copy()
        seal.update(b"%d " % self.count + line)
        self.count += 1
        return seal.hexdigest().encode()


def _derive_key(token: str, use: str, side: str, greeting: "Greeting") -> bytes:
    text = json.dumps([VERSION, use, side, greeting])  # whatever the names hold, no two lists are the same text
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).digest()
