"""The `core` dialect: the released extension, at protocol revisions 2026-07-28 and 2025-11-25."""

import json
import re
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import orjson

from skillwire.core import (
    DIRECTORY_MEDIA_TYPE,
    DYNAMIC,
    MAX_URI_LENGTH,
    UNKNOWN_SIZE,
    Finding,
    InvalidCursorError,
    JsonValue,
    SkillEntry,
    annotations_in,
    media_type_of,
    quoted,
    segment_of,
)

# Compact JSON output.


def encode(value: object) -> bytes:
    """Write a JSON value.

    orjson supports neither integers beyond 64 bits nor lone surrogates, and
    untrusted entries may contain both; the standard library writes those.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


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

_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_META_KEY = re.compile(rf"({_LABEL}(?:\.{_LABEL})*)/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_RESERVED_LABELS = frozenset({"modelcontextprotocol", "mcp"})

CacheScope: TypeAlias = Literal["public", "private"]
JsonDict: TypeAlias = dict[str, Any]


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


def is_unreserved_key(key: str) -> bool:
    """Return whether a `_meta` key may be used by anyone: it has a prefix that is not reserved for MCP."""
    match = _META_KEY.fullmatch(key)
    if match is None:
        return False
    labels = match[1].lower().split(".")
    # Revisions differ on which label of the prefix counts: the second, or any but the last.
    return not _RESERVED_LABELS & {*labels[:2], *labels[:-1]}


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


# `Members`: reads an untrusted JSON object member by member.


MAX_TEXT = 4096
"""The maximum length of a text member other than instructions, in characters."""

MAX_ITEMS = 256
"""The maximum number of items of a list inside a skill; a skill's files have a separate limit."""

MAX_FINDINGS = 32
"""The maximum number of findings about one object."""

Kind = TypeVar("Kind")


class Members:
    """Reads members of an object and reports invalid ones as findings.

    A member that is missing, or null, is valid unless it is required; one that
    is malformed is left out with a finding. No method raises.
    """

    def __init__(
        self, value: Mapping[str, object], findings: list[Finding], *, required: str, optional: str
    ) -> None:
        self.value = value
        self.findings = findings
        self._required = required
        self._optional = optional

    def inside(self, value: Mapping[str, object]) -> "Members":
        """Return the members of a nested object; its findings count as those of an optional member."""
        return Members(value, self.findings, required=self._optional, optional=self._optional)

    def required_text(self, name: str, *, most: int = MAX_TEXT) -> str | None:
        """Return a text that is required and not empty; None, with a finding, when it is not."""
        value = self.value.get(name)
        problem = _text_problem(value, most)
        if value == "" or problem:
            self._add(self._required, f"`{name}` {problem or 'is empty'}")
            return None
        return cast(str, value)

    def text(self, name: str, *, most: int = MAX_TEXT) -> str | None:
        value = self.value.get(name)
        if value is None:
            return None
        problem = _text_problem(value, most)
        if problem:
            self.malformed(name, problem)
            return None
        return cast(str, value)

    def texts(self, name: str, *, most: int = MAX_TEXT) -> tuple[str, ...]:
        """Return the texts of a list; each that is malformed is left out."""
        found: list[str] = []
        for item in self._items(name, MAX_ITEMS):
            problem = _text_problem(item, most)
            if problem:
                self.malformed(name, f"has an item that {problem}")
            else:
                found.append(cast(str, item))
        return tuple(found)

    def objects(self, name: str, *, most: int = MAX_ITEMS) -> list[Mapping[str, object]]:
        """Return the objects of a list; everything else in it is left out."""
        found: list[Mapping[str, object]] = []
        for item in self._items(name, most):
            if isinstance(item, dict):
                found.append(cast("dict[str, object]", item))
            else:
                self.malformed(name, "has an item that is not an object")
        return found

    def flag(self, name: str) -> bool | None:
        return self._of_kind(name, bool, "is neither true nor false")

    def mapping(self, name: str) -> Mapping[str, JsonValue] | None:
        return cast("Mapping[str, JsonValue] | None", self._of_kind(name, dict, "is not an object"))

    def rest(self, *known: str) -> Mapping[str, JsonValue]:
        """Return the members this version does not know, so that a relay passes them on (NEG-19)."""
        return {key: cast(JsonValue, item) for key, item in self.value.items() if key not in known}

    def malformed(self, name: str, problem: str, *, code: str = "") -> None:
        """Add a finding about an optional member that is left out."""
        self._add(code or self._optional, f"`{name}` {problem}")

    def _of_kind(self, name: str, kind: type[Kind], problem: str) -> Kind | None:
        value = self.value.get(name)
        if value is None or isinstance(value, kind):
            return value
        self.malformed(name, problem)
        return None

    def _items(self, name: str, most: int) -> list[object]:
        value = self.value.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.malformed(name, "is not a list")
            return []
        items = cast(list[object], value)
        if len(items) > most:
            self.malformed(name, f"has {len(items)} items; only the first {most} are used")
        return items[:most]

    def _add(self, code: str, message: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(code, message, file=""))


def open_object(
    value: object, *, required: str, optional: str, what: str
) -> tuple[Members | None, list[Finding]]:
    """Return the members of an object; None, with a finding, when the value is not an object."""
    findings: list[Finding] = []
    if not isinstance(value, dict):
        return None, [Finding(required, f"{what} is not an object", file="")]
    members = cast("dict[str, object]", value)
    return Members(members, findings, required=required, optional=optional), findings


def _text_problem(value: object, most: int) -> str:
    """Return what is wrong with a text; empty when nothing is."""
    if value is None:
        return "is missing"
    if not isinstance(value, str):
        return "is not a string"
    if len(value) > most:
        return f"is longer than {most} characters: {quoted(value[:40])}"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate"
    return ""
