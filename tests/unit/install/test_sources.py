"""Where wheels come from: the user's settings, platforms, logins. (Indexes themselves: integration/test_install.py.)"""

import io
import os
import select
import signal
import sys
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Literal

import pytest

from ipexctl.act.context import Context, Limits
from ipexctl.act.packages.download import hash_wheel, read_unpacked_size
from ipexctl.act.packages.resolve import (
    WheelTarget,
    build_wheel,
    choose_build_errors,
    find_uv,
    parse_pylock,
    resolve_wheels,
)
from ipexctl.act.packages.sources import Sources, find_pip_files, read_pip_settings
from ipexctl.decide.releases.resolve import resolve_stack
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Event
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.stack import Index, Stack, StackRequest
from ipexctl.model.tasks import Install
from ipexctl.model.text import strip_credentials
from ipexctl.model.wheels import Lock, Wheel
from ipexctl.protocol.session import SessionError
from ipexctl.remote.session.uv import build_uv_environment, run_uv
from ipexctl.verbs.common.probe import load_releases
from ipexctl.verbs.install.install import choose_downloader, install
from ipexctl.verbs.install.install_sessions import InstallJob
from ipexctl.verbs.install.lock import LockRequest, load_or_create_lock, read_sources
from tests import wheels
from tests.fakes import FakeOpener
from tests.tables import read_table
from tests.unit.test_read_record import MARKER
from tests.waiting import wait


def test_what_a_build_prints_takes_little_memory(tmp_path: Path) -> None:
    program = tmp_path / "uv"
    program.write_text("#!/bin/sh\nhead -c 50000000 /dev/zero | tr '\\0' x\necho; echo a.c:1: error: no\nexit 2\n")
    program.chmod(0o700)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="exit code 2") as caught:
            build_wheel(replace(find_uv(), path=str(program)), tmp_path, tmp_path / "cache", Sources())
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.reasons[-1] == "a.c:1: error: no"


def test_a_build_that_is_broken_off_leaves_nothing_running(tmp_path: Path) -> None:
    program, pipe = tmp_path / "uv", tmp_path / "pipe"
    os.mkfifo(pipe)  # without a writer once the build's own program has ended
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    program.write_text(f"#!/bin/sh\nsleep 60 >{pipe} &\nexec >{pipe}\necho >&1\nwait\n")
    program.chmod(0o700)
    tester = threading.get_ident()

    def is_waited_for() -> bool:
        return sys._current_frames()[tester].f_code is build_wheel.__code__

    def interrupt() -> None:
        assert select.select([reader], [], [], 60)[0]
        wait(is_waited_for)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        build_wheel(replace(find_uv(), path=str(program)), tmp_path, tmp_path / "cache", Sources())
    interrupter.join()
    os.set_blocking(reader, True)
    with open(reader, "rb") as file:
        assert file.read1() == b"\n"
        assert select.select([file], [], [], 10)[0], "the build's own program goes on"


def test_pips_files_and_variables_count_in_pips_own_order(tmp_path: Path) -> None:
    low, high = tmp_path / "low.conf", tmp_path / "high.conf"
    low.write_text("[global]\nindex-url = https://low.example/simple\nfind-links = /wheels\ncert = /ca.pem\n")
    high.write_text(
        "[global]\nindex_url = https://high.example/simple\n[install]\nextra-index-url =\n  https://a/\n  https://b/\n"
    )
    result = read_pip_settings({}, [low, high, tmp_path / "none"])
    assert result.index == "https://high.example/simple"
    assert result.extra == ("https://a/", "https://b/")
    assert result.find_links == ("/wheels",)
    assert (result.certificate, result.from_pip, result.no_index) == ("/ca.pem", True, False)
    assert read_pip_settings({"PIP_NO_INDEX": "y"}, []).no_index
    over = read_pip_settings({"PIP_INDEX_URL": "https://env.example/simple", "PIP_NO_INDEX": "1"}, [low, high])
    assert (over.index, over.no_index) == ("https://env.example/simple", True)


@pytest.mark.parametrize("name", ["index_url", "extra_index_url", "find_links"])
def test_what_is_no_url_is_refused(tmp_path: Path, name: str) -> None:
    """A playbook that named it ended the command with exit code 70."""
    url: Any = "http://[x/simple" if name == "index_url" else ("http://[x/simple",)
    with pytest.raises(UsageError, match="is no URL: Invalid IPv6 URL"):
        read_sources(Install(**{name: url}), Context(FakeOpener({}), tmp_path, tmp_path, environ={}))


def test_a_broken_file_of_pip_is_pips_to_complain_about(tmp_path: Path) -> None:
    bad = tmp_path / "bad.conf"
    bad.write_bytes(b"index-url = \xff no section\n")
    assert read_pip_settings({}, [bad]) == Sources()


def test_pip_can_be_configured_to_read_no_file() -> None:
    assert find_pip_files({"HOME": "/home/u", "PIP_CONFIG_FILE": "/dev/null"}) == []
    assert Path("/home/u/.config/pip/pip.conf") in find_pip_files({"HOME": "/home/u"})
    assert Path("/home/u/.config/pip/pip.conf") not in find_pip_files({"HOME": "/home/u", "PIP_CONFIG_FILE": __file__})


@pytest.mark.parametrize(("glibc", "name"), read_table("sources/wheels_are_chosen_for_the_oldest_glibc"))
def test_wheels_are_chosen_for_the_oldest_glibc(glibc: str, name: str) -> None:
    assert WheelTarget("3.11", glibc).platform == f"x86_64-manylinux_{name}"
    assert WheelTarget("3.11", glibc, "aarch64").platform == f"aarch64-manylinux_{name}"


def test_uv_is_configured_through_its_environment_never_by_arguments() -> None:
    sources = Sources("https://u:geheim@i/simple", ("https://x/",), ("/w", "https://page/"), from_pip=True)
    sources = replace(sources, environ={"UV_INDEX_URL": "https://old/", "UV_FIND_LINKS": "/mine"})
    env = sources.build_environment()
    assert env == {
        "UV_DEFAULT_INDEX": "https://u:geheim@i/simple",
        "UV_INDEX": "https://x/",
        "UV_FIND_LINKS": "/w,https://page/,/mine",
    }
    assert "geheim" not in " ".join(sources.list_names())


def test_uv_resolves_without_variables_that_it_does_not_need_and_reads_the_indexes() -> None:
    """It puts variables into what a stranger's wheel requires, and sent the logins of ~/.netrc there."""
    indexes = {
        "UV_INDEX": "own=https://n/ https://m/",
        "UV_FIND_LINKS": "/my wheels,https://p/",
        "UV_INDEX_OWN_PASSWORD": "x",
    }
    environ = {
        "HOME": "/h",
        "UV_INDEX_STRATEGY": "first-index",
        "HTTPS_PROXY": "http://u:p@proxy",
        "AWS_KEY": "x",
        "A_B": "c",
    }
    sources = Sources(
        "https://u:ge$heim@i/simple", ("https://x/ -e /x",), environ=environ | indexes, variables=("A_B",)
    )
    kept = {"HOME": "/h", "UV_INDEX_STRATEGY": "first-index", "https_proxy": "http://u:p@proxy", "A_B": "c"}
    assert sources.select_environment() == {**kept, "NETRC": os.devnull, "GIT_ALLOW_PROTOCOL": "none"}
    assert [*sources.list_options()] == [
        "--index-url https://u:ge%24heim@i/simple",
        *(f"--extra-index-url https://{place}" for place in ("x/%20-e%20/x", "n/", "m/")),
        "--find-links file:///my%20wheels",
        "--find-links https://p/",
    ]


SECRETS = ("TOKEN", "UV_INDEX_OWN_PASSWORD", "UV_INDEX", "HTTPS_PROXY")
VARIABLES = "".join(f"${{{name}}}" for name in SECRETS)


@pytest.mark.parametrize(
    ("need", "asked_for"), [(f"%s/files/x-1.0-py3-none-any.whl?{VARIABLES}", True), ("git+%s/x", False)]
)
def test_a_wheel_gets_no_variable_and_no_login_by_what_it_requires(tmp_path: Path, need: str, asked_for: bool) -> None:
    """A host's word, or a playbook, gave its address: its metadata took any variable of the user, and the login, and
    had git log in to any host with the user's keys."""
    asked = list[str]()

    def want_login(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        asked.append(f"{path} {handler.headers.get('Authorization')}")
        return "x" in path and wheels.require_login(path, client, handler)

    (tmp_path / ".netrc").write_text("default login user password geheim\n")
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], **dict.fromkeys(SECRETS, "http://u:geheim@h")}
    with wheels.serving(wheels.Index([], want_login)) as theirs:
        place = theirs.url.removesuffix("/simple")
        wheel = wheels.wheel("a", "1.0", {}, requires=(f"x @ {need % place}",))
        theirs.wheels.append(wheel)
        what = [f"a @ {place}/files/{wheel.filename}"]
        with pytest.raises(UsageError):
            resolve_wheels(find_uv(), what, WheelTarget("3.11", "2.28"), read_pip_settings(environ, []))
    assert [line for line in asked if "/x" in line] == [f"/files/x-1.0-py3-none-any.whl?{VARIABLES} None"] * asked_for


def test_uv_on_a_host_sends_no_login_of_the_accounts_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock file of somebody else named the address; where homes are shared, it is the user's own."""
    asked = list[str]()

    def want_login(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        asked.append(f"{handler.headers.get('Authorization')}")
        return wheels.require_login(path, client, handler)

    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("default login user password geheim\n")
    with wheels.serving(wheels.Index([], want_login)) as theirs:
        place = theirs.url.removesuffix("/simple")
        argv = [find_uv().path, "pip", "install", "--no-deps", "--python", sys.executable, "--target", str(tmp_path)]
        argv.append(f"x @ {place}/files/x-1.0-py3-none-any.whl")
        with pytest.raises(SessionError):
            run_uv(argv, build_uv_environment(str(tmp_path), str(tmp_path / "cache"), 10.0), None, 30.0, 60.0)
    assert set(asked) == {"None"}


def test_logins_come_from_the_index_urls_or_from_netrc(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine other.example login me password a/b\n")
    named = ("https://other.example:443/simple", "https://[", "https://a:b/")
    sources = Sources(index="https://u:p%40ss@host.example/simple", environ={"HOME": str(tmp_path)}, named=named)
    assert sources.find_login("https://host.example/files/x.whl") == "u:p%40ss"
    assert sources.find_login("http://host.example/files/x.whl") == ""
    assert sources.find_login("https://host.example.evil/x.whl") == ""
    assert sources.find_login("https://other.example/x.whl") == "me:a%2Fb"
    assert sources.add_login("https://other.example/x.whl") == "https://me:a%2Fb@other.example/x.whl"
    assert sources.add_login("https://host.example/x.whl") == "https://u:p%40ss@host.example/x.whl"
    assert sources.add_login("https://nobody.example/x.whl") == "https://nobody.example/x.whl"
    old, new = "#machine other.example login me password old\n", "machine other.example login me password new\n"
    (tmp_path / ".netrc").write_text(f"macdef init\n# a comment\nquit\n\n{old}{new}# {old} #c {old[1:]}")
    assert sources.find_login("https://other.example/x.whl") == "me:new", "what is commented out is no login"
    (tmp_path / ".netrc").write_bytes(b"machine other.example login me password p\xe4ss\n")
    assert sources.find_login("https://other.example/x.whl") == "", "a password in Latin-1 ended install with 70"


@pytest.mark.parametrize("kind", ["pipe", "zero", "hole"])
def test_settings_without_an_end_are_none(tmp_path: Path, kind: str) -> None:
    """A pipe was waited for, and what has no end was read until the memory was full."""
    path = tmp_path / ".netrc"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    sources = Sources(index="https://a.example/simple", named=("https://a.example/simple",))
    assert replace(sources, environ={"HOME": str(tmp_path)}).find_login("https://a.example/x.whl") == ""
    assert read_pip_settings({}, [path]) == Sources()


def test_no_login_is_sent_unencrypted_by_a_host_and_none_of_netrc_at_all(tmp_path: Path) -> None:
    """A lock file of somebody else named http: URLs of a mirror, and hosts sent the login in ~/.netrc in the clear."""
    (tmp_path / ".netrc").write_text("default login me password geheim\n")
    places = ("https://other.example", "http://127.0.0.1:80", "http://localhost:80", "http://[::1]:80")
    sources = Sources(index="http://u:p@mirror.example/simple", environ={"HOME": str(tmp_path)}, named=places)
    for url in ("http://mirror.example/x.whl", "http://other.example/x.whl", "http://10.0.0.7:8080/x.whl"):
        assert sources.add_login(url) == url
    assert sources.find_login("http://other.example/x.whl") == ""
    assert "over http:" in sources.explain_withheld_login("http://other.example/x.whl")
    assert sources.find_login("http://mirror.example/x.whl") == "u:p"  # the user's own index, as the user wrote it
    assert not sources.explain_withheld_login("http://mirror.example/x.whl")
    for place in places:
        assert sources.add_login(f"{place}/x.whl") == place.replace("://", "://me:geheim@") + "/x.whl"


def test_hosts_download_nothing_for_which_they_would_send_a_login_unencrypted(tmp_path: Path) -> None:
    def choose(way: Literal["auto", "controller", "hosts"], index: str) -> tuple[str, list[Event]]:
        wheel = Wheel("a", "1", "http://mirror.example/a-1-py3-none-any.whl", "0" * 64)
        context, task = Context(FakeOpener({}), tmp_path, tmp_path), Install(wheels_from=way)
        stack = resolve_stack(StackRequest(torch="2.8.0"), {}, load_releases())
        sources = Sources(index, environ={"HOME": str(tmp_path)})
        job = InstallJob(Inventory(()), context, {}, "/v", "", task, sources, stack, Lock((wheel,), "3.11", ""), {})
        events, workflow = list[Event](), choose_downloader(job)
        while True:
            try:
                events.append(next(workflow))
            except StopIteration as ended:
                return ended.value, events

    own = "http://u:geheim@mirror.example/simple"
    assert choose("auto", own)[0] == "controller"
    assert "geheim" not in repr(choose("auto", own)[1])
    assert choose("controller", own) == ("controller", [])
    assert choose("hosts", "http://mirror.example/simple") == ("hosts", [])
    with pytest.raises(UsageError, match=r"hosts would send the login of mirror\.example unencrypted") as refused:
        choose("hosts", own)
    assert refused.value.hint == "--wheels-from controller"


@pytest.mark.parametrize(("task", "environ", "by_playbook", "given"), read_table("sources/netrc_logins", frozen=True))
def test_a_login_of_netrc_goes_only_to_an_index_that_the_user_names(
    tmp_path: Path, task: dict[str, Any], environ: dict[str, str], by_playbook: bool, given: bool
) -> None:
    """A playbook of somebody else named the index and a host of its author, which got the login from ~/.netrc; with
    ``default`` in it the index got it as well."""
    (tmp_path / ".netrc").write_text("default login me password geheim\n")
    own = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, **environ}
    context = Context(FakeOpener({}), tmp_path, tmp_path, environ=own, by_playbook=by_playbook)
    stack = resolve_stack(StackRequest(torch="2.8.0"), {}, load_releases())
    request = LockRequest(Install(**task), stack, context)
    url = "https://corp.example/a-1-py3-none-any.whl"
    for sources in (request.sources, request.release_sources):
        assert sources.find_login(url) == ("me:geheim" if given else "")
        assert (sources.add_login(url) != url) is given
        assert bool(sources.explain_withheld_login(url)) is not given
        assert sources.select_environment()["NETRC"] == os.devnull  # uv would read it by itself


def test_uv_gets_the_login_of_an_index_that_the_user_names_beside_one_of_a_playbook(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("default login me password geheim\n")
    own, other = "https://corp.example/simple", "https://other.example/simple"
    sources = Sources(other, (own,), ("/w",), environ={"HOME": str(tmp_path)}, named=(own,))
    with_login = own.replace("://", "://me:geheim@")
    places = [f"--index-url {other}", f"--extra-index-url {with_login}", "--find-links file:///w"]
    assert [*sources.list_options()] == places


def test_messages_have_no_passwords() -> None:
    assert strip_credentials("https://u:p@host:8080/simple?x=1") == "https://host:8080/simple?x=1"
    assert strip_credentials("/a/directory") == "/a/directory"
    assert strip_credentials("https://u:p@ss@host/a?b=c@d") == "https://host/a?b=c@d"
    assert strip_credentials("error for https://u:p@h/x and http://t@k/") == "error for https://h/x and http://k/"


def test_a_lock_without_a_hash_or_without_a_wheel_is_refused_by_name() -> None:
    text = f"""
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "good"
version = "1"
wheels = [{{ url = "https://h/good-1-py3-none-any.whl", hashes = {{ sha256 = "{"a" * 64}" }} }}]
[[packages]]
name = "bad"
version = "2"
sdist = {{ url = "https://h/bad-2.tar.gz", hashes = {{ sha256 = "{"b" * 64}" }} }}
[[packages]]
name = "unsigned"
version = "3"
wheels = [{{ url = "https://h/unsigned-3-py3-none-any.whl", hashes = {{ md5 = "{"c" * 32}" }} }}]
"""
    with pytest.raises(UsageError) as caught:
        parse_pylock(text)
    assert caught.value.reasons == ("bad 2: no wheel with a sha256", "unsigned 3: no wheel with a sha256")


@pytest.mark.parametrize("strategy", ["", "unsafe-best-match"])
def test_a_name_comes_from_the_first_index_that_has_it_whatever_another_offers(tmp_path: Path, strategy: str) -> None:
    """Dependency confusion: somebody puts a higher version of an own package into the public index."""
    own, theirs = wheels.wheel("inhouse", "1.0", {}), wheels.wheel("inhouse", "99.0", {})
    table, pips = wheels.torch("2.8.0"), wheels.torch("2.8.0+theirs")
    environ = {"HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_INDEX_STRATEGY": strategy}
    with (
        wheels.serving(wheels.Index([theirs])) as public,
        wheels.serving(wheels.Index([own, pips])) as company,
        wheels.serving(wheels.Index([table])) as cpu,
    ):
        pip = read_pip_settings(environ | {"PIP_INDEX_URL": public.url, "PIP_EXTRA_INDEX_URL": company.url}, [])
        # As `_create_lock` adds the answering indexes of the table.
        sources = replace(
            pip, extra=(cpu.url, *pip.extra), environ={key: environ[key] for key in environ if environ[key]}
        )
        resolved = resolve_wheels(find_uv(), ["inhouse", "torch==2.8.0"], WheelTarget("3.11", "2.28"), sources)
    versions = {wheel.name: wheel.version for wheel in resolved}
    if strategy:
        assert versions["inhouse"] == "99.0"
        assert "each index can replace" in sources.find_dependency_confusion()
    else:
        assert versions == {"inhouse": "1.0", "torch": "2.8.0"}
        assert "extra-index-url" in sources.find_dependency_confusion()
    assert Sources().find_dependency_confusion() == ""


@dataclass
class Table:
    """A stack whose torch and IPEX are those of small indexes, locked with pip's further index beside them."""

    path: Path
    stack: Stack
    environ: dict[str, str]

    def lock(self, **task: Any) -> dict[str, Wheel]:
        places = self.path / "state", self.path / "cache"
        context = Context(FakeOpener({}), *places, environ=self.environ, limits=Limits(12.0, 1, 1.0))
        request = LockRequest(Install(**task), self.stack, context)
        workflow = load_or_create_lock(request)
        while True:
            try:
                next(workflow)
            except StopIteration as ended:
                _, lock = ended.value
                return {wheel.name: wheel for wheel in lock.wheels}


TORCH, IPEX = "torch", "intel-extension-for-pytorch"


@pytest.fixture
def pips() -> Iterator[wheels.Index]:
    """An index of pip's extra-index-url: higher versions of the release, and a package of the company."""
    theirs = [wheels.torch("2.8.0+theirs"), wheels.torch("1.13.0+theirs"), wheels.ipex("1.13.0+theirs")]
    with wheels.serving(wheels.Index([*theirs, wheels.wheel("inhouse", "1.0", {})])) as index:
        yield index


@pytest.fixture
def public() -> Iterator[wheels.Index]:
    """The default index, as a mirror has it."""
    release = [wheels.torch("2.8.0"), wheels.torch("1.13.0"), wheels.ipex("1.13.0"), wheels.numpy(), wheels.impi()]
    more = [wheels.impi("2021.13.1"), wheels.wheel("setuptools", "80.0.0", {})]
    with wheels.serving(wheels.Index([*release, *more])) as index:
        yield index


def make_table(path: Path, torch: str, default: str, further: str, *indexes: Index) -> Table:
    ipex = "1.13.0" if torch == "1.13.0" else None
    request = StackRequest("ipex" if ipex else "native", torch, ipex, backend="gloo")
    stack = replace(resolve_stack(request, {}, load_releases()), indexes=indexes, mpi="system")
    stack = replace(stack, pins=tuple(pin for pin in stack.pins if pin.startswith((TORCH, IPEX))))
    home = {"HOME": str(path), "PATH": os.environ["PATH"], "UV_CACHE_DIR": str(path / "uv"), "UV_NO_CONFIG": "1"}
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": further, "PIP_INDEX_URL": default}
    return Table(path, stack, home | pip)


CLOSED = "http://127.0.0.1:9/simple"


def test_a_release_is_not_taken_from_a_further_index(tmp_path: Path, pips: wheels.Index, public: wheels.Index) -> None:
    """torch 2.8.0 became 2.8.0+theirs: an index that did not answer was left out. The default one is next."""
    table = make_table(tmp_path, "2.8.0", public.url, pips.url, Index("torch-cpu", CLOSED, "index", (TORCH,)))
    locked = table.lock(with_=("inhouse",))
    assert (locked[TORCH].version, locked["inhouse"].version) == ("2.8.0", "1.0")
    assert locked[TORCH].url.startswith(public.url.removesuffix("/simple"))
    public.wheels[:] = [wheels.numpy()]
    with pytest.raises(UsageError) as refused:
        table.lock(upgrade=("numpy",))
    assert refused.value.sentence == f"{CLOSED}, the index of torch==2.8.0, does not answer"
    assert (refused.value.exit, "--extra-index-url MIRROR" in (refused.value.hint or "")) == (Exit.STEP, True)
    # Named on the command line, the same index is the user's word for this release.
    assert table.lock(extra_index_url=(pips.url,))[TORCH].version == "2.8.0+theirs"


def test_a_lock_takes_the_place_of_a_link(tmp_path: Path, pips: wheels.Index, public: wheels.Index) -> None:
    """In a project of somebody else ``install --lock`` wrote over the file of the user that a link led to."""
    file, link = tmp_path / "file", tmp_path / "ipexctl.lock"
    file.write_text("of the user")
    link.symlink_to(file)
    table = make_table(tmp_path, "2.8.0", public.url, pips.url)
    table.lock(lock=str(link))
    assert (file.read_text(), link.is_symlink(), '"torch"' in link.read_text()) == ("of the user", False, True)
    (remembered,) = (tmp_path / "cache/locks").iterdir()
    for place in ("nowhere/lock", "cache"):  # which was exit 70
        with pytest.raises(UsageError, match=r"cannot be written: (no such file|is a dir)"):
            table.lock(lock=str(tmp_path / place))
    remembered.unlink()
    remembered.mkdir()
    with pytest.raises(UsageError, match="cannot be written: is a dir"):
        table.lock()


def test_no_login_of_a_requirement_is_in_a_lock_file_or_in_an_environment(
    tmp_path: Path, pips: wheels.Index, public: wheels.Index
) -> None:
    """Every user of a host could read the password in ipexctl.json, and whoever got the lock file in that."""
    (wheel,) = (each for each in pips.wheels if each.project == "inhouse")
    url = f"{pips.url.removesuffix('/simple')}/files/{wheel.filename}"
    text = f"inhouse @ {url.replace('://', '://me:geheim@')}"
    file = tmp_path / "ipexctl.lock"
    locked = make_table(tmp_path, "2.8.0", public.url, pips.url).lock(with_=(text,), lock=str(file))
    assert "me:geheim@" in locked["inhouse"].url, "it is downloaded with it"
    assert (url in file.read_text(), "geheim" in file.read_text()) == (True, False)
    assert not [path for path in tmp_path.rglob("*.json") if "geheim" in path.read_text()]
    assert replace(MARKER, requested=(text,)).requested == (f"inhouse @ {url}",)


def test_a_password_in_a_requirements_file_is_masked_whatever_should_have_been_quoted_in_it(tmp_path: Path) -> None:
    """uv repeats a line that it cannot read, with all of a URL whose password has a slash."""
    (tmp_path / "r.txt").write_text("inhouse @ http://me:geheim/x1@127.0.0.1:9/inhouse-1.0-py3-none-any.whl\n")
    task = Install(requirements=(f"{tmp_path}/r.txt",), index_url=CLOSED)
    stack = make_table(tmp_path, "2.8.0", CLOSED, CLOSED).stack
    context = Context(FakeOpener({}), tmp_path, tmp_path, environ={"PATH": os.environ["PATH"]})
    with pytest.raises(UsageError) as raised:
        [*load_or_create_lock(LockRequest(task, stack, context))]
    assert "geheim" in str(raised.value.reasons)
    assert "geheim" not in context.masker.mask_text(str(raised.value.reasons))
    task = Install(with_=("inhouse @ http://me:geheim/x2@127.0.0.1:9/inhouse-1.0-py3-none-any.whl",))  # a playbook's
    started = next(install(task, Inventory((Host("a", "a"),), ""), context))
    assert ("geheim" in str(started), "geheim" in str(context.masker.mask_value(started))) == (True, False)


def test_an_index_gets_no_variable_by_the_address_of_a_wheel(
    tmp_path: Path, pips: wheels.Index, public: wheels.Index
) -> None:
    """uv was asked for exactly that wheel, and put the variable into its address."""
    torch = public.wheels[0]
    link = f'<a href="/files/{torch.filename}?x=${{TOKEN}}#sha256={torch.sha256}">{torch.filename}</a>'

    def give_link(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
        wanted = path.startswith(f"/files/{torch.filename}?")
        if path == "/simple/torch/" or wanted:
            wheels.reply(handler, 200, torch.data if wanted else link.encode())
        return path == "/simple/torch/" or wanted

    public.misbehave = give_link
    table = make_table(tmp_path, "2.8.0", public.url, pips.url, Index("torch-cpu", CLOSED, "index", (TORCH,)))
    table.environ["TOKEN"] = "geheim"
    assert table.lock()[TORCH].version == "2.8.0"
    assert [each for each in public.asked if "TOKEN" in each[1]]
    assert not [each for each in public.asked if "geheim" in each[1]]


@pytest.mark.parametrize("way", ["index_url", "extra_index_url", "pip"])
def test_a_mirror_of_the_user_has_the_release_where_its_own_index_does_not_answer(
    tmp_path: Path, pips: wheels.Index, public: wheels.Index, way: str
) -> None:
    cpu = Index("torch-cpu", CLOSED, "index", (TORCH,))
    with wheels.serving(wheels.Index([wheels.torch("2.8.0+cpu")])) as mirror:
        table = make_table(tmp_path, "2.8.0", mirror.url if way == "pip" else public.url, pips.url, cpu)
        task = {"index_url": mirror.url, "extra_index_url": (mirror.url,)}
        locked = table.lock(**{way: task[way]} if way in task else {})
    assert locked[TORCH].version == "2.8.0+cpu"


def test_a_page_is_not_mixed_with_indexes(tmp_path: Path, pips: wheels.Index, public: wheels.Index) -> None:
    """1.13.0+theirs of any further index was higher than 1.13.0 of Intel's page."""
    own = wheels.fill(tmp_path / "page", [wheels.ipex("1.13.0+cpu")])
    page = Index("intel-2023", own.as_uri(), "find-links", (IPEX, "oneccl-bind-pt"))
    with wheels.serving(wheels.Index([wheels.torch("1.13.0+cpu")])) as cpu:
        table = make_table(
            tmp_path, "1.13.0", public.url, pips.url, Index("torch-cpu", cpu.url, "index", (TORCH,)), page
        )
        table.stack = replace(table.stack, release=replace(table.stack.release, oneccl="1.13.0"))
        locked = table.lock(with_=("inhouse",))
        assert {name: wheel.version for name, wheel in locked.items()} == {
            TORCH: "1.13.0+cpu",
            IPEX: "1.13.0+cpu",
            "inhouse": "1.0",
        }
        (own / "intel_extension_for_pytorch-1.13.0+cpu-py3-none-any.whl").unlink()
        assert table.lock(upgrade=("x",))[IPEX].version == "1.13.0"  # the page has none: the default index is next


def test_a_package_of_which_only_the_source_fits_is_named_and_that_nothing_is_built(tmp_path: Path) -> None:
    for name, version in {"inhouse": "1.0", "app": "0.1", "older": "1.0"}.items():
        with tarfile.open(tmp_path / f"{name}-{version}.tar.gz", "w:gz") as archive:
            info = tarfile.TarInfo(f"{name}-{version}/PKG-INFO")
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    # The newest release of app has a wheel and needs what has none; so does an old one, and the oldest has none itself.
    needs = {"0.2": "older==1.0", "0.3": "inhouse"}
    wheels.fill(tmp_path, [wheels.wheel("app", version, {}, requires=(name,)) for version, name in needs.items()])
    sources = Sources(find_links=(tmp_path.as_uri(),), no_index=True, environ={"UV_CACHE_DIR": str(tmp_path / "uv")})
    for requirement in ("inhouse", "App>0"):
        with pytest.raises(UsageError) as refused:
            resolve_wheels(find_uv(), [requirement], WheelTarget("3.11", "2.28"), sources)
        assert refused.value.sentence == "inhouse has no fitting wheel, only its source, and nothing is built"
        assert refused.value.hint == "ipexctl install --build inhouse"
    with pytest.raises(UsageError, match="cannot be resolved"):
        resolve_wheels(find_uv(), ["nowhere"], WheelTarget("3.11", "2.28"), sources)


def test_what_others_put_beside_wheels_is_none(tmp_path: Path) -> None:
    """A name that is no text was exit 70, a hole of a terabyte was hashed for an hour, and a wheel may go meanwhile."""
    place = wheels.fill(tmp_path / "wheels", [wheels.wheel("inhouse", "1.0", {})])
    for name in ("\udcff-1-py3-none-any.whl", "\udcff-1.tar.gz", "inhouse-2.0-py3-none-any.whl"):
        (place / name).touch()
    os.truncate(place / "inhouse-2.0-py3-none-any.whl", 1 << 40)
    os.mkfifo(place / "inhouse-3.0-py3-none-any.whl")
    (place / "inhouse-4.0-py3-none-any.whl").symlink_to("/dev/zero")
    sources = Sources(find_links=(place.as_uri(),), no_index=True, environ={"UV_CACHE_DIR": str(tmp_path / "uv")})
    (found,) = resolve_wheels(find_uv(), ["inhouse"], WheelTarget("3.11", "2.28"), sources)
    assert found.version == "1.0"
    assert [hash_wheel(each) != "" for each in sorted(place.glob("inhouse*"))] == [True, False, False, False]
    assert hash_wheel(place / "gone") == ""


def test_the_conflict_at_the_end_of_a_long_explanation_is_shown(tmp_path: Path) -> None:
    """uv explains every release; the requirement that no release fits stands in its last line."""
    found = [wheels.wheel("inhouse", f"{n}.0", {}, requires=(f"part{n}<{n}", f"other{n}>1")) for n in range(1, 9)]
    found += [wheels.wheel(f"part{n}", "9.0", {}) for n in range(1, 9)]
    found += [wheels.wheel(f"other{n}", "1.0", {}) for n in range(1, 9)]
    fill = wheels.fill(tmp_path / "wheels", found)
    sources = Sources(find_links=(fill.as_uri(),), no_index=True, environ={"UV_CACHE_DIR": str(tmp_path / "uv")})
    with pytest.raises(UsageError) as refused:
        resolve_wheels(find_uv(), ["inhouse", "part1"], WheelTarget("3.11", "2.28"), sources)
    assert "…" in refused.value.reasons
    assert "your requirements are unsatisfiable" in refused.value.reasons[-2]
    assert len(refused.value.reasons) <= 9


def test_a_place_that_is_named_twice_is_shown_once() -> None:
    assert Sources(find_links=("/wheels", "/wheels"), no_index=True).list_names() == ("/wheels",)


def test_the_errors_of_a_compiler_stand_before_the_traceback_of_what_started_it() -> None:
    noise = [f"-- Check {number}" for number in range(40)]
    errors = ["CMake Error at CMakeLists.txt:299 (add_subdirectory):", "The source directory x is empty.", "more"]
    compiler = ["/src/a.cc:12:10: fatal error: torch.h: No such file or directory", "12 | #include <torch.h>"]
    trace = [f'File "b{number}.py", line 1, in run' for number in range(8)]
    assert choose_build_errors([*noise, *errors, *noise, *compiler, *trace]) == [*errors[:2], *compiler, *trace]
    assert choose_build_errors(errors) == errors


def test_a_list_of_files_without_an_end_is_not_read(tmp_path: Path) -> None:
    """An index may have a wheel of which this takes gigabytes of memory: 44 MiB took 388 and 20 s."""
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a.py", "x" * 1000)
    assert read_unpacked_size(wheel) == 1000
    long = zipfile.ZipInfo("b.py")
    long.comment = bytes(60_000)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(long, "x")
        archive.filelist += [long] * 300  # of which it writes the list
    assert (wheel.stat().st_size >> 20, read_unpacked_size(wheel)) == (17, 0)


@pytest.mark.parametrize(("mode", "own"), [(None, True), (0o700, True), (0o775, True), (0o777, False)])
def test_a_cache_of_uv_that_everybody_can_write_is_not_used(mode: int | None, own: bool, tmp_path: Path) -> None:
    """uv takes what it finds unpacked there, whatever its hash, and executes it where it builds."""
    cache, environ = tmp_path / ".cache/uv", {"HOME": str(tmp_path)}
    if mode:
        cache.mkdir(parents=True)
        cache.chmod(mode)
    for env in (Sources(environ=environ).select_environment(), Sources(environ=environ).build_environment()):
        assert env.get("UV_CACHE_DIR") == (None if own else str(tmp_path / ".cache/ipexctl/uv-cache"))
