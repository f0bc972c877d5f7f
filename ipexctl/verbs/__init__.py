"""The stories: observe, decide, act, in that order; one file a verb, each a generator of events."""
