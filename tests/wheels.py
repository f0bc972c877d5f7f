"""Small wheels that stand in for the real stack, and package indexes that behave badly, for tests of install.

The doubles have the names, versions, modules and files that install looks at, and a little of torch's interface, so
that the import check on a host runs as it is. All else about an install is real: uv, the lock, hashes, environments.
"""

import base64
import hashlib
import io
import re
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TORCH = """
__version__ = "{version}"
bfloat16, float32 = "torch.bfloat16", "torch.float32"
import contextlib

class _Tensor:
    def float(self): return self
    def pow(self, n): return self
    def mean(self): return self
    def backward(self): pass
    def __bool__(self): return True

def randn(*size): return _Tensor()
def isfinite(value): return True
def autocast(*args, **more): return contextlib.nullcontext()

class nn:
    class Linear:
        def __init__(self, a, b): pass
        def __call__(self, x): return x
        def parameters(self): return []

class optim:
    class SGD:
        def __init__(self, parameters, lr): pass
        def step(self): pass

class backends:
    class cpu:
        get_cpu_capability = staticmethod(lambda: "AVX2")
"""
IPEX = """
__version__ = "{version}+cpu"
def optimize(model, optimizer=None, dtype=None): return model, optimizer
class _C:
    _get_current_isa_level = staticmethod(lambda: "AVX512_BF16")
"""
MPIEXEC = """#!/bin/sh
[ "$1" = -launcher ] && printf 'ipexctl-rank '  # what a rank says
echo 'Intel(R) MPI Library for Linux* OS, Version 2021.18 (a double)'
"""
# Any shared library of this machine will do for "can it be loaded?".
LIBRARY = next(path for path in Path("/lib").glob("*-linux-gnu/libm.so.6")) if Path("/lib").exists() else Path()


@dataclass(frozen=True)
class Built:
    """A wheel: its file name and its bytes."""

    filename: str
    data: bytes

    @property
    def project(self) -> str:
        return self.filename.split("-")[0].lower().replace("_", "-")

    @property
    def metadata(self) -> bytes:
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            return archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA")))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def wheel(
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    requires: tuple[str, ...] = (),
    tag: str = "py3-none-any",
    data: Mapping[str, str | bytes] | None = None,
) -> Built:
    """A wheel with these files; ``data`` goes below the environment itself, and is executable in ``bin``."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    contents: dict[str, bytes] = {path: _bytes(text) for path, text in files.items()}
    contents |= {f"{module}-{version}.data/data/{path}": _bytes(text) for path, text in (data or {}).items()}
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode()
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    record = "".join(f"{path},sha256={_record(text)},{len(text)}\n" for path, text in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for path, text in contents.items():
            member = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            member.external_attr = (0o755 if "/bin/" in path else 0o644) << 16
            archive.writestr(member, text)
    return Built(f"{module}-{version}-{tag}.whl", out.getvalue())


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _record(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def torch(version: str = "2.8.0", *, ballast: int = 0, note: str = "") -> Built:
    """``ballast`` bytes that do not compress; ``note`` makes another file of the same version."""
    files: dict[str, str | bytes] = {"torch/__init__.py": TORCH.replace("{version}", version) + f"# {note}\n"}
    if ballast:
        files["torch/ballast.bin"] = b"".join(hashlib.sha512(b"%d" % n).digest() for n in range(ballast // 64))
    return wheel("torch", version, files)


def ipex(version: str = "2.8.0", *, mpi: str = "") -> Built:
    """``mpi``: the layout of the MPI inside, "" for none."""
    files: dict[str, str | bytes] = {"intel_extension_for_pytorch/__init__.py": IPEX.replace("{version}", version)}
    files |= {f"intel_extension_for_pytorch/{path}": data for path, data in _mpi(mpi).items()}
    return wheel("intel-extension-for-pytorch", version, files)


def binding(version: str, module: str, layout: str) -> Built:
    """oneccl_bind_pt with an MPI laid out as that version's."""
    files: dict[str, str | bytes] = {f"{module}/__init__.py": f'__version__ = "{version}+cpu"\n'}
    files |= {f"{module}/{path}": data for path, data in _mpi(layout).items()}
    return wheel("oneccl-bind-pt", version, files)


def _mpi(layout: str) -> dict[str, str | bytes]:
    library = LIBRARY.read_bytes()
    provider = {"libtcp-fi.so": library}
    trees: dict[str, dict[str, str | bytes]] = {
        "": {},
        "flat": {
            "bin/mpiexec.hydra": MPIEXEC,
            "lib/libmpi.so.12": library,
            "lib/libccl.so.1": library,
            "lib/libfabric.so.1": library,
            **{f"lib/prov/{name}": data for name, data in provider.items()},
        },
        "flat+opt-libfabric": {
            "bin/mpiexec.hydra": MPIEXEC,
            "lib/libmpi.so.12": library,
            "lib/libccl.so.1": library,
            "opt/mpi/libfabric/lib/libfabric.so.1": library,
            **{f"opt/mpi/libfabric/lib/prov/{name}": data for name, data in provider.items()},
        },
        "opt-mpi": {
            "bin/cpuinfo": MPIEXEC,
            "opt/mpi/bin/mpiexec.hydra": MPIEXEC,
            "opt/mpi/lib/libmpi.so.12": library,
            "lib/libccl.so.1": library,
            "opt/mpi/libfabric/lib/libfabric.so.1": library,
            **{f"opt/mpi/libfabric/lib/prov/{name}": data for name, data in provider.items()},
        },
    }
    return trees[layout]


def impi(version: str = "2021.18.1") -> Built:
    """impi-rt: the new layout from 2021.15 on, the old one before."""
    library = LIBRARY.read_bytes()
    old = tuple(int(part) for part in version.split(".")) < (2021, 15)
    fabric = {"lib/libfabric/libfabric.so.1": library, "lib/libfabric/prov/libtcp-fi.so": library}
    data: dict[str, str | bytes] = {"bin/mpiexec.hydra": MPIEXEC, "bin/mpirun": MPIEXEC, "lib/libmpi.so.12": library}
    return wheel("impi-rt", version, {}, data=data | (fabric if old else {"lib/libfabric.so.1": library}))


def mpich(version: str = "5.0.2") -> Built:
    """The wheel of MPICH, as far as install and its check of one rank look."""
    text = (
        f"#!/bin/sh\n[ \"$1\" = -launcher ] && printf 'ipexctl-rank '\necho 'HYDRA build details: Version: {version}'\n"
    )
    programs = {f"bin/{name}": text for name in ("mpiexec", "mpiexec.hydra", "mpirun", "hydra_pmi_proxy")}
    return wheel("mpich", version, {}, data={**programs, "lib/libmpi.so.12": LIBRARY.read_bytes()})


def openmp(version: str = "2026.2.0", *, broken: bool = False) -> Built:
    """intel-openmp; ``broken``: with a library that no loader takes."""
    return wheel(
        "intel-openmp", version, {}, data={"lib/libiomp5.so": b"no library" if broken else LIBRARY.read_bytes()}
    )


def numpy() -> Built:
    return wheel("numpy", "1.26.4", {"numpy/__init__.py": '__version__ = "1.26.4"\n'})


def stack(**torch_options: object) -> list[Built]:
    """Everything that ``--torch 2.8.0`` asks for, with IPEX or without."""
    return [torch(**torch_options), ipex(), impi(), numpy()]  # type: ignore[arg-type]


def fill(directory: Path, wheels: list[Built]) -> Path:
    """A wheelhouse."""
    directory.mkdir(parents=True, exist_ok=True)
    for built in wheels:
        (directory / built.filename).write_bytes(built.data)
    return directory


# ------------------------------------------------------------------------------------------------------ an index

Misbehave = Callable[[str, str, BaseHTTPRequestHandler], bool]


@dataclass
class Index:
    """A simple package index on a port of its own. ``misbehave`` may answer a request itself (and return True):
    it gets the path, the client's address and the handler. ``asked`` are the requests it has seen."""

    wheels: list[Built]
    misbehave: Misbehave | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)  # (client, path)
    sent: int = 0  # bytes of wheels
    url: str = ""

    @property
    def files(self) -> dict[str, Built]:
        return {built.filename: built for built in self.wheels}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, client = handler.path, handler.client_address[0]
        self.asked.append((client, f"{handler.command} {path}"))
        if self.misbehave and self.misbehave(path, client, handler):
            return
        if result := re.fullmatch(r"/simple/([^/]+)/", path):
            links = "".join(
                f'<a href="/files/{name}#sha256={built.sha256}" data-core-metadata="true">{name}</a>\n'
                for name, built in self.files.items()
                if built.project == result[1]
            )
            reply(handler, 200 if links else 404, f"<html><body>{links}</body></html>".encode())
        elif path.startswith("/files/") and path.endswith(".metadata"):
            reply(handler, 200, self.files[path[7:].removesuffix(".metadata")].metadata)
        elif path.startswith("/files/") and path[7:] in self.files:
            data = self.files[path[7:]].data
            start = handler.headers.get("Range", "")
            if span := re.fullmatch(r"bytes=(\d+)-(\d*)", start):
                end = int(span[2]) + 1 if span[2] else len(data)
                reply(handler, 206, data[int(span[1]) : end], "application/octet-stream")
            else:
                reply(handler, 200, data, "application/octet-stream")
            self.sent += len(data) if handler.command == "GET" else 0
        else:
            reply(handler, 404, b"no")


def require_login(path: str, client: str, handler: BaseHTTPRequestHandler) -> bool:
    """`Misbehave` of an index that lets in only user:geheim."""
    if handler.headers.get("Authorization", "").startswith("Basic dXNlcjpnZWhlaW0="):
        return False
    handler.send_response(401)
    handler.send_header("WWW-Authenticate", 'Basic realm="wheels"')
    handler.send_header("Content-Length", "0")
    handler.end_headers()
    return True


def reply(handler: BaseHTTPRequestHandler, status: int, data: bytes, kind: str = "text/html") -> None:
    """An answer with a tag, as those of real indexes: who has it already keeps the one copy in its cache."""
    tag = f'"{hashlib.sha256(data).hexdigest()}"'
    if status == 200 and handler.headers.get("If-None-Match") == tag:
        status, data = 304, b""
    handler.send_response(status)
    handler.send_header("ETag", tag)
    if kind == "text/html":  # a later index may have the port of this one: pages are asked for again
        handler.send_header("Cache-Control", "no-cache")
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)


@contextmanager
def serving(index: Index, address: str = "127.0.0.1") -> Iterator[Index]:
    """Serves it until the end of the block; ``index.url`` is what ``--index-url`` takes."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            index.answer(self)

        do_HEAD = do_GET

        def handle(self) -> None:
            try:
                super().handle()
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                pass  # clients of these tests are killed and cut off

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((address, 0), Handler)
    server.daemon_threads = True
    index.url = f"http://{address}:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send_part(handler: BaseHTTPRequestHandler, data: bytes, size: int) -> None:
    """An answer that promises all of it, and its first bytes."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[:size])


def crawl(handler: BaseHTTPRequestHandler, data: bytes, stop: threading.Event, piece: int = 8 << 10) -> None:
    """Answers with eight pieces a second, until told otherwise."""
    send_part(handler, data, 0)
    for start in range(0, len(data), piece):
        handler.wfile.write(data[start : start + piece])
        handler.wfile.flush()
        if stop.wait(0.125):
            break
