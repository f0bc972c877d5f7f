"""The one place that masks what leaves ipexctl."""

import base64
import html
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.model import events as e
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.secrets import find_named_values, find_passwords, looks_secret, mask_forms
from ipexctl.store.masking import SECRETS, EventMasker, Masker, StreamMasker
from tests.tables import read_table

SECRET = "q7Zk-93mvPd1"
ODD = "p\"ä's/\\w0rd\t&<1>"


def make_masker(*secrets: str) -> Masker:
    masker = Masker({})
    masker.add_secrets(secrets)
    return masker


def keep(directory: Path, *secrets: str) -> Masker:
    """A masker that knows these values by the hashes of a record alone."""
    (directory / SECRETS).write_bytes(make_masker(*secrets).dump_kept())
    masker = Masker({})
    masker.add_kept(directory)
    return masker


def output(data: bytes, partial: bool = True) -> e.Output:
    return e.Output(0, "a", "out", data, partial)


def shown(masker: Masker, *events: e.Event) -> bytes:
    end = e.RunEnded("r1", "done", "", 1.0)
    stream = EventMasker(masker)
    passed = [each for event in (*events, end) for each in stream.mask_event(event)]
    assert passed[-1] == end
    return b"".join(event.data for event in passed if isinstance(event, e.Output))


@pytest.mark.parametrize(
    "text",
    [
        *read_table("masking/secrets_are_masked_by_what_stands_before_them_or_how_they_begin"),
        f"train.py hf_{SECRET}{SECRET}".replace("-", ""),
    ],
)
def test_secrets_are_masked_by_what_stands_before_them_or_how_they_begin(text: str) -> None:
    masked = Masker({}).mask_text(text.replace("SECRET", SECRET))
    assert SECRET.replace("-", "") not in masked.replace("-", "")
    assert "with blanks" not in masked


@pytest.mark.parametrize(
    "text",
    [
        "github_pat_" + "11ABCDEFG0abcdefghijk_lmnop",
        "sk-proj-" + "Ab1Ab1Ab1Ab1Ab1Ab1Ab1",
        "glpat-" + "abcdefghij0123456789",
        "AKIA" + "IOSFODNN7EXAMPLE",
        "wandb_v1_" + "abcdefghij0123456789_KEPT",
        "gsk_" + "abcdefghij0123456789abcdefghijKEPT",
        "hvs." + "abcdefghij0123456789KEPT",
        "dckr_pat_" + "abcdefghij0123456789KEPT",
        "ya29." + "abcdefghij0123456789KEPT",
        "https://store.example/c/b?sv=2024&sig=%KEPT%3D",
        "https://b.s3.example/k?X-Amz-Expires=60&X-Amz-Signature=KEPTKEPT",
        "https://b.s3.example/k?a=1&amp;X-Amz-Security-Token=KEPTKEPT",
        "https://hooks.slack.com/services/T0/B0/KEPTKEPT",
        "https://discord.com/api/webhooks/123/KEPTKEPT",
        "https://api.telegram.org/bot123:KEPTKEPT/sendMessage",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nKEPTKEPT\nKEPT==\n-----END RSA PRIVATE KEY-----",
        r"-----BEGIN PRIVATE KEY-----\nKEPTKEPT\nKEPT==\n",
    ],
)
def test_forms_of_secrets_are_masked_in_texts_and_in_what_ranks_print(text: str) -> None:
    for masked in (Masker({}).mask_text(f"see {text} now"), mask_forms(f"see {text} now".encode()).decode()):
        assert "***" in masked
        assert masked.startswith("see ")
        assert masked.endswith(" now") or "BEGIN" in text
        assert not any(part in masked for part in ("KEPT", "11ABC", "Ab1", "abcdefghij", "IOSF"))


OF_SECRETS = ("KAGGLE_KEY", "MYSQL_PWD", "DB_PASS", "HF_TOKEN", "--api_token", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD",
              "SLACK_WEBHOOK_URL", "ansible_ssh_pass", "db.password", "SSHPASS", "db-pw", "AWS_CREDS", "session_cookie",
              "API_TOKENS", "--wandb-key", "trainer.kaggle_key", "HTTP_AUTHORIZATION", "pass", "pwd")  # fmt: skip
OF_NONE = ("PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "max_new_tokens", "--pad-token", "text_key", "--ask-pass",
           "--pass-env", "HF_TOKEN_PATH", "PUBLIC_KEY", "SSH_AUTH_SOCK", "tokens_per_s",
           "bypass", "sort_key", "author", "compass", "sacred")  # fmt: skip


@pytest.mark.parametrize("name", OF_SECRETS + OF_NONE)
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name) == (name in OF_SECRETS)


def test_values_of_variables_whose_names_look_secret_are_masked_wherever_they_stand() -> None:
    masker = Masker({"WANDB_API_KEY": SECRET, "TOKENIZERS": "no", "PATH": "/usr/bin"})
    assert masker.mask_text(f"KeyError: '{SECRET}'") == "KeyError: '***'"
    for text in ("no change of /usr/bin", "secret.yaml:3:8: unknown key", "auth_token.py:12: SyntaxWarning"):
        assert masker.mask_text(text) == text
    assert masker.mask_text("secret.yaml:3:8:x") == "secret.yaml:***", "no position"
    assert masker.mask_text("db.password=4711: connected") == "db.password=*** connected"


def test_what_was_declared_is_masked_in_every_text_of_an_event() -> None:
    stream = EventMasker(make_masker(SECRET, "first line of a key\nsecond line of it"))
    failure = Failure("a", Kind.STEP, f"it says {SECRET}", f"or {SECRET}")
    (failed,) = stream.mask_event(e.HostFailed(failure))
    assert failed == e.HostFailed(Failure("a", Kind.STEP, "it says ***", "or ***"))
    (planned,) = stream.mask_event(e.Planned("run", f"env A={SECRET}\nsecond line of it"))
    assert planned == e.Planned("run", "env A=***\n***")
    (message,) = stream.mask_event(e.LauncherOutput("err", f"x{SECRET}y".encode()))
    assert message == e.LauncherOutput("err", b"x***y")
    # Lists of JSON: those of a study were in its record as they were given.
    task = {"args": ["--api_token", "abc"], "more": [{"env": [SECRET]}]}
    (study,) = stream.mask_event(e.StudyStarted({}, task, "", True, 1.0, 0, 8))
    assert study == e.StudyStarted(
        {}, {"args": ["--api_token", "***"], "more": [{"env": ["***"]}]}, "", True, 1.0, 0, 8
    )
    # What the record of a stranger may have in place of our own words, and the page shows.
    (stage,) = stream.mask_event(e.RankStage(0, "a", f"start {SECRET}", 1.0))
    assert stage == e.RankStage(0, "a", "start ***", 1.0)
    (check,) = stream.mask_event(e.CleanupChecked("k7", (), {SECRET: (1,)}, ()))
    assert check == e.CleanupChecked("k7", (), {"***": (1,)}, ())
    # The rest of a rank's block, behind bytes that were dropped, counts as the launcher's.
    (message,) = EventMasker(Masker({})).mask_event(e.LauncherOutput("out", b"token hf_abcdefghijklmnopqrstuv\n"))
    assert message == e.LauncherOutput("out", b"token ***\n")


def test_the_words_of_a_command_line_are_secrets_by_the_word_before() -> None:
    words = ("train.py", "--api_token", "abc", "--lr", "0.1", "DB_PASS=a b", "--cfg=x.api_key=k=1", "--env-file", "x")
    assert list(find_named_values(words)) == ["", "", "abc", "", "", "a b", "k=1", "", ""]
    masker = Masker({}, [*words, "--my-password", SECRET, "--tokens", "10000000", "--db_pass", "10000000"])
    assert masker.mask_text(f"got {SECRET} and 10000000") == "got *** and 10000000"
    assert masker.mask_value(words)[2:] == (
        "***", "--lr", "0.1", "DB_PASS=***", "--cfg=x.api_key=***", "--env-file", "x",
    )  # fmt: skip


@pytest.mark.parametrize(
    "word",
    [
        "DB_PASS=SECRET; python train.py",
        "export DB_PASS='SECRET' && python train.py",
        "python train.py --api-key SECRET --lr 1",
        "curl -H 'X-Api-Key: SECRET' localhost",
        "X-Api-Key: SECRET",
        "curl -H 'Authorization: Bearer SECRET' localhost",
        "Authorization: Basic SECRET",
        '{"Authorization": "Bearer SECRET", "lr": 1}',
        '{"api_key": "SECRET", "lr": 1}',
        '--api_key="SECRET"',
        "+logger={api_key:SECRET}",
        "https://me:SECRET@index.example/simple",
    ],
)
def test_values_within_one_word_are_secrets_of_their_own(word: str) -> None:
    """Each was declared with the line around it, so that a rank that printed it alone showed it."""
    quoted = "%71" + SECRET[1:] if word.startswith("https") else SECRET
    assert Masker({}, ["exec", word.replace("SECRET", quoted)]).mask_text(f"got {SECRET} alone") == "got *** alone"


ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "json-utf8": lambda text: json.dumps(text, ensure_ascii=False),
    "json in json": lambda text: json.dumps(json.dumps(text))[3:-3],
    "json of PHP": lambda text: json.dumps(text).replace("/", r"\/"),
    "repr": repr,
    "ascii": ascii,
    "repr of bytes": lambda text: repr(text.encode()),
    "repr of a text with both quotes": lambda text: repr(f'{text}"')[1:-2],
    "ascii of a text with both quotes": lambda text: ascii(f'{text}"')[1:-2],
    "repr of bytes with both quotes": lambda text: repr(f'{text}"'.encode())[2:-2],
    "url": quote,
    "url, all": lambda text: quote(text, safe="").lower() if text.islower() else quote(text, safe=""),
    "form": quote_plus,
    "html": html.escape,
    "html of text": lambda text: html.escape(text, quote=False),
    "html of Jinja": lambda text: html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "json of Go": lambda text: re.sub("[<>&]", lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(text)),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("secret", [SECRET, ODD, r"it's a\s3cr3t"])
def test_values_are_masked_in_every_encoding(name: str, secret: str, kept: bool, tmp_path: Path) -> None:
    masker = keep(tmp_path, secret) if kept else make_masker(secret)
    encoded = ENCODINGS[name](secret)
    assert masker.mask_text(f"<{encoded}>").strip("<>'\"b") == "***"
    line = f"x {encoded} y\n".encode()
    assert encoded.strip("'\"").encode() not in shown(masker, output(line, False))


def test_the_lines_of_base64_are_masked() -> None:
    secret = SECRET * 8
    lines = base64.encodebytes(secret.encode())
    assert make_masker(secret).mask_bytes(lines).split() == [b"***"] * len(lines.split())


@given(st.binary(max_size=7), st.binary(max_size=7))
def test_base64_of_more_than_the_value_does_not_show_it(before: bytes, after: bytes) -> None:
    """As the login of ``Authorization: Basic``. What is left of the value are the bits that share a character."""
    coded = base64.b64encode(before + SECRET.encode() + after)
    masked = make_masker(SECRET).mask_bytes(coded)
    assert b"***" in masked
    assert len(masked) <= len(coded) - len(SECRET) * 4 // 3 + 5


@pytest.mark.parametrize("kept", [False, True])
@given(st.lists(st.integers(1, len(SECRET) - 1), max_size=4), st.booleans())
def test_a_secret_that_a_rank_prints_in_pieces_is_not_shown(
    tmp_path_factory: pytest.TempPathFactory, kept: bool, cuts: list[int], ended: bool
) -> None:
    masker = keep(tmp_path_factory.mktemp("kept"), SECRET) if kept else make_masker(SECRET)
    at = [0, *sorted(set(cuts)), len(SECRET)]
    pieces = [SECRET[start:end].encode() for start, end in itertools.pairwise(at)]
    pieces = [b"before " + pieces[0], *pieces[1:], b" after\n" if ended else b" after"]
    assert shown(masker, *map(output, pieces)) == b"".join([b"before *** after", b"\n" if ended else b""])


def test_a_token_that_comes_in_pieces_is_not_shown_and_what_only_begins_like_one_is() -> None:
    token = b"hf_abcdefghijklmnopqrstuvwxyz"
    for cut in range(3, len(token)):
        assert shown(Masker({}), output(b"a " + token[:cut]), output(token[cut:] + b" b\n", False)) == b"a *** b\n"
    masker = make_masker(SECRET)
    assert shown(masker, output(b"q7Z"), output(b"k-94\n", False)) == b"q7Zk-94\n"
    assert shown(masker, output(b"ends with q7Z")) == b"ends with q7Z"
    assert shown(masker, output(b"see https://x.example")) == b"see https://x.example"


def test_a_key_that_comes_line_by_line_is_not_shown() -> None:
    key = ["-----BEGIN OPENSSH PRIVATE KEY-----", "b3BlbnNzaC1r", "ZXktdjEAAAAA", "-----END OPENSSH PRIVATE KEY-----"]
    stream = StreamMasker(Masker({}))
    lines = [stream.feed(f"{line}\n".encode(), partial=False) for line in ["a", *key, "loss: 0.5"]]
    assert lines == [b"a\n", b"***\n", b"***\n", b"***\n", b"***\n", b"loss: 0.5\n"]


def test_a_colour_inside_of_a_secret_does_not_show_it() -> None:
    line = b"\x1b[31mred\x1b[0m\n\x1b[31mq7Z\x1b[0mk-93m\x1b[1mvPd1!\n"
    assert shown(make_masker(SECRET), output(line, False)) == b"\x1b[31mred\x1b[0m\n***!\n"


def test_tokens_that_a_rank_prints_are_masked_also_where_their_values_are_not_known() -> None:
    """As attach and logs show them, from a machine that did not start the run."""
    printed = b"login hf_abcdefghijklmnopqrst at https://ada:pass@index/simple, tokens=2048, loss: 0.5\n"
    data = shown(Masker({}), e.Output(0, "node0", "out", printed, False))
    assert data == b"login *** at https://***@index/simple, tokens=2048, loss: 0.5\n"


FRAME = 'Traceback (most recent call last):\n  File "/usr/lib/python3.11/a.py", line 86, in connect\n'
OF_RANK = FRAME.replace("  File", "[rank0]:   File")


@pytest.mark.parametrize(("text", "masked"), read_table("masking/names_and_expressions"))
def test_names_and_expressions_like_secrets_are_none_and_literals_are(text: str, masked: str | None) -> None:
    text, masked = (each.format(frame=FRAME, of_rank=OF_RANK) for each in (text, masked or text))
    assert Masker({}).mask_text(text) == masked


def test_a_record_keeps_hashes_that_say_no_value(tmp_path: Path) -> None:
    masker = keep(tmp_path, SECRET, ODD)
    text = (tmp_path / SECRETS).read_text()
    assert SECRET[2:5] not in text
    assert make_masker(SECRET).dump_kept() != make_masker(SECRET).dump_kept(), "salted"
    assert masker.mask_text(f"a{SECRET}b") == "a***b"
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / SECRETS).write_bytes(masker.dump_kept())  # as attach saves what it learned
    other = Masker({})
    other.add_kept(tmp_path / "next")
    assert other.mask_text(f"a{SECRET}b") == "a***b"
    kept = len(json.loads(other.dump_kept()))
    other.add_kept(tmp_path / "next")  # by each reader of the record
    assert len(json.loads(other.dump_kept())) == kept


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[1]", b'[{"salt": "", "values": [{"head": "", "length": 9, "hash": "x"}]}]',
     b'[{"salt": "", "values": [{"head": "ab", "length": -9, "hash": "x"}]}]',
     '[{"salt": "", "values": [{"head": "\u4e2d\u4e2d", "length": 9, "hash": "x"}]}]'.encode()],
)  # fmt: skip
def test_damaged_hashes_add_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / SECRETS).write_bytes(data)
    masker = Masker({})
    masker.add_kept(tmp_path)
    masker.add_kept(tmp_path / "none")
    assert masker.mask_text("abcdefghij") == "abcdefghij"
    assert masker.find_open_end(b"abcdefghij") == 10


@pytest.mark.parametrize(
    "word",
    [b"a", b"token", b"--token ", b"sk-", b"-eyJabcdefghijk", b"://", b"api_key: ", b"\x1b[31m", b"\x1b[\x1b[0m31m",
     b"-----BEGIN PRIVATE KEY-----\n", b"-Type: ", b"q7Zk-93mvPd", b"q7"],
)  # fmt: skip
def test_a_long_line_takes_time_that_grows_with_it_alone(word: bytes, tmp_path: Path) -> None:
    """20 KB took 3 s, and 512 KiB would have taken half an hour: the test's own limit ends it."""
    for masker in (make_masker(SECRET, ODD), keep(tmp_path, SECRET, ODD)):
        line = b"token: " + word * ((1 << 19) // len(word))
        masker.mask_bytes(line, named=True)
        shown(masker, *(output(line[at : at + (64 << 10)]) for at in range(0, len(line), 64 << 10)))


@pytest.mark.parametrize("password", [SECRET, f"a/{SECRET}", f"a {SECRET}", f"a@{SECRET}", f"1a/{SECRET}:"])
@pytest.mark.parametrize("named", ["word", "variable"])
def test_a_password_in_a_url_is_masked_whatever_should_have_been_quoted_in_it(password: str, named: str) -> None:
    """One with a slash or a blank was on the screen and in the record of an install that failed."""
    url = f"http://user:{password}@host/simple"
    several = f"http://u:x@a/simple {url}"
    masker = Masker({}, ("--index-url", url)) if named == "word" else Masker({"PIP_EXTRA_INDEX_URL": several})
    assert SECRET not in masker.mask_text(f"no answer: {url}")


def test_an_address_without_a_password_declares_none() -> None:
    texts = ("http://host:8000/a@b", "git+ssh://git@host/x", "s3://bucket/a:b@c", "http://host/x", "hf:a/b@main")
    assert [*itertools.chain.from_iterable(map(find_passwords, texts))] == []
    assert [*find_passwords("://a:" * 200_000 + " " * 200_000)] == [], "in no time"
