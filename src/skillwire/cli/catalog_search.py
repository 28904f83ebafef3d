"""The search of a catalog by `skillwire search --catalog`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import anyio

from skillwire.catalog import CatalogSource
from skillwire.cli.catalog_names import catalog_url, shown_url
from skillwire.cli.command import Output, Part, plural, print_rows
from skillwire.cli.common import ExitCode
from skillwire.server.answers import ResultSettings
from skillwire.server.search import SkillMatch, SkillSearchPage
from skillwire.server.skills import Skills

_MOST = 100


def search_catalog(
    output: Output, typed: str, query: str, limit: int, cursor: str, *, everything: bool
) -> None:
    """Find skills of a catalog, and print a page of them, or with `everything` all.

    Raises:
        MisuseError: It is not the URL of a catalog.
        SkillError: The catalog cannot be searched.
    """
    url = catalog_url(typed)
    page = anyio.run(partial(_find, url, query, limit, cursor or None, everything=everything))
    if not page.total:
        output.code = ExitCode.NO
    if output.json:
        output.document(
            {
                "query": query,
                "catalog": shown_url(url),
                "total": page.total,
                "cursor": page.cursor,
                "matches": [_to_json(match) for match in page.matches],
            }
        )
        return
    print_rows(output, map(_row, page.matches))
    more = f"; more with --cursor {page.cursor}, or all with --all" if page.cursor is not None else ""
    found = f"{plural(page.total, 'skill')} found{more}" if page.total else f"no skill matches {query}"
    output.message(found)


async def _find(url: str, query: str, limit: int, cursor: str | None, *, everything: bool) -> SkillSearchPage:
    """Search as a server of the catalog does."""
    async with Skills([CatalogSource(url)], result_settings=ResultSettings()).open() as skills:
        find = partial(
            skills.search.find, skills.source.snapshot, query, limit=_MOST if everything else limit
        )
        page = await find(cursor=cursor)
        matches = [*page.matches]
        while everything and page.cursor is not None:
            page = await find(cursor=page.cursor)
            matches += page.matches
        return replace(page, matches=tuple(matches))


def _to_json(match: SkillMatch) -> dict[str, object]:
    entry = match.entry
    return {
        "uri": entry.uri.text,
        "name": entry.name,
        "description": entry.frontmatter.description,
        "snippet": match.snippet,
        "matchedIn": list(match.matched_in),
    }


def _row(match: SkillMatch) -> tuple[Part, Part, Part]:
    uri = match.entry.uri
    path = uri.path if uri.scheme == "skill" else uri.text
    return (path, "bold"), (", ".join(match.matched_in), "dim"), match.snippet
