"""An approval as a file holds it: plain fields on the way out, every one of them checked on the way in."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias, cast

from skillwire.core.characters import quoted
from skillwire.core.entry import MAX_JSON_SIZE
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, Manifest, ManifestFile, is_digest
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.errors import InvalidUriError
from skillwire.host.approval.approvals import Approval, Grant
from skillwire.host.origin import Origin, OriginKind, SkillId

Row: TypeAlias = dict[str, object]

MAX_TEXT = 1000

_ID_FIELDS = frozenset({"label", "fingerprint", "uri"})
_FILE_FIELDS = frozenset({"uri", "digest"})
_SIZE = frozenset({"size"})
_COVERS = frozenset({"covers"})
_APPROVAL_FIELDS = _ID_FIELDS | {"grants", "approved_at", "approved_by", "files"}


def id_row(skill: SkillId) -> Row:
    return {"label": skill.origin.label, "fingerprint": skill.origin.fingerprint, "uri": skill.uri}


def site_row(skill: SkillId) -> Row:
    """Return what tells a web site's skill from a server's, in a lock, where most are servers'."""
    return {"kind": skill.origin.kind.value} if skill.origin.kind is OriginKind.SITE else {}


def file_rows(manifest: Manifest) -> list[Row]:
    return [file_row(file) for file in manifest.files]


def file_row(file: ManifestFile) -> Row:
    """Return one line of a manifest; a size nobody told is left out."""
    size: Row = {} if file.known_size is None else {"size": file.size}
    return {"uri": file.uri, "digest": file.digest, **size}


def coverage_row(manifest: Manifest) -> Row:
    """Return what the lines of a manifest promise, where that is not every file."""
    return {} if manifest.coverage is Coverage.FILES else {"covers": manifest.coverage.value}


def approval_row(approval: Approval) -> Row:
    """Return an approval's fields in the order they are written; grants and files are sorted."""
    return {
        **id_row(approval.skill),
        "grants": sorted(grant.value for grant in approval.grants),
        "approved_at": approval.granted_at.astimezone(UTC),
        "approved_by": approval.granted_by,
        **coverage_row(approval.manifest),
        "files": file_rows(approval.manifest),
    }


def parse_id(row: Row, kind: OriginKind = OriginKind.SERVER) -> SkillId:
    """Read whose skill a row is about.

    Raises:
        ValueError: A field is missing, or not what it should be.
    """
    uri = text(row, "uri", 16_384)
    if _canonical(uri) != uri or not uri.endswith("/SKILL.md"):
        raise ValueError(f"{quoted(uri)} is not the canonical URI of a skill")
    return SkillId(Origin(kind, text(row, "label"), text(row, "fingerprint")), uri)


def parse_approval(value: object, kind: OriginKind = OriginKind.SERVER) -> Approval:
    """Read an approval, and accept nothing that is more, less or other than one.

    Raises:
        ValueError: It is not exactly an approval; the message says what is wrong.
    """
    row = fields(value, _APPROVAL_FIELDS, _COVERS)
    skill = parse_id(row, kind)
    when = row["approved_at"]
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise ValueError("`approved_at` is not a time with an offset")
    return Approval(
        skill,
        parse_files(row["files"], skill.uri, parse_coverage(row)),
        parse_grants(row["grants"]),
        when.astimezone(UTC),
        text(row, "approved_by", least=0),
    )


def parse_coverage(row: Row) -> Coverage:
    """Read what the lines of a manifest promise.

    Raises:
        ValueError: It is none of the words for it, or the one that is never written.
    """
    covers = row.get("covers")
    if covers is None:
        return Coverage.FILES
    if covers not in (Coverage.SKILL_FILE, Coverage.ARCHIVE):
        raise ValueError("`covers` is neither skill-file nor archive")
    return Coverage(cast(str, covers))


def parse_files(value: object, uri: str, coverage: Coverage = Coverage.FILES) -> Manifest:
    """Read the manifest of the skill at `uri`.

    Raises:
        ValueError: A line is broken, outside the skill or there twice, or `SKILL.md` is missing.
    """
    inside = SkillUri(uri).root + "/"
    found: dict[str, ManifestFile] = {}
    for item in items(value, "files"):
        row = fields(item, _FILE_FIELDS, _SIZE)
        name, digest, size = text(row, "uri", 16_384), row["digest"], row.get("size", UNKNOWN_SIZE)
        if coverage is not Coverage.ARCHIVE and (_canonical(name) != name or not name.startswith(inside)):
            raise ValueError(f"{quoted(name)} is not the canonical URI of a file in the skill")
        if name in found:
            raise ValueError(f"{quoted(name)} is listed twice")
        if not isinstance(digest, str) or not is_digest(digest):
            raise ValueError(f"{quoted(name)} has no well-formed sha256 digest")
        if not isinstance(size, int) or isinstance(size, bool) or size > MAX_JSON_SIZE:
            raise ValueError(f"{quoted(name)} has no size in bytes")
        if size < 0 and "size" in row:
            raise ValueError(f"{quoted(name)} has no size in bytes")
        found[name] = ManifestFile(name, digest, size)
    # An archive may come with the line of the SKILL.md that must be in it.
    most = 2 if coverage is Coverage.ARCHIVE and uri in found else 1
    if coverage is not Coverage.FILES and not 1 <= len(found) <= most:
        raise ValueError(f"`files` has {len(found)} lines where one covers all")
    if coverage is not Coverage.ARCHIVE and uri not in found:
        raise ValueError(f"`files` does not list {quoted(uri)}")
    return Manifest.of(found.values(), coverage)


def parse_grants(value: object) -> frozenset[Grant]:
    names = items(value, "grants")
    known = {grant.value: grant for grant in Grant}
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"{quoted(str(name))} is no grant; there are {', '.join(sorted(known))}")
    if len(set(names)) != len(names):
        raise ValueError("`grants` names one twice")
    return frozenset(known[cast(str, name)] for name in names)


def fields(value: object, names: frozenset[str], optional: frozenset[str] = frozenset()) -> Row:
    """Return a mapping that has exactly these fields, and may have the optional ones."""
    if not isinstance(value, Mapping):
        raise ValueError("it is not a table of fields")
    row = cast(Row, value)
    missing, unknown = names - row.keys(), row.keys() - names - optional
    if missing:
        raise ValueError(f"it has no `{min(missing)}`")
    if unknown:
        raise ValueError(f"it has the unknown field {quoted(min(unknown))}")
    return row


def items(value: object, name: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    return cast(list[object], value)


def text(row: Row, name: str, most: int = MAX_TEXT, *, least: int = 1) -> str:
    value = row[name]
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise ValueError(f"`{name}` is not a text of {least} to {most} characters")
    return value


def _canonical(uri: str) -> str:
    try:
        return canonical_uri(uri)
    except InvalidUriError as error:
        raise ValueError(str(error)) from error
