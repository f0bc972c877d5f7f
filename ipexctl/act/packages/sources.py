"""Where wheels come from: package indexes and directories, as uv, pip and the user configure them.

uv reads its own configuration itself; that of pip is translated here. URLs may carry a user name and a password; those
reach uv through its standard input, or its environment, never through an argument list or a message."""

import configparser
import netrc
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, urlsplit

from ipexctl.act.context import Limits
from ipexctl.act.inputs import expand_home
from ipexctl.model.json_values import Record, field
from ipexctl.model.text import strip_credentials
from ipexctl.store.private_files import belongs_to_others

_FILE_LIMIT = 1 << 20  # of pip's configuration and ~/.netrc, which is read for each URL
_UV_SOURCES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_UV_VARIABLE = re.compile(
    r"(?:UV|SSL|XDG|LC|LD|DYLD)_(?!\w*(?:USERNAME|PASSWORD|TOKEN))\w+|HOME|PATH|TMPDIR|USER|LOGNAME|LANG|PYTHONHOME"
    r"|DBUS_SESSION_BUS_ADDRESS"  # of its keyring
)


class Sources(Record):
    """Where wheels may come from, and how patiently. ``index`` None is the default package index; ``no_index`` forbids
    any index. ``environ`` has proxies and further settings of the user. Only the first index that has a package is used
    for it: ``extra`` in order, those of the version table first, then ``index``. ``from_pip``: some of ``extra`` are
    pip's, to which all indexes are alike. Of ``preferred`` packages these versions are taken as long as the
    requirements permit. Logins of ~/.netrc go to those indexes alone that the user's own configuration or command line
    names, ``named``: not to one that a playbook or a lock file of somebody else names. ``variables``: those that the
    requirements name, which uv puts into them."""

    index: str | None = None
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    from_pip: bool = False
    certificate: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    preferred: Mapping[str, str] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    def build_environment(self) -> dict[str, str]:
        """``environ`` with these sources in uv's variables, for a build of the user's own."""
        env = dict(self.environ)
        if self.index:
            env.pop("UV_INDEX_URL", None)
            env["UV_DEFAULT_INDEX"] = self.index
        if self.extra:
            env["UV_INDEX"] = " ".join([*self.extra, *env.get("UV_INDEX", "").split()])
        if self.find_links:
            env["UV_FIND_LINKS"] = ",".join([*self.find_links, *filter(None, [env.get("UV_FIND_LINKS", "")])])
        return self._add_places(env)

    def select_environment(self) -> dict[str, str]:
        """Returns the variables that uv needs to resolve. It puts any that it gets into the addresses that the metadata
        of a stranger's wheel names, and would send a login of ~/.netrc to each of them."""
        env = {name.lower(): value for name, value in self.environ.items() if name.lower().endswith("_proxy")}
        given = {name: value for name, value in self.environ.items() if name in self.variables or _is_for_uv(name)}
        # No package comes from a repository; git would log in to it with the user's keys.
        return self._add_places({**env, **given, "NETRC": os.devnull, "GIT_ALLOW_PROTOCOL": "none"})

    def list_options(self) -> Iterator[str]:
        """Yields the lines of uv's standard input that name these sources and those of its variables, with logins."""
        env = self.environ
        default = self.index or env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL", "")
        extra = (*self.extra, *env.get("UV_INDEX", "").split(), *env.get("UV_EXTRA_INDEX_URL", "").split())
        links = (*self.find_links, *env.get("UV_FIND_LINKS", "").split(","))
        for option, places in (("--index-url", (default,)), ("--extra-index-url", extra), ("--find-links", links)):
            for place in filter(None, places):
                url = re.sub(r"^\w[\w.-]*=", "", place)
                url = _put_login(url, self.find_login(url)) if "://" in url else Path(os.sep, url).as_uri()
                text = re.sub(r"[\s$]", lambda match: quote(match[0]), url)  # one word, without a variable
                yield f"{option} {text}"

    def _add_places(self, env: dict[str, str]) -> dict[str, str]:
        """Adds the certificate, and a cache of ours where another user can have put something into uv's own: uv takes
        what it finds unpacked there, and executes it where it builds."""
        usual = find_uv_cache(env)
        if not env.get("UV_CACHE_DIR") and belongs_to_others(usual):
            env["UV_CACHE_DIR"] = str(usual.with_name("ipexctl") / "uv-cache")
        return {"SSL_CERT_FILE": self.certificate, **env} if self.certificate else env

    def find_dependency_confusion(self) -> str:
        """What the user should know where packages of one name may come from several indexes; empty otherwise."""
        strategy = self.environ.get("UV_INDEX_STRATEGY", "")
        if strategy in {"unsafe-best-match", "unsafe-first-match"}:
            return f"UV_INDEX_STRATEGY={strategy}: each index can replace the packages of the others"
        order = "pip's extra-index-url comes before the default index: what it has is taken from nowhere else"
        return order if self.from_pip else ""

    def find_login(self, url: str) -> str:
        """``user:password`` for this URL, from one of the index URLs or, of an index that the user names, ``~/.netrc``,
        else empty. (uv removes them from the URLs of a lock.) One of ``~/.netrc`` names no protocol, and is not
        sent unencrypted: a lock file of somebody else can name any ``http:`` URL of a known host."""
        for known in map(urlsplit, (url, self.index or "", *self.extra, *self.find_links)):
            if known.username and _get_origin(known.geturl()) == _get_origin(url):
                return f"{known.username}:{known.password or ''}"
        named = _get_origin(url) in map(_get_origin, self.named)
        return "" if is_unencrypted(url) or not named else self._find_netrc_login(url)

    def _find_netrc_login(self, url: str) -> str:
        host = urlsplit(url).hostname or ""
        try:
            file = self.environ.get("NETRC") or str(Path(self.environ.get("HOME", "/")) / ".netrc")
            entry = _Netrc(file).authenticators(host) if _is_small_file(Path(file)) else None
        except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
            return ""
        return f"{quote(entry[0], safe='')}:{quote(entry[2] or '', safe='')}" if entry and host else ""

    def explain_withheld_login(self, url: str) -> str:
        """Why a login that ``~/.netrc`` has for this URL is not sent; empty where it is, or has none."""
        if self.find_login(url) or not self._find_netrc_login(url):
            return ""
        if is_unencrypted(url):
            return "the login in ~/.netrc is not sent over http:"
        return "the login in ~/.netrc is not sent: neither your configuration nor the command line names this index"

    def add_login(self, url: str) -> str:
        """Returns the URL with its user name and password, for a host that downloads it itself; without them where the
        host would send them unencrypted."""
        return url if is_unencrypted(url) else _put_login(url, self.find_login(url))

    def list_names(self) -> tuple[str, ...]:
        """Returns the sources for messages: each once, without user names and passwords."""
        indexes = [] if self.no_index else [*self.extra, self.index or "the default package index"]
        return tuple(dict.fromkeys(map(strip_credentials, (*self.find_links, *indexes))))


class _Netrc(netrc.netrc):
    """Reads a file as curl does, without its comments, in which Python's parser reads on behind the first word."""

    def _parse(self, file: str, fp: Iterable[str], default_netrc: bool) -> None:
        lines = StringIO("".join(line for line in fp if not line.lstrip().startswith("#")))
        super()._parse(file, lines, default_netrc)  # type: ignore[misc]


def read_pip_settings(environ: Mapping[str, str], files: Iterable[Path] | None = None) -> Sources:
    """Returns the sources in pip's configuration: files first, PIP_* variables override them (pip's own order). Those
    in variables of uv are named by the user, too."""
    settings: dict[str, str] = {}
    for path in find_pip_files(environ) if files is None else files:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(path.read_text(encoding="utf-8") if _is_small_file(path) else "", source=str(path))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue  # pip ignores a missing file, and reports a damaged one itself
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update({key.replace("_", "-"): value for key, value in parser.items(section)})
    for key, value in environ.items():
        if key.startswith("PIP_") and value:
            settings[key[4:].lower().replace("_", "-")] = value
    extra = tuple(settings.get("extra-index-url", "").split())
    links = settings.get("find-links", "").split()
    own = [url for name in _UV_SOURCES for url in re.split(r"[ ,]|\w+=(?=http)", environ.get(name, ""))]
    return Sources(
        index=settings.get("index-url", "").strip() or None,
        extra=extra,
        find_links=tuple(link if "://" in link else str(expand_home(link).absolute()) for link in links),
        no_index=settings.get("no-index", "").strip().lower() in {"1", "true", "yes", "on", "y", "t"},
        from_pip=bool(extra),
        certificate=settings.get("cert", "").strip() or None,
        environ=environ,
        named=tuple(filter(None, (settings.get("index-url", "").strip(), *extra, *links, *own))),
    )


def _is_small_file(path: Path) -> bool:
    """Returns whether a file of settings can be read: a pipe would be waited for, others have no end."""
    return path.is_file() and path.stat().st_size <= _FILE_LIMIT


def find_pip_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, lowest first: site-wide, the user's, or in its place that of PIP_CONFIG_FILE."""
    home = Path(environ.get("HOME", "/"))
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    places = environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    site = [Path(place) / "pip" / "pip.conf" for place in places if place]
    user = [home / ".pip" / "pip.conf", Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"]
    own = [] if named and Path(named).exists() else user
    return [*site, Path("/etc/pip.conf"), *own, Path(sys.prefix) / "pip.conf", *([Path(named)] if named else [])]


def _get_origin(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:  # an address or a port that is none
        return url, None, None


def _is_for_uv(variable: str) -> bool:
    return variable not in _UV_SOURCES and bool(_UV_VARIABLE.fullmatch(variable))


def _put_login(url: str, login: str) -> str:
    return url.replace("://", f"://{login}@", 1) if login and not urlsplit(url).username else url


def is_unencrypted(url: str) -> bool:
    """Returns whether others on the network see what is sent to this URL: it is ``http:``, and not on this machine."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname == "localhost":
        return False
    try:
        return not ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True


def find_uv_cache(env: Mapping[str, str]) -> Path:
    """Returns uv's cache by its variables."""
    above = env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "/"), ".cache")
    return Path(env.get("UV_CACHE_DIR") or Path(above, "uv"))
