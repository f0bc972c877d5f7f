"""The probe command of a host, and its raw answers: files by path and commands by name.

A bundle is what ``doctor --save-bundle`` writes and ``doctor --recorded`` reads:
``{"files": {"/proc/cpuinfo": "…"}, "commands": {"lscpu": "…"}}``."""

import dataclasses
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ipexctl.model.errors import UsageError, advise
from ipexctl.model.hosts import Command
from ipexctl.model.json_values import Record, field
from ipexctl.model.text import group_pairs, parse_integer, printable

_LINE_LIMIT = 4096
FRAME_LIMIT = 1 << 20  # bytes of one frame
UNFRAMED_LIMIT = 1 << 18  # bytes of one answer outside of frames: the host's shell reads it byte by byte
_VALUES_LIMIT = 1_000_000  # of a saved probe: small ones take twenty times their bytes
_GRACE = 5.0  # seconds beyond the limit: to start on a busy host, to kill what hangs and to say so


def build_probe_command(
    text: str, nonce: str, *, venv: str = "", workdir: str = "", names: Sequence[str] = (), limit: float = 10.0
) -> Command:
    """``text`` is that of ``remote/probe.sh``; ``nonce`` must not be guessable. ``names`` are looked up on the host.
    ``limit`` (seconds, whole ones: not every `sleep` knows fractions) bounds each question; all run at once."""
    seconds = max(1, round(limit))
    argv = ("sh", "-s", "--", nonce, str(seconds), str(UNFRAMED_LIMIT), venv, workdir, *names)
    return Command(argv, stdin=text.encode(), timeout=seconds + _GRACE, cap=16 * FRAME_LIMIT, brief=True)


class ProbeOutput(Record):
    """``unread`` maps items to the reason why they are missing or incomplete."""

    files: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    def file(self, path: str) -> str | None:
        """Returns the content without the blanks around it; None for a file that is absent or empty."""
        return self.files.get(path, "").strip() or None

    def command(self, name: str) -> str:
        return self.commands.get(name, "")

    def lines(self, command: str) -> list[str]:
        """Returns the lines of a command's output, up to a number that no honest host exceeds."""
        return self.commands.get(command, "").splitlines()[:_LINE_LIMIT]

    def search(self, path: str, pattern: str) -> str | None:
        """Returns the first group of a pattern where it first matches in a file; ``^`` and ``$`` match at each line."""
        match = re.search(pattern, self.files.get(path, ""), re.MULTILINE)
        return match[1] if match else None

    def under(self, directory: str, pattern: str) -> dict[str, str]:
        """Files below a directory whose relative path fits a regular expression, by its first group."""
        start, fits = directory.rstrip("/") + "/", re.compile(pattern)
        return {
            match[1]: text
            for path, text in self.files.items()
            if path.startswith(start) and (match := fits.fullmatch(path, len(start)))
        }

    def public(self) -> dict[str, Any]:
        """Returns a form for JSON, with identifiers of the machine and session replaced (users share it)."""
        texts = {"files": self.files, "commands": self.commands}
        shown = {key: {name: _redact_text(name, text) for name, text in texts[key].items()} for key in texts}
        return {**shown, "unread": dict(self.unread)} if self.unread else shown


_SECRET_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id")
_SECRET_WORD = re.compile(r"(?i)\b(?=[A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL))([A-Z0-9_]+)=\S+")
_LINK_ADDRESS = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)


def _redact_text(name: str, text: str) -> str:
    if name in _SECRET_FILES and text.strip():
        return hash_text(text.strip())
    return _LINK_ADDRESS.sub("00:00:00:00:00:00", _SECRET_WORD.sub(r"\1=…", text))


def hash_text(text: str) -> str:
    """Returns a fingerprint that hides the text; a fingerprint stays itself (a saved bundle reads the same)."""
    if re.fullmatch(r"#[0-9a-f]{16}", text):
        return text
    return "#" + hashlib.sha256(f"ipexctl:{text}".encode("utf-8", "replace")).hexdigest()[:16]


def parse_bundle(text: str, source: str) -> ProbeOutput:
    """Returns a saved bundle. Raises `UsageError` naming ``source``."""
    if sum(map(text.count, ",[{")) > _VALUES_LIMIT:
        raise _make_bundle_error(source, f"it has more than {_VALUES_LIMIT:,} values")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _make_bundle_error(source, f"it is not JSON from line {error.lineno}, column {error.colno} on") from None
    except (ValueError, RecursionError):
        raise _make_bundle_error(source, "its JSON holds a number that is too long, or is nested too deeply") from None
    parts: dict[str, dict[str, str]] = {}
    for key in ("files", "commands", "unread"):
        part = value.get(key, {}) if isinstance(value, dict) else None
        if not isinstance(part, dict) or not all(isinstance(inner, str) for inner in part.values()):
            raise _make_bundle_error(source, f"{key!r} is not an object of texts")
        parts[key] = part
    if not parts["files"] and not parts["commands"]:
        raise _make_bundle_error(source, "it has neither files nor commands")
    return ProbeOutput(**parts)


def _make_bundle_error(source: str, why: str) -> UsageError:
    hint = advise("doctor", "--save-bundle", "probes", text="this saves one for each host:")
    return UsageError(f"{printable(source, 300)} is not a saved probe", reasons=[why], hint=hint)


def parse_probe_answer(answer: bytes, nonce: str, *, limit: float = 10.0) -> ProbeOutput:
    """Returns the bundle in an answer of ``remote/probe.sh``, which documents the format. Text outside of its frames is
    ignored; what was killed at the time limit (``limit``, seconds), is longer than `FRAME_LIMIT` or not text is kept
    as far as it goes and named in ``unread``."""
    questions, framed = _extract_questions(answer, nonce)
    files: dict[str, str] = {}
    commands: dict[str, str] = {}
    unread: dict[str, str] = {}
    kind = name = ""  # of the frame that was begun
    whole = False
    following = b""
    for piece in (b"\n" + framed).split(b"\n" + nonce.encode() + b" ")[1:]:
        line, _, text_after = piece.partition(b"\n")
        body, following = following, text_after  # what stands between the mark before and this one
        word, _, arguments = line.decode("utf-8", "replace").strip().partition(" ")
        whole |= word == "done"
        if word == "begin":
            kind, _, name = arguments.partition(" ")
        if word != "end" or not kind:
            continue
        if why := _find_body_fault(body):
            unread[name] = why
        text = _decode_body(body)
        if kind == "grep":
            parts = (line.partition(":") for line in text.splitlines())  # a path without any text exists
            lines = group_pairs((path, content) for path, colon, content in parts if colon and path)
            files |= {posixpath.join(name, path): "\n".join(content) + "\n" for path, content in lines.items()}
        elif kind == "file":
            files[name] = text
        elif (kind, name) == ("command", "left"):
            unread.update({f"process {line.strip()}": "could not be killed" for line in text.splitlines() if line})
        elif kind == "command":
            commands[name] = text
        kind = ""
    for question, answered in questions.items():
        body = b"".join(line + b"\n" for line in answered.lines)
        commands[question] = _decode_body(body)
        cut = 141 in answered.statuses
        if answered.open or 137 in answered.statuses:
            unread[question] = f"timed out after {limit:g} s"
        elif why := _find_body_fault(body, cut=cut):
            unread[question] = why
    if kind:
        unread[name] = "the answer ends in the middle"
    if not whole:
        unread["probe"] = "the answer is cut" if files or commands else "no answer"
    return ProbeOutput(files, commands, unread)


@dataclasses.dataclass(slots=True)
class _Question:
    """The lines of one question outside of frames; ``open`` counts the processes that still answer it."""

    open: int = 0
    lines: list[bytes] = dataclasses.field(default_factory=list)
    statuses: set[int] = dataclasses.field(default_factory=set)


_ASIDE = re.compile(rb"(asked|output|ended) ([^\n]*)\n")


def _extract_questions(answer: bytes, nonce: str) -> tuple[dict[str, _Question], bytes]:
    """Returns the questions that answered in lines of their own, and the answer without those lines."""
    questions: dict[str, _Question] = {}
    seam, mark = nonce[24:].encode() or nonce.encode(), nonce.encode() + b" "

    def take(word: bytes, payload: bytes) -> None:
        status = 0
        if word == b"ended":
            number, _, payload = payload.partition(b" ")
            status = parse_integer(number) or 0
        name, _, text = payload.partition(b"\t")
        question = questions.setdefault(name.decode("utf-8", "replace"), _Question())
        if word == b"asked":
            question.open += 1
        elif word == b"ended":
            question.open -= 1
            question.statuses.add(status)
        else:
            question.lines += text.split(seam)

    framed: list[bytes] = []
    begun = at = 0
    last = answer.rfind(b"\n") + 1  # behind it no line is whole
    # Each host has a nonce of its own: a pattern of it costs more to compile.
    while (at := answer.find(mark, at, last)) >= 0:
        match = _ASIDE.match(answer, at + len(mark))
        if match is None:
            at += len(mark)
            continue
        take(match[1], match[2])
        framed.append(answer[begun:at])
        begun = at = match.end()
    return questions, b"".join((*framed, answer[begun:]))


def _decode_body(body: bytes) -> str:
    return body[:FRAME_LIMIT].decode("utf-8", "replace").replace("\x00", "�")


def _find_body_fault(body: bytes, *, cut: bool = False) -> str:
    start = ascii(body[:24].decode("latin-1"))
    if cut or len(body) >= FRAME_LIMIT:
        return f"malformed: longer than {(UNFRAMED_LIMIT if cut else FRAME_LIMIT) >> 10} KiB: {start}"
    return f"malformed: not text: {start}" if b"\x00" in body else ""
