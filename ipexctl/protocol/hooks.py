"""What `sitecustomize` in a rank shares with the agent. It lies beside it on the rank's path and imports nothing."""

DIRECTORY_ENV = "IPEXCTL_DIR"  # the run's directory on the host
RANK_ENV = "IPEXCTL_RANK"
RANKS = "ranks"  # in the run's directory: a file per rank and kind of record
RECORD = ".json"  # ranks/<rank>.<kind>.json: how far the rank is
ERROR = ".error"  # ranks/<rank>.<pid>.error: an uncaught exception of one of its processes
LIBRARIES = ".libraries"  # ranks/<rank>.libraries: paths of the libraries it has loaded, one a line
STACKS = ".stacks"  # ranks/<rank>.stacks: what faulthandler wrote
STACKS_SIGNAL = 45  # real-time signal to which a rank's Python answers with the stacks of all threads

# Stages, in the order in which a rank reaches them.
PYTHON = "python"
TORCH = "torch"
RENDEZVOUS = "rendezvous"
CONNECTED = "connected"
FIRST_COLLECTIVE = "first collective"
RUNNING = "running"
STAGES = (PYTHON, TORCH, RENDEZVOUS, CONNECTED, FIRST_COLLECTIVE, RUNNING)
