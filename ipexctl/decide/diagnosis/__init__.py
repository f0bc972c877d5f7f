"""Why a run failed or hangs: stacks of its ranks compared, and a catalogue of known errors."""
