"""How an agent's work becomes a commit on a branch, without running anything that the agent left behind."""
