"""`find_skills`: a tool that finds skills by words, for catalogs too large to list.

It answers with links to the `SKILL.md` of each skill. A link is a pointer and
promises nothing: a host that wants the skill asks `skills/get` for its entry.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio.to_thread
import mcp_types as types
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import HandlerEntry

from skillwire.core.entry import SkillEntry
from skillwire.server.dialects.compat import Binding, Context, MaySee, Published
from skillwire.server.failures import invalid_params, wire_errors
from skillwire.server.matching import MAX_QUERY, Matcher
from skillwire.server.results import as_json, is_modern, shared_terms
from skillwire.wire.core import JsonDict

NAME: Final = "find_skills"
DEFAULT_LIMIT: Final = 10
MAX_LIMIT: Final = 50

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
    },
    "required": ["query"],
    "additionalProperties": False,
}
ANNOTATIONS: Final[Mapping[str, Any]] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}

_LIST_TOOLS = "tools/list"
_CALL_TOOL = "tools/call"
_MAX_PAGES = 100


class FindTool:
    """The tool, beside those the server has; a tool of the server's own by that name wins.

    `may_see` is asked about every skill that would be told of.
    """

    def __init__(self, skills: Published) -> None:
        self.may_see: MaySee | None = None
        self._skills = skills
        self._matcher = Matcher()
        self._others: dict[str, HandlerEntry[Any]] = {}

    def described(self) -> JsonDict:
        """Return the tool as `tools/list` carries it."""
        return {
            "name": NAME,
            "title": TITLE,
            "description": DESCRIPTION,
            "inputSchema": dict(INPUT_SCHEMA),
            "annotations": dict(ANNOTATIONS),
        }

    async def run(self, arguments: Mapping[str, Any]) -> JsonDict:
        """Answer a call with links, or with a word that there is nothing, or what is wrong with it."""
        problem = _problem(arguments)
        if problem:
            return {"content": [_text(problem)], "isError": True}
        found = await self._find(arguments["query"], arguments.get("limit", DEFAULT_LIMIT))
        links = [self._link(entry) for entry in found]
        return {"content": links or [_text("No skill of this server fits these words.")], "isError": False}

    async def _find(self, query: str, limit: int) -> Sequence[SkillEntry]:
        snapshot = self._skills.answers.catalog.snapshot
        ranked = await anyio.to_thread.run_sync(self._matcher.ranked, snapshot, query)
        if self.may_see is None:
            return ranked[:limit]
        found: list[SkillEntry] = []
        for entry in ranked:
            if len(found) == limit:
                break
            if await self.may_see(entry.uri.published):
                found.append(entry)
        return found

    def _link(self, entry: SkillEntry) -> JsonDict:
        return {"type": "resource_link", **self._skills.answers.describe(entry)}

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


def _problem(arguments: Mapping[str, Any]) -> str:
    query, limit = arguments.get("query"), arguments.get("limit", DEFAULT_LIMIT)
    if not isinstance(query, str) or not query.strip():
        return "`query` must be text that says what to look for"
    if len(query) > MAX_QUERY:
        return f"`query` must have at most {MAX_QUERY} characters"
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
        return f"`limit` must be a whole number from 1 to {MAX_LIMIT}"
    return ""


def _text(text: str) -> JsonDict:
    return {"type": "text", "text": text}
