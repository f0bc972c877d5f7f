"""How MPI says that a rank ends the whole job: by MPI_Abort, which a script calls, or by an error inside MPI.

A rank that does so waits for the launcher to kill it, so that its status says nothing. What it and the launcher wrote
does. The texts are those of Intel MPI 2021, MPICH 3 to 5, Open MPI 4 and 5."""

import re
from typing import Iterator, NamedTuple, Optional


class Abort(NamedTuple):
    """``rank`` is the one in MPI_COMM_WORLD, None where the text does not tell; ``called``: by the script."""

    code: int
    rank: Optional[int] = None
    called: bool = True


# MPICH and Intel MPI. The number after "node" is the rank in MPI_COMM_WORLD, that after "process" one in the
# communicator of the call. Older releases write only what follows "application".
_MPICH = re.compile(
    rb"(?:Abort\(-?\d{1,10}\) on node (?P<world>\d{1,9})\b[^\n]*?)?"
    rb"application called MPI_Abort\((?P<comm>[^,)\n]*), ?(?P<code>-?\d{1,10})\) - process (?P<process>\d{1,9})"
)
_MPICH_ERROR = re.compile(rb"Abort\((?P<code>-?\d{1,10})\) on node (?P<world>\d{1,9}) [^\n]*: (?:Fatal|Unknown) error")
# Open MPI 4 ("with errorcode 7.") and 5 ("Proc: [[5432,1],1]", "Errorcode: 7").
_OPEN_MPI = re.compile(
    rb"MPI_ABORT was invoked on rank (?P<process>\d{1,9}) in communicator (?P<comm>[^\n]*)\n\s*"
    rb"(?:Proc: \[\[[^\n]*\],(?P<world>\d{1,9})\]\s+)?(?:with errorcode|Errorcode:) (?P<code>-?\d{1,10})"
)
_WORLD = b"MPI_COMM_WORLD"


def find_aborts(text: bytes) -> "Iterator[Abort]":
    """Yields those that a rank's output, or the launcher's, speaks of: first all calls."""
    for pattern in (_MPICH, _OPEN_MPI):
        for match in pattern.finditer(text):
            number = match.group("world") or (match.group("process") if match.group("comm").startswith(_WORLD) else b"")
            yield Abort(int(match.group("code")), int(number) if number else None)
    for match in _MPICH_ERROR.finditer(text):
        yield Abort(int(match.group("code")), int(match.group("world")), called=False)
