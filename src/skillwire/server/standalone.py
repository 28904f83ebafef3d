"""A server that serves nothing but skills: what `skillwire serve` runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.subscriptions import ListenHandler

from skillwire.core import __version__
from skillwire.server.answers import ResultSettings
from skillwire.server.fast.hot import HotAnswers
from skillwire.server.meta import MetaAnnotator
from skillwire.server.methods import add_change_subscriptions, install
from skillwire.server.options import ServeOptions
from skillwire.server.outputs import Scripts
from skillwire.server.search import ServerSearch
from skillwire.server.skills import Skills
from skillwire.sources.snapshot import Source

_NAME = "skillwire"


def skills_for_options(options: ServeOptions) -> Skills:
    """Return everything that is served, for every caller."""
    policy = options.script_rules
    scripts = None if policy is None else Scripts(policy)
    more = () if options.more_sources is None else options.more_sources()
    return _skills(options, (*options.folders, *more), options.strict, scripts, _result_settings(options))


def skills_from_sources(
    options: ServeOptions,
    sources: Sequence[Source],
    scripts: Scripts | None,
    search: ServerSearch | None = None,
) -> Skills:
    """Return the skills of `sources`, served on the same terms to some callers; `search` has an index."""
    settings = replace(_result_settings(options), cache_scope="private")
    return _skills(options, sources, False, scripts, settings, search)


def _result_settings(options: ServeOptions) -> ResultSettings:
    return ResultSettings(page_size=options.page_size, ttl_ms=round(options.ttl * 1000))


def _skills(
    options: ServeOptions,
    origins: Sequence[Path | Source],
    strict: bool,
    scripts: Scripts | None,
    settings: ResultSettings,
    search: ServerSearch | None = None,
) -> Skills:
    return Skills(
        origins,
        result_settings=settings,
        prefix=options.prefix,
        watch=options.watch,
        strict=strict,
        follow_links=options.follow_links,
        dialects=options.dialect,
        annotator=MetaAnnotator(mirror=options.mirror),
        find_tool=options.find,
        scripts=scripts,
        listing=options.listing,
        instructions=options.summary or options.instructions,
        search=search,
    )


class SkillServer:
    """A lowlevel MCP server with all skills of its options, or `skills`, and the prepared answers."""

    def __init__(self, options: ServeOptions, skills: Skills | None = None) -> None:
        self.options = options
        self.skills = skills_for_options(options) if skills is None else skills
        self.server: Server[Any] = Server(options.server_name or _NAME, version=__version__)
        install(self.server, self.skills)
        listen = add_change_subscriptions(self.server, self.skills)
        assert listen is not None, "a new server serves no streams of its own"
        self.listen: ListenHandler = listen
        self.hot = HotAnswers(self.skills, self.server)
