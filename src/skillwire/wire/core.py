"""The `core` dialect: the released extension, at protocol revisions 2026-07-28 and 2025-11-25."""

import re
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from skillwire.core import (
    DIRECTORY_MEDIA_TYPE,
    DYNAMIC,
    MAX_URI_LENGTH,
    UNKNOWN_SIZE,
    InvalidCursorError,
    JsonDict,
    SkillEntry,
    annotations_in,
    encode,
    media_type_of,
    segment_of,
)

EXTENSION: Final = "io.modelcontextprotocol/skills"
SETTINGS: Final[Mapping[str, Any]] = {"directoryRead": True}

LIST_SKILLS: Final = "skills/list"
GET_SKILL: Final = "skills/get"
READ_DIRECTORY: Final = "resources/directory/read"
READ_RESOURCE: Final = "resources/read"
LIST_RESOURCES: Final = "resources/list"
LIST_TEMPLATES: Final = "resources/templates/list"

# The priority of a file for a model, from 0 to 1: instructions first, the files they refer to on demand.
SKILL_PRIORITY: Final = 0.8
FILE_PRIORITY: Final = 0.3

CacheScope: TypeAlias = Literal["public", "private"]


def write_entry(entry: SkillEntry) -> bytes:
    """Write an entry as `skills/list` and `skills/get` carry it: like `entry.to_json()`, but much faster.

    A canonical URI and a digest contain no character that JSON would escape, so
    the lines of a manifest are formatted as text.
    """
    manifest = entry.manifest
    if (
        entry.extra
        or entry.uri.spelling
        or (
            manifest is not None and (manifest.spellings or manifest.extras or UNKNOWN_SIZE in manifest.sizes)
        )
    ):
        return encode(entry.to_json())
    if manifest is None:
        resources = f'"{DYNAMIC}"'
    else:
        head, columns = f'{{"uri":"{manifest.base}', (manifest.references, manifest.digests, manifest.sizes)
        lines = [
            f'{head}{reference}","digest":"{digest}","size":{size}}}'
            for reference, digest, size in zip(*columns, strict=True)
        ]
        resources = f"[{','.join(lines)}]"
    return b"".join(
        (
            f'{{"uri":"{entry.uri.text}","frontmatter":'.encode(),
            encode(entry.frontmatter.fields),
            f',"resources":{resources}}}'.encode(),
        )
    )


def skill_resource(entry: SkillEntry, *, modified: float | None = None) -> JsonDict:
    """Build the resource of a skill's `SKILL.md` (META-01, META-05)."""
    frontmatter, author = entry.frontmatter, annotations_in(entry.frontmatter)
    line = entry.manifest.find(entry.uri.text) if entry.manifest is not None else None
    return {
        "uri": entry.uri.published,
        "name": frontmatter.name,
        "description": frontmatter.description,
        "mimeType": media_type_of(entry.uri.text),
        **({} if line is None or line.known_size is None else {"size": line.size}),
        "annotations": _annotations(
            SKILL_PRIORITY if author.priority is None else author.priority, modified, author.audience
        ),
    }


def file_resource(uri: str, *, media_type: str, size: int | None) -> JsonDict:
    """Build the resource of a supporting file."""
    return {
        "uri": uri,
        "name": segment_of(uri),
        "mimeType": media_type,
        **({} if size is None else {"size": size}),
        "annotations": _annotations(FILE_PRIORITY, None),
    }


def directory_resource(uri: str) -> JsonDict:
    """Build the resource of a directory (DIR-01)."""
    return {"uri": uri, "name": segment_of(uri), "mimeType": DIRECTORY_MEDIA_TYPE}


def file_contents(uri: str, *, media_type: str, content: bytes) -> JsonDict:
    """Build the single content item of a `resources/read` result.

    The bytes are sent as text exactly when they are valid UTF-8, which is
    lossless, whatever the media type says; else as base64 (READ-08).
    """
    try:
        return {"mimeType": media_type, "text": content.decode("utf-8"), "uri": uri}
    except UnicodeDecodeError:
        return {"blob": b64encode(content).decode("ascii"), "mimeType": media_type, "uri": uri}


def _annotations(priority: float, modified: float | None, audience: Sequence[str] = ()) -> JsonDict:
    annotations: JsonDict = {"audience": [*audience] or ["assistant"], "priority": priority}
    if modified is not None:
        moment = datetime.fromtimestamp(modified, UTC)
        annotations["lastModified"] = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
    return annotations


# Keyset cursors: "continue after this URI".


_CURSOR = re.compile(r"[A-Za-z0-9_-]+")
_MAX_NAME = 64
_MAX_LENGTH = 4 * (MAX_URI_LENGTH + _MAX_NAME) // 3


def write_cursor(listing: str, after: str) -> str:
    """Return the cursor that continues `listing`, a one-word name, after the item at the URI `after`."""
    return urlsafe_b64encode(f"{listing}:{after}".encode()).decode("ascii").rstrip("=")


def read_cursor(listing: str, cursor: str) -> str:
    """Return the URI after which to continue.

    Raises:
        InvalidCursorError: The cursor does not belong to this listing.
    """
    if len(cursor) <= _MAX_LENGTH and _CURSOR.fullmatch(cursor):
        try:
            name, colon, after = (
                urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("utf-8").partition(":")
            )
        except ValueError:
            pass
        else:
            if name == listing and colon and write_cursor(listing, after) == cursor:
                return after
    raise InvalidCursorError("the cursor is not one of this listing", fix="start the listing again")


def is_cursor_of(listing: str, cursor: str) -> bool:
    """Return whether a cursor continues `listing`."""
    try:
        read_cursor(listing, cursor)
    except InvalidCursorError:
        return False
    return True


# The `prompt` dialect: skills as prompts. `core.prompt_text` builds the text.


LIST_PROMPTS: Final = "prompts/list"
GET_PROMPT: Final = "prompts/get"
PROMPTS_CHANGED: Final = "notifications/prompts/list_changed"

MAX_PROMPT_NAME: Final = 128

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")


def prompt_item(name: str, entry: SkillEntry) -> JsonDict:
    """Build the item of a skill's prompt in `prompts/list`."""
    return {"name": name, "description": entry.frontmatter.description}


def prompt_result(entry: SkillEntry, text: str) -> JsonDict:
    """Build the result of `prompts/get`: the whole text in one user message (DUAL-05)."""
    return {
        "description": entry.frontmatter.description,
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
    }


def is_prompt_name(name: str) -> bool:
    """Return whether a name may be used for our prompts: one that never needs quoting."""
    return len(name) <= MAX_PROMPT_NAME and _NAME.fullmatch(name) is not None
