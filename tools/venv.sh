#!/bin/sh
# A virtual environment with uv in it, whatever this machine's Python can do: `venv.sh DIRECTORY`.
set -eu
venv=$1
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
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
