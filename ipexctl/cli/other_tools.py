"""Words that users of other tools type, and what they are called here: names of commands, options, arguments."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ipexctl.cli.words import HOST_OPTIONS, find_value, replace_word

OTHER_NAMES = {  # of commands, and what they are called here
    "compare": "report", "diff": "report", "show": "report", "status": "ps", "kill": "stop", "sweep": "run",
    "start": "run", "train": "run", "launch": "run", "submit": "run", "version": "--version", "ssh": "shell",
    "login": "shell", "ls": "ps", "list": "ps", "cancel": "stop", "check": "doctor", "setup": "install",
    "top": "ps", "htop": "ps", "push": "sync", "copy": "sync", "upload": "sync", "pull": "fetch", "get": "fetch",
    "download": "fetch", "cp": "sync", "ping": "doctor", "nodes": "hosts", "inventory": "hosts", "history": "runs",
}  # fmt: skip
NAMES_IN_LAB = {"start": "up", "create": "up", "stop": "down", "destroy": "down", "list": "status", "ls": "status"}
# Options that a command does not have: why, and the words of the command that helps.
_OTHER_OPTIONS: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("stop", "--all"): ("it ends the run that is named; this lists them, each with its name", ["ps"]),
    ("ps", "-a"): ("runs that ended are listed by runs", ["runs"]),
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
HOSTS_OPTIONS = {
    "-H": "--hosts",
    "--host": "--hosts",
    "-i": "-f",
    "--inventory": "--hostfile",
}  # of pssh, mpirun and Ansible
_OF_RSYNC = re.compile("-[aAhHnPrtuvXz]+")
_SSH_SETTINGS = {"-i": "key", "-J": "jump", "-l": "user", "-p": "port"}  # and those of a host
_RELEASE_OPTIONS: dict[str, tuple[str, list[str]]] = {  # by package: with its version, and without one
    "torch": ("--torch", []),
    "intel_extension_for_pytorch": ("--ipex", ["--track", "ipex"]),
    "oneccl_bind_pt": ("--oneccl", ["--backend", "ccl"]),
}
PYTHON_OPTIONS = ("-c", "-u", "-O", "-X")  # of the interpreter, which is started as a program
PROGRAMS = ("python", "python3", "mpirun", "mpiexec", "torchrun", "deepspeed", "horovodrun", "composer", "uv")


class Advice(NamedTuple):
    """The command line that is meant, None where there is none, and why."""

    better: Sequence[str] | None
    reasons: Sequence[str] = ()


def advise_option(verb: str, name: str, words: Sequence[str]) -> Advice | None:
    """Returns what an option of another tool means to a command; None where that is not known."""
    if better := replace_word(words, name, _SAME_OPTIONS.get(verb, {}).get(name)):
        return Advice(better)
    if name == "-y" and verb in ("install", "uninstall"):
        return Advice([word for word in words if word != name], [f"{verb} asks nothing"])
    if verb == "migrate" and (at := words.index(verb)) + 1 < len(words) and words[at + 1] in PROGRAMS:
        return Advice([*words[:at], "run", *words[at + 1 :]], ["migrate reads a file"])
    if (verb, name) in _OTHER_OPTIONS:
        reason, better = _OTHER_OPTIONS[verb, name]
        return Advice(better, [reason])
    letters = "".join(filter(_OF_RSYNC.fullmatch, words)) if verb in ("sync", "fetch") else ""
    if letters and name in f"-{letters}":
        better = [word for word in words if not _OF_RSYNC.fullmatch(word)] + ["--dry-run"] * ("n" in letters)
        return Advice(better, [f"{verb} has no options of rsync: it copies directories, and only what has changed"])
    if verb == "shell" and name in _SSH_SETTINGS:
        reason = "a host's user, port, key and jump host are written beside it, or in ~/.ssh/config"
        return Advice(_name_settings(words), [reason])
    return None


def name_package(word: str) -> list[str]:
    """The options of install that take a requirement as pip does: those of a release have options of their own."""
    if word.endswith(".txt"):
        return ["-r", word]
    name, _, release = word.partition("==")
    option, alone = _RELEASE_OPTIONS.get(name.replace("-", "_"), ("", []))
    if not option:
        return ["--with", word]
    return [option, release] if release else [*alone]


def name_destination(words: Sequence[str], target: str) -> list[str] | None:
    """The command line of sync with the options for a destination as rsync has it; None where they say otherwise."""
    host, colon, path = target.rpartition(":")
    taken = [*(HOST_OPTIONS if host else ()), "--workdir", "--delete"]  # rsync deletes in a directory below it
    if find_value(words, taken) is not None or not (colon or path.startswith(("/", "~"))):
        return None
    path = path if path.startswith(("/", "~")) or not path else f"~/{path}"
    return [*words, *(["--hosts", host] if host else []), *(["--workdir", path] if path else [])]


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
