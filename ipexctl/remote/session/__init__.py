"""Programs that answer the controller over its own link, for one command: install, network check, benchmark."""
