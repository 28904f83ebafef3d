"""`add_skills`: publishes skills from an MCP server."""

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any, cast

from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from skillwire.core import Dialect, SkillError
from skillwire.search.scores import Ranker
from skillwire.server.answers import ResultSettings
from skillwire.server.limits import DEFAULT_PAGE_SIZE
from skillwire.server.meta import Annotate, MetaAnnotator
from skillwire.server.methods import add_change_subscriptions, install
from skillwire.server.outputs import RunsScripts
from skillwire.server.skills import Origin, Skills
from skillwire.server.visibility import EVERYTHING_LISTED, ListingRules
from skillwire.server.wellknown.app import add_site
from skillwire.wire.core import CacheScope


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
    ranker: Ranker | None = None,
    scripts: "RunsScripts | None" = None,
    listing: ListingRules = EVERYTHING_LISTED,
    instructions: bool = False,
) -> Skills:
    """Publish skills from an MCP server: an `MCPServer`, a FastMCP server or a lowlevel `Server`.

        mcp = MCPServer("billing")
        skills = add_skills(mcp, "skills/")

    An origin is a folder of skills, a package's data, a `Source`, or a skill
    built in code. `prefix` goes before the path of every skill that comes from
    a folder. `ttl` is how many seconds clients may cache an answer;
    `cache_scope` says whether caches may share it between users, by default
    "public" unless the server asks for authorization. With `strict`, the
    server does not start when any skill is invalid. `dialects` are older
    dialects to be served as well.

    With `mirror`, the resource of each `SKILL.md` repeats the frontmatter in its
    `_meta`. `annotate` may add to the `_meta` of results, entries and
    resources. `skill_media_type` replaces `text/markdown` for each `SKILL.md`.
    With `find_tool`, clients can search skills with a tool `find_skills`, and
    `ranker` may put its first matches into another order.
    `listing` says which of the served skills are listed.

    With `instructions`, a summary of the listed skills, of at most 2,048 bytes,
    is appended to the server's own instructions when a client connects. A
    FastMCP server that may hide skills from some callers sends none.

    With `scripts`, clients may run the scripts of skills, each in its own
    sandbox, with the dialect `exec`: under a `Policy`, or with a `Runner` that
    the caller opens and closes. Without a sandbox, no script is run.

    Call it before the server runs; sources are opened and closed with it.

    Raises:
        SkillError: The server already serves skills, or its type or a dialect is unknown.
        InvalidUriError: `prefix` cannot be part of a URI.
    """
    if page_size < 1:
        raise ValueError("page_size must be at least 1")
    if not 0 <= ttl <= 31_536_000:
        raise ValueError("ttl must be between 0 seconds and a year")
    scope = cache_scope or ("private" if _asks_for_authorization(server) else "public")
    settings = ResultSettings(page_size=page_size, ttl_ms=round(ttl * 1000), cache_scope=scope)
    skills = Skills(
        origins,
        result_settings=settings,
        prefix=prefix,
        watch=watch,
        strict=strict,
        follow_links=follow_links,
        dialects=dialects,
        annotator=MetaAnnotator(mirror=mirror, annotate=annotate, media_type=skill_media_type),
        find_tool=find_tool,
        ranker=ranker,
        scripts=scripts,
        listing=listing,
        instructions=instructions,
    )
    if Dialect.WELL_KNOWN in skills.dialects:
        _refuse_site(server, scope)
    _attach(server, skills)
    return skills


def _attach(server: object, skills: Skills) -> None:
    if isinstance(server, Server):
        lowlevel = cast(Server[Any], server)
        install(lowlevel, skills)
        add_change_subscriptions(lowlevel, skills)
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
        # FastMCP is optional, and is loaded if the server is one of its servers.
        import_module("skillwire.server.fastmcp").attach(server, skills)
        return
    raise SkillError(
        f"skills cannot be added to a {type(server).__name__}",
        fix="pass an MCPServer, a FastMCP server or a lowlevel Server",
    )


def _refuse_site(server: object, scope: CacheScope) -> None:
    if scope == "private":
        raise SkillError(
            "the dialect well-known publishes skills to everyone, but this server requires authorization",
            fix="leave it out, or serve public skills from a separate server",
        )
    if isinstance(server, Server):
        raise SkillError(
            "the routes of the dialect well-known cannot be added to a lowlevel Server",
            fix="leave it out, and pass custom_starlette_routes=site_routes(skills) to streamable_http_app",
        )


def _asks_for_authorization(server: object) -> bool:
    settings = getattr(server, "settings", None)
    return getattr(settings, "auth", None) is not None or getattr(server, "auth", None) is not None
