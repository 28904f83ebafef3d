"""One call each: what a host asks of a connected MCP client, with answers held to the letter."""
