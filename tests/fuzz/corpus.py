"""Inputs that every test of a target reads: what was once a finding, and texts as people write them."""

import hashlib
from pathlib import Path

PLACE = Path(__file__).parent / "corpus"


def read(target: str) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted((PLACE / target).glob("*"))]


def keep(target: str, data: bytes) -> Path:
    path = PLACE / target / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
