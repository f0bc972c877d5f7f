"""A command line that cannot be read is refused as any other error: what is wrong, and one hint, with the user's
words."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

import typer
from typer.core import TyperGroup

from ipexctl.cli.command_options import find_model, read_options
from ipexctl.cli.help_page import write_program_help
from ipexctl.cli.other_launchers import translate_options
from ipexctl.cli.other_tools import (
    HOSTS_OPTIONS,
    NAMES_IN_LAB,
    OTHER_NAMES,
    PROGRAMS,
    PYTHON_OPTIONS,
    advise_option,
    name_destination,
    name_package,
)
from ipexctl.cli.plain_values import PlainValues
from ipexctl.cli.words import (
    HOST_OPTIONS,
    find_nearest,
    find_value,
    leave_out,
    move_behind_script,
    replace_word,
    start_python,
)

if TYPE_CHECKING:
    from ipexctl.model.errors import UsageError

WrongWords: Any = typer.BadParameter.__base__  # what the parser raises; has ``message`` and ``ctx``
_WORDS = "ipexctl.words"  # in a context's ``meta``: the whole command line
_HELP_COLUMNS = 80  # columns of a help
_SECOND_WORDS = {"lint": "play", "why": "stacks", "up": "lab", "down": "lab", "demo": "lab"}  # and what is before them
_OTHER_VALUES = {"nccl": "auto", "xccl": "auto", "mpi": "impi", "oneccl": "ccl"}  # of options, and which is meant
_ENDING = ("stop", "uninstall", "down")  # commands that end or remove: "htop" means none of them
_ENDING_LIKENESS = 0.9
_NAME_LIKENESS = 0.75  # least likeness of options and of commands: those that are less alike mean other things


def list_own_options(params: Iterable[Any]) -> dict[str, bool]:
    """Returns the options of a command by name: whether they have a value."""
    options = [param for param in params if param.param_type_name == "option"]
    return {name: not (each.is_flag or each.count) for each in options for name in (*each.opts, *each.secondary_opts)}


class NoSuchCommand(WrongWords):  # type: ignore[misc]  # found at run time
    """A word that is no command of its group."""

    def __init__(self, word: str, names: Sequence[str], ctx: Any) -> None:
        super().__init__(f"there is no command {word!r}", ctx)
        self.word, self.names = word, tuple(names)


class NeedlessWords(WrongWords):  # type: ignore[misc]  # found at run time
    """Arguments that the command does not take."""

    def __init__(self, words: Sequence[str], ctx: Any) -> None:
        super().__init__(f"unexpected arguments: {', '.join(words)}", ctx)
        self.words = tuple(words)


class NoSuchOption(WrongWords):  # type: ignore[misc]  # found at run time
    """An option such as ``-hostfile``, which the parser takes for ``-h`` and others."""

    def __init__(self, word: str, ctx: Any) -> None:
        super().__init__(f"no such option: {word}", ctx)
        self.option_name, self.possibilities = word, ()


class NoValue(WrongWords):  # type: ignore[misc]  # found at run time
    """An option that took the one behind it for its value."""

    def __init__(self, option: str, ctx: Any) -> None:
        super().__init__(f"{option} needs a value", ctx)
        self.option_name = option


class CommandGroup(PlainValues, TyperGroup):
    """A group of commands that names the command which may be meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise NoSuchCommand(args[0], [*self.commands], ctx)
        return super().resolve_command(ctx, args)


class RootGroup(CommandGroup):
    """The program. What its parser raises becomes a `UsageError`, which is printed as any other."""

    advanced = ("version", "verbose", "install_completion", "show_completion")  # only --help-all lists them

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] == ["help"]:  # what stands behind the command could be a script, and its own --help
            own = self.commands.get(args[1]) if args[1:] else None
            args = [*args[1 : 3 if hasattr(own, "commands") else 2], "--help"]
        words = list(args)
        if not words and not extra.get("resilient_parsing"):  # completion asks for a context of no words, too
            from ipexctl.cli.first_day import write_first_day

            typer.echo(write_first_day(os.environ, Path.cwd()))
            raise typer.Exit
        width = min(get_terminal_size().columns, _HELP_COLUMNS) - 2  # the library's least is 50
        extra.setdefault("terminal_width", width)
        try:
            context = super().make_context(info_name, args, parent, **extra)
        except WrongWords as error:
            raise _print_error(error, words) from None
        context.meta[_WORDS] = words
        return context

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_program_help(self, ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        from ipexctl.model.errors import UsageError

        try:
            return super().invoke(ctx)
        except (WrongWords, UsageError) as error:
            raise _print_error(error, ctx.meta[_WORDS]) from None


def _print_error(error: Any, words: list[str]) -> Exception:
    """Prints the error; the exception that ends the program. A group without a command prints its help itself."""
    from ipexctl.loop import end_with_error

    if isinstance(error, WrongWords):
        if type(error).show is not WrongWords.show:
            raise error
        error = describe_wrong_words(error, words)
    return typer.Exit(int(end_with_error(error, json_="--json" in words)))


class _Mistake(NamedTuple):
    """What is wrong with a command line, and one that may be meant."""

    sentence: str
    better: Sequence[str] | None = None
    reasons: Sequence[str] = ()


def describe_wrong_words(error: Any, words: Sequence[str]) -> UsageError:
    """Returns the error of the parser, for this command line without its ``ipexctl``, in our words."""
    from ipexctl.model.errors import UsageError

    path = error.ctx.command_path if error.ctx else "ipexctl"
    sentence, better, reasons = _describe_mistake(error, path.partition(" ")[2] or "ipexctl", words)
    if better and find_value(words, ["--hosts"]) is None:
        better = _prefer_limit(better)
    hint = shlex.join(["ipexctl", *better]) if better else f"{path} --help"
    return UsageError(sentence, reasons=reasons, hint=hint)


def _describe_mistake(error: Any, verb: str, words: Sequence[str]) -> _Mistake:
    if isinstance(error, NoSuchCommand):
        return _describe_wrong_command(error, verb, words)
    if isinstance(error, NeedlessWords):
        return _describe_needless_words(error, verb, words)
    if hasattr(error, "possibilities"):
        return _describe_wrong_option(error, verb, words)
    if hasattr(error, "option_name"):
        param = next((each for each in error.ctx.command.params if error.option_name in each.opts), None)
        if param is None or param.is_flag or param.count:
            name = error.option_name
            return _Mistake(f"{name} takes no value", replace_word(words, name, name))
        return _Mistake(f"{error.option_name} needs a value: {param.metavar}")
    if hasattr(error, "param_type"):
        argument, example = error.param.metavar, _find_option(error).flag.example
        return _Mistake(f"{verb} needs {argument}", [*words, example], [f"{argument}: {error.param.help}"])
    if getattr(error, "param", None) is not None:
        return _Mistake(*_describe_wrong_value(error, words))
    sentence = error.format_message()
    return _Mistake(f"{verb}: {sentence[:1].lower()}{sentence[1:].rstrip('.')}")


def _describe_needless_words(error: NeedlessWords, verb: str, words: Sequence[str]) -> _Mistake:
    sentence = f"{verb} takes no argument {', '.join(map(repr, error.words))}"
    better = leave_out(words, error.words)
    if verb == "install":
        better += [part for word in error.words for part in name_package(word)]
    elif verb == "uninstall":  # without them it would remove more than they name
        packages = [part for word in error.words for part in ("--without", word)]
        better = [*(replace_word(better, "uninstall", "install") or better), *packages]
        return _Mistake(sentence, better, ["it removes the whole environment; install takes packages out of it"])
    elif verb == "sync" and len(error.words) == 1:
        return _Mistake(sentence, name_destination(better, error.words[0]))
    elif _takes_hosts(error.ctx.command.params, error.words):
        return _Mistake(sentence, name_hosts(words, error.words))
    return _Mistake(sentence, better)


def _takes_hosts(params: Iterable[Any], words: Sequence[str]) -> bool:
    """Whether words without an option may be the hosts of a command: their names, or their number, as of ``lab up``."""
    if any(param.param_type_name == "argument" for param in params):
        return False
    own = list_own_options(params)
    return "-f" in own or ("--hosts" in own and words[0].isdigit())


def name_hosts(words: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Returns the command line with those of its words as an option that name hosts, or a hostfile; without them where
    it has such an option."""
    better = leave_out(words, names)
    if find_value(words, HOST_OPTIONS) is not None:
        return better
    if len(names) == 1 and Path(names[0]).is_file():
        return [*better, "-f", names[0]]
    return _prefer_limit([*better, "--hosts", ",".join(names)])


def _describe_wrong_command(error: NoSuchCommand, verb: str, words: Sequence[str]) -> _Mistake:
    names = NAMES_IN_LAB if verb == "lab" else OTHER_NAMES
    meant = names.get(error.word) or find_nearest(error.word, error.names, _NAME_LIKENESS)
    if meant in _ENDING and error.word not in names:
        meant = find_nearest(error.word, [meant], _ENDING_LIKENESS)
    is_own = meant in error.names or (meant == "--version" and verb == "ipexctl")
    better = replace_word(words, error.word, meant if is_own else None)
    group = "run" if error.word.endswith(".py") or error.word in PROGRAMS else _SECOND_WORDS.get(error.word)
    at = words.index(error.word)
    if group is not None and group in error.names:
        better = [*words[:at], group, *words[at:]]
    elif verb == "stacks" and error.word[:1].isdigit():
        better = [*words[:at], "--for-torch", *words[at:]]
    elif (verb, error.word) == ("accelerate", "launch"):
        better = [*words[: at - 1], "run", "--launcher", verb, *words[at + 1 :]]
    elif verb == "examples" and error.word in ("list", "ls"):
        better = [*words[:at], *words[at + 1 :]]
    reasons = [] if better else [f"commands: {', '.join(error.names)}"]
    return _Mistake(f"{verb} has no command {error.word!r}", better, reasons)


def _describe_wrong_option(error: Any, verb: str, words: Sequence[str]) -> _Mistake:
    name = error.option_name
    options = [param for param in error.ctx.command.params if param.param_type_name == "option"]
    own = list_own_options(options)
    starts_script = "--ppn" in own
    begin = words.index(verb.split()[-1]) + 1 if starts_script else 0
    foreign = translate_options(words[begin:], own) if starts_script else None
    sentence = f"{verb} has no option {name}"
    if starts_script and name in PYTHON_OPTIONS and name in words and not (find_value(words, [name]) or "").isdigit():
        return _Mistake(sentence, start_python(words, name, own))
    if foreign and name in foreign.names:
        better = foreign.words and [*words[:begin], *foreign.words]
        return _Mistake(f"{verb} has no option {', '.join(foreign.names)}", better, foreign.reasons)
    same = f"-{name}" if f"-{name}" in own else None  # -fix, which the parser reads as -f ix
    if better := replace_word(words, name, same):
        return _Mistake(sentence, better)
    if advice := advise_option(verb, name, words):
        return _Mistake(sentence, *advice)
    value = find_value(words, [name])
    if "--hosts" in own and value and name in HOSTS_OPTIONS:
        return _Mistake(sentence, replace_word(words, name, "--hosts" if "," in value else HOSTS_OPTIONS[name]))
    bare = value is None or (value.startswith("-") and name in words)  # not --name=-1
    fitting = [param for param in options if param.is_flag or param.count or not bare]
    names = [each for param in fitting for each in (*param.opts, *param.secondary_opts)]
    nearest = find_nearest(name, names, _NAME_LIKENESS)
    if better := _restore_value(error.ctx, words) or replace_word(words, name, nearest):
        return _Mistake(sentence, better)
    if starts_script and (better := move_behind_script(words, name, own)):
        return _Mistake(sentence, better, ["options of the script stand after it"])
    commands = error.ctx.command.commands if verb == "ipexctl" else ()
    for at, word in enumerate(words):
        if word in commands:
            return _Mistake(sentence, [word, *words[:at], *words[at + 1 :]], ["options of a command stand after it"])
    return _Mistake(sentence)


def _prefer_limit(words: Sequence[str]) -> Sequence[str]:
    """The command line with ``--limit`` in place of ``--hosts`` where a hostfile in use has all of these hosts."""
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.common.select import select_hosts

    limit, hostfile = find_value(words, ["--hosts"]), find_value(words, ["-f", "--hostfile"])
    if limit is None:
        return words
    try:
        select_hosts(hostfile=hostfile, hosts=None, limit=limit, environ=os.environ, cwd=Path.cwd())
    except UsageError:
        return words
    return replace_word(words, "--hosts", "--limit") or words


def _describe_wrong_value(error: Any, words: Sequence[str]) -> tuple[str, list[str] | None]:
    """The sentence about the value of an option or argument, and a better command line, if there is a value near it."""
    from ipexctl.model.schema_errors import describe_error

    param, option, better = error.param, _find_option(error), None
    names = [*param.opts, *param.secondary_opts]
    name = param.opts[-1] if param.param_type_name == "option" else f"the argument of {error.ctx.info_name}"
    value = find_value(words, names)
    what = describe_error({"type": "", "loc": (), "msg": error.message, "input": None})
    kind = option.type if option else None
    literal = next((each for each in (kind, *get_args(kind)) if get_origin(each) is Literal), None)
    if literal:
        *most, last = filter(None, get_args(literal))
        what = f"must be {', '.join(most)} or {last}" if most else f"must be {last}"
        meant = _OTHER_VALUES.get(value or "")
        better = meant if meant in get_args(literal) else value and find_nearest(value, get_args(literal))
    elif option and value and option.flag.is_span(option.type) and (wrong := _find_wrong_span(value)):
        what = wrong
    elif option and value and (option.flag.ge is not None or option.flag.le is not None):
        better = _find_bound(value, option.flag.ge, option.flag.le)
    line = replace_word(words, value, better) if value and better else None
    line = _restore_value(error.ctx, words) or line
    joined = [error.message, *(f"{each}={value}" for each in names if each[1] != "-")]
    at = next((words.index(word) for word in joined if word in words), None)
    if at is not None:
        short, _, value = words[at].partition("=")
        return f"the value of {short} stands behind it without '='", [*words[:at], short, value, *words[at + 1 :]]
    return f"{name} {what}" + (f", not {value!r:.80}" if value is not None else ""), line


def _find_wrong_span(value: str) -> str | None:
    from ipexctl.model.text import read_seconds

    try:
        read_seconds(value)
    except ValueError as error:
        return str(error)
    return None


def _find_bound(value: str, low: float | None, high: float | None) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return None
    if low is not None and number < low:
        return f"{low:g}"
    if high is not None and number > high:
        return f"{high:g}"
    return None


def _find_option(error: Any) -> Any:
    return next((option for option in _list_options(error.ctx) if option.name == error.param.name), None)


def _list_options(ctx: Any) -> list[Any]:
    models = (*getattr(ctx.command, "models", ()), "OutputFlags")
    return [option for name in models for option in read_options(find_model(name))]


def _restore_value(ctx: Any, words: Sequence[str]) -> list[str] | None:
    """The command line with the usual value of an option that took the script for its own; None where none did."""
    examples = {f"--{option.name.replace('_', '-')}": option.flag.example for option in _list_options(ctx)}
    for at, (before, word) in enumerate(pairwise(words), 1):
        if word.endswith(".py") and examples.get(before):
            return [*words[:at], examples[before], *words[at:]]
    return None
