"""The `exec` dialect, the skills page: skills by name, with scripts, references and assets.

Each model is written with `to_json` and parsed with a `parse_…` function that
accepts any JSON. It returns None when a required member is missing; malformed
optional members are left out. Findings report both.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from skillwire.core import (
    AUDIENCES,
    MAX_DESCRIPTION,
    MAX_FILES,
    MAX_NAME,
    MAX_TOTAL_SIZE,
    NO_FIELDS,
    Finding,
    InvalidUriError,
    JsonDict,
    JsonValue,
    Members,
    SkillUri,
    open_object,
    present,
    quoted,
)

CAPABILITY: Final = "skills"
SCRIPTS: Final = "scripts"
READ_METHOD: Final = "skills/read"
READ_REFERENCE_METHOD: Final = "skills/read_reference"
EXECUTE_METHOD: Final = "skills/execute"
LIST_CHANGED: Final = "notifications/skills/list_changed"

SKILL_NOT_FOUND: Final = -32002
REFERENCE_NOT_FOUND: Final = -32004

MAX_WORD: Final = 256
MAX_URI: Final = 2048

_NAME = re.compile(r"[a-z0-9-]+")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)?)?")
_MAX_BLOB = MAX_TOTAL_SIZE * 4 // 3 + 4
_ITEM = ("name", "description", "title", "keywords", "annotations")
_SKILL = ("name", "description", "instructions", "scripts", "references", "assets", "metadata")
# A placeholder for the skill's own URI, to validate paths with.
_HERE = SkillUri.build("skill")


@dataclass(frozen=True, slots=True)
class Annotations:
    """The audience of a skill or file, its priority from 0 to 1, and when it last changed."""

    audience: tuple[str, ...] = ()
    priority: float | None = None
    last_modified: str | None = None

    def to_json(self) -> JsonDict:
        return present(
            audience=list(self.audience) or None, priority=self.priority, lastModified=self.last_modified
        )


@dataclass(frozen=True, slots=True)
class ExecItem:
    """A skill as `skills/list` returns it, without its content."""

    name: str
    description: str
    title: str | None = None
    keywords: tuple[str, ...] = ()
    annotations: Annotations = field(default_factory=Annotations)
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

    def to_json(self) -> JsonDict:
        return {
            **present(
                name=self.name,
                title=self.title,
                description=self.description,
                keywords=list(self.keywords) or None,
                annotations=self.annotations.to_json() or None,
            ),
            **self.extra,
        }


@dataclass(frozen=True, slots=True)
class ExecFile:
    """A script, reference or asset: its file name, description, and path inside the skill.

    `input_schema` is the JSON Schema of a script's arguments, if it declares one.
    """

    name: str
    description: str
    path: str
    annotations: Annotations = field(default_factory=Annotations)
    input_schema: Mapping[str, JsonValue] | None = None

    def to_json(self) -> JsonDict:
        return present(
            name=self.name,
            description=self.description,
            path=self.path,
            annotations=self.annotations.to_json() or None,
            inputSchema=None if self.input_schema is None else dict(self.input_schema),
        )


@dataclass(frozen=True, slots=True)
class ExecSkill:
    """A whole skill, as `skills/read` returns it under `skill`."""

    name: str
    description: str
    instructions: str
    scripts: tuple[ExecFile, ...] = ()
    references: tuple[ExecFile, ...] = ()
    assets: tuple[ExecFile, ...] = ()
    metadata: Mapping[str, JsonValue] | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

    def to_json(self) -> JsonDict:
        return {
            **present(
                name=self.name,
                description=self.description,
                instructions=self.instructions,
                scripts=[file.to_json() for file in self.scripts] or None,
                references=[file.to_json() for file in self.references] or None,
                assets=[file.to_json() for file in self.assets] or None,
                metadata=None if self.metadata is None else dict(self.metadata),
            ),
            **self.extra,
        }


@dataclass(frozen=True, slots=True)
class ReferenceContent:
    """A file's bytes, as `skills/read_reference` returns them under `content`."""

    uri: str
    content: bytes
    media_type: str | None = None

    def to_json(self) -> JsonDict:
        """Write the bytes as text exactly when they are UTF-8, else as base64."""
        head = present(uri=self.uri, mimeType=self.media_type)
        try:
            return {**head, "text": self.content.decode("utf-8")}
        except UnicodeDecodeError:
            return {**head, "blob": b64encode(self.content).decode("ascii")}


def parse_item(value: object) -> tuple[ExecItem | None, list[Finding]]:
    """Parse one item of an untrusted listing; None without a usable name and description."""
    members, findings = open_object(
        value, required="exec-item-invalid", optional="exec-field-invalid", what="an item of the listing"
    )
    if members is None:
        return None, findings
    name, description = _name(members, "exec-item-invalid"), _description(members)
    if name is None or description is None:
        return None, findings
    item = ExecItem(
        name,
        description,
        title=members.text("title"),
        keywords=members.texts("keywords", most=MAX_WORD),
        annotations=_annotations(members),
        extra=members.rest(*_ITEM),
    )
    return item, findings


def parse_skill(result: object) -> tuple[ExecSkill | None, list[Finding]]:
    """Parse an untrusted result of `skills/read`; None when a required member is missing."""
    members, findings = _answer(result, "skill", "exec-skill-invalid")
    if members is None:
        return None, findings
    name, description = _name(members, "exec-skill-invalid"), _description(members)
    instructions = members.required_text("instructions", most=MAX_TOTAL_SIZE, may_be_empty=True)
    if name is None or description is None or instructions is None:
        return None, findings
    skill = ExecSkill(
        name,
        description,
        instructions,
        scripts=_files(members, "scripts"),
        references=_files(members, "references"),
        assets=_files(members, "assets"),
        metadata=members.mapping("metadata"),
        extra=members.rest(*_SKILL),
    )
    return skill, findings


def parse_content(result: object) -> tuple[ReferenceContent | None, list[Finding]]:
    """Parse an untrusted result of `skills/read_reference`; None when it has no usable content."""
    code = "exec-content-invalid"
    members, findings = _answer(result, "content", code)
    uri = members.required_text("uri", most=MAX_URI) if members is not None else None
    if members is None or uri is None:
        return None, findings
    if ("text" in members.value) == ("blob" in members.value):
        findings.append(Finding(code, "`content` must have exactly one of `text` and `blob`", file=""))
        return None, findings
    content = _content(members)
    if content is None:
        return None, findings
    return ReferenceContent(uri, content, members.text("mimeType", most=MAX_WORD)), findings


def path_problem(path: str) -> str:
    """Return why `path` cannot be a file's path inside a skill; empty when it can (EXEC-10)."""
    try:
        _HERE.join(path)
    except InvalidUriError:
        return f"does not stay inside the skill: {quoted(path[:80])}"
    return ""


def _answer(result: object, key: str, code: str) -> tuple[Members | None, list[Finding]]:
    outer, findings = open_object(result, required=code, optional="exec-field-invalid", what="the answer")
    if outer is None:
        return None, findings
    return open_object(
        outer.value.get(key), required=code, optional="exec-field-invalid", what=f"`{key}` in the answer"
    )


def _name(members: Members, code: str) -> str | None:
    name = members.required_text("name", most=MAX_NAME)
    if name is not None and not _NAME.fullmatch(name):
        members.malformed("name", f"may have only a-z, 0-9 and hyphens: {quoted(name)}", code=code)
        return None
    return name


def _description(members: Members) -> str | None:
    return members.required_text("description", most=MAX_DESCRIPTION)


def _content(members: Members) -> bytes | None:
    if "text" in members.value:
        text = members.required_text("text", most=MAX_TOTAL_SIZE, may_be_empty=True)
        return None if text is None else text.encode()
    blob = members.required_text("blob", most=_MAX_BLOB, may_be_empty=True)
    try:
        return None if blob is None else b64decode(blob, validate=True)
    except ValueError:
        members.malformed("blob", "is not base64", code="exec-content-invalid")
        return None


def _annotations(members: Members) -> Annotations:
    value = members.mapping("annotations")
    if value is None:
        return Annotations()
    inner = Members(
        value, members.findings, required="exec-annotations-invalid", optional="exec-annotations-invalid"
    )
    audience = tuple(dict.fromkeys(inner.texts("audience", most=MAX_WORD)))
    if not set(audience) <= set(AUDIENCES):
        inner.malformed("audience", f"has values other than {' and '.join(AUDIENCES)}")
    priority = value.get("priority")
    if priority is not None and not _is_priority(priority):
        inner.malformed("priority", "is not a number from 0 to 1")
        priority = None
    modified = inner.text("lastModified", most=MAX_WORD)
    if modified is not None and not is_iso_date(modified):
        inner.malformed("lastModified", "is not an ISO 8601 date and time")
        modified = None
    return Annotations(
        tuple(one for one in audience if one in AUDIENCES),
        priority if isinstance(priority, int | float) else None,
        modified,
    )


def is_iso_date(text: str) -> bool:
    """Return whether `text` is an ISO 8601 date, or date and time."""
    if not _MOMENT.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(re.sub(r"\.\d+", "", text))
    except ValueError:
        return False
    return True


def _is_priority(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _files(members: Members, kind: str) -> tuple[ExecFile, ...]:
    found: list[ExecFile] = []
    for item in members.objects(kind, most=MAX_FILES):
        inner = members.inside(item)
        name, path = inner.required_text("name", most=MAX_WORD), inner.required_text("path", most=MAX_URI)
        if name is None or path is None:
            continue
        problem = path_problem(path)
        if problem:
            inner.malformed("path", problem, code="exec-path-invalid")
            continue
        description = inner.required_text("description") or name
        schema = inner.mapping("inputSchema")
        found.append(ExecFile(name, description, path, _annotations(inner), schema))
    return tuple(found)


# The untrusted result of `skills/execute`: parts of content, and whether the script failed.


TEXT: Final = "text"
RESOURCE: Final = "resource"
LINK: Final = "resource_link"

MAX_PIECES: Final = 128
MAX_CONTENT: Final = MAX_TOTAL_SIZE
"""How many bytes all parts together may have; those beyond it are kept without their content."""

_MEDIA = ("image", "audio")
_ITEM_INVALID = "exec-result-item"


@dataclass(frozen=True, slots=True)
class ResultPart:
    """One part of a result: its kind, as the server names it, and its bytes.

    `kind` and all other texts are untrusted. `content` is None for a link,
    which is never followed, for a resource without content, and for content
    that is of an unknown kind or too large.
    """

    kind: str
    content: bytes | None = field(default=None, repr=False)
    is_text: bool = False
    uri: str = ""
    name: str = ""
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of a script that a server ran, as the server reports it."""

    parts: tuple[ResultPart, ...]
    is_error: bool = False


def parse_execution_result(result: object) -> tuple[ExecutionResult | None, list[Finding]]:
    """Parse an untrusted result of `skills/execute`; None without a list of `content`.

    When `isError` is malformed, the script counts as failed.
    """
    members, findings = open_object(
        result, required="exec-result-invalid", optional=_ITEM_INVALID, what="the answer"
    )
    if members is None:
        return None, findings
    if not isinstance(members.value.get("content"), list):
        findings.append(Finding("exec-result-invalid", "`content` is not a list", file=""))
        return None, findings
    has_failed = members.flag("isError")
    is_unclear = has_failed is None and members.value.get("isError") is not None
    room = MAX_CONTENT
    parts: list[ResultPart] = []
    for item in members.objects("content", most=MAX_PIECES):
        part = _part(members.inside(item), room)
        if part is not None:
            room -= len(part.content or b"")
            parts.append(part)
    return ExecutionResult(tuple(parts), bool(has_failed) or is_unclear), findings


def _part(item: Members, room: int) -> ResultPart | None:
    kind = item.required_text("type", most=MAX_WORD)
    if kind is None:
        return None
    if kind == TEXT:
        return _with_text(item, ResultPart(kind), room)
    if kind in _MEDIA:
        return _with_blob(item, "data", ResultPart(kind, media_type=_media_type(item)), room)
    if kind == RESOURCE:
        return _resource(item, room)
    if kind == LINK:
        uri = item.required_text("uri", most=MAX_URI)
        name = item.text("name", most=MAX_WORD) or ""
        return None if uri is None else ResultPart(kind, uri=uri, name=name, media_type=_media_type(item))
    return ResultPart(kind)


def _resource(item: Members, room: int) -> ResultPart | None:
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
    if "text" in inner.value and "blob" in inner.value:
        item.malformed(RESOURCE, "has both `text` and `blob`")
        return None
    name = inside.text("name", most=MAX_WORD) or ""
    part = ResultPart(RESOURCE, uri=uri, name=name, media_type=_media_type(inside))
    if "text" in inner.value:
        return _with_text(inside, part, room)
    # The specification's own example has neither: the file is only named, like a link.
    return _with_blob(inside, "blob", part, room) if "blob" in inner.value else part


def _with_text(item: Members, part: ResultPart, room: int) -> ResultPart | None:
    text = "" if item.value.get("text") == "" else item.required_text("text", most=MAX_CONTENT)
    return None if text is None else _filled(item, part, text.encode(), room, is_text=True)


def _with_blob(item: Members, name: str, part: ResultPart, room: int) -> ResultPart | None:
    blob = "" if item.value.get(name) == "" else item.required_text(name, most=MAX_CONTENT * 4 // 3 + 4)
    if blob is None:
        return None
    try:
        content = b64decode(blob, validate=True)
    except ValueError:
        item.malformed(name, "is not base64")
        return None
    return _filled(item, part, content, room, is_text=False)


def _filled(item: Members, part: ResultPart, content: bytes, room: int, *, is_text: bool) -> ResultPart:
    if len(content) > room:
        item.malformed("content", f"has more than {MAX_CONTENT} bytes; the rest is left out")
        return part
    return ResultPart(part.kind, content, is_text, part.uri, part.name, part.media_type)


def _media_type(item: Members) -> str:
    return item.text("mimeType", most=MAX_WORD) or ""
