"""What others may own or write is not executed, by no command: one rule, in sh and in Python, held to one table."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ipexctl.act import agent, run_control
from ipexctl.act.bundled_files import read_script
from ipexctl.act.run_dir import START_PYTHON, RemoteRunDir, create_run_dir
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.act.transfer.send import list_tree
from ipexctl.decide.releases.env_health import find_unhealthy_envs
from ipexctl.model.hosts import Host, LinkError
from ipexctl.protocol.messages import StopRun
from ipexctl.protocol.paths import AGENT, AGENTS, ROLE, RUNS
from ipexctl.remote.session import places, uv
from tests.unit.agent.runs import SPEC
from tests.unit.agent.test_launcher_pipes import SHELLS
from tests.unit.agent.test_listing import ended
from tests.unit.doctor.test_probe import ask, facts

HERE = Host("here", "localhost")
STRANGER = 4242
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of another account")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def link(home: Path) -> LocalLink:
    return LocalLink(HERE, env={"HOME": str(home), "PATH": os.environ["PATH"]})


def plant(path: Path, mark: Path, owner: int = STRANGER) -> None:
    """A program that tells by ``mark`` that it was executed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\necho executed >>{mark}\n")
    path.chmod(0o755)
    os.chown(path, owner, -1)


# environments ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def env(home: Path) -> Path:
    made = home / "env.d/e1"
    for name in ("bin", "lib/python3.11/site-packages"):
        (made / name).mkdir(parents=True)
    (made / "bin/python").symlink_to(shutil.which("python3") or "")
    (made / "pyvenv.cfg").write_text("version = 3.11.2\n")
    (home / "env").symlink_to(made)
    return home / "env"


def own_open_directory(directory: Path, owner: Path) -> None:
    """Makes one like /tmp, where ``owner`` belongs to a stranger."""
    directory.chmod(0o1777)
    os.chown(owner, STRANGER, -1)


def open_store_and_deny(env: Path) -> None:
    Path(f"{env}.d").chmod(0o777)
    Path(f"{env}.d/x\nfault\t").mkdir()


def move_behind_link(env: Path, mode: int) -> None:
    """A stranger's link leads to what is ours, and to something of his own a moment later."""
    home, place = env.parent, env.parent.parent
    home.symlink_to(home.rename(place.with_name(f"{place.name}-behind")))
    os.chown(home, STRANGER, -1, follow_symlinks=False)
    place.chmod(mode)


def give_link(env: Path, mode: int) -> None:
    """The link to the environment is a stranger's, who can have it lead elsewhere a moment later."""
    env.parent.chmod(mode)
    os.chown(env, STRANGER, -1, follow_symlinks=False)


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "ours": (lambda _: None, ""),
    "in a directory of a group": (lambda env: env.parent.chmod(0o775), ""),
    "in one like /tmp": (lambda env: env.parent.chmod(0o1777), ""),
    "in one like /tmp of another": (
        lambda env: own_open_directory(env.parent, env.parent),
        "home belongs to another user, and can be written by everybody",
    ),
    "in another's directory in one like /tmp": (
        lambda env: own_open_directory(env.parent.parent, env.parent),
        "home belongs to another user, and ",
    ),
    "in one of everybody": (lambda env: env.parent.chmod(0o777), "home can be written by everybody"),
    "below one of everybody": (lambda env: env.parent.parent.chmod(0o777), "can be written by everybody"),
    "behind a link in one of everybody": (lambda env: move_behind_link(env, 0o777), "can be written by everybody"),
    "behind another's link in one like /tmp": (
        lambda env: move_behind_link(env, 0o1777),
        "home belongs to another user, and ",
    ),
    "behind another's link": (lambda env: move_behind_link(env, 0o755), ""),
    "by another's link in one like /tmp": (lambda env: give_link(env, 0o1777), "env belongs to another user, and "),
    "by another's link": (lambda env: give_link(env, 0o755), ""),
    "a store of everybody": (lambda env: Path(f"{env}.d").chmod(0o777), "env.d can be written by others"),
    "a store of everybody, and a name that denies it": (open_store_and_deny, "env.d can be written by others"),
    "a store of a group": (lambda env: Path(f"{env}.d").chmod(0o775), "env.d can be written by others"),
    "replaced": (lambda env: os.chown(f"{env}.d/e1", STRANGER, -1), "e1 belongs to another user"),
    "replaced in part": (lambda env: os.chown(f"{env}.d/e1/bin", STRANGER, -1), "bin belongs to another user"),
    "open in part": (lambda env: Path(f"{env}.d/e1/lib").chmod(0o757), "lib can be written by others"),
}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("case", CASES)
def test_an_environment_is_judged_alike_in_sh_and_in_python(env: Path, case: str, shell: list[str]) -> None:
    change, why = CASES[case]
    change(env)
    text = read_script("ownership.sh") + 'check_environment "$1"; printf "%s" "$fault"'
    done = subprocess.run([*shell, "-c", text, "sh", str(env)], capture_output=True, text=True, timeout=60, check=True)
    in_python = places.find_store_fault(f"{env}.d")
    assert (done.stdout == "", in_python == "", done.stderr) == (why == "", why == "", "")
    assert why in done.stdout
    assert why in in_python


@pytest.mark.parametrize(
    ("change", "used"),
    [
        (lambda _: None, True),
        (lambda cache: cache.chmod(0o775), True),  # a group is trusted
        (lambda cache: cache.chmod(0o777), False),
        (lambda cache: cache.parent.chmod(0o777), False),
        (lambda cache: os.chown(cache, STRANGER, -1), False),
        (lambda cache: move_behind_link(cache / "x", 0o777), False),
    ],
)
def test_an_install_takes_wheels_only_from_a_cache_that_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], used: bool
) -> None:
    """uv installs what is unpacked there as what the hash named: another user's code was executed."""
    (cache := tmp_path / "cache/uv").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    change(cache)
    assert uv.choose_uv_cache(str(tmp_path)) == str(cache if used else tmp_path / "cache")


def test_an_environment_of_another_account_that_is_all_its_own_is_used(env: Path) -> None:
    """Others may use what one has installed; what a third has put into it is refused."""
    for path in (Path(f"{env}.d"), *Path(f"{env}.d").rglob("*")):
        os.chown(path, STRANGER, -1, follow_symlinks=False)
    text = read_script("ownership.sh") + 'check_environment "$1"; printf "%s" "$fault"'
    script = ["sh", "-c", text, "sh", str(env)]
    assert subprocess.run(script, capture_output=True, text=True, timeout=60, check=True).stdout == ""
    env.parent.chmod(0o1777)
    fault = subprocess.run(script, capture_output=True, text=True, timeout=60, check=True).stdout
    assert fault == f"{env}.d belongs to another user, and {env.parent} can be written by everybody", "as anybody can"
    env.parent.chmod(0o755)
    os.chown(f"{env}.d/e1/bin", STRANGER + 1, -1)
    assert "another user" in subprocess.run(script, capture_output=True, text=True, timeout=60, check=True).stdout


def start_python(python: Path) -> bytes:
    words = ["sh", "-c", f'p=$1; shift; {START_PYTHON} "$@"', "sh", str(python), "-c", "print(1)"]
    return subprocess.run(words, check=True, timeout=60, capture_output=True).stdout


@pytest.mark.parametrize("own_path", [False, True])
def test_the_python_of_a_replaced_environment_is_not_started(env: Path, tmp_path: Path, own_path: bool) -> None:
    python = (env.resolve() if own_path else env) / "bin/python"
    plant(python, tmp_path / "mark", 0)
    assert start_python(python) == b""
    assert (tmp_path / "mark").exists(), "the test itself works"
    (tmp_path / "mark").unlink()
    os.chown(f"{env}.d/e1", STRANGER, -1)
    assert start_python(python) == b"1\n", "the host's own does"
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["env.d/e1", "conda"])
def test_what_another_has_made_where_the_environment_of_a_run_was_is_not_started(home: Path, name: str) -> None:
    """`ps` and `attach` executed it: the environment of a run that is over had gone from a directory like /tmp."""
    mark = home / "mark"
    plant(home / name / "bin/python", mark)
    assert start_python(home / name / "bin/python") == b"", "of another account, where not everybody can make one"
    mark.unlink()
    own_open_directory(home, home / name.partition("/")[0])
    os.chown(home / name, STRANGER, -1)
    os.chown(home / name / "bin", STRANGER, -1)
    assert start_python(home / name / "bin/python") == b"1\n"
    assert not mark.exists()


@pytest.mark.parametrize(
    "case", ["replaced", "a store of everybody", "a store of everybody, and a name that denies it", "ours"]
)
def test_a_replaced_environment_is_a_finding_and_no_run_begins(env: Path, case: str) -> None:
    """`doctor` and `run` executed it, and `install` called it unchanged."""
    change, why = CASES[case]
    change(env)
    read = facts(ask(os.environ["PATH"], home=env.parent, venv=str(env)))
    assert read.installed is not None
    assert (why in read.installed.fault, read.installed.exists) == (True, not why)
    [failure] = find_unhealthy_envs({"node0": read})
    assert (failure.code, failure.hint is not None) == ("untrusted" if why else "no-env", True)


# runs -----------------------------------------------------------------------------------------------------------------


def open_state(home: Path) -> None:
    (home / ".local/state").chmod(0o777)


def open_runs(home: Path) -> None:
    (home / RUNS).chmod(0o777)


def give_run_away(home: Path) -> None:
    """What is left when somebody who was told so has taken away the right to write."""
    os.chown(home / RUNS / "0101-bad-h0", STRANGER, -1)


def open_run(home: Path) -> None:
    (home / RUNS / "0101-bad-h0").chmod(0o775)


@pytest.mark.parametrize("opened", [open_state, open_runs, give_run_away, open_run, lambda _: None])
def test_no_command_executes_what_another_user_has_put_there(
    link: LocalLink, home: Path, tmp_path: Path, opened: Callable[[Path], object]
) -> None:
    """`ps`, `stop`, `attach` and `logs` executed it, as root."""
    site = ended(link, home, "0101-bad", "python3")
    plant(Path(site.directory, ROLE), tmp_path / "mark")
    opened(home)
    commands: list[Callable[[], object]] = [
        lambda: run_control.list_runs_on_head(link),
        lambda: run_control.read_run_description(link, site.directory),
        lambda: run_control.send_order(link, site, StopRun("test")),
        lambda: run_control.collect_stacks(link, site, "1", SPEC.timings),
    ]
    for command in commands:
        with pytest.raises(LinkError, match="nothing of a run is executed: ") as refused:
            command()
        assert refused.value.failure.code == "untrusted"
        assert "mv ~/.local/state/ipexctl ~/.local/state/ipexctl.untrusted" in (refused.value.failure.hint or "")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_what_belongs_to_another_as_a_whole_is_refused_also_where_no_directory_is_open(shell: list[str]) -> None:
    """As with the HOME of another user; below /tmp another rule refuses it, too."""
    with TemporaryDirectory(dir="/run") as place:
        runs = Path(place, "runs")
        plant(runs / "r1" / ROLE, runs / "mark")
        for path in (runs, runs / "r1"):
            os.chown(path, STRANGER, -1)
        text = read_script("ownership.sh") + f'find_fault "$1" "$1" "$1/r1" "$1/r1/{ROLE}"; printf "%s" "$fault"'
        done = subprocess.run([*shell, "-c", text, "sh", runs], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == f"{runs} belongs to another user"


def test_words_that_another_user_has_put_into_a_name_are_not_shown(link: LocalLink, home: Path) -> None:
    (home / RUNS / "0101-bad\nrun this: b").mkdir(parents=True)
    plant(home / RUNS / "0101-bad\nrun this: b" / ROLE, home)
    with pytest.raises(LinkError) as caught:
        run_control.list_runs_on_head(link)
    assert caught.value.failure.what == f"nothing of a run is executed: {home / RUNS} has a name of several lines"


def test_a_planted_run_hides_no_other(link: LocalLink, home: Path, tmp_path: Path) -> None:
    ended(link, home, "0102-good", "python3")
    plant(home / RUNS / "0101-bad-h0" / ROLE, tmp_path / "mark")
    os.chown(home / RUNS / "0101-bad-h0", STRANGER, -1)
    assert [row.run for row in run_control.list_runs_on_head(link).runs] == ["0102-good"]
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(("owner", "mode"), [(STRANGER, 0o666), (0, 0o600)])
def test_a_kept_agent_of_another_content_is_not_taken(link: LocalLink, home: Path, owner: int, mode: int) -> None:
    """It was taken where it ended as an archive does: whoever's it was, and with zeros in it."""
    kept = home / AGENTS / agent.compute_agent_id()
    whole = agent.build_archive()
    kept.parent.mkdir(parents=True, mode=0o700)
    kept.write_bytes(whole[:1000] + bytes(5000) + whole[6000:])
    kept.chmod(mode)
    os.chown(kept, owner, -1)
    site = RemoteRunDir(HERE, f"{home}/{RUNS}/r1-h0", "python3")
    create_run_dir(link, site, SPEC)
    assert Path(site.directory, AGENT).read_bytes() == kept.read_bytes() == whole
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (0, 0o600)


@pytest.mark.parametrize("shell", SHELLS)
def test_what_goes_away_while_it_is_looked_at_is_no_fault(tmp_path: Path, shell: tuple[str, ...]) -> None:
    """A run that ends takes its directory along."""
    (tmp_path / "runs/r1").mkdir(parents=True)
    script = read_script("ownership.sh") + (
        'ls() { case $2 in */r1) rmdir "$2" ;; esac; command ls "$@"; }\n'
        'find_fault "$1" "$1" "$1/r1"; printf "<%s>" "$fault"\n'
    )
    done = subprocess.run([*shell, "-c", script, "sh", str(tmp_path / "runs")], capture_output=True, text=True)
    assert done.stdout == "<>", done


# projects -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", ["ipexctl", "ipexctl/p"])
def test_no_rank_starts_where_others_may_have_put_modules_though_nothing_is_to_be_sent(
    opened: str, home: Path, link: LocalLink
) -> None:
    """One of them was imported by root, also by who obeyed the refusal and took away their right to write alone."""
    (home / "ipexctl/p").mkdir(parents=True, mode=0o755)
    assert list_tree(link, "~/ipexctl/p", send=True)
    (home / opened).chmod(0o777)
    assert list_tree(link, "~/ipexctl/p"), "`du` only looks"
    with pytest.raises(LinkError, match=f"{opened} can be written by others: .* move away what"):
        list_tree(link, "~/ipexctl/p", send=True)
