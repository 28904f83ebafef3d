"""`find_skills`: a tool that finds skills by words, for catalogs too large to list.

It answers with links to the `SKILL.md` of each skill. A link is a pointer and
promises nothing: a host that wants the skill asks `skills/get` for its entry.
Hosts differ in what they hand to a model, so the same is there three times:
links for those who follow them, a text with a line for each skill for those
who show text, and `structuredContent` for programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
import mcp_types as types
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import HandlerEntry

from skillwire.core.characters import visible
from skillwire.errors import SkillError
from skillwire.server.answers import Answers
from skillwire.server.dialects.compat import Binding, Context
from skillwire.server.failures import invalid_params, wire_errors
from skillwire.server.find_schema import (
    ANNOTATIONS,
    DESCRIPTION,
    INPUT_SCHEMA,
    NAME,
    OUTPUT_SCHEMA,
    TITLE,
    Question,
    parse_question,
)
from skillwire.server.results import as_json, is_modern, shared_terms
from skillwire.server.search import Match, SkillSearch
from skillwire.wire.core import JsonDict

_LIST_TOOLS = "tools/list"
_CALL_TOOL = "tools/call"
_MAX_PAGES = 100
# Where skills may be hidden from who asks, so many are looked at together, and for so long.
_AT_ONCE = 200
_LOOKING_SECONDS = 10.0


class Searched(Protocol):
    """The skills of one server, as far as the tool needs to know them."""

    @property
    def answers(self) -> Answers: ...

    @property
    def search(self) -> SkillSearch: ...


class Sees(Protocol):
    """What who asks right now may see."""

    async def is_limited(self) -> bool: ...

    async def may_see(self, uri: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Found:
    """What is told of: some skills, how many there are if that may be known, and how to go on."""

    matches: Sequence[Match]
    total: int | None
    cursor: str | None


class FindTool:
    """The tool, beside those the server has; a tool of the server's own by that name wins.

    `viewpoint`, if there is one, is asked about every skill that would be told of.
    """

    def __init__(self, skills: Searched) -> None:
        self.viewpoint: Sees | None = None
        self._skills = skills
        self._others: dict[str, HandlerEntry[Any]] = {}

    def described(self) -> JsonDict:
        """Return the tool as `tools/list` carries it."""
        return {
            "name": NAME,
            "title": TITLE,
            "description": DESCRIPTION,
            "inputSchema": dict(INPUT_SCHEMA),
            "outputSchema": dict(OUTPUT_SCHEMA),
            "annotations": dict(ANNOTATIONS),
        }

    async def run(self, arguments: Mapping[str, Any]) -> JsonDict:
        """Answer a call with what was found, or with a word on what is wrong with it."""
        try:
            question = parse_question(arguments)
            found = await self._find(question)
        except SkillError as error:
            return {"content": [_text(f"{error}; {error.fix}" if error.fix else str(error))], "isError": True}
        links = [self._link(match) for match in found.matches]
        return {
            "content": [*links, _text(_words(found))],
            "structuredContent": _structured(found),
            "isError": False,
        }

    async def _find(self, question: Question) -> _Found:
        """Look for what may be told.

        Raises:
            SkillError: The cursor is of another search, or the search failed.
        """
        if self.viewpoint is not None and await self.viewpoint.is_limited():
            return await self._find_visible(self.viewpoint, question)
        page = await self._skills.search.find(
            self._skills.answers.catalog.snapshot,
            question.query,
            limit=question.limit,
            cursor=question.cursor,
            filters=question.filters,
        )
        return _Found(page.matches, page.total, page.cursor)

    async def _find_visible(self, viewpoint: Sees, question: Question) -> _Found:
        """Look for what the caller may see; how many fit in all is not told, since some may be hidden."""
        found: list[Match] = []
        cursor, is_first = question.cursor, True
        snapshot = self._skills.answers.catalog.snapshot
        with anyio.move_on_after(_LOOKING_SECONDS):
            while (is_first or cursor is not None) and len(found) <= question.limit:
                page = await self._skills.search.find(
                    snapshot, question.query, limit=_AT_ONCE, cursor=cursor, filters=question.filters
                )
                cursor, is_first = page.cursor, False
                for match in page.matches:
                    if len(found) <= question.limit and await viewpoint.may_see(match.entry.uri.published):
                        found.append(match)
        shown = found[: question.limit]
        if len(found) == len(shown):
            return _Found(shown, None, None)
        after = self._skills.search.cursor_after(shown[-1].entry, question.query, question.filters)
        return _Found(shown, None, after)

    def _link(self, match: Match) -> JsonDict:
        return {"type": "resource_link", **self._skills.answers.describe(match.entry)}

    async def _list(self, context: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        other = self._others.get(_LIST_TOOLS)
        before: JsonDict = {"tools": []}
        if other is not None:
            before = as_json(await other.handler(context, params))
        with wire_errors():
            if other is None and params.cursor is not None:
                raise invalid_params("the cursor is not one of this listing")
            answers = self._skills.answers
            terms = shared_terms(answers.on_terms({}), before) if is_modern(context) else {}
            is_last = before.get("nextCursor") is None
            ours = [self.described()] if is_last and not await self._is_taken(context) else []
            return {**before, **terms, "tools": [*before["tools"], *ours]}

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> HandlerResult:
        other = self._others.get(_CALL_TOOL)
        if other is not None and (params.name != NAME or await self._is_taken(context)):
            return await other.handler(context, params)
        with wire_errors():
            if params.name != NAME:
                raise invalid_params("there is no such tool")
            return {**await self.run(params.arguments or {}), "resultType": "complete"}

    async def _is_taken(self, context: Context) -> bool:
        """Tell whether the server has a tool of its own by that name."""
        other = self._others.get(_LIST_TOOLS)
        if other is None:
            return False
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = as_json(await other.handler(context, types.PaginatedRequestParams(cursor=cursor)))
            if any(tool["name"] == NAME for tool in page["tools"]):
                return True
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return False

    def bindings(self) -> Sequence[Binding]:
        return [
            (_LIST_TOOLS, types.PaginatedRequestParams, self._list),
            (_CALL_TOOL, types.CallToolRequestParams, self._call),
        ]

    def take_over(self, server: Server[Any]) -> None:
        """Answer for the tool on `server`, and keep its own handlers for its own tools."""
        for method, params_type, handler in self.bindings():
            current = server.get_request_handler(method)
            if current is None or current.handler != handler:
                if current is not None:
                    self._others[method] = current
                server.add_request_handler(method, params_type, handler)


def _structured(found: _Found) -> JsonDict:
    result: JsonDict = {
        "skills": [
            {
                "uri": match.entry.uri.published,
                "name": match.entry.name,
                "path": match.entry.uri.path,
                "snippet": match.snippet,
            }
            for match in found.matches
        ]
    }
    if found.total is not None:
        result["total"] = found.total
    if found.cursor is not None:
        result["nextCursor"] = found.cursor
    return result


def _words(found: _Found) -> str:
    if not found.matches:
        return "No skill of this server fits these words."
    count = len(found.matches)
    of_all = f" of {found.total}" if found.total is not None and found.total > count else ""
    lines = [f"{count}{of_all} {'skill fits' if count == 1 and not of_all else 'skills fit'}, best first:"]
    for match in found.matches:
        lines.append(f"- {visible(match.entry.name)}: {match.snippet} ({match.entry.uri.published})")
    if found.cursor is not None:
        lines.append(f'For more, ask again for the same with "cursor": "{found.cursor}".')
    return "\n".join(lines)


def _text(text: str) -> JsonDict:
    return {"type": "text", "text": text}
