"""The only SQL: the schema, one verb per function, and the database they run on."""
