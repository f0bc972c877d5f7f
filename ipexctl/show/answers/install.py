"""The screens of ``install`` and ``verify``, of the version table, and of wheels."""

from rich.console import RenderableType

from ipexctl.model.answers.install import ImportCheck, InstallAnswer, StacksAnswer, VerifyAnswer, WheelsAnswer
from ipexctl.model.text import format_size, group_pairs, pluralize
from ipexctl.show import phrases, typeset
from ipexctl.show.tables import read_text_table
from ipexctl.show.typeset import BAD, GOOD, QUIET, STRONG, Line, labelled, outcome, split_harmless_lines, text

_DROP = ("MPI", "oneccl", "CPU")  # columns of the version table, in the order in which they give way


def format_answer(value: InstallAnswer | VerifyAnswer | StacksAnswer | WheelsAnswer) -> list[RenderableType]:
    match value:
        case InstallAnswer():
            return format_install(value)
        case VerifyAnswer():
            return format_verify(value)
        case WheelsAnswer():
            what = f"{pluralize(len(value.wheels), 'wheel')} for Python {', '.join(value.python)}"
            new = f"{len(value.fetched)} of them new, {format_size(value.bytes)}"
            parts = ((value.directory, STRONG), f"  {what}, {new if value.fetched else 'all there before'}")
            return [outcome(True, *parts)] if value.next else []
        case StacksAnswer():
            table, _, notes = value.text.partition("\n\n")
            items: list[RenderableType] = [read_text_table(split_harmless_lines(table), _DROP)]
            return [*items, "", *typeset.format_plan(notes)] if notes else items


def format_install(value: InstallAnswer) -> list[RenderableType]:
    """Which stack the hosts have now, and on which of them that changed. Failures are shown by themselves."""
    items: list[RenderableType] = []
    if stack := value.stack:
        versions = (("torch", stack.torch), ("ipex", stack.ipex), ("oneccl", stack.oneccl))
        parts = [f"{name} {version}" for name, version in versions if version]
        parts += [f"{stack.mpi.kind} {stack.mpi.version}".rstrip(), f"Python {stack.python}"]
        items.append(text((" · ".join(parts), STRONG)))
    checks = group_pairs((_describe_check(check), check.host) for check in value.hosts or ())
    items += [
        Line(text(("✓ ", GOOD), (phrases.format_hosts(hosts), STRONG), f"  {what}"), 2)
        for what, hosts in checks.items()
    ]
    groups = (("changed", value.changed, GOOD), ("unchanged", value.unchanged, QUIET), ("failed", value.failed, BAD))
    items += [labelled(name, (phrases.format_hosts(hosts), style)) for name, hosts, style in groups if hosts]
    return [*items, labelled("venv", value.venv)] if value.venv else items


def _describe_check(check: ImportCheck) -> str:
    """What was tried on a host and worked: ``imports torch 2.8.0 · bfloat16 step · AVX512_BF16 · a rank of …``."""
    names = ", ".join(f"{name} {version}".rstrip() for name, version in check.versions.items())
    parts = [f"imports {names}"] if names else []
    same = f"as in the environment before, which was checked: {pluralize(check.same or 0, 'file', ',')}"
    if check.same:
        parts.append(same)
    if check.step_ms is not None:
        parts.append(f"{check.dtype} step")
    if check.isa:
        parts.append(check.isa)
    return " · ".join([*parts, *([f"a rank of {check.mpi}"] if check.mpi else [])])


def format_verify(value: VerifyAnswer) -> list[RenderableType]:
    """Which stack each host has; hosts with the same one share a line. Failures are shown elsewhere."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for verified in value.hosts:
        stack, failed = verified.stack and verified.stack.name, verified.host in value.failed
        if stack or not failed:
            groups.setdefault((str(stack or "no name"), failed), []).append(verified.host)
    items: list[RenderableType] = []
    for (stack_name, failed), names in groups.items():
        same = "" if failed else f": complete{' and the same' if len(names) > 1 else ''}"
        items.append(outcome(not failed, (phrases.format_hosts(names), STRONG), f"  {stack_name}{same}"))
    return items
