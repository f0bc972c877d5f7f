"""The profile in a saved run: ``profile/profile.json``, the traces of ranks in ``profile/hosts``."""

import json
from pathlib import Path

from ipexctl.model.errors import UsageError, advise
from ipexctl.model.json_values import convert_json, to_json
from ipexctl.model.profile import Profile
from ipexctl.model.text import printable
from ipexctl.store import event_json
from ipexctl.store.masking import Masker
from ipexctl.store.private_files import read_regular_file, write_private_file

FOLDER, TABLES, HOSTS = "profile", "profile.json", "hosts"
_TABLES_SIZE_LIMIT = 8 << 20  # bytes of the tables: of 10,000 ranks, and of the longest lists that a profile has


def find_traces(directory: Path) -> str | None:
    """Where a saved run has the traces of its ranks, a directory for each host; None where they are gone."""
    path = directory / FOLDER / HOSTS
    return str(path) if path.is_dir() else None


def has_profile(directory: Path) -> bool:
    """Whether a saved run has tables of a profile."""
    return (directory / FOLDER / TABLES).is_file()


def save_profile(directory: Path, profile: Profile) -> None:
    """Writes the tables of a saved run. Raises `OSError`."""
    write_private_file(directory / FOLDER / TABLES, json.dumps(to_json(profile), indent=1).encode())


def read_profile(directory: Path, masker: Masker) -> Profile:
    """The profile of the run that is saved in ``directory``; ``masker``, through which it is shown, masks from then on
    what the record has hashes of. Raises `UsageError` where there is none."""
    masker.add_kept(directory)
    path = directory / FOLDER / TABLES
    try:
        return convert_json(Profile, event_json.read_line(read_regular_file(path, _TABLES_SIZE_LIMIT)))
    except FileNotFoundError:
        hint = advise("run", "--profile", "5", "train.py", text="a run with --profile makes one:")
        raise UsageError(f"the run in {printable(str(directory), 400)} has no profile", hint=hint) from None
    except (OSError, ValueError, RecursionError) as error:
        what = f"the profile in {printable(str(path), 400)} cannot be read"
        raise UsageError(what, reasons=[str(error)[:200]]) from None
