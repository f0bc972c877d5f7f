"""What a run starts on its hosts: a Python file, a module, another file, or a program by its name."""

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Literal

from ipexctl.decide.script_imports import parse_script
from ipexctl.model.engines import Engine
from ipexctl.model.errors import Note, UsageError, advise
from ipexctl.model.json_values import Record
from ipexctl.model.tasks import Run
from ipexctl.model.text import printable
from ipexctl.protocol.placeholders import NAMES, PATTERN

_NAME = re.compile(r"[A-Za-z0-9_][\w+-]*")
# A #! line by which env starts a program: after its options of one word, and variables.
_ENV = re.compile(r"\S*/env\s+(?:(?:-\S+|\w+=\S*)\s+)*([^\s=-][^\s=]*)(?:\s.*)?")
_WORD = re.compile(r"(?<!\{)\{([a-z_]+)\}")
_COMPILERS = {".c": "mpicc", ".cc": "mpicxx", ".cpp": "mpicxx", ".cxx": "mpicxx", ".f": "mpif77", ".f90": "mpif90"}
_INTERPRETERS = {
    ".sh": "bash", ".bash": "bash", ".r": "Rscript", ".jl": "julia", ".java": "java", ".js": "node", ".mjs": "node",
    ".pl": "perl", ".rb": "ruby", ".lua": "lua",
}  # fmt: skip
_LIKENESS = 0.75  # least likeness of a word in braces and the placeholder that it is taken for

# POSIX sh, with a PATH and a program: prints "python" or "other" by what it is, then the library of MPI that it is
# linked to; nothing where there is no such program. A #! line of pip's may be one of sh, and the next one Python's.
FIND_PROGRAM = r"""is_program() { [ -f "$1" ] && [ -x "$1" ]; }
case $2 in
  /*) file=$2 ;;
  *) IFS=:; for folder in $1; do file=$folder/$2; is_program "$file" && break; done ;;
esac
is_program "$file" || exit 0
case $(head -c 300 "$file" | head -n 2 | tr -d '\0') in '#!'*python*) echo python ;;
  *) echo other $(ldd "$file" 2>&1 | grep -o 'libmpi[ch]*\.so\.[0-9]*' | head -n 1) ;;
esac"""
_LINKED = re.compile(rb"\0(libmpi(?:ch)?\.so\.\d+)\0")  # among the names of libraries that an ELF file needs

# For the environment's interpreter: ends with 1 where it finds no such package, with 2 where that has no such module to
# start. Imports none of its packages.
FIND_MODULE = """import sys
path, name, known = None, "", False
def find(name, path):
    return next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
for part in sys.argv[1].split("."):
    name = f"{name}.{part}" if name else part
    spec = find(name, path)
    if spec is None:
        sys.exit(1 if name == part else 2)
    path = spec.submodule_search_locations
sys.exit(0 if path is None or find(name + ".__main__", path) else 2)"""


def find_linked_mpi(data: bytes) -> str:
    """Returns the library of MPI that a program with this beginning is linked to; "" without one."""
    found = _LINKED.search(data) if data.startswith(b"\x7fELF") else None
    return found[1].decode() if found else ""


class Start(Record):
    """What one process of a run is. ``name`` is a path, a module, a program of the environment ("env") or of the hosts;
    ``words`` come before it, as those of a file's ``#!`` line; ``is_python``: its stages can be known;
    ``mpi``: the library of MPI that it is linked to, "" without one."""

    kind: Literal["python", "module", "file", "env", "host"]
    name: str
    args: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    is_python: bool = True
    mpi: str = ""

    @property
    def is_file(self) -> bool:
        return self.kind in {"python", "file"}

    @property
    def program(self) -> str:
        """The program that the hosts must have, of a file that of its ``#!`` line; "" where none is known."""
        if self.kind == "file" and self.words:
            started = _ENV.fullmatch(" ".join(self.words))
            return started[1] if started else self.words[0]
        return self.name if self.kind in {"env", "host"} else ""

    @property
    def is_ambiguous(self) -> bool:
        """Returns whether this file could also be a program of the environment."""
        return self.is_file and is_program_name(self.name)

    @property
    def command(self) -> tuple[str, ...]:
        """The words that the user wrote: without what starts it."""
        if self.kind == "module":
            return ("-m", self.name, *self.args)
        is_option = self.kind == "python" and self.name.startswith("-")
        is_bare = self.kind == "file" and not self.name.startswith("/")
        return (f"./{self.name}" if is_option or is_bare else self.name, *self.args)

    def build_words(self, python: Sequence[str]) -> tuple[str, ...]:
        """Returns the words to start it with; ``python`` are those that start a Python file."""
        interpreters = {"python": tuple(python), "module": (*python[:1], "-u")}
        return (*interpreters.get(self.kind, self.words), *self.command)


def wrap_start(engine: Engine, start: Start) -> tuple[Start, ...]:
    """Returns what node0 and the other hosts start, so that an engine starts a Python file or a module."""
    what = (*(("-m",) if start.kind == "module" else ()), start.name, *start.args)
    starts = []
    for words in filter(None, (engine.words, engine.rest)):
        at = words.index(engine.program)
        args = tuple(part for word in words[at + 1 :] for part in (what if word == "{what}" else (word,)))
        starts.append(Start("env", engine.program, args, words[:at]))
    return tuple(starts)


def is_program_name(word: str) -> bool:
    """Returns whether a word names a program and no file: it has no slash and no dot."""
    return _NAME.fullmatch(word) is not None


def parse_file(name: str, data: bytes, executable: bool, args: tuple[str, ...]) -> Start:
    """Returns how a file of this machine is started; ``data`` is its content. What is not called ``.py``, has no ``#!``
    line and cannot be Python is not guessed at: raises `UsageError`."""
    line, shown = data[:200].partition(b"\n")[0], printable(name, 300)
    python = Start("python", name, args)
    if name.endswith((".py", ".pyz")) or (line.startswith(b"#!") and b"python" in line):
        return python
    if line.startswith(b"#!"):
        words = line[2:].decode("utf-8", "replace").strip().split(None, 1)
        if words:
            return Start("file", name, args, tuple(words), False)
    if b"\0" in data:
        if executable:
            return Start("file", name, args, (), False)
        raise UsageError(f"{shown} is a program without the x bit", hint=f"chmod +x {shlex.quote(shown)}")
    text = data.decode("utf-8", "replace")
    suffix = posixpath.splitext(name)[1].lower()
    program = _INTERPRETERS.get(suffix)
    if text.strip() and (program or not parse_script(text).body):  # x <- 1 of R is Python, too
        reasons = ["it is not called .py, has no #! line and is no Python"]
        hint: str = "begin it with a line such as #!/bin/sh"
        if program:
            way = f"{hint}, or:" if program == "bash" else "by the program of its language on the hosts:"
            hint = advise("run", "--program", program, name, *args, text=way)
        if compiler := _COMPILERS.get(suffix):
            program = posixpath.splitext(name)[0]
            build = shlex.join([compiler, name, "-o", program])
            text = f"build it with the compiler of your MPI ({build}), then:"
            hint = advise("run", program if "/" in program else f"./{program}", *args, text=printable(text, 900))
            raise UsageError(f"{shown} is source code, not a program", hint=hint)
        raise UsageError(f"{shown} does not say what starts it", reasons=reasons, hint=hint)
    return python


def uses_placeholders(task: Run) -> bool:
    """Returns whether an argument or a variable of the user has a placeholder."""
    return any(PATTERN.search(text) for text in (*task.args, *task.env.values()))


def find_doubtful_words(words: Sequence[str]) -> Iterator[Note]:
    """Warns of words in braces that are nearly a placeholder: they stay as they are."""
    for word in (match[1] for text in words for match in _WORD.finditer(text)):
        nearest = get_close_matches(word, NAMES, 1, _LIKENESS)
        if nearest and word != nearest[0]:
            yield Note("placeholder", f"{{{word}}} is no placeholder and stays as it is; {{{nearest[0]}}} is one")
