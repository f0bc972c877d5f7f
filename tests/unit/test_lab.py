"""What a lab writes, as text; nothing is started."""

import errno
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.act import lab as act
from ipexctl.act.lab import Lab, Server, Tools
from ipexctl.decide import parsing
from ipexctl.model.errors import Exit, UsageError
from ipexctl.store.private_files import write_private_file
from ipexctl.verbs.lab import up

TOOLS = Tools("/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/bin/ssh", "/usr/lib/openssh/sftp-server")


def lab(directory: Path) -> Lab:
    servers = (Server("lab0", 40001, 11, 5), Server("lab1", 40002, 12, 6))
    return Lab(directory, ("lab0", "lab1"), "ann", "c0ffee", "boot", servers)


@pytest.mark.parametrize("name", ["lab", "my state", "it's#1=here"])
def test_the_hostfile_says_all_that_reading_needs(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    first, second = parsing.parse_inventory(act.format_hostfile(lab(place)), "hostfile").hosts
    assert (first.name, first.address, first.port, first.user) == ("lab0", "127.0.0.1", 40001, "ann")
    assert first.key == second.key == str(place / "id_ed25519")
    assert first.vars["venv"] == second.vars["venv"] == str(place / "env")
    assert first.vars["known_hosts"] == str(place / "known_hosts")


def test_a_server_lets_only_this_user_in_only_with_the_key_and_only_on_loopback(tmp_path: Path) -> None:
    lines = act.format_sshd_config(lab(tmp_path), "lab1", 40002, TOOLS).splitlines()
    for line in (
        "ListenAddress 127.0.0.1:40002",
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "AllowUsers ann",
        f'SetEnv "HOME={tmp_path}/lab1/home" "IPEXCTL_LAB=c0ffee"',
    ):
        assert line in lines


def test_strict_modes_are_left_to_sshd_where_its_rule_fits(tmp_path: Path) -> None:
    text = act.format_sshd_config(lab(Path("/usr/share/lab")), "lab0", 40001, TOOLS)
    assert "StrictModes yes" in text
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert "StrictModes no" in act.format_sshd_config(lab(shared / "lab"), "lab0", 40001, TOOLS)


def test_a_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="others may change") as refused, act.lock_lab_directory(tmp_path / "lab"):
        pass
    assert refused.value.exit == Exit.STEP
    tmp_path.chmod(0o1777)  # as /tmp: nobody else can move or replace what is ours
    with act.lock_lab_directory(tmp_path / "lab"):
        assert stat.S_IMODE((tmp_path / "lab").stat().st_mode) == 0o700


def test_a_link_in_place_of_its_directory_is_refused(tmp_path: Path) -> None:
    """The keys in the directory that it led to, such as ~/.ssh, were replaced, and removed with the lab."""
    (keys := tmp_path / "keys").mkdir(mode=0o755)
    (tmp_path / "lab").symlink_to(keys)
    with pytest.raises(UsageError, match="is not a directory"), act.lock_lab_directory(tmp_path / "lab"):
        pass
    assert [*keys.iterdir()] == []
    assert stat.S_IMODE(keys.stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ['a"b', "a%b", "a\\b", "a\nb", "ä"])
def test_a_path_that_sshd_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="its path contains") as refused, act.lock_lab_directory(tmp_path / name):
        pass
    assert "\n" not in refused.value.sentence
    assert not (tmp_path / name).exists()


def test_a_full_disk_is_no_fault_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(act, "find_openssh_tools", lambda: None)
    monkeypatch.setattr(act, "create_lab", fill)
    with pytest.raises(UsageError, match="cannot hold a lab: no space left on device"):
        list(up(1, tmp_path))


def test_only_one_ipexctl_works_on_a_lab(tmp_path: Path) -> None:
    with act.lock_lab_directory(tmp_path / "lab"):
        with pytest.raises(UsageError, match="another ipexctl") as refused, act.lock_lab_directory(tmp_path / "lab"):
            pass
        assert refused.value.exit == Exit.BUSY
    with act.lock_lab_directory(tmp_path / "lab"):
        pass


def test_a_process_of_the_same_number_is_not_the_server(tmp_path: Path) -> None:
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    own = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    for started, boot, expected in ((own, here, True), (own + 1, here, False), (own, "other", False)):
        server = Server("lab0", 1, os.getpid(), started)
        assert act.is_server_alive(Lab(tmp_path, ("lab0",), "ann", "c0ffee", boot, (server,)), server) is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what others' processes were started with")
def test_a_process_of_another_user_is_none_of_a_lab(tmp_path: Path) -> None:
    """`lab down` ended it, and read all of its variables, which may be terabytes."""
    with subprocess.Popen(["/bin/sleep", "300"], env={act.ENV_TAG: "c0ffee"}, user=4242) as process:
        try:
            assert act.find_processes(lab(tmp_path)) == set()
        finally:
            process.kill()


def test_a_record_that_cannot_be_read_is_an_error_and_a_missing_one_is_no_lab(tmp_path: Path) -> None:
    assert act.load_lab(tmp_path) is None
    texts = ('{"names": ["lab0"]', "[" * 100_000, "[]", '{"servers": [], "names": 5}', "\n" * (2 << 20))
    for text in texts:
        write_private_file(tmp_path / "lab.json", text.encode())
        with pytest.raises(UsageError, match="cannot be read"):
            act.load_lab(tmp_path)
    (tmp_path / "lab.json").unlink()
    os.mkfifo(tmp_path / "lab.json")
    with pytest.raises(UsageError, match="not a regular file"):
        act.load_lab(tmp_path)


def test_a_server_without_a_start_time_is_none(tmp_path: Path) -> None:
    """No process with the id -1 has a start time: the server "ran", and `lab down` ended every process of the user."""
    act.save_lab(replace(lab(tmp_path), servers=(act.Server("lab0", 1, -1, 0),)))
    record = (tmp_path / "lab.json").read_text()
    for old, new in [('"started": 0', '"started": null'), ('"pid": -1', '"pid": "self"')]:
        assert old in record
        write_private_file(tmp_path / "lab.json", record.replace(old, new).encode())
        with pytest.raises(UsageError, match="cannot be read"):
            act.load_lab(tmp_path)


def test_files_outside_of_the_lab_are_no_host_s(tmp_path: Path) -> None:
    """`lab down` removed the host keys of whatever directory the record named."""
    act.save_lab(lab(tmp_path))
    record = (tmp_path / "lab.json").read_text()
    assert act.load_lab(tmp_path) == lab(tmp_path)
    for name in ("/etc/ssh", "../lab0", ".", "lab0/home"):
        write_private_file(tmp_path / "lab.json", record.replace('"lab0"', f'"{name}"').encode())
        with pytest.raises(UsageError, match="its hosts are not lab0, lab1"):
            act.load_lab(tmp_path)
