"""`install --with`, `--without` and `--upgrade` change the environment that is there, and nothing else of it."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from ipexctl.decide.planning import extend
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import Facts, Installed, Python
from ipexctl.model.stack import InstallMarker, StackMpi, StackRequest
from ipexctl.model.tasks import Install
from tests.markers import MARKER
from tests.stopwatch import Stopwatch
from tests.tables import read_table

PACKAGES = {
    "torch": "2.7.0+cpu",
    "intel-extension-for-pytorch": "2.7.0",
    "impi-torch": "1.0",
    "impi-rt": "2021.18.1",
    "tabulate": "0.9.0",
    "numpy": "2.0.0",
}
ENV = replace(MARKER, packages=PACKAGES, requested=("tabulate", "numpy<3"))
ANY = StackRequest()


def hosts(*markers: InstallMarker | None, venv: str = ENV.venv) -> dict[str, Facts]:
    installed = [Installed(venv, exists=True, marker=marker) for marker in markers]
    return {f"node{index}": Facts(installed=each) for index, each in enumerate(installed)}


def find(task: Install, *markers: InstallMarker | None, request: StackRequest = ANY) -> object:
    return extend.find_environment(task, request, ENV.venv, hosts(*markers))


def test_the_first_host_that_has_an_environment_gives_the_release() -> None:
    release = StackRequest("ipex", "2.7.0", "2.7.0", None, "impi", "3.11")
    assert find(Install(with_=("tqdm",)), None, ENV) == (ENV, release)
    bound = replace(ENV, packages={**PACKAGES, "oneccl-bind-pt": "2.7.0+cpu"})
    assert find(Install(upgrade=("tabulate",)), bound) == (bound, replace(release, oneccl="2.7.0", backend="ccl"))
    plain = replace(ENV, packages={"torch": "2.9.1"})
    native = StackRequest("native", "2.9.1", None, None, "gloo", "3.11")
    assert find(Install(with_=("tqdm",)), plain) == (plain, native)


@pytest.mark.parametrize("packages", [{"numpy": "2.0.0"}, {**PACKAGES, "numpy": "newest"}])
def test_packages_that_make_no_environment_are_no_base(packages: dict[str, str]) -> None:
    """What the first host said of its own environment ended the install of all with an exception."""
    evil = replace(ENV, packages=packages)
    assert find(Install(with_=("tqdm",)), evil, ENV) is None
    assert extend.follow_model(evil, Install(), ANY) == (None, ANY)


def test_a_host_alone_chooses_no_program_for_the_others() -> None:
    """What the environment of the first host had been asked for, or so it said, was installed on all."""
    alone = "colour @ https://elsewhere.example/colour-1-py3-none-any.whl"
    evil = replace(ENV, requested=("tabulate", alone))
    with pytest.raises(UsageError, match="an MPI from places that are not known to that of node1") as refused:
        find(Install(with_=("tqdm",)), evil, ENV)
    assert (refused.value.reasons, refused.value.exit) == ((alone,), Exit.STEP)
    assert "ipexctl install --like node0" in (refused.value.hint or "")
    assert find(Install(with_=("tqdm",)), ENV, evil) is not None, "the first one's count"
    assert find(Install(with_=("tqdm",)), evil, None, evil) is not None, "all say so"
    with pytest.raises(UsageError, match="from places that are not known") as refused:
        find(Install(with_=("tqdm",)), replace(ENV, requested=("./colour.whl", "tabulate")), ENV)
    assert refused.value.reasons == ("./colour.whl",)
    assert find(Install(with_=("colour @ file:///colour-2-py3-none-any.whl",)), evil, ENV) is not None


def test_a_host_alone_names_no_launcher_that_the_others_start() -> None:
    """Each host was asked for the version of the MPI at the path that the first one's environment names."""
    mpi = StackMpi("impi-rt", "4.3", "mpich", "/tmp/planted/mpirun")
    evil = replace(ENV, stack=replace(ENV.stack, mpi=mpi))
    with pytest.raises(UsageError, match="or an MPI from places") as refused:
        find(Install(with_=("tqdm",)), evil, ENV)
    assert refused.value.reasons == ("/tmp/planted/mpirun",)
    assert find(Install(with_=("tqdm",)), evil, evil) is not None, "both say so"


@pytest.mark.parametrize("requirement", read_table("extend/a_host_gives_uv_no_options_variables_or_projects"))
def test_a_host_gives_uv_no_options_variables_or_projects(requirement: str) -> None:
    """uv built the project here, took packages of that index, and asked for a URL with the variable's value in it."""
    evil = replace(ENV, requested=("tabulate", requirement))
    with pytest.raises(UsageError, match="not taken from a host's word") as refused:
        extend.keep_requirements(evil, Install(with_=("tqdm",)))
    assert (refused.value.reasons, refused.value.exit) == ((requirement,), Exit.STEP)
    with pytest.raises(UsageError, match="not taken from a host's word"):
        extend.keep_environment(Install(torch="2.13.0"), StackRequest(torch="2.13.0"), evil)


def test_an_environment_of_thousands_of_places_takes_no_square_of_their_number() -> None:
    """15 s for 309 kB, and a host may say a megabyte."""
    watch = Stopwatch()
    requested = tuple(f"a@file:/{number}" for number in range(60_000))
    assert find(Install(with_=("tqdm",)), replace(ENV, requested=requested)) is not None
    assert watch.read() < 12.0


@pytest.mark.parametrize(
    ("request_", "kept"),
    [
        (StackRequest(torch="2.7"), True),
        (StackRequest(torch="2.7.0+cpu", python="3.11", track="ipex", backend="impi"), True),
        (StackRequest(torch=">=2.6,<2.8"), True),
        (StackRequest(torch="2.8.0"), False),
        (StackRequest(oneccl="2.7.0"), False),
        (StackRequest(backend="ccl"), False),
        (StackRequest(track="native"), False),
        (StackRequest(python="3.12"), False),
    ],
)
def test_another_release_is_a_new_environment(request_: StackRequest, kept: bool) -> None:
    assert (find(Install(with_=("tqdm",)), ENV, request=request_) is not None) is kept


def test_nothing_is_extended_without_a_package_or_an_environment() -> None:
    assert find(Install(), ENV) is None
    assert find(Install(with_=("tqdm",)), None) is None
    elsewhere = hosts(ENV, venv="/home/u/other")
    assert extend.find_environment(Install(with_=("tqdm",)), ANY, ENV.venv, elsewhere) is None
    assert extend.find_environment(Install(with_=("tqdm",)), ANY, ENV.venv, {"node0": Facts()}) is None


def test_what_is_not_there_or_is_the_release_is_neither_removed_nor_renewed() -> None:
    with pytest.raises(UsageError) as refused:
        find(Install(without=("Torch", "tqdm"), upgrade=("oneccl_bind_pt", "tabulate")), ENV)
    assert refused.value.exit is Exit.STEP
    assert refused.value.reasons == (
        "--without torch: it is of the release, which --torch changes",
        f"--without tqdm: it is not in {ENV.venv}",
        "--upgrade oneccl-bind-pt: it is of the release, which --torch changes",
    )
    assert find(Install(without=("tabulate",)), ENV, request=StackRequest(torch="2.8.0")) is None


def keep(
    request: StackRequest = ANY, listed: Collection[str] = (), **task: Any
) -> tuple[bool, tuple[str | None, str | None], tuple[str, ...]]:
    """Whether the versions stay, the torch and Python that are asked for then, and the requirements."""
    native = replace(ENV, packages={"torch": "2.13.0", "einops": "0.8"}, requested=("einops",))
    base, kept, release = extend.keep_environment(Install(**task), request, native, listed)
    return base is native, (release.torch, release.python), kept.with_


def test_an_install_that_names_no_release_keeps_the_installed_one() -> None:
    """A bare one went from torch 2.13.0 back to 2.8.0 with IPEX, and dropped what had been added."""
    assert keep() == (True, ("2.13.0", "3.11"), ("einops",))
    assert keep(mpi="mpich") == (True, ("2.13.0", "3.11"), ("einops",))
    assert keep(StackRequest(python="3.12"), python="3.12") == (False, ("2.13.0", "3.12"), ("einops",))
    assert keep(requirements=("all.txt",)) == (False, ("2.13.0", None), ("einops",))
    assert keep(listed={"einops"}, requirements=("all.txt",)) == (False, ("2.13.0", None), ())
    assert keep(wheels="house") == (False, (None, None), ("einops",))


def test_another_release_keeps_what_was_asked_for_earlier() -> None:
    assert keep(StackRequest(torch="2.12.0")) == (False, ("2.12.0", None), ("einops",))
    assert keep(StackRequest(torch="2.12.0"), without=("einops",), with_=("tqdm",))[2] == ("tqdm",)
    assert keep(StackRequest(track="ipex"), with_=("einops<1",))[2] == ("einops<1",)


def test_an_mpi_of_the_hosts_stays_and_another_is_another_stack() -> None:
    own = StackMpi("system", "4.1.4", "openmpi", "/usr/bin/mpirun")
    marker = replace(ENV, packages={"torch": "2.9.1"}, stack=replace(ENV.stack, mpi=own))
    for mpi in ("auto", "openmpi", "/usr/bin/mpirun"):
        assert find(Install(with_=("tqdm",), mpi=mpi), marker) is not None, mpi
    assert find(Install(with_=("tqdm",), mpi="mpich"), marker) is None
    assert find(Install(with_=("tqdm",), mpi="wheel"), marker) is None
    assert find(Install(with_=("tqdm",), mpi="wheel"), ENV) is not None
    assert extend.keep_requirements(marker, Install(with_=("tqdm",))).mpi == "/usr/bin/mpirun"


def test_the_reasons_name_what_was_asked_and_what_the_lock_has() -> None:
    with pytest.raises(UsageError) as refused:
        extend.build_release_request(PACKAGES, "3.11", "", StackRequest(torch="2.8.0", oneccl="2.7.0"), "openmpi")
    assert refused.value.reasons == (
        "torch 2.8.0 is asked for, the lock has 2.7.0",
        "oneccl 2.7.0 is asked for, the lock has none",
        "--mpi openmpi is asked for, the lock has the Intel MPI of the wheels",
    )


def test_earlier_requirements_stay_but_for_those_that_are_named_again() -> None:
    task = extend.keep_requirements(ENV, Install(with_=("NumPy==2.1.0", "tqdm", "./own.whl")))
    assert task.with_ == ("tabulate", "NumPy==2.1.0", "tqdm", "./own.whl")
    assert (task.backend, task.mpi) == (ENV.stack.backend, "wheel")
    assert extend.keep_requirements(ENV, Install(without=("tabulate",))).with_ == ("numpy<3",)


def test_hosts_with_the_environment_resolve_for_its_interpreter() -> None:
    other = Python("/usr/bin/python3", "3.12.1")
    facts = {name: replace(fact, pythons=(other,)) for name, fact in hosts(ENV, None, replace(ENV, id="x")).items()}
    used = extend.use_env_python(ENV, facts)
    assert [used[name].pythons[0].path for name in facts] == [f"{ENV.prefix}/bin/python", other.path, other.path]
    lost = {
        name: replace(fact, installed=fact.installed and replace(fact.installed, exists=False))
        for name, fact in facts.items()
    }
    assert extend.use_env_python(ENV, lost) == lost


def test_pins_of_the_release_are_those_of_the_environment() -> None:
    pins = ("torch==2.7.0", "intel_extension_for_pytorch==2.7.0", "numpy==1.26.0", "--hash")
    assert extend.pin_installed_release(pins, ENV) == (
        "torch==2.7.0+cpu", "intel-extension-for-pytorch==2.7.0", "numpy==1.26.0", "--hash"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "base", "release"),
    [
        (ANY, True, ("2.7.0", "impi")),
        (StackRequest(torch="2.7"), True, ("2.7.0", "impi")),
        (StackRequest(backend="gloo"), True, ("2.7.0", "gloo")),
        (StackRequest(backend="ccl"), False, (None, "ccl")),
        (StackRequest(torch="2.13.0", track="native"), False, ("2.13.0", "auto")),
    ],
)
def test_a_model_gives_its_release_unless_another_is_asked_for_and_its_packages_always(
    request_: StackRequest, base: bool, release: tuple[str | None, str]
) -> None:
    marker, kept = extend.follow_model(ENV, Install(like="node1"), request_)
    assert (marker is ENV, (kept.torch, kept.backend)) == (base, release)
    assert extend.keep_requirements(ENV, Install(), model=True).with_ == ("tabulate", "numpy<3")
    asked = extend.keep_requirements(ENV, Install(backend="gloo", mpi="mpich"), model=True)
    assert (asked.backend, asked.mpi) == ("gloo", "mpich")
