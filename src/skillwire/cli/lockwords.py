"""What a lock says, and how it differs from another, in words and as data.

A lock comes with a project, so labels, URIs and names in it are a stranger's
words: they stand behind a bar, one line each.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from skillwire.core.manifest import digest_of
from skillwire.core.uri import SkillUri
from skillwire.errors import InvalidUriError
from skillwire.host import (
    Approval,
    Change,
    Host,
    LockDifference,
    LockReview,
    LockState,
    Origin,
    Refusal,
    SkillId,
)
from skillwire.host.approval.approvals import binding_of
from skillwire.host.asking import Paragraph, one_line
from skillwire.host.promises import coverage_words
from skillwire.host.skillfiles import is_script

STATES: Final = {
    LockState.TRUSTED: ("trusted", "green"),
    LockState.CHANGED: ("changed outside skillwire, so it does not count", "bold red"),
    LockState.NEW: ("never trusted on this machine, so it does not count", "bold red"),
    LockState.ABSENT: ("there is none", "yellow"),
}
MOST_PINS: Final = 50
MOST_FILES: Final = 20


def unwritten(host: Host, origins: Sequence[Origin]) -> LockDifference:
    """Return what writing the lock would change: what it lacks or has otherwise of these servers."""
    pins = {approval.skill: approval for approval in host.lock.approvals}
    new = [approval for approval in host.approvals if approval.skill.origin in origins]
    added = tuple(approval for approval in new if approval.skill not in pins)
    both = [(pins[approval.skill], approval) for approval in new if approval.skill in pins]
    return LockDifference(added, (), tuple(pair for pair in both if not _is_alike(*pair)))


def _is_alike(one: Approval, other: Approval) -> bool:
    return one.grants == other.grants and binding_of(one.manifest) == binding_of(other.manifest)


def pin_words(skill: SkillId) -> str:
    return one_line(f"{skill.origin.label}  {skill.uri}")


def difference_paragraphs(difference: LockDifference, heading: str) -> list[Paragraph]:
    """Say what a lock has more, less or otherwise; every line is harmless."""
    if difference.is_empty:
        return [Paragraph(f"{heading}: no skill")]
    found = [Paragraph(heading)]
    found += _pins("added", difference.added)
    found += _pins("removed", difference.removed)
    for before, after in difference.changed[:MOST_PINS]:
        lines = (pin_words(after.skill), *_changes(before, after))
        found.append(Paragraph("changed", lines, is_foreign=True, is_warning=True))
    rest = len(difference.changed) - MOST_PINS
    return [*found, Paragraph(f"and {rest:,} more that changed", is_warning=True)] if rest > 0 else found


def _pins(word: str, approvals: Sequence[Approval]) -> Iterator[Paragraph]:
    # What may run something comes first, so that no crowd of others hides it.
    ordered = sorted(approvals, key=lambda approval: (-len(approval.grants), not _scripts(approval)))
    for approval in ordered[:MOST_PINS]:
        scripts = _scripts(approval)
        lines = [
            pin_words(approval.skill),
            f"grants: {', '.join(sorted(approval.grants))}; {_covers(approval)}",
        ]
        lines += [one_line(f"scripts: {', '.join(scripts[:MOST_FILES])}")] if scripts else []
        yield Paragraph(
            word, tuple(lines), is_foreign=True, is_warning=bool(scripts) or len(approval.grants) > 1
        )
    if len(approvals) > MOST_PINS:
        yield Paragraph(f"and {len(approvals) - MOST_PINS:,} more that were {word}", is_warning=True)


def _changes(before: Approval, after: Approval) -> Iterator[str]:
    if before.grants != after.grants:
        yield f"grants: {', '.join(sorted(before.grants))} to {', '.join(sorted(after.grants))}"
    if before.manifest.coverage is not after.manifest.coverage:
        yield f"before: {_covers(before)}"
        yield f"now: {_covers(after)}"
    change = Change.between(before.manifest, after.manifest)
    lines = [
        (word, uri)
        for word, uris in (("added", change.added), ("removed", change.removed), ("changed", change.modified))
        for uri in uris
    ]
    for word, uri in lines[:MOST_FILES]:
        path = _path(after.skill.uri, uri)
        yield one_line(f"{word} {path}{'  (a script)' if is_script(path) else ''}")
    if len(lines) > MOST_FILES:
        yield f"and {len(lines) - MOST_FILES:,} more files"
    if change.is_empty and before.grants == after.grants:
        yield "who approved it, or when"


def _covers(approval: Approval) -> str:
    return coverage_words(approval.manifest, approval.skill.uri)


def _scripts(approval: Approval) -> list[str]:
    paths = (_path(approval.skill.uri, uri) for uri in approval.manifest.uris)
    return [path for path in paths if is_script(path)]


def _path(skill: str, uri: str) -> str:
    try:
        return SkillUri.parse(skill).relative_path(uri)
    except InvalidUriError:
        return uri


def lock_json(path: Path, review: LockReview | None, problem: Refusal | None = None) -> dict[str, object]:
    """Return how a lock stands; without a review it is one that cannot be read."""
    lock = None if review is None else review.lock
    ended = [] if review is None else ended_pins(review)
    return {
        "path": str(path),
        "state": "invalid" if review is None else review.state.value,
        "digest": None if lock is None else digest_of(lock.content),
        "skills": [] if lock is None else [_pin_json(approval) for approval in lock.approvals],
        "ended": [{"label": skill.origin.label, "uri": skill.uri} for skill in ended],
        "problem": None if problem is None else problem.to_json(),
    }


def ended_pins(review: LockReview) -> list[SkillId]:
    """Return the skills of a lock whose pins count no more, because their server showed something else."""
    approvals = review.lock.approvals if review.lock is not None else ()
    pinned = {approval.skill for approval in approvals}
    return sorted({skill for skill, _ in review.revoked} & pinned, key=_order)


def _order(skill: SkillId) -> tuple[str, str, str]:
    return skill.origin.label, skill.origin.fingerprint, skill.uri


def difference_json(difference: LockDifference) -> dict[str, object]:
    return {
        "added": [_pin_json(approval) for approval in difference.added],
        "removed": [_pin_json(approval) for approval in difference.removed],
        "changed": [
            {"before": _pin_json(before), "after": _pin_json(after)} for before, after in difference.changed
        ],
    }


def _pin_json(approval: Approval) -> dict[str, object]:
    return {
        "label": approval.skill.origin.label,
        "fingerprint": approval.skill.origin.fingerprint,
        "uri": approval.skill.uri,
        "binding": binding_of(approval.manifest),
        "covers": approval.manifest.coverage.value,
        "files": len(approval.manifest),
        "grants": sorted(approval.grants),
        "approvedAt": approval.granted_at.isoformat().replace("+00:00", "Z"),
        "approvedBy": approval.granted_by,
    }
