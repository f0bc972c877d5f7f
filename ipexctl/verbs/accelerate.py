"""``ipexctl accelerate config``: writes Accelerate's configuration from the facts of the hosts."""

import re
from dataclasses import replace
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.data import read_data
from ipexctl.decide.checks.network import select_interfaces
from ipexctl.decide.facts.isa import ORDER
from ipexctl.decide.launch import placement
from ipexctl.decide.launch.accelerate import AccelerateConfig, write_config
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.model.answers.tools import AccelerateAnswer
from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.events import Ended, Message, Workflow, finish_verb
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Inventory
from ipexctl.model.text import join_names, pluralize, printable
from ipexctl.store.private_files import refuse_os_errors, replace_file
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.common.select import make_started

_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6}){1,3}([-+.a-z0-9]{0,20})")


def accelerate_config(
    request: AccelerateConfig,
    inventory: Inventory,
    context: Context,
    *,
    n: int | None,
    ppn: int | None,
    version: str | None,
    venv: str | None,
    file: str | None,
) -> Workflow[None]:
    """``request`` has the values that hosts cannot give: precision, IPEX or not, port, mpirun. With a ``version`` no
    host is contacted: ranks come from flags and hostfile, and IPEX is assumed to be installed. Raises `UsageError`
    before the first event for invalid input."""
    if version is not None and not _VERSION.fullmatch(version):
        hint = "--accelerate-version 1.7.0"
        raise UsageError(f"--accelerate-version {printable(version)} is not a version", hint=hint)
    yield make_started("accelerate config", f"for {pluralize(len(inventory), 'host')}", inventory, venv)
    if version is not None:
        ranks = sum(ppn or host.slots or 1 for host in inventory) if n is None else n
        config = replace(request, hosts=len(inventory), ranks=ranks, address=inventory.head.address)
        unknown = [host.name for host in inventory if not host.slots] if n is None and ppn is None else []
        if unknown and len(inventory) > 1:
            yield Message(f"{', '.join(unknown)}: slots are unknown; 1 rank each is assumed", "warning")
        if len(inventory) > 1 and (inventory.head.is_local or inventory.head.address.startswith("127.")):
            yield Message(f"the other hosts cannot reach main_process_ip {inventory.head.address}", "warning")
    else:
        facts, _ = yield from probe_hosts(inventory, context, venv=venv)
        if len(facts) < len(inventory):
            yield Ended("accelerate config", Exit.OK)
            return
        version, config = _fill_config(request, inventory, facts, n, ppn)
        weak = [name for name, fact in facts.items() if fact.isa_level in ORDER[ORDER.index("AVX512") + 1 :]]
        if config.ipex and config.precision == "bf16" and weak:
            where = join_names(weak, 1)
            yield Message(f"IPEX refuses bf16 on {where}, without AVX-512: --precision no, or --no-ipex", "warning")
    text, warnings = write_config(config, version, parse_options(read_data("options.toml")))
    for sentence in warnings:
        yield Message(sentence, "warning")
    if file:
        unwritable = refuse_os_errors(Path(file), "cannot be written", Exit.RECORD)
        with unwritable, replace_file(Path(file)) as written:
            written.write(text.encode())
        yield Message(f"{file}: written for accelerate {version}")
    answer = AccelerateAnswer(version, config.hosts, config.ranks, file, None if file else text)
    yield from finish_verb("accelerate config", answer)


def _fill_config(
    request: AccelerateConfig, inventory: Inventory, facts: HostFacts, n: int | None, ppn: int | None
) -> tuple[str, AccelerateConfig]:
    """Returns the head's version of accelerate, and ``request`` with the hosts' values. A single host gets one rank by
    default. Raises `UsageError` if accelerate is not installed."""
    head = facts[inventory.head.name]
    packages = head.installed.packages if head.installed else {}
    version = packages.get("accelerate")
    if version is None:
        where = head.installed.venv if head.installed else "~"
        hint = advise("install", "--with", "accelerate", text="--accelerate-version 1.7.0, or install it:")
        raise UsageError(f"{inventory.head.name} has no accelerate at {printable(where)}", hint=hint, exit=Exit.STEP)
    if len(inventory) == 1 and n is None and ppn is None and not inventory.head.slots:
        n = 1
    cores = {host.name: placement.find_usable_cores(facts[host.name]) for host in inventory}
    counts = placement.count_ranks(inventory.hosts, cores, n, ppn)
    choices, _ = select_interfaces(inventory, {name: facts[name] for name, _ in counts})
    choice = choices.get(inventory.head.name)
    return version, replace(
        request,
        hosts=len(counts),
        ranks=sum(count for _, count in counts),
        address=choice.address if choice else inventory.head.address,
        hostfile=f"{head.home or '~'}{request.hostfile[1:]}" if request.hostfile.startswith("~/") else request.hostfile,
        ipex=request.ipex and "intel-extension-for-pytorch" in packages,
    )
