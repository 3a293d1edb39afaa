"""What is said to an agent that works in a workspace."""
