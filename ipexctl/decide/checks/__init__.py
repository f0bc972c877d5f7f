"""Facts → findings with codes, and the interface of each host."""
