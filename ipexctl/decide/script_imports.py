"""The modules that a script certainly imports, and what brings them. It is parsed and never run.

Only what is certain is reported, not an import on a condition, or in a script that changes how modules are found."""

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping

from ipexctl.model.hints import Hint
from ipexctl.model.json_values import Record
from ipexctl.model.notes import Note
from ipexctl.model.text import join_names, printable

# What makes it uncertain whether a module is found.
_FINDERS = re.compile(r"\bsys\s*\.\s*(path|modules|meta_path|path_hooks)\b|\baddsitedir\b|\bpip\W.*\binstall\b")
_ENDS = {"exit", "_exit", "quit", "abort", "execv", "execvp"}

# For the environment's interpreter, with directories separated by ":" and names: prints those of the names that it does
# not find; imports none of them.
FIND_MISSING = """import importlib.util, sys
sys.path[:1] = sys.argv[1].split(":")
print(*(name for name in sys.argv[2:] if name not in sys.modules and importlib.util.find_spec(name) is None))"""


class ImportTable(Record):
    """``data/imports.toml``; its comment explains the tables."""

    distributions: Mapping[str, str]
    options: Mapping[str, str]
    with_ipex: Mapping[str, str]


def parse_script(text: str) -> ast.Module:
    """Returns the script; an empty one where it is not Python of today."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def list_module_names(node: ast.AST) -> list[str]:
    """Returns the first names of the modules that an import statement loads; none of another node."""
    if isinstance(node, ast.ImportFrom):
        return [node.module.partition(".")[0]] if node.module and not node.level else []
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return []


def find_doubtful_imports(
    text: str, neighbours: Collection[str], packages: Collection[str], table: ImportTable
) -> dict[str, int]:
    """Modules that a script imports on its way to its first condition, with their lines, but for the standard library,
    ``neighbours`` (what lies beside it) and what ``packages`` of the environment certainly bring. Whether it has them
    only its interpreter knows (`FIND_MISSING`)."""
    known = {*sys.stdlib_module_names, *neighbours, *packages}
    lines: dict[str, int] = {}
    for node in () if _FINDERS.search(text) else _walk_unconditional(parse_script(text).body):
        for name in list_module_names(node):
            if known.isdisjoint({name, name.replace("_", "-"), table.distributions.get(name, name).lower()}):
                lines.setdefault(name, node.lineno)
    return lines


def _walk_unconditional(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that are executed whatever happens, up to the first that may end the script."""
    for node in statements:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.If(test=ast.Compare(left=ast.Name("__name__"))) | ast.Try(handlers=[]):
                yield from _walk_unconditional(node.body)
            case ast.With() if not any("suppress" in ast.unparse(item.context_expr) for item in node.items):
                yield from _walk_unconditional(node.body)
        yield node
        for part in ast.walk(node):
            called = getattr(part, "func", None)
            if isinstance(part, ast.Raise) or getattr(called, "attr", getattr(called, "id", "")) in _ENDS:
                return


def describe_missing_modules(
    lines: Mapping[str, int], script: str, table: ImportTable, host: str, ipex: bool
) -> tuple[Note, ...]:
    """Returns a note about modules (name → line) that the environment's interpreter does not find, with the command
    that brings them where that is certain; ``host`` has the environment, ``ipex``: the packages must know IPEX."""
    if not lines:
        return ()
    words, unknown = ["install"], list[str]()
    for name in lines:
        if name in table.options:
            words += table.options[name].split()
        elif package := table.distributions.get(name):
            words += ["--with", table.with_ipex.get(package, package) if ipex else package]
        else:
            unknown.append(printable(name))
    names = join_names([f"{printable(name)} (line {line})" for name, line in lines.items()], 5)
    text = f"{printable(script)} imports {names}, not in the environment"
    if len(unknown) == len(lines):
        return (Note("missing-module", f"{text}: install --with and the name of its package"),)
    text += f" (add --with and the package of {join_names(unknown, 3)})" if unknown else ""
    return (Note("missing-module", Hint(words, f"{text}:").keep_installed(host)),)


def describe_local_modules(lines: Mapping[str, int], script: str) -> tuple[Note, ...]:
    """Returns a note about modules (name → line) that lie in the current directory, of which a part is sent."""
    names = join_names([f"{printable(name)} (line {line})" for name, line in lines.items()], 5)
    text = f"{printable(script)} imports {names} of the current directory, which is not sent: add --project ."
    return (Note("missing-module", text),)
