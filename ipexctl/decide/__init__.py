"""Pure decisions: text and data in, data out. No clock, no environment, no disk, no network."""
