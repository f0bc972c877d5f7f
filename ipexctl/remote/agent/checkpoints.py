"""The checkpoints in a directory of a script: which there are, and whether their files are whole, as far as the formats
of PyTorch (DCP, torch.save), safetensors, the Trainer, Accelerate and Lightning tell."""

import hashlib
import json
import os
import re
import zipfile
from typing import IO, Dict, List, Optional, Tuple

Files = Dict[str, List[int]]  # path → bytes, and when it was written, in nanoseconds

_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".npz", ".tar", ".distcp")
UNFINISHED = (".tmp", ".temp", ".part", ".lock", "~")
_NUMBERED = re.compile(r"(.*[-_=])?(checkpoint|ckpt|step|epoch|iter|global_step)[-_=]?\d+(\.\w+)?")
_SHARD = re.compile(rb"__\d+_\d+\.distcp")
_METADATA = ".metadata"  # of DCP, written last
_DEPTH = 4  # directories below the first in which checkpoints are looked for
_DEPTH_LIMIT = 64  # directories in which a checkpoint's own files are
_HEADER_LIMIT = 1 << 26  # bytes of a description that is read
_ZIP, _ZIP_END, _ZIP_END_SIZE = b"PK\3\4", b"PK\5\6", 22


def find_checkpoints(base: str, leaf: str) -> "Dict[str, List[str]]":
    """Returns the checkpoints in ``leaf``, a directory or a file of ``base``, with their files; all paths are below
    ``base``. Where some have a step or an epoch in their names, or are known by their form, others are none."""
    if os.path.isfile(os.path.join(base, leaf)):
        return {leaf: [leaf]}
    found: Tuple[Dict[str, List[str]], ...] = ({}, {}, {})  # known by name or form, directories, single files

    def visit(name: str, depth: int) -> None:
        names, folders = _list_entries(os.path.join(base, name))
        weights = [file for file in names if file.endswith(_WEIGHTS)]
        sharded = _METADATA in names or any(file.endswith(".distcp") for file in weights)
        known = sharded or (name != leaf and _NUMBERED.fullmatch(os.path.basename(name)) is not None)
        if known or (weights and name != leaf and not all(file.endswith(".ckpt") for file in weights)):
            files = [os.path.join(name, file) for file in _list_below(os.path.join(base, name))]
            if files:
                found[0 if known else 1][name] = files
            return
        for file in weights:
            path = os.path.join(name, file)
            known = file.endswith(".ckpt") or _NUMBERED.fullmatch(file) is not None
            found[0 if known else 2][path] = [path]
        for folder in folders if depth else ():
            visit(os.path.join(name, folder), depth - 1)

    visit(leaf, _DEPTH)
    return found[0] or found[1] or found[2]


def _list_entries(directory: str) -> "Tuple[List[str], List[str]]":
    """Names of files and of directories; not those of hidden ones, links and what is being written."""
    files: List[str] = []
    folders: List[str] = []
    try:
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            hidden = entry.name.startswith((".", "tmp-")) and entry.name != _METADATA
            if hidden or entry.name.endswith(UNFINISHED):
                continue
            if entry.is_file(follow_symlinks=False):
                files.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
    except OSError:  # there is none yet, or no longer
        pass
    return files, folders


def _list_below(directory: str, depth: int = _DEPTH_LIMIT) -> "List[str]":
    files, folders = _list_entries(directory)
    below = {each: _list_below(os.path.join(directory, each), depth - 1) for each in folders if depth}
    return files + [os.path.join(each, name) for each in folders for name in below.get(each, ())]


def read_files(base: str, paths: "List[str]") -> "Files":
    """Raises OSError where one is gone."""
    stats = [(path, os.lstat(os.path.join(base, path))) for path in paths]
    return {path: [stat.st_size, stat.st_mtime_ns] for path, stat in stats}


def compute_mark(files: "Files") -> str:
    """Returns what tells this state of the files from every other."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()[:20]


def check_files(base: str, name: str, files: "Files") -> "Tuple[List[str], Optional[bool]]":
    """Returns the files without which the checkpoint is not whole, on whichever host they are: what its framework
    writes last, and the shards that DCP's metadata name. And whether those that are here are whole: None where the
    format of one does not tell, and nothing is written last."""
    needs, last, checks = set(), os.path.basename(name), [_check_file(os.path.join(base, path)) for path in files]
    for path, (_, written) in files.items():
        folder = os.path.dirname(path)
        if path.endswith(".distcp"):
            metadata = os.path.join(folder, _METADATA)
            needs.add(metadata)
            checks.append(metadata not in files or written <= files[metadata][1])  # or it is being written over
        elif os.path.basename(path) == _METADATA:
            with open(os.path.join(base, path), "rb") as file:
                shards = _SHARD.findall(file.read(_HEADER_LIMIT))
            needs.update(os.path.join(folder, shard.decode()) for shard in shards)
    if re.fullmatch(r"checkpoint-\d+", last):  # the Trainer's
        needs.add(os.path.join(name, "trainer_state.json"))
    elif re.fullmatch(r"checkpoint_\d+", last):  # Accelerate's
        needs.add(os.path.join(name, "random_states_0.pkl"))
    if False in checks:
        return sorted(needs), False
    return sorted(needs), True if needs or None not in checks else None


def _check_file(path: str) -> "Optional[bool]":
    try:
        with open(path, "rb") as file:
            head = file.read(8)
            size = file.seek(0, os.SEEK_END)
            if head.startswith(_ZIP):
                file.seek(max(0, size - _ZIP_END_SIZE))
                return file.read(4) == _ZIP_END and _has_whole_pickles(file)
            if path.endswith(".safetensors"):
                length = int.from_bytes(head, "little")
                file.seek(8)
                header = json.loads(file.read(min(length, _HEADER_LIMIT)).decode())
                ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
                return bool(8 + length + max(ends, default=0) == size)
            if path.endswith(".json"):
                file.seek(0)
                json.loads(file.read(_HEADER_LIMIT).decode())
                return True
            return False if path.endswith(_WEIGHTS) and not size else None
    except Exception:  # whatever a damaged file makes the readers of zip archives and JSON raise
        return False


def _has_whole_pickles(file: "IO[bytes]") -> bool:
    """Returns whether what says which tensors are in an archive of torch.save has its checksum: torch looks at none."""
    with zipfile.ZipFile(file) as archive:
        pickles = [info for info in archive.infolist() if info.filename.endswith(".pkl")]
        return all(archive.read(info) for info in pickles if info.file_size <= _HEADER_LIMIT)
