"""`resources/read`: the bytes of one file. Reading activates nothing."""

import base64
import binascii
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, cast

from mcp.client import Client
from mcp.types import (
    BlobResourceContents,
    CompleteRequest,
    CompleteRequestParams,
    CompletionArgument,
    CompletionContext,
    ResourceTemplateReference,
    TextResourceContents,
)

from skillwire.core import (
    DIRECTORY_MEDIA_TYPE,
    INVALID_PARAMS,
    MAX_JSON_SIZE,
    MAX_TOTAL_SIZE,
    MAX_URI_LENGTH,
    InvalidUriError,
    LimitError,
    SkillUri,
    canonical_uri,
    quoted,
    segment_of,
)
from skillwire.host.calls.exchange import (
    DEFAULT_BYTES,
    DEFAULT_ENTRIES,
    DEFAULT_PAGES,
    DEFAULT_SECONDS,
    RESOURCE_NOT_FOUND,
    DirectoryParams,
    ListingLimits,
    Pager,
    ReadDirectoryRequest,
    not_found_errors,
    peer_errors,
    require_complete,
    require_directory_read,
    send_request,
    within,
)
from skillwire.host.model import InvalidAnswerError
from skillwire.wire.core import READ_DIRECTORY, READ_RESOURCE
from skillwire.wire.index import SkillTemplate

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
    allowed. `fresh` always asks the server, as needed for a file that does not
    match its digest. Callers with the skill's manifest pass the file's size as
    `max_bytes` and check the bytes with `ManifestFile.verify`.

    Raises:
        InvalidUriError: The URI is not valid for a file; nothing was sent.
        NotFoundError: The server has no such resource.
        LimitError: The file is larger than `max_bytes`.
        InvalidAnswerError: The answer is not exactly one item, for this URI, with readable content.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    wanted = uri.published if isinstance(uri, SkillUri) else uri
    canonical = canonical_uri(wanted)
    limit = nullcontext() if max_seconds is None else within(max_seconds, READ_RESOURCE)
    with limit, peer_errors(READ_RESOURCE, wanted, _NOT_FOUND):
        result = await client.read_resource(wanted, cache_mode="refresh" if fresh else "use")
    require_complete(READ_RESOURCE, result.result_type)
    item = result.contents[0] if len(result.contents) == 1 else None
    if item is None or (item.uri != canonical and not _is_same_uri(item.uri, canonical)):
        raise InvalidAnswerError(
            f"the server's answer is not exactly one item with the URI {quoted(canonical)}", violates="INT-10"
        )
    return bytes_of(item, canonical, max_bytes)


def _is_same_uri(uri: str, canonical: str) -> bool:
    try:
        return canonical_uri(uri) == canonical
    except InvalidUriError:
        return False


def bytes_of(item: TextResourceContents | BlobResourceContents, uri: str, max_bytes: int) -> bytes:
    """Return the decoded content of an item; its length is checked before decoding.

    Raises:
        LimitError: It is larger than `max_bytes`.
        InvalidAnswerError: It is not valid Unicode or base64.
    """
    if isinstance(item, TextResourceContents):
        # A character takes at least one byte, so text that is too long is not encoded.
        if len(item.text) > max_bytes:
            raise _too_large(uri, max_bytes)
        try:
            content = item.text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidAnswerError(f"the text of {quoted(uri)} is not valid Unicode") from error
        if len(content) > max_bytes:
            raise _too_large(uri, max_bytes)
        return content
    padding = len(item.blob[-2:]) - len(item.blob[-2:].rstrip("="))
    if len(item.blob) // 4 * 3 - padding > max_bytes:
        raise _too_large(uri, max_bytes)
    try:
        return base64.b64decode(item.blob, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidAnswerError(f"the content of {quoted(uri)} is not valid base64") from error


def _too_large(uri: str, max_bytes: int) -> LimitError:
    return LimitError(f"{quoted(uri)} is larger than the {max_bytes} bytes that are accepted")


# `resources/read` for any resource of a server. It activates no skill and verifies nothing.


_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^\x00-\x20\x7f-\x9f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class ResourceContent:
    """The content that a server returned for a URI, with the media type it states."""

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
    """Read the resource at `uri`, of any scheme, with the URI as the server spells it.

    Raises:
        InvalidUriError: This is not a URI; nothing was sent.
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
        peer_errors(READ_RESOURCE, uri, codes),
    ):
        result = await client.read_resource(uri, cache_mode="bypass")
    require_complete(READ_RESOURCE, result.result_type)
    if len(result.contents) != 1:
        raise InvalidAnswerError(f"the server's answer for {quoted(uri)} is not exactly one item")
    item = result.contents[0]
    content = bytes_of(item, uri, max_bytes)
    return ResourceContent(uri, content, item.mime_type, isinstance(item, TextResourceContents))


# `resources/directory/read`: the items of a directory on a server.


_MEDIA_TYPE = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")


@dataclass(frozen=True, slots=True)
class DirectoryItem:
    """One direct child of a directory.

    `uri` is canonical and `name` its decoded last segment, whatever name the
    server gives it. `spelling` is the server's own form of the URI, for requests.
    """

    uri: str
    name: str
    media_type: str | None
    size: int | None
    is_directory: bool
    spelling: str = field(default="", compare=False)

    @property
    def published(self) -> str:
        """The spelling to use when asking the server for this item."""
        return self.spelling or self.uri


async def read_directory(
    client: Client,
    uri: str,
    *,
    max_pages: int = DEFAULT_PAGES,
    max_entries: int = DEFAULT_ENTRIES,
    max_bytes: int = DEFAULT_BYTES,
    max_seconds: float | None = DEFAULT_SECONDS,
) -> tuple[DirectoryItem, ...]:
    """Request the direct children of the directory at `uri`, in the server's order.

    The answer adds no files to a skill: only its manifest defines them. One item
    that is not a direct child makes the whole answer invalid.

    Raises:
        InvalidUriError: The URI is invalid for a directory, as with a trailing slash; nothing was sent.
        NotDeclaredError: The server has not declared `directoryRead`; nothing was sent.
        NotFoundError: The server has no such directory.
        EndlessListingError: The listing repeats itself or is larger than allowed.
        InvalidAnswerError: A page is invalid, or has an item that is not in this directory.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    directory = canonical_uri(uri)
    require_directory_read(client)

    def page_request(cursor: str | None) -> ReadDirectoryRequest:
        return ReadDirectoryRequest(params=DirectoryParams(uri=uri, cursor=cursor))

    limits = ListingLimits(max_pages, max_entries, max_bytes)
    pager = Pager(client, page_request, member="resources", limits=limits)
    found: dict[str, DirectoryItem] = {}
    with within(max_seconds, READ_DIRECTORY), not_found_errors(uri):
        while (page := await pager.next_page()) is not None:
            if page.is_first:
                found = {}
            for value in page.items:
                item = _item_of(value, directory)
                if item.uri in found:
                    raise InvalidAnswerError(f"the server lists {quoted(item.uri)} twice in one directory")
                found[item.uri] = item
    return tuple(found.values())


def _item_of(value: object, directory: str) -> DirectoryItem:
    """Parse one untrusted item of `directory`."""
    raw = cast(Mapping[str, object], value if isinstance(value, dict) else {})
    spelling, media_type, size = raw.get("uri"), raw.get("mimeType"), raw.get("size")
    if not isinstance(spelling, str):
        raise InvalidAnswerError(f"the server lists an item without a URI in {quoted(directory)}")
    uri = _child_of(directory, spelling)
    if media_type is not None and not (isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type)):
        raise InvalidAnswerError(f"{quoted(uri)} has an invalid media type")
    if size is not None and (
        isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_JSON_SIZE
    ):
        raise InvalidAnswerError(f"{quoted(uri)} has an invalid size")
    is_directory = media_type == DIRECTORY_MEDIA_TYPE
    return DirectoryItem(uri, segment_of(uri), media_type, size, is_directory, spelling)


def _child_of(directory: str, spelling: str) -> str:
    """Return the canonical URI of a direct child.

    Raises:
        InvalidAnswerError: It is not one.
    """
    try:
        uri = canonical_uri(spelling)
    except InvalidUriError as error:
        raise InvalidAnswerError(
            f"the server lists an invalid URI in {quoted(directory)}: {error}", violates="DIR-13"
        ) from error
    if uri.rpartition("/")[0] != directory:
        raise InvalidAnswerError(
            f"the server lists {quoted(uri)}, which is not in {quoted(directory)}", violates="DIR-13"
        )
    return uri


# `completion/complete`: suggested values for a variable of a template.


COMPLETE: Final = "completion/complete"
MAX_VALUES: Final = 100
MAX_VALUE_LENGTH: Final = 1024


async def complete(
    client: Client,
    template: SkillTemplate,
    variable: str,
    typed: str,
    *,
    others: Mapping[str, str] | None = None,
    max_seconds: float | None = DEFAULT_SECONDS,
) -> tuple[str, ...]:
    """Request completions of `typed` for `variable`; `others` are the values of the other variables.

    If the server does not offer completion, nothing is sent and there are no
    values. The values are untrusted: at most 100 short texts, to be escaped when
    shown, and checked when the template is expanded with them.

    Raises:
        InvalidAnswerError: The answer is invalid.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    if client.server_capabilities.completions is None:
        return ()
    request = CompleteRequest(
        params=CompleteRequestParams(
            ref=ResourceTemplateReference(type="ref/resource", uri=template.template.text),
            argument=CompletionArgument(name=variable, value=typed),
            context=CompletionContext(arguments=dict(others)) if others else None,
        )
    )
    with within(max_seconds, COMPLETE):
        answer = await send_request(client, request)
    completion = answer.get("completion")
    values = cast(Mapping[str, object], completion).get("values") if isinstance(completion, dict) else None
    if not isinstance(values, list):
        raise InvalidAnswerError(f"the server's answer to {COMPLETE} has no list of values")
    texts = [value for value in cast("list[object]", values)[:MAX_VALUES] if _is_usable(value)]
    return tuple(dict.fromkeys(cast("list[str]", texts)))


def _is_usable(value: object) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_VALUE_LENGTH:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
