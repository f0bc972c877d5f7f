"""An installation of Debian for arm64, whose programs qemu runs here: made once, kept in the tests' cache.

The packages are unpacked, and none is configured: their scripts would run under qemu for twenty minutes, and hosts need
little of what they do. The mirror is that of this machine's apt."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.waiting import hold_lock

PLACE = Path("/var/cache/ipexctl-tests/arm64")  # below no home: hosts have homes of their own
MADE_BY = "1"  # counts up with what `_install` does
SUITE = "bookworm"
PACKAGES = ("openssh-server", "python3", "rsync", "procps", "iproute2", "libstdc++6", "libgomp1", "ca-certificates")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
RULE = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
ENTRY = "qemu-aarch64"


def missing() -> str:
    """Why this machine cannot run programs of arm64, as a reason for a skipped test; empty when it can."""
    if os.geteuid() != 0:
        return "separate hosts need root"
    tools = [tool for tool in ("debootstrap", "dpkg-deb", "apt-get") if not shutil.which(tool)]
    if tools or not RULE.exists():
        return f"not installed: {' '.join(tools)} qemu-user-static (sh tools/system.sh arm)"
    return "" if "binfmt_misc" in Path("/proc/filesystems").read_text() or BINFMT.exists() else "no binfmt_misc here"


def register_qemu() -> bool:
    """Lets the kernel start programs of arm64 by qemu, also where qemu's file is not seen (flag F), and returns whether
    it had to be told."""
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT], check=True)
    if (BINFMT / ENTRY).exists():
        return False
    rule = next(line for line in RULE.read_text().splitlines() if line.startswith(":"))
    (BINFMT / "register").write_text(rule)
    return True


def unregister_qemu() -> None:
    (BINFMT / ENTRY).write_text("-1")


def make_root() -> Path:
    """Returns the installation; where there is none, it is downloaded and unpacked."""
    place = PLACE / hashlib.sha256("\0".join([MADE_BY, SUITE, *PACKAGES]).encode()).hexdigest()[:12]
    with hold_lock(PLACE / ".lock"):
        if not (place / "made").exists():
            for other in PLACE.iterdir():
                if other.is_dir():
                    shutil.rmtree(other)
            _install(place / "root")
            (place / "made").touch()
    return place / "root"


def _install(root: Path) -> None:
    mirrors = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    mirror = subprocess.run(mirrors, capture_output=True, text=True, check=True).stdout.split()[0]
    words = ["debootstrap", "--arch=arm64", "--variant=minbase", "--foreign", f"--include={','.join(PACKAGES)}"]
    subprocess.run([*words, SUITE, root, mirror], check=True, stdout=subprocess.DEVNULL)
    for name in ("proc", "sys"):
        if (root / name).is_symlink():  # where debootstrap may not mount
            (root / name).unlink()
        (root / name).mkdir(exist_ok=True)
    archives = root / "var/cache/apt/archives"
    for package in sorted(archives.glob("*.deb")):
        tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", root, "--keep-directory-symlink", "--overwrite"], input=tar, check=True)
    shutil.rmtree(archives)
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    with (root / "etc/passwd").open("a") as passwd:
        passwd.write("sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n")
    (root / "usr/bin/awk").symlink_to("mawk")
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    (root / "etc/ssl/certs/ca-certificates.crt").write_text("".join(path.read_text() for path in certificates))
    subprocess.run(["chroot", root, "/sbin/ldconfig"], check=True)
