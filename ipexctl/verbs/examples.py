"""``ipexctl examples``: the playbooks and scripts that come with ipexctl, listed, shown and copied."""

from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from ipexctl.act.bundled_files import find_by_name, list_bundled_files
from ipexctl.decide.bundled import list_needed_files, localize_playbook, read_title
from ipexctl.model.answers.examples import CopiedExampleAnswer, ExamplesAnswer, ListedExample, ShownExampleAnswer
from ipexctl.model.errors import UsageError, advise
from ipexctl.model.events import Started, Workflow, finish_verb
from ipexctl.model.text import printable
from ipexctl.store.private_files import refuse_os_errors, replace_file


def examples(*, playbooks_only: bool = False) -> Workflow[None]:
    """Yields an `ExamplesAnswer`."""
    files = list_bundled_files("playbooks") if playbooks_only else list_bundled_files("playbooks", "examples")
    yield Started("examples", "", ())
    listed = (ListedExample(_get_name(path), _get_kind(path), read_title(path.read_text("utf-8"))) for path in files)
    yield from finish_verb("examples", ExamplesAnswer(tuple(listed)))


def show(name: str) -> Workflow[None]:
    """Yields a `ShownExampleAnswer`. Raises `UsageError` for an unknown name."""
    path = _find_example(name)
    yield Started("examples show", "", ())
    answer = ShownExampleAnswer(_get_name(path), _get_kind(path), str(path), path.read_text("utf-8"))
    yield from finish_verb("examples show", answer)


def copy(name: str, directory: Path, *, force: bool = False) -> Workflow[None]:
    """Writes the file, and the examples that it needs, into a directory. Raises `UsageError` for an unknown name, a
    directory that cannot be written, and other files of these names, unless ``force``."""
    path = _find_example(name)
    texts = _collect_texts(path)
    existing = [each for each, text in texts.items() if _is_different(directory / each, text)]
    if existing and not force:
        hint = advise("examples", "copy", _get_name(path), str(directory), "--force", text="this replaces them:")
        raise UsageError(
            f"{printable(str(directory), 300)} has other files of these names", reasons=existing, hint=hint
        )
    yield Started("examples copy", "", ())
    for each, text in texts.items():
        with refuse_os_errors(directory / each, "cannot be written"):
            directory.mkdir(parents=True, exist_ok=True)
            with replace_file(directory / each) as file:
                file.write(text.encode())
    answer = CopiedExampleAnswer(str(directory), tuple(texts), _suggest_command(path, directory / path.name))
    yield from finish_verb("examples copy", answer)


def _find_example(name: str) -> Path:
    path = find_by_name(name, "playbooks", "examples")
    if path is None:
        names = [_get_name(each) for each in list_bundled_files("playbooks", "examples")]
        close = get_close_matches(name, names, n=1)
        hint = advise("examples", *(["show", close[0]] if close else []))
        raise UsageError(f"there is no example {printable(name)}", hint=hint)
    return path


def _get_kind(path: Path) -> Literal["playbook", "example"]:
    return "playbook" if path.parent.name == "playbooks" else "example"


def _get_name(path: Path) -> str:
    """Returns what the file is called by: a playbook without its ending."""
    return path.stem if _get_kind(path) == "playbook" else path.name


def _collect_texts(path: Path) -> dict[str, str]:
    """File name → text: the file as it works in a directory of its own, and the examples that it needs."""
    neighbours = {each.name: each for each in list_bundled_files("examples")}
    text = path.read_text("utf-8")
    texts = {path.name: localize_playbook(text) if _get_kind(path) == "playbook" else text}
    waiting = [*list_needed_files(text, neighbours)]
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = neighbours[name].read_text("utf-8")
            waiting += list_needed_files(texts[name], neighbours)
    return texts


def _is_different(path: Path, text: str) -> bool:
    try:
        data = text.encode()
        return path.stat().st_size != len(data) or path.read_bytes() != data  # pipes and devices have no size
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _suggest_command(path: Path, copy: Path) -> str:
    """Returns what uses the copy: a playbook is played, a script run."""
    if _get_kind(path) == "playbook":
        words = ["play", str(copy)]
    elif path.suffix == ".py":
        words = ["run", str(copy)]
    elif path.suffix == ".yaml":
        words = ["run", "--launcher", "accelerate", "--accelerate-config", str(copy), "train.py"]
    else:
        words = ["hosts", "-f", str(copy)]
    return advise(*words)
