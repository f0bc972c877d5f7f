"""Histories of an install session, as its state machine sees them."""

from __future__ import annotations

import pytest

from ipexctl.remote.session.install import LOCK_HELD, SessionState, next_state
from tests.tables import read_table


def play(history: str) -> SessionState | None:
    """The state after these commands; one with an exclamation mark fails."""
    state = SessionState.INSPECTING
    for command in history.split():
        after = next_state(state, command.rstrip("!"), not command.endswith("!"))
        if after is None:
            return None
        state = after
    return state


@pytest.mark.parametrize(
    ("history", "state"),
    [
        ("inspect leave_token find_tokens", SessionState.INSPECTING),
        ("inspect lock!", SessionState.INSPECTING),
        (
            "inspect lock clean make_room fetch build check_imports mark switch confirm find_used remove_unused",
            SessionState.ACTIVE,
        ),
        ("inspect lock clean make_room fetch build list_present check_imports", SessionState.BUILT),
        ("inspect lock clean list_present check_imports mark switch", SessionState.SWITCHED),
        ("lock clean mark serve switch go_back", SessionState.COMPLETE),
        ("lock clean mark switch confirm go_back", SessionState.COMPLETE),
        ("lock clean mark switch confirm!", SessionState.SWITCHED),
        ("lock clean build!", SessionState.LOCKED),
        ("lock clean build build!", SessionState.LOCKED),
        ("lock clean build mark!", SessionState.BUILT),
        ("lock clean build mark switch!", SessionState.COMPLETE),
        ("lock clean find_used remove_unused", SessionState.LOCKED),
        ("find_used remove", SessionState.REMOVED),
        ("find_used remove!", SessionState.LOCKED),
    ],
)
def test_a_history_leads_to_its_state(history: str, state: SessionState) -> None:
    assert play(history) is state


@pytest.mark.parametrize(
    "history",
    read_table("install_state/nothing_is_changed_without_the_lock_and_nothing_is_switched_to_without_a_marker"),
)
def test_nothing_is_changed_without_the_lock_and_nothing_is_switched_to_without_a_marker(history: str) -> None:
    assert play(history) is None


def test_only_a_holder_of_the_lock_cleans_at_its_end() -> None:
    assert [state for state in SessionState if state not in LOCK_HELD] == [
        SessionState.INSPECTING,
        SessionState.REMOVED,
    ]
