"""Packages with nothing but the names by which processes meet: torch, mpi4py, Horovod, Accelerate, Lightning. A process
group needs no other process, and an optimizer no model."""

from collections.abc import Mapping
from pathlib import Path

# A process group counts what goes through it, as torch's do; `used` stands for functions that nobody has wrapped.
C10D = """
import os
class Group:
    count = 0
    def _get_sequence_number_for_group(self): return Group.count
class _world: pg_map = {}
size = member = 0
def is_initialized(): return size > 0
def get_world_size(): return size
def get_rank(): return member
def init_process_group(backend="gloo", init_method=None, world_size=-1, rank=-1, store=None):
    global size, member
    size = world_size if world_size > 0 else int(os.environ["WORLD_SIZE"])
    member = rank if rank >= 0 else int(os.environ["RANK"])
    _world.pg_map = {Group(): None}
def destroy_process_group():
    global size
    size = 0
def used(): Group.count += 1
barrier = all_reduce = used
class TCPStore:
    def __init__(self, host_name, port, world_size=None, is_master=False, *_, **__): pass
"""
OPTIMIZER = """
from collections import OrderedDict
import weakref
hooks = OrderedDict()
class Handle:
    def __init__(self):
        self.id, self.hooks_dict_ref = len(hooks), weakref.ref(hooks)
    def remove(self): del hooks[self.id]
def register_optimizer_step_post_hook(hook):
    handle = Handle()
    hooks[handle.id] = hook
    return handle
class Optimizer:
    def add_param_group(self, group): self.param_groups.append(group)
    def step(self):
        for hook in hooks.values(): hook(self, (), {})
"""
MPI = """
import os
ready, over = %s, False
class COMM_WORLD:
    Get_size = staticmethod(lambda: int(os.environ["MPI_SIZE"]))
    Get_rank = staticmethod(lambda: int(os.environ["RANK"]))
def Is_initialized(): return ready
def Is_finalized(): return over
def Init():
    global ready
    ready = True
def Init_thread(level): Init()
def Finalize():
    global over
    over = True
"""
BASICS = """
class HorovodBasics:
    def init(self, comm=None): self.made = 4
    def size(self): return self.made
    def rank(self): return 1
"""
RPC = """
class api: pass
class Agent:
    def __init__(self, rank, size): self.id, self.size = rank, size
    def get_worker_infos(self): return [self] * self.size
    def get_worker_info(self): return self
def init_rpc(name, backend=None, rank=-1, world_size=None):
    agent = Agent(rank, world_size)
    api._get_current_rpc_agent = lambda: agent
"""
FILES = {
    "torch/__init__": "from . import distributed, optim", "torch/optim/__init__": "from .optimizer import Optimizer",
    "torch/optim/optimizer": OPTIMIZER, "torch/distributed/__init__": "from .distributed_c10d import *",
    "torch/distributed/distributed_c10d": C10D, "torch/distributed/rpc": RPC, "mpi4py/__init__": "",
    "mpi4py/MPI": MPI % True, "horovod/__init__": "", "horovod/common/__init__": "",
    "horovod/common/basics": BASICS, "accelerate/__init__": "",
    "accelerate/state": "class PartialState: _shared_state = {'distributed_type': 'DistributedType.NO'}",
    "pytorch_lightning": "",
}  # fmt: skip


def write_packages(place: Path, files: Mapping[str, str] = {}) -> None:
    """Puts them there, and ``files`` (module → text) beside or instead of them."""
    for name, text in {**FILES, **files}.items():
        path = place / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
