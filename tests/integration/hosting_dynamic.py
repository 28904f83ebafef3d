"""A server, to be run as a program, of one skill whose content is made when it is read."""

from itertools import count

from mcp.server.mcpserver import MCPServer

from skillwire.server import add_skills
from skillwire.sources import DynamicSkill

numbers = count(1)
server = MCPServer("live")
add_skills(
    server,
    DynamicSkill(
        "status",
        description="Use when asked for the status.",
        body=lambda: f"Status {next(numbers)}.\n",
        path="ops/status",
    ).with_file("logs/today.md", lambda: f"Log {next(numbers)}.\n"),
)

if __name__ == "__main__":
    server.run("stdio")
