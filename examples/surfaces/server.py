"""A server with three skills: a minimal one, one in a namespace with references, and one with a prompt.

The last is on two surfaces at once: as resources, for clients that know skills,
and as the prompt `start_code_mode`, for clients that know only prompts.
"""

from pathlib import Path

from mcp.server.mcpserver import MCPServer

from skillwire import Skill
from skillwire.server import add_skills

SKILLS = Path(__file__).parent.parent / "skills"


def read_skill(path: str) -> Skill:
    """Build the skill in a folder below `examples/skills`, its other files in the order of their paths."""
    folder = SKILLS / path
    skill = Skill(folder.name, path=path, body=(folder / "SKILL.md").read_bytes())
    for file in sorted(file for file in folder.rglob("*") if file.is_file() and file.name != "SKILL.md"):
        skill = skill.with_reference(file.relative_to(folder).as_posix(), file.read_bytes())
    return skill


server = MCPServer("surfaces")
skills = add_skills(
    server, read_skill("hello-world"), read_skill("acme/billing/refunds"), dialects=["index-april"]
)
skills.add(read_skill("code-mode"), prompt="start_code_mode")

if __name__ == "__main__":
    server.run("stdio")
