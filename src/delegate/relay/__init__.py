"""The server: the only program that opens the database. Doors, no decisions."""
