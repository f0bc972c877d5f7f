"""A rank with the oneCCL binding: imports torch, IPEX and the module, and lets the binding's MPI add up."""

import importlib
import os
import runpy
import sys
from pathlib import Path

name, adds = sys.argv[1:]
importlib.import_module("torch")
importlib.import_module("intel_extension_for_pytorch")
module = importlib.import_module(name)
sys.argv = [adds, "libmpi.so.12"]
runpy.run_path(adds, run_name="__main__")
loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libmpi.so" in line}
root = Path(str(module.__file__)).parent
own = [str(Path(path).relative_to(root)) for path in loaded]
print("binding", module.__version__, "of", os.environ["CCL_ROOT"] == str(root), own)
