"""The one place that masks what leaves ipexctl."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.model import events as e
from ipexctl.model.errors import Failure, Kind
from ipexctl.store.masking import Masker, mask_secrets

SECRET = "q7Zk-93mvPd1"


def output(data: bytes, partial: bool = True) -> e.Output:
    return e.Output(0, "a", "out", data, partial)


def shown(masker: Masker, *events: e.Event) -> bytes:
    end = e.RunEnded("r1", "done", "", 1.0)
    passed = [each for event in (*events, end) for each in masker.mask_event(event)]
    assert passed[-1] == end
    return b"".join(event.data for event in passed if isinstance(event, e.Output))


@pytest.mark.parametrize(
    "text",
    [
        f"https://ada:{SECRET}@index.example/simple",
        f"env HF_TOKEN={SECRET} python",
        f"--hf-token {SECRET}",
        f"['--api-key', '{SECRET}']",
        f'{{"password": "{SECRET}"}}',
        f"Authorization: Bearer {SECRET}",
        f"aws_secret_access_key = {SECRET}",
        f"MY_PASSPHRASE='{SECRET} with blanks'",
        f"the ProxyCommand ended without a connection (sshpass -p {SECRET} ssh -W %h:%p jump)",
        f"train.py hf_{SECRET}{SECRET}".replace("-", ""),
    ],
)
def test_secrets_are_masked_by_what_stands_before_them_or_how_they_begin(text: str) -> None:
    assert SECRET.replace("-", "") not in mask_secrets(text).replace("-", "")
    assert "with blanks" not in mask_secrets(text)


def test_values_of_variables_whose_names_look_secret_are_masked_wherever_they_stand() -> None:
    masker = Masker({"WANDB_API_KEY": SECRET, "TOKENIZERS": "no", "PATH": "/usr/bin"})
    assert masker.mask_text(f"KeyError: '{SECRET}'") == "KeyError: '***'"
    assert masker.mask_text("no change of /usr/bin") == "no change of /usr/bin"


def test_what_was_declared_is_masked_in_every_text_of_an_event() -> None:
    masker = Masker({})
    masker.add_secrets([SECRET, "first line of a key\nsecond line of it"])
    failure = Failure("a", Kind.STEP, f"it says {SECRET}", f"or {SECRET}")
    (failed,) = masker.mask_event(e.HostFailed(failure))
    assert failed == e.HostFailed(Failure("a", Kind.STEP, "it says ***", "or ***"))
    (planned,) = masker.mask_event(e.Planned("run", f"env A={SECRET}\nsecond line of it"))
    assert planned == e.Planned("run", "env A=***\n***")
    (message,) = masker.mask_event(e.LauncherOutput("err", f"x{SECRET}y".encode()))
    assert message == e.LauncherOutput("err", b"x***y")
    # The rest of a rank's block, behind bytes that were dropped, counts as the launcher's.
    (message,) = Masker({}).mask_event(e.LauncherOutput("out", b"token hf_abcdefghijklmnopqrstuv\n"))
    assert message == e.LauncherOutput("out", b"token ***\n")


@given(st.lists(st.integers(1, len(SECRET) - 1), max_size=4), st.booleans())
def test_a_secret_that_a_rank_prints_in_pieces_is_not_shown(cuts: list[int], ended: bool) -> None:
    masker = Masker({})
    masker.add_secrets([SECRET])
    at = [0, *sorted(set(cuts)), len(SECRET)]
    pieces = [SECRET[start:end].encode() for start, end in itertools.pairwise(at)]
    pieces = [b"before " + pieces[0], *pieces[1:], b" after\n" if ended else b" after"]
    assert shown(masker, *map(output, pieces)) == b"".join([b"before *** after", b"\n" if ended else b""])


def test_a_colour_inside_of_a_secret_does_not_show_it_and_what_only_begins_like_one_is_shown() -> None:
    masker = Masker({})
    masker.add_secrets([SECRET])
    assert shown(masker, output(b"\x1b[31mq7Z\x1b[0mk-93m\x1b[1mvPd1!\n", False)) == b"\x1b[31m***!\n"
    assert shown(masker, output(b"q7Z"), output(b"k-94\n", False)) == b"q7Zk-94\n"
    assert shown(masker, output(b"ends with q7Z")) == b"ends with q7Z"


def test_tokens_that_a_rank_prints_are_masked_also_where_their_values_are_not_known() -> None:
    """As attach and logs show them, from a machine that did not start the run."""
    printed = b"login hf_abcdefghijklmnopqrst at https://ada:pass@index/simple, tokens=2048, loss: 0.5\n"
    (shown,) = Masker({}).mask_event(e.Output(0, "node0", "out", printed, False))
    assert isinstance(shown, e.Output)
    assert shown.data == b"login *** at https://***@index/simple, tokens=2048, loss: 0.5\n"


@pytest.mark.parametrize("text", ["tokenizers==0.22.1", "TOKENIZERS_PARALLELISM=false", '"tokenizers": "0.21.4"'])
def test_a_package_whose_name_begins_like_a_secret_is_none(text: str) -> None:
    assert mask_secrets(text) == text
