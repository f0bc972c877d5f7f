"""The archive for a maintainer: what a saved run holds, without secrets and without what ranks printed.

Members are in order of their names, with times of their files and nobody's user: the same run gives the same bytes."""

import gzip
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from ipexctl.model.answers.saved import LeftOutPart, SupportPart
from ipexctl.model.json_values import Record
from ipexctl.model.secrets import MASK, looks_secret
from ipexctl.model.text import group_pairs, printable
from ipexctl.store.event_json import dump_ascii_json, read_line
from ipexctl.store.masking import Masker, StreamMasker
from ipexctl.store.private_files import open_regular_file, replace_file

_DOCUMENTS = re.compile(r"plan\.txt|debug\.log|stacks-\d+-\d+\.txt")
_OBJECTS = re.compile(r"events\.jsonl|report\.json|profile/profile\.json")
_PRINTED = re.compile(r"ranks/\d+\.(?:out|err)|report\.html")  # it holds what ranks printed
_TAILS = ("tail",)  # of a rank's end: its last lines
_LINE, _OBJECT = 1 << 20, 1 << 26  # bytes: a longer line is masked in pieces, and of a longer document the beginning


_VALUES_LIMIT = 3_000_000  # of a document, which take twenty times its bytes: with more it is masked as text


def _fold_name(name: str) -> str:
    """``ranks/*.out``: the same word for the files of all ranks."""
    return re.sub(r"(?<=[/-])\d+(?=[.-])", "*", name)


class PreparedPart(Record):
    """A member: its masked bytes begin at ``start`` in the file of all. ``time`` in Unix seconds."""

    part: SupportPart
    time: int
    start: int


class Preparation(Record):
    """What an archive gets, in one unnamed ``file``: a record may have more files than a process may open."""

    file: IO[bytes]
    parts: tuple[PreparedPart, ...]
    left_out: tuple[LeftOutPart, ...]

    def close(self) -> None:
        self.file.close()

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
    store: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `Preparation.close`
    for name, file in _open_files(directory, left_out):
        with file:
            known = _DOCUMENTS.fullmatch(name) or _OBJECTS.fullmatch(name)
            if not known and not (_PRINTED.fullmatch(name) and with_output):
                why = "what ranks printed: --with-output" if _PRINTED.fullmatch(name) else "not needed"
                left_out.append(LeftOutPart(printable(name, 200), why))
                continue
            time = int(os.fstat(file.fileno()).st_mtime)
            latest = max(latest, time)
            if _OBJECTS.fullmatch(name):
                pieces = _mask_objects(file, name, masker, with_output=with_output)
            else:
                pieces = _mask_lines(_read_lines(file), masker)
            parts.append(_store_part(store, name, time, pieces))
    for name, text in documents.items():
        parts.append(_store_part(store, name, latest, _mask_lines([text.encode("utf-8", "replace")], masker)))
    return Preparation(store, tuple(sorted(parts, key=lambda prepared: prepared.part.name)), tuple(left_out))


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


def _find_end(file: IO[bytes]) -> int:
    """Bytes up to the first hole: nobody wrote that, and it may be as long as no disk is."""
    with suppress(OSError):  # an empty file
        end = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
        file.seek(0)
        return end
    return 0


def _read_lines(file: IO[bytes]) -> Iterator[bytes]:
    left = _find_end(file)
    while line := file.readline(min(_LINE, left)):
        left -= len(line)
        yield line


def _mask_lines(lines: Iterable[bytes], masker: Masker) -> Iterator[tuple[bytes, int]]:
    """Lines, or pieces of long ones, without secrets, and how many of them each had."""
    stream = StreamMasker(masker, named=True)
    for line in lines:
        masked = stream.feed(line, partial=not line.endswith(b"\n"))
        yield masked, max(masked.count(MASK) - line.count(MASK), 0)
    yield stream.feed(b"", partial=False), 0


def _mask_objects(file: IO[bytes], name: str, masker: Masker, *, with_output: bool) -> Iterator[tuple[bytes, int]]:
    """JSON, an object a line or one document; what is damaged is masked as text."""
    for data in _read_lines(file) if name.endswith("l") else [file.read(min(_OBJECT, _find_end(file)))]:
        try:
            if sum(map(data.count, (b",", b"[", b"{"))) > _VALUES_LIMIT:
                raise ValueError
            value = _mask_json(read_line(data), masker, with_output)
        except ValueError:
            yield from _mask_lines([data], masker)
            continue
        masked = dump_ascii_json(value).encode() + b"\n"
        yield masked, max(masked.count(MASK) - data.count(MASK), 0)


def _mask_json(value: Any, masker: Masker, with_output: bool) -> Any:
    """A value of JSON without secrets, also those whose keys say so, and, unless ``with_output``, without output."""
    if isinstance(value, str):
        return masker.mask_text(value)
    if isinstance(value, list):
        strings = all(isinstance(inner, str) for inner in value)
        return masker.mask_words(value) if strings else [_mask_json(inner, masker, with_output) for inner in value]
    if not isinstance(value, dict):
        return value
    masked = {}
    for key, inner in value.items():
        if not key.endswith("_base64") and (with_output or key not in _TAILS):
            secret = isinstance(inner, str) and inner and looks_secret(key)
            masked[masker.mask_text(key)] = MASK.decode() if secret else _mask_json(inner, masker, with_output)
    return masked


def _store_part(store: IO[bytes], name: str, time: int, pieces: Iterator[tuple[bytes, int]]) -> PreparedPart:
    start, masked = store.tell(), 0
    for data, count in pieces:
        store.write(data)
        masked += count
    return PreparedPart(SupportPart(name, store.tell() - start, masked), time, start)


def write_archive(path: Path, name: str, preparation: Preparation) -> int:
    """Writes all parts below the directory ``name`` into a file of mode 0600; its size in bytes. Raises `OSError`."""
    with replace_file(path, 0o600) as file:
        with (
            gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for prepared in preparation.parts:
                member = tarfile.TarInfo(f"{name}/{prepared.part.name}")
                member.size, member.mtime, member.mode = prepared.part.bytes, prepared.time, 0o600
                preparation.file.seek(prepared.start)
                archive.addfile(member, preparation.file)
        return file.tell()
