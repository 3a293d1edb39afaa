"""What travels over HTTP: parsed and checked once at the relay's edge, and what the runner reads back."""
