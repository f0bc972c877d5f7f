"""The modules that a script certainly imports, and what brings them. It is parsed and never run.

Only what is certain is reported, not an import on a condition, or in a script that changes how modules are found."""

import ast
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ipexctl.model.errors import Hint, Note
from ipexctl.model.json_values import Record
from ipexctl.model.text import join_names, printable
from ipexctl.model.toml import parse_toml

# What makes it uncertain whether a module is found.
_FINDERS = re.compile(r"\bsys\s*\.\s*(path|modules|meta_path|path_hooks)\b|\baddsitedir\b|\bpip\W.{0,200}\binstall\b")
_ENDS = {"exit", "_exit", "quit", "abort", "execv", "execvp"}
_MODULE_LIMIT = 200  # files of a project that are read
_NAME_LIMIT = 1000  # characters of a module's name
_BRACES_LIMIT = 10_000  # of a text with f-strings, whose fields Python 3.11 reads in the square of their number
_TOKENS_LIMIT = 200_000  # words and signs, for each of which Python's parser takes up to 2 KiB: 20,000 lines and more
_TOKEN = re.compile(r"\w+|[^\w\s]")
_IMPORT = re.compile(r"\b(?:import|from)\b")
_LONG_NAME = re.compile(r"\b(?:\w+\s*\.\s*){100}")  # for which Python's parser takes the square of its length
_F_STRING = re.compile(r"[fF][rR]?['\"]")
# Calls whose texts are for people.
_MESSAGES = {"require_version", "print", "warn", "warning", "info", "error", "critical", "debug", "log", "exit"}
_MESSAGES |= {"write", "field", "add_argument", "ArgumentParser"}
_RANKS = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
_OTHER = (ast.Not, ast.Eq, ast.NotIn, ast.Is, ast.Lt, ast.LtE)  # what is not true because there are ranks

# For the environment's interpreter, with directories separated by ":" and names: prints those of the names that it does
# not find; imports none of them.
FIND_MISSING = """import importlib.util, sys
sys.path[:1] = sys.argv[1].split(":")
print(*(name for name in sys.argv[2:] if name not in sys.modules and importlib.util.find_spec(name) is None))"""


class ImportTable(Record):
    """``data/imports.toml``; its comment explains the tables."""

    distributions: Mapping[str, str]
    options: Mapping[str, str]
    needs: Mapping[str, str]
    with_ipex: Mapping[str, str]


def parse_import_table(text: str) -> ImportTable:
    """Returns the table of the program's own file."""
    table = parse_toml(text)
    same = {name: name.replace("_", "-") for name in table["same"].split()}
    return ImportTable(same | table["distributions"], table["options"], table["needs"], table["with_ipex"])


def parse_python(text: str, mode: str = "exec") -> Any:
    """Returns the tree of a text, whose faults Python itself warns of on standard error: with a character of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if len(text) > _TOKENS_LIMIT and sum(1 for _ in _TOKEN.finditer(text)) > _TOKENS_LIMIT:
            raise SyntaxError(f"it has more than {_TOKENS_LIMIT:,} words and signs")
        if sys.version_info < (3, 12) and text.count("{") > _BRACES_LIMIT and _F_STRING.search(text):
            raise SyntaxError(f"it has f-strings and more than {_BRACES_LIMIT:,} braces")
        lines = re.split(r"[\r\n]", re.sub(r"\\(?:\r\n?|\n)", " ", text))
        if any(_IMPORT.search(line) and _LONG_NAME.search(line) for line in lines):
            raise SyntaxError("it imports a name of more than 100 parts")
        if sys.version_info < (3, 11):  # its `ast.parse` ends the process at an expression that is too deep
            compile(text, "script", mode)
        return ast.parse(text, mode=mode)


def parse_script(text: str) -> ast.Module:
    """Returns the script; an empty one where it is not Python of today."""
    try:
        return parse_python(text)  # type: ignore[no-any-return]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def list_imported_names(node: ast.ImportFrom) -> list[str]:
    """Returns the dotted names that a statement imports; none where its module has a name that nobody writes."""
    module = f"{node.module}"
    return [f"{module}.{alias.name}" for alias in node.names] if len(module) <= _NAME_LIMIT else []


def list_module_names(node: ast.AST) -> list[str]:
    """Returns the first names of the modules that an import statement loads; none of another node."""
    if isinstance(node, ast.ImportFrom):
        return [node.module.partition(".")[0]] if node.module and not node.level else []
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return []


class Module(NamedTuple):
    """A file of Python: as the user calls it ("": the script itself), the package that it is in, its code."""

    name: str
    package: str
    code: str


def find_doubtful_imports(
    script: Module,
    neighbours: Collection[str],
    packages: Collection[str],
    table: ImportTable,
    find_modules: Callable[[str], Iterable[Module]] = lambda name: (),
) -> dict[str, str]:
    """Modules that a script imports on its way to its first condition, with the places, but for the standard library,
    ``neighbours`` (what lies beside it) and what ``packages`` of the environment certainly bring. Whether it has them
    only its interpreter knows (`FIND_MISSING`). ``find_modules`` returns the files that are read when the module of a
    neighbour with this name is imported: what these import counts, too."""
    known = {*sys.stdlib_module_names, *packages}
    places: dict[str, str] = {}
    modules, followed = [script], set[str]()
    for module in modules:  # which grows
        tree = parse_script(module.code)
        known |= _take_named_modules(tree)
        nodes = walk_certain(tree, is_script=not module.name)
        if _FINDERS.search(module.code) and _FINDERS.search(_list_words(tree)):
            changes = [number for number, node in enumerate(nodes) if _changes_finders(node)]
            if not changes:
                continue
            if module.name:
                return {}
            nodes = nodes[: changes[0]]  # what is imported after it may lie anywhere
        for name, line in _list_imports(nodes, module.package, table):
            top = name.partition(".")[0]
            if top in neighbours:
                files = find_modules(name) if name not in followed and len(modules) < _MODULE_LIMIT else ()
                followed.add(name)
                read = {each.name for each in modules} if files else ()
                modules += [file for file in files if file.name not in read]
            elif known.isdisjoint({top, top.replace("_", "-"), table.distributions.get(top, top).lower()}):
                places.setdefault(top, f"{printable(module.name)} line {line}".lstrip())
    return places


def list_project_modules(
    script: Module, find_modules: Callable[[str], Iterable[Module]], table: ImportTable
) -> list[Module]:
    """Returns the files of a project that a script imports under whatever conditions, and those that these import."""
    modules, followed = [script], set[str]()
    for module in modules:  # which grows
        for name, _ in _list_imports(ast.walk(parse_script(module.code)), module.package, table):
            if name not in followed and len(modules) < _MODULE_LIMIT:
                followed.add(name)
                names = {each.name for each in modules}
                modules += [file for file in find_modules(name) if file.name not in names]
    return modules[1:]


def _take_named_modules(tree: ast.Module) -> set[str]:
    """Takes ``sys.modules["NAME"]`` out of a tree, which concerns one module; returns the first words of such names, of
    which nothing is certain then."""
    tops = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(
                ast.Attribute(ast.Name("sys"), "modules"), ast.Constant(str(name)) | ast.Name("__name__" as name)
            ):
                node.value = ast.Constant(None)
                tops.add(name.partition(".")[0])
    return tops


def _list_words(tree: ast.Module) -> str:
    """The names and texts of each line, without comments, docstrings and messages: how to install something stands in
    many."""
    remarks: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value):
                remarks.add(value)
            case ast.Call(ast.Name(name) | ast.Attribute(attr=name)):
                if name in _MESSAGES or name.endswith(("Error", "Exception", "Warning")):
                    remarks.update(each for part in (*node.args, *node.keywords) for each in ast.walk(part))
    lines: dict[int, list[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(owner), attr=name):
                lines.setdefault(node.lineno, []).append(f"{owner}.{name}")
            case ast.Name(id=word) | ast.alias(name=word) | ast.Constant(value=str(word)) if node not in remarks:
                lines.setdefault(node.lineno, []).append(word)
    return "\n".join(map(" ".join, lines.values()))


def _changes_finders(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(owner), attr=name):
            return _FINDERS.search(f"{owner}.{name}") is not None
    return False


def _list_imports(nodes: Iterable[ast.AST], package: str, table: ImportTable) -> Iterator[tuple[str, int]]:
    """The modules that a file of this package certainly imports, with lines; also what ``from A import B`` may load."""
    packages = package.split(".") if package else []
    for node in nodes:
        imported = list_imported_names(node) if isinstance(node, ast.ImportFrom) else []
        names = [table.needs[name] for name in imported if name in table.needs]  # which a class loads when it is used
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(packages) and imported:
            parents = packages[: len(packages) + 1 - node.level] if node.level else []
            base = [*parents, *filter(None, [node.module])]
            names += [".".join(base), *(".".join([*base, alias.name]) for alias in node.names)]
        for name in names:
            yield name, getattr(node, "lineno", 1)


def walk_certain(tree: ast.Module, *, is_script: bool = True) -> list[ast.AST]:
    """Returns what each of several ranks executes whatever happens, up to what may end the script (else a module)."""
    functions: dict[str, ast.FunctionDef] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(decorator_list=[] | [ast.Name("record") | ast.Attribute(attr="record")]):  # torchrun's
                functions[node.name] = node
            case ast.ClassDef():
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                        functions[node.name] = each
    walk = _CertainWalk(functions, is_script)
    try:
        walk.walk(tree.body)
    except RecursionError:
        return []
    return walk.nodes


class _CertainWalk:
    """A walk through statements and the functions that they call. ``of_ranks`` are variables that hold in a run."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef], is_script: bool) -> None:
        self.remaining, self.of_ranks = dict(functions), set[str]()
        self.is_script, self.ending = is_script, _find_ending(functions)
        self.nodes, self.ends = list[ast.AST](), dict[ast.AST, bool]()

    def walk(self, statements: Iterable[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            parts, body = self._split(node)
            for each in (each for part in parts for each in _walk_expression(part)):
                self.nodes.append(each)
                called = each.func if isinstance(each, ast.Call) else None
                if isinstance(called, ast.Name) and (function := self.remaining.pop(called.id, None)):
                    self.walk(function.body)
            self.walk(body)
            if any(map(self._may_end, self._list_possible(node))):
                return

    def _split(self, node: ast.stmt) -> tuple[list[ast.AST], list[ast.stmt]]:
        """What of a statement is certainly executed: itself or expressions of it, and statements below it."""
        match node:
            case ast.If():
                is_main = isinstance(node.test, ast.Compare) and getattr(node.test.left, "id", "") == "__name__"
                holds = self.is_script if is_main else self._holds_for_ranks(node.test)
                return [node.test], node.body if holds else []
            case ast.Try():
                return [], [] if node.handlers else node.body
            case ast.With():
                contexts: list[ast.AST] = [item.context_expr for item in node.items]
                return contexts, [] if any("suppress" in ast.unparse(each) for each in contexts) else node.body
            case ast.For() | ast.While() | ast.Match() | ast.AsyncFor() | ast.AsyncWith():
                return [], []
            case ast.Assign(targets=[ast.Name(name)], value=value) if self._holds_for_ranks(value):
                self.of_ranks.add(name)
            case ast.Assign(targets=[ast.Name(name)]):
                self.of_ranks.discard(name)
        return [node], []

    def _holds_for_ranks(self, test: ast.expr) -> bool:
        """Returns whether this is true on some rank of several, as ``int(os.environ.get("RANK", -1)) != -1``."""
        parts = [*ast.walk(test)]
        names = {part.id for part in parts if isinstance(part, ast.Name)} - {"int", "os", "bool"}
        asks = any(isinstance(part, ast.Constant) and part.value in _RANKS for part in parts)
        return (asks or bool(names)) and names <= self.of_ranks and not any(isinstance(part, _OTHER) for part in parts)

    def _list_possible(self, node: ast.stmt) -> list[ast.stmt]:
        """What some rank may execute: nothing of what follows ``else`` of a condition that holds for ranks."""
        if not isinstance(node, ast.If):
            return [node]
        if self._holds_for_ranks(node.test):
            return node.body
        return [*node.body, *(part for each in node.orelse for part in self._list_possible(each))]

    def _may_end(self, node: ast.AST) -> bool:
        """Whether a statement may end the function or the script; those in it are looked at once."""
        if node not in self.ends:
            parts, inner = [node], list[ast.AST]()
            for part in parts:  # which grows
                for child in ast.iter_child_nodes(part):
                    (inner if isinstance(child, ast.stmt) else parts).append(child)
            ends = isinstance(node, ast.Raise | ast.Return) or not self.ending.isdisjoint(_list_called(parts))
            self.ends[node] = ends or any(map(self._may_end, inner))
        return self.ends[node]


def _list_called(parts: Iterable[ast.AST]) -> set[str]:
    """Returns the last names of what is called."""
    called = (part.func for part in parts if isinstance(part, ast.Call))
    return {getattr(each, "attr", getattr(each, "id", "")) for each in called}


def _find_ending(functions: Mapping[str, ast.FunctionDef]) -> set[str]:
    """Returns the names of functions that may end the script, those of the standard library among them."""
    ending, callers = {*_ENDS}, dict[str, list[str]]()
    for name, function in functions.items():
        parts = [*ast.walk(function)]
        for each in _list_called(parts):
            callers.setdefault(each, []).append(name)
        if any(isinstance(part, ast.Raise) for part in parts):
            ending.add(name)
    pending = [*ending]
    for name in pending:  # which grows
        new = {*callers.get(name, ())} - ending
        ending |= new
        pending += new
    return ending


def _walk_expression(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what of it is evaluated whatever its values."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        match node:
            case ast.IfExp():
                pending.append(node.test)
            case ast.BoolOp():
                pending.append(node.values[0])
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                pass
            case _:
                pending += ast.iter_child_nodes(node)


def describe_emptiness(text: str, script: str) -> tuple[Note, ...]:
    """Warns of a short file of comments alone, as that of an example that has moved; of a long one not all is read."""
    if not 0 < len(text) < 10_000 or re.search(r"^[ \t]*[^#\s]", text, re.MULTILINE):
        return ()
    return (Note("no-statement", f"{printable(script)} holds comments alone: its ranks end at once"),)


def describe_missing_modules(
    places: Mapping[str, str], script: str, table: ImportTable, host: str, ipex: bool
) -> tuple[Note, ...]:
    """Returns a note about modules (name → place) that the environment's interpreter does not find, with the command
    that brings them where that is certain; ``host`` has the environment, ``ipex``: the packages must know IPEX."""
    if not places:
        return ()
    words, unknown = ["install"], list[str]()
    for name in places:
        if name in table.options:
            words += table.options[name].split()
        elif package := table.distributions.get(name):
            words += ["--with", table.with_ipex.get(package, package) if ipex else package]
        else:
            unknown.append(printable(name))
    names = join_names([f"{printable(name)} ({place})" for name, place in places.items()], 5)
    text = f"{printable(script)} imports {names}, not in the environment"
    if len(unknown) == len(places):
        return (Note("missing-module", f"{text}: install --with and the name of its package"),)
    if unknown:
        text += f" (add --with and the package of {join_names(unknown, 3)})"
    return (Note("missing-module", Hint(words, f"{text}:").keep_installed(host)),)


def describe_hiding_modules(files: Iterable[str]) -> tuple[Note, ...]:
    """Warns of files among the project's modules that have the name of a module of Python, which they stand before."""
    hiding = sorted({file for file in files if file.removesuffix(".py") in sys.stdlib_module_names})
    if not hiding:
        return ()
    names, verb = join_names([printable(file) for file in hiding], 5), "hides" if len(hiding) == 1 else "hide"
    text = f"{names} in the project's root {verb} Python's own module of that name"
    return (Note("hiding-module", f"{text}: rename it, or leave the root out of the ranks' path (--env PYTHONPATH=)"),)


def select_missing(places: Mapping[str, str], printed: str) -> dict[str, str]:
    """Returns those modules (name → place) that `FIND_MISSING` printed: an interpreter may print more than that."""
    words = {*printed.split()}
    return {name: place for name, place in places.items() if name in words}


def describe_local_modules(places: Mapping[str, str], script: str) -> tuple[Note, ...]:
    """Returns a note about modules (name → place) that lie in the current directory, of which a part is sent."""
    names = join_names([f"{printable(name)} ({place})" for name, place in places.items()], 5)
    text = f"{printable(script)} imports {names} of the current directory, which is not sent: add --project ."
    return (Note("local-module", text),)
