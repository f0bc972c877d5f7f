"""What fills an environment that is missing, in the very place it was looked for."""

from __future__ import annotations

import pytest

from ipexctl.decide.releases.env_health import find_unhealthy_envs
from ipexctl.model.facts import Facts, Installed


@pytest.mark.parametrize(
    ("venv", "hint"),
    [
        ("/home/u/.local/share/ipexctl/env", "ipexctl install"),
        ("~/.local/share/ipexctl/env", "ipexctl install"),
        ("/nope", "ipexctl install --venv /nope"),
        ("/a b", "ipexctl install --venv '/a b'"),
    ],
)
def test_the_hint_names_the_place_that_was_looked_into(venv: str, hint: str) -> None:
    (failure,) = find_unhealthy_envs({"node0": Facts(home="/home/u", installed=Installed(venv))})
    assert (failure.what, failure.hint) == (f"no environment at {venv}", hint)
