"""An answer of each kind, as real hosts would give it: for the pictures of the screens that are no run."""

from dataclasses import replace

from ipexctl.data import read_data
from ipexctl.decide import migration
from ipexctl.decide.releases.listing import format_releases, list_releases
from ipexctl.decide.releases.table import parse_table
from ipexctl.model.answers import AnyAnswer
from ipexctl.model.answers.doctor import DoctorHost, ExplainAnswer
from ipexctl.model.answers.files import FetchAnswer, FetchedHost, SyncAnswer, SyncedHost
from ipexctl.model.answers.hosts import HostsAnswer, LabAnswer, LabHost, UsageAnswer, UsedPlace
from ipexctl.model.answers.install import (
    ImportCheck,
    InstallAnswer,
    StacksAnswer,
    StacksWhyAnswer,
    VerifiedHost,
    VerifyAnswer,
    WheelsAnswer,
)
from ipexctl.model.answers.manage import ListedRun, PsAnswer, RankStacksAnswer, ReapAnswer, StackPlace, StopAnswer
from ipexctl.model.answers.play import CommandAnswer, CommandOutput, InitAnswer, ListedStep, PlayListAnswer
from ipexctl.model.answers.saved import PruneAnswer, RunsAnswer, SavedRun, SparedRun
from ipexctl.model.answers.tools import MigrateAnswer
from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.reports import Finding
from ipexctl.model.saved_runs import RunResult
from ipexctl.model.stack import StackMpi, StackSummary
from ipexctl.verbs.migrate import LaunchLines
from tests.unit.show import streams

_STACK = StackSummary(
    "torch 2.8.0 + ipex 2.8.0, Python 3.11",
    "2.8.0",
    "2.8.0",
    None,
    None,
    "impi",
    "3.11",
    StackMpi("impi-rt", "2021.18.1"),
)
_CHECK = ImportCheck(
    "node0", {"torch": "2.8.0", "ipex": "2.8.0"}, (), "3.11.2", "AVX512_BF16", 3.2, "bfloat16", "Intel(R) MPI Library"
)
_OLD = ImportCheck(
    "old", {"torch": "2.8.0", "ipex": "2.8.0"}, (), "3.11.2", "AVX2", 9.0, "float32", "Intel(R) MPI Library"
)
_PLAN = """torch 2.8.0 + ipex 2.8.0 + impi-rt 2021.18.1, Python 3.11 · backend impi
environment  /home/me/.local/share/ipexctl/env → env.d/torch2.8.0-c8ba8de8ce
wheels       3.8 GiB in 32 files; each host fetches them itself
note         IPEX 2.8.0 is the last one: there will be none for a newer torch
xeon[01-08]  build: nothing is installed; these hosts download 142 MiB/s to 193 MiB/s, the controller sends 14 MiB/s
gpu1         nothing: it is installed
then on every host: imports, one training step in bf16, one rank of mpirun; only then the switch"""
_SCRIPT = """import torch
import intel_extension_for_pytorch as ipex
import oneccl_bindings_for_pytorch

model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
"""


def _migrate() -> MigrateAnswer:
    rules = migration.parse_rules(read_data("migrate.toml"))
    uses = migration.find_uses(_SCRIPT, "train.py", rules, LaunchLines())
    return MigrateAnswer("train.py", tuple(uses), migration.format_report(uses, "train.py"))


_WARNING = Finding(
    "NET004", "warning", ("xeon01", "xeon02"), "MTU 9000 set, 1500 passes", "", "ip link set eth1 mtu 1500"
)
_LAB = "/home/me/.local/state/ipexctl/lab"
_HOSTS = "node0 address=10.77.0.10 slots=2\nnode1 address=10.77.0.11 slots=2\n"
_RUNS = (
    ListedRun("1121-221326-5c04", "running", "train.py", 4, ("node0", "node1"), "node0", "2026-11-21 22:13:26",
                "me@desk", 1, None, 754.0, 1210, 2.31, "train.py --epochs 3 --batch 32"),
    ListedRun("1121-204502-77ab", "ended", "finetune.py", 4, ("node0", "node1"), "node0", "2026-11-21 20:45:02",
                "ann@desk", 0, "rank", 4210.0, 880, None, "finetune.py --lr 3e-5 --data /data/corpus"),
)  # fmt: skip
_RESULTS: tuple[tuple[RunResult, str], ...] = (("ok", ""), ("failed", "rank 5 on node2 exited with code 1"))
_SAVED = tuple(
    SavedRun(f"1121-2{n}0000-a3f{n}", "run", "train.py --epochs 3", result, cause,
               1_795_298_400.0 + 3600 * n, 1_795_299_400.0 + 3600 * n, 1000.0, 8, 4, 12 << 20, f"/runs/{n}")
    for n, (result, cause) in enumerate(_RESULTS)
)  # fmt: skip

_C10D = "torch/distributed/distributed_c10d.py:2810 all_reduce"
_STANDING = RankStacksAnswer(
    "1121-221326-5c04",
    ("3 of 4 ranks wait in all_reduce, rank 2 on node1 does not", f"  ranks 0-1,3  {_C10D} ← train.py:88 step",
     "  rank 2       data.py:41 read_batch"),
    (2,),
    (StackPlace((0, 1, 3), ("node0", "node1"), "", (_C10D, "train.py:88 step", "train.py:120 <module>")),
     StackPlace((2,), ("node1",), "", ("data.py:41 read_batch", "train.py:80 step", "train.py:120 <module>"))),
    (),
    (),
)  # fmt: skip

# name of the picture, its title, verb, answer
ANSWERS: tuple[tuple[str, str, str, AnyAnswer], ...] = (
    ("doctor-warning", "doctor with a warning only", "doctor",
     streams.checked([DoctorHost(f"xeon{n:02d}", streams.facts()) for n in range(1, 9)], [_WARNING], "AMX")),
    ("explain", "the story of a finding", "doctor", ExplainAnswer("CPU002",
     "CPU002  error: a host lowers the cluster to ‹common›\n\nIPEX and oneDNN choose their kernels by the instruction\n"
     "set of each process, so ranks on different processors compute the same step with different kernels.\n\n"
     "fix: leave it out: --limit '‹out›'; or cap all hosts: ipexctl run --isa common\n\nreported by others:\n  a/b#1")),
    ("install-plan", "what an install would do", "install", InstallAnswer((), {}, check=True, plan=_PLAN)),
    ("install-well", "an install that went well", "install", InstallAnswer(
        ("node0", "node1", "old"), {}, "/home/me/env", "c8ba8de8ce", _STACK, unchanged=("node2",),
        hosts=(_CHECK, replace(_CHECK, host="node1"), _OLD), next="ipexctl run -f hosts train.py")),
    ("verify", "environments compared with what was installed", "verify", VerifyAnswer(
        tuple(VerifiedHost(name, "c8ba", _STACK) for name in ("node0", "node1", "node2")),
        {"node2": "torch is 2.9.0, not 2.8.0"})),
    ("wheels", "a wheelhouse that was filled", "wheels", WheelsAnswer(
        "/home/me/wheels", ("numpy-2.4.6.whl", "torch-2.13.0.whl"), ("torch-2.13.0.whl",), ("3.11", "3.12"), 176 << 20,
        next="ipexctl install --torch 2.13.0 --wheels /home/me/wheels")),
    ("stacks", "the version table", "stacks", StacksAnswer((), format_releases(list_releases(
        parse_table(read_data("stacks.toml")), torch="2.7")))),
    ("stacks-why", "why a stack fits", "stacks", StacksWhyAnswer(True, "torch 2.3.1", (), None,
        "torch 2.3.1 + ipex 2.3.100 + oneccl 2.3.0, Python 3.11 go together (intel/ai-containers history 2024-07-22)\n"
        "intel_extension_for_pytorch 2.3.100 is yanked (security): only an exact pin gets it")),
    ("sync", "files on their hosts", "sync", SyncAnswer(False, (
        SyncedHost("node0", "/home/me/ipexctl/proj", True, 12, 84 << 10, 1),
        SyncedHost("node1", "/home/me/ipexctl/proj", True, 12, 84 << 10, 1),
        SyncedHost("node2", "/home/me/ipexctl/proj", False, 0, 0, 0)))),
    ("sync-plan", "what a sync would send", "sync", SyncAnswer(True, (),
        "node[0-1]: /home/me/proj → /home/me/ipexctl/proj\n  send train.py (1.2 KiB)\n  remove old.py\n"
        "node2: /home/me/proj → /home/me/ipexctl/proj\n  nothing to do")),
    ("fetch", "files from their hosts", "fetch", FetchAnswer(False, (
        FetchedHost("node0", "results/node0", 3, 1 << 20, 0), FetchedHost("node1", "results/node1", 3, 1 << 20, 0),
        FetchedHost("node2", "results/node2", 0, 0, 3), FetchedHost("node3", "results/node3", 0, 0, 0)))),
    ("command", "outputs of a command", "play", CommandAnswer((
        CommandOutput("node0", 0, "6.1.0-18-amd64\n", ""), CommandOutput("node1", 0, "6.1.0-18-amd64\n", ""),
        CommandOutput("node2", 2, "", "uname: unknown option\n")))),
    ("play-steps", "the steps of a playbook", "play", PlayListAnswer((
        ListedStep(1, "the stack", "install", "node0,node1"),
        ListedStep(2, "train", "run", "node0,node1", "train", "isa_level >= AVX512_BF16")))),
    ("tune", "a study of launches", "tune", TuneAnswer(
        "train.py", "steps/s", (
            TriedLaunch("ppn 2, omp gnu", {"ppn": 2, "omp": "gnu"}, 4, 4.9, 1.31, 1.27, 1.34, False, "", ""),
            TriedLaunch("ppn 2", {"ppn": 2}, 1, 4.4, 1.18, None, None, False, "", ""),
            TriedLaunch("default", {}, 6, 3.7, 1.0, 0.98, 1.02, False, "", ""),
            TriedLaunch("compile", {"compile": True}, 1, 3.0, 0.8, None, None, True, "", "rounding"),
            TriedLaunch("backend ccl", {"backend": "ccl"}, 1, None, None, None, None, False,
                        "rank 1 on node1 exited with code 1: ImportError: No module named 'oneccl_bindings'",
                        "")),
        "ppn 2, omp gnu", 4, 0.31, 0.03, True,
        "ppn 2, omp gnu: 1.31 times as fast (1.27 to 1.35) in 4 pairs of runs in turn", 13, 412.0, 900.0,
        "tuned.yaml", "ipexctl run --ppn 2 --omp gnu train.py")),
    ("hosts", "the hosts of a hostfile", "hosts", HostsAnswer("hosts", (), _HOSTS)),
    ("du", "what ipexctl takes, and old projects", "du", UsageAnswer(("node0", "node1"), (
        *(UsedPlace(name, "environment", "/home/me/ipexctl-env.d", 1203044352) for name in ("node0", "node1")),
        UsedPlace("node0", "project", "/home/me/ipexctl/bert-1f2e3d", 1288490188, 1763197200.0, 1288486000, True),
        UsedPlace("node1", "project", "/home/me/ipexctl/bert-1f2e3d", 4188, 1763197200.0, stays="used by run 1121-7")),
        True, "ipexctl du --prune --older-than 30d --yes")),
    ("ps", "runs on these hosts", "ps", PsAnswer(_RUNS, (), ("node0", "node1"), ())),
    ("runs", "saved runs", "runs", RunsAnswer("/home/me/.local/state/ipexctl/runs", 2, _SAVED)),
    ("runs-pruned", "saved runs that would be removed", "runs", PruneAnswer(
        "/home/me/.local/state/ipexctl/runs", _SAVED,
        (SparedRun("1121-220000-77ab", "in use by another process"),), 24 << 20, True,
        "ipexctl runs --prune --older-than 30d --yes")),
    ("logs-stacks", "where ranks stand, on request", "logs", _STANDING),
    ("stop", "a run that was stopped", "stop",
     StopAnswer(("node0", "node1"), {}, (), "1121-221326-5c04", "stopped", "ipexctl attach 1121-221326-5c04")),
    ("stop-left", "a process that SIGKILL does not end", "stop",
     StopAnswer(("node0",), {"node1": (4711,)}, ("node2",), "1121-221326-5c04", "stopped")),
    ("reap", "what was left of runs", "reap", ReapAnswer(("node0", "node1"), {}, (), ("1121-204502-77ab",))),
    ("migrate", "what a script uses of IPEX", "migrate", _migrate()),
    ("lab", "a cluster on this machine", "lab", LabAnswer(True, _LAB, f"{_LAB}/hostfile",
        f"ssh -F {_LAB}/ssh_config lab0",
        f"ipexctl doctor -f {_LAB}/hostfile",
        tuple(LabHost(f"lab{n}", "127.0.0.1", 44507 + n, True, 1, f"{_LAB}/lab{n}/home") for n in range(2)))),
    ("init", "a playbook was written", "init", InitAnswer("train.yaml", "hosts", "torch 2.8.0 + ipex 2.8.0",
        "2 on each of 2 hosts", "bf16", next="ipexctl play train.yaml --check", then="ipexctl play train.yaml")),
)  # fmt: skip
