"""``doctor`` and what belongs to it: network check, benchmark, import check, fixes, ``verify``."""
