"""The launcher's proxy on a host, out of what the launcher would have a remote shell do."""

import os
import shlex
from typing import List


def find_command(words: "List[str]", proxies: "List[str]") -> "List[str]":
    """Returns the proxy, the first of ``proxies``, and its arguments in a command for a remote shell. What a launcher
    puts before it is for that of a login: settings of its variables, in that shell's language, and the user's own
    profile."""
    split = shlex.split(" ".join(words))
    programs = [word.rpartition(";")[2] for word in split]
    at = next((at for at, program in enumerate(programs) if os.path.basename(program) == proxies[0]), 0)
    arguments = split[at + 1 :]
    if arguments[-1:] == [")"]:
        arguments.pop()
    return (programs[at : at + 1] + arguments) or proxies[:1]


def find_missing_program(argv: "List[str]", proxies: "List[str]") -> str:
    """Returns which program a proxy lacks, without which it ends without a word; "" where all are there."""
    for name in proxies[1:]:
        path = os.path.join(os.path.dirname(argv[0]), name)
        if not os.access(path, os.X_OK):
            return "%s is missing or cannot be executed" % path
    return ""
