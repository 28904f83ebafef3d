"""What the methods of the base protocol share: results as JSON, and the terms of those with two authors."""

from mcp.server.context import HandlerResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from skillwire.server.dialects.compat import Context
from skillwire.wire.core import JsonDict


def is_modern(context: Context) -> bool:
    """Tell whether a request is of revision 2026-07-28 or later."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def as_json(result: HandlerResult) -> JsonDict:
    """Return what a handler answered as the JSON it becomes, to be changed freely."""
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(result or {})


def shared_terms(ours: JsonDict, theirs: JsonDict) -> JsonDict:
    """Return the terms of a page of two parts: fresh while both are, and private if one is."""
    ttl_ms = min(ours["ttlMs"], theirs.get("ttlMs", ours["ttlMs"]))
    scope = "private" if theirs.get("cacheScope") == "private" else ours["cacheScope"]
    return {**ours, "ttlMs": ttl_ms, "cacheScope": scope}
