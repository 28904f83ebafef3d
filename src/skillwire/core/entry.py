"""`SkillEntry`: what is published about a skill, and the one check both halves share."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from skillwire.core.fields import published_findings
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, Manifest, ManifestFile, is_digest
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.core.yaml12 import MAX_DEPTH, JsonValue
from skillwire.errors import InvalidEntryError, InvalidUriError, LimitError

DYNAMIC: Literal["dynamic"] = "dynamic"
MAX_JSON_SIZE = 2**63 - 1

JsonObject: TypeAlias = dict[str, JsonValue]

_FIRST_SEGMENT = re.compile(r"[a-z0-9._-]+")
_NOTHING: Mapping[str, JsonValue] = {}
_ENTRY_FIELDS = frozenset({"uri", "frontmatter", "resources"})
_RESOURCE_FIELDS = frozenset({"uri", "digest", "size"})


@dataclass(frozen=True, slots=True)
class SkillEntry:
    """What is published about a skill: its URI, frontmatter and manifest.

    `manifest` is None for a skill whose content is made when it is read, so
    no digest can be promised; `dynamic_files` are then the URIs of the files its
    source knows of, which are no part of what is published. `extra` keeps fields
    of the wire this version does not know, so that a relay passes them on.
    """

    uri: SkillUri
    frontmatter: Frontmatter
    manifest: Manifest | None
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)
    dynamic_files: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.frontmatter.name

    @property
    def is_dynamic(self) -> bool:
        return self.manifest is None

    def check_limits(self) -> None:
        """Check both limits of the extension from the entry alone, before anything is fetched.

        Raises:
            LimitError: The skill has too many files, or they are too large together.
        """
        for finding in limit_findings(self.manifest):
            raise LimitError(finding.message, fix=finding.fix)

    def to_json(self) -> JsonObject:
        """Return the entry as `skills/list` and `skills/get` carry it."""
        resources: JsonValue = DYNAMIC
        if self.manifest is not None:
            resources = [
                {"uri": file.published, "digest": file.digest, "size": file.size, **(file.extra or {})}
                for file in self.manifest.files
            ]
        return {
            "uri": self.uri.published,
            "frontmatter": dict(self.frontmatter.fields),
            "resources": resources,
            **self.extra,
        }


def parse_entry(value: object) -> SkillEntry:
    """Read an entry a stranger published.

    Warnings do not matter here: an entry is either within the extension's
    rules or it is not used.

    Raises:
        InvalidEntryError: It breaks a rule; the message names each one.
    """
    entry, findings = check_entry(value)
    errors = [finding for finding in findings if finding.is_error]
    if entry is None or errors:
        raise InvalidEntryError("; ".join(finding.message for finding in errors))
    return entry


def check_entry(value: object) -> tuple[SkillEntry | None, list[Finding]]:
    """Read an entry and say everything that is wrong with it.

    The entry is None when it is too broken to be one. One finding of severity
    error is reason enough not to use it.
    """
    if not isinstance(value, dict):
        return None, [_broken("entry-invalid", "the entry is not a JSON object")]
    raw = cast(Mapping[str, object], value)
    uri, findings = _check_uri(raw.get("uri"))
    frontmatter, field_problems = _check_frontmatter(raw.get("frontmatter"))
    findings += field_problems
    if uri is None or frontmatter is None:
        return None, findings
    if uri.name != frontmatter.name:
        message = f"the path ends in {uri.name!r} but the name is {frontmatter.name!r}"
        findings.append(_broken("uri-name-mismatch", message))
    if raw.get("resources") == DYNAMIC:
        manifest = None
    else:
        manifest, resource_problems = _check_resources(uri, raw.get("resources"))
        findings += resource_problems
        if manifest is None:
            return None, findings
    return SkillEntry(uri, frontmatter, manifest, _unknown(raw, _ENTRY_FIELDS)), findings


def entry_findings(entry: SkillEntry) -> list[Finding]:
    """Check an entry of our own before it is published: fields, name, limits, first segment."""
    findings = published_findings(entry.frontmatter)
    if entry.uri.name != entry.frontmatter.name:
        message = f"the path ends in {entry.uri.name!r} but the name is {entry.frontmatter.name!r}"
        findings.append(_broken("uri-name-mismatch", message))
    return [*findings, *segment_findings(entry.uri), *limit_findings(entry.manifest)]


def segment_findings(uri: SkillUri) -> list[Finding]:
    """Check the first segment of a skill's path, which stands where other URIs have a host name."""
    first = uri.root.split("/")[2]
    if _FIRST_SEGMENT.fullmatch(first):
        return []
    message = f"the first path segment {first!r} is not a plain lowercase name"
    return [Finding("uri-first-segment", message, file="", fix="use a-z, 0-9, hyphens and dots")]


def limit_findings(manifest: Manifest | None) -> list[Finding]:
    """Check a manifest against both limits of the extension."""
    if manifest is None:
        return []
    return size_findings(len(manifest), manifest.total_size)


def size_findings(count: int, total: int) -> list[Finding]:
    """Check a number of files and their summed size against both limits."""
    findings: list[Finding] = []
    if count > MAX_FILES:
        message = f"the skill has {count} files; hosts need not accept more than {MAX_FILES}"
        findings.append(
            Finding("too-many-files", message, file="", fix="move or pack files that are not instructions")
        )
    if total > MAX_TOTAL_SIZE:
        message = (
            f"the skill's files add up to {total} bytes; hosts need not accept more than {MAX_TOTAL_SIZE}"
        )
        findings.append(Finding("too-large", message, file="", fix="keep large data outside the skill"))
    return findings


def _check_uri(value: object) -> tuple[SkillUri | None, list[Finding]]:
    if not isinstance(value, str):
        return None, [_broken("entry-invalid", "the entry has no `uri`")]
    try:
        return SkillUri.parse(value), []
    except InvalidUriError as error:
        return None, [_broken("uri-invalid", str(error))]


def _check_frontmatter(value: object) -> tuple[Frontmatter | None, list[Finding]]:
    if not isinstance(value, dict):
        return None, [_broken("entry-invalid", "the entry has no `frontmatter` object")]
    if _depth_exceeds(cast(JsonValue, value), MAX_DEPTH):
        return None, [_broken("yaml-too-deep", f"the frontmatter nests deeper than {MAX_DEPTH} levels")]
    frontmatter = Frontmatter(cast(Mapping[str, JsonValue], value))
    return frontmatter, published_findings(frontmatter)


def _check_resources(uri: SkillUri, value: object) -> tuple[Manifest | None, list[Finding]]:
    if not isinstance(value, list):
        return None, [_broken("resources-invalid", '`resources` is neither a list nor "dynamic"')]
    files: dict[str, ManifestFile] = {}
    inside = uri.root + "/"
    for item in cast(list[object], value):
        problem = _check_resource(item, inside, files)
        if problem is not None:
            return None, [problem]
    if uri.text not in files:
        return None, [_broken("resource-self-missing", f"`resources` does not list {uri.text}")]
    return Manifest.of(files.values()), []


def _check_resource(item: object, inside: str, files: dict[str, ManifestFile]) -> Finding | None:
    """Add one line of `resources` to `files`, keyed by canonical URI, or say what is wrong with it."""
    if not isinstance(item, dict):
        return _broken("resource-invalid", "a line of `resources` is not an object")
    line = cast(Mapping[str, object], item)
    uri, digest, size = line.get("uri"), line.get("digest"), line.get("size")
    if not isinstance(uri, str):
        return _broken("resource-invalid", "a line of `resources` has no `uri`")
    try:
        canonical = canonical_uri(uri)
    except InvalidUriError as error:
        return _broken("uri-invalid", str(error))
    if not canonical.startswith(inside):
        return _broken("resource-outside", f"{canonical} is outside the skill's directory")
    if canonical in files:
        return _broken("resource-invalid", f"{canonical} is listed twice")
    if not isinstance(digest, str) or not is_digest(digest):
        return _broken("resource-invalid", f"{canonical} has no well-formed sha256 digest")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_JSON_SIZE:
        return _broken("resource-invalid", f"{canonical} has no size in bytes")
    extra = _unknown(line, _RESOURCE_FIELDS) or None
    files[canonical] = ManifestFile(canonical, digest, size, spelling=uri, extra=extra)
    return None


def _unknown(raw: Mapping[str, object], known: frozenset[str]) -> Mapping[str, JsonValue]:
    """Return the fields of the wire this version does not know, so that a relay passes them on."""
    if raw.keys() <= known:
        return _NOTHING
    return {key: cast(JsonValue, item) for key, item in raw.items() if key not in known}


def _depth_exceeds(value: JsonValue, limit: int) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(limit):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


def _children(value: JsonValue) -> Iterable[JsonValue]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _broken(code: str, message: str) -> Finding:
    return Finding(code, message, file="")
