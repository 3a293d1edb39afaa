"""The MCP endpoint at /mcp: tools for other agents."""
