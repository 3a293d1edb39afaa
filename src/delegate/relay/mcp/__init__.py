"""The door for other agents: tools over MCP, at /mcp."""
