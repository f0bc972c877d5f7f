"""The command ``support``: one archive of a saved run, to send to those who help."""

from collections.abc import Callable
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.model.answers.saved import SupportAnswer
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Answer, Ended, FactsRead, Message, Started, Workflow
from ipexctl.model.json_values import to_json
from ipexctl.model.text import format_size, pluralize, printable
from ipexctl.store import event_json, support_archive
from ipexctl.store.debug_log import list_versions
from ipexctl.store.masking import Masker
from ipexctl.store.private_files import refuse_os_errors
from ipexctl.store.record import read_name
from ipexctl.store.support_archive import Preparation
from ipexctl.verbs.run.replay import find_saved_run, read_saved_run


def support(
    context: Context,
    word: str,
    target: str | None,
    *,
    with_output: bool = False,
    dry: bool = False,
    ask: Callable[[str], bool] | None = None,
) -> Workflow[None]:
    """Lists what of a saved run goes into its archive, then writes it, if ``ask`` agrees; without ``ask``, at once.
    Raises `UsageError` where that is not possible."""
    yield Started("support", "", ())
    directory = find_saved_run(context.state / "runs", word)
    name = f"ipexctl-support-{read_name(directory)}"
    path = Path(target or f"{name}.tar.gz")
    if path.exists() or path.is_symlink():
        raise UsageError(f"{printable(str(path), 400)} exists", reasons=["name another file with -o"], exit=Exit.STEP)
    with refuse_os_errors(directory, "cannot be read"):
        documents = _make_documents(directory, context.masker)
        preparation = support_archive.prepare_parts(directory, context.masker, documents, with_output=with_output)
    try:
        yield from _write_archive(preparation, path, name, dry=dry, ask=ask)
    finally:
        preparation.close()
    yield Ended("support", Exit.OK)


def _write_archive(
    preparation: Preparation, path: Path, name: str, *, dry: bool, ask: Callable[[str], bool] | None
) -> Workflow[None]:
    contents = preparation.list_contents()
    parts = tuple(prepared.part for prepared in preparation.parts)
    size = sum(part.bytes for part in parts)
    if dry:
        yield Answer(SupportAnswer(None, parts, preparation.left_out, None, True, contents))
        return
    yield Message(contents, code="contents")
    if any(part.name.startswith("ranks/") for part in parts):
        text = "what ranks printed is masked where a secret is known or looks like one: check it before you send it"
        yield Message(text, "warning", code="output-included")
    if ask is not None and not ask(f"Write {pluralize(len(parts), 'file')}, {format_size(size)}, to {path}?"):
        yield Message("nothing was written", code="declined")
        return
    with refuse_os_errors(path, "cannot be written"):
        packed = support_archive.write_archive(path, name, preparation)
    yield Answer(SupportAnswer(str(path), parts, preparation.left_out, packed))


def _make_documents(directory: Path, masker: Masker) -> dict[str, str]:
    """Members that are made of the record and of this installation."""
    facts = {}
    for stamped in read_saved_run(directory, masker):
        if isinstance(stamped.event, FactsRead):
            facts[stamped.event.host] = to_json(stamped.event.facts)
    documents = {"versions.json": list_versions(), "facts.json": facts}
    return {name: "".join(event_json.format_document(value)) + "\n" for name, value in documents.items() if value}
