"""`find_skills`: a tool that finds skills by words, for catalogs too large to list.

It answers with links to the `SKILL.md` of each skill. A link has no digests: a
host that wants the skill asks `skills/get` for its entry. Hosts differ in what
they pass to a model, so the result has three forms: links, a text with a line
for each skill, and `structuredContent`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import anyio
import mcp_types as types
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import HandlerEntry

from skillwire.core import MAX_URI_LENGTH, InvalidUriError, JsonDict, SkillError, visible
from skillwire.search.words import FIELDS
from skillwire.server.answers import Answers
from skillwire.server.dialects.base import Binding, Context, as_json, is_modern, merged_cache_fields
from skillwire.server.messages import invalid_params, wire_errors
from skillwire.server.search import MAX_QUERY, NO_FILTERS, Filters, ServerSearch, SkillMatch
from skillwire.server.visibility import EVERYTHING

# The input and output schemas of `find_skills`, and parsing its arguments.


NAME: Final = "find_skills"
DEFAULT_LIMIT: Final = 10
MAX_LIMIT: Final = 50
MAX_CURSOR: Final = 2 * MAX_URI_LENGTH

TITLE: Final = "Find skills"
DESCRIPTION: Final = (
    "Find Agent Skills of this server by words about a task. "
    "Returns links to the SKILL.md of the skills that fit, best first."
)
INPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "maxLength": MAX_QUERY, "description": "What the task is about."},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_LIMIT,
            "default": DEFAULT_LIMIT,
            "description": "How many skills to return at most.",
        },
        "below": {
            "type": "string",
            "maxLength": MAX_URI_LENGTH,
            "description": "Only skills below this path, such as acme/billing.",
        },
        "has_scripts": {
            "type": "boolean",
            "description": "Only skills that come with scripts, or only those that do not.",
        },
        "cursor": {
            "type": "string",
            "maxLength": MAX_CURSOR,
            "description": "The cursor of an earlier answer, to go on with the same search.",
        },
    },
    "required": ["query"],
    "additionalProperties": False,
}
OUTPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "skills": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "uri": {"type": "string", "description": "The URI of the skill's SKILL.md."},
                    "name": {"type": "string"},
                    "path": {"type": "string", "description": "Where the skill is, with its name."},
                    "snippet": {
                        "type": "string",
                        "description": "Part of the description, or of the instructions.",
                    },
                    "matchedIn": {
                        "type": "array",
                        "items": {"enum": list(FIELDS)},
                        "description": "The parts of the skill that have words of the query.",
                    },
                },
                "required": ["uri", "name", "path", "snippet", "matchedIn"],
            },
        },
        "total": {"type": "integer", "description": "How many skills fit; absent if unknown."},
        "nextCursor": {"type": "string", "description": "Present if more skills match."},
        "incomplete": {
            "type": "boolean",
            "description": "True while skills are being indexed; some may be missing.",
        },
    },
    "required": ["skills"],
}
ANNOTATIONS: Final[Mapping[str, Any]] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}

_ARGUMENTS = frozenset(INPUT_SCHEMA["properties"])


@dataclass(frozen=True, slots=True)
class FindRequest:
    """Validated arguments of a call."""

    query: str
    limit: int = DEFAULT_LIMIT
    cursor: str | None = None
    filters: Filters = NO_FILTERS


def parse_find_request(arguments: Mapping[str, Any]) -> FindRequest:
    """Parse the arguments of a call. A null counts as absent.

    Raises:
        SkillError: The arguments do not match the tool's schema.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    if given.keys() - _ARGUMENTS:
        raise SkillError(f"only these arguments are known: {', '.join(sorted(_ARGUMENTS))}")
    query, limit = given.get("query"), given.get("limit", DEFAULT_LIMIT)
    if not isinstance(query, str) or not query.strip():
        raise SkillError("`query` must be a text that is not empty")
    if len(query) > MAX_QUERY:
        raise SkillError(f"`query` must have at most {MAX_QUERY} characters")
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
        raise SkillError(f"`limit` must be a whole number from 1 to {MAX_LIMIT}")
    return FindRequest(query, limit, _cursor(given.get("cursor")), _filters(given))


def _cursor(cursor: object) -> str | None:
    if cursor is not None and not isinstance(cursor, str):
        raise SkillError("`cursor` must be text from an earlier answer")
    return cursor or None


def _filters(given: Mapping[str, Any]) -> Filters:
    below, has_scripts = given.get("below", EVERYTHING), given.get("has_scripts")
    if has_scripts is not None and not isinstance(has_scripts, bool):
        raise SkillError("`has_scripts` must be true or false")
    if not isinstance(below, str) or len(below) > MAX_URI_LENGTH:
        raise SkillError("`below` must be a path, such as acme/billing")
    if not below.strip("/"):
        return Filters(has_scripts=has_scripts)
    try:
        return Filters(below, has_scripts)
    except InvalidUriError as error:
        raise SkillError("`below` cannot be the path of skills", fix=str(error)) from error


_INCOMPLETE = "Skills are being indexed at the moment, so some may be missing here; ask again in a minute."
_LIST_TOOLS = "tools/list"
_CALL_TOOL = "tools/call"
_MAX_PAGES = 100
# When some skills are hidden from the caller, matches are checked in batches, for at most this time.
_BATCH_SIZE = 200
_SEARCH_SECONDS = 10.0


class SearchableSkills(Protocol):
    """The part of `Skills` that the tool uses."""

    @property
    def answers(self) -> Answers: ...

    @property
    def search(self) -> ServerSearch: ...


class VisibilityCheck(Protocol):
    """Which skills the current caller may see."""

    async def is_limited(self) -> bool: ...

    async def may_see(self, uri: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class _FindResult:
    """Some of the matches, their total if the caller may know it, and the next cursor."""

    matches: Sequence[SkillMatch]
    total: int | None
    cursor: str | None
    is_complete: bool = True


class FindTool:
    """The tool `find_skills`; a tool of the server with the same name takes precedence.

    `visibility`, if set, decides for every skill whether the caller may see it.
    """

    def __init__(self, skills: SearchableSkills) -> None:
        self.visibility: VisibilityCheck | None = None
        self._skills = skills
        self._others: dict[str, HandlerEntry[Any]] = {}

    def definition(self) -> JsonDict:
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
        """Return the result of a call, or an error result."""
        try:
            question = parse_find_request(arguments)
            found = await self._find(question)
        except SkillError as error:
            return {"content": [_text(f"{error}; {error.fix}" if error.fix else str(error))], "isError": True}
        links = [self._link(match) for match in found.matches]
        return {
            "content": [*links, _text(_result_text(found))],
            "structuredContent": _structured(found),
            "isError": False,
        }

    async def _find(self, question: FindRequest) -> _FindResult:
        """Return a page of matches that the caller may see.

        Raises:
            SkillError: The cursor belongs to another search, or the search failed.
        """
        if self.visibility is not None and await self.visibility.is_limited():
            return await self._find_visible(self.visibility, question)
        page = await self._skills.search.find(
            self._skills.answers.source.snapshot,
            question.query,
            limit=question.limit,
            cursor=question.cursor,
            filters=question.filters,
        )
        return _FindResult(page.matches, page.total, page.cursor, page.is_complete)

    async def _find_visible(self, visibility: VisibilityCheck, question: FindRequest) -> _FindResult:
        """Return matches that the caller may see, without a total, since some may be hidden."""
        found: list[SkillMatch] = []
        cursor, is_first, is_complete = question.cursor, True, True
        snapshot = self._skills.answers.source.snapshot
        with anyio.move_on_after(_SEARCH_SECONDS):
            while (is_first or cursor is not None) and len(found) <= question.limit:
                page = await self._skills.search.find(
                    snapshot, question.query, limit=_BATCH_SIZE, cursor=cursor, filters=question.filters
                )
                cursor, is_first, is_complete = page.cursor, False, is_complete and page.is_complete
                for match in page.matches:
                    if len(found) <= question.limit and await visibility.may_see(match.entry.uri.published):
                        found.append(match)
        shown = found[: question.limit]
        if len(found) == len(shown):
            return _FindResult(shown, None, None, is_complete)
        after = self._skills.search.cursor_after(shown[-1].entry, question.query, question.filters)
        return _FindResult(shown, None, after, is_complete)

    def _link(self, match: SkillMatch) -> JsonDict:
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
            fields = merged_cache_fields(answers.with_cache_fields({}), before) if is_modern(context) else {}
            is_last = before.get("nextCursor") is None
            ours = [self.definition()] if is_last and not await self._is_taken(context) else []
            return {**before, **fields, "tools": [*before["tools"], *ours]}

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> HandlerResult:
        other = self._others.get(_CALL_TOOL)
        if other is not None and (params.name != NAME or await self._is_taken(context)):
            return await other.handler(context, params)
        with wire_errors():
            if params.name != NAME:
                raise invalid_params("unknown tool")
            return {**await self.run(params.arguments or {}), "resultType": "complete"}

    async def _is_taken(self, context: Context) -> bool:
        """Return whether the server has its own tool with this name."""
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

    def wrap_handlers(self, server: Server[Any]) -> None:
        """Answer for the tool on `server`; its own handlers go on answering for its own tools."""
        for method, params_type, handler in self.bindings():
            current = server.get_request_handler(method)
            if current is None or current.handler != handler:
                if current is not None:
                    self._others[method] = current
                server.add_request_handler(method, params_type, handler)


def _structured(found: _FindResult) -> JsonDict:
    result: JsonDict = {
        "skills": [
            {
                "uri": match.entry.uri.published,
                "name": match.entry.name,
                "path": match.entry.uri.path,
                "snippet": match.snippet,
                "matchedIn": list(match.matched_in),
            }
            for match in found.matches
        ]
    }
    if found.total is not None:
        result["total"] = found.total
    if found.cursor is not None:
        result["nextCursor"] = found.cursor
    if not found.is_complete:
        result["incomplete"] = True
    return result


def _result_text(found: _FindResult) -> str:
    if not found.matches:
        return "\n".join(["No skill of this server matches this query.", *_notes(found)])
    count = len(found.matches)
    of_all = f" of {found.total}" if found.total is not None and found.total > count else ""
    lines = [f"{count}{of_all} {'skill fits' if count == 1 and not of_all else 'skills fit'}, best first:"]
    for match in found.matches:
        fields = ", ".join(match.matched_in)
        lines.append(
            f"- {visible(match.entry.name)}: {match.snippet} ({match.entry.uri.published}; in {fields})"
        )
    if found.cursor is not None:
        lines.append(f'For more, call again with the same arguments and "cursor": "{found.cursor}".')
    return "\n".join([*lines, *_notes(found)])


def _notes(found: _FindResult) -> Sequence[str]:
    return () if found.is_complete else (_INCOMPLETE,)


def _text(text: str) -> JsonDict:
    return {"type": "text", "text": text}
