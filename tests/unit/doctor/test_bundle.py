"""Frames, saved bundles, and text of any kind: never an exception, never a guess."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipexctl.decide.checks.processor import check_instruction_sets
from ipexctl.decide.facts.cpu import parse_lscpu
from ipexctl.decide.facts.numbers import parse_cpu_list
from ipexctl.decide.facts.parse_facts import parse_facts
from ipexctl.decide.facts.probe_output import ProbeOutput, parse_bundle, parse_probe_answer
from ipexctl.decide.facts.system import (
    find_scheduler,
    parse_own_ssh_address,
    read_disks,
    read_distribution,
    read_interfaces,
    read_library_paths,
    read_pythons,
    read_resource_limits,
)
from ipexctl.model.errors import UsageError
from ipexctl.model.facts import Disk
from ipexctl.model.json_values import to_json
from ipexctl.model.text import parse_integer
from tests.tables import read_table
from tests.unit.doctor.corpus import uarchs

MARK = "0123456789abcdef0123456789abcdef"
SEAM = MARK[-8:]


def framed(kind: str, name: str, body: str) -> str:
    return f"\n{MARK} begin {kind} {name}\n{body}\n{MARK} end\n"


def aside(name: str, *lines: str, status: int = 0) -> str:
    output = f"{MARK} output {name}\t{SEAM.join(lines)}\n" if lines else ""
    return f"{MARK} asked {name}\n{output}{MARK} ended {status} {name}\n"


NOISE = "\x1b[31mWelcome!\x1b[0m\nbegin command date\n1\nend 0\n"
FORGED = framed("command", "date", "9").replace(MARK, "f" * 32)


@pytest.mark.parametrize(
    ("before", "frame", "behind", "commands"),
    [
        (NOISE, framed("command", "date", "7"), NOISE, {"date": "7"}),  # what stands outside of the frames is not ours
        ("stty: not a tty", framed("command", "date", "7"), "", {"date": "7"}),  # noise without an end of line
        ("", framed("command", "ps", FORGED), "", {"ps": FORGED.rstrip("\n") + "\n"}),  # a frame with another mark
    ],
)
def test_of_an_answer_the_frames_with_our_mark_count(
    before: str, frame: str, behind: str, commands: dict[str, str]
) -> None:
    answer = f"{before}{frame}{behind}\n{MARK} done\n{behind}"
    assert parse_probe_answer(answer.encode(), MARK) == ProbeOutput({}, commands, {})


def test_a_distribution_is_named_without_the_quotes_of_its_fields() -> None:
    for text, name in (
        ("NAME='Alpine Linux'\nVERSION_ID=3.20\n", "Alpine Linux 3.20"),
        ('NAME="Void"\n', "Void"),
        ("", None),
    ):
        assert read_distribution(ProbeOutput({"/etc/os-release": text})) == name


def test_limits_are_the_soft_ones_and_of_open_files_the_hard_one_too() -> None:
    text = "Max open files  1024  4096  files\nMax processes  99  1  processes\n"
    limits = read_resource_limits(ProbeOutput({"/proc/self/limits": text}))
    assert limits == {"nofile": 1024, "nofile_hard": 4096, "nproc": 99}


def test_many_small_files_come_as_lines_with_their_paths() -> None:
    body = "cpu0/topology/core_id:0\n/proc/a:x:y\n/proc/a:z\n/proc/empty:"
    result = parse_probe_answer((framed("grep", "/sys", body) + f"\n{MARK} done\n").encode(), MARK)
    assert result.files == {"/sys/cpu0/topology/core_id": "0\n", "/proc/a": "x:y\nz\n", "/proc/empty": "\n"}


def test_items_that_were_killed_cut_or_binary_are_named_and_kept() -> None:
    answer = (
        aside("df", "half", status=137)
        + aside("getent", "so", "much", status=141)
        + framed("command", "date", "a\0b")
        + f"{MARK} asked venv\n\n{MARK} begin command env\nX=1"
    )
    result = parse_probe_answer(answer.encode(), MARK, limit=3)
    assert result.unread == {
        "df": "timed out after 3 s",
        "getent": "malformed: longer than 256 KiB: 'so\\nmuch\\n'",
        "date": "malformed: not text: 'a\\x00b'",
        "venv": "timed out after 3 s",
        "env": "the answer ends in the middle",
        "probe": "the answer is cut",
    }
    assert result.commands["df"] == "half\n"


def test_what_is_printed_aside_may_stand_within_a_line_and_leaves_no_trace() -> None:
    inner = aside("getent", "a\t10.0.0.1", "b\t10.0.0.2")
    body = f"/proc/a:x{inner}y\n{inner}/proc/b:z"
    result = parse_probe_answer((framed("grep", "/sys", body) + f"\n{MARK} done\n").encode(), MARK)
    assert result.files == {"/proc/a": "xy\n", "/proc/b": "z\n"}
    assert result.commands == {"getent": 2 * "a\t10.0.0.1\nb\t10.0.0.2\n"}
    assert result.unread == {}


def test_one_who_does_not_end_is_missed_though_others_answered_the_same_question() -> None:
    answer = f"{MARK} asked python -V\n" + aside("python -V", "/usr/bin/python3\tPython 3.12.1") + f"\n{MARK} done\n"
    result = parse_probe_answer(answer.encode(), MARK, limit=7)
    assert result.unread == {"python -V": "timed out after 7 s"}
    assert result.commands == {"python -V": "/usr/bin/python3\tPython 3.12.1\n"}


def test_no_answer_is_distinguished_from_a_short_one() -> None:
    assert parse_probe_answer(b"This account is not available.\n", MARK).unread == {"probe": "no answer"}


def test_processes_that_cannot_be_killed_are_named() -> None:
    result = parse_probe_answer((framed("command", "left", "4711 df\n") + f"\n{MARK} done\n").encode(), MARK)
    assert result.unread == {"process 4711 df": "could not be killed"}


@given(st.binary(max_size=400))
def test_any_bytes_can_be_unframed(noise: bytes) -> None:
    answer = noise + framed("command", "date", "1").encode() + noise + f"\n{MARK} done\n".encode() + noise
    assert parse_probe_answer(answer, MARK).commands == {"date": "1"}
    parse_probe_answer(noise, MARK)


FILES = read_table("bundle/files")
COMMANDS = read_table("bundle/commands")
PIECES = read_table("bundle/pieces")


@settings(max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(FILES + COMMANDS), st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=8)
    )
)
def test_any_text_can_be_read_and_shown(message: dict[str, list[str]]) -> None:
    texts = {name: "".join(pieces) for name, pieces in message.items()}
    bundle = ProbeOutput(
        {name: text for name, text in texts.items() if name in FILES},
        {name: text for name, text in texts.items() if name in COMMANDS},
    )
    facts = parse_facts(bundle, uarchs())
    json.dumps(to_json(facts))
    for value in (facts.sockets, facts.physical_cores, facts.threads_per_core, facts.mem_total_kb, facts.cgroup_cpus):
        assert value is None or value >= 0
    assert all(count != 0 for count in (facts.sockets, facts.physical_cores, facts.logical_online))


@pytest.mark.parametrize("text", ["1e999", "-4", "0-", "5-2", "0-9999999", "a", "0x10", "1,,2"])
def test_a_list_of_cpus_that_is_none_is_not_read(text: str) -> None:
    assert parse_cpu_list(text) is None


def test_lists_and_numbers_are_read() -> None:
    assert parse_cpu_list("0-2,8\n") == (0, 1, 2, 8)
    assert parse_cpu_list("") == ()
    assert parse_cpu_list(None) is None
    assert parse_integer(" 12 ") == 12
    assert parse_integer("-1") is None
    assert parse_integer("9" * 30) is None


def test_ten_thousand_cpus_are_a_number_like_any_other() -> None:
    siblings = {f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": str(n) for n in range(10_000)}
    packages = {f"/sys/devices/system/cpu/cpu{n}/topology/physical_package_id": "0" for n in range(10_000)}
    facts = parse_facts(ProbeOutput({**siblings, **packages, "/sys/devices/system/cpu/online": "0-9999"}), uarchs())
    assert (facts.physical_cores, facts.sockets) == (10_000, 1)


def test_a_value_that_a_terminal_has_cut_in_words_is_whole_again() -> None:
    message = parse_lscpu("CPU(s):  4\nFlags:   fpu sysca\n         ll avx2 a\n         vx\n", "")
    assert message["Flags"] == "fpu syscall avx2 avx"


def test_a_value_that_was_wrapped_at_blanks_keeps_its_words() -> None:
    message = parse_lscpu("Flags:   fpu syscall sse4_1\n         avx\n         avx2 fma and more\n", "")
    assert message["Flags"].split() == ["fpu", "syscall", "sse4_1", "avx", "avx2", "fma", "and", "more"]


def test_groups_of_threads_that_overlap_tell_nothing() -> None:
    files = {f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n}-{n + 1}" for n in range(3)}
    assert parse_facts(ProbeOutput(files), uarchs()).cores == ()


def test_rows_of_lscpu_that_are_no_rows_are_passed_over() -> None:
    assert parse_lscpu("", '{"lscpu": [3, {"field": "CPU(s):", "data": "4"}]}')["CPU(s)"] == "4"


IFCONFIG = """\
eth0      Link encap:Ethernet
          inet addr:10.0.0.1  Bcast:10.0.0.255  Mask:255.255.255.0
          UP BROADCAST RUNNING MULTICAST  MTU:1500  Metric:1
eth1: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 9000
        inet 10.1.0.1  netmask 0xffff0000
eth2: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500
        inet 10.2.0.1  netmask 255.0.255.0
"""


def test_masks_of_ifconfig_are_lengths_and_an_address_with_none_is_left_out() -> None:
    facts = parse_facts(ProbeOutput({}, {"ip addr": IFCONFIG}), uarchs())
    assert [(card.name, card.addresses, card.mtu) for card in facts.interfaces] == [
        ("eth0", ("10.0.0.1/24",), 1500),
        ("eth1", ("10.1.0.1/16",), 9000),
        ("eth2", (), 1500),
    ]


@pytest.mark.parametrize(("connection", "address"), read_table("bundle/ssh_addresses"))
def test_the_address_ssh_came_in_by_is_read_from_its_variable(connection: str | None, address: str | None) -> None:
    assert parse_own_ssh_address(connection) == address


def test_libraries_are_those_of_the_loaders_cache_for_this_architecture() -> None:
    cache = "\tlibz.so.1 (libc6,x86-64) => /lib/libz.so.1\n\tlibz.so.1 (libc6) => /lib32/libz.so.1\n/opt/libx.so.2\n"
    result = read_library_paths(ProbeOutput({}, {"libraries": cache}))
    assert result == {"libz.so.1": "/lib/libz.so.1", "libx.so.2": "/opt/libx.so.2"}


def test_a_python_that_is_linked_to_musl_cannot_be_used() -> None:
    commands = {"python -V": "/usr/bin/python3\tPython 3.12.3\n", "libraries": "/lib/ld-musl-x86_64.so.1\n"}
    (python,) = read_pythons(ProbeOutput({}, commands))
    assert (python.usable, python.why) == (False, "linked to musl: there are no such wheels")


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/home/a/.pyenv/versions/3.12.4/bin/python3", "3.12.4"),
        ("/home/a/.local/share/uv/python/cpython-3.11.9-linux-x86_64-gnu/bin/python3.11", "3.11.9"),
        ("/usr/local/bin/python3.13", "3.13"),
        ("/opt/tool/bin/python", None),
    ],
)
def test_the_path_of_a_python_that_is_only_listed_says_its_version(path: str, version: str | None) -> None:
    (python,) = read_pythons(ProbeOutput({}, {"python -V": f"{path}\tlisted\n"}))
    assert (python.path, python.version) == (path, version)


@pytest.mark.parametrize(
    ("environ", "marks", "tools", "scheduler"),
    [
        ({"PBS_JOBID": "1"}, frozenset(), {}, "pbs"),
        ({}, frozenset({"/etc/slurm/slurm.conf"}), {}, "slurm"),
        ({}, frozenset(), {"bsub": "/usr/bin/bsub"}, "lsf"),
        ({}, frozenset(), {"ip": "/sbin/ip"}, None),
    ],
)
def test_a_batch_system_is_known_by_its_job_its_file_or_its_command(
    environ: dict[str, str], marks: frozenset[str], tools: dict[str, str], scheduler: str | None
) -> None:
    assert find_scheduler(environ, marks, tools) == scheduler


def test_a_saved_bundle_reads_as_the_first_time_and_names_nobody() -> None:
    bundle = ProbeOutput(
        {"/etc/machine-id": "3d1219c7c4c5404aaa1f6d2a48adfda4\n", "/proc/sys/kernel/random/boot_id": "b86f50d4\n"},
        {"env": "HF_TOKEN=hf_secret\nHOME=/h\n", "ip addr": "    link/ether 02:fc:00:aa:bb:01 brd\n"},
        {"df": "timed out after 10 s"},
    )
    text = json.dumps(bundle.public())
    assert not [secret for secret in ("3d1219c7", "b86f50d4", "hf_secret", "02:fc:00") if secret in text]
    again = parse_bundle(text, "x.json")
    assert again.public() == bundle.public()
    assert parse_facts(again, uarchs()).boot_id == parse_facts(bundle, uarchs()).boot_id
    assert parse_facts(again, uarchs()).unread == {"df": "timed out after 10 s"}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"files": []}', '{"files": {"a": 1}}', "{}", "null"])
def test_what_is_no_saved_probe_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"x\.json is not a saved probe") as refused:
        parse_bundle(text, "x.json")
    assert "--save-bundle" in str(refused.value.hint)


def test_what_is_not_json_is_reported_in_plain_words() -> None:
    with pytest.raises(UsageError) as refused:
        parse_bundle('{"files":\n oh}', "x.json")
    assert refused.value.reasons == ("it is not JSON from line 2, column 2 on",)


@pytest.mark.parametrize("text", ["[" * 200_000, f'{{"format": {"9" * 5000}}}'], ids=["deep", "long"])
def test_json_that_no_parser_takes_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_bundle(text, "x.json")
    assert refused.value.reasons == ("its JSON holds a number that is too long, or is nested too deeply",)


def test_what_would_take_many_times_its_bytes_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 15 MiB took 260 MiB more."""
    monkeypatch.setattr("json.loads", None)
    with pytest.raises(UsageError) as refused:
        parse_bundle('{"files": [' + "[]," * 500_000 + "0]}", "x.json")
    assert refused.value.reasons == ("it has more than 1,000,000 values",)


def test_a_vlan_is_as_real_as_the_card_below_it() -> None:
    text = "".join(
        f"{at}: {name}: <UP,LOWER_UP> mtu 1500\n" for at, name in enumerate(("eth0", "eth0.5", "tap0.5", "tap0"))
    )
    bundle = ProbeOutput({"/sys/class/net/eth0/device": ""}, {"ip addr": text})
    real = [each.name for each in read_interfaces(bundle) if not each.virtual]
    assert real == ["eth0", "eth0.5"]


@pytest.mark.parametrize(
    ("options", "executable"), [("rw,nosuid,noexec,relatime shared:1", False), ("rw,noatime", True)]
)
def test_a_mount_tells_whether_programs_start_from_it(options: str, executable: bool) -> None:
    rows = f"22 1 8:1 / / rw - ext4 /dev/sda rw\n30 22 0:41 / /home {options} - nfs4 server:/home rw,noexec\n"
    df = "path\t/home/u\t/home/u\trw\nserver:/home 100 50 50 50% /home\n"
    disk = Disk("/home/u", 50 << 10, "/home", "nfs4", 100 << 10, True, executable)
    assert read_disks(ProbeOutput({"/proc/self/mountinfo": rows}, {"df -Pk": df})) == (disk,)


MIB = 1 << 20
_CPUS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@pytest.mark.parametrize(
    ("files", "commands"),
    [
        ({"/proc/self/mountinfo": "1 1 a a a " + " - cgroup " * (MIB // 10)}, {}),
        ({"/proc/self/cgroup": "0::" + "/a" * (MIB // 2)}, {}),
        (
            {
                "/proc/self/cgroup": "".join(f"0::/{group}\n" for group in range(MIB // 12)),
                "/proc/mounts": "".join(f"x /{number} cgroup2 x\n" for number in range(MIB // 24)),
            },
            {},
        ),
        ({"/proc/self/limits": "Max " + " " * MIB}, {}),
        ({_CPUS.format(0): "0-16383," * (MIB // 8) + "0"}, {}),
        ({_CPUS.format(cpu): "0-16383" for cpu in range(16_384)}, {}),
        ({f"/sys/devices/system/node/node{number}/cpulist": "0-16383" for number in range(9_999)}, {}),
        ({}, {"ip addr": "e: mtu 1\n inet " + "1" * MIB}),
        ({}, {"ip addr": "e: mtu 1\n " + "inet 1" * (MIB // 6)}),
        ({}, {"lscpu": " " * MIB}),
        ({}, {"lscpu": "CPU(s): 4\n" + "".join(f"NUMA node{number} CPU(s): 0-16383\n" for number in range(9_999))}),
        (
            {
                "/proc/self/cgroup": "".join(f"0::/{number}{f'/{chr(97) * 250}' * 64}\n" for number in range(62)),
                "/proc/mounts": "".join(f"x /{number}{'b' * 16_000} cgroup2 x\n" for number in range(64)),
            },
            {},
        ),
        ({}, {"env": "A=" + "TOKEN" * (MIB // 5)}),
    ],
    ids=[
        "mounts",
        "group",
        "groups",
        "limits",
        "list",
        "siblings",
        "nodes",
        "address",
        "addresses",
        "lscpu",
        "node lines",
        "long names",
        "secret",
    ],
)
def test_what_a_host_says_at_length_takes_no_more_time_than_to_read_it(
    files: dict[str, str], commands: dict[str, str]
) -> None:
    """Each took from minutes to days, or gigabytes. The limit of each test ends it."""
    bundle = ProbeOutput(files, commands)
    facts = parse_facts(bundle, uarchs())
    assert sum(len(node.cpus) for node in facts.numa or ()) < MIB
    assert bundle.public()["files"].keys() == files.keys()


@pytest.mark.parametrize(
    ("arch", "flags", "part"),
    [("x86_64", "lm tsc asimd avx2", "0xd0c"), ("aarch64", "asimd", "x"), ("aarch64", "avx2 fma", "0xd0c")],
)
def test_instruction_sets_of_another_architecture_are_none(arch: str, flags: str, part: str) -> None:
    """`doctor` of all hosts ended with an exception: such levels have no order beside those of the silicon."""
    processor = {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "143", "stepping": "6", "CPU part": part}
    text = "".join(f"{key}: {value}\n" for key, value in {"processor": "0", **processor, "flags": flags}.items())
    facts = parse_facts(ProbeOutput({"/proc/cpuinfo": text, "/proc/sys/kernel/arch": arch}), uarchs())
    assert facts.isa_level in {None, "NEON"}
    assert {hit.code for hit in check_instruction_sets("node1", facts)} <= {"CPU003"}


def test_half_a_character_in_a_saved_bundle_ends_nothing() -> None:
    bundle = parse_bundle(r'{"files": {"/proc/sys/kernel/random/boot_id": "\ud800"}}', "x.json")
    assert parse_facts(bundle, uarchs()).boot_id
    assert bundle.public()


def test_marks_without_an_end_of_line_are_passed_over_once() -> None:
    assert not parse_probe_answer(f"{MARK} asked ".encode() * (MIB // 8), MARK).commands
