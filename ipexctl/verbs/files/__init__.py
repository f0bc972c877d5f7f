"""``sync`` and ``fetch``."""
