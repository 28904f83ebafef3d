"""Serving skills over MCP: on a server of your own, or with `skillwire serve`.

Both protocol generations, stdio and streamable HTTP. Everything that is
answered comes from the snapshots of `skillwire.sources`; nothing here reads a
folder, and nothing here knows of hosts.
"""

from skillwire.core.skill import Skill
from skillwire.server.install import add_skills
from skillwire.server.listing import Listing
from skillwire.server.notes import Annotate, Subject, with_format
from skillwire.server.pointer import pointer_to
from skillwire.server.skills import Skills
from skillwire.sources import DynamicSkill

__all__ = [
    "Annotate",
    "DynamicSkill",
    "Listing",
    "Skill",
    "Skills",
    "Subject",
    "add_skills",
    "pointer_to",
    "with_format",
]
