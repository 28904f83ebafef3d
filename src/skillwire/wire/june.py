"""The `index-june` dialect: entries with frontmatter, the digest of `SKILL.md`, and archives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from skillwire.core.entry import check_frontmatter, name_findings
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidUriError
from skillwire.wire.core import JsonDict
from skillwire.wire.index import checked_digest, unknown_fields, url_finding

_NOTHING: Mapping[str, JsonValue] = {}
_ENTRY_FIELDS = frozenset({"frontmatter", "url", "digest", "archives"})
_ARCHIVE_FIELDS = frozenset({"url", "mimeType", "digest"})


@dataclass(frozen=True, slots=True)
class JuneArchive:
    """One packed form of a whole skill: where it is, how it is packed, which bytes it promises."""

    url: str
    media_type: str
    digest: str
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)

    def to_json(self) -> JsonDict:
        return {"url": self.url, "mimeType": self.media_type, "digest": self.digest, **self.extra}


@dataclass(frozen=True, slots=True)
class JuneEntry:
    """One skill of the index: by the URI of its `SKILL.md`, in archives, or both.

    `url` is spelled as the server spells it. `extra` keeps fields the dialect
    does not define, among them our own `size` and `resources`, which mean what
    they mean in `core` (IDX-12).
    """

    frontmatter: Mapping[str, JsonValue]
    url: str | None
    digest: str | None
    archives: tuple[JuneArchive, ...] = ()
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)

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
    """Read an entry of a stranger's index and say what is wrong with it.

    The entry is None exactly when a finding is an error; one bad archive is
    reason enough. A field that is null counts as absent.
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
    """Check the URI of a `SKILL.md`; with no name, the frontmatter has been complained about already."""
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
    return None, _broken("index-digest-invalid", "the entry has a `digest` but no `url` it could be of")


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
