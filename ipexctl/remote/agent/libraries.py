"""What a rank loaded of the libraries that should be there once: kind, path, version. The versions are strings in the
files, as measured: libccl and libmpi of IPEX 2.7.0, libmpi and libfabric of impi-rt 2021.18.1; OpenMP has none."""

import os
import re
from typing import List, Tuple

from ipexctl.protocol import hooks, paths
from ipexctl.remote.agent import procs

LIST_LIMIT, LIBRARY_LIMIT = 1 << 16, 1 << 28  # bytes that are read of the list, and of a library
_KINDS = {"ccl": "oneCCL", "mpi": "MPI", "fabric": "libfabric", "iomp5": "OpenMP", "omp": "OpenMP", "gomp": "OpenMP"}
_VERSIONS = {
    "oneCCL": re.compile(rb"\bGold-(\d[\d.]*\d)"),
    "MPI": re.compile(rb"\0(20\d\d\.\d+(?:\.\d+)?)\0"),
    "libfabric": re.compile(rb"\0([12]\.\d+\.\d+)\0"),
}


def list_loaded_libraries(directory: str, rank: int) -> "List[Tuple[str, str, str]]":
    """From what the rank's own Python has noted; empty where it has not."""
    found = []
    name = os.path.join(directory, paths.RANKS, "%d%s" % (rank, hooks.LIBRARIES))
    for path in os.fsdecode(procs.read_tail(name, LIST_LIMIT)).split("\n")[:20]:
        kind = _KINDS.get(os.path.basename(path)[3:].replace("-", ".").split(".")[0])
        if kind and os.path.isfile(path):
            match = _VERSIONS[kind].search(procs.read_tail(path, LIBRARY_LIMIT)) if kind in _VERSIONS else None
            found.append((kind, path, match.group(1).decode() if match else ""))
    return found


def describe_duplicate_libraries(found: "List[Tuple[str, str, str]]", preload: str) -> "List[str]":
    """Returns a sentence for each kind of which there are two. Intel's OpenMP, preloaded, also speaks for GNU's:
    another one is loaded then, and never used. Copies of GNU's alone, as in some wheels, are no conflict."""
    texts = []
    for kind in sorted({kind for kind, _, _ in found} - ({"OpenMP"} if "libiomp5" in preload else set())):
        copies = ["%s (%s)" % (path, version or "version unknown") for other, path, version in found if other == kind]
        if len(copies) > 1 and not all("libgomp" in copy for copy in copies):
            text = "has loaded %s twice, and which one it uses depends on the order of its imports: %s"
            texts.append(text % (kind, ", ".join(copies)))
    return texts
