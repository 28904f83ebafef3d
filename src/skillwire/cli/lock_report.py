"""Compare a frozen lock with what the servers list now: each pin, and each skill that is not pinned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import anyio

from skillwire.core import (
    InvalidUriError,
    NotFoundError,
    SkillError,
    SkillUri,
    coverage_words,
    digest_of,
    is_script,
)
from skillwire.host.approval.lock import LockDifference
from skillwire.host.approval.lock_trust import LockReview, LockState
from skillwire.host.host import Host
from skillwire.host.model import Approval, Change, KnownSkill, Origin, Refusal, ShowRule, SkillId, binding_of
from skillwire.host.registry.naming import full_reference
from skillwire.host.registry.view import ServerStatus
from skillwire.host.use.question import Paragraph, one_line

_PAUSES: Final = (0.5, 1.0, 2.0, 4.0)


class PinState(StrEnum):
    """How a skill relates to the lock."""

    SAME = "same"
    """It is pinned, and its server sends exactly that."""
    DIFFERENT = "different"
    """It is pinned, and its server sends something else, or its label has another endpoint."""
    MISSING = "missing"
    """It is pinned, and its server does not serve it."""
    UNREACHABLE = "unreachable"
    """It is pinned, and its server does not answer."""
    NOT_IN_LOCK = "not-in-lock"
    """A server lists it, and it is not pinned."""


@dataclass(frozen=True, slots=True)
class PinCheck:
    """The result for one skill: its state, the reason, and which of its files differ."""

    reference: str
    skill: SkillId
    state: PinState
    refusal: Refusal | None = None
    change: Change | None = None

    def to_json(self) -> dict[str, object]:
        change = self.change
        files = None
        if change is not None:
            files = {
                "added": list(change.added),
                "removed": list(change.removed),
                "modified": list(change.modified),
            }
        return {
            "reference": self.reference,
            "label": self.skill.origin.label,
            "uri": self.skill.uri,
            "state": self.state.value,
            "files": files,
            "refusal": None if self.refusal is None else self.refusal.to_json(),
        }


async def retry_servers(host: Host, seconds: float) -> None:
    """Retry servers that did not answer, for at most `seconds` altogether.

    A check must not fail because a server is still starting.
    """
    with anyio.move_on_after(seconds):
        for pause in _PAUSES:
            away = [status.origin.label for status in host.view.servers if _is_unavailable(status)]
            if not away:
                return
            await anyio.sleep(pause)
            await host.refresh(away, by_user=True, wait_seconds=seconds)


async def check_lock(host: Host) -> list[PinCheck]:
    """Compare the lock of a host with its servers: its pins in order, then the skills that are not in it."""
    known = {skill.id: skill for skill in host.view.skills if skill.is_remote}
    pins = host.lock.approvals
    found = [await _check_pin(host, approval, known) for approval in pins]
    pinned = {approval.skill for approval in pins}
    found += [
        PinCheck(skill.reference, skill.id, PinState.NOT_IN_LOCK, _not_in_lock(skill.reference))
        for skill in known.values()
        if skill.id not in pinned and host.attention(skill) is not ShowRule.OFF
    ]
    return found


async def _check_pin(host: Host, approval: Approval, known: Mapping[SkillId, KnownSkill]) -> PinCheck:
    pin = approval.skill
    label, reference = pin.origin.label, full_reference(pin.origin.label, pin.uri)
    status = next((server for server in host.view.servers if server.origin.label == label), None)
    if status is None:
        return PinCheck(reference, pin, PinState.UNREACHABLE, await _why_no_server(host, label))
    if status.origin != pin.origin:
        refusal = _not_in_lock(reference, "the label has another endpoint than the pinned one")
        return PinCheck(reference, pin, PinState.DIFFERENT, refusal)
    skill = known.get(pin)
    if skill is None:
        if _is_unavailable(status):
            return PinCheck(reference, pin, PinState.UNREACHABLE, _problem(status))
        try:
            skill = await host.find(reference)
        except NotFoundError as error:
            return PinCheck(reference, pin, PinState.MISSING, Refusal.of(error, reference))
        except SkillError as error:
            return PinCheck(reference, pin, PinState.UNREACHABLE, Refusal.of(error, reference))
    if skill.offline_since is not None:
        return PinCheck(skill.reference, pin, PinState.UNREACHABLE, _problem(status))
    if approval.is_for(skill.entry):
        return PinCheck(skill.reference, pin, PinState.SAME)
    manifest = skill.entry.manifest
    detail = "it no longer has digests" if manifest is None else ""
    if manifest is not None and manifest.coverage is not approval.manifest.coverage:
        detail = f"now {coverage_words(manifest, pin.uri)}"
    change = None if manifest is None else Change.between(approval.manifest, manifest)
    return PinCheck(skill.reference, pin, PinState.DIFFERENT, _not_in_lock(skill.reference, detail), change)


async def _why_no_server(host: Host, label: str) -> Refusal:
    """Return why a pin's server is not available: turned off, misconfigured, or not configured."""
    chain = await host.explain(label)
    refusals = [step.refusal for step in chain.steps if not step.ok and step.refusal is not None]
    if chain.kind == "server" and refusals:
        return refusals[0]
    fix = "configure the server, or write the lock again without its skills"
    return Refusal("unknown-reference", label, "no server with this label is configured", fix=fix)


def _is_unavailable(status: ServerStatus) -> bool:
    return status.state in ("failed", "waiting")


def _problem(status: ServerStatus) -> Refusal:
    return status.problem or Refusal("too-slow", status.origin.label, "it has not answered yet")


def _not_in_lock(reference: str, detail: str = "") -> Refusal:
    return Refusal("not-in-lock", reference, detail)


# A lock and its differences from another one, as text and as JSON.


STATES: Final = {
    LockState.TRUSTED: ("trusted", "green"),
    LockState.CHANGED: ("changed outside skillwire, so it is not used", "bold red"),
    LockState.NEW: ("never trusted on this machine, so it is not used", "bold red"),
    LockState.ABSENT: ("does not exist", "yellow"),
}
MOST_PINS: Final = 50
MOST_FILES: Final = 20


def unwritten(host: Host, origins: Sequence[Origin]) -> LockDifference:
    """Return what writing the lock would change for these servers."""
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
    """Return the pins that were added, removed or changed, with every line escaped."""
    if difference.is_empty:
        return [Paragraph(f"{heading}: no skill")]
    found = [Paragraph(heading)]
    found += _pins("added", difference.added)
    found += _pins("removed", difference.removed)
    for before, after in difference.changed[:MOST_PINS]:
        lines = (pin_words(after.skill), *_changes(before, after))
        found.append(Paragraph("changed", lines, is_untrusted=True, is_warning=True))
    rest = len(difference.changed) - MOST_PINS
    return [*found, Paragraph(f"and {rest:,} more that changed", is_warning=True)] if rest > 0 else found


def _pins(word: str, approvals: Sequence[Approval]) -> Iterator[Paragraph]:
    # Pins with more grants or with scripts come first, so that a long list cannot hide them.
    ordered = sorted(approvals, key=lambda approval: (-len(approval.grants), not _scripts(approval)))
    for approval in ordered[:MOST_PINS]:
        scripts = _scripts(approval)
        lines = [
            pin_words(approval.skill),
            f"grants: {', '.join(sorted(approval.grants))}; {_covers(approval)}",
        ]
        lines += [one_line(f"scripts: {', '.join(scripts[:MOST_FILES])}")] if scripts else []
        yield Paragraph(
            word, tuple(lines), is_untrusted=True, is_warning=bool(scripts) or len(approval.grants) > 1
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
        yield "only who approved it, or when"


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
    """Return a lock as JSON; without a review it is one that cannot be read."""
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
    """Return the skills of a lock whose pins were revoked because their server sent other content."""
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
