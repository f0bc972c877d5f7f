"""Properties by which the hosts of runs are compared, and the record that `doctor` saves of its probes."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ipexctl.model.answers.doctor import DoctorAnswer
from ipexctl.model.facts import Facts
from ipexctl.model.page import DoctorRecord
from ipexctl.model.text import format_size

PACKAGES = ("torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "impi-rt", "accelerate", "transformers", "numpy")


def _get_package(name: str, facts: Facts) -> str | None:
    return facts.installed.packages.get(name) if facts.installed else None


def _get_limit(name: str, facts: Facts) -> str | None:
    if name not in facts.limits:
        return None
    limit = facts.limits[name]
    return "unlimited" if limit is None else str(limit)


# What is compared, in the words of the tables; None is "not known".
_COMPARED: Mapping[str, Callable[[Facts], object]] = {
    "processor": lambda facts: facts.model_name or facts.uarch,
    "ISA level": lambda facts: facts.isa_level,
    "sockets": lambda facts: facts.sockets,
    "cores": lambda facts: facts.physical_cores,
    "threads per core": lambda facts: facts.threads_per_core,
    "NUMA nodes": lambda facts: len(facts.numa) if facts.numa else None,
    "memory": lambda facts: format_size(facts.mem_total_kb * 1024) if facts.mem_total_kb else None,
    "CPU quota": lambda facts: facts.cgroup_cpus,
    "governor": lambda facts: facts.governor,
    "transparent huge pages": lambda facts: facts.thp,
    "NUMA balancing": lambda facts: facts.numa_balancing,
    "system": lambda facts: facts.distribution,
    "kernel": lambda facts: facts.kernel,
    "glibc": lambda facts: facts.glibc,
    "open files": partial(_get_limit, "nofile"),
    "locked memory": partial(_get_limit, "memlock"),
    "Python": lambda facts: facts.installed.python if facts.installed else None,
    **{name: partial(_get_package, name) for name in PACKAGES},
    "environment": lambda facts: facts.installed.marker.id if facts.installed and facts.installed.marker else None,
}


def list_properties(facts: Facts) -> dict[str, str]:
    """What is compared of a host, in words; what is not known is left out."""
    values = {name: get(facts) for name, get in _COMPARED.items()}
    return {name: str(value) for name, value in values.items() if value is not None}


def make_doctor_record(at: float, answer: DoctorAnswer, before: DoctorRecord | None = None) -> DoctorRecord:
    """What pages of later runs show of an answer. Speeds that were not measured again are those of ``before``, if that
    is of the same hosts."""
    hosts = tuple(host.host for host in answer.hosts)
    if answer.speed is None and before is not None and set(before.hosts) == set(hosts):
        return DoctorRecord(at, hosts, answer.findings, before.speed, before.speed_at)
    return DoctorRecord(at, hosts, answer.findings, answer.speed, at if answer.speed else 0.0)


def choose_doctor_record(records: Iterable[DoctorRecord], hosts: Iterable[str]) -> DoctorRecord | None:
    """The newest record that has all of these hosts."""
    wanted = set(hosts)
    fitting = [record for record in records if wanted and wanted <= set(record.hosts)]
    return max(fitting, key=lambda record: record.at, default=None)
