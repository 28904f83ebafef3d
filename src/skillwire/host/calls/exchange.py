"""Requests and their answers: deadlines, the translation of errors, and reading one resource.

All answers pass through here, so this is where error messages of servers are
quoted and incomplete results are refused. Reading activates nothing.
"""

import base64
import binascii
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

import anyio
from mcp.client import Client, InputRequiredRoundsExceededError
from mcp.shared.exceptions import MCPError
from mcp.types import (
    METHOD_NOT_FOUND,
    BlobResourceContents,
    CompleteRequest,
    CompleteRequestParams,
    CompletionArgument,
    CompletionContext,
    PaginatedRequestParams,
    Request,
    RequestParams,
    ResourceTemplateReference,
    TextResourceContents,
)
from pydantic import RootModel, ValidationError

from skillwire.core import (
    INVALID_PARAMS,
    MAX_TOTAL_SIZE,
    MAX_URI_LENGTH,
    InvalidUriError,
    LimitError,
    NotFoundError,
    SkillUri,
    canonical_uri,
    quoted,
)
from skillwire.host.model import InvalidAnswerError, NotDeclaredError, PeerError, TooSlowError
from skillwire.wire.core import EXTENSION, GET_SKILL, LIST_SKILLS, READ_DIRECTORY, READ_RESOURCE
from skillwire.wire.index import SkillTemplate

DEFAULT_SECONDS: Final = 60.0
DEFAULT_PAGES: Final = 1000
DEFAULT_ENTRIES: Final = 100_000
DEFAULT_BYTES: Final = 128 * 1024 * 1024
RESOURCE_NOT_FOUND: Final = -32002
"""The code for an unknown resource before revision 2026-07-28."""

Answer: TypeAlias = dict[str, Any]

_MAX_MESSAGE_LENGTH = 500


@dataclass(frozen=True, slots=True)
class ListingLimits:
    """Limits for one listing, beyond which it counts as endless; `max_bytes` is its size as JSON."""

    max_pages: int = DEFAULT_PAGES
    max_entries: int = DEFAULT_ENTRIES
    max_bytes: int = DEFAULT_BYTES


class _Result(RootModel[Answer]):
    """Any JSON object; the callers check its members."""


class UriParams(RequestParams):
    """Parameters that name one skill."""

    uri: str


class DirectoryParams(PaginatedRequestParams):
    """Parameters that name a directory and a page of it."""

    uri: str


class ListSkillsRequest(Request[PaginatedRequestParams, Literal["skills/list"]]):
    method: Literal["skills/list"] = LIST_SKILLS


class GetSkillRequest(Request[UriParams, Literal["skills/get"]]):
    """A request that also has its skill in the `Mcp-Name` header, for routing by gateways."""

    method: Literal["skills/get"] = GET_SKILL

    name_param = "uri"


class ReadDirectoryRequest(Request[DirectoryParams, Literal["resources/directory/read"]]):
    method: Literal["resources/directory/read"] = READ_DIRECTORY


async def send_request(client: Client, request: Request[Any, Any]) -> Answer:
    """Send one request and return its complete result.

    Raises:
        PeerError: The server answered with an error, or the connection ended.
        InvalidAnswerError: The result is not an object, or not complete.
    """
    with peer_errors(request.method):
        answer = (await client.session.send_request(request, _Result)).root
    require_complete(request.method, answer.get("resultType", "complete"))
    return answer


def require_complete(method: str, result_type: object) -> None:
    """Check the type of a result: a request for input, for example, is not a final result.

    Raises:
        InvalidAnswerError: It is not "complete".
    """
    if result_type != "complete":
        shown = quoted(result_type[:200]) if isinstance(result_type, str) else "no text"
        raise InvalidAnswerError(
            f"the server answered {method} with a result whose type is {shown}, not 'complete'",
            violates="NEG-18",
        )


@contextmanager
def within(seconds: float | None, method: str) -> Generator[None]:
    """Limit all requests in the block to `seconds`; None waits as long as the client does.

    Raises:
        TooSlowError: The time is over. The request is cancelled, if the protocol supports it.
    """
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        limit = "" if seconds is None else f": more than {seconds:g} seconds"
        raise TooSlowError(f"the server took too long to answer {method}{limit}") from error


@contextmanager
def peer_errors(method: str, uri: str = "", codes: tuple[int, ...] = ()) -> Generator[None]:
    """Translate the exceptions of the MCP SDK; errors with one of `codes` mean that `uri` does not exist.

    Raises:
        NotFoundError: The server answered with such an error.
        PeerError: The server answered with an error, or the connection ended.
        InvalidAnswerError: The answer does not match the protocol.
    """
    try:
        yield
    except MCPError as error:
        text = quoted(error.message[:_MAX_MESSAGE_LENGTH])
        message = f"{method} failed with error {error.code}: {text}"
        fix = "continue without it: this server does not support it" if error.code == METHOD_NOT_FOUND else ""
        failure = PeerError(message, method=method, peer_code=error.code, fix=fix)
        if error.code in codes:
            raise _not_found(uri, failure) from error
        raise failure from error
    except InputRequiredRoundsExceededError as error:
        message = f"the server keeps asking for input instead of answering {method}"
        raise InvalidAnswerError(message, violates="NEG-18") from error
    except ValidationError as error:
        message = f"the server's answer to {method} does not match the protocol"
        raise InvalidAnswerError(message) from error


@contextmanager
def not_found_errors(uri: str, *, codes: tuple[int, ...] = (INVALID_PARAMS,)) -> Generator[None]:
    """Translate errors with one of `codes` to `NotFoundError`.

    Raises:
        NotFoundError: The server answered with such an error.
    """
    try:
        yield
    except PeerError as error:
        if error.peer_code not in codes:
            raise
        raise _not_found(uri, error) from error


def _not_found(uri: str, error: PeerError) -> NotFoundError:
    return NotFoundError(f"nothing is served at {quoted(uri)}: {error}", uri=uri)


# The declaration of the skills extension in a server's capabilities.


@dataclass(frozen=True, slots=True)
class Declaration:
    """A server's settings for the extension.

    `settings` holds all of them unparsed, unknown ones included.
    """

    directory_read: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


def declared(client: Client) -> Declaration | None:
    """Return the server's declaration; None if it did not declare the extension.

    Revision 2026-07-28 declares in `server/discover` and earlier ones in
    `initialize`; the client stores both in one place. A client with a fixed
    revision, which does not ask the server, has no declaration.
    """
    settings = (client.server_capabilities.extensions or {}).get(EXTENSION)
    if settings is None:
        return None
    return Declaration(settings.get("directoryRead") is True, settings)


def require_skills(client: Client, method: str) -> Declaration:
    """Return the server's declaration, which is required for sending `method`.

    Raises:
        NotDeclaredError: It did not declare the extension.
    """
    declaration = declared(client)
    if declaration is None:
        raise NotDeclaredError(
            f"{method} was not sent: the server has not declared {EXTENSION}",
            violates="NEG-05",
            fix='create the client with mode "auto" or "legacy", so that it requests the capabilities',
        )
    return declaration


def require_directory_read(client: Client) -> None:
    """Check that the server declared `directoryRead` as true.

    Raises:
        NotDeclaredError: It did not.
    """
    if not require_skills(client, READ_DIRECTORY).directory_read:
        raise NotDeclaredError(
            f"{READ_DIRECTORY} was not sent: the server has not declared directoryRead",
            violates="NEG-06",
            fix="use the files in the skill's manifest",
        )


# `resources/read`: the bytes of one file.


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
