"""The `well-known` dialect: the index of skills that a web site publishes.

Three forms of the index exist. We write the one of 2026-03-12, version 0.2.0,
and read all three, which are recognised by their structure (CONF-22). A digest
in an index is of one artifact: a `SKILL.md`, or an archive of the whole skill.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias, cast
from urllib.parse import quote, urldefrag, urljoin

from skillwire.core import (
    MAX_DESCRIPTION,
    MAX_FILES,
    MAX_URI_LENGTH,
    NO_FIELDS,
    SKILL_FILE,
    Finding,
    JsonValue,
    encode,
    is_digest,
    is_name,
    path_findings,
    quoted,
    unknown_fields,
)

SCHEMA: Final = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
KNOWN_SCHEMAS: Final = frozenset({SCHEMA})
INDEX_MEDIA_TYPE: Final = "application/json"
MAX_ENTRIES: Final = 100_000

JsonObject: TypeAlias = dict[str, JsonValue]

_INTERIM_VERSION = "0.2.0"
# Characters a URL never contains unescaped: spaces, controls, quotes, backslashes, anything beyond ASCII.
_UNUSABLE_IN_URL = re.compile(r"[^\x21-\x7e]|[\\\"<>^`{|}]")
_INTERIM_PATH = re.compile(r"[\x20-\x7e]+")
_NOT_IN_INTERIM_PATH = frozenset("\\?#[]")


class SiteForm(StrEnum):
    """A form of the index."""

    V0_2_0 = "0.2.0"
    """One artifact and one digest for each skill."""
    V0_1_0 = "0.1.0"
    """The names of each skill's files, without digests: nothing can be verified."""
    INTERIM = "0.2.0-interim"
    """A digest for every file: a draft before 0.2.0. Read, never written."""


class ArtifactType(StrEnum):
    """The kind of artifact at an entry's `url`."""

    SKILL_MD = "skill-md"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A file of a skill in the two older forms; 0.1.0 has no digests."""

    path: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class SitePackage:
    """The archive that an entry of the interim form may have in addition to its files."""

    url: str
    digest: str
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

    def to_json(self) -> JsonObject:
        return {"url": self.url, "digest": self.digest, **self.extra}


@dataclass(frozen=True, slots=True)
class SiteEntry:
    """A skill of a site in the form 0.2.0: one artifact, at a URL relative to the index.

    `extra` keeps fields that this version does not know.
    """

    name: str
    type: ArtifactType
    description: str
    url: str
    digest: str
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "type": self.type.value,
            "description": self.description,
            "url": self.url,
            "digest": self.digest,
            **self.extra,
        }


@dataclass(frozen=True, slots=True)
class FilesEntry:
    """A skill of a site in an older form: its files, each below a folder of the skill's name.

    In the interim form `digest` is over all of them, and there may be a `package`.
    """

    name: str
    description: str
    files: tuple[SiteFile, ...]
    digest: str = ""
    package: SitePackage | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)

    def to_json(self) -> JsonObject:
        files: list[JsonValue] = [
            {"path": file.path, "digest": file.digest} if file.digest else file.path for file in self.files
        ]
        return {
            "name": self.name,
            "description": self.description,
            **({"digest": self.digest} if self.digest else {}),
            "files": files,
            **({"package": self.package.to_json()} if self.package is not None else {}),
            **self.extra,
        }


AnyEntry: TypeAlias = SiteEntry | FilesEntry


@dataclass(frozen=True, slots=True)
class Site:
    """A parsed index: its form, None when that is unknown, and its valid entries."""

    form: SiteForm | None
    entries: tuple[AnyEntry, ...] = ()

    def to_json(self) -> JsonObject:
        skills: list[JsonValue] = [entry.to_json() for entry in self.entries]
        match self.form:
            case SiteForm.V0_1_0:
                return {"skills": skills}
            case SiteForm.INTERIM:
                return {"version": _INTERIM_VERSION, "skills": skills}
            case _:
                return {"$schema": SCHEMA, "skills": skills}


def write_index(entries: Iterable[SiteEntry]) -> bytes:
    """Write an index in the form 0.2.0, the only one we publish."""
    return encode(Site(SiteForm.V0_2_0, tuple(entries)).to_json())


def parse_site(value: object) -> tuple[Site, list[Finding]]:
    """Parse an untrusted index of any form and return it with all findings about it.

    Invalid entries are left out. Names are the keys of this dialect: entries
    that share one are all left out, because their order has no meaning. An
    index of an unknown form has no entries (DISC-03), and neither has anything
    else that is not an index.
    """
    if not isinstance(value, dict):
        return Site(None), [_finding("site-invalid", "the index is not a JSON object")]
    raw = cast("Mapping[str, object]", value)
    form, findings = _form_of(raw)
    skills = raw.get("skills")
    if form is None:
        return Site(None), findings
    if not isinstance(skills, list):
        return Site(form), [*findings, _finding("site-invalid", "the index has no list `skills`")]
    values = cast("list[object]", skills)
    if len(values) > MAX_ENTRIES:
        message = f"the index has {len(values)} entries; at most {MAX_ENTRIES} are read"
        return Site(form), [*findings, _finding("site-invalid", message)]
    entries: list[AnyEntry] = []
    for position, item in enumerate(values):
        try:
            entries.append(_entry_of(item, form))
        except _UnknownTypeError as unknown:
            findings.append(_finding("site-type-unknown", f"entry {position} {unknown}"))
        except _EntryError as fault:
            findings.append(_finding("site-entry-invalid", f"entry {position} {fault}"))
    entries, duplicates = _without_duplicates(entries)
    return Site(form, tuple(entries)), [*findings, *duplicates]


def artifact_url(index_url: str, reference: str) -> str:
    """Resolve an entry's URL against that of its index (RFC 3986, section 5; DISC-04)."""
    return urldefrag(urljoin(index_url, reference)).url


def file_url(index_url: str, name: str, path: str) -> str:
    """Return the URL of a skill's file in the two older forms."""
    return urljoin(index_url, quote(f"{name}/{path}", safe="/"))


def files_digest(files: Iterable[SiteFile]) -> str:
    """Return the digest of a whole skill in the interim form: over its files' paths and digests (DISC-12)."""
    lines = sorted(f"{file.path}\0{file.digest.removeprefix('sha256:')}\n".encode() for file in files)
    return "sha256:" + hashlib.sha256(b"".join(lines)).hexdigest()


class _EntryError(Exception):
    """An entry is not used; the message is a predicate, such as `has no name`."""


class _UnknownTypeError(_EntryError):
    """The entry is otherwise valid, but its type is unknown."""


def _form_of(raw: Mapping[str, object]) -> tuple[SiteForm | None, list[Finding]]:
    if "$schema" in raw:
        schema = raw["$schema"]
        if isinstance(schema, str) and schema in KNOWN_SCHEMAS:
            return SiteForm.V0_2_0, []
        shown = quoted(schema) if isinstance(schema, str) else "not a string"
        return None, [_finding("site-form-unknown", f"the index's `$schema` is {shown}, which is unknown")]
    if "version" in raw:
        version = raw["version"]
        if version == _INTERIM_VERSION:
            return SiteForm.INTERIM, []
        shown = quoted(version) if isinstance(version, str) else "not a string"
        return None, [_finding("site-form-unknown", f"the index's `version` is {shown}, which is unknown")]
    message = "the index is of form 0.1.0, which has no digests: nothing can be verified"
    return SiteForm.V0_1_0, [_finding("site-unverifiable", message)]


def _entry_of(value: object, form: SiteForm) -> AnyEntry:
    if not isinstance(value, dict):
        raise _EntryError("is not a JSON object")
    raw = cast("Mapping[str, object]", value)
    name = raw.get("name")
    if not isinstance(name, str):
        raise _EntryError("has no `name`")
    if not is_name(name):
        raise _EntryError(f"has the invalid name {quoted(name)}")
    try:
        description = _description_of(raw)
        match form:
            case SiteForm.V0_2_0:
                return _artifact_entry(name, description, raw)
            case SiteForm.V0_1_0:
                files = _files_of(raw.get("files"), with_digests=False)
                extra = unknown_fields(raw, ("name", "description", "files"))
                return FilesEntry(name, description, files, extra=extra)
            case SiteForm.INTERIM:
                return _interim_entry(name, description, raw)
    except _EntryError as fault:
        raise type(fault)(f"({quoted(name)}) {fault}") from None


def _artifact_entry(name: str, description: str, raw: Mapping[str, object]) -> SiteEntry:
    kind = raw.get("type")
    if not isinstance(kind, str):
        raise _EntryError("has no `type`")
    url, digest = _url_of(raw), _digest_of(raw)
    try:
        type = ArtifactType(kind)
    except ValueError:
        raise _UnknownTypeError(f"has the unknown type {quoted(kind)}") from None
    extra = unknown_fields(raw, ("name", "type", "description", "url", "digest"))
    return SiteEntry(name, type, description, url, digest, extra)


def _interim_entry(name: str, description: str, raw: Mapping[str, object]) -> FilesEntry:
    digest = _digest_of(raw)
    files = _files_of(raw.get("files"), with_digests=True)
    if files_digest(files) != digest:
        raise _EntryError("has a digest that does not match its files")
    package: SitePackage | None = None
    if (value := raw.get("package")) is not None:
        if not isinstance(value, dict):
            raise _EntryError("has a `package` that is not a JSON object")
        parts = cast("Mapping[str, object]", value)
        package = SitePackage(_url_of(parts), _digest_of(parts), unknown_fields(parts, ("url", "digest")))
    extra = unknown_fields(raw, ("name", "description", "digest", "files", "package"))
    return FilesEntry(name, description, files, digest, package, extra)


def _description_of(raw: Mapping[str, object]) -> str:
    description = raw.get("description")
    if not isinstance(description, str) or not description.strip():
        raise _EntryError("has no `description`")
    if len(description) > MAX_DESCRIPTION:
        raise _EntryError(f"has a description of more than {MAX_DESCRIPTION} characters")
    return description


def _url_of(raw: Mapping[str, object]) -> str:
    url = raw.get("url")
    if not isinstance(url, str) or not url:
        raise _EntryError("has no `url`")
    if len(url) > MAX_URI_LENGTH or _UNUSABLE_IN_URL.search(url):
        raise _EntryError(f"has the malformed URL {quoted(url)}")
    return url


def _digest_of(raw: Mapping[str, object]) -> str:
    digest = raw.get("digest")
    if not isinstance(digest, str) or not is_digest(digest):
        raise _EntryError("has no `digest` of `sha256:` and 64 lowercase hexadecimal digits")
    return digest


def _files_of(value: object, *, with_digests: bool) -> tuple[SiteFile, ...]:
    """Parse the files of an entry; other fields than path and digest are dropped."""
    if not isinstance(value, list):
        raise _EntryError("has no list `files`")
    values = cast("list[object]", value)
    if len(values) > MAX_FILES:
        raise _EntryError(f"has {len(values)} files; at most {MAX_FILES} are allowed")
    files = [_interim_file(item) if with_digests else _plain_file(item) for item in values]
    paths = [file.path for file in files]
    if len(set(paths)) < len(paths):
        raise _EntryError("lists a file twice")
    for finding in path_findings(paths):
        if finding.is_error:
            raise _EntryError(f"has the file {quoted(finding.file)}: {finding.message}")
    if SKILL_FILE not in paths:
        raise _EntryError(f"does not list `{SKILL_FILE}`")
    return tuple(files)


def _plain_file(value: object) -> SiteFile:
    if not isinstance(value, str):
        raise _EntryError("lists a file that is not a path")
    return SiteFile(value)


def _interim_file(value: object) -> SiteFile:
    if not isinstance(value, dict):
        raise _EntryError("lists a file that is not a JSON object")
    raw = cast("Mapping[str, object]", value)
    path = raw.get("path")
    if not isinstance(path, str):
        raise _EntryError("lists a file without a `path`")
    if not _INTERIM_PATH.fullmatch(path) or not _NOT_IN_INTERIM_PATH.isdisjoint(path):
        raise _EntryError(f"has the file {quoted(path)}, whose name has characters that are not allowed")
    return SiteFile(path, _digest_of(raw))


def _without_duplicates(entries: list[AnyEntry]) -> tuple[list[AnyEntry], list[Finding]]:
    shared = {name: count for name, count in Counter(entry.name for entry in entries).items() if count > 1}
    return [entry for entry in entries if entry.name not in shared], [
        _finding("site-entry-invalid", f"{count} entries share the name {quoted(name)}; none of them is used")
        for name, count in shared.items()
    ]


def _finding(code: str, message: str) -> Finding:
    return Finding(code, message, file="")
