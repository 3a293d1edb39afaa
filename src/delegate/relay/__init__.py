"""The server: HTTP and MCP endpoints. It is the only process that opens the database."""
