"""What an install will do on each host, from the state of each. The text of the plan is the dry run."""

import json
import posixpath
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from packaging.pylock import Package, PackageWheel, Pylock
from packaging.utils import canonicalize_name
from packaging.version import Version

from ipexctl.decide.releases.env_health import DEFAULT_VENV, describe_drift
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, advise
from ipexctl.model.facts import Facts, HostFacts
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record
from ipexctl.model.stack import InstallMarker, Stack
from ipexctl.model.text import fold_names, format_size, group_pairs, join_names, pluralize, printable
from ipexctl.model.wheels import Lock, Wheel
from ipexctl.protocol.session import Inspection

ANOTHER_PATH = advise("install", "--venv", "/opt/ipexctl", text="another path for the environment, such as:")
Do = Literal["nothing", "tidy", "switch", "build"]
From = Literal["hosts", "controller"]

# Unpacked bytes of a wheel nobody has opened yet, per byte of it: torch 2.8.0 with its libraries measured 2.3.
_UNPACKED_RATIO = 2.4
_ENVIRONMENT_OVERHEAD = 20 << 20  # the environment itself, uv's lists
_FILES, _FILES_OF_TORCH = 250, 11_500  # of a wheel at least, on average; measured with torch 2.8.0 and 2.13.0


class InstallStep(Record):
    """One host's part. ``why`` is the cause; ``need`` the bytes that must be free; ``wheels`` are to be installed.
    ``base``: the environment that is taken as it is, by links, without the packages ``removed``; empty: none."""

    do: Do
    why: str
    wheels_from: From = "hosts"
    need: int = 0
    repair: bool = False  # the active environment is built again, in place
    wheels: tuple[Wheel, ...] = ()
    base: str = ""
    removed: tuple[str, ...] = ()


class Plan(Record):
    """Ordered: the steps by host, and the text that says all of it."""

    steps: Mapping[str, InstallStep]
    text: str

    @property
    def changes_nothing(self) -> bool:
        return all(step.do == "nothing" for step in self.steps.values())


def advise_place(places: Sequence[Mapping[str, int]], lock: Lock) -> str:
    """Returns where an environment can be: a directory in which the account can make it on all hosts, of which each
    has such ``places`` with free bytes; or what to ask for."""
    need = estimate_unpacked(lock.wheels) + lock.size
    free = {path: min(each.get(path, 0) for each in places) for path in (places[0] if places else ())}
    path = max(free, key=lambda path: min(free[path], 4 * need), default="")  # the home where it has plenty
    if path and free[path] >= need:
        text = f"a place that this account can write on these hosts, with {format_size(free[path])} free:"
        return advise("install", "--venv", f"{path}/ipexctl", text=text)
    return (
        f"no directory that this account can write on all of these hosts has {format_size(need)} free: ask their"
        " administrator for one, and give it as --venv"
    )


def choose_venv(named: str | None, inventory: Inventory, facts: HostFacts) -> str:
    """Returns the one absolute path of the environment: ``named``, or that of the hosts. It is one because mpiexec
    starts its helper on every host by the path it has on the head. Raises `UsageError` (exit 4) if there is none."""
    paths_by_host = {host.name: named or host.vars.get("venv") or f"~/{DEFAULT_VENV}" for host in inventory}
    wanted = {
        host: posixpath.join(facts[host].home or "", path[2:]) if path.startswith("~/") else path
        for host, path in paths_by_host.items()
        if host in facts
    }
    paths = list(dict.fromkeys(wanted.values()))
    if len(paths) > 1 or not paths[0].startswith("/"):
        what = "the environment must have the same absolute path on all hosts (Intel MPI starts its helpers by it)"
        reasons = [f"{', '.join(h for h, p in wanted.items() if p == path)}: {path}" for path in paths]
        hint = advise("install", "--venv", "/opt/ipexctl", text="a path that all hosts have, such as:")
        raise UsageError(what, reasons=reasons, hint=hint, exit=Exit.STEP)
    return paths[0]


def read_state(fact: Facts, venv: str, lock: Lock) -> Inspection | None:
    """Returns what the facts say of a host that has exactly this already and nothing besides, so that nobody need look
    there again; else None."""
    state = fact.installed
    if state is None or state.venv != venv or state.marker is None or state.marker.id != lock.id:
        return None
    if not state.exists or set(state.beside) - {lock.id} or describe_drift(lock.packages, state.packages):
        return None
    return Inspection("ours", active=lock.id, complete=[lock.id], packages=dict(state.packages))


def list_download_origins(lock: Lock) -> list[tuple[str, int]]:
    """Host and port of every place the hosts themselves would fetch from."""
    urls = [urlsplit(wheel.url) for wheel in lock.wheels if not wheel.local]
    return list(dict.fromkeys((url.hostname or "", url.port or (443 if url.scheme == "https" else 80)) for url in urls))


def estimate_unpacked(wheels: Sequence[Wheel]) -> int:
    """Returns bytes an environment with these wheels will take, roughly; 0 if no size is known."""
    size = sum(wheel.size for wheel in wheels)
    return int(size * _UNPACKED_RATIO) + _ENVIRONMENT_OVERHEAD if size else 0


def _find_base_environment(lock: Lock, state: Inspection, markers: Mapping[str, InstallMarker]) -> InstallMarker | None:
    """The active environment, if it is unchanged and has the torch of the new one: most of its files are linked."""
    base, torch = markers.get(state.active or ""), [wheel.sha256 for wheel in lock.wheels if wheel.name == "torch"]
    if base is None or base.id == lock.id or base.python != lock.python or base.wheels.get("torch") not in torch:
        return None
    return None if describe_drift(base.packages, state.packages or {}) else base


def describe_changes(base: InstallMarker, lock: Lock) -> str:
    """Returns what is renewed of an environment, taken from it and added, in words: the first few."""
    old, new = base.packages, lock.packages
    words = [f"{name} {old[name]} → {new[name]}" for name in new if name in old and new[name] != old[name]]
    words += [f"removes {name} {old[name]}" for name in old if name not in new]
    wheels = {(wheel.name, wheel.sha256) for wheel in lock.wheels}
    words += [
        f"another wheel of {name} {version}"
        for name, version in new.items()
        if old.get(name) == version and name in base.wheels and (name, base.wheels[name]) not in wheels
    ]
    words += [f"adds {name} {new[name]}" for name in new if name not in old]
    return join_names(words, 6)


def plan_install(
    stack: Stack,
    lock: Lock,
    venv: str,
    seen: Mapping[str, Inspection],
    wheels_from: Literal["auto", "controller", "hosts"],
    markers: Mapping[str, InstallMarker] = MappingProxyType({}),
) -> tuple[Plan, list[Failure]]:
    """The plan, and why some hosts can have no part in it (those have no step). Under ``auto`` each host downloads by
    itself, and those that do not reach the index get the wheels from here. ``markers``: of installed environments."""
    steps: dict[str, InstallStep] = {}
    failures: list[Failure] = []
    for host, state in seen.items():
        if state.kind not in {"absent", "ours"}:
            failures.append(Failure(host, Kind.STEP, printable(state.why, 300), ANOTHER_PATH, "foreign"))
            continue
        if state.active == lock.id:
            lost = ["its Python is missing"]  # one that the system has removed or replaced
            if state.packages is not None:
                lost = describe_drift(lock.packages, state.packages)
            if not lost:
                left = [printable(name) for name in state.leftovers]
                cause = f"an install that was cut short left {join_names(left, 2)}"
                steps[host] = InstallStep("tidy", cause) if left else InstallStep("nothing", "it is installed")
                continue
            cause = f"repair: {join_names(lost, 3)}"
        elif lock.id in state.complete:
            steps[host] = InstallStep("switch", "it is there, complete, and not active")
            continue
        else:
            cause = f"instead of {printable(state.active)}" if state.active else "nothing is installed"
        base = _find_base_environment(lock, state, markers)
        wheels = tuple(wheel for wheel in lock.wheels if not base or base.wheels.get(wheel.name) != wheel.sha256)
        kept = lock.packages.keys() - {wheel.name for wheel in wheels}
        removed = tuple(name for name in base.packages if name not in kept) if base else ()
        size = sum(wheel.size for wheel in wheels)
        if base:
            cause += f": {describe_changes(base, lock)}"
        way: From = "controller" if wheels_from == "controller" else "hosts"
        if wheels_from == "auto" and state.unreachable:
            way = "controller"
            cause += f"; this host does not reach {printable(state.unreachable[0])}"
        need = estimate_unpacked(wheels) + (size if way == "controller" else 0)
        if state.free < need:
            free = f"{format_size(state.free)} free in {printable(state.at, 300)}"
            what = f"no space left: need {format_size(need)}, {free}"
            failures.append(Failure(host, Kind.STEP, what, ANOTHER_PATH, "no-space"))
            continue
        files = len(wheels) * _FILES + any(wheel.name == "torch" for wheel in wheels) * _FILES_OF_TORCH
        if state.files is not None and state.files < files:
            what = f"no room for {pluralize(files, 'file', ',')}: {state.files:,} free in {printable(state.at, 300)}"
            failures.append(Failure(host, Kind.STEP, what, ANOTHER_PATH, "no-space"))
            continue
        repair = state.active == lock.id
        steps[host] = InstallStep("build", cause, way, need, repair, wheels, base.id if base else "", removed)
    return Plan(steps, _format_plan(stack, lock, venv, steps)), failures


def _format_plan(stack: Stack, lock: Lock, venv: str, steps: Mapping[str, InstallStep]) -> str:
    builds = [step for step in steps.values() if step.do == "build"]
    wheels = max((step.wheels for step in builds), key=len, default=lock.wheels)
    size = sum(wheel.size for wheel in wheels)
    linked = ""
    if len(wheels) < len(lock.wheels):
        linked = f"; {len(lock.wheels) - len(wheels)} that are there are linked"
    ways = sorted({step.wheels_from for step in builds if step.wheels})
    fetched = {"hosts": "each host fetches them itself", "controller": "once from here to each host"}
    lines = [
        f"{stack.name} · backend {stack.backend}",
        f"environment  {venv} → {venv.rpartition('/')[2]}.d/{lock.id}",
        f"wheels       {f'{format_size(size)} in ' if size else ''}{pluralize(len(wheels), 'file')}{linked}"
        + "".join(f"; {fetched[way]}" for way in ways),
    ]
    lines += [f"note         {note}" for note in (*stack.notes, *lock.notes)]
    works = (((step.do, step.why, step.wheels_from), host) for host, step in steps.items())
    rows = [(fold_names(hosts), f"{do}: {why}") for (do, why, _), hosts in group_pairs(works).items()]
    width = min(max((len(names) for names, _ in rows), default=0), 11)
    lines += [f"{names:<{width}}  {what}" for names, what in rows]
    if builds:
        lines.append("then on every host: imports, one training step in bf16, one rank of mpirun; only then the switch")
    return "\n".join(lines)


def choose_next_script(scripts: Sequence[str]) -> str | None:
    """Returns which of these scripts, of the current directory, is to be run after an install; None: nobody knows."""
    likely = scripts if len(scripts) == 1 else [name for name in scripts if name == "train.py"]
    return next(iter(likely), None)


def format_pylock(wheels: Sequence[Wheel], paths: Mapping[str, str]) -> str:
    """Returns the wheels as a pylock.toml (PEP 751): one GET a wheel, nothing to resolve, every hash checked.
    ``paths``: where a package's wheel lies on that host."""

    def build_package(wheel: Wheel) -> Package:
        path = paths.get(wheel.name)
        url = None if path else wheel.url
        file = PackageWheel(name=wheel.filename, path=path, url=url, hashes={"sha256": wheel.sha256})
        return Package(name=canonicalize_name(wheel.name), version=Version(wheel.version), wheels=[file])

    packages = [build_package(wheel) for wheel in wheels]
    pylock = Pylock(lock_version=Version("1.0"), created_by="ipexctl", packages=packages)
    return "".join(f"{key} = {_format_toml(value)}\n" for key, value in pylock.to_dict().items())


def _format_toml(value: object) -> str:
    """Returns a value of TOML in one line; its basic strings take the escapes of JSON's."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_format_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def group_hosts_by_tokens(names: Sequence[str], seen_tokens: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Hosts that share the directory, first host of each group first: a host belongs to the first host whose token it
    sees and that sees its own."""
    result: list[list[str]] = []
    for name in names:
        fitting = (group for group in result if group[0] in seen_tokens[name] and name in seen_tokens[group[0]])
        if (group := next(fitting, None)) is None:
            result.append(group := [])
        group.append(name)
    return result
