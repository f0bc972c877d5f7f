"""The shell scripts of `ipexctl.remote`, for hosts that do not have them."""

from functools import cache
from importlib.resources import files


@cache
def read_script(name: str) -> str:
    """Returns the text of a script without the lines that are comments, which a host's shell need not read."""
    lines = files("ipexctl.remote").joinpath(name).read_text("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#"))
