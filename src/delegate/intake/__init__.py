"""How work arrives."""
