"""Files to hosts and back: changed ones only, whole or not at all."""
