"""Words in braces that the host of a process replaces in its arguments and variables, never through a shell."""

import re
from typing import Dict

NAMES = (
    "rank", "local_rank", "host_rank", "hosts", "world_size", "ppn", "head", "port", "address", "cores", "workdir",
)  # fmt: skip
PATTERN = re.compile(r"\{(\{?)(%s)\}(\}?)" % "|".join(NAMES))


def fill(text: str, values: "Dict[str, str]") -> str:
    """Returns the text with the values of its placeholders. ``{{rank}}`` is ``{rank}`` itself; any other brace stays as
    it is, so that JSON and templates need no quoting."""
    return PATTERN.sub(lambda m: "{%s}" % m.group(2) if m.group(1) else values[m.group(2)] + m.group(3), text)
