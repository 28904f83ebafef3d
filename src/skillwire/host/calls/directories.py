"""`resources/directory/read`: what a directory of a server holds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from mcp.client import Client

from skillwire.core.characters import quoted
from skillwire.core.entry import MAX_JSON_SIZE
from skillwire.core.media import DIRECTORY_MEDIA_TYPE
from skillwire.core.uri import canonical_uri, segment_of
from skillwire.errors import InvalidUriError
from skillwire.host.calls.declaration import require_directory_read
from skillwire.host.calls.exchange import (
    DEFAULT_SECONDS,
    DirectoryParams,
    ReadDirectoryRequest,
    looking_for,
    within,
)
from skillwire.host.calls.paging import DEFAULT_BYTES, DEFAULT_ENTRIES, DEFAULT_PAGES, Limits, Pager
from skillwire.host.failures import InvalidAnswerError
from skillwire.wire.core import READ_DIRECTORY

_MEDIA_TYPE = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")


@dataclass(frozen=True, slots=True)
class DirectoryItem:
    """One direct child of a directory.

    `uri` is canonical and `name` its last segment, decoded, whatever name the
    server gives it. `spelling` is the server's own URI, to ask for it again.
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
    """Ask a server for the direct children of the directory at `uri`, in its order.

    The answer adds nothing to a skill: only its manifest says which files are
    part of it. One item that is not a direct child spoils the whole answer.

    Raises:
        InvalidUriError: No directory may have this URI, as with a slash at its end; nothing was sent.
        NotDeclaredError: The server has not declared `directoryRead`; nothing was sent.
        NotFoundError: The server has no such directory.
        EndlessListingError: The listing repeats itself or is larger than allowed.
        InvalidAnswerError: A page is not one, or holds something that is not in this directory.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    directory = canonical_uri(uri)
    require_directory_read(client)

    def page_request(cursor: str | None) -> ReadDirectoryRequest:
        return ReadDirectoryRequest(params=DirectoryParams(uri=uri, cursor=cursor))

    limits = Limits(max_pages, max_entries, max_bytes)
    pager = Pager(client, page_request, member="resources", limits=limits)
    found: dict[str, DirectoryItem] = {}
    with within(max_seconds, READ_DIRECTORY), looking_for(uri):
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
    """Read one resource a stranger says is in `directory`."""
    raw = cast(Mapping[str, object], value if isinstance(value, dict) else {})
    spelling, media_type, size = raw.get("uri"), raw.get("mimeType"), raw.get("size")
    if not isinstance(spelling, str):
        raise InvalidAnswerError(f"the server lists something without a URI in {quoted(directory)}")
    uri = _child_of(directory, spelling)
    if media_type is not None and not (isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type)):
        raise InvalidAnswerError(f"{quoted(uri)} has a media type that is none")
    if size is not None and (
        isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_JSON_SIZE
    ):
        raise InvalidAnswerError(f"{quoted(uri)} has a size that is none")
    is_directory = media_type == DIRECTORY_MEDIA_TYPE
    return DirectoryItem(uri, segment_of(uri), media_type, size, is_directory, spelling)


def _child_of(directory: str, spelling: str) -> str:
    """Return the canonical URI of a direct child, and refuse everything else."""
    try:
        uri = canonical_uri(spelling)
    except InvalidUriError as error:
        raise InvalidAnswerError(
            f"the server lists a URI in {quoted(directory)} that no file may have: {error}", violates="DIR-13"
        ) from error
    if uri.rpartition("/")[0] != directory:
        raise InvalidAnswerError(
            f"the server lists {quoted(uri)}, which is not in {quoted(directory)}", violates="DIR-13"
        )
    return uri
