"""The profile in a saved run: ``profile/profile.json``, the merged trace beside it."""

import gzip
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from ipexctl.model.errors import UsageError
from ipexctl.model.hints import advise
from ipexctl.model.json_values import parse_json, to_json
from ipexctl.model.profile import Profile
from ipexctl.model.text import printable

FOLDER, TABLES, TRACE = "profile", "profile.json", "trace.json.gz"
_LARGEST = 64 << 20  # bytes of the tables


def get_trace_path(directory: Path) -> Path:
    """Where a saved run has its merged trace."""
    return directory / FOLDER / TRACE


def has_profile(directory: Path) -> bool:
    """Whether a saved run has tables of a profile."""
    return (directory / FOLDER / TABLES).is_file()


def save_trace(directory: Path, pieces: Iterable[str]) -> None:
    """Writes the merged trace of a saved run, whole or not at all. Raises `OSError`."""
    path = get_trace_path(directory)
    fresh = path.with_name(f".{TRACE}")
    fresh.unlink(missing_ok=True)
    try:
        number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(number, "wb") as file, gzip.GzipFile(TRACE, "wb", 5, file, mtime=0) as packed:
            for piece in pieces:
                packed.write(piece.encode())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def save_profile(directory: Path, profile: Profile) -> None:
    """Writes the tables of a saved run. Raises `OSError`."""
    path = directory / FOLDER / TABLES
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        json.dump(to_json(profile), file, indent=1)


def read_profile(directory: Path) -> Profile:
    """The profile of the run that is saved in ``directory``. Raises `UsageError` where there is none."""
    path = directory / FOLDER / TABLES
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                raise ValueError("it is no regular file of ipexctl")
            return parse_json(Profile, file.read())
    except FileNotFoundError:
        what = f"the run in {printable(str(directory), 400)} has no profile"
        raise UsageError(
            what, hint=advise("run", "--profile", "5", "train.py", text="a run with --profile makes one:")
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        what = f"the profile in {printable(str(path), 400)} cannot be read"
        raise UsageError(what, reasons=[str(error)[:200]]) from None
