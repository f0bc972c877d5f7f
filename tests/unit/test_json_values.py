"""Records from JSON, read by several threads at once."""

import subprocess
import sys

# Types that nobody has read yet, so in a process of its own: 60 in one, read by eight threads that begin together.
SCRIPT = """
import sys, threading, types
sys.setswitchinterval(1e-6)
source = "from typing import *\\nfrom ipexctl.model.json_values import Record\\n"
for number in range(60):
    source += f"class Part{number}(Record):\\n    size: 'Optional[int]' = 1\\n    names: 'Tuple[str, ...]' = ()\\n"
source += "class Whole(Record):\\n" + "".join(f"    part{number}: 'Part{number}'\\n" for number in range(60))
sys.modules["made"] = made = types.ModuleType("made")
exec(source, made.__dict__)
from ipexctl.model.json_values import convert_json
value = {f"part{number}": {"size": 1, "names": ["a"]} for number in range(60)}
begin = threading.Barrier(8)
def read():
    begin.wait()
    convert_json(made.Whole, value)
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_may_read_a_type_for_the_first_time_at_once() -> None:
    """msgspec alone ends three of eight such processes by SIGSEGV."""
    for _ in range(6):
        ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (0, b"")
