"""Words of Ansible that a playbook of ours does not have, read from the text of ``ipexctl/data/ansible.toml``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


def suggest_replacement(word: str, of: Mapping[str, str], valid: Iterable[str]) -> str | None:
    """What to write instead of an Ansible word; None where it is none, or rather a slip of one of ours."""
    if word in of:
        return of[word]
    if word.startswith("with_") and not difflib.get_close_matches(word, list(valid), n=1, cutoff=0.8):
        return of.get("loop")
    if word.startswith(("ansible.", "community.")):
        return (
            suggest_replacement(word.rpartition(".")[2], of, valid)
            or "modules of Ansible are not used: see docs/playbook.md"
        )
    return None
