"""The home directory of the user root."""

import pwd
from collections.abc import MutableMapping
from pathlib import Path


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
