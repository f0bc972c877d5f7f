"""Histories of an install session, as its state machine sees them."""

from __future__ import annotations

import pytest

from ipexctl.remote.session.install import LOCK_HELD, State, next_state


def play(history: str) -> State | None:
    """The state after these commands; one with an exclamation mark fails."""
    state = State.INSPECTING
    for command in history.split():
        after = next_state(state, command.rstrip("!"), not command.endswith("!"))
        if after is None:
            return None
        state = after
    return state


@pytest.mark.parametrize(
    ("history", "state"),
    [
        ("inspect leave_token find_tokens", State.INSPECTING),
        ("inspect lock!", State.INSPECTING),
        (
            "inspect lock clean make_room fetch build check_imports mark switch confirm find_used remove_unused",
            State.ACTIVE,
        ),
        ("inspect lock clean make_room fetch build list_present check_imports", State.BUILT),
        ("inspect lock clean list_present check_imports mark switch", State.SWITCHED),
        ("lock clean mark serve switch go_back", State.COMPLETE),
        ("lock clean mark switch confirm go_back", State.COMPLETE),
        ("lock clean mark switch confirm!", State.SWITCHED),
        ("lock clean build!", State.LOCKED),
        ("lock clean build build!", State.LOCKED),
        ("lock clean build mark!", State.BUILT),
        ("lock clean build mark switch!", State.COMPLETE),
        ("lock clean find_used remove_unused", State.LOCKED),
        ("find_used remove", State.REMOVED),
        ("find_used remove!", State.LOCKED),
    ],
)
def test_a_history_leads_to_its_state(history: str, state: State) -> None:
    assert play(history) is state


@pytest.mark.parametrize(
    "history",
    [
        "build",
        "clean",
        "mark",
        "switch",
        "make_room",
        "fetch",
        "lock lock",
        "lock build switch",
        "lock clean mark confirm",
        "lock clean mark switch remove_unused",
        "go_back",
        "remove inspect",
        "dance",
    ],
)
def test_nothing_is_changed_without_the_lock_and_nothing_is_switched_to_without_a_marker(history: str) -> None:
    assert play(history) is None


def test_only_a_holder_of_the_lock_cleans_at_its_end() -> None:
    assert [state for state in State if state not in LOCK_HELD] == [State.INSPECTING, State.REMOVED]
