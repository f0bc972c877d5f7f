"""Facts as data files, each row with its source and its why. Read with ``importlib.resources``."""
