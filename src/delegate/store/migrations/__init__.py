"""The steps that build the schema, forward only."""
