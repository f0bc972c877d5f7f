"""All timings of a run, in seconds: one value in its specification, so that a test can run a hundred times faster."""

from typing import NamedTuple

STARTING = 60.0  # age of a run's directory below which its first process may still be to come; needs no specification


class Timings(NamedTuple):
    """0 means never for the last six, which the user sets."""

    # Start.
    ready_timeout: float = 30.0  # until all guards must have reached the head
    start_timeout: float = 60.0  # until all ranks must have started
    connect: float = 10.0  # until a connection to the keeper must stand
    greet: float = 5.0  # a stranger may take this long to prove itself to the keeper
    # Signs of life.
    tick: float = 0.2  # between two looks of keeper and guard at what is due
    early: float = 2.0  # after mpirun's start; later, while all ranks run, the ranks have the cores (`steady`, `pace`)
    steady: float = 1.0  # the same as `tick`, then
    pace: float = 0.1  # for a rank's output to gather before its wrapper reads it, then, and before the guard does
    ping: float = 2.0  # between two messages of the keeper to each guard
    node_lease: float = 30.0  # of silence after which keeper and guard take each other for lost
    idle: float = 2.0  # without output after which a watcher shows that it lives
    beat: float = 2.0  # between two signs of the controller to its watcher
    silent: float = 10.0  # without such a sign after which a watcher ends, and without a sign of a host, which is shown
    quiet: float = 30.0  # without a byte of the watcher after which the controller takes the link for lost
    poll: float = 1.0  # between two looks of the controller at what has arrived
    give_up: float = 60.0  # of failed reconnecting after which a controller stops watching
    reply: float = 5.0  # the keeper may take this long to answer an order
    # Checkpoints.
    look: float = 2.0  # between two looks for them while ranks run: what is equal in both is not being written
    quiet_file: float = 5.0  # since a file was written whose format does not tell whether it is whole
    carry: float = 20.0  # without a byte after which a host gives up getting one from another
    # Doubt.
    doubt: float = 20.0  # without a sign of progress, after which ranks that do nothing are asked where they stand
    suspicion: float = 5.0  # for the first rank's end to be reported after the launcher's part has ended
    launcher: float = 3.0  # between the ends of launcher and last rank, either way; `node_lease` if it ended well
    inquiry: float = 20.0  # for the guards to report the stacks of their ranks
    stacks: float = 0.7  # for a process to write its stacks
    # Another attempt.
    backoff: float = 1.0  # before the first restart; twice as long before each further one, up to `longest_backoff`
    longest_backoff: float = 30.0
    fence: float = 3.0  # after the node lease until a lost host has certainly ended its part
    rejoin: float = 60.0  # for lost hosts to be back, where too few are there without them
    away: float = 900.0  # for which a host without its keeper tries to be back
    reach: float = 2.0  # until a connection to a keeper must stand, then
    turn: float = 4.0  # between the tries of two hosts to take the head's place
    gather: float = 15.0  # for enough hosts to be with one that does
    # The end.
    grace: float = 10.0  # between the polite stop and the hard one
    orderly: float = 1.0  # for the launcher's own end after that of its ranks
    kill: float = 4.0  # for the hard stop, and for wrappers to say how their ranks ended
    wipe: float = 2.0  # for processes to be gone after SIGKILL
    clean: float = 13.0  # for the guards to report that nothing is left
    last_wipe: float = 5.0  # for processes to be gone after the last SIGKILL
    flush: float = 2.0  # for a guard's last messages
    leave: float = 10.0  # the same where the keeper is lost
    last_sample: float = 2.0  # for the last sample of a host
    linger: float = 2.0  # for the output of processes that outlive their script
    # The user's policies.
    lease: float = 0.0  # without a watcher after which the run ends
    time_limit: float = 0.0
    stall_warn: float = 0.0  # without a sign of progress
    straggler_warn: float = 0.0  # after the others' end
    sample: float = 0.0  # between two samples of each host
