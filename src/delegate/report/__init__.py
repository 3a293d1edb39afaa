"""How the world learns of it."""
