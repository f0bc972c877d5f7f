"""The import check of an environment, run by its own Python in a fresh process: what is really there and does it work?

Prints one line, ``ipexctl-verify {json}``. Everything else on its outputs is noise of the packages (IPEX warns about
overridden kernels: harmless). A package that ends the process takes the line with it: the caller sees the status."""

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any, Callable, Dict, List


def explain_preload_failure(path: str) -> str:
    """Why a library cannot be loaded before all others, as a rank would; empty where it can."""
    line, env = [sys.executable, "-I", "-S", "-c", ""], {"LD_PRELOAD": path}
    try:
        done = subprocess.run(line, env=env, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    if lines:
        return lines[-1][:300]
    return "" if done.returncode == 0 else "status %d" % done.returncode


# What a rank does: MPI from its first to its last call, through the library of this name.
RANK = """
import ctypes, sys
version, size = ctypes.create_string_buffer(8192), ctypes.c_int()
if sys.argv[1]:
    mpi = ctypes.CDLL(sys.argv[1])
    mpi.MPI_Init(None, None), mpi.MPI_Get_library_version(version, ctypes.byref(size)), mpi.MPI_Finalize()
print("ipexctl-rank " + version.value.decode("utf-8", "replace").split(chr(10))[0])
"""


def query_mpi_version(mpiexec: str, arguments: List[str], library: str) -> str:
    """The version of MPI that one rank on this host reports. With these arguments it is started without another one."""
    argv = [mpiexec, *arguments, "-n", "1", sys.executable, "-c", RANK, library]
    completed = subprocess.run(argv, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, timeout=60)
    lines = completed.stdout.decode("utf-8", "replace").strip().splitlines()
    versions = [line.partition("ipexctl-rank")[2] for line in lines if "ipexctl-rank" in line]
    if completed.returncode or not versions:
        raise OSError("status %d: %s" % (completed.returncode, " / ".join(lines[-3:])))
    return versions[0].strip()


def count_same_files(base: str, target: str) -> int:
    """Files of the environment ``base`` that are in ``target`` too, by inode, or with its own name in place of the
    other's; 0 if not all are. What Python itself compiles does not count."""
    same, old_name, new_name = 0, *(os.fsencode("/" + os.path.basename(path)) for path in (base, target))
    for top in ("bin", "lib"):
        for folder, folders, files in os.walk(os.path.join(base, top)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for old in (os.path.join(folder, name) for name in files):
                new = target + old[len(base) :]
                try:
                    if not os.path.samestat(os.lstat(old), os.lstat(new)):
                        if os.path.getsize(old) > 1 << 20:
                            return 0
                        with open(old, "rb") as before, open(new, "rb") as after:
                            if before.read().replace(old_name, new_name) != after.read():
                                return 0
                except OSError:
                    return 0
                same += 1
    return same


def find_import_names(packages: List[str]) -> Dict[str, str]:
    """Returns what packages are imported as, by their lists of files: module → package."""
    place, modules = sysconfig.get_paths()["purelib"], {}  # type: str, Dict[str, str]
    for name in os.listdir(place):
        package = re.sub("[-_.]+", "-", name[: -len(".dist-info")].rpartition("-")[0]).lower()
        if name.endswith(".dist-info") and package in packages:
            with open(os.path.join(place, name, "RECORD"), encoding="utf-8") as file:
                found = re.findall(r"(?m)^([A-Za-z]\w*)(?:/__init__)?(?:\.[\w-]+)?\.(?:py|so),", file.read())
            usual = package.replace("-", "_")
            modules.update(dict.fromkeys([usual] if usual in found else sorted(set(found)), package))
    return modules


def main(wanted: Dict[str, Any]) -> None:
    report: Dict[str, Any] = {"versions": {}, "problems": [], "python": sys.version.split()[0]}
    problems = report["problems"]

    def attempt(name: str, what: str, work: Callable[[], Any]) -> Any:
        print("ipexctl-step %s" % what, flush=True)
        try:
            return work()
        except BaseException as error:  # SystemExit too: IPEX calls exit() on a CPU it does not like
            lines = str(error).strip().splitlines() or [name]
            text = " … ".join(line[:300] for line in dict.fromkeys((lines[0], lines[-1])))  # what, and why or where
            problems.append("%s: %s: %s" % (what, type(error).__name__, text))
            return None

    def load(name: str, key: str, package: str = "") -> Any:
        module = attempt(name, "import %s" % name, lambda: importlib.import_module(name))
        if module is not None:
            version = getattr(module, "__version__", "") or (package and importlib.metadata.version(package))
            report["versions"][key] = str(version)
        return module

    os.environ.setdefault("KERAS_BACKEND", "torch")  # else Keras wants TensorFlow
    if wanted.get("base"):
        report["same"] = count_same_files(wanted["base"], sys.prefix)
    same = bool(report.get("same"))  # then all but what was added has been checked
    wanted = dict(wanted, module="", modules=[], mpiexec="") if same else wanted
    torch: Any = None if same else load("torch", "torch")
    ipex = load("intel_extension_for_pytorch", "ipex") if wanted.get("ipex") and torch else None
    if wanted.get("module") and torch:
        load(wanted["module"], "oneccl")
    for name in wanted.get("modules", []):  # what the caller wants to see imported besides
        load(name, name)
    added = attempt("added", "look at what was added", lambda: find_import_names(wanted.get("added", [])))
    report["failed"] = [package for name, package in (added or {}).items() if load(name, name, package) is None]

    for key in ("torch", "ipex", "oneccl"):
        want, got = wanted.get(key), report["versions"].get(key, "").partition("+")[0]
        if want and got and got != want:
            problems.append("%s is %s, %s was asked for" % (key, got, want))

    if ipex is not None:
        # Older versions do not report it.
        tell = getattr(getattr(ipex, "_C", None), "_get_current_isa_level", None)
        report["isa"] = attempt("isa", "ISA level", tell) if tell else None
    elif hasattr(getattr(getattr(torch, "backends", None), "cpu", None), "get_cpu_capability"):  # from 2.0 on
        report["isa"] = attempt("isa", "ISA level", lambda: torch.backends.cpu.get_cpu_capability())

    if torch is not None and wanted.get("step", True):

        def step() -> None:
            model = torch.nn.Linear(16, 16)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            dtype = torch.bfloat16
            if ipex is not None and str(report.get("isa")) in ("AVX2", "AVX2_VNNI"):
                dtype = torch.float32  # ipex.optimize(dtype=bfloat16) needs AVX-512 there
            if ipex is not None:
                model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=dtype)
            start = time.time()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                loss = model(torch.randn(4, 16)).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            if not bool(torch.isfinite(loss)):
                raise ValueError("the loss of a step is not finite")
            report["step_ms"] = round((time.time() - start) * 1000, 1)
            report["dtype"] = str(dtype).replace("torch.", "")

        attempt("step", "a training step", step)

    if wanted.get("mpiexec"):
        rank = (wanted["mpiexec"], wanted["single_rank"], wanted["library"])
        report["mpi"] = attempt("mpiexec", "one rank of %s" % rank[0], lambda: query_mpi_version(*rank))

    for what, path in wanted.get("preload", []):
        why = explain_preload_failure(path)
        report.setdefault("preload", {})[what] = why
        if why and what in wanted.get("asked", []):
            problems.append("%s cannot be loaded: %s" % (what, why))

    sys.stdout.flush()
    sys.stdout.write("\nipexctl-verify %s\n" % json.dumps(report))
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
