"""Questions on the terminal."""

from __future__ import annotations

import sys


def confirm(question: str) -> bool:
    """Asks on the terminal; no answer is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def ask(question: str, default: str, why: str, choices: tuple[str, ...]) -> str:
    """The answer on the terminal; an empty one is the default. Raises `Interrupted` where the input has ended."""
    from ipexctl.model.errors import Interrupted
    from ipexctl.model.text import printable

    offered = f" [{'/'.join(choices)}]" if choices else ""
    print(f"{question}{offered}{f'  ({printable(why, 160)})' if why else ''}", file=sys.stderr)
    print(f"  [{printable(default)}] " if default else "  ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise Interrupted
    return line.strip()
