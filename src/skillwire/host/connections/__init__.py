"""One MCP server, over stdio or HTTP: where it is, how it is reached, and what it may cost."""
