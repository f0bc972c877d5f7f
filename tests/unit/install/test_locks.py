"""A lock file can come from anybody: what is wrong in form becomes no wheel, and nothing is contacted or written."""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipexctl.act.context import Context
from ipexctl.act.packages.download import locate_wheel
from ipexctl.act.packages.resolve import load_lock, parse_pylock, save_lock
from ipexctl.decide.planning.install import format_pylock
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.hosts import Host, Inventory, Link
from ipexctl.model.json_values import parse_json, to_json
from ipexctl.model.tasks import Install
from ipexctl.model.wheels import Lock, Wheel
from ipexctl.verbs.install.install import install
from ipexctl.verbs.install.lock import add_other_arch, read_lock
from ipexctl.verbs.install.wheels import _link_or_copy
from tests.tables import read_table

FOLDER = "https://host.example/files/"
NAME = "torch-2.8.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
GOOD: dict[str, Any] = {
    "name": "torch",
    "version": "2.8.0+cpu",
    "url": FOLDER + quote(NAME),
    "sha256": "0a" * 32,
    "size": 7,
}
HOSTILE: dict[str, dict[str, Any]] = dict(read_table("locks/hostile"))


def lock_file(**changes: Any) -> dict[str, Any]:
    return {"ipexctl": "lock", "python": "3.11", "inputs": "0f" * 12, "mpi": "", "notes": [], **changes}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Nowhere:
    """Opens no host."""

    def open(self, host: Host) -> Link:
        raise AssertionError(f"{host.name} was contacted")

    def close(self) -> None:
        pass


def refuse_lock(path: Path, text: str | bytes, **wish: Any) -> UsageError:
    """How an install with this lock file is refused; nothing may have been contacted or written."""
    lock = path / "ipexctl.lock"
    lock.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = tree(path)
    context = Context(Nowhere(), path / "state", path / "cache", environ={"HOME": str(path)})
    task = Install(lock=str(lock), locked=True, **wish)
    with pytest.raises(UsageError) as refused:
        list(install(task, Inventory((Host("node0", "node0"),)), context))
    assert refused.value.exit == Exit.INPUT
    assert tree(path) == before
    assert "\n" not in refused.value.sentence
    return refused.value


def test_the_good_lock_of_these_tests_is_one() -> None:
    lock = parse_json(Lock, json.dumps(lock_file(wheels=[GOOD])))
    assert lock.wheels == (Wheel(**GOOD),)
    assert lock.wheels[0].filename == NAME
    assert {(tag.interpreter, tag.abi) for tag in lock.wheels[0].tags} == {("cp311", "cp311")}
    assert parse_json(Lock, json.dumps(to_json(lock))) == lock


ARM = GOOD | {
    "version": "2.8.0",
    "url": FOLDER + "torch-2.8.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    "sha256": "0b" * 32,
}
SIX = {"name": "six", "version": "1.0", "url": f"{FOLDER}six-1.0-py3-none-any.whl", "sha256": "0c" * 32, "size": 1}


def test_a_lock_has_the_wheels_of_both_architectures_and_a_host_gets_its_own() -> None:
    lock = parse_json(Lock, json.dumps(lock_file(wheels=[GOOD, ARM, SIX])))
    assert lock.wheels[1].archs == {"aarch64"}
    assert lock.wheels[2].archs == {"aarch64", "x86_64"}
    assert lock.select("x86_64").packages == {"torch": "2.8.0+cpu", "six": "1.0"}
    assert lock.select("aarch64").packages == {"torch": "2.8.0", "six": "1.0"}
    assert lock.select("aarch64").id != lock.select("x86_64").id
    with pytest.raises(ValueError, match="two wheels of a package"):
        parse_json(Lock, json.dumps(lock_file(wheels=[ARM, ARM | {"sha256": "0d" * 32}])))


def test_a_lock_file_keeps_the_wheels_of_another_architecture_of_the_same_release(tmp_path: Path) -> None:
    path = tmp_path / "ipexctl.lock"
    arm = parse_json(Lock, json.dumps(lock_file(wheels=[ARM, SIX])))
    xeon = parse_json(Lock, json.dumps(lock_file(wheels=[GOOD, SIX])))
    assert add_other_arch(xeon, "x86_64", str(path)) == xeon  # there is none
    path.write_text(json.dumps(to_json(arm)))
    both = add_other_arch(xeon, "x86_64", str(path))
    assert both.select("x86_64").wheels == xeon.wheels
    assert {wheel.filename for wheel in both.wheels} == {wheel.filename for wheel in (*xeon.wheels, *arm.wheels)}
    path.write_text(json.dumps(to_json(both)))
    assert add_other_arch(xeon, "x86_64", str(path)) == both  # written again
    for other in (json.dumps(to_json(arm) | {"python": "3.10"}), "no lock"):
        path.write_text(other)
        assert add_other_arch(xeon, "x86_64", str(path)) == xeon


@pytest.mark.fault("L1")
@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_wheel_in_a_lock_file_is_refused_first(tmp_path: Path, changes: dict[str, Any]) -> None:
    refused = refuse_lock(tmp_path, json.dumps(lock_file(wheels=[GOOD | changes])))
    assert refused.sentence.endswith("is not a lock file of ipexctl")
    assert len(refused.reasons) == 1
    assert refused.reasons[0].isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": "../../../home/somebody/notes"},  # the name of the remembered lock, which a failure removes
        {"python": "3.11/../.."},
        {"mpi": "openmpi mpirun"},
        {"mpi": "sh -c\nreboot"},
        {"notes": ["\x1b]0;title\x07"]},
        {"ipexctl": "bundle"},
        {"wheels": [GOOD, GOOD | {"sha256": "0b" * 32}]},
        {"wheels": None},
    ],
    ids=str,
)
def test_a_hostile_lock_is_refused_before_anything_happens(tmp_path: Path, changes: dict[str, Any]) -> None:
    refuse_lock(tmp_path, json.dumps(lock_file(wheels=[GOOD]) | changes))


@pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 100_000, "\ud800", b"\xff\xfe", "null", '{"wheels": [1]}'])
def test_what_is_no_lock_at_all_is_refused_in_one_sentence(tmp_path: Path, text: str | bytes) -> None:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    refused = refuse_lock(tmp_path, data)
    assert re.search("is not a lock file of ipexctl$|not UTF-8", refused.sentence)
    assert "hint: ipexctl install" not in str(refused), "with --locked it would fail again, without it replace the file"


def test_files_of_this_machine_come_from_beside_the_lock_or_from_a_directory_that_was_named(tmp_path: Path) -> None:
    outside, repository = tmp_path / "elsewhere", tmp_path / "repository"
    for folder in (outside, repository / "wheels"):
        folder.mkdir(parents=True)
        (folder / NAME).write_bytes(b"a wheel")
    (repository / "link").symlink_to(outside)
    for place in (outside / NAME, repository / "link" / NAME):
        text = json.dumps(lock_file(wheels=[GOOD | {"url": place.as_uri()}]))
        refused = refuse_lock(repository, text)
        assert refused.sentence.endswith("takes files of this machine from outside its directory")
        assert refused.reasons == (NAME,)
    # Named, it is taken: the next check (which versions were asked for) refuses this one.
    assert refuse_lock(repository, text, torch="2.7.0", find_links=(str(outside),)).reasons[0].startswith("torch 2.7.0")
    beside = json.dumps(lock_file(wheels=[GOOD | {"url": (repository / "wheels" / NAME).as_uri()}]))
    assert refuse_lock(repository, beside, torch="2.7.0").reasons[0].startswith("torch 2.7.0")


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_remembered_lock_that_was_changed_is_forgotten(tmp_path: Path, changes: dict[str, Any]) -> None:
    lock = Lock((Wheel(**GOOD),), "3.11", "0f" * 12)
    save_lock(tmp_path, lock)
    assert load_lock(tmp_path, lock.inputs) == lock
    [path] = (tmp_path / "locks").iterdir()
    for mode, owner in ((0o622, os.geteuid()), (0o602, os.geteuid()), *([(0o600, 4242)] if os.geteuid() == 0 else [])):
        path.chmod(mode)
        os.chown(path, owner, -1)
        assert load_lock(tmp_path, lock.inputs) is None, "others own or write it: its URLs and hashes are theirs"
    path.chmod(0o600)
    os.chown(path, os.geteuid(), -1)
    assert load_lock(tmp_path, lock.inputs) == lock
    (file,) = (tmp_path / "locks").iterdir()
    file.write_text(json.dumps(lock_file(wheels=[GOOD | changes])))
    assert load_lock(tmp_path, lock.inputs) is None


@pytest.mark.parametrize("case", [name for name in HOSTILE if not name.startswith("a file for")])
def test_a_hostile_pylock_is_refused(case: str) -> None:
    file = GOOD | HOSTILE[case]
    hashes = {"sha256": file["sha256"]} if file["sha256"] is not None else {}
    place = f"url = {json.dumps(file['url'])}, size = {json.dumps(file['size'])}, hashes = "
    hashed = "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in hashes.items()) + " }"
    text = f"""
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = {json.dumps(file["name"])}
version = {json.dumps(file["version"])}
wheels = [{{ {place}{hashed} }}]
"""
    with pytest.raises(UsageError) as refused:
        parse_pylock(text)
    assert refused.value.exit == Exit.STEP


def test_a_lock_is_the_same_after_the_way_over_a_pylock() -> None:
    lock = Lock((Wheel(**GOOD | {"size": 0}),), "3.11", "")
    assert parse_pylock(format_pylock(lock.wheels, {})) == lock.wheels
    (moved,) = parse_pylock(format_pylock(lock.wheels, {"torch": f'/the "cache"/größe 😀/{NAME}'}))
    assert moved.local
    assert moved.filename == NAME


def test_a_wheel_that_is_a_link_to_itself_does_not_exist(tmp_path: Path) -> None:
    """`install --locked` in an archive of somebody else ended with 70."""
    wheel, path = tmp_path / "six-1.0-py3-none-any.whl", tmp_path / "ipexctl.lock"
    wheel.symlink_to(wheel.name)
    path.write_text(json.dumps(lock_file(wheels=[SIX | {"url": wheel.as_uri()}])))
    assert [locate_wheel(tmp_path, each) for each in read_lock(Install(lock=str(path)), {}).wheels] == [wheel]


def test_names_and_versions_are_normalised() -> None:
    url = FOLDER + "oneccl_bind_pt-2.8.0+cpu-cp311-cp311-linux_x86_64.whl"
    wheel = Wheel("Oneccl_Bind.PT", "2.8.0+CPU", url, "0a" * 32)
    assert (wheel.name, wheel.version) == ("oneccl-bind-pt", "2.8.0+cpu")


ODD = st.text(st.sampled_from("./\\%25fFcC0aA-_+~#?&;: \n\t\0é"), max_size=24)


@given(ODD, ODD, ODD)
def test_no_url_leads_out_of_the_cache(before: str, between: str, after: str) -> None:
    """Whatever stands around a good name: it is refused, or one plain name below the directory of its hash."""
    cache = Path("/home/me/.cache/ipexctl")
    for url in (f"{FOLDER}{before}{NAME}{after}", f"{FOLDER}{before}torch-2.8.0+cpu{between}-cp311-cp311{after}.whl"):
        try:
            wheel = Wheel(**GOOD | {"url": url})
        except ValueError:
            continue
        path = locate_wheel(cache, wheel)
        assert path.parent == cache / "wheels" / wheel.sha256
        assert path.name == wheel.filename
        assert path.name.startswith("torch-2.8.0+cpu-")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), st.lists, max_leaves=4))
@example(10**400)  # of a wheel's size: more than a float holds, it ended install with 70
def test_no_value_in_a_lock_file_is_a_trace(value: object) -> None:
    for key in ("python", "inputs", "notes", "mpi", "wheels", *GOOD):
        text = lock_file(wheels=[GOOD | {key: value}]) if key in GOOD else lock_file(wheels=[GOOD]) | {key: value}
        try:
            assert isinstance(parse_json(Lock, json.dumps(text)), Lock)
        except ValueError as error:
            words = str(error)
        else:
            words = ""
        assert words.isprintable()
        assert words or key != "size" or not isinstance(value, int) or value < 1 << 63


def test_a_link_that_another_user_puts_where_a_wheel_is_made_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a wheelhouse that he may write: `wheels fetch` replaced a file of his choice, if the link came in time."""
    source, precious = tmp_path / "source", tmp_path / "precious"
    source.write_text("wheel")
    precious.write_text("precious")

    def link(_: Path, part: str, **__: int) -> None:
        for path in (tmp_path / part, tmp_path / "a.whl"):
            path.symlink_to(precious)
        raise FileExistsError

    monkeypatch.setattr(os, "link", link)
    _link_or_copy(source, tmp_path / "a.whl")
    assert (precious.read_text(), (tmp_path / "a.whl").read_text()) == ("precious", "wheel")
    assert not (tmp_path / "a.whl").is_symlink()
