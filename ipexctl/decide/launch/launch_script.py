"""Launch lines of shell files: which commands they are, and what a shell does around them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from ipexctl.decide.launch.launch_table import LaunchTable, find_named_program, normalise_program
from ipexctl.decide.parsing.shell import LOOPS, SimpleCommand, remove_marks, split_commands, split_marked_commands
from ipexctl.decide.parsing.shell_variables import ShellVariables, Value
from ipexctl.model.errors import UsageError, advise
from ipexctl.model.json_values import Record

_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .-]*>")  # in a guide, where a shell would read and write files


class FoundLaunch(Record):
    """A command that starts a launcher. ``exports`` are the variables exported above it; ``redirections`` and ``after``
    (what follows it in its pipeline, and ``&``) belong to the shell; ``input`` is the file of its standard input, ``|``
    or ``<<``; ``job`` is what a batch file says to sbatch, ``scheduler`` whose batch file it is in; ``loop`` is the
    loop that it is in; ``others`` are the commands beside it. ``prefixes`` are exported variables that begin a launch
    line, for a shell that this one starts."""

    line: int
    name: str
    words: tuple[str, ...]
    exports: Mapping[str, str]
    redirections: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    input: str = ""
    job: tuple[str, ...] = ()
    scheduler: str = ""
    loop: str = ""
    others: tuple[str, ...] = ()
    prefixes: Mapping[str, str] = MappingProxyType({})


HINT_TO_RUN = advise("run", "--hosts", "HOST,HOST", "SCRIPT", text="one run starts all hosts:")
LAUNCH_LIMIT = 200  # of one text
NESTING_LIMIT = 8  # texts in texts: here-documents, and values that are commands


def find_launches(
    text: str, table: LaunchTable, given: Mapping[str, Value], *, is_shell: bool = True, depth: int = 0
) -> Iterator[FoundLaunch]:
    """Yields the launch lines of a shell file, or of another text in which each line may be one, `LAUNCH_LIMIT` at
    most. ``given`` are variables that are known, such as those of a batch job."""
    yield from islice(_find_launches(text, table, given, is_shell, depth), LAUNCH_LIMIT)


def _find_launches(
    text: str, table: LaunchTable, given: Mapping[str, Value], is_shell: bool, depth: int
) -> Iterator[FoundLaunch]:
    try:
        if not is_shell:
            raise ValueError("each line for itself")
        job, commands = find_job_words(text), split_commands(text)
        scheduler = next(
            (name for mark, name in table.directives.items() if re.search(f"^{mark}[ \t]", text, re.M)), ""
        )
    except ValueError:
        for number, line in _join_continued_lines(text):
            try:
                found = list(find_in_commands(split_commands(line), table, {}))
            except ValueError:
                continue
            yield from (replace(launch, line=number) for launch in found if is_shell or starts_python(launch.words))
        return
    for launch in find_in_commands(commands, table, given, depth):
        yield replace(launch, job=launch.job or job, scheduler=launch.scheduler or scheduler)


def find_job_words(text: str) -> tuple[str, ...]:
    """Returns what the ``#SBATCH`` lines of a batch file say; Slurm reads those before the first command."""
    words: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"#SBATCH[ \t]+(.*)", line):
            words += [word for command in split_commands(match[1]) for word in command.words]
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return tuple(words)


def find_in_commands(
    commands: Sequence[SimpleCommand], table: LaunchTable, given: Mapping[str, Value], depth: int = 0
) -> Iterator[FoundLaunch]:
    """Yields the launch lines among these commands, with what they have from the commands before them."""
    if depth > NESTING_LIMIT:
        return
    texts = [*map(_format, commands)]
    variables = ShellVariables(commands, given)
    prefixes: dict[str, str] = {}
    used = {name for command in commands for word in command.words for name in re.findall(r"\$\{?(\w+)", word)}
    for index, command in enumerate(commands):
        words = tuple(each for word in command.words for each in variables.expand(word))
        variables.read(command)
        is_exported = words[:1] == ("export",)
        values = words[1:] if is_exported else words
        if len(values) == 1 and (assigned := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", values[0], re.DOTALL)):
            is_used = assigned[1] in used
            started = () if is_used and not is_exported else _split_value(assigned[2])
            inner = list(find_in_commands(started, table, {}, depth + 1))
            if inner and is_exported:  # this shell starts it: no rank needs to know it
                prefixes[assigned[1]] = variables.exports.pop(assigned[1])
            if not is_used:
                yield from (replace(each, line=command.line) for each in inner)
            continue
        if name := _find_launcher(words, table):
            yield replace(_describe(commands, index, words, name, variables, texts), prefixes=prefixes)
        if command.here and not normalise_program(remove_marks(words[0] if words else "")).startswith("python"):
            body, first = command.here
            for launch in find_launches(body.replace("\\$", "$"), table, {}, depth=depth + 1):
                yield replace(launch, line=launch.line + first - 1)


def describe_command(commands: Sequence[SimpleCommand], index: int) -> FoundLaunch:
    """Returns a command that names no launcher, with what it has from the commands before it."""
    variables = ShellVariables(commands, {})
    for command in commands[:index]:
        variables.read(command)
    words = [each for word in commands[index].words for each in variables.expand(word)]
    return _describe(commands, index, words, (*words, "")[0], variables, [*map(_format, commands)])


def starts_python(words: Sequence[str]) -> bool:
    """Returns whether a command names a Python script, or Python."""
    parts = [part for word in words for part in remove_marks(find_named_program(word)).split()]
    return any(part.endswith(".py") or normalise_program(part) == "python" for part in parts)


def _describe(
    commands: Sequence[SimpleCommand],
    index: int,
    words: Sequence[str],
    name: str,
    variables: ShellVariables,
    texts: Sequence[str],
) -> FoundLaunch:
    """``texts`` are the commands as they are shown."""
    command = commands[index]
    end = index
    while commands[end].after in {"|", "|&"} and end + 1 < len(commands):
        end += 1
    after = [f"{commands[at - 1].after} {texts[at]}" for at in range(index + 1, end + 1)]
    if commands[end].after == "&":
        after.append("&")
    start = index
    while commands[start].before in {"|", "|&"} and start:
        start -= 1
    source = command.input
    if start < index:
        source = "|"
    elif any(re.match(r"\d*<<", each) for each in command.redirections):
        source = "<<"
    return FoundLaunch(
        command.line,
        name,
        tuple(words),
        dict(variables.exports),
        tuple(each for each in command.redirections if not re.match(r"0?<(?![&>])", each)),
        tuple(after),
        source,
        loop=next((word for word in command.inside if word in LOOPS), ""),
        others=(*texts[:start], *texts[end + 1 :]),
    )


def _format(command: SimpleCommand) -> str:
    return " ".join([*map(remove_marks, command.words), *command.redirections])


def _find_launcher(words: Sequence[str], table: LaunchTable) -> str:
    """The launcher in a command: it is what the command starts, or the command starts it together with a script."""
    parts = [part for word in words for part in remove_marks(find_named_program(word)).split()]
    while parts and re.match(r"[A-Za-z_]\w*=", parts[0]):
        parts.pop(0)
    head = table.find_program(parts)
    is_key = parts[:1] and parts[0].endswith(":")  # of YAML
    if head is None and (not parts or is_key or normalise_program(parts[0]) in table.mentions):
        return ""
    for at in range(len(parts) - 1):
        is_module = parts[at] == "-m" and normalise_program(parts[0]) == "python"
        if parts[at].endswith(".py") or (is_module and parts[at + 1] not in table.programs):
            return ""
        if table.find_module(parts[at : at + 2]) and (at == 0 or head):
            return normalise_program(parts[at])
        program = table.find_program(parts[at : at + 2])
        if program and program[0].kind != "prefix":
            following = parts[at + program[1] :]
            is_started = head == program or (parts[at - 1] == "-m" and normalise_program(parts[0]) == "python")
            is_started = is_started or all(_stands_before(part, table) for part in parts[:at])
            is_head = is_started and any(not part.startswith("-") for part in following)
            return normalise_program(parts[at]) if is_head or starts_python(following) else ""
    return ""


def _stands_before(word: str, table: LaunchTable) -> bool:
    """Returns whether a word in front of a command starts it: a prefix such as ``timeout``, its options and numbers."""
    found = table.find_program([word])
    return found[0].kind == "prefix" if found else re.fullmatch(r"-\S*|[\d.]+[smhd]?", word) is not None


def _split_value(value: str) -> list[SimpleCommand]:
    try:
        return split_marked_commands(value)
    except ValueError:
        return []


def _join_continued_lines(text: str) -> Iterator[tuple[int, str]]:
    number, lines = 1, text.split("\n")
    while number <= len(lines):
        first, pieces = number, [lines[number - 1]]
        while pieces[-1].endswith("\\") and number < len(lines):
            pieces[-1:] = pieces[-1][:-1], lines[number].lstrip()
            number += 1
        yield first, _PLACEHOLDER.sub(r"'\g<0>'", " ".join(pieces).replace("\xa0", " "))
        number += 1


def choose_launch(found: Sequence[FoundLaunch], what: str) -> FoundLaunch:
    """Returns the one launch line, or the one that starts Python. Raises `UsageError` where there are others, or it is
    in a loop."""
    found = [each for each in found if starts_python(each.words)] or found
    if len(found) != 1:
        names = [f"line {each.line}: {' '.join(map(remove_marks, each.words))[:80]}" for each in found]
        raise UsageError(f"{what} has {len(found)} launch lines, not one", reasons=names)
    if found[0].loop:
        hint = HINT_TO_RUN if "ssh" in found[0].words else None
        raise UsageError(f"{what} starts {found[0].name} in a loop ({found[0].loop}): several runs, not one", hint=hint)
    return found[0]
