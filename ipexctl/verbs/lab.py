"""``ipexctl lab``: a small cluster on this machine, for trying things and for the demo."""

import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ipexctl.act import lab as act
from ipexctl.act.lab import Lab, LabError
from ipexctl.model.answers.hosts import LabAnswer, LabHost
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, advise
from ipexctl.model.events import Ended, HostFailed, Message, Started, StepEnded, StepStarted, Workflow, finish_verb
from ipexctl.model.text import pluralize
from ipexctl.store.private_files import refuse_os_errors


def up(hosts: int, directory: Path) -> Workflow[Lab | None]:
    """Starts ``hosts`` SSH servers below ``directory``; returns the lab, or None if a server did not start. A running
    lab with as many hosts is used as it is; the remains of a killed one are removed first. Raises `UsageError`: exit 4
    without OpenSSH, 7 if a lab of another size is up there. Leaves no process when interrupted."""
    tools = act.find_openssh_tools()
    directory = directory.absolute()
    with act.lock_lab_directory(directory), refuse_os_errors(directory, "cannot hold a lab"):
        old = act.load_lab(directory)
        is_up = old is not None and old.ready and not act.find_dead_hosts(old)
        if old and is_up and len(old.names) != hosts:
            what = f"a lab of {pluralize(len(old.names), 'host')} is up in {directory}"
            raise UsageError(what, hint=advise("lab", "down"), exit=Exit.BUSY)
        title = f"{pluralize(hosts, 'SSH server')} on {act.ADDRESS}, below {directory}"
        yield Started("lab up", title, tuple(f"lab{number}" for number in range(hosts)))
        if old and is_up:
            for server in old.servers:
                yield StepEnded(server.name, "start", detail=f"{act.ADDRESS}:{server.port}, already running")
            yield from finish_verb("lab up", _make_answer(old))
            return old
        if old:
            yield Message("cleaning up after the last lab")
            if left := act.remove_lab(old):
                yield from _report_leftovers("lab up", left)
                return None
        lab = act.create_lab(directory, hosts, tools)
        try:
            for name in lab.names:
                yield StepStarted(name, "start")
                lab = act.start_server(lab, name, tools)
                yield StepEnded(name, "start", "changed", f"{act.ADDRESS}:{lab.servers[-1].port}")
            act.write_client_files(lab)
            for name in lab.names:
                yield StepStarted(name, "log in")
                act.try_login(lab, name, tools)
                yield StepEnded(name, "log in")
        except LabError as error:
            yield HostFailed(Failure(name, Kind.STEP, str(error), code="lab"))
            if left := _discard_lab(directory):
                yield from _report_leftovers("lab up", left)
            else:
                yield Ended("lab up", Exit.STEP)
            return None
        except BaseException:
            _discard_lab(directory)
            raise
        lab = replace(lab, ready=True)
        act.save_lab(lab)
        yield from finish_verb("lab up", _make_answer(lab))
        return lab


def down(directory: Path) -> Workflow[bool]:
    """Ends every process of the lab; True when none remains. Homes and the environment, if there is one, stay."""
    directory = directory.absolute()
    with act.lock_lab_directory(directory) if directory.exists() else nullcontext():
        lab = act.load_lab(directory)
        yield Started("lab down", f"lab in {directory}", lab.names if lab else ())
        if lab is None:
            yield Message("no lab is up")
        else:
            counts = {server.name: len(act.find_processes(lab, server)) for server in lab.servers}
            yield from (StepStarted(name, "stop") for name in counts)
            if left := act.remove_lab(lab):
                yield from _report_leftovers("lab down", left)
                return False
            for name, count in counts.items():
                yield StepEnded(name, "stop", "changed" if count else "ok", f"{pluralize(count, 'process')} ended")
            kept = "the homes and the environment stay" if (directory / "env").exists() else "the homes stay"
            yield Message(f"{kept} in {directory}; the next lab up takes them again", code="lab-stays")
        yield from finish_verb("lab down", LabAnswer(False, str(directory), processes_left=0))
        return True


def status(directory: Path) -> Workflow[Lab | None]:
    """Shows which servers run. Changes nothing; exit 4 if a server that should run does not."""
    directory = directory.absolute()
    lab = act.load_lab(directory)
    yield Started("lab status", f"lab in {directory}", lab.names if lab else ())
    if lab is None:
        yield Message("no lab is up")
        yield from finish_verb("lab status", LabAnswer(False, str(directory), hosts=()))
        return None
    hint = advise("lab", "up")  # cleans up first
    failures = [Failure(name, Kind.STEP, "sshd does not run", hint, "lab") for name in act.find_dead_hosts(lab)]
    if not lab.ready and not failures:
        failures = [Failure("", Kind.STEP, "the lab is not ready: its start was killed or goes on", hint, "lab")]
    yield from map(HostFailed, failures)
    answer = replace(_make_answer(lab), up=not failures)
    yield from finish_verb("lab status", answer, Exit.STEP if failures else Exit.OK)
    return lab


def _make_answer(lab: Lab) -> LabAnswer:
    hosts: list[LabHost] = []
    for server in lab.servers:
        home, count = str(lab.path(server.name, "home")), len(act.find_processes(lab, server))
        hosts.append(LabHost(server.name, act.ADDRESS, server.port, act.is_server_alive(lab, server), count, home))
    hostfile = str(lab.path("hostfile"))
    ssh = f"ssh -F {shlex.quote(str(lab.path('ssh_config')))} {lab.names[0]}"
    return LabAnswer(True, str(lab.directory), hostfile, ssh, advise("doctor", "-f", hostfile), hosts=tuple(hosts))


def _discard_lab(directory: Path) -> tuple[int, ...]:
    """Removes a lab that did not start, by its record; returns the processes that remain."""
    lab = act.load_lab(directory)
    return act.remove_lab(lab) if lab else ()


def _report_leftovers(verb: str, left: tuple[int, ...]) -> Workflow[None]:
    what = f"{pluralize(len(left), 'process')} of the lab could not be stopped: {', '.join(map(str, left))}"
    yield HostFailed(Failure("", Kind.RESIDUE, what, f"ps -fp {' '.join(map(str, left))}", "residue"))
    yield Ended(verb, Exit.RESIDUE)
