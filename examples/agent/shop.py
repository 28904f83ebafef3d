"""An MCP server of its own, with one skill built in code: the second server of the example."""

from mcp.server.mcpserver import MCPServer

from skillwire import Skill
from skillwire.server import add_skills

shop = MCPServer("shop")
add_skills(
    shop,
    Skill(
        "discounts",
        description="Which discounts may be offered. Use when a customer complains or wants to leave.",
        body="# Discounts\n\nOffer ten percent on the next order. See [the terms](references/terms.md).\n",
    ).with_reference("references/terms.md", "Valid for 60 days. Not together with other offers.\n"),
)

if __name__ == "__main__":
    shop.run("stdio")
