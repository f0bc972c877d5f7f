"""Commands from functions: the annotations of a function name the models whose fields are the command's options.

``command`` registers such a function. Its options are built when the command is first used, so that the list of
commands does not load them. When it runs, each annotated parameter gets its value: a task (`model.tasks`), flags
(`cli.options`), the selected hosts, the context. What the function returns is the workflow that is performed."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from inspect import Parameter, Signature, getdoc
from itertools import product
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, get_origin

import typer
from typer.core import TyperCommand

from ipexctl.cli.command_options import Option, find_model, read_options
from ipexctl.cli.help_page import LONG_HELP, HelpPage
from ipexctl.cli.other_launchers import find_long_option
from ipexctl.cli.plain_values import PlainValues, convert_plain_values
from ipexctl.cli.usage_errors import CommandGroup, NeedlessWords, NoSuchOption, NoValue, WrongWords, list_own_options
from ipexctl.cli.words import replace_word

if TYPE_CHECKING:
    from ipexctl.act.context import Context
    from ipexctl.loop import Workflow
    from ipexctl.model.hosts import Host, Inventory

_DRY_FLAGS = ("dry_run", "check", "emit", "list_steps")  # flags with which a command changes nothing


class HostSelection:
    """The hosts that ``--hostfile``, ``--hosts`` and ``--limit`` select; they are read when asked for."""

    def __init__(self, words: tuple[str, ...], hostfile: str | None, hosts: str | None, limit: str | None) -> None:
        self.words = words  # of the command line
        self.hostfile, self.hosts, self.limit = hostfile, hosts, limit
        self.warnings: list[str] = []  # printed when the command begins

    def list_flags(self, venv: str | None) -> tuple[str, ...]:
        """The options that were given, by which another command selects the same hosts and environment."""
        pairs = {"-f": self.hostfile, "--hosts": self.hosts, "--limit": self.limit, "--venv": venv}.items()
        return tuple(word for name, value in pairs if value for word in (name, value))

    def read_inventory(self) -> Inventory:
        """Returns the selected hosts. Raises `UsageError`."""
        from ipexctl.loop import get_state_directory
        from ipexctl.verbs.common.select import select_hosts

        named = {"hostfile": self.hostfile, "hosts": self.hosts, "limit": self.limit}
        runs = get_state_directory() / "runs"
        inventory = select_hosts(**named, environ=os.environ, cwd=Path.cwd(), runs=runs, words=self.words)
        self.warnings = [*inventory.warnings]
        return self._advise_limit(inventory) if self.hosts is not None else inventory

    def _advise_limit(self, inventory: Inventory) -> Inventory:
        """Gives hosts that the hostfile in use describes otherwise than ``--hosts`` the hint to choose them there."""
        from ipexctl.model.errors import UsageError
        from ipexctl.verbs.common.select import select_hosts

        try:
            used = select_hosts(hostfile=None, hosts=None, limit=None, environ=os.environ, cwd=Path.cwd())
        except UsageError:
            return inventory
        listed = {host.name: dataclasses.replace(host, origin=None) for host in used}
        bare = {host.name: dataclasses.replace(host, origin=None) for host in inventory}
        names = [name for name in bare if name in listed and listed[name] != bare[name]]
        words, limit = replace_word(self.words, "--hosts", "--limit"), ",".join(names)
        if not names or not words:
            return inventory
        if limit != self.hosts:
            words = replace_word(words, self.hosts or "", limit) or words
        hint = shlex.join(["ipexctl", *words])
        hosts = [dataclasses.replace(host, hint=hint) if host.name in names else host for host in inventory]
        return dataclasses.replace(inventory, hosts=tuple(hosts))

    def read_host(self, name: str) -> Host:
        """The one host of this name; where no hosts are given, a host that ssh knows. Raises `UsageError`."""
        from ipexctl.model.errors import UsageError
        from ipexctl.model.text import printable

        given = self.hosts or self.hostfile or os.environ.get("IPEXCTL_HOSTFILE") or os.path.lexists("hostfile")
        self.hosts, self.limit = (self.hosts, name) if given else (name, None)
        inventory = self.read_inventory()
        if len(inventory) != 1:
            raise UsageError(f"{printable(name)} names {len(inventory)} hosts, where one is needed")
        return inventory.head


def confirm(question: str) -> bool:
    """Asks on the terminal; no answer is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def make_model(model: Any, values: Mapping[str, Any]) -> Any:
    """Returns the task or the flags of these values, by field name; None is the default. Raises `UsageError`."""
    options, fields = read_options(model), dict[str, Any]()
    for option in options:
        value = values.get(option.name)
        if get_origin(option.type) is dict:
            fields[option.name] = parse_pairs(f"--{option.key}", value or ())
        elif value is not None:
            fields[option.name] = tuple(value) if isinstance(value, list) else value
    if all(option.flag.allows(fields.get(option.name)) for option in options):
        return model(**fields)
    from ipexctl.model.task_schemas import check_fields

    return check_fields(model, fields)


def _expand_paths(made: Any) -> Any:
    """Returns the same value; ``~`` is replaced in a task's paths on this machine. Raises `UsageError`."""
    from ipexctl.act.inputs import expand_local_paths
    from ipexctl.model.tasks import Task

    return expand_local_paths(made) if isinstance(made, Task) else made


def parse_pairs(flag: str, words: list[str] | tuple[()]) -> dict[str, str]:
    """Returns the NAME=VALUE words of a flag as a mapping. Raises `UsageError`."""
    from ipexctl.model.errors import UsageError
    from ipexctl.model.text import printable

    bad = [f"'{printable(word)}'" for word in words if not word.partition("=")[0] or "=" not in word]
    if bad:
        raise UsageError(f"{flag} takes NAME=value, not {', '.join(bad)}")
    return dict(word.split("=", 1) for word in words)


class _Generated(HelpPage):
    """A command whose options are built when they are first used, and whose help has sections and examples."""

    build: Callable[[], Any]
    examples: tuple[str, ...]
    models: list[str]  # tasks and flags
    alone: Mapping[str, str]  # options without their value, and the option that is meant

    # Typer also sets both, to those of the function it was given, which has no parameters and does nothing.
    params = property(lambda self: self.build().params, lambda self, params: None)
    callback = property(lambda self: self.build().callback, lambda self, callback: None)

    @property
    def advanced(self) -> frozenset[str]:
        """Names of the options that only --help-all lists."""
        options = (option for name in (*self.models, "OutputFlags") for option in read_options(find_model(name)))
        return frozenset(option.name for option in options if option.flag.advanced)

    def get_help(self: Any, ctx: Any) -> str:
        words = ctx.meta.get(_WORDS, ())
        taken = next((word for word in words if word[:2] == "-h" and len(word) > 2), None)
        if taken and not {"-h", "--help", "--help-all"} & {*words}:
            raise NoSuchOption(taken, ctx)
        return str(super().get_help(ctx))  # type: ignore[misc]

    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        ctx.meta[_WORDS] = (*ctx.command_path.removeprefix(ctx.find_root().command_path).split(), *args)
        args = self.expand(args, ctx)
        following = [*args, "-"][1:]
        words = [self.alone.get(word, word) if next_.startswith("-") else word
                 for word, next_ in zip(args, following, strict=True)]  # fmt: skip
        single = isinstance(self, TyperCommand)
        ctx.allow_extra_args = ctx.allow_extra_args or single
        own = list_own_options(self.params)
        long = find_long_option(args, own, before_what=not ctx.allow_interspersed_args)
        if long and not ctx.resilient_parsing:
            raise NoSuchOption(long, ctx)
        try:
            super().parse_args(ctx, words)  # type: ignore[misc]
        except WrongWords as error:
            error.ctx = error.ctx or ctx
            raise
        if not ctx.resilient_parsing:
            _refuse_values(self.params, own, ctx, args)
        if single and ctx.args and not ctx.resilient_parsing:
            raise NeedlessWords(ctx.args, ctx)
        return ctx.args


def _refuse_values(params: Iterable[Any], own: Collection[str], ctx: Any, args: list[str]) -> None:
    """Raises `WrongWords` for values of options that cannot be meant: one with a "=" before it (``-f=FILE``), and an
    option of the command: ``sync --exclude --dry-run`` would copy."""
    named = {name for name in own if name.startswith("--")} & {*args}
    for param in params:
        if param.param_type_name != "option":
            continue
        value = ctx.params.get(param.name)
        values = value if isinstance(value, list | tuple) else (value,)
        if named & {*values}:
            raise NoValue(param.opts[-1], ctx)
        glued = [f"{name}{each}" for name, each in product(param.opts, values) if str(each).startswith("=")]
        if given := next((word for word in glued if word in args), None):
            raise typer.BadParameter(given, ctx, param)


def command(
    app: typer.Typer,
    name: str = "",
    *,
    examples: tuple[str, ...] = (),
    acting: bool | Callable[[Any], bool] = False,
    output: Callable[[Any], dict[str, Any]] | None = None,
    contacts: bool = True,
    without: str = "",
    script: bool = False,
    alone: Mapping[str, str] = MappingProxyType({}),
    expand: Callable[[list[str], typer.Context], list[str]] = lambda words, ctx: words,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function as a command of ``app``, or as its callback if it has no ``name``.

    ``acting`` commands are recorded, unless a flag such as --dry-run keeps them from acting. ``output`` gives fields
    of `loop.OutputOptions` that follow from the flags. ``contacts``: the selected hosts are contacted. ``without``: a
    shared option that the command does not have. ``script``: the words behind
    the first argument are those of a script. ``alone``: options that mean another one where their value is missing.
    ``expand`` puts other words for the command's own. ``examples``: what may stand behind the command's name."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        names = [kind for name, kind in function.__annotations__.items() if name != "return"]
        own = [name for name in names if name not in _INJECTED]
        if "HostSelection" in names:
            own = ["HostFlags", *own, *(["ConnectionFlags"] if contacts else [])]

        def invoke(ctx: typer.Context, **values: Any) -> None:
            if ctx.invoked_subcommand:
                return
            flags = SimpleNamespace(**values)
            acts = acting(flags) if callable(acting) else acting
            acts = acts and not any(getattr(flags, name, None) for name in _DRY_FLAGS)
            _perform_command(function, ctx, vars(flags), output(flags) if output else {}, acting=acts)

        def build() -> Any:
            options: dict[str, Option] = {}
            for option in (option for name in (*own, "OutputFlags") for option in read_options(find_model(name))):
                options.setdefault(option.name, option)  # a command's own --output wins
            parameters = [option.build_parameter() for name, option in options.items() if name != without]
            if any(option.flag.advanced for option in options.values()):
                parameters.append(LONG_HELP)
            context = Parameter("ctx", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
            invoke.__signature__ = Signature([context, *parameters])  # type: ignore[attr-defined]
            invoke.__annotations__ = {each.name: each.annotation for each in (context, *parameters)}
            built = typer.Typer(add_completion=False)
            built.command()(invoke)
            made = typer.main.get_command(built)
            for param in made.params:
                if param.name in options:
                    option = options[param.name]
                    span = option.flag.is_span(option.type)
                    convert_plain_values(param, option.value_type, option.flag.allows, is_span=span)
            return made

        path = " ".join(word for word in ("ipexctl", app.info.name, name) if word)
        lines = tuple(f"{path} {example}".strip() for example in examples)
        generated = {"build": staticmethod(cache(build)), "examples": lines, "models": own, "alone": alone}
        generated |= {"expand": staticmethod(expand)}
        settings: dict[str, Any] = {"help": getdoc(function)}
        if name:
            settings["context_settings"] = {"allow_interspersed_args": False} if script else None
            app.command(name, cls=type("Command", (_Generated, PlainValues, TyperCommand), generated), **settings)(
                lambda: None
            )
        else:
            app.callback(cls=type("Group", (_Generated, CommandGroup), generated), **settings)(lambda: None)
        return function

    return register


def get_words(ctx: typer.Context) -> tuple[str, ...]:
    """Returns the words of the command line, without the program's name."""
    words: tuple[str, ...] = ctx.meta[_WORDS]
    return words


def _get_own_words(words: tuple[str, ...], values: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of an install or a run before WHAT; none where WHAT stands elsewhere, as in ``--from-mpirun``."""
    if words[0] in ("install", "wheels"):
        return words
    what = (values.get("script"), *(values.get("args") or ()))
    if words[0] == "tune" and not what[0]:
        return words
    if words[0] != "run" or words[-len(what) :] != what:
        return ()
    own = words[: -len(what)]
    return own[:-1] if own[-1] == "--" else own  # the options of a hint would stand behind it


_WORDS = "words"  # of the command line, in the context's ``meta``
_INJECTED = {"Context", "HostSelection", "OutputOptions", "typer.Context"}


def _perform_command(
    function: Callable[..., Any], ctx: typer.Context, values: dict[str, Any], overrides: dict[str, Any], *, acting: bool
) -> None:
    """Performs the workflow of a command, and warnings about its hosts; ends the program with the exit code."""
    from ipexctl import loop

    known = {field.name for field in dataclasses.fields(loop.OutputOptions)}
    options = loop.OutputOptions(**{name: value for name, value in (values | overrides).items() if name in known})
    hosts = HostSelection(get_words(ctx), *(values.get(name) for name in ("hostfile", "hosts", "limit")))
    injected = {"HostSelection": hosts, "OutputOptions": options, "typer.Context": ctx}

    def call(**more: Any) -> Any:
        given = injected | more
        return function(
            **{
                name: given[kind] if kind in _INJECTED else _expand_paths(make_model(find_model(kind), values))
                for name, kind in function.__annotations__.items()
                if name != "return"
            }
        )

    def make_workflow(context: Context) -> Workflow:
        from ipexctl.model.errors import UsageError, complete_hint, repeat_command
        from ipexctl.model.events import Message, Started

        words = get_words(ctx)
        place = hosts.list_flags(values.get("venv"))
        try:
            workflow = call(Context=context)
            first = next(workflow)
            place = ()  # those of the first event are better
            yield dataclasses.replace(first, words=words) if isinstance(first, Started) else first
            yield from (Message(text, "warning", code="inventory") for text in hosts.warnings)
            return (yield from workflow)
        except UsageError as error:
            if error.meant and (better := replace_word(words, *error.meant)):
                error.hint = shlex.join(["ipexctl", *better])
            error.hint = complete_hint(repeat_command(error.hint, _get_own_words(words, values)), place)
            raise

    direct = "OutputOptions" in function.__annotations__.values()
    raise typer.Exit(int(call() if direct else loop.run_command(make_workflow, options, acting=acting)))
