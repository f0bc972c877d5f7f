"""Pages as files, and what doctor reported that pages of later runs show."""

import webbrowser
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

from ipexctl.decide.page.cluster import choose_doctor_record, make_doctor_record
from ipexctl.model.answers.doctor import DoctorAnswer
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Message, Workflow
from ipexctl.model.json_values import parse_json, to_json
from ipexctl.model.page import DoctorRecord
from ipexctl.model.text import printable
from ipexctl.store.event_json import dump_ascii_json
from ipexctl.store.masking import Masker
from ipexctl.store.private_files import claim_private_directory, read_regular_file, refuse_os_errors, write_private_file

_RECORDS = "doctor"  # directory below the state: what doctor reported, a file each time
_STORED_REPORTS = 64  # files in it
_RECORD_LIMIT = 1 << 26  # bytes of one


def check_destination(path: Path) -> None:
    """Refuses a file that no page can be written to, before anything is done for it. Raises `UsageError`."""
    shown = printable(str(path), 300)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{shown} is not a regular file")
    if not path.parent.is_dir():
        raise UsageError(f"{shown} cannot be written: its directory does not exist")


def write_page(path: Path, text: str, mode: int = 0o600) -> None:
    """Writes a page, or another text, for its owner alone, old or new, never half. Raises `UsageError` (exit 9 where
    writing fails)."""
    check_destination(path)
    with refuse_os_errors(path, "cannot be written", Exit.RECORD):
        write_private_file(path, text.encode("utf-8", "replace"), mode)


def open_page(address: str) -> Workflow[None]:
    """Opens a page in the user's browser, if there is one."""
    if not webbrowser.open(address):
        yield Message(f"no browser could be started; the page is {address}", "warning", code="browser")


@contextmanager
def write_redirect(address: str, directory: Path) -> Iterator[str]:
    """Writes a page for this user alone that leads to an address with a token in it; gives its own address. Every user
    of a machine can read the words of a browser's command line. Raises `UsageError`."""
    claim_private_directory(directory)
    with NamedTemporaryFile("w", dir=directory, prefix="watch-", suffix=".html") as file:  # mode 0600
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">\n')
        file.flush()
        yield Path(file.name).as_uri()


def save_doctor_record(state: Path, answer: DoctorAnswer, at: float, masker: Masker) -> None:
    """Remembers what doctor reported of these hosts, without secrets. If it cannot be written, a page shows less."""
    names = sorted(host.host for host in answer.hosts)
    path = state / _RECORDS / f"{sha256(chr(0).join(names).encode()).hexdigest()[:16]}-{at:.0f}.json"
    try:
        same = (record for record in _read_records(state) if sorted(record.hosts) == names)
        before = max(same, key=lambda record: record.at, default=None)
        claim_private_directory(path.parent)  # the oldest are removed below: not those of another directory
        record = make_doctor_record(at, masker.mask_value(answer), before)
        write_private_file(path, dump_ascii_json(to_json(record)).encode())
        newest = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in newest[_STORED_REPORTS:]:
            old.unlink()
    except (OSError, UsageError):
        return


def find_doctor_record(state: Path, hosts: Iterable[str], until: float) -> DoctorRecord | None:
    """Returns what doctor had reported last of these hosts, and perhaps of others, at this time."""
    return choose_doctor_record((record for record in _read_records(state) if record.at <= until), hosts)


def _read_records(state: Path) -> Iterator[DoctorRecord]:
    for path in (state / _RECORDS).glob("*.json"):
        try:
            yield parse_json(DoctorRecord, read_regular_file(path, _RECORD_LIMIT, own=True))
        except (OSError, ValueError):
            continue
