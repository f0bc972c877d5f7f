"""Two hosts of arm64 and a user: separate hosts whose programs qemu runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arm.root import make_root, missing, register_qemu, unregister_qemu
from tests.cluster import Cluster, Spec
from tests.cluster import missing as missing_hosts
from tests.e2e.workspace import Workspace
from tests.machines.arm import Arm, render_cpuinfo

# What a host says of its processor, which the kernel below would call one of x86: a Neoverse N1 as qemu has one.
N1 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
CPUINFO = render_cpuinfo(Arm([["0x41", "0xd0c", 2]], (), "NEON_DOT"), N1)
KERNEL = (("/proc/cpuinfo", CPUINFO), ("/proc/sys/kernel/arch", "aarch64\n"))


@pytest.fixture(scope="package")
def hosts() -> Iterator[Cluster]:
    """arm0 and arm1, and x0 as this machine is."""
    if why := missing_hosts() or missing():
        pytest.skip(why)
    registered = register_qemu()
    try:
        root = str(make_root())
        specs = [Spec(name, root=root, files=KERNEL) for name in ("arm0", "arm1")]
        with Cluster((*specs, "x0")) as three:
            yield three
    finally:
        if registered:
            unregister_qemu()


@pytest.fixture(scope="package")
def workspace(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One user of all these tests, whose caches stay: programs are ten times slower here."""
    return Workspace(hosts, Path(tmp_path_factory.mktemp("arm")) / "desk")
