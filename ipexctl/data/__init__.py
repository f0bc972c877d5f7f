"""Facts as data files, each row with its source and its why."""

from importlib.resources import files


def read_data(name: str) -> str:
    """Returns the text of a file of this directory, such as ``stacks.toml``; the modules of `decide` parse it."""
    return files("ipexctl.data").joinpath(name).read_text("utf-8")
