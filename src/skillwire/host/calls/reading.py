"""`resources/read`: the bytes of one file. Reading activates nothing."""

import base64
import binascii
from typing import Final

from mcp.client import Client
from mcp.types import BlobResourceContents, TextResourceContents

from skillwire.core.characters import quoted
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.errors import INVALID_PARAMS, InvalidUriError, LimitError
from skillwire.host.calls.exchange import (
    DEFAULT_SECONDS,
    RESOURCE_NOT_FOUND,
    looking_for,
    peer_errors,
    require_complete,
    within,
)
from skillwire.host.failures import InvalidAnswerError
from skillwire.wire.core import READ_RESOURCE

_NOT_FOUND: Final = (INVALID_PARAMS, RESOURCE_NOT_FOUND)


async def read_skill_uri(
    client: Client,
    uri: SkillUri | str,
    *,
    fresh: bool = False,
    max_bytes: int = MAX_TOTAL_SIZE,
    max_seconds: float | None = DEFAULT_SECONDS,
) -> bytes:
    """Read the file at `uri` with a plain `resources/read`, and return its bytes unverified.

    The MCP client may answer from its own cache, for as long as the server
    allowed. `fresh` asks the server in any case, which is what a file that
    does not match its digest needs. Whoever holds the skill's manifest passes
    the file's size as `max_bytes` and checks the bytes with `ManifestFile.verify`.

    Raises:
        InvalidUriError: No file may have this URI; nothing was sent.
        NotFoundError: The server has no such resource.
        LimitError: The file is larger than `max_bytes`.
        InvalidAnswerError: The answer is not exactly one item, for this URI, with readable content.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    wanted = uri.published if isinstance(uri, SkillUri) else uri
    canonical = canonical_uri(wanted)
    with (
        within(max_seconds, READ_RESOURCE),
        looking_for(wanted, codes=_NOT_FOUND),
        peer_errors(READ_RESOURCE),
    ):
        result = await client.read_resource(wanted, cache_mode="refresh" if fresh else "use")
    require_complete(READ_RESOURCE, result.result_type)
    if len(result.contents) != 1 or not _same(result.contents[0].uri, canonical):
        raise InvalidAnswerError(
            f"the server's answer is not the one item at {quoted(canonical)}", violates="INT-10"
        )
    return bytes_of(result.contents[0], canonical, max_bytes)


def _same(uri: str, canonical: str) -> bool:
    try:
        return canonical_uri(uri) == canonical
    except InvalidUriError:
        return False


def bytes_of(item: TextResourceContents | BlobResourceContents, uri: str, max_bytes: int) -> bytes:
    """Decode an item, after its length has shown that the result cannot be too large."""
    if isinstance(item, TextResourceContents):
        # A character takes at least one byte, so text that is too long is not even encoded.
        _require_size(len(item.text), uri, max_bytes)
        try:
            content = item.text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidAnswerError(f"the text of {quoted(uri)} is not valid Unicode") from error
        _require_size(len(content), uri, max_bytes)
        return content
    padding = len(item.blob[-2:]) - len(item.blob[-2:].rstrip("="))
    _require_size(len(item.blob) // 4 * 3 - padding, uri, max_bytes)
    try:
        return base64.b64decode(item.blob, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidAnswerError(f"the content of {quoted(uri)} is not valid base64") from error


def _require_size(size: int, uri: str, max_bytes: int) -> None:
    if size > max_bytes:
        raise LimitError(f"{quoted(uri)} is larger than the {max_bytes} bytes that are accepted")
