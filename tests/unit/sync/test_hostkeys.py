"""Known host keys."""

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ipexctl.act.ssh.hostkeys import (
    KnownHosts,
    compute_fingerprint,
    find_recording_fault,
    format_known_host_name,
    format_known_hosts_line,
    read_trusted_file,
)
from ipexctl.act.ssh.keys import Key, PrivateKeys, UnusableKey
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.model.hosts import Host
from tests.stopwatch import Stopwatch
from tests.tables import read_table


def blob(seed: str, kind: str = "ssh-ed25519") -> bytes:
    body = hashlib.sha256(seed.encode()).digest()
    return len(kind).to_bytes(4, "big") + kind.encode() + len(body).to_bytes(4, "big") + body


def line(hosts: str, seed: str, kind: str = "ssh-ed25519") -> str:
    return f"{hosts} {kind} {base64.b64encode(blob(seed, kind)).decode()}"


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def known(tmp_path: Path) -> KnownHosts:
    path = tmp_path / "known_hosts"
    path.write_text(
        "\n".join(
            [
                "# a comment",
                line("node1,10.0.0.1", "one") + " a comment",
                line(hashed("node2"), "two"),
                line("[node3]:2222", "three"),
                line("*.cluster,!bad.cluster", "four"),
                "@cert-authority " + line("*.signed", "ca"),
                "@revoked " + line("*", "stolen"),
                line("node5", "stolen"),
                "node6 ssh-ed25519",
                "node6 ssh-ed25519 not*base64",
                "node6 ssh-rsa " + base64.b64encode(blob("x")).decode(),
                "@strange " + line("node6", "x"),
                line(hashed("[node7]:2200"), "seven"),
                line("node8", "eight", "ssh-rsa"),
                "",
                line("NODE9", "nine") + "\r",
                "node6 ssh-ed25519 " + base64.b64encode(blob("x")[:-32]).decode(),  # a length, and nothing after it
            ]
        )
    )
    return KnownHosts([path, tmp_path / "missing"])


@pytest.mark.fault("B6")
@pytest.mark.parametrize(("host", "port", "seed"), read_table("hostkeys/found_lines"))
def test_lines_of_each_form_are_found(known: KnownHosts, host: str, port: int, seed: str) -> None:
    assert known.judge_key(format_known_host_name(host, port), blob(seed))[0] == "ok"


@pytest.mark.parametrize("host", ["bad.cluster", "node3", "cluster", "elsewhere", "node22"])
def test_hosts_that_no_line_matches_are_unknown(known: KnownHosts, host: str) -> None:
    assert known.judge_key(format_known_host_name(host, 22), blob("four"))[0] == "unknown"


def test_a_revoked_key_is_refused_although_another_line_allows_it(known: KnownHosts) -> None:
    state, entry = known.judge_key("node5", blob("stolen"))
    assert state == "revoked"
    assert entry is not None
    assert entry.line == 7


def test_another_key_than_the_known_one_has_changed_and_the_line_is_named(known: KnownHosts) -> None:
    state, entry = known.judge_key("node2", blob("other"))
    assert state == "changed"
    assert entry is not None
    assert (entry.line, entry.blob) == (3, blob("two"))


def test_a_key_of_another_type_than_the_known_one_has_changed_too(known: KnownHosts) -> None:
    assert known.judge_key("node8", blob("new"))[0] == "changed"


def test_a_host_known_only_by_an_authority_says_so(known: KnownHosts) -> None:
    assert known.judge_key("x.signed", blob("any"))[0] == "certificate"


def test_bad_lines_are_skipped_with_their_numbers_and_the_rest_counts(known: KnownHosts) -> None:
    assert [problem.split(":", 1)[1] for problem in known.problems] == [
        "9: truncated line",
        "10: the key is not base64",
        "11: not a key of type 'ssh-rsa'",
        "12: unknown marker '@strange'",
        "17: not a key of type 'ssh-ed25519'",
    ]


def test_the_key_types_of_a_host_are_those_of_its_lines(known: KnownHosts) -> None:
    assert known.key_types("node8") == ["ssh-rsa"]
    assert known.key_types("x.signed") == []


def test_a_line_of_the_same_host_without_its_port_vouches_for_a_key(known: KnownHosts) -> None:
    assert known.judge_key("[node1]:2222", blob("one"), also="node1")[0] == "ok"
    assert known.judge_key("[node1]:2222", blob("other"), also="node1")[0] == "unknown"


def test_a_new_key_is_appended_once_and_the_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line("node1", "one"))  # no newline at its end
    path.chmod(0o640)
    known = KnownHosts([path])
    known.record_key("node2", "ssh-ed25519", blob("two"))
    assert path.read_text() == line("node1", "one") + "\n" + line("node2", "two") + "\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert known.judge_key("node2", blob("two"))[0] == "ok"


def test_a_known_hosts_file_made_by_us_is_private(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "known_hosts"
    KnownHosts([path]).record_key("node2", "ssh-ed25519", blob("two"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a profile, and a repository that brings a hostfile."""
    home = tmp_path / "home"
    for name in (".ssh", "repository/keys", ".config", "elsewhere"):
        (home / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (home / ".profile").write_text("PATH=$HOME/bin:$PATH\nexport PATH\n")
    (home / ".comments").write_text("# nothing yet\n\n")
    (home / "elsewhere/known").write_text(f"# of the cluster\n\n{line('node1', 'one')}\n")
    (home / "elsewhere/mixed").write_text(f"{line('node1', 'one')}\nrm -rf build\n")
    (home / ".ssh/known_hosts").write_text(line("node1", "one"))
    (home / ".ssh/authorized_keys").write_text(line("restrict", "one"))  # a line of either kind of file
    (home / "repository/link").symlink_to(home / ".config/autostart")
    (home / "repository/up").symlink_to(home / ".profile")
    return home


RECORDABLE = ["repository/known_hosts", "repository/new/known_hosts", "repository/.known_hosts", ".ssh/known_hosts",
              ".ssh/known_hosts_of_lab", "elsewhere/known", "/dev/null"]  # fmt: skip
NOT_RECORDABLE = read_table("hostkeys/not_recordable")


@pytest.mark.parametrize("name", RECORDABLE)
def test_a_key_may_be_recorded_where_a_hostfile_keeps_known_hosts(home: Path, name: str) -> None:
    assert find_recording_fault(home / name, home / "repository") is None


@pytest.mark.parametrize(("name", "why"), NOT_RECORDABLE)
def test_no_key_is_recorded_in_another_file_that_a_hostfile_names(home: Path, name: str, why: str) -> None:
    assert re.match(why, find_recording_fault(home / name, home / "repository") or "")


def test_a_hostfile_in_the_home_brings_no_file_that_a_shell_reads(home: Path) -> None:
    assert find_recording_fault(home / "known_hosts", home) is None
    assert find_recording_fault(home / ".bash_login", home)
    assert find_recording_fault(home / ".config/new", home.parent)
    assert find_recording_fault(home / "known_hosts", None), "the hostfile is not known"
    (home / "loop").symlink_to("loop")
    assert "not a known_hosts file" in (find_recording_fault(home / "loop", home) or ""), "it ended with 70"


def test_thousands_of_lines_are_read_and_searched_fast_enough_to_do_it_for_every_host(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(line(f"node{n}", str(n)) for n in range(4000)))
    known = KnownHosts([path])
    assert all(known.judge_key(f"node{n}", blob(str(n)))[0] == "ok" for n in range(4000))


def make_hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("make", [os.mkfifo, make_hole])
@pytest.mark.parametrize("name", ["id.pub", "id-cert.pub", "known_hosts", "id"])
def test_a_repository_whose_hostfile_names_a_key_holds_nobody_by_what_lies_there(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """A pipe was waited for, a file with a hole of a terabyte was read."""
    key = tmp_path / "id"
    paramiko.ECDSAKey.generate().write_private_key_file(str(key))
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    (tmp_path / name).chmod(0o600)
    settings = SSHSettings(None).find_settings(Host("n", "n", key=str(key)))
    found = [*PrivateKeys(None).select_keys(settings)]
    assert [each.why for each in found if isinstance(each, UnusableKey)] == (
        [f"key {key} is not a regular file" if key.is_fifo() else f"key {key} cannot be read: not a private key"]
        if name == "id"
        else []
    )
    known = KnownHosts([tmp_path / "known_hosts"])
    assert known.is_empty
    assert known.problems == [f"{tmp_path}/known_hosts: File too large"] * (tmp_path / "known_hosts").is_file()


def test_a_pipe_with_nothing_in_it_yet_is_an_empty_file(tmp_path: Path) -> None:
    """An `ssh_config` that includes /dev/stdin ended the command with 70."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    assert read_trusted_file(tmp_path / "pipe") == b""
    os.close(writer)


def pack(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def write_key(place: Path, data: bytes) -> Path:
    key = place / "id"
    words = "OPENSSH PRIVATE KEY-----\n"
    key.write_text(f"-----BEGIN {words}{base64.b64encode(data).decode()}\n-----END {words}")
    key.chmod(0o600)
    return key


@pytest.mark.parametrize("halves", [(), (bytes(32), bytes(63) + b"x")], ids=["nothing in it", "halves of two keys"])
def test_a_damaged_key_is_no_error_of_ours(tmp_path: Path, halves: tuple[bytes, ...]) -> None:
    """Paramiko's readers raised an IndexError or an AssertionError: the command of all hosts ended with 70."""
    private = b"11111111" + pack(b"ssh-ed25519", *halves, b"") if halves else b""
    private += bytes(range(1, 1 + -len(private) % 8))
    data = b"openssh-key-v1\0" + pack(b"none", b"none", b"") + b"\0\0\0\1" + pack(blob("x"), private)
    key = write_key(tmp_path, data)
    (found,) = PrivateKeys(None).select_keys(SSHSettings(None).find_settings(Host("n", "n", key=str(key))))
    assert isinstance(found, UnusableKey)
    assert found.why.startswith(f"key {key} cannot be read: ")


@pytest.mark.parametrize("joint", [" ", r"\n"])
def test_a_key_whose_lines_are_one_is_named_as_that(tmp_path: Path, joint: str) -> None:
    """So it comes out of the secrets of CI systems (appleboy/ssh-action#349)."""
    key = write_key(tmp_path, bytes(200))
    key.write_text(key.read_text().replace("\n", joint))
    (found,) = PrivateKeys(None).select_keys(SSHSettings(None).find_settings(Host("n", "n", key=str(key))))
    assert isinstance(found, UnusableKey)
    assert found.why == f"key {key} cannot be read: its lines are joined into one, where a key has its own"


def test_a_passphrase_of_years_is_not_asked_for(tmp_path: Path) -> None:
    """Who typed one for a hostfile's key waited for as many rounds as its author liked, and all hosts with him."""
    options = pack(bytes(16)) + b"\xff\xff\xff\xff"
    data = pack(b"aes256-ctr", b"bcrypt", options) + b"\0\0\0\1" + pack(blob("x"), bytes(160))
    key = write_key(tmp_path, b"openssh-key-v1\0" + data)
    (found,) = PrivateKeys(str).select_keys(SSHSettings(None).find_settings(Host("n", "n", key=str(key))))
    assert isinstance(found, UnusableKey)
    assert found.why == f"key {key} has a passphrase that takes 4294967295 rounds to check"


@pytest.mark.parametrize("label", ["ENCRYPTED ", ""])
def test_nor_is_one_of_an_openssl_key(tmp_path: Path, label: str) -> None:
    """OpenSSL's keys, too, say how often it is hashed: 2^31 times takes eleven minutes."""
    lock = serialization.BestAvailableEncryption(b"open sesame")
    form = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8
    data = ec.generate_private_key(ec.SECP256R1()).private_bytes(*form, lock)
    salted = re.compile(rb"\x04\x10..(.{14})\x02\x02..", re.DOTALL)  # shorter by what the rounds are longer
    data = salted.sub(lambda match: b"\4\x0e" + match[1] + b"\2\4\x7f\0\0\0", data, count=1)
    words = f"{label}PRIVATE KEY-----\n"
    (tmp_path / "id").write_text(f"-----BEGIN {words}{base64.b64encode(data).decode()}\n-----END {words}")
    (tmp_path / "id").chmod(0o600)
    asked: list[str] = []
    settings = SSHSettings(None).find_settings(Host("n", "n", key=f"{tmp_path}/id"))
    (found,) = PrivateKeys(asked.append).select_keys(settings)
    assert (type(found), asked) == (UnusableKey, [])


@pytest.mark.parametrize("words", [None, b"open sesame"], ids=["plain", "with a passphrase"])
@pytest.mark.parametrize("kind", [ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)])
def test_a_key_as_openssl_and_clouds_write_it_is_read(tmp_path: Path, kind: Any, words: bytes | None) -> None:
    """`ssh` reads PKCS #8 (paramiko/paramiko#1015); it was "not a valid OPENSSH private key file"."""
    lock = serialization.BestAvailableEncryption(words) if words else serialization.NoEncryption()
    (tmp_path / "id").write_bytes(
        kind.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
    )
    (tmp_path / "id").chmod(0o600)
    settings = SSHSettings(None).find_settings(Host("n", "n", key=f"{tmp_path}/id"))
    found = [*PrivateKeys(lambda _: "open sesame").select_keys(settings), *PrivateKeys(None).select_keys(settings)]
    assert [type(each) for each in found] == [Key, UnusableKey if words else Key]
    if words:
        found += PrivateKeys(lambda _: "another").select_keys(settings)
        assert [getattr(each, "code", "") for each in found] == ["", "passphrase", "passphrase"]


def test_a_key_of_putty_s_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "id.ppk").write_text("PuTTY-User-Key-File-3: ssh-ed25519\n")
    (tmp_path / "id.ppk").chmod(0o600)
    settings = SSHSettings(None).find_settings(Host("n", "n", key=f"{tmp_path}/id.ppk"))
    why, hint = "is in PuTTY's format", f"puttygen {tmp_path}/id.ppk -O private-openssh -o {tmp_path}/id.ppk.openssh"
    assert [*PrivateKeys(None).select_keys(settings)] == [UnusableKey(f"key {tmp_path}/id.ppk {why}", hint=hint)]


def test_a_default_key_that_only_a_passphrase_opens_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tmux and cron its agent has gone: ipexctl saw no key, and its hint made a new one in the place of this one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    paramiko.ECDSAKey.generate().write_private_key_file(str(tmp_path / ".ssh/id_ecdsa"), password="open sesame")
    settings = SSHSettings(None).find_settings(Host("n", "n"))
    for agent in ("", f"{tmp_path}/gone"):
        monkeypatch.setenv("SSH_AUTH_SOCK", agent)
        found, *others = PrivateKeys(None).select_keys(settings)
        assert isinstance(found, UnusableKey)
        assert (found.code, len(others)) == ("passphrase", bool(agent))
        assert found.hint == f'eval "$(ssh-agent)" && ssh-add {tmp_path}/.ssh/id_ecdsa', "~ in quotes is no home"


@pytest.mark.parametrize(
    ("line", "problems"),
    [
        (b"x\n" * 100_000, 21), (b"".join(b"*%x* x AAAAAXgxMjM0NQ==\n" % n for n in range(30_000)), 21),
        (b"," * 1_000_000 + b" x AAAAAXgxMjM0NQ==\n", 1), (b"*a" * 200_000 + b"b x AAAAAXgxMjM0NQ==\n", 1),
        (b"|1|AA==|AA== x AAAAAXgxMjM0NQ==\n" * 120_000, 21),
    ],
    ids=["bad lines", "patterns", "names", "stars", "hashed"],
)  # fmt: skip
def test_a_known_hosts_file_has_a_bound(tmp_path: Path, line: bytes, problems: int) -> None:
    """64 MiB of them took 4 GiB, and 30 million lines of the screen, or minutes for each host."""
    path = tmp_path / "known_hosts"
    path.write_bytes(line)
    path.chmod(0o600)
    known = KnownHosts([path])
    assert len(known.problems) == problems
    watch = Stopwatch()
    known.judge_key("a" * 64, b"other", also="a")
    assert watch.read() < 3


def test_fingerprints_and_lines_are_written_as_openssh_writes_them() -> None:
    assert compute_fingerprint(blob("one")).startswith("SHA256:")
    assert not compute_fingerprint(blob("one")).endswith("=")
    assert format_known_hosts_line("[h]:1", "ssh-ed25519", blob("one")) == line("[h]:1", "one")
