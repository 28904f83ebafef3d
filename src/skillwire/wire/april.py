"""The `index-april` dialect: entries with a name, a type and a URI, under a `$schema`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, cast

from skillwire.core.characters import quoted
from skillwire.core.fields import MAX_DESCRIPTION, is_name
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidUriError
from skillwire.wire.core import JsonDict
from skillwire.wire.index import checked_digest, unknown_fields, url_finding
from skillwire.wire.template import Template

SCHEMA: Final = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
KNOWN_SCHEMAS: Final = frozenset({SCHEMA})

_NOTHING: Mapping[str, JsonValue] = {}
_FIELDS = frozenset({"name", "type", "description", "url", "urlTemplate", "digest"})


class AprilType(StrEnum):
    """What the `url` of an entry leads to."""

    SKILL_MD = "skill-md"
    ARCHIVE = "archive"
    TEMPLATE = "mcp-resource-template"


@dataclass(frozen=True, slots=True)
class AprilEntry:
    """One skill of the index, or a template for many.

    A template has no digest and mostly no name. `url` is spelled as the
    server spells it, and `extra` keeps fields the dialect does not define.
    """

    name: str | None
    type: AprilType
    description: str
    url: str
    digest: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)

    def to_json(self) -> JsonDict:
        """Return the entry as the index carries it."""
        return {
            **({} if self.name is None else {"name": self.name}),
            "type": self.type.value,
            "description": self.description,
            "url": self.url,
            **({} if self.digest is None else {"digest": self.digest}),
            **self.extra,
        }


def schema_findings(schema: object) -> list[Finding]:
    """Check an index's `$schema`: with a finding, the index is not to be used (DRAFT-01)."""
    if isinstance(schema, str) and schema in KNOWN_SCHEMAS:
        return []
    shown = quoted(schema) if isinstance(schema, str) else "none"
    return [_broken("index-schema-unknown", f"the index's `$schema` is {shown}, which is not known")]


def parse_april_entry(value: object) -> tuple[AprilEntry | None, list[Finding]]:
    """Read an entry of a stranger's index and say what is wrong with it.

    The entry is None when a finding is an error, or when its type is unknown,
    which is a warning: later types are to be expected (DRAFT-02). A field that
    is null counts as absent. An entry with `urlTemplate` is a template, as
    before April, whatever type it claims. Whether the name is the last segment
    of the path is for the reader to judge: the first drafts let them differ.
    """
    if not isinstance(value, dict):
        return None, [_broken("index-entry-invalid", "the entry is not a JSON object")]
    raw = cast(Mapping[str, object], value)
    type_, problem = _check_type(raw)
    if type_ is None:
        return None, [problem] if problem else []
    findings: list[Finding] = []
    url = _check_url(raw, type_, findings)
    name = _check_name(raw.get("name"), type_, findings)
    description = _check_description(raw.get("description"), findings)
    digest = _check_digest(raw.get("digest"), type_, url, findings)
    if findings:
        return None, findings
    return AprilEntry(name, type_, description, url, digest, unknown_fields(raw, _FIELDS)), []


def _check_type(raw: Mapping[str, object]) -> tuple[AprilType | None, Finding | None]:
    value = raw.get("type")
    if not isinstance(value, str):
        return None, _broken("index-entry-invalid", "the entry has no `type`")
    if value not in {known.value for known in AprilType}:
        return None, _broken("index-type-unknown", f"the type {quoted(value)} is unknown")
    if raw.get("urlTemplate") is not None:
        return AprilType.TEMPLATE, None
    return AprilType(value), None


def _check_url(raw: Mapping[str, object], type_: AprilType, findings: list[Finding]) -> str:
    url, template = raw.get("url"), raw.get("urlTemplate")
    if url is not None and template is not None:
        findings.append(_broken("index-template-invalid", "the entry has both `url` and `urlTemplate`"))
        return ""
    given = url if template is None else template
    if not isinstance(given, str):
        findings.append(_broken("index-entry-invalid", "the entry has no `url`"))
        return ""
    try:
        if type_ is AprilType.TEMPLATE:
            Template.parse(given)
        elif type_ is AprilType.SKILL_MD:
            SkillUri.parse(given)
        elif problem := url_finding(given):
            findings.append(problem)
    except InvalidUriError as error:
        code = "index-template-invalid" if type_ is AprilType.TEMPLATE else "uri-invalid"
        findings.append(_broken(code, str(error)))
    return given


def _check_name(value: object, type_: AprilType, findings: list[Finding]) -> str | None:
    if value is None and type_ is AprilType.TEMPLATE:
        return None
    if not isinstance(value, str):
        findings.append(_broken("name-missing", "the entry has no `name`"))
        return None
    if type_ is not AprilType.TEMPLATE and not is_name(value):
        findings.append(_broken("name-invalid", f"{quoted(value)} is not a skill's name"))
    return value


def _check_description(value: object, findings: list[Finding]) -> str:
    if not isinstance(value, str) or not value.strip():
        findings.append(_broken("description-missing", "the entry has no `description`"))
        return ""
    if len(value) > MAX_DESCRIPTION:
        message = f"the description has {len(value)} characters; at most {MAX_DESCRIPTION} are allowed"
        findings.append(_broken("description-too-long", message))
    return value


def _check_digest(value: object, type_: AprilType, url: str, findings: list[Finding]) -> str | None:
    if value is None:
        return None
    if type_ is AprilType.TEMPLATE:
        findings.append(_broken("index-digest-invalid", "a template has no bytes a `digest` could be of"))
        return None
    digest, problem = checked_digest(value, url)
    if problem is not None:
        findings.append(problem)
    return digest


def _broken(code: str, message: str) -> Finding:
    return Finding(code, message, file="")
