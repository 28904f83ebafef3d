"""The answer to `skills/execute`, as a stranger gives it: pieces of content, and whether the script failed.

Nothing in it is followed, fetched or trusted. What is malformed is left out
with a finding; a kind of content this version does not know is only named.
"""

from base64 import b64decode
from dataclasses import dataclass, field
from typing import Final

from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.wire.execution import MAX_URI, MAX_WORD
from skillwire.wire.members import Members, open_object

TEXT: Final = "text"
RESOURCE: Final = "resource"
LINK: Final = "resource_link"

MAX_PIECES: Final = 128
MAX_CONTENT: Final = MAX_TOTAL_SIZE
"""How many bytes all pieces together may bring; what does not fit is named without its content."""

_MEDIA = ("image", "audio")
_ITEM_INVALID = "exec-result-item"


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a result: what the server calls it, and the bytes that came with it.

    `kind` and all other words are a stranger's. `content` is None for a link,
    which is never followed, and for what is not known or too large.
    """

    kind: str
    content: bytes | None = field(default=None, repr=False)
    is_text: bool = False
    uri: str = ""
    name: str = ""
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class Executed:
    """What a server says came of running a script."""

    pieces: tuple[Piece, ...]
    is_error: bool = False


def parse_executed(result: object) -> tuple[Executed | None, list[Finding]]:
    """Read a stranger's whole answer to `skills/execute`; None without a list of `content`.

    A script of which the answer does not say properly whether it failed counts as one that did.
    """
    members, findings = open_object(
        result, required="exec-result-invalid", optional=_ITEM_INVALID, what="the answer"
    )
    if members is None:
        return None, findings
    if not isinstance(members.value.get("content"), list):
        findings.append(Finding("exec-result-invalid", "`content` is no list", file=""))
        return None, findings
    has_failed = members.flag("isError")
    is_unclear = has_failed is None and members.value.get("isError") is not None
    room = MAX_CONTENT
    pieces: list[Piece] = []
    for item in members.objects("content", most=MAX_PIECES):
        piece = _piece(members.inside(item), room)
        if piece is not None:
            room -= len(piece.content or b"")
            pieces.append(piece)
    return Executed(tuple(pieces), bool(has_failed) or is_unclear), findings


def _piece(item: Members, room: int) -> Piece | None:
    kind = item.required_text("type", most=MAX_WORD)
    if kind is None:
        return None
    if kind == TEXT:
        return _with_text(item, Piece(kind), room)
    if kind in _MEDIA:
        return _with_blob(item, "data", Piece(kind, media_type=_media_type(item)), room)
    if kind == RESOURCE:
        return _resource(item, room)
    if kind == LINK:
        uri = item.required_text("uri", most=MAX_URI)
        name = item.text("name", most=MAX_WORD) or ""
        return None if uri is None else Piece(kind, uri=uri, name=name, media_type=_media_type(item))
    return Piece(kind)


def _resource(item: Members, room: int) -> Piece | None:
    value = item.value.get(RESOURCE)
    inner, findings = open_object(
        value, required=_ITEM_INVALID, optional=_ITEM_INVALID, what=f"`{RESOURCE}` of a piece"
    )
    if inner is None:
        item.malformed(RESOURCE, findings[0].message)
        return None
    inside = item.inside(inner.value)
    uri = inside.required_text("uri", most=MAX_URI)
    if uri is None:
        return None
    if ("text" in inner.value) == ("blob" in inner.value):
        item.malformed(RESOURCE, "has not exactly one of `text` and `blob`")
        return None
    piece = Piece(RESOURCE, uri=uri, media_type=_media_type(inside))
    return (
        _with_text(inside, piece, room) if "text" in inner.value else _with_blob(inside, "blob", piece, room)
    )


def _with_text(item: Members, piece: Piece, room: int) -> Piece | None:
    text = "" if item.value.get("text") == "" else item.required_text("text", most=MAX_CONTENT)
    return None if text is None else _filled(item, piece, text.encode(), room, is_text=True)


def _with_blob(item: Members, name: str, piece: Piece, room: int) -> Piece | None:
    blob = "" if item.value.get(name) == "" else item.required_text(name, most=MAX_CONTENT * 4 // 3 + 4)
    if blob is None:
        return None
    try:
        content = b64decode(blob, validate=True)
    except ValueError:
        item.malformed(name, "is no base64")
        return None
    return _filled(item, piece, content, room, is_text=False)


def _filled(item: Members, piece: Piece, content: bytes, room: int, *, is_text: bool) -> Piece:
    if len(content) > room:
        item.malformed("content", f"brings more than {MAX_CONTENT} bytes; the rest is left out")
        return piece
    return Piece(piece.kind, content, is_text, piece.uri, piece.name, piece.media_type)


def _media_type(item: Members) -> str:
    return item.text("mimeType", most=MAX_WORD) or ""
