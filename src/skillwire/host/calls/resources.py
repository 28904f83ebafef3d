"""`resources/read` for any resource of a server, skill or not. It activates nothing and proves nothing."""

import re
from dataclasses import dataclass, field

from mcp.client import Client
from mcp.types import TextResourceContents

from skillwire.core.characters import quoted
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.core.uri import MAX_URI_LENGTH
from skillwire.errors import INVALID_PARAMS, InvalidUriError
from skillwire.host.calls.exchange import (
    DEFAULT_SECONDS,
    RESOURCE_NOT_FOUND,
    looking_for,
    peer_errors,
    require_complete,
    within,
)
from skillwire.host.calls.reading import bytes_of
from skillwire.host.failures import InvalidAnswerError
from skillwire.wire.core import READ_RESOURCE

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^\x00-\x20\x7f-\x9f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class ResourceContent:
    """What a server returned for a URI: bytes, and what it says they are."""

    uri: str
    content: bytes = field(repr=False)
    media_type: str | None
    is_text: bool


async def read_resource(
    client: Client,
    uri: str,
    *,
    max_bytes: int = MAX_TOTAL_SIZE,
    max_seconds: float | None = DEFAULT_SECONDS,
) -> ResourceContent:
    """Read the resource at `uri`, of any scheme and spelled as the server spells it.

    Raises:
        InvalidUriError: This is no URI; nothing was sent.
        NotFoundError: The server has no such resource.
        LimitError: It is larger than `max_bytes`.
        InvalidAnswerError: The answer is not exactly one item with readable content.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    if len(uri) > MAX_URI_LENGTH or not _URI.fullmatch(uri):
        raise InvalidUriError(f"{quoted(uri[:200])} is not a URI")
    codes = (INVALID_PARAMS, RESOURCE_NOT_FOUND)
    with (
        within(max_seconds, READ_RESOURCE),
        looking_for(uri, codes=codes),
        peer_errors(READ_RESOURCE),
    ):
        result = await client.read_resource(uri, cache_mode="bypass")
    require_complete(READ_RESOURCE, result.result_type)
    if len(result.contents) != 1:
        raise InvalidAnswerError(f"the server's answer for {quoted(uri)} is not exactly one item")
    item = result.contents[0]
    content = bytes_of(item, uri, max_bytes)
    return ResourceContent(uri, content, item.mime_type, isinstance(item, TextResourceContents))
