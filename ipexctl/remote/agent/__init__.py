"""The host side of a run: keeper, guard, wrapper and shim, packed into one archive by ``act.agent``."""
