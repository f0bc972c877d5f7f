"""Requirements that name no package of an index: local projects, repositories, archives of sources, paths of wheels.

Hosts build nothing: what would have to be built is refused before a host is contacted, but for the user's own projects,
of which ``install --with`` builds wheels on the controller."""

import re
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as PackageRequirement
from packaging.utils import canonicalize_name

from ipexctl.model.json_values import Record

_NAMED = re.compile(r"([A-Za-z0-9][\w.-]*(?:\s*\[[^]]*\])?)\s*@\s*(.+)", re.DOTALL)
_EXTRAS = re.compile(r"(?<!\s)\s*\[[^][]*\]\s*$")
_MARKER = re.compile(r"(?<!\s)\s+;\s*|;\s+|(?<!\s)\s+(?=--)")
_REPOSITORY = re.compile(r"(?:git|hg|svn|bzr)\+", re.IGNORECASE)
_SOURCES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip", ".whl")
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*?)(?:[=\s]\s*|(?<=^-[rce]))(.*)")
_EGG = re.compile(r"[#&]egg=([\w.-]+)")


class Requirement(Record):
    """One requirement, and where it was written: ``--with``, or ``list.txt:3``. ``editable``: behind ``-e``."""

    text: str
    place: str
    editable: bool = False

    @property
    def _parts(self) -> tuple[str, str, str]:
        """The name before an ``@``, and the target with its extras, without a marker; and the marker."""
        text, _, marker = _MARKER.sub("\n", self.text.strip(), count=1).partition("\n")
        named = None if _REPOSITORY.match(text) else _NAMED.fullmatch(text)
        return (named[1], named[2].strip(), marker) if named else ("", text, marker)

    @property
    def target(self) -> str:
        """The path or URL that it names, without extras and markers; empty where it names a package of an index."""
        name, target, _ = self._parts
        path = _EXTRAS.sub("", target)
        is_path = path.startswith((".", "/", "~")) or re.search(r"/|:\S", path) or path.lower().endswith(_SOURCES)
        return path if self.editable or name or is_path else ""

    @property
    def name(self) -> str:
        """The package, as far as the text tells; empty if it does not."""
        name, target, _ = self._parts
        egg = _EGG.search(target)
        return canonicalize_name(_EXTRAS.sub("", name).strip() or (egg[1] if egg else ""))

    @property
    def extras(self) -> str:
        """Its extras, in brackets."""
        name, target, _ = self._parts
        match = _EXTRAS.search(name or target)
        return match[0].strip() if match else ""

    @property
    def marker(self) -> str:
        """On which systems it is meant."""
        return self._parts[2].strip()

    @property
    def fault(self) -> str:
        """Why it is no requirement, as of a file of another format; empty where it is one, or names a path or URL, and
        of an option, which is refused with the other options."""
        if self.target or self.text.lstrip().startswith("-"):
            return ""
        try:
            # Without pip's options behind it.
            parse_package(re.sub(r"(?<!\s)\s+--?\w.*", "", self.text, flags=re.DOTALL))
        except InvalidRequirement as error:
            return str(error).partition("\n")[0]
        return ""

    @property
    def is_wheel(self) -> bool:
        """Whether it is a file that can be installed as it is."""
        return not self.editable and re.sub(r"[#?].*", "", self.target).lower().endswith(".whl")

    @property
    def is_relative(self) -> bool:
        """Whether its path starts at the current directory."""
        target = self.target
        return bool(target) and not target.startswith(("/", "~")) and not re.match(r"[A-Za-z][A-Za-z+.-]*:", target)

    @property
    def kind(self) -> str:
        """What would have to be built; empty where nothing would."""
        target = self.target
        if not target or self.is_wheel:
            return ""
        if _REPOSITORY.match(target):
            return "a repository"
        is_archive = re.sub(r"[#?].*", "", target).lower().endswith(_SOURCES)
        local = self.is_relative or target.startswith(("/", "~")) or target.lower().startswith("file:")
        if is_archive:
            return "an archive of sources"
        return "a local project" if local else ""


def parse_package(text: str) -> PackageRequirement:
    """Returns the requirement of a package. Raises `InvalidRequirement` for what is none."""
    try:
        return PackageRequirement(text)
    except RecursionError:
        raise InvalidRequirement("its marker is nested too deeply") from None


def names_place(requirement: str) -> bool:
    """Returns whether a requirement names a URL or a path, not a package of an index."""
    try:
        return bool(parse_package(requirement).url)
    except InvalidRequirement:
        return True


def parse_requirements(text: str, place: str) -> Iterator[Requirement | str]:
    """Yields the requirements of a file's text, and the names of the files that it includes (``-r``)."""
    number, joined, first = 0, "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        first = first if joined else number
        words, *comment = re.split(r"(?:^|\s)#", raw, maxsplit=1)
        joined += words
        if joined.endswith("\\") and not comment:  # to uv a comment ends with its line, whatever that ends with
            joined = joined[:-1]
            continue
        line, joined = joined.strip(), ""
        option = _OPTION.fullmatch(line)
        name, value = (option[1], option[2].strip().strip("'\"")) if option else ("", line)
        if name in ("-r", "--requirement"):
            yield value
        elif line and (not line.startswith("-") or name in ("-e", "--editable")):
            yield Requirement(value, f"{place}:{first}", bool(name))
