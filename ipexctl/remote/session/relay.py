"""Files that go from host to host: a session serves to others what it has received, below its own directory, its store.
A part of an install's session, and for `sync` a program of its own."""

import base64
import hashlib
import hmac
import os
import shutil
import stat
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Tuple

from ipexctl.protocol import session as messages
from ipexctl.protocol.paths import PART
from ipexctl.protocol.session import SessionError
from ipexctl.remote.agent import procs
from ipexctl.remote.session.loop import ENDED, call_by_name, report_progress, serve_requests

DISK_TIMEOUT = 900.0  # seconds a command may be busy with the disk alone; then the signs of life end


class FileRelay:
    """One store on this host: the directory ``base``, below which all files and tokens lie."""

    def __init__(self) -> None:
        self.base = ""
        self.tokens: List[str] = []  # left by us; removed at the end

    def open_store(self, store: str, earlier: List[str]) -> None:
        """Makes the store, or takes over what ``earlier`` ones, of syncs that were interrupted, have received. Raises
        `SessionError` ("foreign") where others could change what is in it."""
        project = os.path.dirname(store)
        os.makedirs(project, mode=0o700, exist_ok=True)
        # The same directory to the end: another user, who may write above, can put a link in its place meanwhile.
        held = "/proc/self/fd/%d" % os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.base = os.path.join(held, os.path.basename(store))
        for name in earlier:
            with suppress(OSError):  # another host with the same home directory was first
                os.rename(os.path.join(held, name), self.base)
        os.makedirs(self.base, mode=0o700, exist_ok=True)
        fault = find_owner_fault(project) or find_owner_fault(held + "/.") or find_owner_fault(self.base)
        if fault:
            raise SessionError("foreign", fault)

    def remove_store(self) -> None:
        remove_path(self.base)

    def take_tokens_back(self) -> None:
        for path in self.tokens:
            remove_path(path)

    def leave_token(self, name: str) -> None:
        """Leaves a token, by which hosts that share a file system find each other."""
        path = os.path.join(self.base, "tokens", name)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        self.tokens.append(path)
        with open(path, "w") as file:
            file.write(name)

    def find_tokens(self, names: List[str]) -> messages.SeenTokens:
        """Returns those of these tokens that this host sees."""
        return messages.SeenTokens([name for name in names if os.path.exists(os.path.join(self.base, "tokens", name))])

    def make_room(self, files: List[Dict[str, Any]]) -> messages.Present:
        """Creates the directories for these files; those that are there already, byte for byte."""
        arrived = [(item, os.path.join(self.base, item["target"])) for item in files]
        for _, path in arrived:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        arrived = [(item, path) for item, path in arrived if get_readable_size(path) == item["size"]]
        return messages.Present([item["target"] for item, path in arrived if hash_file(path) == item["sha256"]])

    def serve(self, address: str, files: List[str]) -> messages.Offer:
        """Serves these files (paths below the store) to other hosts over HTTP at this address as long as this process
        lives. A request without the token in its header gets nothing; the receiver checks the size and hash of each
        file."""
        from urllib.parse import quote

        token = make_token()
        allowed = {"/" + quote(name): os.path.join(self.base, name) for name in files}

        def find_file(path: str) -> Optional[BinaryIO]:
            name = allowed.get(path, "")
            return open(name, "rb") if os.path.isfile(name) else None

        return messages.Offer(start_server(address, lambda _: b"Bearer " + token.encode(), find_file), token)

    def fetch(self, base: str, token: str, files: List[Dict[str, Any]]) -> messages.Fetched:
        """Fetches files from another host, without proxies; it stops at the first that does not arrive whole. What has
        arrived of it stays, and is where the next try, from wherever, goes on."""
        from concurrent.futures import Future, wait  # slow to import, and few sessions need them

        fetched: "Future[messages.Fetched]" = Future()

        def work() -> None:
            try:
                fetched.set_result(self._fetch(base, token, files))
            except BaseException as error:  # raised again below
                fetched.set_exception(error)

        # What Python reads of an answer has no end in more than one place, and a lost controller ends this program.
        threading.Thread(target=work, daemon=True).start()
        while not wait([fetched], 0.5).done:
            if ENDED.is_set():
                raise SessionError("gone", "the controller is gone")
        return fetched.result()

    def _fetch(self, base: str, token: str, files: List[Dict[str, Any]]) -> messages.Fetched:
        import http.client  # as above
        import urllib.request
        from urllib.parse import quote

        total, received, reported = sum(item["size"] for item in files), 0, time.time()
        fetched: List[str] = []
        for item in files:
            target = os.path.join(self.base, item["target"])
            part = os.path.join(os.path.dirname(target), PART + item["sha256"])
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(part, flags, 0o600), "r+b") as file:
                    hashed, done = hash_open_file(file)
                    received += done
                    request = urllib.request.Request(base + "/" + quote(item["target"]))
                    request.add_header("Authorization", "Bearer " + token)
                    request.add_header("Range", "bytes=%d-" % done)
                    with open_directly(request, 10) as answer:
                        for piece in iter(lambda: answer.read(1 << 20), b""):
                            file.write(piece)
                            hashed.update(piece)
                            received, done = received + len(piece), done + len(piece)
                            if time.time() - reported > 0.5:
                                reported = time.time()
                                report_progress(received, total)
                            if done > item["size"]:
                                break
                if done < item["size"]:
                    raise ValueError("%s was cut" % item["target"])
                if done > item["size"] or hashed.hexdigest() != item["sha256"]:
                    remove_path(part)
                    longer = "is longer than %d bytes" % item["size"]
                    raise ValueError("%s %s" % (item["target"], longer if done > item["size"] else "arrived damaged"))
                os.chmod(part, item["mode"])
                os.rename(part, target)
            except (OSError, ValueError, http.client.HTTPException) as error:
                if not get_readable_size(part):
                    remove_path(part)
                return messages.Fetched(fetched, str(error) or type(error).__name__)
            fetched.append(item["target"])
        return messages.Fetched(fetched, "")


def open_directly(request: Any, timeout: float) -> Any:
    """Sends a request to another host of this session: through no proxy, and on to nowhere that it names. Raises
    `OSError`, `http.client.HTTPException`."""
    from urllib.request import HTTPRedirectHandler, ProxyHandler, build_opener

    class Direct(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None  # which makes it an error

    return build_opener(ProxyHandler({}), Direct()).open(request, timeout=timeout)


def start_server(address: str, expect_proof: Callable[[str], bytes], find: Callable[[str], Optional[BinaryIO]]) -> int:
    """Starts an HTTP server that lives as long as this process; its port. Who sends the proof that is expected for a
    path, in time, gets the file of that path."""
    from ipexctl.protocol.http_bounds import BoundedHandler, BoundedServer  # slow to import, and few sessions need it

    class Handler(BoundedHandler):
        timeout = 60

        def do_GET(self) -> None:
            proof = (self.headers.get("Authorization") or "").encode("latin-1")
            if not hmac.compare_digest(proof, expect_proof(self.path)):
                self.send_error(403)
                return
            self.deadline.cancel()
            body = find(self.path)
            if body is None:
                self.send_error(404)
                return
            with body:
                begin = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
                self.send_response(206 if begin else 200)
                self.send_header("Content-Length", str(body.seek(0, os.SEEK_END) - begin))
                self.end_headers()
                body.seek(begin)
                shutil.copyfileobj(body, self.wfile, 1 << 20)

    server = BoundedServer((address, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port: int = server.server_address[1]
    return port


def make_token() -> str:
    return base64.b16encode(os.urandom(16)).decode().lower()


def find_owner_fault(path: str) -> str:
    """Why others can have put there what is at a path; empty where they cannot, and where nothing is."""
    try:
        info = os.lstat(path)
    except OSError:
        return ""
    if stat.S_ISLNK(info.st_mode):
        return "%s is a symbolic link" % path
    if info.st_uid != os.getuid():
        return "%s belongs to another user" % path
    if info.st_mode & 0o022:
        return "%s can be written by others (mode %04o)" % (path, info.st_mode & 0o7777)
    return ""


def get_readable_size(path: str) -> Optional[int]:
    try:
        return os.stat(path).st_size if os.access(path, os.R_OK) else None
    except OSError:
        return None


def hash_file(path: str) -> str:
    with open(path, "rb") as file:
        return hash_open_file(file)[0].hexdigest()


def hash_open_file(file: BinaryIO) -> Tuple["hashlib._Hash", int]:
    """Returns the sum of what is in a file, and its bytes."""
    sum_, size = hashlib.sha256(), 0
    for piece in iter(lambda: file.read(1 << 20), b""):
        sum_.update(piece)
        size += len(piece)
    return sum_, size


def remove_path(path: str) -> None:
    """Removes a file or a tree; of that eight directories at a time, since each waits for a disk or a file server. One
    in which something is mounted stays."""
    if os.path.isdir(path) and not os.path.islink(path):
        if procs.find_mount(path):
            return
        # A pool of multiprocessing would need a /dev/shm that can be written.
        from concurrent.futures import ThreadPoolExecutor

        directories = procs.list_directories(path)[::-1]

        def remove_some(first: int) -> None:
            for directory in directories[first::8]:
                remove_files(path, directory)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(remove_some, range(8)))
        for directory in directories:  # whose turn came before that of what was in them
            remove_files(path, directory)
    else:
        with suppress(OSError):
            os.unlink(path)


def remove_files(top: str, directory: str) -> None:
    """Removes the files in a directory that is ``top`` or below it, and that where it is empty then. Never through a
    link: another user may have put one in the place of a directory on the way that he may write."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    at = -1
    with suppress(OSError):
        at = os.open(top, flags)
        for name in os.path.relpath(directory, top).split("/"):
            above, at = at, os.open(name, flags, dir_fd=at)
            os.close(above)
        for name in os.listdir(at):
            with suppress(OSError):  # it is a directory
                os.unlink(name, dir_fd=at)
        os.rmdir(os.path.join("..", os.path.basename(directory)), dir_fd=at)
    if at >= 0:
        os.close(at)


def main() -> None:
    os.umask(0o077)
    relay = FileRelay()
    requests = (relay.open_store, relay.leave_token, relay.find_tokens, relay.make_room, relay.serve, relay.fetch)
    serve_requests(call_by_name(*requests, relay.remove_store), relay.take_tokens_back, DISK_TIMEOUT)


if __name__ == "__main__":
    main()
