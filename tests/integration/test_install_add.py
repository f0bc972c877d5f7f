"""Packages added to an environment, taken from it and renewed: all else stays, and is not sent again."""

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipexctl.model.errors import Exit
from ipexctl.model.events import HostFailed
from tests import wheels
from tests.integration.test_install import Bench, Played
from tests.wheels import Index, serving


def tool(version: str) -> wheels.Built:
    """A package with a script, which `greeting` needs."""
    scripts = "[console_scripts]\ntool = tool:main\n"
    files = {"tool.py": f"def main(): print({version!r})\n", f"tool-{version}.dist-info/entry_points.txt": scripts}
    return wheels.wheel("tool", version, files)


@pytest.fixture
def index() -> Iterator[Index]:
    extra = [tool("1.0"), wheels.wheel("greeting", "1.0", {"greeting.py": ""}, requires=("tool",))]
    extra.append(wheels.wheel("plain", "1.0", {"plain.py": ""}))
    extra.append(wheels.wheel("picky", "1.0", {"picky.py": ""}, requires=("torch>=2.9",)))
    with serving(Index([*wheels.stack(), *extra])) as serves:
        yield serves


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def fetched(index: Index) -> list[str]:
    """The wheels that were downloaded since this was last asked."""
    names = [path.rpartition("/")[2] for _, path in index.asked if path.startswith("GET /files/")]
    index.asked.clear()
    return sorted({name for name in names if name.endswith(".whl")})


def inode(bench: Bench, pattern: str) -> int:
    (path,) = bench.venv.glob(pattern)
    return path.stat().st_ino


SAME: dict[str, Any] = {"torch": None, "track": None, "backend": "auto"}  # of an install that names no release


def change(bench: Bench, index: Index, **wish: Any) -> Played:
    return bench.succeed(index, **SAME, **wish)


def test_a_package_is_added_by_links_to_all_that_is_there(bench: Bench, index: Index) -> None:
    first = bench.play(index, with_=("greeting",))
    torch = inode(bench, "lib/python3*/site-packages/torch/__init__.py")
    index.wheels.append(wheels.torch("2.9.0"))
    index.wheels.append(tool("2.0"))
    fetched(index)
    second = change(bench, index, with_=("plain",))
    assert fetched(index) == ["plain-1.0-py3-none-any.whl"]
    assert f"build: instead of {first.answer['id']}: adds plain 1.0" in second.plan
    assert "5 that are there are linked" in second.plan
    packages = bench.marker()["packages"]
    assert packages == {"torch": "2.8.0", "impi-rt": "2021.18.1", "numpy": "1.26.4", "greeting": "1.0", "tool": "1.0",
                        "plain": "1.0"}  # fmt: skip
    assert bench.marker()["requested"] == ["greeting", "plain"]
    checked = second.answer["hosts"][0]
    assert checked["versions"] == {"plain": "1.0"}  # the rest is the very files that were checked before
    assert checked["same"] > 20
    assert inode(bench, "lib/python3*/site-packages/torch/__init__.py") == torch
    assert bench.works() == "2.8.0"
    assert not (bench.store / first.answer["id"]).exists()
    assert os.popen(str(bench.venv / "bin/tool")).read() == "1.0\n"
    assert first.answer["id"] not in (bench.venv / "pyvenv.cfg").read_text()
    again = change(bench, index, with_=("plain",))
    assert again.answer["changed"] == []


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"torch/__init__.py": "raise SystemExit('broken')\n"}, "import torch: SystemExit: broken"),
        ({"plain.py": "import nothing_such\n"}, "import plain: ModuleNotFoundError: No module named 'nothing_such'"),
    ],
)
def test_nothing_is_changed_before_the_switch(bench: Bench, index: Index, files: dict[str, str], reason: str) -> None:
    first = bench.play(index)
    before = {path: info for path, info in bench.tree().items() if f"env.d/{first.answer['id']}/" in path}
    index.wheels.append(wheels.wheel("plain", "2.0", {"plain.py": "", **files}))
    second = bench.play(index, with_=("plain",), **SAME)
    assert second.exit == Exit.STEP
    assert reason in second.failures()[0]
    after = {path: info for path, info in bench.tree().items() if f"env.d/{first.answer['id']}/" in path}
    assert {path: info for path, info in after.items() if "__pycache__" not in path} == {
        path: info for path, info in before.items() if "__pycache__" not in path
    }
    assert bench.works() == "2.8.0"


def test_a_package_goes_with_what_only_it_needed_and_the_rest_stays(bench: Bench, index: Index) -> None:
    bench.play(index, with_=("greeting", "plain"))
    fetched(index)
    done = change(bench, index, without=("greeting",))
    assert fetched(index) == []
    assert bench.marker()["packages"].keys() == {"torch", "impi-rt", "numpy", "plain"}
    assert "removes greeting 1.0, removes tool 1.0" in done.plan
    assert not (bench.venv / "bin/tool").exists()
    installed = bench.facts()["node0"].installed
    assert installed is not None
    assert installed.packages.keys() == {"torch", "impi-rt", "numpy", "plain"}


def test_what_makes_a_package_that_stays_older_is_named(bench: Bench, index: Index) -> None:
    """Not the want of its wheels: they are there."""
    index.wheels += [tool("2.0"), wheels.wheel("old", "1.0", {"old.py": ""}, requires=("tool<2",))]
    bench.play(index, with_=("tool",))
    refused = bench.play(index, with_=("old",), **SAME)
    assert refused.exit == Exit.STEP
    refusal = refused.refusal
    assert refusal is not None
    assert refusal.sentence == "packages that stay would become older"
    assert refusal.reasons[0] == "tool 2.0 would become 1.0"
    assert "all versions of old depend on tool<2" in " ".join(refusal.reasons[1:])
    assert str(refusal.hint).splitlines()[-1] == "ipexctl install --with old --with tool==1.0"
    assert bench.marker()["packages"]["tool"] == "2.0"
    change(bench, index, with_=("old", "tool==1.0"))
    assert bench.marker()["packages"]["tool"] == "1.0"
    index.wheels.append(wheels.wheel("new", "1.0", {"new.py": ""}, requires=("tool>1",)))
    refusal = bench.play(index, with_=("new",), **SAME).refusal
    assert refusal is not None
    command = "ipexctl install --with new --with tool"
    assert refusal.hint == f"without what was asked for earlier (tool==1.0):\n{command}"


def test_a_package_that_stays_is_imported_where_another_release_of_a_package_is_installed(
    bench: Bench, index: Index
) -> None:
    """It needs more than its metadata say."""
    check = {"arrow.py": "import tool\nassert tool.version == '2.0', 'arrow needs tool 2.0'\n"}
    for version in ("1.0", "2.0"):
        index.wheels.append(wheels.wheel("tool", version, {"tool.py": f"version = {version!r}\n"}))
    index.wheels.append(wheels.wheel("arrow", "1.0", check, requires=("tool",)))
    index.wheels.append(wheels.wheel("old", "1.0", {"old.py": ""}, requires=("tool<2",)))
    bench.play(index, with_=("arrow",))
    second = bench.play(index, with_=("old", "plain"), **SAME)
    (failure,) = (event.failure for event in second.events if isinstance(event, HostFailed))
    assert failure.what == "import arrow: AssertionError: arrow needs tool 2.0"
    beside, command = str(failure.hint).splitlines()
    assert beside == "an environment of its own for what is new: --venv PATH; without arrow:"
    assert command == "ipexctl install --without arrow --with old --with plain"
    assert bench.marker()["packages"]["tool"] == "2.0"


def test_a_bound_takes_the_newest_release_that_it_allows(bench: Bench, index: Index) -> None:
    """And not one so old that it has no requirements, for which all that is there could stay."""
    index.wheels += [wheels.wheel("hub", version, {"hub.py": ""}) for version in ("1.0", "2.0")]
    for version, needs in (("0.5", ()), ("1.0", ("hub<2",)), ("2.0", ("hub>=2",))):
        index.wheels.append(wheels.wheel("model", version, {"model.py": ""}, requires=needs))
    bench.play(index, with_=("model",))
    assert bench.marker()["packages"]["model"] == "2.0"
    done = change(bench, index, with_=("model<2",))
    assert {name: bench.marker()["packages"][name] for name in ("model", "hub")} == {"model": "1.0", "hub": "1.0"}
    assert "hub 2.0 → 1.0, model 2.0 → 1.0" in done.plan


def test_a_package_is_renewed_alone(bench: Bench, index: Index) -> None:
    bench.play(index, with_=("greeting", "plain"))
    index.wheels += [tool("2.0"), wheels.wheel("plain", "2.0", {"plain.py": ""})]
    fetched(index)
    done = change(bench, index, upgrade=("tool",))
    assert fetched(index) == ["tool-2.0-py3-none-any.whl"]
    assert "tool 1.0 → 2.0" in done.plan
    assert done.answer["hosts"][0]["versions"]["torch"] == "2.8.0"  # what was there has changed: all is checked
    assert bench.marker()["packages"]["plain"] == "1.0"
    assert os.popen(str(bench.venv / "bin/tool")).read() == "2.0\n"


def test_another_controller_links_the_environment_as_well(bench: Bench, index: Index, tmp_path: Path) -> None:
    bench.play(index)
    other = Bench(tmp_path)
    for path in (tmp_path / "cache/locks").iterdir():
        path.unlink()
    fetched(index)
    house = wheels.fill(tmp_path / "my house", [wheels.wheel("plain", "3.0", {"plain.py": ""})])
    done = change(other, index, find_links=(str(house),), with_=("plain==3.0",))
    assert bench.marker()["packages"]["plain"] == "3.0"
    assert "that are there are linked" in done.plan


def broken(name: str, version: str) -> wheels.Built:
    """A package that looks for another build of torch when it is imported."""
    return wheels.wheel(name, version, {f"{name}.py": 'raise RuntimeError("operator does not exist")\n'})


def test_a_package_for_another_torch_is_named_before_and_as_the_cause(bench: Bench, tmp_path: Path) -> None:
    house = wheels.fill(tmp_path / "house", [wheels.torch("2.8.0+cpu"), wheels.impi()])
    others = [broken("torchvision", "0.23.0"), wheels.numpy(), wheels.wheel("plain", "1.0", {"plain.py": ""})]
    with serving(Index(others)) as index:
        wish: dict[str, Any] = {"track": "native", "backend": "gloo", "find_links": (str(house),)}
        played = bench.play(index, with_=("torchvision",), **wish)
        why = "torchvision 0.23.0 is built for a torch with CUDA, and beside it is torch 2.8.0+cpu"
        assert f"{why}: --extra-index-url " in played.output()
        (failure,) = (event.failure for event in played.events if isinstance(event, HostFailed))
        assert "import torchvision: RuntimeError: operator does not exist" in failure.what
        assert failure.what.endswith(f"({why})")
        assert "that has the CPU builds of torch and torchvision" in (failure.hint or "")
        assert not bench.venv.exists()
        needing = wheels.wheel("needing", "1.0", {"needing.py": "import torchvision\n"})
        index.wheels.append(needing)
        played = bench.play(index, with_=("torchvision", "needing"), **wish)
        (failure,) = (event.failure for event in played.events if isinstance(event, HostFailed))
        assert "; without torchvision:" in (failure.hint or "")
        index.wheels[0] = broken("bitsandbytes", "0.42.0")
        played = bench.play(index, with_=("bitsandbytes", "plain"), **wish)
        (failure,) = (event.failure for event in played.events if isinstance(event, HostFailed))
        assert failure.what.endswith("(bitsandbytes is made for CUDA)")
        assert (failure.hint or "").startswith("leave bitsandbytes out: train in bf16")
        assert "; without bitsandbytes:" in (failure.hint or "")


BACKEND = """\
import os, sys, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    if os.path.exists("broken"):
        sys.exit("no compiler\\x1b[31m here")
    name, info = "ours-1.0-py3-none-any.whl", "ours-1.0.dist-info"
    record = [f"ours.py,,", f"{info}/METADATA,,", f"{info}/WHEEL,,", f"{info}/RECORD,,"]
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        for path, text in {
            "ours.py": open("ours.py").read(),
            f"{info}/METADATA": "Metadata-Version: 2.1\\nName: ours\\nVersion: 1.0\\nProvides-Extra: more\\n"
            "Requires-Dist: plain; extra == 'more'\\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
            f"{info}/RECORD": "\\n".join(record),
        }.items():
            wheel.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text)
    return name
"""


PROJECT = '[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n'


def test_an_old_release_for_want_of_a_wheel_is_refused_with_the_command_that_builds_it(bench: Bench) -> None:
    """As hydra-core, of which each release since 2020 needs a package that has only sources."""
    old = wheels.wheel("hydra", "0.11", {"hydra.py": "import pkg_resources_of_old"})
    new = wheels.wheel("hydra", "1.3", {"hydra.py": "import ours"}, requires=("ours",))
    gone = wheels.wheel("gone", "2.0", {"gone.py": ""}, requires=("nowhere",))
    others = [wheels.wheel("gone", "1.0", {"gone.py": ""}), wheels.wheel("early", "0.3.dev5", {"early.py": ""})]
    others.append(wheels.wheel("job", "1.0", {"job.py": "import hydra"}, requires=("hydra",)))
    others += [wheels.wheel("next", "1.0", {"next.py": ""}, requires=("ours",)), wheels.wheel("next", "2.0rc1", {})]
    others += [wheels.wheel("apart", version, {"apart.py": ""}) for version in ("1.0", "2.0")]
    others.append(wheels.wheel("holder", "1.0", {"holder.py": ""}, requires=("apart<2",)))
    sources = io.BytesIO()
    with tarfile.open(fileobj=sources, mode="w:gz") as archive:
        for name, text in {"pyproject.toml": PROJECT, "b.py": BACKEND, "ours.py": "NUMBER = 3\n"}.items():
            info = tarfile.TarInfo(f"ours-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    archives = [wheels.Built(f"{name}.tar.gz", sources.getvalue()) for name in ("ours-1.0", "holder-0.9")]
    with serving(Index([*wheels.stack(), old, new, gone, *others, *archives])) as index:
        plan = " ".join(bench.play(index, with_=("apart", "holder"), check=True).plan.split())
        assert (
            "apart 1.0 is an older release than the newest, 2.0, because holder==0.9 has no usable wheels and" in plan
        )
        plan = bench.play(index, with_=("gone", "early", "numpy"), check=True).plan
        assert "gone 1.0 is an older release than the newest, 2.0, because nowhere was not found" in plan
        assert "note         early 0.3.dev5 is a pre-release: there is no other wheel of it; --build early" in plan
        assert "numpy 1.26.4 is" not in plan
        plan = " ".join(bench.play(index, with_=("job",), check=True).plan.split())
        assert "1.3 needs ours, of which there are only sources; --build ours makes a wheel" in plan
        refusal = bench.play(index, with_=("early", "hydra"), builds=True).refusal
        assert refusal is not None
        assert refusal.sentence == "hydra 0.11 is an older release than the newest, 1.3"
        assert refusal.reasons == ("1.3 needs ours, of which there are only sources", "as it is: hydra==0.11")
        assert str(refusal.hint).endswith("\nipexctl install --with early --with hydra --build ours")
        preview = bench.play(index, with_=("next",), builds=True).refusal
        assert preview is not None
        assert preview.sentence == "next 2.0rc1 is a pre-release, and the newest release is 1.0"
        assert str(preview.hint).endswith("\nipexctl install --with next --build ours")
        (bench.path / "r.txt").write_text("early\nhydra\n")
        listed = bench.play(index, requirements=(str(bench.path / "r.txt"),), builds=True).refusal
        assert listed is not None
        assert (listed.sentence, listed.reasons) == (refusal.sentence, refusal.reasons)
        assert "builds nothing" in str(bench.play(index, with_=("hydra",), build=("ours",)).refusal), "a playbook"
        bench.play(index, with_=("early", "hydra"), build=("ours",), builds=True)
        assert bench.marker()["packages"].items() >= {"hydra": "1.3", "ours": "1.0"}.items()
        change(bench, index, with_=("gone",))
        assert bench.marker()["packages"].items() >= {"hydra": "1.3", "ours": "1.0", "gone": "1.0"}.items()
        played = bench.play(index, with_=("hydra==0.11", "numpy"), **SAME)
        (failure,) = (event.failure for event in played.events if isinstance(event, HostFailed))
        assert failure.hint == "without hydra:\nipexctl install --with numpy"


def test_the_wheel_of_a_local_project_is_built_here_and_installed(
    bench: Bench, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "app"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "b.py").write_text(BACKEND)
    (project / "ours.py").write_text("NUMBER = 1\n")
    monkeypatch.chdir(project)
    assert bench.play(index).exit == Exit.OK
    first = change(bench, index, with_=(".[more]",), builds=True)
    assert {"ours", "plain"} <= bench.marker()["packages"].keys()
    python = f"{bench.venv}/bin/python -c 'import ours; print(ours.NUMBER)'"
    assert os.popen(python).read() == "1\n"
    again = change(bench, index, with_=(".[more]",), builds=True)
    assert again.answer["id"] == first.answer["id"], "the same sources, the same wheel"
    (project / "ours.py").write_text("NUMBER = 2\n")
    change(bench, index, with_=(".[more]",), builds=True)
    assert os.popen(python).read() == "2\n"
    (project / "broken").touch()
    failed = bench.play(index, with_=(".",), builds=True, **SAME)
    assert failed.exit == Exit.STEP
    assert failed.refusal is not None
    assert f"{project} could not be built: exit code" in failed.refusal.sentence
    assert any("no compiler" in reason for reason in failed.refusal.reasons), failed.refusal.reasons
    assert os.popen(python).read() == "2\n"
    assert "builds nothing" in str(bench.play(index, with_=(".",), **SAME).refusal), "not for a playbook"
