"""The `core` dialect: the released extension, at protocol revisions 2026-07-28 and 2025-11-25."""

from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from skillwire.core.entry import DYNAMIC, SkillEntry
from skillwire.core.manifest import UNKNOWN_SIZE
from skillwire.core.media import DIRECTORY_MEDIA_TYPE, media_type_of
from skillwire.core.uri import segment_of
from skillwire.wire.encoding import encode

EXTENSION: Final = "io.modelcontextprotocol/skills"
SETTINGS: Final[Mapping[str, Any]] = {"directoryRead": True}

LIST_SKILLS: Final = "skills/list"
GET_SKILL: Final = "skills/get"
READ_DIRECTORY: Final = "resources/directory/read"
READ_RESOURCE: Final = "resources/read"
LIST_RESOURCES: Final = "resources/list"
LIST_TEMPLATES: Final = "resources/templates/list"

# How interesting a file is to a model, from 0 to 1: instructions first, what they refer to on demand.
SKILL_PRIORITY: Final = 0.8
FILE_PRIORITY: Final = 0.3

CacheScope: TypeAlias = Literal["public", "private"]
JsonDict: TypeAlias = dict[str, Any]


def write_entry(entry: SkillEntry) -> bytes:
    """Write an entry as `skills/list` and `skills/get` carry it: `entry.to_json()`, and much faster.

    A canonical URI and a digest hold no character that JSON would escape, so
    the lines of a manifest are put together as text.
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
    """Describe a skill's `SKILL.md` as the resource it is (META-01, META-05)."""
    frontmatter = entry.frontmatter
    line = entry.manifest.find(entry.uri.text) if entry.manifest is not None else None
    return {
        "uri": entry.uri.published,
        "name": frontmatter.name,
        "description": frontmatter.description,
        "mimeType": media_type_of(entry.uri.text),
        **({} if line is None or line.known_size is None else {"size": line.size}),
        "annotations": _annotations(SKILL_PRIORITY, modified),
    }


def file_resource(uri: str, *, media_type: str, size: int | None) -> JsonDict:
    """Describe a supporting file as the resource it is."""
    return {
        "uri": uri,
        "name": segment_of(uri),
        "mimeType": media_type,
        **({} if size is None else {"size": size}),
        "annotations": _annotations(FILE_PRIORITY, None),
    }


def directory_resource(uri: str) -> JsonDict:
    """Describe a directory as the resource it is (DIR-01)."""
    return {"uri": uri, "name": segment_of(uri), "mimeType": DIRECTORY_MEDIA_TYPE}


def file_contents(uri: str, *, media_type: str, content: bytes) -> JsonDict:
    """Put a file's bytes into the one item `resources/read` answers with.

    They travel as text exactly when they are UTF-8, which loses nothing,
    whatever the media type says; else as base64 (READ-08).
    """
    try:
        return {"mimeType": media_type, "text": content.decode("utf-8"), "uri": uri}
    except UnicodeDecodeError:
        return {"blob": b64encode(content).decode("ascii"), "mimeType": media_type, "uri": uri}


def _annotations(priority: float, modified: float | None) -> JsonDict:
    annotations: JsonDict = {"audience": ["assistant"], "priority": priority}
    if modified is not None:
        moment = datetime.fromtimestamp(modified, UTC)
        annotations["lastModified"] = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
    return annotations
