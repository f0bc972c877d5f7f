"""What fills an environment that is missing, in the very place it was looked for."""

from dataclasses import replace

import pytest

from ipexctl.decide.releases.env_health import describe_different_packages, find_unhealthy_envs
from ipexctl.model.facts import Facts, Installed
from tests.markers import MARKER
from tests.tables import read_table


@pytest.mark.parametrize(("venv", "hint"), read_table("env_health/the_hint_names_the_place_that_was_looked_into"))
def test_the_hint_names_the_place_that_was_looked_into(venv: str, hint: str) -> None:
    (failure,) = find_unhealthy_envs({"node0": Facts(home="/home/u", installed=Installed(venv))})
    assert (failure.what, failure.hint) == (f"no environment at {venv}", hint)


def test_environments_of_others_changed_or_mixed_are_reported_host_by_host() -> None:
    def has(marker: object, **packages: str) -> Facts:
        return Facts(home="/home/u", installed=Installed("/e", True, "3.11", packages, marker))  # type: ignore[arg-type]

    whole = replace(MARKER, id="torch2.8.0-1", packages={"torch": "2.8.0"})
    facts = {
        "head": has(whole, torch="2.8.0"),
        "same": has(whole, torch="2.8.0+cpu", mine="1"),
        "foreign": has(None, torch="2.8.0"),
        "half": Facts(installed=Installed("/e", True, beside=("tmp", "torch2.8.0-1"))),
        "busy": Facts(installed=Installed("/e", True, beside=("tmp", "torch2.8.0-1"), locked=True)),
        "changed": has(whole, torch="2.7.0"),
        "mixed": has(replace(whole, id="torch2.8.0-2"), torch="2.8.0"),
    }
    failures = find_unhealthy_envs(facts)
    assert "--program /e/bin/python" in str(failures[0].hint)
    assert str(failures[0].hint).endswith("ipexctl install --venv /home/u/.local/share/ipexctl/env")
    assert [(one.host, one.code, one.what) for one in failures] == [
        ("foreign", "no-env", "an environment that ipexctl did not make at /e"),
        ("half", "no-env", "an install of /e is under way there, or was cut off"),
        ("busy", "busy", "busy: an install of /e is under way there"),
        ("changed", "drift", "the environment was changed: torch is 2.7.0, not 2.8.0"),
        ("mixed", "mixed", "its environment is torch2.8.0-2, that of head is torch2.8.0-1"),
    ]


def test_an_environment_that_is_not_trusted_is_made_like_that_of_the_others() -> None:
    whole = replace(MARKER, id="torch2.8.0-1", packages={"torch": "2.8.0"})
    good = Installed("/e", True, "3.11", {"torch": "2.8.0"}, whole)
    facts = {name: Facts(home="/home/u", installed=good) for name in ("a", "c")}
    facts["b"] = Facts(home="/home/u", installed=replace(good, marker=None, fault="/e belongs to another user"))
    (failure,) = find_unhealthy_envs(facts)
    assert (failure.host, failure.code) == ("b", "untrusted")
    assert str(failure.hint).splitlines()[-1] == "ipexctl install --like a --limit b"


def test_a_package_that_was_added_by_hand_in_another_version_on_one_host_is_named() -> None:
    """One rank failed with an attribute that its version lacks, and the report did not name the difference."""

    def has(**packages: str) -> Facts:
        return Facts(installed=Installed("/e", True, "3.11", {"torch": "2.8.0+cpu", **packages}, MARKER))

    facts = {"node0": has(einops="0.8.0", jupyter="1"), "node1": has(einops="0.8.0"), "node2": has(einops="0.5.0")}
    (note,) = describe_different_packages(facts)
    assert str(note) == (
        "the hosts have different versions of einops (0.8.0 on node[0-1], 0.5.0 on node2); one on all of them, from the"
        " index:\nipexctl install --with einops"
    )
    facts["node2"] = has(einops="0.8.0+local", **{"a;b": "1"})  # a version of its own build, and one host's alone
    own = Facts(installed=Installed("/conda", True, "3.11", {"einops": "0.5.0"}))
    assert describe_different_packages({**facts, "new": Facts(), "own": own, "node3": has(**{"a;b": "2"})}) == ()
