"""Serve skills over MCP: from a server of your own, or with `skillwire serve`.

Both protocol generations, stdio and streamable HTTP. Every answer comes from
the snapshots of `skillwire.sources`. This package does not import
`skillwire.host`. `__all__` is for authors of servers; the other names are for our
own command.
"""

from typing import TYPE_CHECKING

from skillwire.core import Skill
from skillwire.lazy import lazy_names
from skillwire.sources import DynamicSkill

if TYPE_CHECKING:
    from skillwire.server.attach import add_skills
    from skillwire.server.http.app import HttpApp as HttpApp
    from skillwire.server.http.server import run_http as run_http
    from skillwire.server.http.server import serve_http as serve_http
    from skillwire.server.http.server import serve_with_workers as serve_with_workers
    from skillwire.server.http.server import url_of as url_of
    from skillwire.server.http.views import PATH as PATH
    from skillwire.server.listener import EarlyHealth as EarlyHealth
    from skillwire.server.listener import listen_on as listen_on
    from skillwire.server.meta import Annotate, Subject, with_format
    from skillwire.server.skills import Skills
    from skillwire.server.stdio import serve_stdio as serve_stdio
    from skillwire.server.visibility import ListingRules, pointer_to
    from skillwire.server.wellknown.folder import INDEX as INDEX
    from skillwire.server.wellknown.folder import SiteFolder as SiteFolder
    from skillwire.server.wellknown.site import Artifact as Artifact
    from skillwire.server.wellknown.site import PublishedSite as PublishedSite
    from skillwire.server.wellknown.site import Publisher as Publisher
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "attach": "add_skills",
            "http.app": "HttpApp",
            "http.views": "PATH",
            "http.server": "run_http serve_http serve_with_workers url_of",
            "listener": "EarlyHealth listen_on",
            "stdio": "serve_stdio",
            "meta": "Annotate Subject with_format",
            "skills": "Skills",
            "visibility": "ListingRules pointer_to",
            "wellknown.folder": "INDEX SiteFolder",
            "wellknown.site": "Artifact PublishedSite Publisher",
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
