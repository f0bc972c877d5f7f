"""Uses of removed parts of IPEX, oneCCL, Accelerate and the Trainer in scripts, shell files and configurations.

Text in, uses out: a Python script is parsed and never run. The facts are those of ``data/migrate.toml`` and
``data/options.toml``."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal, NamedTuple, Protocol

from ipexctl.decide.launch.launch_script import FoundLaunch
from ipexctl.decide.launch.launch_words import Translation
from ipexctl.decide.releases.framework_options import FrameworkOption
from ipexctl.decide.script_imports import Module, list_imported_names, parse_python, parse_script, walk_certain
from ipexctl.model.answers.tools import ScriptUse
from ipexctl.model.errors import Hint, Note, UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.text import group_pairs, join_names, pluralize, printable
from ipexctl.model.toml import parse_toml

Kind = Literal["api", "backend", "device", "keyword", "package", "variable", "word", "option"]
GPU, POSSIBLE, ACCELERATOR = "CUDA", "CUDA where reached", "accelerator"
# `MigrationRule.of` → how a script that uses it is described, for hosts without a GPU.
NEEDS = {
    GPU: "needs a GPU",
    POSSIBLE: "needs a GPU where it is reached",
    "torch.cuda.amp": "does nothing without a GPU",
    ACCELERATOR: "is None without a GPU",
}
_CONDITIONAL = {*NEEDS} - {ACCELERATOR}  # only where no condition on a GPU stands before
_GUARD = re.compile(r"cuda|gpu|device|is_available|accelerator", re.IGNORECASE)  # of such conditions
_MODULES = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch", "torch_ccl", "torch", "accelerate")
_CCL = ("init_process_group", "new_group", "init_device_mesh")
_DECLARING = ("add_argument", "option")  # of a script's own options, in argparse and click
_RANKS = ("rank", "local_rank")  # names of numbers
_FOLLOWED_LIMIT = 50  # other files that are read
_SHOWN_WIDTH = 100  # characters of a source line that are shown
_VALUE_NODES = 100  # parts of an expression that is written out: parts of it are, too
_DOTS_LIMIT = 8  # in the name of a rule


class LaunchTranslator(Protocol):
    """What finds launch lines in a shell file and translates them."""

    def find(self, text: str, file: str) -> Sequence[FoundLaunch]: ...

    def translate(self, launch: FoundLaunch) -> Translation: ...


class MigrationRule(Record):
    """A removed name. ``gone`` is the first version without it: of torch for what goes with torch (IPEX,
    the bindings), of ``of`` itself for the others."""

    name: str
    kind: Kind
    of: str
    last: str
    gone: str
    instead: str
    source: str
    idle: str = ""
    notes: tuple[str, ...] = ()


def parse_rules(text: str) -> tuple[MigrationRule, ...]:
    """Returns the words of ``migrate.toml``."""
    return tuple(
        MigrationRule(of=item["of"], last=item["last"], gone=item["gone"], **{**word, "name": name})
        for item in parse_toml(text)["removal"]
        for word in item["words"]
        for name in word["name"].split(", ")
    )


def list_rules_of_retired_options(options: Iterable[FrameworkOption]) -> tuple[MigrationRule, ...]:
    """Rules for the options of Accelerate and the Trainer that were removed or have no effect."""
    return tuple(
        MigrationRule(option.name, "option", option.of, "", option.gone, option.instead, option.source, option.idle)
        for option in options
        if option.gone or option.idle
    )


def find_uses(
    text: str, file: str, known: Sequence[MigrationRule], launches: LaunchTranslator
) -> tuple[ScriptUse, ...]:
    """Returns all uses in a file, in order. ``.py`` is Python; all else is read line by line, as shell files and YAML
    are, with its launch lines. Raises `UsageError` for Python that does not parse."""
    hits = _scan_python(text, file, known) if file.endswith(".py") else _scan_lines(text, file, known, launches)
    rules = {(line, name): rule for line, name, rule in hits}  # each name once a line
    shown = dict(enumerate((printable(line.strip(), _SHOWN_WIDTH) for line in text.splitlines()), 1))
    uses: list[ScriptUse] = []
    for line, name in sorted(rules):
        it = rules[line, name]
        place = (line, name, shown.get(line, ""))
        uses.append(ScriptUse(*place, it.of, it.last, it.idle or None, it.gone, it.instead, it.source, it.notes))
    return tuple(uses)


def format_report(uses: Sequence[ScriptUse], file: str, imported: Mapping[str, int] = {}) -> str:
    """Format the hits for people: the line, its replacement, the versions that remove it."""
    more = [f"{name}, which it imports, has {pluralize(count, 'place')}" for name, count in imported.items()]
    if not uses:
        return "\n".join([f"{file}: uses nothing of IPEX, oneCCL or Accelerate that has gone", *more])
    width = len(str(uses[-1].line))
    lines: list[str] = []
    for hit in uses:
        lines += [f"{file}:{hit.line:<{width}}  {hit.text}", f"    {hit.name}: {describe_removal(hit)}"]
        lines.append(f"    instead: {hit.instead}")
        lines += [f"    {note}" for note in hit.notes]
    names = dict.fromkeys(hit.of for hit in uses)
    return "\n".join([*lines, "", f"{pluralize(len(uses), 'place')}: {', '.join(names)}", *more])


def describe_removal(use: ScriptUse) -> str:
    """In which versions, as the end of a sentence."""
    if use.of in NEEDS:
        return NEEDS[use.of]
    if use.of in {"intel_extension_for_pytorch", "oneccl_bind_pt"}:
        return f"last in {use.of} {use.last}, so nothing from torch {use.gone} on"
    parts = [f"does nothing from {use.of} {use.idle} on"] if use.idle else []
    if use.gone:
        parts.append(f"gone from {use.of} {use.gone} on")
    if use.last and not parts:
        parts.append(f"deprecated from {use.of} {use.last} on")
    return ", ".join(parts) or "a launch line"


Hit = tuple[int, str, MigrationRule]


def _scan_python(text: str, file: str, known: Sequence[MigrationRule]) -> Iterator[Hit]:
    try:
        tree = parse_python(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, why = getattr(error, "lineno", None), getattr(error, "msg", "") or "nested too deeply"
        what = f"{file}:{line}: this is not Python of today" if line else f"{file} is not read"
        raise UsageError(f"{what}: {why}") from None
    possible = [replace(rule, of=POSSIBLE) if rule.of == GPU else rule for rule in known if rule.of in _CONDITIONAL]
    unguarded = [*_walk_unguarded(tree)]
    yield from _scan_tree(tree, possible, unguarded)
    backends = {rule.name: rule for rule in (*known, *possible) if rule.kind == "backend"}
    for node in unguarded:
        match node:
            case ast.Assign(targets=[target], value=ast.Constant(str(text))) if rule := backends.get(f"backend:{text}"):
                if rule in possible or "backend" in _get_name(target).lower():
                    yield node.lineno, text, rule
    yield from _scan_tree(
        tree, [rule for rule in known if rule.of not in _CONDITIONAL or rule.of == GPU], walk_certain(tree)
    )


def describe_gpu_needs(
    text: str, script: str, known: Sequence[MigrationRule], find_modules: Callable[[str], Iterable[Module]]
) -> tuple[Note, ...]:
    """Returns a warning of what a script, which may be no Python, certainly does and needs a GPU for, itself or by a
    function of a module that ``find_modules`` finds in its project."""
    rules = [rule for rule in known if rule.of == GPU]
    needs = dict[str, None]()
    pending, followed = [("", parse_script(text))], set[tuple[str, str]]()
    for file, tree in pending:  # which grows
        nodes = walk_certain(tree, is_script=not file)
        for line, name in sorted({(line, name) for line, name, _ in _scan_tree(tree, rules, nodes)}):
            needs[f"{name} in line {line}" + (f" of {printable(file)}" if file else "")] = None
        calls = [call for call in dict.fromkeys(_list_foreign_calls(tree, nodes)) if call not in followed]
        followed.update(calls)
        for owner, functions in group_pairs(calls).items() if len(pending) < _FOLLOWED_LIMIT else ():
            statements = ast.parse("\n".join(f"{name}()" for name in functions)).body
            for module in [*find_modules(owner)][-1:]:
                pending.append((module.name, ast.Module([*parse_script(module.code).body, *statements], [])))
    if not needs:
        return ()
    text = f"{printable(script)} needs a GPU ({join_names([*needs], 3)}), and no host has one; what to write instead:"
    return (Note("needs-gpu", Hint(["migrate", script], text)),)


def _list_foreign_calls(tree: ast.Module, nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """The functions of other modules that these nodes call: module and name."""
    modules = {local: target for _, local, _, target in _list_imports(tree)}
    for node in nodes:
        begin, dot, end = (_join_names(node.func) if isinstance(node, ast.Call) else "").partition(".")
        owner, _, function = f"{modules.get(begin, '')}{dot}{end}".rpartition(".")
        if begin in modules and owner and function.isidentifier():
            yield owner, function


def _walk_unguarded(tree: ast.Module) -> Iterator[ast.AST]:
    """The parts of a script that neither a condition on a GPU nor a handler of errors may keep from being executed."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        skipped: list[ast.stmt] = []
        match node:
            case ast.If() | ast.IfExp() | ast.While() if _is_guard(node.test):
                continue
            case ast.BoolOp() if _is_guard(node.values[0]):
                continue
            case ast.Try() if any(not isinstance(each.body[-1], ast.Raise) for each in node.handlers):
                skipped = [*node.body]
            case ast.Module() | ast.FunctionDef() | ast.For() | ast.With():
                ends = [
                    at for at, each in enumerate(node.body, 1) if isinstance(each, ast.If) and _ends_without_gpu(each)
                ]
                skipped = [*node.body[ends[0] :]] if ends else []
        left_out = set(map(id, skipped))
        pending += [child for child in ast.iter_child_nodes(node) if id(child) not in left_out]


def _is_guard(test: ast.expr) -> bool:
    return _GUARD.search(_format_value(test)) is not None


def _ends_without_gpu(node: ast.If) -> bool:
    last = node.body[-1]
    call = last.value if isinstance(last, ast.Expr) else None
    exits = isinstance(call, ast.Call) and _get_name(call.func).endswith("exit")
    return (exits or isinstance(last, ast.Return | ast.Raise | ast.Continue)) and _is_guard(node.test)


def _scan_tree(tree: ast.Module, known: Sequence[MigrationRule], nodes: Iterable[ast.AST]) -> Iterator[Hit]:
    """What needs a GPU is looked for only among the calls of these ``nodes``."""
    certain = {id(part) for call in nodes if isinstance(call, ast.Call) for part in (call, call.func)}
    divisors = {id(node.right) for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)}
    always = [rule for rule in known if rule.of not in _CONDITIONAL]
    of_certain, of_others, texts = _group_rules(known), _group_rules(always), _TextRules(known)
    apis = {rule.name: rule for rule in known if rule.kind == "api"}
    others = {rule.name: rule for rule in always if rule.kind == "api"}
    names: dict[str, str] = {}  # local name → the dotted name it stands for, of our modules only
    for line, local, dotted, target in _list_imports(tree):
        yield from _match_api(line, dotted, others)
        if target.split(".")[0] in _MODULES:
            names[local] = target
    visited: set[int] = set()  # parts of a longer dotted name that was looked at, and names of the script's own options
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):  # what it is where there is no accelerator
            firsts = [value.func for value in node.values[:-1] if isinstance(value, ast.Call)]
            visited.update(id(call) for call in firsts if _get_name(call) == "current_accelerator")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in visited:
            base: ast.expr = node
            members: list[str] = []
            while isinstance(base, ast.Attribute):
                members.append(base.attr)
                base = base.value
                visited.add(id(base))
            if isinstance(base, ast.Call) and id(base) in certain and not (base.args or base.keywords):
                # A part of what it returns.
                of_result = [*_match_api(node.lineno, f"{_join_names(base.func)}().{members[-1]}", apis)]
                visited.update(id(base.func) for _ in of_result)
                yield from of_result
            target = names.get(base.id, "") if isinstance(base, ast.Name) else ""
            if target and (members or "." in target):  # the latter: from ipex import optimize
                rules = apis if id(node) in certain else others
                yield from _match_api(node.lineno, ".".join([target, *reversed(members)]), rules)
        elif isinstance(node, ast.Call):
            if id(node) in divisors and not (node.args or node.keywords):
                yield from _match_api(node.lineno, f"% {_join_names(node.func)}()", apis)
            visited.update(id(arg) for arg in node.args if _get_name(node.func) in _DECLARING)
            yield from _match_call(node, of_certain if id(node) in certain else of_others)
        elif isinstance(node, ast.Constant) and id(node) not in visited and (rule := texts.find(_get_text(node))):
            yield node.lineno, _get_text(node), rule


def _list_imports(tree: ast.AST) -> Iterator[tuple[int, str, str, str]]:
    """Line, local name, the whole dotted name, and what the local name stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.split(".")[0]
                yield node.lineno, alias.asname or package, alias.name, alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias, dotted in zip(node.names, list_imported_names(node), strict=False):
                yield node.lineno, alias.asname or alias.name, dotted, dotted


def _match_api(line: int, name: str, apis: Mapping[str, MigrationRule]) -> Iterator[Hit]:
    ends = [len(name), *reversed([*islice((dot.start() for dot in re.finditer(r"[.]", name)), _DOTS_LIMIT)])]
    if api := next((name[:end] for end in ends if name[:end] in apis), ""):
        yield line, name, apis[api]


class _TextRules:
    """The variables and options among rules, by their names."""

    def __init__(self, known: Sequence[MigrationRule]) -> None:
        self._names = {rule.name: rule for rule in known if rule.kind in {"variable", "option"}}
        self._begins = {name: rule for name, rule in self._names.items() if name.endswith("_")}

    def find(self, text: str) -> MigrationRule | None:
        """Returns the rule of a text that is one, or begins as a group of variables does."""
        begins = (rule for name, rule in self._begins.items() if text.startswith(name))
        named = (rule for rule in begins if re.fullmatch(r"[A-Z0-9_]+", text[len(rule.name) :]))
        return self._names.get(text) or next(named, None)


class _CallRules(NamedTuple):
    """Rules of what is given to a function, by their names."""

    backends: Mapping[str, MigrationRule]
    options: Mapping[str, MigrationRule]
    keywords: Mapping[str, MigrationRule]
    devices: Mapping[str, MigrationRule]


def _group_rules(known: Sequence[MigrationRule]) -> _CallRules:
    kinds = group_pairs((rule.kind, rule) for rule in known)
    return _CallRules(
        {rule.name.partition(":")[2]: rule for rule in kinds.get("backend", ())},
        {rule.name.lstrip("-"): rule for rule in kinds.get("option", ())},
        {rule.name: rule for rule in kinds.get("keyword", ())},
        {rule.name: rule for rule in kinds.get("device", ())},
    )


def _match_call(node: ast.Call, rules: _CallRules) -> Iterator[Hit]:
    """Backends by name, and keywords that are arguments of the Trainer."""
    called = _get_name(node.func)
    backends, options, keywords, devices = rules
    options = options if called.endswith("TrainingArguments") else {}
    if called == "cuda" and called in devices and isinstance(node.func, ast.Attribute):
        yield node.lineno, ".cuda()", devices[called]

    def find(argument: str) -> MigrationRule | None:
        return keywords.get(f"{called}:{argument}") or options.get(argument)

    given = [(None, arg) for arg in node.args[:1]] + [(keyword.arg, keyword.value) for keyword in node.keywords]
    for name, value in given:
        text, begin = _get_text(value), ""
        if called in devices:
            parts = getattr(value, "values", [getattr(value, "left", value)])  # of f"cuda:{n}", of "cuda:%d" % n
            begin = text or (_get_text(parts[0]) if parts else "")
        if called in _CCL and name in {None, "backend"} and text in backends:
            yield value.lineno, f'{called}("{text}")', backends[text]
        elif called == "compile" and name == "backend" and text in backends:
            yield value.lineno, f'compile(backend="{text}")', backends[text]
        elif called in devices and begin.startswith("cuda"):
            yield value.lineno, f'{called}("{text or begin.partition("%")[0] + "…"}")', devices[called]
        elif (name or "to") in devices and _is_gpu_number(called, name, value):
            yield value.lineno, f"{called}({name + '=' if name else ''}{_format_value(value)})", devices[name or "to"]
        elif rule := next(filter(None, map(find, (f"{name} {text}", name or ""))), None):
            yield value.lineno, f"{name}={text or _format_value(value)}", rule


def _is_gpu_number(called: str, name: str | None, value: ast.expr) -> bool:
    """Whether an argument is the number of a GPU: ``.to(rank)``, ``device=rank`` or ``device_ids=[rank]``."""
    if name == "device_ids":
        return isinstance(value, ast.List) and bool(value.elts)
    return (called == "to" if name is None else name == "device") and _get_name(value) in _RANKS


def _get_text(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _get_name(value: ast.expr) -> str:
    """The last part of a dotted name."""
    return getattr(value, "attr", getattr(value, "id", ""))


def _join_names(value: ast.expr) -> str:
    """A dotted name; "" of what is none."""
    members = list[str]()
    while isinstance(value, ast.Attribute):
        members.append(value.attr)
        value = value.value
    return ".".join([value.id, *reversed(members)]) if isinstance(value, ast.Name) else ""


def _format_value(value: ast.AST) -> str:
    if next(islice(ast.walk(value), _VALUE_NODES, None), None):
        return "…"
    return ast.unparse(value)[:_SHOWN_WIDTH]


def _scan_lines(text: str, file: str, known: Sequence[MigrationRule], launches: LaunchTranslator) -> Iterator[Hit]:
    known = [rule for rule in known if rule.of != GPU]
    texts, patterns = _TextRules([rule for rule in known if rule.kind == "variable"]), _compile_line_patterns(known)
    any_word = re.compile("|".join(pattern.pattern for rule, pattern in patterns if rule.kind != "package"))
    for number, whole in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", whole)
        for token in re.findall(r"[\w./-]+", line):
            if found := texts.find(token):
                yield number, token, found
        installed = (*re.split(r"\bpip3?[ ]install\b", line, maxsplit=1), "")[1]  # behind the words
        for rule, pattern in patterns if installed or any_word.search(line) else ():
            if pattern.search(installed if rule.kind == "package" else line):
                yield number, rule.name, rule
    yield from _translate_launch_lines(text, file, known, launches)


def _compile_line_patterns(known: Sequence[MigrationRule]) -> list[tuple[MigrationRule, re.Pattern[str]]]:
    patterns = []
    for rule in known:
        pattern = rf"(?<![\w-]){re.escape(rule.name).replace(chr(92) + ' ', '[ =:]+')}(?![\w-])"
        if rule.kind == "backend":
            pattern = rf"\bbackend[\"']?[ =:]+[\"']?{rule.name[8:]}\b"
        elif rule.kind == "package":
            pattern = rf"[ '\"]{rule.name.replace('_', '[-_]')}(?![\w-])"
        if rule.kind not in {"variable", "api"}:
            patterns.append((rule, re.compile(pattern)))
    return patterns


def _translate_launch_lines(
    text: str, file: str, known: Sequence[MigrationRule], launches: LaunchTranslator
) -> Iterator[Hit]:
    for launch in launches.find(text, file):
        notes: tuple[str, ...] = ()
        try:
            translation = launches.translate(launch)
            instead, notes = f"ipexctl run {translation.format_words()}", tuple(map(str, translation.notes))
        except (UsageError, ValueError) as error:
            instead = f"ipexctl run (not translated: {str(error).splitlines()[0]})"
        new = MigrationRule(launch.name, "word", launch.name, "", "", "", "ipexctl/data/launchers.toml")
        rule = next((rule for rule in known if rule.kind == "word" and rule.name == launch.name), new)
        yield launch.line, rule.name, replace(rule, instead=instead, notes=notes)
