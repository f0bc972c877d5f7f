"""A parser with a fault that no text of its grammar shows: what coverage-guided fuzzing is tried on."""

from hypothesis import strategies as st

from tests.fuzz.targets import Target


def parse(data: bytes) -> bool:
    """Letter by letter, for each line that is reached is a hint."""
    if data[:1] != b"{":
        return True
    if data[1:2] != b"x":
        return True
    if data[2:3] != b"}":
        return True
    raise KeyError("planted")


def wait_for_ever(data: bytes) -> bool:
    """No answer for texts that begin so."""
    while data[:1] == b"h":
        pass
    return True


TARGETS = (
    Target("planted", st.just(b"harmless"), parse),
    Target("endless", st.just(b"harmless"), wait_for_ever),
    Target("sound", st.just(b"harmless"), lambda data: True),
)
