"""Files of ipexctl's own that are read again later: whole or not at all, and for nobody else, whatever the umask."""

import os
import pwd
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path


def write_private_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replaces a file by one rename, once its bytes are on the disk. No other process, here or on another host with the
    same home, uses the same temporary name."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            os.fchmod(number, mode)
            file.flush()
            os.fsync(number)
        Path(part).replace(path)
    except OSError:
        with suppress(OSError):
            Path(part).unlink()
        raise


def switch_to_root_home(environ: MutableMapping[str, str], uid: int) -> str:
    """Under sudo that keeps HOME, everything of ours is root's own, as ssh has it: nothing in the user's home becomes
    root's. Returns root's home, or nothing where it was in use already; changes ``environ``."""
    old, home = environ.get("HOME", ""), pwd.getpwuid(0).pw_dir
    if uid != 0 or "SUDO_UID" not in environ or not Path(old).is_dir() or Path(old).stat().st_uid == 0:
        return ""
    environ["HOME"] = home
    for name in [name for name in environ if name.startswith("XDG_") and environ[name].startswith(old)]:
        del environ[name]
    return home
