"""Requirements that are no wheels: what would have to be built is refused, with what to do, before hosts are probed."""

import os
from pathlib import Path

import pytest

from ipexctl.decide.parsing import parse_list
from ipexctl.decide.planning import extend
from ipexctl.decide.planning.requirements import Requirement, parse_requirements
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.tasks import Install, Wheels
from ipexctl.verbs.install.install import _check_input
from ipexctl.verbs.install.requirements import fix_requirements, list_texts
from tests.stopwatch import Stopwatch
from tests.tables import read_table

PROJECT, SOURCES, REPOSITORY = "a local project", "an archive of sources", "a repository"


@pytest.mark.parametrize(("text", "kind", "name"), read_table("requirements/built_requirements"))
def test_what_would_have_to_be_built_is_reported_by_its_text(text: str, kind: str, name: str) -> None:
    requirement = Requirement(text, "--with")
    assert (requirement.kind, requirement.name) == (kind, name)


def test_a_file_of_requirements_is_read_line_by_line() -> None:
    text = """\
# comment
numpy  # of the index
-e .
--editable=./b
-e git+https://host/p#egg=p
--index-url https://host/simple
-r more.txt
--requirement "other.txt"
-c constraints.txt
-f dist
./pkg \\
  ; python_version > '3'
torch==2.13.0 \\
    --hash=sha256:00
"""
    read = list(parse_requirements(text, "r.txt"))
    assert [each for each in read if isinstance(each, str)] == ["more.txt", "other.txt"]
    assert [(each.place, each.text, each.kind) for each in read if isinstance(each, Requirement)] == [
        ("r.txt:2", "numpy", ""),
        ("r.txt:3", ".", PROJECT),
        ("r.txt:4", "./b", PROJECT),
        ("r.txt:5", "git+https://host/p#egg=p", REPOSITORY),
        ("r.txt:11", "./pkg   ; python_version > '3'", PROJECT),
        ("r.txt:13", "torch==2.13.0     --hash=sha256:00", ""),
    ]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/pyproject.toml").write_text('[project]\nname = "ours"\nversion = "1"\n')
    return tmp_path


@pytest.mark.parametrize(("with_", "reason", "target", "name"), read_table("requirements/project_refusals"))
def test_a_project_is_refused_with_the_way_out(here: Path, with_: str, reason: str, target: str, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        fix_requirements(Install(with_=("numpy", with_.format(here=here))))
    assert caught.value.exit is Exit.INPUT
    assert caught.value.sentence == "install takes wheels, and builds nothing"
    assert caught.value.reasons == (f"--with: {reason.format(here=here)}",)
    build = (
        f"pip wheel --no-deps -w wheels {target.format(here=here)}, then --find-links wheels --with {name}; or leave it"
    )
    assert (caught.value.hint or "").startswith(build)


def test_a_comment_hides_no_project_that_uv_would_build(here: Path) -> None:
    (here / "r.txt").write_text("tabulate # a comment \\\n-e ./pkg\n# another \\\n--editable=./pkg\n")
    with pytest.raises(UsageError, match="builds nothing") as refused:
        fix_requirements(Install(requirements=("r.txt",)))
    assert refused.value.reasons == (f"r.txt:2: -e ./pkg is {PROJECT}", f"r.txt:4: -e ./pkg is {PROJECT}")


@pytest.mark.parametrize(("with_", "files"), read_table("requirements/variables_of_playbooks"))
def test_a_playbook_sends_no_variable_with_what_it_requires(here: Path, with_: str, files: dict[str, str]) -> None:
    """uv puts variables into URLs, also of files that are included, so that their author's server got a token."""
    for name, text in files.items():
        (here / name).write_text(text)
    task = Install(with_=(with_,) if with_ else (), requirements=("r.txt",) if files else ())
    with pytest.raises(UsageError, match="requirements of a playbook take no variables"):
        fix_requirements(task)
    assert fix_requirements(task, builds=True) == task, "they are the user's own words"


def test_a_requirement_brings_no_further_option() -> None:
    """uv read `more.txt`, which nobody had looked at."""
    hosts = parse_list("localhost")
    _check_input(Install(with_=("numpy==1 --hash=sha256:00", "a ; python_version < '4'")), hosts)
    for text in ("numpy --hash=sha256:00 -r more.txt", "numpy\r-r more.txt", "numpy --no-index"):
        with pytest.raises(UsageError, match="invalid arguments"):
            _check_input(Install(with_=(text,)), hosts)


def test_files_of_requirements_take_no_time(here: Path) -> None:
    """Blank lines of 64 KiB held `install` for 20 s, eight files that include the next one ten times for days."""
    watch = Stopwatch()
    (here / "r.txt").write_text("\n" * 40_000 + "numpy\n")
    assert [text for _, text in list_texts(Install(requirements=("r.txt",)))]
    for number in range(8):
        (here / f"r{number}.txt").write_text(f"-r r{number + 1}.txt\n" * 10)
    (here / "r8.txt").write_text("numpy\n")
    fix_requirements(Install(requirements=("r0.txt",)))
    (here / "r.txt").write_text("a\n" * (1 << 18))
    with pytest.raises(UsageError, match=r"r\.txt: the requirements are too long"):
        fix_requirements(Install(requirements=("r.txt",)))
    assert watch.read() < 5


@pytest.mark.parametrize("name", ["{here}/pipe", "pipe", "'pipe'", "file://{here}/%70ipe", "${{HERE}}/pipe"])
@pytest.mark.parametrize("option", ["-r ", "-c ", "--requirement="])
def test_requirements_that_include_a_pipe_or_a_device_are_refused(
    here: Path, option: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe held uv for ever, and /dev/zero took 2 GiB."""
    monkeypatch.setenv("HERE", str(here))
    os.mkfifo(here / "pipe")
    (here / "r.txt").write_text(f"{option}{name.format(here=here)}\n")
    with pytest.raises(UsageError, match="pipe is not a file, and requirements include it"):
        [*list_texts(Install(requirements=("r.txt",)))]


def test_a_path_of_the_machine_that_conda_built_on_is_to_be_a_version(here: Path) -> None:
    (here / "r.txt").write_text("six @ file:///tmp/build/80754af9/six_1644875935023/work\n")
    with pytest.raises(UsageError) as caught:
        fix_requirements(Install(requirements=("r.txt",)))
    assert (caught.value.hint or "").startswith("six==VERSION in its place, as written by pip list --format freeze")


def test_a_file_of_another_format_is_refused_with_its_lines(here: Path) -> None:
    (here / "env.yml").write_text(
        "name: x\ndependencies:\n  - pip:\n    - numpy\nnumpy=1.26\nnumpy==2.1 --hash=sha256:00\n"
    )
    with pytest.raises(UsageError, match="is no requirement") as caught:
        fix_requirements(Install(requirements=("env.yml",), with_=("numpy>=2",)))
    assert caught.value.exit is Exit.INPUT
    assert [reason.partition(": ")[0] for reason in caught.value.reasons] == ["env.yml:1", "env.yml:2", "env.yml:5"]
    with pytest.raises(UsageError, match="is no requirement"):
        fix_requirements(Install(with_=("scikit learn!",)))
    with pytest.raises(UsageError) as several:
        fix_requirements(Install(with_=("numpy,pandas", "tqdm>=4,<5")))
    command = "ipexctl install --with numpy --with pandas --with 'tqdm>=4,<5'"
    assert several.value.hint == f"one requirement for each --with:\n{command}"


@pytest.mark.parametrize("text", ["x" + " " * 200_000 + "y", "x; " + "(" * 2000 + "python_version > '3'"])
def test_a_requirement_that_somebody_made_for_it_is_none(text: str) -> None:
    assert Requirement(text, "r.txt:1").fault
    assert extend.read_package_name(text) == ""


@pytest.mark.parametrize("with_", ["-e ./pkg", "./none", "git+https://host/x", "./x.tar.gz"])
def test_what_even_install_does_not_build_is_refused(here: Path, with_: str) -> None:
    assert fix_requirements(Install(with_=("./pkg[x]", "ours @ ./pkg")), builds=True).with_ == (
        "./pkg[x]",
        "ours @ ./pkg",
    )
    with pytest.raises(UsageError, match="builds only projects of --with") as caught:
        fix_requirements(Install(with_=("./pkg", with_)), builds=True)
    assert len(caught.value.reasons) == 1
    (here / "req.txt").write_text("./pkg\n")
    with pytest.raises(UsageError, match="builds only projects of --with"):
        fix_requirements(Install(requirements=("req.txt",)), builds=True)


def test_projects_of_files_are_named_with_their_lines(here: Path) -> None:
    (here / "deep").mkdir()
    (here / "req.txt").write_text("numpy\n-r deep/more.txt\n-e ./pkg\n")
    (here / "deep/more.txt").write_text("\n./x.tar.gz\n-r none.txt\n-r ../req.txt\n")
    with pytest.raises(UsageError) as caught:
        fix_requirements(Wheels(directory="w", requirements=("req.txt", "none.txt")))
    assert caught.value.reasons == (
        "req.txt:3: -e ./pkg is a local project",
        "deep/more.txt:2: ./x.tar.gz is an archive of sources",
    )


def test_a_wheel_by_its_path_is_the_same_from_everywhere(here: Path) -> None:
    wheel, name = "dist/My_Pkg-1.0-py3-none-any.whl", "my-pkg"
    uri = f"file://{here}/{wheel}"
    expected = {
        f"./{wheel}": f"{name} @ {uri}",
        wheel: f"{name} @ {uri}",
        f"{here}/{wheel}": f"{name} @ {uri}",
        f"./{wheel}[extra] ; python_version > '3'": f"{name}[extra] @ {uri} ; python_version > '3'",
        f"other[x] @ {wheel}": f"other[x] @ {uri}",
        f"{name} @ {uri}": f"{name} @ {uri}",
        "numpy>=2; python_version > '3'": "numpy>=2; python_version > '3'",
        "./odd.whl": "./odd.whl",
    }
    assert fix_requirements(Install(with_=tuple(expected))).with_ == tuple(expected.values())


def test_a_wheel_by_a_relative_path_in_a_file_is_refused(here: Path) -> None:
    (here / "req.txt").write_text("/abs/a-1-py3-none-any.whl\nmy dist/a-1-py3-none-any.whl\n")
    with pytest.raises(UsageError) as caught:
        fix_requirements(Install(requirements=("req.txt",)))
    assert caught.value.reasons == ("req.txt:2: my dist/a-1-py3-none-any.whl is a wheel by a relative path",)
    assert caught.value.hint == "--find-links 'my dist', and the package by its name"
