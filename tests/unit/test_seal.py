"""Seals of a connection: only what the other side sent next opens; and only who knows the token is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.protocol.seal import CALLER, KEEPER, SEAL, Greeting, Seals, compute_proof, verify_proof

TOKEN = "t" * 64
GREETING = Greeting("c" * 32, "n" * 32, "guard", "b", 1.5)
LINES = [b"one", b"two", b"three"]


def sealed(side: str = CALLER, token: str = TOKEN, greeting: Greeting = GREETING) -> list[bytes]:
    seals = Seals(token, side, greeting)
    return [seals.seal(line) for line in LINES]


def opened(lines: list[bytes], side: str = CALLER) -> list[bytes | None]:
    seals = Seals(TOKEN, side, GREETING)
    return [seals.open(line) for line in lines]


def test_lines_open_in_their_order() -> None:
    assert opened(sealed()) == LINES


@given(st.binary(), st.text(), st.text())
def test_any_line_of_any_connection_opens(line: bytes, token: str, name: str) -> None:
    greeting = GREETING._replace(name=name)
    token = token.encode("ascii", "replace").decode()
    assert Seals(token, KEEPER, greeting).open(Seals(token, KEEPER, greeting).seal(line)) == line


@pytest.mark.parametrize("at", [0, SEAL - 1, SEAL, SEAL + 2])
def test_an_altered_line_does_not_open_nor_any_after_it(at: int) -> None:
    one, two, three = sealed()
    altered = two[:at] + bytes([two[at] ^ 1]) + two[at + 1 :]
    assert opened([one, altered, two, three]) == [b"one", None, None, None]


@pytest.mark.parametrize("cut", [0, 1, SEAL - 1, SEAL, SEAL + 2])
def test_a_truncated_line_does_not_open(cut: int) -> None:
    assert opened([sealed()[0][:cut]]) == [None]


@pytest.mark.parametrize("order", [[0, 0], [1], [0, 2], [1, 0]], ids=["repeated", "left out", "skipped", "moved"])
def test_lines_in_another_order_do_not_open(order: list[int]) -> None:
    lines = sealed()
    assert opened([lines[number] for number in order])[-1] is None


def test_a_line_that_is_sent_back_does_not_open() -> None:
    assert opened(sealed(CALLER), KEEPER)[0] is None


@pytest.mark.parametrize(
    "change", [{"challenge": "d"}, {"nonce": "m"}, {"role": "tell"}, {"name": "a"}, {"clock": 2.0}]
)
def test_a_line_of_another_connection_does_not_open(change: dict[str, str]) -> None:
    assert opened(sealed(greeting=GREETING._replace(**change)))[0] is None  # type: ignore[arg-type]
    assert not verify_proof(TOKEN, CALLER, GREETING._replace(**change), compute_proof(TOKEN, CALLER, GREETING))  # type: ignore[arg-type]


def test_who_does_not_know_the_token_is_not_believed() -> None:
    assert verify_proof(TOKEN, CALLER, GREETING, compute_proof(TOKEN, CALLER, GREETING))
    assert opened(sealed(token="u" * 64))[0] is None
    for proof in ("", "é", "\ud800", compute_proof("u" * 64, CALLER, GREETING), compute_proof(TOKEN, KEEPER, GREETING)):
        assert not verify_proof(TOKEN, CALLER, GREETING, proof)


def test_words_moved_between_role_and_name_are_another_greeting() -> None:
    shifted = GREETING._replace(role="guar", name="db")
    assert compute_proof(TOKEN, CALLER, shifted) != compute_proof(TOKEN, CALLER, GREETING)
