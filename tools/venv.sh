#!/bin/sh
# A virtual environment with uv in it, whatever this machine's Python can do: `venv.sh DIRECTORY`.
set -eu
venv=$1
lock=$(dirname "$0")/../requirements.lock
python=${PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || { echo "no $python here: install python3 (3.10 or later)" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    { echo "$python is too old: ipexctl needs 3.10 or later (make PYTHON=...)" >&2; exit 1; }
if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    rm -rf "$venv"
    # Debian keeps ensurepip in a package of its own.
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        as=
    elif command -v apt-get >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as="sudo -n"
    else
        echo "$python cannot make virtual environments; as root: apt-get install $package" >&2
        exit 1
    fi
    echo "installing: $package"
    {
        $as apt-get update -qq
        $as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
    } >/dev/null
    "$python" -m venv "$venv"
fi
# The release of uv that the lock names, with its hashes, for pip, which is the only installer so far.
awk '/^[^ ]/ { own = /^uv==/ } own' "$lock" >"$venv/uv.txt"
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    -r "$venv/uv.txt"; then
    release=$(sed -n 's/^\(uv==[^ ;]*\).*/\1/p' "$venv/uv.txt")
    echo "$release of requirements.lock cannot be installed: pip says above why" >&2
    echo "without a package index: PIP_NO_INDEX=1 PIP_FIND_LINKS=DIRECTORY-OF-WHEELS sh $0 $venv" >&2
    exit 1
fi
