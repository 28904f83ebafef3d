"""Indexes of skills as servers write them, and servers in memory that have one."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp.shared.exceptions import MCPError

from skillwire.core.errors import INVALID_PARAMS
from skillwire.core.manifest import digest_of
from skillwire.core.media import ArchiveFormat
from skillwire.host.calls import Session
from skillwire.host.calls.listing import Listing
from skillwire.host.calls.session import ConnectionLimits, ServerLink
from skillwire.host.dialects.base import DialectOptions
from skillwire.host.dialects.index import listing_of
from skillwire.wire.index import SCHEMA
from unit.host.calls.strangers import Params, Stranger

TEA = b"---\nname: tea\ndescription: Makes tea. Use when asked.\n---\nBoil water.\n"
TEA_URI = "skill://tea/SKILL.md"
TEA_FIELDS = {"name": "tea", "description": "Makes tea. Use when asked."}
BOTH = DialectOptions(formats=frozenset(ArchiveFormat))

Json = dict[str, Any]


def june(**fields: Any) -> Json:
    """Return an entry of the June index that breaks no rule, with some fields replaced or left out."""
    entry = {"url": TEA_URI, "digest": digest_of(TEA), "frontmatter": TEA_FIELDS, **fields}
    return {name: value for name, value in entry.items() if value is not None}


def april(**fields: Any) -> Json:
    """Return an entry of the April index that breaks no rule, with some fields replaced or left out."""
    entry = {**TEA_FIELDS, "type": "skill-md", "url": TEA_URI, "digest": digest_of(TEA), **fields}
    return {name: value for name, value in entry.items() if value is not None}


def archive(url: str, media_type: str = "application/zip", **fields: Any) -> Json:
    return {"url": url, "mimeType": media_type, "digest": digest_of(url.encode()), **fields}


def in_june(*entries: Any, **fields: Any) -> bytes:
    return json.dumps({"skills": entries, **fields}).encode()


def in_april(*entries: Any, schema: object = SCHEMA) -> bytes:
    return json.dumps({"$schema": schema, "skills": entries}).encode()


def read_index(data: bytes, options: DialectOptions | None = None) -> Listing:
    return listing_of(data, options or DialectOptions())


def codes(listing: Listing) -> list[list[str]]:
    """Return the codes of what is wrong with each refused entry."""
    return [[finding.code for finding in refused.findings] for refused in listing.refused]


def serving(files: Mapping[str, bytes | MCPError], **options: Any) -> Stranger:
    """Return a server with these resources; one that is an error answers with it. The mapping may change."""

    def read(params: Params) -> Params:
        content = files.get(params["uri"], MCPError(INVALID_PARAMS, "no such resource"))
        if isinstance(content, MCPError):
            raise content
        item = {"uri": params["uri"], "mimeType": "text/plain", "text": content.decode()}
        return {"contents": [item], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    return Stranger({"resources/read": read}, **options)


@asynccontextmanager
async def peer_of(stranger: Stranger, mode: str = "auto") -> AsyncGenerator[Session]:
    """Connect to a server in memory, as dialect clients see it."""
    async with stranger.connected(mode) as client:
        link = ServerLink(ConnectionLimits())
        link.become_ready(client)
        yield Session(link)


def reads(stranger: Stranger) -> list[str]:
    """Return the URIs of the resources that were asked for."""
    return [params["uri"] for method, params in stranger.requests if method == "resources/read"]
