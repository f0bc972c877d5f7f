"""Names: files and directories of a run on its hosts, variables in its processes' environment, the agent's roles."""

from ipexctl.protocol.hooks import DIRECTORY_ENV, RANK_ENV, RANKS, RECORD, RUN_ENV

STATE = ".local/state/ipexctl"  # below the home directory of each host: RUNS and AGENTS
RUNS = ".local/state/ipexctl/runs"  # below the home directory of each host; one directory per run and host in it
HUB = "ipexctl/hub"  # below it too: a cache of Hugging Face snapshots, which `sync hf:` fills
AGENTS = ".local/state/ipexctl/agents"  # beside it: agents of earlier runs, by `act.agent.compute_agent_id`

# Put there by the controller.
SPEC = "spec.json"  # `run_spec.RunSpec` (0600: it holds the token and the ranks' environment)
AGENT = "agent.pyz"  # all the code that runs on hosts
ROLE = "agent"  # the agent with its interpreter: `agent list DIRECTORY`
SHIM = "shim"  # what the MPI launcher calls in place of ssh
STDIN = "stdin"  # of rank 0, on its host; without it the rank reads nothing
HOOKS = "hooks"  # on the ranks' PYTHONPATH
HOOK_FILES = {
    "sitecustomize.py": "remote.agent.sitecustomize",  # → module
    "_ipexctl_hooks.py": "protocol.hooks",
    "_ipexctl_worlds.py": "remote.agent.worlds",
}
PROFILE_HOOK_FILES = {"_ipexctl_profile.py": "remote.agent.profile_steps"}  # with --profile only

# Written on the hosts. Those of the head only: KEEPER, END, JOURNAL, OUT, ERR, SAMPLES.
KEEPER = "keeper.json"  # where the keeper listens
END = "end.json"  # `journal.RunEnd`: the final record
JOURNAL = "journal.jsonl"  # `journal.Record`, one a line
OUT = "out.bin"  # what the ranks wrote, in frames and segments
ERR = "err.bin"  # what the launcher wrote, in segments
SAMPLES = "samples.jsonl"  # `samples.HostSample`, one a line, in segments
RESERVE = "reserve"  # space for the last records of a run whose disk is full
OWNER = "place.json"  # which host this directory is for: homes may be shared
PORT = "port.json"  # where the ranks meet
ENDING = "ending.json"  # the run is being ended: no rank is to start any more
TICKET = "ticket-"  # beside the locks, with the host's name and the run's: that run waits for the host
LOCK = "lock-"  # beside the runs' directories, with the host's name: which run holds the host
PIPES = "pipes"  # the named pipes between the launcher's shims and the keeper
CRASH = ".crash"  # <role>.crash: the traceback of a fault of ours

MARKER = "ipexctl.json"  # in an environment that install made: it is complete

# In trees that are carried to hosts and fetched from them; also in remote/*.sh.
MANIFEST = ".ipexctl-sync.json"  # what `sync` has put there
PART = ".ipexctl-part-"  # the beginning of the names of directories in which something is being received

KEEP = ".ipexctl-keep-"  # beside the directory of a script's checkpoints, with its name: copies of other hosts' parts

# In the environment of all processes of a run, with RUN_ENV; RANK_ENV in that of the ranks.
NODE_ENV = "IPEXCTL_NODE"  # RUN:LABEL, one host's part of a run
PYTHON_ENV = "IPEXCTL_PYTHON"  # for the launcher's proxies: how a rank's wrapper is started
GROUP = "ipexctl-"  # the names of control groups begin so, and go on with the run's id and "-"
AGENT_ENV = "IPEXCTL_AGENT"
GUARD_ENV = "IPEXCTL_GUARD"  # its process
OUTPUT_ENV = "IPEXCTL_OUTPUT"  # for the wrappers: the pipe to the guard, as a path
EVENT_ENV = "IPEXCTL_EVENT"  # for a command that gets notifications: start, stall, failure or end
RESUME_ENV = "IPEXCTL_RESUME"  # the checkpoint that the rank goes on from
INSTANCE_ENV = "IPEXCTL_INSTANCE"
INSTANCES_ENV = "IPEXCTL_INSTANCES"

__all__ = ["DIRECTORY_ENV", "RANKS", "RANK_ENV", "RECORD", "RUN_ENV"]


class Role:
    """The first word of an agent's command line; PROVE and REAP are those of ``procs``, sent as a text."""

    KEEPER = "keeper"
    GUARD = "guard"
    RANK = "rank"
    WATCH = "watch"
    ORDER = "tell"
    LIST = "list"
    SHOW = "show"
    STACKS = "stacks"
    CARRY = "carry"
    PROVE = "prove"
    REAP = "reap"


CONTROLLER = "controller"  # what a watcher and who gives orders call themselves, where others have a host's name
GONE_STATUS = 5  # of an agent: the run's directory has been removed; also in remote/run_agent.sh
BOTH = "both"  # behind the directory of a keeper: the same program starts the guard of its host
