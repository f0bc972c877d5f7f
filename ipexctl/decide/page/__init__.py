"""What the page of a run shows, made of its events: the time axis, figures over time, logs, differences of runs."""
