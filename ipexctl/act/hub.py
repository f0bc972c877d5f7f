"""Downloads from a Hugging Face hub, by huggingface_hub, which reads the hub's address, proxies and the token from the
environment and from the account's files."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.hub import HubReference
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable, strip_credentials

_FILE_SIZE_LIMIT = 1 << 50  # bytes of a file
_TIMEOUT = 30.0  # seconds for the hub to describe a repository


class Snapshot(Record):
    """A commit of a repository: its files with their sizes."""

    commit: str
    files: Mapping[str, int]
    address: str  # of the hub


def describe_snapshot(reference: HubReference) -> Snapshot:
    """Asks the hub what a revision is. Raises `UsageError`, also where huggingface_hub is not installed."""
    hub = _import_hub()
    api = hub.HfApi()
    with _explain_errors(hub, reference):
        info = api.repo_info(
            reference.repository,
            repo_type=reference.kind,
            revision=reference.revision,
            files_metadata=True,
            timeout=_TIMEOUT,
        )
        files = {str(file.rfilename): file.size or 0 for file in info.siblings or ()}
        strange = [name for name, size in files.items() if not _is_plain(name, size)]
        if strange or not re.fullmatch("[0-9a-f]{40}", info.sha or ""):
            raise ValueError(f"the hub's answer is malformed: {printable(', '.join(strange) or str(info.sha), 200)}")
    return Snapshot(info.sha, files, strip_credentials(api.endpoint))


def _is_plain(name: str, size: object) -> bool:
    """Returns whether this is a path below a directory, that a line can show, and a size."""
    below = not {"", ".", ".."} & {*name.split("/")} and name.isprintable()
    return below and isinstance(size, int) and 0 <= size < _FILE_SIZE_LIMIT


def download_files(reference: HubReference, commit: str, names: Sequence[str], directory: Path) -> None:
    """Downloads files of a commit that are not in ``directory`` yet; goes on where an earlier download ended. Raises
    `UsageError`."""
    hub = _import_hub()
    with _explain_errors(hub, reference):
        for name in names:
            hub.hf_hub_download(
                reference.repository, name, repo_type=reference.kind, revision=commit, local_dir=directory
            )


def _import_hub() -> Any:
    """Returns huggingface_hub, which draws and says nothing by itself."""
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        what = "sync hf: downloads with huggingface_hub, which is not installed beside ipexctl"
        raise UsageError(what, hint="pip install 'ipexctl[hub]', or uv tool install 'ipexctl[hub]'") from None
    hub: Any = huggingface_hub
    hub.utils.disable_progress_bars()
    hub.utils.logging.set_verbosity_error()
    return hub


@contextmanager
def _explain_errors(hub: Any, reference: HubReference) -> Iterator[None]:
    name, errors = printable(reference.repository, 200), hub.errors
    reasons, hint = ["no host gets a token"], "hf auth login"
    try:
        yield
        return
    except errors.GatedRepoError:
        what = f"{name} is gated: its owner grants access on its page"
    except errors.RevisionNotFoundError:
        what, reasons, hint = f"{name} has no revision {printable(reference.revision, 100)}", [], ""
    except errors.RepositoryNotFoundError:
        what = f"the hub has no {reference.kind} {name}, or it is private"
    except (errors.HTTPError, OSError, ValueError) as error:
        lines = [printable(strip_credentials(line), 300) for line in str(error).splitlines() if line.strip()]
        what, reasons, hint = f"{name} cannot be downloaded from the hub", lines[:3], ""
    raise UsageError(what, reasons=reasons, hint=hint or None, exit=Exit.STEP, code="hub")
