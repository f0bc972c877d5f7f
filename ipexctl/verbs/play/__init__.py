"""``play`` and what belongs to it: ``init``, ``play lint``, the step ``command``."""
