"""What is written down: approvals that hold, and what ended ones were for."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Manifest
from skillwire.host.approval.approvals import Approval, binding_of
from skillwire.host.approval.rows import (
    Row,
    approval_row,
    coverage_row,
    fields,
    file_rows,
    id_row,
    items,
    parse_approval,
    parse_coverage,
    parse_files,
    parse_id,
)
from skillwire.host.origin import OriginKind, SkillId

VERSION = 1

_DOCUMENT = frozenset({"version", "approvals", "previous"})
_COVERS = frozenset({"covers"})
_PREVIOUS = frozenset({"label", "fingerprint", "uri", "files", "approved_at"})


@dataclass(frozen=True, slots=True)
class Ended:
    """What an approval was for, and when it was given; None where that was not written down."""

    manifest: Manifest
    granted_at: datetime | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every decision that is remembered; each change makes another ledger.

    `previous` is what approvals were for that a change ended: good for
    showing what changed, and for nothing else.
    """

    approvals: Mapping[SkillId, Approval] = field(default_factory=dict[SkillId, Approval])
    previous: Mapping[SkillId, Ended] = field(default_factory=dict[SkillId, Ended])

    def granted(self, approval: Approval) -> "Ledger":
        """Add an approval: to the grants for the same content, or in the place of one for other content."""
        skill = approval.skill
        before = self.approvals.get(skill)
        if before is not None and binding_of(before.manifest) == binding_of(approval.manifest):
            approval = replace(approval, grants=approval.grants | before.grants)
        return Ledger(
            {**self.approvals, skill: approval},
            {known: ended for known, ended in self.previous.items() if known != skill},
        )

    def revoked(self, skill: SkillId) -> "Ledger":
        """Forget what the user agreed to for one skill."""
        return Ledger(
            {known: approval for known, approval in self.approvals.items() if known != skill},
            {known: ended for known, ended in self.previous.items() if known != skill},
        )

    def observed(self, skill: SkillId, entry: SkillEntry) -> "Ledger":
        """End the approval of a skill that is no longer what was approved, and keep what it was."""
        before = self.approvals.get(skill)
        if before is None or not before.is_ended_by(entry):
            return self
        left = self.revoked(skill)
        ended = Ended(before.manifest, before.granted_at)
        return replace(left, previous={**left.previous, skill: ended})

    def without_server(self, label: str) -> "Ledger":
        """Forget everything about a server, whichever endpoints its label stood for."""
        return Ledger(
            {skill: approval for skill, approval in self.approvals.items() if not _is_of(skill, label)},
            {skill: ended for skill, ended in self.previous.items() if not _is_of(skill, label)},
        )

    def to_bytes(self) -> bytes:
        """Return the ledger as JSON, the same bytes for the same decisions."""
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
    def parse(cls, content: bytes) -> "Ledger":
        """Read what `to_bytes` made.

        Raises:
            ValueError: It was made by something else, or by a later version.
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
    """Check that an approval can be written down and read back as it is.

    Raises:
        ValueError: It cannot.
    """
    if approval.granted_at.tzinfo is None:
        raise ValueError("the time of an approval needs an offset")
    if parse_approval(approval_row(approval), approval.skill.origin.kind) != approval:
        raise ValueError("the approval cannot be written down as it is")


def _is_of(skill: SkillId, label: str) -> bool:
    return skill.origin.is_remote and skill.origin.label == label


def _kind_and_id(skill: SkillId) -> Row:
    return {"kind": skill.origin.kind, **id_row(skill)}


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in ("kind", "label", "fingerprint", "uri")])


def _parse_approval(value: object) -> Approval:
    row, kind = _without_kind(value)
    return parse_approval({**row, "approved_at": _time(row.get("approved_at"))}, kind)


def _parse_ended(value: object) -> tuple[SkillId, Ended]:
    row, kind = _without_kind(value)
    # Ledgers of before times were kept say nothing of them.
    row = fields({"approved_at": None, **row}, _PREVIOUS, _COVERS)
    skill, when = parse_id(row, kind), row["approved_at"]
    manifest = parse_files(row["files"], skill.uri, parse_coverage(row))
    return skill, Ended(manifest, None if when is None else _time(when))


def _time(value: object) -> datetime:
    """Read a time, in UTC.

    Raises:
        ValueError: It is none, or has no offset.
    """
    if not isinstance(value, str) or (when := datetime.fromisoformat(value)).tzinfo is None:
        raise ValueError("`approved_at` is not a time with an offset")
    return when.astimezone(UTC)


def _without_kind(value: object) -> tuple[Row, OriginKind]:
    if not isinstance(value, dict):
        raise ValueError("it is not a table of fields")
    row = dict(cast(Row, value))
    return row, OriginKind(cast(str, row.pop("kind", None)))
