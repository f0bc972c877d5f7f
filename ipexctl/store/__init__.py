"""What is kept on this machine: saved runs, logs, exports and archives, for their owner alone, secrets masked."""
