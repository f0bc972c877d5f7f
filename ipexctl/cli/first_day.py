"""What ``ipexctl`` alone prints: the commands of a first day, and where one stands."""

from collections.abc import Mapping
from pathlib import Path

_STEPS = (
    ("init train.py", "write a hostfile and a playbook, by a few questions"),
    ("doctor", "look at the hosts: what is wrong, and how to fix it"),
    ("install", "put one release of PyTorch on all hosts"),
    ("run train.py", "start the script on all hosts and watch every rank"),
    ("report", "draw the last run as a page"),
)


def write_first_day(environ: Mapping[str, str], cwd: Path) -> str:
    """Returns the text. Of this machine it looks for a hostfile and at the saved runs only."""
    lines = ["Train PyTorch on your Xeon and EPYC hosts over SSH, with a real mpirun.", "", "The first day:"]
    lines += [f"  {f'ipexctl {words}':<24}{what}" for words, what in _STEPS]
    return "\n".join([*lines, "", f"Here: {_describe_place(environ, cwd)}", "All commands: ipexctl --help"])


def _describe_place(environ: Mapping[str, str], cwd: Path) -> str:
    from ipexctl.decide.saved_runs import classify_result
    from ipexctl.loop import get_state_directory
    from ipexctl.store.record import list_saved_runs, read_name, read_report
    from ipexctl.verbs.common.select import LAB_HOSTFILE

    file = environ.get("IPEXCTL_HOSTFILE") or "hostfile"
    if not (cwd / file).is_file():
        if (lab := get_state_directory() / LAB_HOSTFILE).is_file() and file == "hostfile":
            return f"no hostfile; a lab is up: ipexctl doctor -f {lab}"
        return "no hostfile: ipexctl init" if file == "hostfile" else f"IPEXCTL_HOSTFILE names no file: {file!r}"
    last = next(reversed(list_saved_runs(get_state_directory() / "runs")), None)
    if last is None:
        return f"{file!r} names the hosts: ipexctl doctor"
    report, name = read_report(last), read_name(last)
    result = classify_result(report) if report else "unfinished"
    if result in ("detached", "unfinished"):
        return f"{file!r} names the hosts; what goes on there: ipexctl ps; the last command, {name}: {result}"
    return f"{file!r} names the hosts; the last command, {name}: {result}; all: ipexctl runs"
