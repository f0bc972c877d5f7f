"""``ipexctl lab``: a small cluster on this machine, for trying things and for the demo."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ipexctl.act import lab as act
from ipexctl.act.lab import Lab, LabError
from ipexctl.model.answers import LabAnswer, LabHost
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message, Started, StepEnded, StepStarted


def up(hosts: int, directory: Path) -> Generator[Event, None, Lab | None]:
    """Brings up ``hosts`` SSH servers below ``directory``; the lab, or None when a server did not come up.

    A lab of as many hosts that is up already is the answer; what a killed one left is cleaned away first. Raises
    `UsageError`: 4 without OpenSSH, 7 when another lab is up there. Broken off, it leaves no process.
    """
    tools = act.find_tools()
    directory = directory.absolute()
    with act.lock_directory(directory):
        old = act.load_lab(directory)
        if old and old.ready and not act.find_dead(old):
            if len(old.names) != hosts:
                raise UsageError(
                    f"a lab of {len(old.names)} hosts is up in {directory}", hint="ipexctl lab down", exit=Exit.BUSY
                )
            yield Started("lab up", _title(hosts, directory), old.names)
            for server in old.servers:
                yield StepEnded(server.name, "start", detail=f"{act.ADDRESS}:{server.port}, up already")
            yield Answer(_make_answer(old))
            yield Ended("lab up", Exit.OK)
            return old
        yield Started("lab up", _title(hosts, directory), tuple(f"lab{number}" for number in range(hosts)))
        if old:
            yield Message("cleaning up what the last lab left")
            if left := act.stop_lab(old):
                yield from _report_leftovers("lab up", left)
                return None
            act.remove_lab(old)
        made = act.create_lab(directory, hosts, tools)
        try:
            for name in made.names:
                yield StepStarted(name, "start")
                made = act.start_server(made, name, tools)
                yield StepEnded(name, "start", "changed", f"{act.ADDRESS}:{made.servers[-1].port}")
            act.write_files(made)
            for name in made.names:
                yield StepStarted(name, "log in")
                act.try_login(made, name, tools)
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
        made = act.write_ready_lab(made)
        yield Answer(_make_answer(made))
        yield Ended("lab up", Exit.OK)
        return made


def down(directory: Path) -> Generator[Event, None, bool]:
    """Ends every process of the lab and proves it; True when none is left. Homes and the environment stay."""
    directory = directory.absolute()
    with act.lock_directory(directory) if directory.exists() else nullcontext():
        lab = act.load_lab(directory)
        yield Started("lab down", f"lab in {directory}", lab.names if lab else ())
        if lab is None:
            yield Message("no lab is up")
            yield Answer(LabAnswer(False, str(directory), processes_left=0))
            yield Ended("lab down", Exit.OK)
            return True
        counts = {server.name: len(act.find_processes(lab, server)) for server in lab.servers}
        for name in counts:
            yield StepStarted(name, "stop")
        if left := act.stop_lab(lab):
            yield from _report_leftovers("lab down", left)
            return False
        for name, count in counts.items():
            detail = f"{count} process{'' if count == 1 else 'es'} ended"
            yield StepEnded(name, "stop", "changed" if count else "ok", detail)
        act.remove_lab(lab)
        yield Answer(LabAnswer(False, str(directory), processes_left=0))
        yield Ended("lab down", Exit.OK)
        return True


def status(directory: Path) -> Generator[Event, None, Lab | None]:
    """Says what is up. Changes nothing; ends with 4 when a server of a lab that should be up is not."""
    directory = directory.absolute()
    lab = act.load_lab(directory)
    yield Started("lab status", f"lab in {directory}", lab.names if lab else ())
    if lab is None:
        yield Message("no lab is up")
        yield Answer(LabAnswer(False, str(directory), hosts=()))
        yield Ended("lab status", Exit.OK)
        return None
    again = "ipexctl lab up"  # cleans up first
    failures = [Failure(name, Kind.STEP, "sshd does not run", again, "lab") for name in act.find_dead(lab)]
    if not lab.ready and not failures:
        failures = [
            Failure("", Kind.STEP, "the lab is not ready: ipexctl lab up was killed, or is at it", again, "lab")
        ]
    for failure in failures:
        yield HostFailed(failure)
    yield Answer(replace(_make_answer(lab), up=not failures))
    yield Ended("lab status", Exit.STEP if failures else Exit.OK)
    return lab


def _title(hosts: int, directory: Path) -> str:
    return f"{hosts} SSH server{'' if hosts == 1 else 's'} on {act.ADDRESS}, below {directory}"


def _make_answer(lab: Lab) -> LabAnswer:
    return LabAnswer(
        up=True,
        directory=str(lab.directory),
        hostfile=str(lab.hostfile),
        ssh=f"ssh -F {shlex.quote(str(lab.ssh_config))} {lab.names[0]}",
        next=f"ipexctl doctor -f {shlex.quote(str(lab.hostfile))}",
        hosts=tuple(
            LabHost(
                name=server.name,
                address=act.ADDRESS,
                port=server.port,
                up=act.is_alive(lab, server),
                processes=len(act.find_processes(lab, server)),
                home=str(lab.home(server.name)),
            )
            for server in lab.servers
        ),
    )


def _discard_lab(directory: Path) -> tuple[int, ...]:
    """Takes back a lab that did not come up, as its record says; the processes that are left even so."""
    lab = act.load_lab(directory)
    if lab is None:
        return ()
    left = act.stop_lab(lab)
    if not left:
        act.remove_lab(lab)
    return left


def _report_leftovers(verb: str, left: tuple[int, ...]) -> Generator[Event, None, None]:
    what = f"{len(left)} process{'' if len(left) == 1 else 'es'} of the lab could not be ended"
    pids = ", ".join(str(pid) for pid in left)
    yield HostFailed(Failure("", Kind.RESIDUE, f"{what}: {pids}", "ps -fp " + " ".join(map(str, left)), "residue"))
    yield Ended(verb, Exit.RESIDUE)
