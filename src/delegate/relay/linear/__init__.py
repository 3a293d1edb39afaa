"""The relay's side of Linear: receives webhooks, acts on them, and posts what happened."""
