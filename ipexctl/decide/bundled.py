"""What stands in playbooks and examples that come with ipexctl: their first sentences, and the files they need."""

import ast
import re
from collections.abc import Collection
from itertools import takewhile

from ipexctl.decide.script_imports import list_module_names, parse_script

_EXAMPLES = re.compile(r"\.\./examples/([\w.]+)")


def read_title(text: str) -> str:
    """The first sentence of a file's docstring or opening comment, without marks; of a comment, as far as commands."""
    if text.startswith('"""'):
        opening = text.split('"""')[1].split("\n\n")[0]
    else:
        comment = takewhile(lambda line: line.startswith("# ") and not line.startswith("#  "), text.splitlines())
        opening = " ".join(line[2:] for line in comment)
    return re.split(r"\.(?: |$)", " ".join(opening.replace("``", "").split()))[0].rstrip(":")


def list_needed_files(text: str, neighbours: Collection[str]) -> tuple[str, ...]:
    """Returns the files among ``neighbours`` that a playbook names or a script imports."""
    imported = [f"{name}.py" for node in ast.walk(parse_script(text)) for name in list_module_names(node)]
    return tuple(name for name in dict.fromkeys([*_EXAMPLES.findall(text), *imported]) if name in neighbours)


def localize_playbook(text: str) -> str:
    """Returns a bundled playbook for a directory that has its examples beside it."""
    text = _EXAMPLES.sub(r"\1", text).replace("../examples", ".")
    return text.replace("ipexctl play playbooks/", "ipexctl play ")
