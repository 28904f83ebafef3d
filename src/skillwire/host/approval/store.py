"""The approvals granted on this machine, in a sealed file that processes share safely."""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, cast

from skillwire.core import (
    MAX_JSON_SIZE,
    UNKNOWN_SIZE,
    Coverage,
    InvalidUriError,
    LimitError,
    Manifest,
    ManifestFile,
    SkillEntry,
    SkillUri,
    SourceError,
    canonical_uri,
    is_digest,
    quoted,
)
from skillwire.host.model import Approval, Grant, Origin, OriginKind, Refusal, SkillId, binding_of
from skillwire.host.state.vault import Row, SealedFolder, SealedTable, Stamp, fields, items, text

# The stored form of an approval: written as plain fields, parsed strictly.


_ID_FIELDS = frozenset({"label", "fingerprint", "uri"})
_FILE_FIELDS = frozenset({"uri", "digest"})
_SIZE = frozenset({"size"})
_COVERS = frozenset({"covers"})
_APPROVAL_FIELDS = _ID_FIELDS | {"grants", "approved_at", "approved_by", "files"}


def id_row(skill: SkillId) -> Row:
    return {"label": skill.origin.label, "fingerprint": skill.origin.fingerprint, "uri": skill.uri}


def site_row(skill: SkillId) -> Row:
    """Return the `kind` field of a web site's skill; in a lock, none means a server's."""
    return {"kind": skill.origin.kind.value} if skill.origin.kind is OriginKind.SITE else {}


def file_rows(manifest: Manifest) -> list[Row]:
    return [file_row(file) for file in manifest.files]


def file_row(file: ManifestFile) -> Row:
    """Return one line of a manifest; an unknown size is left out."""
    size: Row = {} if file.known_size is None else {"size": file.size}
    return {"uri": file.uri, "digest": file.digest, **size}


def coverage_row(manifest: Manifest) -> Row:
    """Return the `covers` field of a manifest that does not list every file."""
    return {} if manifest.coverage is Coverage.FILES else {"covers": manifest.coverage.value}


def approval_row(approval: Approval) -> Row:
    """Return the fields of an approval in the order they are written; grants and files are sorted."""
    return {
        **id_row(approval.skill),
        "grants": sorted(grant.value for grant in approval.grants),
        "approved_at": approval.granted_at.astimezone(UTC),
        "approved_by": approval.granted_by,
        **coverage_row(approval.manifest),
        "files": file_rows(approval.manifest),
    }


def parse_id(row: Row, kind: OriginKind = OriginKind.SERVER) -> SkillId:
    """Parse the origin and URI of a row.

    Raises:
        ValueError: A field is missing or invalid.
    """
    uri = text(row, "uri", 16_384)
    if _canonical(uri) != uri or not uri.endswith("/SKILL.md"):
        raise ValueError(f"{quoted(uri)} is not the canonical URI of a skill")
    return SkillId(Origin(kind, text(row, "label"), text(row, "fingerprint")), uri)


def parse_approval(value: object, kind: OriginKind = OriginKind.SERVER) -> Approval:
    """Parse an approval strictly: missing, unknown and invalid fields are errors.

    Raises:
        ValueError: It is not a valid approval; the message says why.
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
    """Parse the coverage of a manifest.

    Raises:
        ValueError: It is unknown, or the default, which is never written.
    """
    covers = row.get("covers")
    if covers is None:
        return Coverage.FILES
    if covers not in (Coverage.SKILL_FILE, Coverage.ARCHIVE):
        raise ValueError("`covers` is neither skill-file nor archive")
    return Coverage(cast(str, covers))


def parse_files(value: object, uri: str, coverage: Coverage = Coverage.FILES) -> Manifest:
    """Parse the manifest of the skill at `uri`.

    Raises:
        ValueError: A line is invalid, outside the skill or listed twice, or `SKILL.md` is missing.
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
    # An archive may be listed together with the SKILL.md that it must contain.
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
            raise ValueError(f"{quoted(str(name))} is not a grant; use one of {', '.join(sorted(known))}")
    if len(set(names)) != len(names):
        raise ValueError("`grants` has a duplicate")
    return frozenset(known[cast(str, name)] for name in names)


def _canonical(uri: str) -> str:
    try:
        return canonical_uri(uri)
    except InvalidUriError as error:
        raise ValueError(str(error)) from error


# Stored approvals: those that hold, and the content of those that ended.


VERSION = 1

_DOCUMENT = frozenset({"version", "approvals", "previous"})
_PREVIOUS = frozenset({"label", "fingerprint", "uri", "files", "approved_at"})


@dataclass(frozen=True, slots=True)
class EndedApproval:
    """What an approval was for, and when it was given; None where that was not stored."""

    manifest: Manifest
    granted_at: datetime | None


@dataclass(frozen=True, slots=True)
class ApprovalRecords:
    """All stored decisions; immutable, so each change returns a new value.

    `previous` holds what approvals were for that a change ended. It is used
    only to show what changed.
    """

    approvals: Mapping[SkillId, Approval] = field(default_factory=dict[SkillId, Approval])
    previous: Mapping[SkillId, EndedApproval] = field(default_factory=dict[SkillId, EndedApproval])

    def with_approval(self, approval: Approval) -> "ApprovalRecords":
        """Add an approval: merge its grants for the same content, or replace one for other content."""
        skill = approval.skill
        before = self.approvals.get(skill)
        if before is not None and binding_of(before.manifest) == binding_of(approval.manifest):
            approval = replace(approval, grants=approval.grants | before.grants)
        return ApprovalRecords(
            {**self.approvals, skill: approval},
            {known: ended for known, ended in self.previous.items() if known != skill},
        )

    def without_skill(self, skill: SkillId) -> "ApprovalRecords":
        """Forget what the user agreed to for one skill."""
        return ApprovalRecords(
            {known: approval for known, approval in self.approvals.items() if known != skill},
            {known: ended for known, ended in self.previous.items() if known != skill},
        )

    def after_observing(self, skill: SkillId, entry: SkillEntry) -> "ApprovalRecords":
        """End the approval of a skill that has changed, and keep its content as `previous`."""
        before = self.approvals.get(skill)
        if before is None or not before.is_ended_by(entry):
            return self
        left = self.without_skill(skill)
        ended = EndedApproval(before.manifest, before.granted_at)
        return replace(left, previous={**left.previous, skill: ended})

    def without_server(self, label: str) -> "ApprovalRecords":
        """Forget everything about a server, for all endpoints its label ever had."""
        return ApprovalRecords(
            {skill: approval for skill, approval in self.approvals.items() if not _is_from(skill, label)},
            {skill: ended for skill, ended in self.previous.items() if not _is_from(skill, label)},
        )

    def to_bytes(self) -> bytes:
        """Return the records as JSON; the same decisions give the same bytes."""
        document = {
            "version": VERSION,
            "approvals": _sorted(
                {"kind": approval.skill.origin.kind, **approval_row(approval)}
                for approval in self.approvals.values()
            ),
            "previous": _sorted(
                {
                    **_kind_and_id(skill),
                    **coverage_row(ended.manifest),
                    "files": file_rows(ended.manifest),
                    "approved_at": ended.granted_at,
                }
                for skill, ended in self.previous.items()
            ),
        }
        return json.dumps(document, default=datetime.isoformat, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, content: bytes) -> "ApprovalRecords":
        """Parse the output of `to_bytes`.

        Raises:
            ValueError: It has another format or version.
        """
        try:
            document = fields(json.loads(content), _DOCUMENT)
        except RecursionError:
            raise ValueError("it nests too deeply") from None
        if document["version"] != VERSION:
            raise ValueError("it has another version")
        approvals = [_parse_approval(row) for row in items(document["approvals"], "approvals")]
        previous = [_parse_ended(row) for row in items(document["previous"], "previous")]
        return cls(
            {approval.skill: approval for approval in approvals},
            dict(previous),
        )


def check_storable(approval: Approval) -> None:
    """Check that an approval survives being written and read back.

    Raises:
        ValueError: It does not.
    """
    if approval.granted_at.tzinfo is None:
        raise ValueError("the time of an approval needs a UTC offset")
    if parse_approval(approval_row(approval), approval.skill.origin.kind) != approval:
        raise ValueError("the approval cannot be stored without loss")


def _is_from(skill: SkillId, label: str) -> bool:
    return skill.origin.is_remote and skill.origin.label == label


def _kind_and_id(skill: SkillId) -> Row:
    return {"kind": skill.origin.kind, **id_row(skill)}


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in ("kind", "label", "fingerprint", "uri")])


def _parse_approval(value: object) -> Approval:
    row, kind = _without_kind(value)
    return parse_approval({**row, "approved_at": _time(row.get("approved_at"))}, kind)


def _parse_ended(value: object) -> tuple[SkillId, EndedApproval]:
    row, kind = _without_kind(value)
    # Older files have no times.
    row = fields({"approved_at": None, **row}, _PREVIOUS, _COVERS)
    skill, when = parse_id(row, kind), row["approved_at"]
    manifest = parse_files(row["files"], skill.uri, parse_coverage(row))
    return skill, EndedApproval(manifest, None if when is None else _time(when))


def _time(value: object) -> datetime:
    """Parse a time and convert it to UTC.

    Raises:
        ValueError: It is not a time, or has no offset.
    """
    if not isinstance(value, str) or (when := datetime.fromisoformat(value)).tzinfo is None:
        raise ValueError("`approved_at` is not a time with an offset")
    return when.astimezone(UTC)


def _without_kind(value: object) -> tuple[Row, OriginKind]:
    if not isinstance(value, dict):
        raise ValueError("it is not a table of fields")
    row = dict(cast(Row, value))
    return row, OriginKind(cast(str, row.pop("kind", None)))


APPROVALS_FILE = "approvals.json"

_Change: TypeAlias = Callable[[ApprovalRecords], ApprovalRecords]

logger = logging.getLogger(__name__)


class ApprovalStore:
    """The approvals of this machine, in a sealed file of a private folder.

    Lookups never fail: a file that is missing, broken or tampered with holds
    no approvals. Changes read the file again under a lock, so that several
    processes can share one store. All methods are thread-safe; they block on
    the disk, so do not call them from an event loop.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        self._table = SealedTable(
            SealedFolder(directory, key=key),
            APPROVALS_FILE,
            ApprovalRecords(),
            ApprovalRecords.parse,
            ApprovalRecords.to_bytes,
        )
        self._memory = threading.Lock()
        self._records = ApprovalRecords()
        self._stamp: Stamp = None
        self._is_read = False
        # Revocations that are not on disk yet: they count, and are written with the next change.
        self._unwritten: list[_Change] = []

    @property
    def tampering(self) -> Refusal | None:
        """The reason why stored approvals were discarded, if tampering was detected."""
        self._current()
        return self._table.folder.tampering

    @property
    def is_tampered(self) -> bool:
        return self.tampering is not None

    def approvals(self) -> Mapping[SkillId, Approval]:
        """Return every approval that holds."""
        return MappingProxyType(self._current().approvals)

    def find(self, skill: SkillId) -> Approval | None:
        return self._current().approvals.get(skill)

    def previous(self, skill: SkillId) -> EndedApproval | None:
        """Return the skill's last approval, if a change ended it and no other followed."""
        return self._current().previous.get(skill)

    def grant(self, approval: Approval) -> Approval:
        """Store an approval and return what now holds for the skill.

        Grants for the same content are merged; an approval for other content
        is replaced.

        Raises:
            SourceError: It cannot be written, and nothing changed.
            LimitError: The file would be too large.
            ValueError: It cannot be stored without loss.
        """
        check_storable(approval)
        return self._change(lambda records: records.with_approval(approval))[1].approvals[approval.skill]

    def revoke(self, skill: SkillId) -> bool:
        """Revoke an approval; False when there was none.

        Raises:
            SourceError: That cannot be written; it is revoked in this process only.
        """
        return skill in self._end(lambda records: records.without_skill(skill)).approvals

    def observe(self, skill: SkillId, entry: SkillEntry) -> bool:
        """Process what a server lists now; return whether that ended the skill's approval.

        It ends for good: content that comes back is not approved again
        (SEP-2640, "Approval"). If that cannot be written, it is logged, and
        the approval still ends in this process.
        """
        records = self._current()
        if records.after_observing(skill, entry) is records:
            return False
        self._end_or_log(lambda records: records.after_observing(skill, entry))
        return skill not in self._current().approvals

    def forget_origin(self, label: str) -> None:
        """Forget everything about a server that was removed.

        Raises:
            SourceError: That cannot be written; it applies to this process only.
        """
        self._end(lambda records: records.without_server(label))

    def _current(self) -> ApprovalRecords:
        stamp = self._table.stamp
        with self._memory:
            if self._is_read and stamp == self._stamp:
                return self._records
        try:
            found = self._table.read()
        except SourceError as error:
            logger.warning("stored approvals are ignored because they cannot be read: %s", error)
            return ApprovalRecords()
        with self._memory:
            self._remember(self._with_unwritten(found), stamp)
            return self._records

    def _end(self, change: _Change) -> ApprovalRecords:
        """Apply a revocation in memory, then write it; return what the file held before."""
        self._current()
        with self._memory:
            self._unwritten.append(change)
            self._records = change(self._records)
        return self._change(lambda records: records)[0]

    def _end_or_log(self, change: _Change) -> None:
        try:
            self._end(change)
        except (SourceError, LimitError) as error:
            logger.error("an approval is revoked in this process only; that cannot be written: %s", error)

    def _change(self, change: _Change) -> tuple[ApprovalRecords, ApprovalRecords]:
        """Apply a change to the current content of the file; return the content before and after."""
        ended: list[_Change] = []

        def with_ended(records: ApprovalRecords) -> ApprovalRecords:
            with self._memory:
                ended.extend(self._unwritten)
            for end in ended:
                records = end(records)
            return change(records)

        def remember(after: ApprovalRecords) -> None:
            with self._memory:
                self._unwritten = self._unwritten[len(ended) :]
                self._remember(self._with_unwritten(after), self._table.stamp)

        return self._table.change(with_ended, remember)

    def _with_unwritten(self, records: ApprovalRecords) -> ApprovalRecords:
        for end in self._unwritten:
            records = end(records)
        return records

    def _remember(self, records: ApprovalRecords, stamp: Stamp) -> None:
        self._records, self._stamp, self._is_read = records, stamp, True
