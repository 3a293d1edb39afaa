"""Publishes an agent's work as a commit on a branch, without running anything that the agent left behind."""
