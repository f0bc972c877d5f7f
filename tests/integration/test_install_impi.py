"""Install of the backend impi: its wheel is packed here, mpi4py comes from the index. Only the wheels are doubles."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.model.errors import Exit
from ipexctl.model.tasks import Wheels
from ipexctl.verbs.install.wheels import wheels_fetch
from tests import wheels
from tests.integration.test_install import Bench
from tests.wheels import Built, Index, serving

DISTRIBUTED = "def is_available(): return False\n"  # so that impi_torch does not look for more of torch


def torch() -> Built:
    text = wheels.TORCH.replace("{version}", "2.8.0") + "from . import distributed\n"
    return wheels.wheel("torch", "2.8.0", {"torch/__init__.py": text, "torch/distributed/__init__.py": DISTRIBUTED})


def mpi4py(version: str = "4.1.2") -> Built:
    return wheels.wheel("mpi4py", version, {"mpi4py/__init__.py": f'__version__ = "{version}"\n'})


@pytest.fixture
def index() -> Iterator[Index]:
    with serving(Index([torch(), wheels.impi(), wheels.numpy(), mpi4py()])) as served:
        yield served


def test_without_a_word_impi_is_installed_where_the_row_has_no_binding(tmp_path: Path, index: Index) -> None:
    bench = Bench(tmp_path)
    played = bench.succeed(index, backend="auto")
    assert "backend impi: there is no oneccl_bind_pt in torch 2.8.0" in played.output()
    marker = bench.marker()
    assert marker["stack"]["backend"] == "impi"
    assert marker["packages"]["mpi4py"] == "4.1.2"
    assert bench.runtime().impi
    code = "import impi_torch; from importlib.metadata import entry_points as e; print(e(group='torch.backends'))"
    done = subprocess.run([bench.venv / "bin/python", "-c", code], capture_output=True, text=True)
    assert "impi_torch:register" in done.stdout, done.stderr
    assert not [path for _, path in index.asked if "impi-torch" in path], "no index is asked for what is ours"
    assert bench.play(index, backend="auto").answer["changed"] == []


def test_a_wheelhouse_brings_impi_to_hosts_without_a_way_out(tmp_path: Path, index: Index) -> None:
    house = tmp_path / "house"
    bench = Bench(tmp_path / "one")
    version = "{}.{}".format(*sys.version_info)
    task = Wheels(directory=str(house), torch="2.8.0", track="native", python=(version,), index_url=index.url)
    fetched = bench.tell(lambda _, context: wheels_fetch(task, context))
    assert fetched.exit == Exit.OK, fetched.events
    assert {path.name.partition("-")[0] for path in house.glob("*.whl")} >= {"impi_torch", "mpi4py", "torch"}
    offline = replace(bench, path=tmp_path / "two")
    assert offline.play(wheels=str(house), backend="auto").exit == Exit.OK
    assert offline.marker()["stack"]["backend"] == "impi"
