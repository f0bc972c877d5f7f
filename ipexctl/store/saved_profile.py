"""The profile in a saved run: ``profile/profile.json``, the merged trace beside it."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from ipexctl.model.errors import UsageError, advise
from ipexctl.model.json_values import parse_json, to_json
from ipexctl.model.profile import Profile
from ipexctl.model.text import printable
from ipexctl.store.private_files import read_regular_file, replace_file, write_private_file

FOLDER, TABLES, TRACE = "profile", "profile.json", "trace.json.gz"
_TABLES_SIZE_LIMIT = 64 << 20  # bytes of the tables


def get_trace_path(directory: Path) -> Path:
    """Where a saved run has its merged trace."""
    return directory / FOLDER / TRACE


def has_profile(directory: Path) -> bool:
    """Whether a saved run has tables of a profile."""
    return (directory / FOLDER / TABLES).is_file()


def save_trace(directory: Path, pieces: Iterable[str]) -> None:
    """Writes the merged trace of a saved run, whole or not at all. Raises `OSError`."""
    path = get_trace_path(directory)
    with replace_file(path, 0o600) as file, gzip.GzipFile(TRACE, "wb", 5, file, mtime=0) as packed:
        for piece in pieces:
            packed.write(piece.encode())


def save_profile(directory: Path, profile: Profile) -> None:
    """Writes the tables of a saved run. Raises `OSError`."""
    write_private_file(directory / FOLDER / TABLES, json.dumps(to_json(profile), indent=1).encode())


def read_profile(directory: Path) -> Profile:
    """The profile of the run that is saved in ``directory``. Raises `UsageError` where there is none."""
    path = directory / FOLDER / TABLES
    try:
        return parse_json(Profile, read_regular_file(path, _TABLES_SIZE_LIMIT))
    except FileNotFoundError:
        hint = advise("run", "--profile", "5", "train.py", text="a run with --profile makes one:")
        raise UsageError(f"the run in {printable(str(directory), 400)} has no profile", hint=hint) from None
    except (OSError, ValueError, RecursionError) as error:
        what = f"the profile in {printable(str(path), 400)} cannot be read"
        raise UsageError(what, reasons=[str(error)[:200]]) from None
