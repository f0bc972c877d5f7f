"""A command line that cannot be read is refused as any other error: what is wrong, and one hint, with the user's
words."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

import typer
from typer.core import TyperGroup

from ipexctl.cli.command_options import find_model, read_options
from ipexctl.cli.help_page import write_program_help
from ipexctl.cli.launch_options import translate_options
from ipexctl.cli.plain_values import PlainValues

if TYPE_CHECKING:
    from ipexctl.model.errors import UsageError

WrongWords: Any = typer.BadParameter.__base__  # what the parser raises; has ``message`` and ``ctx``
_WORDS = "ipexctl.words"  # in a context's ``meta``: the whole command line
_HOST_OPTIONS = ("-f", "--hostfile", "--hosts", "-l", "--limit")
_HELP_COLUMNS = 80  # columns of a help
_VALUE_LIKENESS = 0.6  # least likeness of a value and the one it is taken for: that of difflib.get_close_matches
_SECOND_WORDS = {"lint": "play", "why": "stacks", "up": "lab", "down": "lab", "demo": "lab"}  # and what is before them
_OTHER_NAMES = {  # of commands, and what they are called here
    "compare": "report", "diff": "report", "show": "report", "status": "ps", "kill": "stop", "sweep": "run",
    "start": "run", "train": "run", "launch": "run", "submit": "run", "version": "--version", "ssh": "shell",
    "login": "shell", "ls": "ps", "list": "ps", "cancel": "stop", "check": "doctor", "setup": "install",
    "top": "ps", "htop": "ps", "push": "sync", "copy": "sync", "upload": "sync", "pull": "fetch", "get": "fetch",
    "download": "fetch",
}  # fmt: skip
_NAMES_IN_LAB = {"start": "up", "create": "up", "stop": "down", "destroy": "down", "list": "status", "ls": "status"}
# Options that a command does not have: why, and the words of the command that helps.
_OTHER_OPTIONS = {
    ("stop", "--all"): ("it ends the run that is named; this lists them, each with its name", ["ps"]),
    ("play", "--syntax-check"): ("a playbook is only read by play lint", ["play", "lint", "playbook.yaml"]),
}
# Options of Ansible, of pip and of others, and those of the command that mean the same.
_SAME_OPTIONS = {
    "play": {
        "-i": "-f", "--inventory": "-f", "-e": "--var", "--extra-vars": "--var", "-C": "--check", "-D": "--diff",
        "--list-tasks": "--list-steps", "--start-at-task": "--start-at",
    },
    "install": {"-i": "--index-url", "-U": "--upgrade", "-e": "--with", "--editable": "--with"},
    "ipexctl": {"-V": "--version"},
    "run": {"--time": "--time-limit", "--background": "--detach", "-d": "--detach"},
    "exec": {"-t": "--timeout"},
    "stop": {"-9": "--kill"},
}  # fmt: skip
_OF_RSYNC = re.compile("-[aAhHnPrtuvXz]+")
_SSH_SETTINGS = {"-i": "key", "-J": "jump", "-l": "user", "-p": "port"}  # and those of a host
_RELEASE_OPTIONS: dict[str, tuple[str, list[str]]] = {  # by package: with its version, and without one
    "torch": ("--torch", []),
    "intel_extension_for_pytorch": ("--ipex", ["--track", "ipex"]),
    "oneccl_bind_pt": ("--oneccl", ["--backend", "ccl"]),
}
_OTHER_VALUES = {"nccl": "auto", "xccl": "auto", "mpi": "impi", "oneccl": "ccl"}  # of options, and which is meant
_PYTHON_OPTIONS = ("-c", "-u", "-O", "-X")  # of the interpreter, which is started as a program
_ENDING = ("stop", "uninstall", "down")  # commands that end or remove: "htop" means none of them
_ENDING_LIKENESS = 0.9
_PROGRAMS = ("python", "python3", "mpirun", "mpiexec", "torchrun")
_NAME_LIKENESS = 0.75  # the same of options and commands: those that are less alike mean other things


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
    if better and _find_value(words, ["--hosts"]) is None:
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
    better = _leave_out(words, error.words)
    if verb == "install":
        better += [part for word in error.words for part in _name_package(word)]
    elif verb == "uninstall":  # without them it would remove more than they name
        packages = [part for word in error.words for part in ("--without", word)]
        better = [*(replace_word(better, "uninstall", "install") or better), *packages]
        return _Mistake(sentence, better, ["it removes the whole environment; install takes packages out of it"])
    elif verb == "sync" and len(error.words) == 1:
        return _Mistake(sentence, _name_destination(better, error.words[0]))
    elif not any(param.param_type_name == "argument" for param in error.ctx.command.params):
        own = list_own_options(error.ctx.command.params)
        if "-f" not in own and not ("--hosts" in own and error.words[0].isdigit()):
            return _Mistake(sentence, better)
        return _Mistake(sentence, name_hosts(words, error.words))
    return _Mistake(sentence, better)


def _leave_out(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """The command line without arguments; the same words that options have for their values stay."""
    left = list(words)
    for name in names:
        places = [at for at, word in enumerate(left) if word == name]
        del left[next((at for at in places if not left[at - 1].startswith("-")), places[-1])]
    return left


def _name_destination(words: Sequence[str], target: str) -> list[str] | None:
    """The command line of sync with the options for a destination as rsync has it; None where they say otherwise."""
    host, colon, path = target.rpartition(":")
    taken = [*(_HOST_OPTIONS if host else ()), "--workdir", "--delete"]  # rsync deletes in a directory below it
    if _find_value(words, taken) is not None or not (colon or path.startswith(("/", "~"))):
        return None
    path = path if path.startswith(("/", "~")) or not path else f"~/{path}"
    return [*words, *(["--hosts", host] if host else []), *(["--workdir", path] if path else [])]


def name_hosts(words: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Returns the command line with those of its words as an option that name hosts, or a hostfile; without them where
    it has such an option."""
    better = _leave_out(words, names)
    if _find_value(words, _HOST_OPTIONS) is not None:
        return better
    if len(names) == 1 and Path(names[0]).is_file():
        return [*better, "-f", names[0]]
    return _prefer_limit([*better, "--hosts", ",".join(names)])


def _describe_wrong_command(error: NoSuchCommand, verb: str, words: Sequence[str]) -> _Mistake:
    names = _NAMES_IN_LAB if verb == "lab" else _OTHER_NAMES
    meant = names.get(error.word) or find_nearest(error.word, error.names, _NAME_LIKENESS)
    if meant in _ENDING and error.word not in names:
        meant = find_nearest(error.word, [meant], _ENDING_LIKENESS)
    is_own = meant in error.names or (meant == "--version" and verb == "ipexctl")
    better = replace_word(words, error.word, meant if is_own else None)
    group = "run" if error.word.endswith(".py") or error.word in _PROGRAMS else _SECOND_WORDS.get(error.word)
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
    if starts_script and name in _PYTHON_OPTIONS and name in words and not (_find_value(words, [name]) or "").isdigit():
        return _Mistake(sentence, _start_python(words, name, own))
    if foreign and name in foreign.names:
        better = foreign.words and [*words[:begin], *foreign.words]
        return _Mistake(f"{verb} has no option {', '.join(foreign.names)}", better, foreign.reasons)
    same = f"-{name}" if f"-{name}" in own else _SAME_OPTIONS.get(verb, {}).get(name)  # -fix: the parser reads -f ix
    if better := replace_word(words, name, same):
        return _Mistake(sentence, better)
    if name == "-y" and verb in ("install", "uninstall"):
        return _Mistake(sentence, [word for word in words if word != name], [f"{verb} asks nothing"])
    if (verb, name) in _OTHER_OPTIONS:
        reason, better = _OTHER_OPTIONS[verb, name]
        return _Mistake(sentence, better, [reason])
    if verb in ("sync", "fetch") and (letters := "".join(filter(_OF_RSYNC.fullmatch, words))) and name in f"-{letters}":
        better = [word for word in words if not _OF_RSYNC.fullmatch(word)] + ["--dry-run"] * ("n" in letters)
        return _Mistake(
            sentence, better, [f"{verb} has no options of rsync: it copies directories, and only what has changed"]
        )
    if verb == "shell" and name in _SSH_SETTINGS:
        reason = "a host's user, port, key and jump host are written beside it, or in ~/.ssh/config"
        return _Mistake(sentence, _name_settings(words), [reason])
    value = _find_value(words, [name])
    bare = value is None or (value.startswith("-") and name in words)  # not --name=-1
    fitting = [param for param in options if param.is_flag or param.count or not bare]
    names = [each for param in fitting for each in (*param.opts, *param.secondary_opts)]
    nearest = find_nearest(name, names, _NAME_LIKENESS)
    if better := _restore_value(error.ctx, words) or replace_word(words, name, nearest):
        return _Mistake(sentence, better)
    if starts_script and (better := _move_behind_script(words, name, own)):
        return _Mistake(sentence, better, ["options of the script stand after it"])
    commands = error.ctx.command.commands if verb == "ipexctl" else ()
    for at, word in enumerate(words):
        if word in commands:
            return _Mistake(sentence, [word, *words[:at], *words[at + 1 :]], ["options of a command stand after it"])
    return _Mistake(sentence)


def _name_settings(words: Sequence[str]) -> list[str] | None:
    """The command line of shell with options of ssh as settings of its host; None where it has others, too."""
    at, settings = words.index("shell") + 1, list[str]()
    while words[at] in _SSH_SETTINGS and words[at + 2 :]:
        settings.append(f"{_SSH_SETTINGS[words[at]]}={words[at + 1]}")
        at += 2
    if words[at].startswith("-"):
        return None
    host = words[at].rpartition("@")[2]
    return ["shell", "--hosts", " ".join([words[at], *settings]), host, *words[at + 1 :]]


def _name_package(word: str) -> list[str]:
    """The options of install that take a requirement as pip does: those of a release have options of their own."""
    if word.endswith(".txt"):
        return ["-r", word]
    name, _, release = word.partition("==")
    option, alone = _RELEASE_OPTIONS.get(name.replace("-", "_"), ("", []))
    if not option:
        return ["--with", word]
    return [option, release] if release else [*alone]


def _prefer_limit(words: Sequence[str]) -> Sequence[str]:
    """The command line with ``--limit`` in place of ``--hosts`` where a hostfile in use has all of these hosts."""
    from ipexctl.model.errors import UsageError
    from ipexctl.verbs.common.select import select_hosts

    limit, hostfile = _find_value(words, ["--hosts"]), _find_value(words, ["-f", "--hostfile"])
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
    value = _find_value(words, names)
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


def _start_python(words: Sequence[str], option: str, own: Collection[str]) -> list[str]:
    """The command line that starts Python with an option of it: behind the command's own ones."""
    at = words.index(option)
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
    end = next((each for each in range(at + 1, script) if words[each].partition("=")[0] in own), script)
    return [*words[:at], *words[end:script], "python", *words[at:end], *words[script:]]


def _move_behind_script(words: Sequence[str], option: str, own: Collection[str]) -> list[str] | None:
    """The command line with an option and its values behind the script; None without a script."""
    first = next((at for at, word in enumerate(words) if word.partition("=")[0] == option), len(words))
    script = next((at for at, word in enumerate(words) if at > first and word.endswith(".py")), None)
    if script is None:
        return None
    end = next((at for at in range(first + 1, script) if words[at].partition("=")[0] in own), script)
    return [*words[:first], *words[end : script + 1], *words[first:end], *words[script + 1 :]]


def _find_value(words: Sequence[str], names: Sequence[str]) -> str | None:
    """Returns what the command line has behind one of these names."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        name, equal, value = word.partition("=")
        if name in names:
            return value if equal else following
    return None


def find_nearest(word: str, names: Sequence[str], least: float = _VALUE_LIKENESS) -> str | None:
    """The name that is most like the word: two letters exchanged, one letter less, one missing, one other,
    else those that most of it shares, from ``least`` on; of several the one that begins alike."""
    from difflib import SequenceMatcher

    def compute_likeness(name: str) -> tuple[float, int]:
        different = sum(a != b for a, b in zip(word, name, strict=True)) if len(name) == len(word) else len(name)
        if different <= 2 and sorted(name) == sorted(word):
            return 1.0, 0
        if name[:-1] == word or any(word[:at] + word[at + 1 :] == name for at in range(len(word))):
            return 0.995, 0
        if any(name[:at] + name[at + 1 :] == word for at in range(len(name))):
            return 0.992, 0
        if different == 1 and len(word) > 2:
            return 0.99, 0
        same = next(
            (at for at, (a, b) in enumerate(zip(word, name, strict=False)) if a != b), min(len(word), len(name))
        )
        return SequenceMatcher(None, word.lstrip("-"), name.lstrip("-")).ratio(), same

    best = max(names, key=compute_likeness, default=None)
    return best if best is not None and compute_likeness(best)[0] >= least else None


def replace_word(words: Sequence[str], old: str, new: str | None) -> list[str] | None:
    """The command line with another word in place of the first that is ``old``, or the option or value ``old``."""
    if new is None:
        return None
    for at, word in enumerate(words):
        name, equal, value = word.partition("=")
        if word == old:
            return [*words[:at], new, *words[at + 1 :]]
        if equal and old in (name, value):
            replaced = f"{new}={value}" if name == old else f"{name}={new}"
            if old == new:
                replaced = new
            return [*words[:at], replaced, *words[at + 1 :]]
    return None
