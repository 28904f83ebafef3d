"""The `primitive` dialect, SEP-2076: skills by name, with arguments and dependencies.

Each model is written with `to_json` and parsed with a `parse_…` function that
accepts any JSON. It returns None when a required member is missing; malformed
optional members are left out. Findings report both.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from skillwire.core import (
    MAX_FILES,
    MAX_ITEMS,
    MAX_TEXT,
    MAX_TOTAL_SIZE,
    NO_ANNOTATIONS,
    NO_FIELDS,
    AuthorAnnotations,
    Finding,
    Frontmatter,
    JsonDict,
    JsonValue,
    Members,
    SkillArgument,
    annotations_in,
    is_unreserved_key,
    open_object,
    present,
    quoted,
)

CAPABILITY: Final = "skills"
GET_METHOD: Final = "skills/get"
LIST_CHANGED: Final = "notifications/skills/list_changed"
PROMPT_REFERENCE: Final = "ref/prompt"
RESOURCE_REFERENCE: Final = "ref/resource"

MAX_NAME: Final = 256
MAX_URI: Final = 2048

_ITEM = ("name", "title", "description", "version", "tags", "icons", "arguments", "dependencies", "_meta")
_DEFINITION = ("instructions", "description", "dependencies", "files")
# The members that every result may have.
_RESULT = ("_meta", "resultType", "ttlMs", "cacheScope")


@dataclass(frozen=True, slots=True)
class SkillDependencies:
    """What a skill's instructions require from the server: tools and prompts by name, resources by URI.

    A resource may also be the URI template of several.
    """

    tools: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tools or self.prompts or self.resources)

    def to_json(self) -> JsonDict:
        return present(
            tools=list(self.tools) or None,
            prompts=[{"type": PROMPT_REFERENCE, "name": name} for name in self.prompts] or None,
            resources=[{"type": RESOURCE_REFERENCE, "uri": uri} for uri in self.resources] or None,
        )


@dataclass(frozen=True, slots=True)
class PrimitiveItem:
    """A skill as `skills/list` returns it."""

    name: str
    title: str | None = None
    description: str | None = None
    version: str | None = None
    tags: tuple[str, ...] = ()
    icons: tuple[Mapping[str, JsonValue], ...] = ()
    arguments: tuple[SkillArgument, ...] = ()
    dependencies: SkillDependencies = field(default_factory=SkillDependencies)
    meta: Mapping[str, JsonValue] | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

    def to_json(self) -> JsonDict:
        return {
            **present(
                name=self.name,
                title=self.title,
                description=self.description,
                version=self.version,
                tags=list(self.tags) or None,
                icons=[dict(icon) for icon in self.icons] or None,
                arguments=[argument.to_json() for argument in self.arguments] or None,
                dependencies=self.dependencies.to_json() or None,
                _meta=None if self.meta is None else dict(self.meta),
            ),
            **self.extra,
        }


@dataclass(frozen=True, slots=True)
class PrimitiveFile:
    """A supporting file of a skill, which is read with `resources/read`."""

    name: str
    uri: str
    title: str | None = None
    description: str | None = None
    media_type: str | None = None
    required: bool | None = None
    meta: Mapping[str, JsonValue] | None = None

    def to_json(self) -> JsonDict:
        return present(
            name=self.name,
            title=self.title,
            uri=self.uri,
            description=self.description,
            mimeType=self.media_type,
            required=self.required,
            _meta=None if self.meta is None else dict(self.meta),
        )


@dataclass(frozen=True, slots=True)
class SkillDefinition:
    """A skill as `skills/get` returns it."""

    instructions: str
    description: str | None = None
    dependencies: SkillDependencies = field(default_factory=SkillDependencies)
    files: tuple[PrimitiveFile, ...] = ()
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

    def to_json(self) -> JsonDict:
        return {
            **present(
                description=self.description,
                instructions=self.instructions,
                dependencies=self.dependencies.to_json() or None,
                files=[file.to_json() for file in self.files] or None,
            ),
            **self.extra,
        }


def parse_item(value: object) -> tuple[PrimitiveItem | None, list[Finding]]:
    """Parse one item of an untrusted listing; None when it has no usable name."""
    members, findings = open_object(
        value,
        required="primitive-item-invalid",
        optional="primitive-field-invalid",
        what="an item of the listing",
    )
    name = members.required_text("name", most=MAX_NAME) if members is not None else None
    if members is None or name is None:
        return None, findings
    item = PrimitiveItem(
        name,
        title=members.text("title"),
        description=members.text("description"),
        version=members.text("version", most=MAX_NAME),
        tags=members.texts("tags", most=MAX_NAME),
        icons=tuple(cast("list[Mapping[str, JsonValue]]", members.objects("icons"))),
        arguments=parse_arguments(members),
        dependencies=_dependencies(members),
        meta=members.mapping("_meta"),
        extra=members.rest(*_ITEM),
    )
    return item, findings


def parse_definition(value: object) -> tuple[SkillDefinition | None, list[Finding]]:
    """Parse an untrusted result of `skills/get`; None when it has no instructions.

    Empty instructions are valid.
    """
    members, findings = open_object(
        value,
        required="primitive-skill-invalid",
        optional="primitive-field-invalid",
        what="the answer to skills/get",
    )
    if members is None:
        return None, findings
    instructions = members.required_text("instructions", most=MAX_TOTAL_SIZE, may_be_empty=True)
    if instructions is None:
        return None, findings
    definition = SkillDefinition(
        instructions,
        description=members.text("description"),
        dependencies=_dependencies(members),
        files=_files(members),
        extra=members.rest(*_DEFINITION, *_RESULT),
    )
    return definition, findings


def parse_arguments(members: Members) -> tuple[SkillArgument, ...]:
    """Parse the member `arguments` of an untrusted skill or prompt."""
    found: dict[str, SkillArgument] = {}
    for item in members.objects("arguments"):
        inner = members.inside(item)
        name = inner.required_text("name", most=MAX_NAME)
        if name is None:
            continue
        argument = SkillArgument(
            name, inner.text("title"), inner.text("description"), inner.flag("required") or False
        )
        if found.setdefault(name, argument) is not argument:
            members.malformed("arguments", "has two items with the same name; the first is used")
    return tuple(found.values())


def _dependencies(members: Members) -> SkillDependencies:
    value = members.mapping("dependencies")
    if value is None:
        return SkillDependencies()
    inner = members.inside(value)
    prompts = [inner.inside(item).required_text("name", most=MAX_NAME) for item in inner.objects("prompts")]
    resources = [inner.inside(item).required_text("uri", most=MAX_URI) for item in inner.objects("resources")]
    return SkillDependencies(
        tools=inner.texts("tools", most=MAX_NAME),
        prompts=tuple(name for name in prompts if name is not None),
        resources=tuple(uri for uri in resources if uri is not None),
    )


def _files(members: Members) -> tuple[PrimitiveFile, ...]:
    found: list[PrimitiveFile] = []
    for item in members.objects("files", most=MAX_FILES):
        inner = members.inside(item)
        name, uri = inner.required_text("name", most=MAX_NAME), inner.required_text("uri", most=MAX_URI)
        if name is not None and uri is not None:
            title, description = inner.text("title"), inner.text("description")
            media_type, required = inner.text("mimeType", most=MAX_NAME), inner.flag("required")
            found.append(
                PrimitiveFile(name, uri, title, description, media_type, required, inner.mapping("_meta"))
            )
    return tuple(found)


# Declarations in the frontmatter for dialects that identify skills by name.


PREFIX: Final = "skillwire/"
ARGUMENTS: Final = "skillwire/arguments"
TOOLS: Final = "skillwire/tools"
PROMPTS: Final = "skillwire/prompts"
RESOURCES: Final = "skillwire/resources"
FILES: Final = "skillwire/files"
ICONS: Final = "skillwire/icons"

MAX_ARGUMENTS: Final = 64
MAX_ICONS: Final = 8
MAX_ICON_ADDRESS: Final = 8 * 1024

_ARGUMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,63})(!?)")
_ICON_ADDRESS = re.compile(r"https://[!-~]+|data:image/[!-~]+")
_ICON_TYPE = re.compile(r"image/[a-z0-9.+-]{1,60}")
_ICON_SIZE = re.compile(r"[0-9]{1,5}x[0-9]{1,5}|any")
_NO_NOTES: Mapping[str, "FileNote"] = {}
_NO_META: Mapping[str, JsonValue] = {}


@dataclass(frozen=True, slots=True)
class FileNote:
    """The declared aliases, description and title of a file, which may be empty."""

    aliases: tuple[str, ...] = ()
    description: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Declarations:
    """What one skill declares, and findings about it; invalid declarations are left out."""

    title: str | None = None
    version: str | None = None
    tags: tuple[str, ...] = ()
    arguments: tuple[SkillArgument, ...] = ()
    dependencies: SkillDependencies = field(default_factory=SkillDependencies)
    files: Mapping[str, FileNote] = field(default_factory=lambda: _NO_NOTES)
    icons: tuple[Mapping[str, JsonValue], ...] = ()
    meta: Mapping[str, JsonValue] = field(default_factory=lambda: _NO_META)
    annotations: AuthorAnnotations = NO_ANNOTATIONS
    findings: tuple[Finding, ...] = ()


def declarations_in(frontmatter: Frontmatter) -> Declarations:
    """Read what a skill declares. Never raises: what cannot be read becomes a finding."""
    fields, findings = frontmatter.fields, list[Finding]()
    metadata = fields.get("metadata")
    more: Mapping[str, JsonValue] = metadata if isinstance(metadata, dict) else {}
    return Declarations(
        title=_text(fields, more, "title"),
        version=_text(fields, more, "version"),
        tags=_words(fields, more, "tags") or _words(fields, more, "keywords"),
        arguments=_arguments(more.get(ARGUMENTS), findings),
        dependencies=_declared_dependencies(more, findings),
        files=file_notes(more.get(FILES), findings),
        icons=_icons(more.get(ICONS), findings),
        meta={
            key: value for key, value in more.items() if not key.startswith(PREFIX) and is_unreserved_key(key)
        },
        annotations=(annotations := annotations_in(frontmatter)),
        findings=(*findings, *annotations.findings),
    )


def file_notes(value: JsonValue, findings: list[Finding]) -> Mapping[str, FileNote]:
    """Parse lines about files, by path; a line that cannot be read is left out with a finding."""
    if value is None:
        return _NO_NOTES
    found: dict[str, FileNote] = {}
    for line in _lines(value):
        path, names, description = _parts(line)
        if not path or path in found or len(found) >= 2 * MAX_ITEMS:
            _add_finding(
                findings, "file-notes-invalid", f"`{FILES}` has an unusable line: {quoted(line[:80])}"
            )
            continue
        names, _, title = names.partition(";")
        aliases = tuple(alias.strip() for alias in names.split(",") if alias.strip())
        found[path] = FileNote(aliases[:MAX_ITEMS], description, title.strip()[:MAX_NAME])
    return found


def _text(fields: Mapping[str, JsonValue], metadata: Mapping[str, JsonValue], name: str) -> str | None:
    for value in (fields.get(name), metadata.get(name)):
        if isinstance(value, str) and value.strip() and len(value) <= MAX_NAME:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
            return str(value)
    # A number such as 1.10 has already lost its last digit, so it is not used as a version.
    return None


def _words(fields: Mapping[str, JsonValue], metadata: Mapping[str, JsonValue], name: str) -> tuple[str, ...]:
    for value in (fields.get(name), metadata.get(name)):
        parts: list[JsonValue] = list(value) if isinstance(value, list) else []
        if isinstance(value, str):
            parts += split_words(value)
        words = [part for part in parts if isinstance(part, str) and 0 < len(part) <= MAX_NAME]
        if words:
            return tuple(dict.fromkeys(words))[:MAX_ITEMS]
    return ()


def split_words(text: str) -> list[str]:
    """Split at commas and line ends, or at spaces where there are none of them."""
    parts = re.split(r"[,\n]", text) if re.search(r"[,\n]", text.strip()) else text.split()
    return [part.strip() for part in parts if part.strip()]


def _arguments(value: JsonValue, findings: list[Finding]) -> tuple[SkillArgument, ...]:
    """Parse declared arguments: all or none, because a partial list is misleading."""
    if value is None:
        return ()
    found: dict[str, SkillArgument] = {}
    for line in _lines(value):
        head, title, description = _parts(line)
        match = _ARGUMENT.fullmatch(head)
        problem = ""
        if match is None:
            problem = f"has an unusable line: {quoted(line[:80])}"
        elif match[1] in found:
            problem = f"has two arguments {quoted(match[1])}"
        elif len(found) >= MAX_ARGUMENTS:
            problem = f"has more than {MAX_ARGUMENTS} arguments"
        if match is None or problem:
            _add_finding(
                findings, "arguments-invalid", f"`{ARGUMENTS}` {problem}", fix="write `name!: description`"
            )
            return ()
        found[match[1]] = SkillArgument(match[1], title or None, description or None, required=bool(match[2]))
    return tuple(found.values())


def _icons(value: JsonValue, findings: list[Finding]) -> tuple[Mapping[str, JsonValue], ...]:
    """Parse lines about icons; a line that cannot be read is left out with a finding."""
    found: list[Mapping[str, JsonValue]] = []
    for line in () if value is None else _lines(value):
        icon = _icon(line.split())
        if icon is None or len(found) >= MAX_ICONS:
            _add_finding(
                findings,
                "icons-invalid",
                f"`{ICONS}` has an unusable line: {quoted(line[:80])}",
                fix=f"write `https://… image/png 48x48`, at most {MAX_ICONS} lines",
            )
            continue
        found.append(icon)
    return tuple(found)


def _icon(words: Sequence[str]) -> Mapping[str, JsonValue] | None:
    """Return an icon in protocol form; None when a word is not a valid part of an icon."""
    if not words or not _ICON_ADDRESS.fullmatch(words[0]) or len(words[0]) > MAX_ICON_ADDRESS:
        return None
    icon: dict[str, JsonValue] = {"src": words[0]}
    sizes: list[JsonValue] = []
    for word in words[1:]:
        if _ICON_TYPE.fullmatch(word) and "mimeType" not in icon:
            icon["mimeType"] = word
        elif word in ("light", "dark") and "theme" not in icon:
            icon["theme"] = word
        elif _ICON_SIZE.fullmatch(word) and len(sizes) < MAX_ICONS:
            sizes.append(word)
        else:
            return None
    return {**icon, "sizes": sizes} if sizes else icon


def _declared_dependencies(metadata: Mapping[str, JsonValue], findings: list[Finding]) -> SkillDependencies:
    lists: list[tuple[str, ...]] = []
    for key, longest in ((TOOLS, MAX_NAME), (PROMPTS, MAX_NAME), (RESOURCES, MAX_URI)):
        value = metadata.get(key)
        words = tuple(dict.fromkeys(split_words(value))) if isinstance(value, str) else ()
        if len(words) > MAX_ITEMS or any(len(word) > longest for word in words):
            _add_finding(findings, "dependencies-invalid", f"`{key}` has too many or too long names")
            words = ()
        lists.append(words)
    return SkillDependencies(*lists)


def _parts(line: str) -> tuple[str, str, str]:
    """Split a line `name (more): description`; the name is empty when the line is not of this form."""
    head, _, description = line.partition(":")
    name, bracket, more = head.strip().partition("(")
    if bracket and not more.endswith(")"):
        return "", "", ""
    more = more.removesuffix(")").strip()
    is_plain = not re.search(r"[()]", name + more) and len(head) <= MAX_URI
    return (name.strip(), more, description.strip()[:MAX_TEXT]) if is_plain else ("", "", "")


def _lines(value: JsonValue) -> list[str]:
    """Return the non-empty lines of a text; for any other value, one line that cannot be parsed."""
    if not isinstance(value, str):
        return ["\0"]
    return [line.strip() for line in value.splitlines() if line.strip()]


def _add_finding(findings: list[Finding], code: str, message: str, *, fix: str = "") -> None:
    if len(findings) < MAX_ITEMS:
        findings.append(Finding(code, message, fix=fix))
