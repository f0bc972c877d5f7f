"""uv on this host: which one may be executed, with which variables and cache, and why it failed."""

import os
from contextlib import suppress
from typing import Any, Dict, List, Optional

from ipexctl.protocol.session import SessionError
from ipexctl.remote.session import relay
from ipexctl.remote.session.places import find_nearest_directory, find_way_fault, is_safe_from_others
from ipexctl.remote.session.programs import Watch, execute


def find_uv(base: str, uv: Dict[str, Any]) -> Optional[str]:
    """Returns the controller's own uv: at its path if this host sees it, or where an earlier install put it."""
    ours = os.path.join(base, "bin", "uv-" + uv["version"])
    for path in (ours, os.path.realpath(uv["path"])):  # a link on the way may lead elsewhere later
        same = relay.get_readable_size(path) == uv["size"] and relay.hash_file(path) == uv["sha256"]
        if same and (path == ours or is_safe_from_others(path)):
            return path
    return None


def build_uv_environment(tmp: str, cache: str, stall: float) -> Dict[str, str]:
    """Returns all variables of uv: nothing of the account's own configuration but proxies and certificates."""
    env = {
        "HOME": os.path.expanduser("~"),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": tmp,
        "UV_CACHE_DIR": cache,
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_LINK_MODE": "hardlink",
        "UV_HTTP_TIMEOUT": str(int(max(1, stall / 3))),
        "UV_HTTP_RETRIES": "2",
        "NO_COLOR": "1",
        "NETRC": os.devnull,  # its logins would go wherever a lock of somebody else leads; wheels have their own
    }
    proxies = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
    env.update({name: os.environ[name] for name in (*proxies, *map(str.upper, proxies)) if name in os.environ})
    for bundle in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"):
        if os.path.exists(bundle):  # the host's own authorities, as its administrator wants them
            return dict(env, SSL_CERT_FILE=bundle, UV_SYSTEM_CERTS="1", UV_NATIVE_TLS="1")
    return env


def run_uv(argv: List[str], env: Dict[str, str], watch: Watch, stall: float, timeout: float) -> None:
    status, _, errors = execute(argv, env, watch, stall, timeout)
    if status == 0:
        return
    code = "step"
    if "No space left" in errors or "os error 28" in errors:
        code = "no-space"
    elif "Hash mismatch" in errors or "hash mismatch" in errors:
        code = "hash"
    elif "Failed to fetch" in errors or "error sending request" in errors or "Failed to download" in errors:
        code = "index"
    raise SessionError(code, "uv %s failed (status %d)" % (" ".join(argv[1:3]), status), errors=errors[-4000:])


def choose_uv_cache(base: str) -> str:
    """uv's own cache where hard links from it are possible (a second install costs nothing) and nobody else can have
    put something there, which uv takes without another look at its hash; else one of ours."""
    usual = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "uv")
    with suppress(OSError):
        near = find_nearest_directory(usual)
        info, inner = os.stat(near), os.path.join(usual, "wheels")
        own = info.st_uid == os.getuid() and not find_way_fault(os.path.realpath(near), inner)
        if own and os.access(near, os.W_OK) and info.st_dev == os.stat(base).st_dev and not find_way_fault(near, inner):
            return usual
    return os.path.join(base, "cache")
