"""Finds what would make a task fail on this machine. Starts no relay and spends no money."""
