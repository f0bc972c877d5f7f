"""A rank with torch that maps the files which are its arguments, as the loader maps libraries."""

import mmap
import sys
from types import ModuleType

sys.modules["torch"] = ModuleType("torch")  # of a rank without it nothing is recorded
held = []
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE))
