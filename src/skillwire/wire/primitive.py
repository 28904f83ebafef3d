"""The `primitive` dialect, SEP-2076: skills by name, with arguments and dependencies.

Each model is written with `to_json` and read with a `parse_…` that takes any
JSON: what must be there is there or the value is None, what may be there and
is malformed is left out, and findings say so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.core.yaml12 import JsonValue
from skillwire.wire.core import GET_SKILL, LIST_SKILLS, JsonDict
from skillwire.wire.members import Members, open_object

CAPABILITY: Final = "skills"
LIST_METHOD: Final = LIST_SKILLS
GET_METHOD: Final = GET_SKILL
LIST_CHANGED: Final = "notifications/skills/list_changed"
PROMPT_REFERENCE: Final = "ref/prompt"
RESOURCE_REFERENCE: Final = "ref/resource"

MAX_NAME: Final = 256
MAX_URI: Final = 2048

_NOTHING: Mapping[str, JsonValue] = {}
_ITEM = ("name", "title", "description", "version", "tags", "icons", "arguments", "dependencies", "_meta")
_DEFINITION = ("instructions", "description", "dependencies", "files")
# What every result has, whatever it is a result of.
_RESULT = ("_meta", "resultType", "ttlMs", "cacheScope")


@dataclass(frozen=True, slots=True)
class SkillArgument:
    """One value that `skills/get` takes for a skill."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool = False

    def to_json(self) -> JsonDict:
        return _present(
            name=self.name, title=self.title, description=self.description, required=self.required
        )


@dataclass(frozen=True, slots=True)
class SkillDependencies:
    """What a skill's instructions need of the server: tools and prompts by name, resources by URI.

    A resource may also be the URI template of several.
    """

    tools: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tools or self.prompts or self.resources)

    def to_json(self) -> JsonDict:
        return _present(
            tools=list(self.tools) or None,
            prompts=[{"type": PROMPT_REFERENCE, "name": name} for name in self.prompts] or None,
            resources=[{"type": RESOURCE_REFERENCE, "uri": uri} for uri in self.resources] or None,
        )


@dataclass(frozen=True, slots=True)
class PrimitiveItem:
    """A skill as `skills/list` tells of it."""

    name: str
    title: str | None = None
    description: str | None = None
    version: str | None = None
    tags: tuple[str, ...] = ()
    icons: tuple[Mapping[str, JsonValue], ...] = ()
    arguments: tuple[SkillArgument, ...] = ()
    dependencies: SkillDependencies = field(default_factory=SkillDependencies)
    meta: Mapping[str, JsonValue] | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)

    def to_json(self) -> JsonDict:
        return {
            **_present(
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
class SkillFile:
    """A supporting file of a skill, to be had with `resources/read`."""

    name: str
    uri: str
    title: str | None = None
    description: str | None = None
    media_type: str | None = None
    required: bool | None = None
    meta: Mapping[str, JsonValue] | None = None

    def to_json(self) -> JsonDict:
        return _present(
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
    """A skill as `skills/get` answers with it."""

    instructions: str
    description: str | None = None
    dependencies: SkillDependencies = field(default_factory=SkillDependencies)
    files: tuple[SkillFile, ...] = ()
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)

    def to_json(self) -> JsonDict:
        return {
            **_present(
                description=self.description,
                instructions=self.instructions,
                dependencies=self.dependencies.to_json() or None,
                files=[file.to_json() for file in self.files] or None,
            ),
            **self.extra,
        }


def parse_item(value: object) -> tuple[PrimitiveItem | None, list[Finding]]:
    """Read one item of a stranger's listing; None when it has no name to get it by."""
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
        arguments=_arguments(members),
        dependencies=_dependencies(members),
        meta=members.mapping("_meta"),
        extra=members.rest(*_ITEM),
    )
    return item, findings


def parse_definition(value: object) -> tuple[SkillDefinition | None, list[Finding]]:
    """Read what a stranger's `skills/get` answered; None when it has no instructions.

    Empty instructions are instructions: the author wrote none.
    """
    members, findings = open_object(
        value,
        required="primitive-skill-invalid",
        optional="primitive-field-invalid",
        what="the answer to skills/get",
    )
    if members is None:
        return None, findings
    instructions = (
        ""
        if members.value.get("instructions") == ""
        else members.required_text("instructions", most=MAX_TOTAL_SIZE)
    )
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


def _arguments(members: Members) -> tuple[SkillArgument, ...]:
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
            members.malformed("arguments", "has two items of one name; the first is used")
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


def _files(members: Members) -> tuple[SkillFile, ...]:
    found: list[SkillFile] = []
    for item in members.objects("files", most=MAX_FILES):
        inner = members.inside(item)
        name, uri = inner.required_text("name", most=MAX_NAME), inner.required_text("uri", most=MAX_URI)
        if name is not None and uri is not None:
            title, description = inner.text("title"), inner.text("description")
            media_type, required = inner.text("mimeType", most=MAX_NAME), inner.flag("required")
            found.append(
                SkillFile(name, uri, title, description, media_type, required, inner.mapping("_meta"))
            )
    return tuple(found)


def _present(**members: object) -> JsonDict:
    """Return the members that are there."""
    return {name: value for name, value in members.items() if value is not None}
