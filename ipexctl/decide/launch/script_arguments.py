"""What a script and its arguments tell: where it writes checkpoints, by which argument it goes on from one, and whether
it waits for one that nobody gives."""

import ast
import re
from collections.abc import Callable, Iterable, Sequence

from ipexctl.decide.script_imports import Module, parse_script
from ipexctl.model.errors import Note
from ipexctl.model.text import printable
from ipexctl.protocol.paths import RESUME_ENV

# Of Hugging Face's TrainingArguments and example scripts, Accelerate's ProjectConfiguration, Lightning's Trainer and
# its ModelCheckpoint.
_DIRECTORIES = ("output_dir", "project_dir", "default_root_dir", "dirpath")
_FRAMEWORKS = re.compile(
    r"^[ \t]*(import|from)\s+(transformers|trl|accelerate|lightning|pytorch_lightning)\b", re.MULTILINE
)
_LOADS = re.compile(rf"{RESUME_ENV}|resume_from_checkpoint|ckpt_path|get_last_checkpoint|\bload_state\(")
_OPTION = re.compile(r"[\"'](--resume[-_]from[-_]checkpoint|--ckpt[-_]path)[\"']")


def find_checkpoint_directory(args: Sequence[str], text: str) -> str | None:
    """Returns the settings of a framework's script, from its arguments or its text."""
    for number, word in enumerate(args):
        name, _, value = word.partition("=")
        if word.startswith("--") and name.lstrip("-").rpartition(".")[2].replace("-", "_") in _DIRECTORIES:
            return value or next(iter(args[number + 1 :]), None)
    if not _FRAMEWORKS.search(text):
        return None
    for node in ast.walk(parse_script(text)):
        if isinstance(node, ast.keyword) and node.arg in _DIRECTORIES and isinstance(node.value, ast.Constant):
            return node.value.value if isinstance(node.value.value, str) else None
    return "lightning_logs" if "LightningCLI" in text else None


def find_resume_words(program: str, text: str) -> tuple[str, ...]:
    """Returns the words of its command line that make it go on from ``{checkpoint}``; none where none are known."""
    given = _OPTION.search(text)
    if given:
        return (given[1], "{checkpoint}")
    if program == "trl" or re.search(r"\b(HfArgumentParser|TrlParser)\b", text):
        return ("--resume_from_checkpoint", "{checkpoint}")
    return ("--ckpt_path", "{checkpoint}") if "LightningCLI" in text else ()


def describe_unread_checkpoint(script: str, args: Sequence[str], text: str) -> tuple[Note, ...]:
    """Warns of a script that will not go on from the checkpoint that its ranks get, as far as its own text tells."""
    if not text or _LOADS.search(text) or any(word.startswith("--resume") for word in args):
        return ()
    what = f"{printable(script)} does not read {RESUME_ENV}, the checkpoint to go on from"
    return (Note("unread-checkpoint", f"{what}: it starts from its beginning, if it does not find one by itself"),)


def describe_rank_argument(
    text: str, script: str, args: Sequence[str], list_modules: Callable[[], Iterable[Module]]
) -> tuple[Note, ...]:
    """Returns a warning where a script declares ``--local_rank`` without a number, as torch.distributed.launch gave it
    before torch 2.0, and neither its arguments give it one nor it, or a module of its project, reads LOCAL_RANK."""
    if "LOCAL_RANK" in text:
        return ()
    for node in ast.walk(parse_script(text)):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        names = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        names = [name for name in names if name.replace("-", "_") == "__local_rank"]
        default = next((each.value for each in node.keywords if each.arg == "default"), ast.Constant(None))
        without = getattr(default, "value", 0) is None or isinstance(getattr(default, "op", 0), ast.USub)
        if names and without and not any(arg.startswith(name) for arg in args for name in names):
            if any("LOCAL_RANK" in module.code for module in list_modules()):
                return ()
            where = f"{printable(script)} waits for {names[0]} (line {node.lineno})"
            instead = f"read the variable LOCAL_RANK there, or put {names[0]} '{{local_rank}}' behind the script"
            return (Note("local-rank", f"{where}, which torchrun and ipexctl do not give: {instead}"),)
    return ()
