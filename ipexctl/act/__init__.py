"""The only floor that touches hosts (and this machine's disk, for caches and records' directories)."""
