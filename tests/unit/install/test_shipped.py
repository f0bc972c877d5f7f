"""The wheel of impi_torch that install brings along: what its own project file says it is, and the same every time."""

import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from ipexctl.act.bundled_files import pack_impi_torch
from ipexctl.model.errors import UsageError
from ipexctl.model.toml import parse_toml

PROJECT = Path(__file__).parents[3] / "impi_torch"


def test_the_wheel_says_what_the_project_file_says(tmp_path: Path) -> None:
    project = parse_toml((PROJECT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(pack_impi_torch(tmp_path)) as wheel:
        info = next(name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
        output = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
        entries = wheel.read(f"{info}/entry_points.txt").decode()
        modules = {Path(name).name for name in wheel.namelist() if name.startswith("impi_torch/")}
    assert output["Name"] == project["name"]
    assert output["Requires-Python"] == project["requires-python"]
    assert output.get_all("Requires-Dist") == project["dependencies"]
    assert modules == {path.name for path in (PROJECT / "src/impi_torch").glob("*.py")}
    for group, points in project["entry-points"].items():
        assert f"[{group}]" in entries
        assert all(f"{name} = {target}" in entries for name, target in points.items())


def test_the_wheel_is_the_same_bytes_wherever_it_is_packed(tmp_path: Path) -> None:
    one, two = pack_impi_torch(tmp_path / "a"), pack_impi_torch(tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()
    assert one.relative_to(tmp_path / "a") == two.relative_to(tmp_path / "b")


def test_a_wheel_that_somebody_changed_is_packed_anew(tmp_path: Path) -> None:
    path = pack_impi_torch(tmp_path)
    good = path.read_bytes()
    path.write_bytes(b"something else")
    assert pack_impi_torch(tmp_path).read_bytes() == good


def test_a_cache_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        pack_impi_torch(tmp_path / "home/.cache")
