"""``install``, ``uninstall``, ``wheels fetch`` and ``stacks``."""
