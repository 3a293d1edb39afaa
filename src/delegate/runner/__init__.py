"""Claims tasks from a relay and runs them on this machine, one at a time."""
