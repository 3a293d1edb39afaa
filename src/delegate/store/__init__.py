"""All SQL of Delegate: the schema, the database connection, and one function per statement."""
