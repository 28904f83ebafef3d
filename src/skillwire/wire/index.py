"""The resource `skill://index.json`: the listing of the June and the April dialect.

The index does not name its dialect; its entries show it (NEG-13).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, cast, runtime_checkable

from skillwire.core import (
    MAX_DESCRIPTION,
    MAX_URI_LENGTH,
    NO_FIELDS,
    Dialect,
    Finding,
    InvalidUriError,
    JsonDict,
    JsonValue,
    SkillUri,
    canonical_uri,
    check_frontmatter,
    is_digest,
    is_name,
    name_findings,
    quoted,
    unknown_fields,
)

INDEX_URI: Final = "skill://index.json"
INDEX_MEDIA_TYPE: Final = "application/json"


def index_shape(value: object) -> Dialect | None:
    """Return the dialect of an index, or None when it is unknown.

    The first entry that is specific to a dialect decides: a listing may mix
    both, and each entry is checked on its own later.
    """
    if not isinstance(value, dict):
        return None
    index = cast(Mapping[str, object], value)
    skills = index.get("skills")
    if not isinstance(skills, list):
        return None
    entries = [
        cast(Mapping[str, object], item) for item in cast(list[object], skills) if isinstance(item, dict)
    ]
    if any("frontmatter" in entry for entry in entries):
        return Dialect.INDEX_JUNE
    if "$schema" not in index:
        return None if skills else Dialect.INDEX_JUNE
    if not skills or any("type" in entry for entry in entries):
        return Dialect.INDEX_APRIL
    return None


def url_finding(url: str) -> Finding | None:
    """Return a finding when the URI of something other than a `SKILL.md` is invalid."""
    try:
        canonical_uri(url)
    except InvalidUriError as error:
        return Finding("uri-invalid", str(error), file="")
    return None


def checked_digest(value: object, url: str) -> tuple[str | None, Finding | None]:
    """Return a digest, or a finding when the one of `url` is malformed."""
    if isinstance(value, str) and is_digest(value):
        return value, None
    return None, Finding("index-digest-invalid", f"{quoted(url)} has no well-formed sha256 digest", file="")


# The `index-june` dialect: entries with frontmatter, the digest of `SKILL.md`, and archives.


_ENTRY_FIELDS = frozenset({"frontmatter", "url", "digest", "archives"})
_ARCHIVE_FIELDS = frozenset({"url", "mimeType", "digest"})


@dataclass(frozen=True, slots=True)
class JuneArchive:
    """One archive of a whole skill: its URL, media type and digest."""

    url: str
    media_type: str
    digest: str
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

    def to_json(self) -> JsonDict:
        return {"url": self.url, "mimeType": self.media_type, "digest": self.digest, **self.extra}


@dataclass(frozen=True, slots=True)
class JuneEntry:
    """One skill of the index: by the URI of its `SKILL.md`, in archives, or both.

    `url` is the server's own spelling. `extra` keeps fields the dialect does
    not define, among them our own `size` and `resources`, which mean the same
    as in `core` (IDX-12).
    """

    frontmatter: Mapping[str, JsonValue]
    url: str | None
    digest: str | None
    archives: tuple[JuneArchive, ...] = ()
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

    def to_json(self) -> JsonDict:
        """Return the entry as the index carries it."""
        return {
            **({} if self.url is None else {"url": self.url}),
            **({} if self.digest is None else {"digest": self.digest}),
            "frontmatter": dict(self.frontmatter),
            **({"archives": [archive.to_json() for archive in self.archives]} if self.archives else {}),
            **self.extra,
        }


def parse_june_entry(value: object) -> tuple[JuneEntry | None, list[Finding]]:
    """Parse an untrusted index entry and return it with all findings about it.

    The entry is None exactly when a finding is an error; one invalid archive
    is enough. A field that is null counts as absent.
    """
    if not isinstance(value, dict):
        return None, [_broken("index-entry-invalid", "the entry is not a JSON object")]
    raw = cast(Mapping[str, object], value)
    frontmatter, findings = check_frontmatter(raw.get("frontmatter"))
    url, url_problems = _check_url(raw.get("url"), "" if frontmatter is None else frontmatter.name)
    digest, digest_problem = _check_digest(raw.get("digest"), url)
    archives, archive_problem = _check_archives(raw.get("archives"))
    findings += [*url_problems, *(problem for problem in (digest_problem, archive_problem) if problem)]
    if raw.get("url") is None and archive_problem is None and not archives:
        findings.append(_broken("index-entry-invalid", "the entry has neither `url` nor `archives`"))
    if frontmatter is None or any(finding.is_error for finding in findings):
        return None, findings
    extra = unknown_fields(raw, _ENTRY_FIELDS)
    return JuneEntry(frontmatter.fields, url, digest, archives, extra), findings


def _check_url(value: object, name: str) -> tuple[str | None, list[Finding]]:
    """Check the URI of a `SKILL.md`; without a name, the frontmatter already has a finding."""
    if value is None:
        return None, []
    if not isinstance(value, str):
        return None, [_broken("index-entry-invalid", "`url` is not a string")]
    try:
        uri = SkillUri.parse(value)
    except InvalidUriError as error:
        return value, [_broken("uri-invalid", str(error))]
    return value, name_findings(uri, name) if name else []


def _check_digest(value: object, url: str | None) -> tuple[str | None, Finding | None]:
    if url is not None:
        return checked_digest(value, url)
    if value is None:
        return None, None
    return None, _broken("index-digest-invalid", "the entry has a `digest` but no `url`")


def _check_archives(value: object) -> tuple[tuple[JuneArchive, ...], Finding | None]:
    if value is None:
        return (), None
    if not isinstance(value, list):
        return (), _broken("index-archive-invalid", "`archives` is not a list")
    archives: list[JuneArchive] = []
    for item in cast(list[object], value):
        archive, problem = _check_archive(item)
        if archive is None:
            return (), problem
        archives.append(archive)
    return tuple(archives), None


def _check_archive(item: object) -> tuple[JuneArchive | None, Finding | None]:
    if not isinstance(item, dict):
        return None, _broken("index-archive-invalid", "an archive is not an object")
    raw = cast(Mapping[str, object], item)
    url, media_type = raw.get("url"), raw.get("mimeType")
    if not isinstance(url, str):
        return None, _broken("index-archive-invalid", "an archive has no `url`")
    problem = url_finding(url)
    if problem is not None:
        return None, problem
    if not isinstance(media_type, str) or not media_type:
        return None, _broken("index-archive-invalid", "an archive has no `mimeType`")
    digest, problem = checked_digest(raw.get("digest"), url)
    if digest is None:
        return None, problem
    return JuneArchive(url, media_type, digest, unknown_fields(raw, _ARCHIVE_FIELDS)), None


def _broken(code: str, message: str) -> Finding:
    return Finding(code, message, file="")


# URI templates (RFC 6570) for skills that are too many to list.


MAX_VARIABLES = 16

_EXPRESSION = re.compile(r"\{([+/]?)([A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*)\}")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SAMPLE = "x"


@dataclass(frozen=True, slots=True)
class Template:
    """A template whose every expansion is the URI of a `SKILL.md`."""

    text: str
    variables: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Parse a template.

        Raises:
            InvalidUriError: It uses an unknown expression, has no variable or
                too many, or expands to something that is not a skill's URI.
        """
        if len(text) > MAX_URI_LENGTH:
            raise InvalidUriError(f"the template {quoted(text)} is longer than {MAX_URI_LENGTH} characters")
        names = tuple(match[2] for match in _EXPRESSION.finditer(text))
        rest = _EXPRESSION.sub("", text)
        if "{" in rest or "}" in rest:
            raise InvalidUriError(f"the template {quoted(text)} has an unknown expression")
        if not names:
            raise InvalidUriError(f"the template {quoted(text)} has no variable")
        if len(names) > MAX_VARIABLES or len(set(names)) != len(names):
            raise InvalidUriError(
                f"the template {quoted(text)} repeats a variable, or has more than {MAX_VARIABLES}"
            )
        template = cls(text, names)
        template.expand(dict.fromkeys(names, _SAMPLE))
        return template

    def expand(self, values: Mapping[str, str]) -> SkillUri:
        """Return the URI of the skill for these values.

        Raises:
            InvalidUriError: A value is missing, or contains segments the
                expression does not allow.
        """

        def filled(match: re.Match[str]) -> str:
            operator, name = match[1], match[2]
            value = values.get(name)
            if not value:
                raise InvalidUriError(f"the template {quoted(self.text)} needs a value for {quoted(name)}")
            if operator == "+":
                return "/".join(map(_escaped, value.split("/")))
            return operator + _escaped(value)

        return SkillUri.parse(_EXPRESSION.sub(filled, self.text))


def _escaped(value: str) -> str:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise InvalidUriError(f"the value {quoted(value)} is not valid Unicode text") from None
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in data)


# The `index-april` dialect: entries with a name, a type and a URI, under a `$schema`.


SCHEMA: Final = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
KNOWN_SCHEMAS: Final = frozenset({SCHEMA})
_FIELDS = frozenset({"name", "type", "description", "url", "urlTemplate", "digest"})


class AprilType(StrEnum):
    """The kind of resource at the `url` of an entry."""

    SKILL_MD = "skill-md"
    ARCHIVE = "archive"
    TEMPLATE = "mcp-resource-template"


@dataclass(frozen=True, slots=True)
class AprilEntry:
    """One skill of the index, or a template for many.

    A template has no digest and usually no name. `url` is the server's own
    spelling, and `extra` keeps fields the dialect does not define.
    """

    name: str | None
    type: AprilType
    description: str
    url: str
    digest: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

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
    """Check an index's `$schema`: with a finding, the index must not be used (DRAFT-01)."""
    if isinstance(schema, str) and schema in KNOWN_SCHEMAS:
        return []
    shown = quoted(schema) if isinstance(schema, str) else "none"
    return [_broken("index-schema-unknown", f"the index's `$schema` is {shown}, which is unknown")]


def parse_april_entry(value: object) -> tuple[AprilEntry | None, list[Finding]]:
    """Parse an untrusted index entry and return it with all findings about it.

    The entry is None when a finding is an error, or when its type is unknown,
    which is a warning: later types are to be expected (DRAFT-02). A field that
    is null counts as absent. An entry with `urlTemplate` is a template, as
    before April, whatever its type. Whether the name is the last segment of
    the path is not checked here: the first drafts allowed them to differ.
    """
    if not isinstance(value, dict):
        return None, [_broken("index-entry-invalid", "the entry is not a JSON object")]
    raw = cast(Mapping[str, object], value)
    type_, problem = _check_type(raw)
    if type_ is None:
        return None, [problem] if problem else []
    findings: list[Finding] = []
    url = _check_april_url(raw, type_, findings)
    name = _check_name(raw.get("name"), type_, findings)
    description = _check_description(raw.get("description"), findings)
    digest = _check_april_digest(raw.get("digest"), type_, url, findings)
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


def _check_april_url(raw: Mapping[str, object], type_: AprilType, findings: list[Finding]) -> str:
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


def _check_april_digest(value: object, type_: AprilType, url: str, findings: list[Finding]) -> str | None:
    if value is None:
        return None
    if type_ is AprilType.TEMPLATE:
        findings.append(_broken("index-digest-invalid", "a template must not have a `digest`"))
        return None
    digest, problem = checked_digest(value, url)
    if problem is not None:
        findings.append(problem)
    return digest


# The protocol of sources that serve more skills than they list.


@dataclass(frozen=True, slots=True)
class SkillTemplate:
    """A URI template for many skills, with a description of its variables."""

    name: str
    template: Template
    description: str


@runtime_checkable
class TemplatedSource(Protocol):
    """A source with URI templates for skills that it does not list."""

    def skill_templates(self) -> Sequence[SkillTemplate]:
        """Return the templates, which never change, without blocking."""
        ...

    async def complete_template(self, template: str, variable: str, typed: str) -> Sequence[str]:
        """Return values of a variable that start with `typed`, the best first; a few dozen are enough."""
        ...
