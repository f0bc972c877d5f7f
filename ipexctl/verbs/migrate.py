"""``ipexctl migrate``: lists a script's uses of IPEX and oneCCL with their replacements."""

import os
from contextlib import suppress
from pathlib import Path

from ipexctl.act.inputs import read_input
from ipexctl.data import read_data
from ipexctl.decide import migration
from ipexctl.decide.launch.launch_line import find_launches_of_file, translate_found, translate_line
from ipexctl.decide.launch.launch_script import FoundLaunch
from ipexctl.decide.launch.launch_table import parse_launch_table
from ipexctl.decide.launch.launch_words import Translation
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.decide.script_imports import Module, list_project_modules, parse_import_table
from ipexctl.model.answers.tools import MigrateAnswer
from ipexctl.model.errors import UsageError, advise
from ipexctl.model.events import Started, Workflow, finish_verb
from ipexctl.model.text import printable
from ipexctl.verbs.files.project import find_project, make_finder


class LaunchLines:
    """Finds and translates launch lines; batch files and hostfiles that they name are looked up in ``cwd``."""

    def __init__(self, cwd: Path = Path()) -> None:
        self.table, self.cwd = parse_launch_table(read_data("launchers.toml")), cwd

    def find(self, text: str, file: str) -> list[FoundLaunch]:
        return find_launches_of_file(text, file, self.table)

    def translate(self, launch: FoundLaunch) -> Translation:
        """Returns what takes the place of one in its file. Raises `UsageError`, or `ValueError` for open quotes."""
        return translate_found(launch, self.table, self._read)

    def translate_line(self, line: str) -> Translation:
        """Returns what a line alone becomes. Raises as `translate`."""
        return translate_line(line, self.table, self._read)

    def try_line(self, line: str) -> Translation | None:
        """Returns what a line alone becomes; None for what cannot be translated."""
        with suppress(UsageError, ValueError):
            return self.translate_line(line)
        return None

    def _read(self, name: str) -> str:
        return read_input(name, cwd=self.cwd).text


def migrate(file: str) -> Workflow[None]:
    """Yields a `MigrateAnswer` with the uses in ``file``."""
    if Path(file).is_dir():
        first = next(iter(sorted(Path(file).glob("*.py"))), None)
        hint = advise("migrate", str(first), text="one file at a time:") if first else None
        raise UsageError(f"{printable(file, 300)} is a directory", hint=hint)
    if " " in file and not Path(file).exists() and LaunchLines().try_line(file):
        words = ("--dry-run", "--from-mpirun", file)
        raise UsageError(f"{printable(file, 300)} is a launch line, and no file", hint=advise("run", *words))
    text, imported = read_input(file).text, dict[str, int]()
    changed_options = migration.list_rules_of_retired_options(parse_options(read_data("options.toml")))
    rules = (*migration.parse_rules(read_data("migrate.toml")), *changed_options)
    uses = migration.find_uses(text, file, rules, LaunchLines(Path(file).parent))
    for module in _find_imported(Path(file), text) if file.endswith(".py") else ():
        with suppress(UsageError):  # what is no Python of today
            if count := len(migration.find_uses(module.code, module.name, rules, LaunchLines())):
                imported[module.name] = count
    yield Started("migrate", file, ())
    report = migration.format_report(uses, file, imported)
    yield from finish_verb("migrate", MigrateAnswer(file, uses, report, imported))


def _find_imported(file: Path, text: str) -> list[Module]:
    """The files of the project that a script imports, and those that they import, as they are called from here."""
    project, table = find_project(file, None), parse_import_table(read_data("imports.toml"))
    modules = list_project_modules(Module("", "", text), make_finder(file.parent, project), table)
    return [module._replace(name=os.path.relpath(project.root / module.name)) for module in modules]
