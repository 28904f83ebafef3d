"""`add_skills`: the one call that makes an MCP server publish skills."""

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any, cast

from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from skillwire.errors import SkillError
from skillwire.server.answers import Terms
from skillwire.server.handlers import add_listening, install
from skillwire.server.listing import EVERYTHING_LISTED, Listing
from skillwire.server.notes import Annotate, Notes
from skillwire.server.pages import DEFAULT_PAGE_SIZE
from skillwire.server.scripts import RunsScripts
from skillwire.server.skills import Origin, Skills
from skillwire.server.wellknown.serving import add_site
from skillwire.wire.core import CacheScope
from skillwire.wire.dialect import Dialect


def add_skills(
    server: object,
    *origins: Origin,
    prefix: str = "",
    page_size: int = DEFAULT_PAGE_SIZE,
    ttl: float = 60.0,
    cache_scope: CacheScope | None = None,
    watch: bool = True,
    strict: bool = False,
    follow_links: bool = False,
    dialects: Iterable[str] = (),
    mirror: bool = False,
    annotate: Annotate | None = None,
    skill_media_type: str = "",
    find_tool: bool = False,
    scripts: RunsScripts | None = None,
    listing: Listing = EVERYTHING_LISTED,
) -> Skills:
    """Publish skills from an MCP server: an `MCPServer`, a FastMCP server or a lowlevel `Server`.

        mcp = MCPServer("billing")
        skills = add_skills(mcp, "skills/")

    An origin is a folder of skills, a package's data, a `Source`, or a skill
    built in code. `prefix` goes before the path of every skill that comes from
    a folder. `ttl` is how many seconds clients may take an answer for current;
    `cache_scope` says whether caches may share it between users, which by
    default they may unless the server asks for authorization. With `strict`,
    the server does not start when anything is not fit to be published.
    `dialects` are older generations of the wire to be spoken as well.

    With `mirror`, the resource of each `SKILL.md` repeats the frontmatter in its
    `_meta`. `annotate` may add to the `_meta` of everything that tells of
    skills. `skill_media_type` replaces `text/markdown` for each `SKILL.md`. With
    `find_tool`, clients may look for skills by words, with a tool `find_skills`.
    `listing` says which skills are listed, of all that are served.

    With `scripts`, clients may run the scripts of skills, each in a sandbox of
    its own, by the dialect `exec`: as a `Policy` says, or by a `Runner` that is
    opened and closed elsewhere. Where no sandbox can be had, none is run.

    Call it before the server runs; sources are opened and closed with it.

    Raises:
        SkillError: The server serves skills already, or is none we know; or a dialect is unknown.
        InvalidUriError: `prefix` cannot be part of a URI.
    """
    if page_size < 1:
        raise ValueError("page_size must be at least 1")
    if not 0 <= ttl <= 31_536_000:
        raise ValueError("ttl must be between 0 seconds and a year")
    scope = cache_scope or ("private" if _asks_for_authorization(server) else "public")
    terms = Terms(page_size=page_size, ttl_ms=round(ttl * 1000), cache_scope=scope)
    skills = Skills(
        origins,
        terms=terms,
        prefix=prefix,
        watch=watch,
        strict=strict,
        follow_links=follow_links,
        dialects=dialects,
        notes=Notes(mirror=mirror, annotate=annotate, media_type=skill_media_type),
        find_tool=find_tool,
        scripts=scripts,
        listing=listing,
    )
    if Dialect.WELL_KNOWN in skills.dialects:
        _refuse_site(server, scope)
    _attach(server, skills)
    return skills


def _attach(server: object, skills: Skills) -> None:
    if isinstance(server, Server):
        lowlevel = cast(Server[Any], server)
        install(lowlevel, skills)
        add_listening(lowlevel, skills)
        return
    if isinstance(server, MCPServer):
        mcp = cast(MCPServer[Any], server)
        # The SDK offers no public way to replace `resources/read` and `resources/list` of an MCPServer.
        install(mcp._lowlevel_server, skills)  # pyright: ignore[reportPrivateUsage]
        skills.announcer.add_bus(mcp._subscriptions)  # pyright: ignore[reportPrivateUsage]
        if Dialect.WELL_KNOWN in skills.dialects:
            add_site(mcp, skills)
        return
    fastmcp = sys.modules.get("fastmcp")
    if fastmcp is not None and isinstance(server, fastmcp.FastMCP):
        # FastMCP is optional, and whoever has one of its servers has loaded it.
        import_module("skillwire.server.fastmcp").attach(server, skills)
        return
    raise SkillError(
        f"skills cannot be added to a {type(server).__name__}",
        fix="pass an MCPServer, a FastMCP server or a lowlevel Server",
    )


def _refuse_site(server: object, scope: CacheScope) -> None:
    if scope == "private":
        raise SkillError(
            "well-known shows skills to everyone, and this server does not",
            fix="leave it out, or serve what is public from a server of its own",
        )
    if isinstance(server, Server):
        raise SkillError(
            "a lowlevel Server has no place for the routes of well-known",
            fix="leave it out, and pass custom_starlette_routes=site_routes(skills) to streamable_http_app",
        )


def _asks_for_authorization(server: object) -> bool:
    settings = getattr(server, "settings", None)
    return getattr(settings, "auth", None) is not None or getattr(server, "auth", None) is not None
