"""Approved skills in agents that do not speak the extension.

Three ways, all on top of a `Host`: an MCP server with ordinary tools, prompts
and resources (`skillwire bridge`), folders where an agent looks for skills
(`skillwire sync`), and the configuration that starts the server (`skillwire
setup`). Nothing here approves a skill, or reads one from a server: the host
does, and what it refuses is refused here.
"""
