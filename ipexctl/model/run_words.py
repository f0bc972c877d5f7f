"""The command line and the playbook's keys that start a task."""

from dataclasses import MISSING, fields

from ipexctl.model.secrets import looks_secret
from ipexctl.model.tasks import Flag, Run


def list_run_words(task: Run) -> list[str]:
    """Returns the command that starts a task, without ``ipexctl``; secrets among its variables are not in it."""
    words = ["run"]
    for name, value in list_given(task).items():
        flag: Flag = Run.__dataclass_fields__[name].metadata["flag"]
        option = next((each for each in flag.names if each.startswith("-")), f"--{name.replace('_', '-')}")
        if isinstance(value, dict):
            words += [word for key, each in value.items() for word in (option, f"{key}={each}")]
        elif isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        elif name not in {"script", "args"}:
            words += [word for each in (value if isinstance(value, list) else [value]) for word in (option, str(each))]
    return [*words, task.script, *task.args]


def list_given(task: Run) -> dict[str, object]:
    """Returns what of a task is not as usual, as a playbook has it; secrets are taken from the user's environment."""
    given: dict[str, object] = {}
    for each in fields(task):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        value = getattr(task, each.name)
        if value != default:
            given[each.name] = list(value) if isinstance(value, tuple) else value
    if hidden := [name for name in task.env if looks_secret(name)]:
        given["env"] = {name: value for name, value in task.env.items() if name not in hidden}
        given["pass_env"] = [*task.pass_env, *hidden]
    return given
