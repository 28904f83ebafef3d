"""`_meta` on the results of methods that tell of skills, where a server's author asked for it."""

from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server

from skillwire.server.dialects.compat import Context
from skillwire.server.notes import Notes
from skillwire.server.results import as_json
from skillwire.wire.core import (
    GET_SKILL,
    LIST_RESOURCES,
    LIST_SKILLS,
    LIST_TEMPLATES,
    READ_DIRECTORY,
    READ_RESOURCE,
)

NOTED = frozenset({LIST_SKILLS, GET_SKILL, LIST_RESOURCES, LIST_TEMPLATES, READ_DIRECTORY, READ_RESOURCE})


class NotesMiddleware:
    """Around everything else, so that it sees results as they leave, with the protocol's own `_meta`."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method not in NOTED or ctx.request_id is None:
            return result
        uri = (ctx.params or {}).get("uri")
        return self._notes.result(as_json(result), ctx.method, uri if isinstance(uri, str) else "")


def note_results(server: Server[Any], notes: Notes) -> None:
    """Let the author's function have a look at every result of `server` that tells of skills."""
    if notes.annotate is not None:
        server.middleware.insert(0, NotesMiddleware(notes))
