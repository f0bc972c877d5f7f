"""The states of an install session on one host, and which command leads from which to which. Pure; Python 3.6."""

from enum import Enum
from typing import Optional


class State(Enum):
    """How far the session has come. What its end must undo depends on it (`must_clean`)."""

    INSPECTING = "inspecting"  # from the start: reads the host and leaves tokens, changes no environment
    LOCKED = "locked"  # from `lock` on: may clean, receive files, build, and remove what is not used
    BUILT = "built"  # after `build`: the environment is unpacked, has no marker, and does not count
    COMPLETE = "complete"  # after `mark`: the marker is on the disk, any host may switch to it
    ACTIVE = "active"  # after `switch`: the link leads to it; what is not used may be removed
    REMOVED = "removed"  # after `remove` (uninstall): nothing of the environment is left, nothing more may be done


ANYTIME = (
    "inspect",
    "measure_rate",
    "echo",
    "leave_token",
    "find_tokens",
    "list_present",
    "check_imports",
    "find_used",
)
_LOCK_HELD = (State.LOCKED, State.BUILT, State.COMPLETE, State.ACTIVE)

TRANSITIONS = {(state, command): state for state in (State.INSPECTING, *_LOCK_HELD) for command in ANYTIME}
TRANSITIONS.update({(state, command): state for state in _LOCK_HELD for command in ("make_room", "serve", "fetch")})
TRANSITIONS.update(
    {
        (State.INSPECTING, "lock"): State.LOCKED,
        (State.INSPECTING, "remove"): State.REMOVED,
        (State.LOCKED, "clean"): State.LOCKED,
        (State.LOCKED, "build"): State.BUILT,
        (State.LOCKED, "mark"): State.COMPLETE,  # an environment that an earlier install has built
        (State.LOCKED, "switch"): State.ACTIVE,
        (State.LOCKED, "remove_unused"): State.LOCKED,
        (State.BUILT, "build"): State.BUILT,
        (State.BUILT, "mark"): State.COMPLETE,
        (State.COMPLETE, "switch"): State.ACTIVE,
        (State.ACTIVE, "remove_unused"): State.ACTIVE,
    }
)
# What a command leads to if it fails; without an entry the state stays.
FAILURES = {(State.BUILT, "build"): State.LOCKED, (State.INSPECTING, "remove"): State.LOCKED}


def next(state: State, command: str, succeeded: bool = True) -> Optional[State]:
    """The state after a command; None if the command is not allowed in this state."""
    after = TRANSITIONS.get((state, command))
    return after if after is None or succeeded else FAILURES.get((state, command), state)


def must_clean(state: State) -> bool:
    """Whether the end of the session must remove incomplete environments: only the holder of the lock may."""
    return state in _LOCK_HELD
