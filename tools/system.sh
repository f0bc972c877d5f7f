#!/bin/sh
# System packages, where they are missing and we may install them: `system.sh demo` what the embedded cluster needs,
# `system.sh test` also what the tests' separate hosts and login shells need, `system.sh arm` also what
# runs programs of arm64, `system.sh bench` also the allocator that runs preload, and rsync.
set -eu
mode=${1:-demo}
missing=
need() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || missing="$missing $2"; }
need_library() {
    for file in /usr/lib/*/"$1" /usr/lib/"$1" /usr/lib64/"$1" /usr/local/lib/"$1"; do [ ! -e "$file" ] || return 0; done
    missing="$missing $2"
}
need sshd openssh-server
need ssh openssh-client
if [ "$mode" != demo ]; then
    need git git
    need ip iproute2
    need nsenter util-linux
    need ps procps
    need busybox busybox
    need tcsh tcsh
    need fish fish
    need mpiexec.mpich mpich
    need mpirun.openmpi openmpi-bin
    need chromium chromium
    need chromedriver chromium-driver
fi
if [ "$mode" = arm ]; then
    need debootstrap debootstrap
    need qemu-aarch64-static qemu-user-static
fi
# From Debian 13 on it is libtcmalloc-minimal4t64, which provides this name on 64-bit machines.
if [ "$mode" = bench ]; then
    need rsync rsync
    need_library libtcmalloc_minimal.so.4 libtcmalloc-minimal4
fi
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "these packages are missing (their names on Debian):$missing" >&2
    exit 1
elif [ "$(id -u)" = 0 ]; then
    as=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as="sudo -n"
else
    echo "these packages are missing; as root: apt-get install$missing" >&2
    exit 1
fi
echo "installing:$missing"
# The servers of the lab and the tests are our own: the system's must not start because of us.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap '$as rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' | $as tee $policy >/dev/null
    $as chmod +x $policy
fi
# shellcheck disable=SC2086
{
    $as apt-get update -qq
    $as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
} >/dev/null
