"""The archive for a maintainer: what a saved run holds, without secrets and without what ranks printed.

Members are in order of their names, with times of their files and nobody's user: the same run gives the same bytes."""

import gzip
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from ipexctl.model.answers.saved import LeftOutPart, SupportPart
from ipexctl.model.grouping import group_pairs
from ipexctl.model.json_values import Record
from ipexctl.model.text import looks_secret, printable
from ipexctl.store.event_json import dump_ascii_json
from ipexctl.store.masking import MASK, Masker
from ipexctl.store.private_files import open_regular_file

_DOCUMENTS = re.compile(r"plan\.txt|debug\.log|stacks-\d+-\d+\.txt")
_OBJECTS = re.compile(r"events\.jsonl|report\.json|profile/profile\.json")
_PRINTED = re.compile(r"ranks/\d+\.(?:out|err)|report\.html")  # it holds what ranks printed
_TAILS = ("tail",)  # of a rank's end: its last lines
_LINE = 1 << 20  # bytes: a longer line is masked in pieces


def _fold_name(name: str) -> str:
    """``ranks/*.out``: the same word for the files of all ranks."""
    return re.sub(r"(?<=[/-])\d+(?=[.-])", "*", name)


class PreparedPart(Record):
    """A member: its masked bytes in an unnamed file, from the beginning. ``time`` in Unix seconds."""

    part: SupportPart
    time: int
    file: IO[bytes]


class Preparation(Record):
    parts: tuple[PreparedPart, ...]
    left_out: tuple[LeftOutPart, ...]

    def close(self) -> None:
        for prepared in self.parts:
            prepared.file.close()

    def list_contents(self) -> str:
        """A line for each member: bytes, how many secrets were masked, name; then what is left out, and why. Those of
        all ranks are one line."""
        groups = group_pairs((_fold_name(prepared.part.name), prepared.part) for prepared in self.parts)
        lines = []
        for name, parts in groups.items():
            many = f"  ({len(parts)} files)" if len(parts) > 1 else ""
            size, masked = sum(part.bytes for part in parts), sum(part.masked for part in parts)
            lines.append(f"{size:>12}  {masked:>6}  {name if many else parts[0].name}{many}")
        left = group_pairs(((_fold_name(entry.name), entry.why), entry.name) for entry in self.left_out)
        lines += [f"left out: {name if len(names) > 1 else names[0]} ({why})" for (name, why), names in left.items()]
        return "\n".join([f"{'bytes':>12}  {'masked':>6}  name", *lines])


def prepare_parts(
    directory: Path, masker: Masker, documents: Mapping[str, str], *, with_output: bool = False
) -> Preparation:
    """Everything of a saved run that goes into its archive, masked; ``documents`` are members that are made from it.
    Links are not followed. Raises `OSError`."""
    parts: list[PreparedPart] = []
    left_out: list[LeftOutPart] = []
    latest = 0
    for name, file in _open_files(directory, left_out):
        with file:
            known = _DOCUMENTS.fullmatch(name) or _OBJECTS.fullmatch(name)
            if not known and not (_PRINTED.fullmatch(name) and with_output):
                printed = _PRINTED.fullmatch(name)
                left_out.append(LeftOutPart(name, "what ranks printed: --with-output" if printed else "not needed"))
                continue
            time = int(os.fstat(file.fileno()).st_mtime)
            latest = max(latest, time)
            if _OBJECTS.fullmatch(name):
                pieces = _mask_objects(file, name, masker, with_output=with_output)
            else:
                pieces = (_mask_line(line, masker) for line in _read_lines(file))
            parts.append(_store_part(name, time, pieces))
    for name, text in documents.items():
        lines = (_mask_line(line.encode("utf-8", "replace"), masker) for line in text.splitlines(keepends=True))
        parts.append(_store_part(name, latest, lines))
    return Preparation(tuple(sorted(parts, key=lambda prepared: prepared.part.name)), tuple(left_out))


def _open_files(directory: Path, left_out: list[LeftOutPart]) -> Iterator[tuple[str, BinaryIO]]:
    """Names of the regular files of a record, two levels deep; what is none is left out."""
    for parent, prefix in [(directory, ""), (directory / "ranks", "ranks/"), (directory / "profile", "profile/")]:
        if parent.is_symlink() or not parent.is_dir():
            continue
        for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if name not in ("ranks", "profile"):
                    left_out.append(LeftOutPart(printable(f"{name}/", 200), "not needed"))
                continue
            try:
                yield name, open_regular_file(entry.path)
            except OSError:
                left_out.append(LeftOutPart(printable(name, 200), "not a regular file"))


def _read_lines(file: IO[bytes]) -> Iterator[bytes]:
    while line := file.readline(_LINE):
        yield line


def _mask_line(line: bytes, masker: Masker) -> tuple[bytes, int]:
    """A line without secrets, and how many there were. Bytes that are not UTF-8 stay."""
    text = line.decode("utf-8", "surrogateescape")
    masked = masker.mask_text(text)
    if masked == text:
        return line, 0
    return masked.encode("utf-8", "surrogateescape"), max(masked.count(MASK) - text.count(MASK), 1)


def _mask_objects(file: IO[bytes], name: str, masker: Masker, *, with_output: bool) -> Iterator[tuple[bytes, int]]:
    """JSON, an object a line or one document; what is damaged is masked as text."""
    for data in _read_lines(file) if name.endswith("l") else [file.read()]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            yield _mask_line(data, masker)
            continue
        masking = _ValueMasking(masker, with_output)
        yield dump_ascii_json(masking.mask_value(value)).encode() + b"\n", masking.count


class _ValueMasking:
    """Masks one JSON value; ``count`` of its texts had secrets."""

    def __init__(self, masker: Masker, with_output: bool) -> None:
        self._masker, self._with_output = masker, with_output
        self.count = 0

    def mask_value(self, value: Any) -> Any:
        if isinstance(value, str):
            masked = self._masker.mask_text(value)
            self.count += masked != value
            return masked
        if isinstance(value, list):
            return [self.mask_value(inner) for inner in value]
        if isinstance(value, dict):
            keys = (key for key in value if not key.endswith("_base64") and (self._with_output or key not in _TAILS))
            return {self.mask_value(key): self._mask_item(key, value[key]) for key in keys}
        return value

    def _mask_item(self, key: str, value: Any) -> Any:
        if isinstance(value, str) and value not in ("", MASK) and looks_secret(key):
            self.count += 1
            return MASK
        return self.mask_value(value)


def _store_part(name: str, time: int, pieces: Iterator[tuple[bytes, int]]) -> PreparedPart:
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `Preparation.close`
    masked = 0
    for data, count in pieces:
        file.write(data)
        masked += count
    size = file.tell()
    file.seek(0)
    return PreparedPart(SupportPart(name, size, masked), time, file)


def write_archive(path: Path, name: str, preparation: Preparation) -> int:
    """Writes all parts below the directory ``name`` into a new file of mode 0600; its size in bytes. An existing file
    stays. Raises `OSError`."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            os.fchmod(number, 0o600)
            with (
                gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for prepared in preparation.parts:
                    member = tarfile.TarInfo(f"{name}/{prepared.part.name}")
                    member.size, member.mtime, member.mode = prepared.part.bytes, prepared.time, 0o600
                    archive.addfile(member, prepared.file)
            file.flush()
            os.fsync(number)
            return os.fstat(number).st_size
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
