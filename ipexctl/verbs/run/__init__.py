"""``run`` and the commands for runs that were started: ``ps``, ``attach``, ``stop``, ``logs``, ``replay``."""
