"""What an install leaves in an environment, for tests that need one."""

from ipexctl.model.stack import InstallMarker, MpiLayout, StackMpi, StackSummary

MARKER = InstallMarker(
    format=1,
    id="torch2.8.0-0123456789",
    inputs="",
    venv="/home/u/env",
    prefix="/home/u/env.d/torch2.8.0-0123456789",
    python="3.11",
    stack=StackSummary("x", "2.8.0", None, None, None, "gloo", "3.11", StackMpi("impi-rt", "2021.18.1")),
    packages={},
    layout=MpiLayout("impi-rt", "2021.18.1", "bin/mpiexec.hydra", ("bin",), ("lib",)),
    created=1.7e9,
    by="u@controller",
    ipexctl="0.1.0",
)
