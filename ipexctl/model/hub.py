"""A snapshot of a Hugging Face hub as the source of a sync: ``hf:ORG/MODEL@REVISION``."""

import re
from typing import Literal

from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REFERENCE = re.compile(rf"hf:(datasets/)?({_NAME}(?:/{_NAME})?)(?:@([A-Za-z0-9][A-Za-z0-9._/-]*))?")


def is_of_hub(key: str, value: str) -> bool:
    """Returns whether the value of a task's key is no directory, but a source on a hub."""
    return key == "source" and value.startswith("hf:")


class HubReference(Record):
    """A revision (a branch, a tag or a commit) of a repository of the hub."""

    repository: str
    revision: str = "main"
    kind: Literal["model", "dataset"] = "model"

    @property
    def folder(self) -> str:
        """Returns what its directory in a cache of the hub is called."""
        return "--".join([f"{self.kind}s", *self.repository.split("/")])


def parse_hub_reference(source: str) -> HubReference | None:
    """Returns what a source names of a hub; None for a path. Raises `UsageError`."""
    if not is_of_hub("source", source):
        return None
    match = _REFERENCE.fullmatch(source)
    if match is None or ".." in source:
        what = f"{printable(source, 200)} names no repository of a Hugging Face hub"
        raise UsageError(what, hint="write hf:ORG/MODEL, hf:ORG/MODEL@REVISION or hf:datasets/ORG/NAME")
    return HubReference(match[2], match[3] or "main", "dataset" if match[1] else "model")
