"""Serve skills over MCP: from a server of your own, or with `skillwire serve`.

Both protocol generations, stdio and streamable HTTP. Every answer comes from
the snapshots of `skillwire.sources`. This package does not import
`skillwire.host`.
"""

from typing import TYPE_CHECKING

from skillwire.core import Skill
from skillwire.lazy import lazy_names
from skillwire.sources import DynamicSkill

if TYPE_CHECKING:
    from skillwire.server.attach import add_skills
    from skillwire.server.meta import Annotate, Subject, with_format
    from skillwire.server.skills import Skills
    from skillwire.server.visibility import ListingRules, pointer_to
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "attach": "add_skills",
            "meta": "Annotate Subject with_format",
            "skills": "Skills",
            "visibility": "ListingRules pointer_to",
        },
    )

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
