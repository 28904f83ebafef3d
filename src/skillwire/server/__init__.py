"""Serve skills over MCP: from a server of your own, or with `skillwire serve`.

Both protocol generations, stdio and streamable HTTP. Every answer comes from
the snapshots of `skillwire.sources`. This package does not import
`skillwire.host`.
"""

from skillwire.core import Skill
from skillwire.server.attach import add_skills
from skillwire.server.meta import Annotate, Subject, with_format
from skillwire.server.skills import Skills
from skillwire.server.visibility import ListingRules, pointer_to
from skillwire.sources.memory import DynamicSkill

__all__ = [
    "Annotate",
    "DynamicSkill",
    "ListingRules",
    "Skill",
    "Skills",
    "Subject",
    "add_skills",
    "pointer_to",
    "with_format",
]
