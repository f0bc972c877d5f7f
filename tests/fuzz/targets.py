"""The parsers that read what others wrote: hostfiles of a repository, files of a laptop, answers of hosts, lines of a
network. Each must accept or refuse; a `Target` says with which exceptions it refuses, all others are findings."""

import base64
import gzip
import io
import json
import re
import socket
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ipexctl.act.packages.resolve import parse_pylock
from ipexctl.act.ssh.hostkeys import KnownHosts
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.act.transfer.receive import receive_files
from ipexctl.decide import parsing
from ipexctl.decide.facts.probe_output import parse_bundle, parse_probe_answer
from ipexctl.decide.parsing import conditions, playbook
from ipexctl.decide.parsing.ssh_arguments import read_ssh_arguments
from ipexctl.decide.planning.fetch import parse_listing
from ipexctl.decide.planning.requirements import parse_requirements
from ipexctl.decide.planning.sync import parse_remote_tree
from ipexctl.decide.profile.merge import build_profile, summarise_rank
from ipexctl.decide.profile.steps import RecordedSteps, parse_recorded_steps
from ipexctl.decide.profile.traces import TraceError, parse_kernels, parse_trace
from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.decide.run.lines import Demux, Piece
from ipexctl.model.errors import IpexctlError
from ipexctl.model.hosts import Completed, Host, Inventory, LinkError
from ipexctl.model.json_values import parse_json
from ipexctl.model.launch import Running
from ipexctl.model.text import group_pairs
from ipexctl.model.wheels import Lock
from ipexctl.protocol import frames, journal, messages, rank_records, seal
from ipexctl.protocol.codec import DamagedError, Unreadable
from ipexctl.remote.agent import rpc
from tests.fakes import FakeOpener

NONCE = "5ca1ab1e"
TOKEN = "t" * 64


@dataclass(frozen=True)
class Target:
    """``parse`` says whether the bytes were accepted; ``refuses`` are the exceptions that it may raise for others.
    ``least`` is the share of the grammar's texts that are accepted."""

    name: str
    grammar: SearchStrategy[bytes]
    parse: Callable[[bytes], bool]
    refuses: tuple[type[Exception], ...] = (IpexctlError,)
    least: float = 0.5

    def accepts(self, data: bytes) -> bool:
        """Raises what is a finding."""
        try:
            return self.parse(data)
        except self.refuses as error:
            refusal = str(error) if isinstance(error, IpexctlError) else ""
        assert refusal.replace("\n", "").isprintable(), refusal
        return False


def encode(text: SearchStrategy[str]) -> SearchStrategy[bytes]:
    return text.map(lambda value: value.encode("utf-8", "surrogatepass"))


def decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def joined(parts: SearchStrategy[str], by: str, least: int = 1, most: int = 8) -> SearchStrategy[str]:
    return st.lists(parts, min_size=least, max_size=most).map(by.join)


# words ----------------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
NUMBERS = st.integers(0, 70000).map(str)
SMALL = st.integers(1, 64).map(str)
ADDRESSES = st.ip_addresses(v=4).map(str)
RANGES = st.builds("{}[{}-{}]".format, NAMES, st.integers(1, 9), st.integers(10, 20))
HOSTS = NAMES | ADDRESSES | RANGES
VERSIONS = st.builds("{}.{}.{}".format, st.integers(0, 9), st.integers(0, 30), st.integers(0, 9))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)

WORDS = {
    "name": NAMES,
    "number": NUMBERS,
    "small": SMALL,
    "address": ADDRESSES,
    "host": HOSTS,
    "version": VERSIONS,
    "port": st.integers(1, 65535).map(str),
}


def texts(*templates: str, **words: SearchStrategy[str]) -> SearchStrategy[str]:
    """Any of these, each of whose <words> is one of `WORDS` or of ``words``."""
    known, parts = WORDS | words, [re.split(r"<(\w+)>", template) for template in templates]
    pieces = [[known[part] if place % 2 else st.just(part) for place, part in enumerate(each)] for each in parts]
    return st.one_of([st.tuples(*each).map("".join) for each in pieces])


# hosts ----------------------------------------------------------------------------------------------------------------

_KEY_VALUES = texts(
    "slots=<small>", "port=<port>", "user=<name>", "iface=<name>", "address=<address>", "venv=/<name>", "# words"
)
_HOST_LINES = texts(
    "<host> <values>", "<name>:<small>", "<name> slots=<small> max_slots=64", "<name>@<host>", "[<name>]",
    "<name> ansible_host=<address> ansible_user=<name>", "# <name>", "", values=joined(_KEY_VALUES, " ", 0, 3),
)  # fmt: skip
_YAML_HOSTS = st.builds(
    lambda names, slots: json.dumps({"all": {"hosts": {name: {"slots": int(slots)} for name in names}}}),
    st.lists(NAMES, min_size=1, max_size=5),
    SMALL,
)


def hostfile(data: bytes) -> bool:
    return are_sound(parsing.parse_inventory(decode(data), "hosts"))


def host_list(data: bytes) -> bool:
    return are_sound(parsing.parse_list(decode(data)))


def inventory(data: bytes) -> bool:
    return are_sound(parsing.parse_inventory(decode(data), "hosts.yml"))


def are_sound(hosts: Inventory) -> bool:
    """Accepted hosts have names, each its own, which can be printed."""
    assert len({name.lower() for name in hosts.names}) == len(hosts.names) > 0
    assert "".join(hosts.names).isprintable()
    return True


_VARIABLES = texts(
    "ansible_user: <name>", "ansible_port: '<small>'", "<name>_list: [!vault <name>, *a]",
    "url_<name>: 'http://{{ <name> }}'", "ansible_ssh_common_args: -J <name>", "# words",
)  # fmt: skip
_ARGUMENTS = texts(
    "-J <name>@<name>:<small>", "-o ProxyCommand='ssh -q -W %h:%p <name>'", '-oProxyCommand="ssh <name> nc %h %p"',
    "-p<small> -l <name>", "<fixed>",
    fixed=st.sampled_from(["-C -o ControlPersist=60s", "-o StrictHostKeyChecking=no", "-o User=", "-qo", "--"]),
)  # fmt: skip
_REQUIREMENTS = texts(
    "<name>", "<name>[a]==<small> ; python_version > '3'", "-e ./<name>", "./<name>-1-py3-none-any.whl",
    "<name> @ git+https://host/<name>@v1#egg=<name>", "-r <name>.txt", "<name> \\\n  --hash=sha256:00",
)  # fmt: skip


def variables(data: bytes) -> bool:
    file = parsing.VariableFile("host", "node0", "host_vars/node0.yml", decode(data))
    return bool(parsing.parse_inventory("[a]\nnode0\n", "hosts", [file]))


def ssh_arguments(data: bytes) -> bool:
    return bool(read_ssh_arguments(decode(data))[0])


def requirements(data: bytes) -> bool:
    read = [*parse_requirements(decode(data), "list.txt")]
    return any(isinstance(each, str) or each.kind or each.name or each.is_wheel or each.marker for each in read)


def allocation(data: bytes) -> bool:
    scheduler, names, counts = [*decode(data).split("\n", 2), "", ""][:3]
    environ = {
        "SLURM_JOB_NODELIST": names,
        "SLURM_TASKS_PER_NODE": counts,
        "PBS_NODEFILE": "/n",
        "LSB_MCPU_HOSTS": names,
    }
    scheduler = scheduler if scheduler in parsing.SCHEDULERS else "slurm"
    return bool(parsing.parse_allocation(scheduler, {k: v for k, v in environ.items() if v}, f"{names}\n{counts}"))


_ALLOCATIONS = texts(
    "slurm\n<hosts>\n", "slurm\n<name>[1-4]\n<small>(x4)", "pbs\n<name>\n<lines>", "lsf\n<name> <small>\n",
    hosts=st.lists(HOSTS, min_size=1, max_size=4, unique=True).map(",".join), lines=joined(NAMES, "\n"),
)  # fmt: skip


# playbooks ------------------------------------------------------------------------------------------------------------

_CONDITIONS = st.recursive(
    texts(
        "slots <operator> <small>", "isa_level >= <level>", "'<name>' in groups", "host == '<name>'", "'avx2' in flags",
        operator=st.sampled_from(["<", ">=", "==", "!="]),
        level=st.sampled_from(["AVX2", "AVX512", "AVX512_BF16", "AMX"]),
    ),
    lambda inner: texts("not (<inner>)", "(<inner>) and (<inner>)", "<inner> or <inner>", inner=inner),
    max_leaves=6,
)  # fmt: skip
_STEPS = texts(
    "- doctor:", "- install:\n    torch: '<version>'", "- sync:\n    source: <name>\n    exclude: ['*.pt']",
    '- run:\n    script: <name>.py\n    ppn: <small>\n  when: "<condition>"',
    "- run:\n    script: <name>.py\n    env: {A: '${x}'}\n  name: <name>",
    '- command: ["echo", "<name>"]\n  tags: [<name>]', condition=_CONDITIONS,
)  # fmt: skip


def read_playbook(data: bytes) -> bool:
    return bool(playbook.parse_playbook(decode(data), "play.yaml", base="/", variables={"x": "1"}, strict=False))


def when(data: bytes) -> bool:
    text = decode(data)
    if conditions.find_condition_error(text):
        return False
    if not conditions.needs_host_facts(text):
        conditions.evaluate_condition(text, Host("node0", "192.0.2.1"))
    return True


# answers of hosts -----------------------------------------------------------------------------------------------------

_MARK = NONCE * 4
_FRAMES = texts(
    f"{_MARK} begin <kind> <name>\n<text>\n{_MARK} end\n",
    "<asked>",
    kind=st.sampled_from(["file", "command", "grep"]),
    text=st.text(max_size=20),
    asked=NAMES.map(f"{_MARK} asked {{0}}\n{_MARK} output {{0}}\ta\n{_MARK} ended 0 {{0}}\n".format),
)


def probe(data: bytes) -> bool:
    bundle = parse_probe_answer(data, NONCE * 4)
    return bool(bundle.files or bundle.commands)


def bundle(data: bytes) -> bool:
    return bool(parse_bundle(decode(data), "saved"))


_BUNDLES = st.builds(
    lambda files, commands: json.dumps({"files": files, "commands": commands}),
    st.dictionaries(NAMES, st.text(max_size=9), min_size=1),
    st.dictionaries(NAMES, st.text(max_size=9)),
)
_LISTING = st.lists(
    st.tuples(
        st.sampled_from("fld"), st.integers(0, 0o7777), st.integers(0, 1 << 40), st.binary(min_size=1, max_size=9)
    ),
    min_size=1,
    max_size=5,
).map(
    lambda rows: (
        b"/root/out\0"
        + b"".join(
            b"1 %s %o %d 1700000000\0%s\0" % (kind.encode(), mode, size, name.replace(b"\0", b"x"))
            for kind, mode, size, name in rows
        )
    )
)
_TREE = st.lists(st.tuples(st.sampled_from("fldp"), st.binary(min_size=1, max_size=9)), max_size=5).map(
    lambda rows: (
        b"/root/out\0\0\0"
        + b"".join(b"%s 644 5 1700000000\0%s\0\0" % (kind.encode(), name.replace(b"\0", b"x")) for kind, name in rows)
    )
)


def listing(data: bytes) -> bool:
    return bool(parse_listing(data, lambda path, directory: False, folds=True))


def remote_tree(data: bytes) -> bool:
    return bool(parse_remote_tree(data))


def pack(names: list[str], content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def stream(data: bytes) -> bool:
    link = FakeOpener(lambda host, command: Completed(0, data)).open(Host("node0", "192.0.2.1"))
    return any(
        sum(map(len, pieces)) == size for _, size, pieces in receive_files(link, "/root/out", {"a": 99, "b": 99})
    )


# a run ----------------------------------------------------------------------------------------------------------------


def join_streams(pieces: list[Piece]) -> dict[tuple[int | None, str], bytes]:
    streams = group_pairs(((rank, stream), data) for rank, stream, data in pieces)
    return {key: text for key, parts in streams.items() if (text := b"".join(parts))}


def demux(data: bytes) -> bool:
    """All but the frames' heads comes out, whatever the pieces; the order between two streams is nobody's."""
    whole, bytewise = Demux(NONCE), Demux(NONCE)
    once = [*whole.feed(data), *whole.end()]
    pieces = [piece for at in range(len(data)) for piece in bytewise.feed(data[at : at + 1])] + bytewise.end()
    assert sum(len(piece) for _, _, piece in once) <= len(data)
    assert join_streams(once) == join_streams(pieces)
    return any(rank is not None for rank, _, _ in once)


_FRAMED = joined(
    st.builds(
        lambda rank, stream, text: f"\x01{NONCE}={rank}{stream}{len(text)}\x02{text}",
        st.integers(0, 9),
        st.sampled_from("oe"),
        st.text("ab\n\x01\r\x1b", max_size=6),
    ),
    "",
)
_RECORDS: SearchStrategy[str] = st.one_of(
    st.builds(
        lambda *parts: decode(journal.encode_record(rank_records.RankEnded(*parts))),
        st.integers(0, 9),
        NAMES,
        st.integers(0, 255),
    ),
    st.builds(lambda host: decode(journal.encode_record(journal.HostBack(host))), NAMES),
    st.builds(
        lambda *parts: decode(journal.encode_record(rank_records.RankStage(*parts))), st.integers(0, 9), NAMES, NAMES
    ),
    st.builds(lambda *parts: decode(journal.encode_record(journal.RunEnd(*parts))), NAMES, st.just("done"), NAMES),
    st.builds(
        lambda kind, more: json.dumps({**more, "kind": kind}) + "\n",
        st.sampled_from(sorted(journal.KINDS.types)),
        st.dictionaries(st.sampled_from(["rank", "host", "at", "reason", "left"]), JSON),
    ),
)


def run_log(data: bytes) -> bool:
    log = JournalReader(NONCE, Running("r1", "a", ("a",), {}, "train.py", "train.py"))
    events = [*log.read(frames.JOURNAL, data), *log.end()]
    return bool(events) and not log.unreadable


_WATCHED = st.lists(
    st.builds(frames.WatchFrame, st.sampled_from("joetz"), st.integers(0, 1 << 60), st.binary(max_size=9)), min_size=1
).map(lambda pieces: b"".join(map(frames.pack_frame, pieces)))


def watch_frames(data: bytes) -> bool:
    count = at = 0
    while True:
        frame, at = frames.unpack_frame(data, at)
        if frame is None:
            return count > 0
        count += 1


def record(data: bytes) -> bool:
    return not isinstance(messages.KINDS.read(data), Unreadable)


_MESSAGES = st.one_of(
    st.builds(lambda number: decode(messages.KINDS.write(messages.Ping(number))), st.floats(0, 1e9)),
    st.builds(lambda words: decode(messages.KINDS.write(messages.StartProxy(words))), st.lists(NAMES)),
    st.builds(lambda why: decode(messages.KINDS.write(messages.StopRun(why))), NAMES),
    _RECORDS.map(str.strip),
)


@contextmanager
def wires() -> Iterator[tuple[rpc.Wire, socket.socket]]:
    ours, theirs = socket.socketpair()
    wire = rpc.Wire(ours, rpc.GREETING_LIMIT)
    try:
        yield wire, theirs
    finally:
        wire.close()
        theirs.close()


def wire_before_proof(data: bytes) -> bool:
    """A stranger gets no role, whatever he says."""
    with wires() as (wire, theirs):
        rpc.send_challenge(wire)
        theirs.sendall(data[: rpc.GREETING_LIMIT * 2])
        theirs.shutdown(socket.SHUT_WR)
        received = [*wire.receive()]
        assert not any(rpc.verify_caller(wire, message, TOKEN) for message in received)
        return bool(received)


def wire_after_proof(data: bytes) -> bool:
    """Sealed by whoever knows the token; what is not sealed is an end."""
    greeting = seal.Greeting("c", "n", "guard", "a", 0.0)
    with wires() as (wire, theirs):
        wire.start_sealing(TOKEN, seal.KEEPER, greeting)
        sender = seal.Seals(TOKEN, seal.CALLER, greeting)
        lines = data.split(b"\n")[:20]
        theirs.sendall(b"".join(sender.seal(line) + b"\n" for line in lines)[:60000] + data[:200])
        theirs.shutdown(socket.SHUT_WR)
        received = [*wire.receive()]
        assert len(received) <= len(lines) + 1
        return bool(received)


# profiles of ranks ----------------------------------------------------------------------------------------------------

_TIMES = st.floats(0, 1e9) | st.integers(0, 1 << 50)
_TRACE_EVENTS = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "name": st.sampled_from(["aten::mm", "gloo:all_reduce", "c10d::allreduce_"]) | st.text(max_size=5),
        "ts": _TIMES,
        "dur": _TIMES,
        "tid": st.integers() | st.text(max_size=3),
    },
    optional={"cat": st.text(max_size=3)},
)
_TRACES = st.builds(lambda events: json.dumps({"traceEvents": events}), st.lists(_TRACE_EVENTS, min_size=1, max_size=6))
_KERNEL_LINES = texts(
    "onednn_verbose,v1,primitive,exec,cpu,<kind>,<way>,undef,<type>::blocked:ab::f0,,,8x8:8x8,<time>\n",
    kind=st.sampled_from(["matmul", "reorder"]),
    way=st.sampled_from(["brg_matmul:avx512_core_amx", "jit:uni"]),
    type=st.sampled_from(["src:bf16", "src_f32"]),
    time=st.floats(0, 100).map(str),
)
_STEPS_OF_RANKS = st.builds(
    lambda ends: json.dumps({"first": 3, "steps": 9, "ends": sorted(ends), "traced": True, "works": []}),
    st.lists(st.integers(0, 1 << 60), max_size=5),
)


def trace(data: bytes) -> bool:
    """Read and compared with a good one of another host."""
    read = [parse_trace(gzip.compress(text, 0)) for text in (data, _GOOD_TRACE)]
    ranks = [summarise_rank(n, f"h{n}", slices, RecordedSteps(), {}) for n, slices in enumerate(read)]
    build_profile("run", ranks, (), 3, 4)
    return True


_GOOD_TRACE = b'{"traceEvents": [{"ph": "X", "name": "gloo:all_reduce", "ts": 1, "dur": 1, "tid": 1}]}'


def kernels(data: bytes) -> bool:
    return bool(parse_kernels(data))


def recorded_steps(data: bytes) -> bool:
    return parse_recorded_steps(data) is not None


# packages -------------------------------------------------------------------------------------------------------------

_WHEELS = st.builds(
    lambda name, version, sha: {
        "name": name,
        "version": version,
        "url": f"https://files.example/{name}-{version}-py3-none-any.whl",
        "sha256": sha,
        "size": 1,
    },
    NAMES,
    VERSIONS,
    st.binary(min_size=32, max_size=32).map(bytes.hex),
)
_LOCKS = st.builds(
    lambda wheels: json.dumps({"wheels": wheels, "python": "3.11", "inputs": "a1", "ipexctl": "lock"}),
    st.lists(_WHEELS, max_size=3, unique_by=lambda wheel: wheel["name"]),
)
_PYLOCKS = st.lists(_WHEELS, min_size=1, max_size=3).map(
    lambda wheels: (
        "lock-version = '1.0'\ncreated-by = 'uv'\n"
        + "".join(
            f"[[packages]]\nname = '{wheel['name']}'\nversion = '{wheel['version']}'\n"
            f"wheels = [{{url = '{wheel['url']}', size = 1, hashes = {{sha256 = '{wheel['sha256']}'}}}}]\n"
            for wheel in wheels
        )
    )
)


def lock(data: bytes) -> bool:
    return bool(parse_json(Lock, data).id)


def pylock(data: bytes) -> bool:
    return bool(parse_pylock(decode(data)))


# ssh ------------------------------------------------------------------------------------------------------------------

_FILE_OPTIONS = st.sampled_from(["UserKnownHostsFile", "GlobalKnownHostsFile", "IdentityFile", "CertificateFile"])
_OPTIONS = texts(
    "  HostName <address>", "  Port <port>", "  User=<name>", '  IdentityFile "~/.ssh/<name>"', "  SendEnv <name>",
    "  ProxyJump <name>@<name>:22", "  ConnectTimeout <small>m", "  UserKnownHostsFile /tmp/%h-<name>",
    "  <keyword> ~<user>/<name>", "  Ciphers <sign><name>", "  CanonicalizeMaxDots <number>", "  Include included",
    "  Include include*", "  Include ~nobody-here/x", keyword=_FILE_OPTIONS, sign=st.sampled_from(["", "+", "-", "^"]),
    user=st.sampled_from(["", "", "", "root", "root"]) | NAMES,
)  # fmt: skip
_SCOPES = texts(
    "Host <name> *.<name>", "Match host <name> user <name>", "Host *", "Match exec true", "Match !exec false"
)
# Of what executes a program or reads a file of this machine, these lines alone are tried, damaged or not.
_HARMLESS = re.compile(
    rb"(?i)\s*(?:match !?exec (?:true|false)|include (?:included?\*?|~nobody-[a-z0-9]*/[a-z0-9]*))\s*"
)
_CONFIGS = joined(texts("<scope>\n<options>", scope=_SCOPES, options=joined(_OPTIONS, "\n")), "\n")
_KEY = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + b"k" * 32).decode()
_KNOWN = joined(
    texts(
        *(f"<mark>{names} ssh-ed25519 {_KEY}" for names in ("<name>", "<address>", "*.<name>", "[<name>]:2222")),
        f"<mark>|1|c2FsdA==|ZGlnZXN0 ssh-ed25519 {_KEY}",
        mark=st.sampled_from(["", "@revoked ", "@cert-authority "]),
    ),
    "\n",
)


def ssh_config(data: bytes) -> bool:
    for line in data.split(b"\n"):
        plain = re.sub(rb"[\"'\\]", b"", line).lower()  # quotation marks may stand inside of a word
        if (b"exec" in plain or b"include" in plain) and not _HARMLESS.fullmatch(line):
            return False
    with tempfile.TemporaryDirectory() as name:
        path, included = Path(name, "config"), Path(name, "included")
        path.write_bytes(data)
        included.write_bytes(b"Host node*\n  IdentityFile ~/a\nMatch final\n  Port 2200\n")
        for file in (path, included):
            file.chmod(0o600)
        SSHSettings(path, Path(name, "none")).find_settings(Host("node0", "node0"))
        return True


def known_hosts(data: bytes) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        known = KnownHosts([Path(file.name)])
        for name in ("node0", "[node0]:2222", "192.0.2.1"):
            known.judge_key(name, base64.b64decode(_KEY))
        return not known.problems


TARGETS = (
    Target("hostfile", encode(joined(_HOST_LINES, "\n")), hostfile, least=0.2),
    Target("host-list", encode(joined(HOSTS, ",")), host_list),
    Target("inventory", encode(_YAML_HOSTS), inventory),
    Target("variables", encode(joined(_VARIABLES, "\n")), variables, least=0.2),
    Target("ssh-arguments", encode(joined(_ARGUMENTS, " ")), ssh_arguments, least=0.2),
    Target("requirements", encode(joined(_REQUIREMENTS, "\n")), requirements, least=0.2),
    Target("allocation", encode(_ALLOCATIONS), allocation, least=0.3),
    Target("playbook", encode(joined(_STEPS, "\n").map("steps:\n{}".format)), read_playbook, least=0.2),
    Target("when", encode(_CONDITIONS), when, (IpexctlError, conditions.UnknownFact)),
    Target("probe", encode(joined(_FRAMES, "").map(f"{{}}{_MARK} done\n".format)), probe),
    Target("bundle", encode(_BUNDLES), bundle),
    Target("listing", _LISTING, listing, (ValueError,)),
    Target("remote-tree", _TREE, remote_tree, (ValueError, IpexctlError)),
    Target(
        "stream",
        st.builds(pack, st.lists(st.sampled_from("ab"), min_size=1, max_size=2, unique=True), st.binary(max_size=99)),
        stream,
        (LinkError,),
    ),
    Target("demux", encode(_FRAMED), demux),
    Target("journal", encode(joined(_RECORDS, "")), run_log, least=0.05),
    Target("frames", _WATCHED, watch_frames, (DamagedError,)),
    Target("record", encode(_MESSAGES), record, least=0.2),
    Target("wire-before", encode(joined(_MESSAGES, "\n")), wire_before_proof, least=0.0),
    Target("wire-after", encode(joined(_MESSAGES, "\n")), wire_after_proof),
    Target("trace", encode(_TRACES), trace, (TraceError,)),
    Target("kernels", encode(joined(_KERNEL_LINES, "")), kernels, least=0.2),
    Target("recorded-steps", encode(_STEPS_OF_RANKS), recorded_steps),
    Target("lock", encode(_LOCKS), lock, (ValueError,)),
    Target("pylock", encode(_PYLOCKS), pylock),
    Target("ssh-config", encode(_CONFIGS), ssh_config, least=0.2),
    Target("known-hosts", encode(_KNOWN), known_hosts),
)

_NASTY = st.sampled_from([
    b"\0", b"\n", b"\r\n", b"\xff\xfe", b"\xef\xbb\xbf", b"../", b"%2f..", b"\x1b[2J", b"\x01" + NONCE.encode(),
    b"\x10", b"1e999", b"9" * 30, b"-1", b"[", b"{", b'"', b"'", b"\\", b"${", b"&a", b"*a", b"!!python/object",
    b"<<: ", b"null", b"[1-999999999]", "\u202e\u0130\ud7ff".encode(), b":" * 8, b"=" * 8, b"\t", b"@", b"#", b"true",
])  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, grammar: SearchStrategy[bytes]) -> bytes:
    """A text of the grammar with a few pieces replaced."""
    data = draw(grammar)
    for _ in range(draw(st.integers(0, 4))):
        at, cut = draw(st.integers(0, len(data))), draw(st.integers(0, 12))
        data = data[:at] + draw(_NASTY | st.binary(max_size=6)) + data[at + cut :]
    return data
