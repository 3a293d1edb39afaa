"""The migrations that build the schema, forward only."""
