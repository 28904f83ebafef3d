"""A frozen lock held against what the servers show now: each pin, and whatever is not pinned."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from skillwire.errors import NotFoundError, SkillError
from skillwire.host import Approval, Attention, Change, Host, KnownSkill, Refusal, ServerStatus, SkillId
from skillwire.host.promises import coverage_words
from skillwire.host.registry.naming import full_reference


class PinState(StrEnum):
    """How a skill stands to the lock."""

    SAME = "same"
    """It is pinned, and its server shows exactly that."""
    DIFFERENT = "different"
    """It is pinned, and its server, or its label, shows something else."""
    MISSING = "missing"
    """It is pinned, and its server does not serve it."""
    UNREACHABLE = "unreachable"
    """It is pinned, and its server cannot be asked."""
    NOT_IN_LOCK = "not-in-lock"
    """A server shows it, and it is not pinned."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One skill: how it stands, why, and which of its files differ."""

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


async def check_lock(host: Host) -> list[Checked]:
    """Hold the lock of a host against what its servers show: its pins in order, then what is not in it."""
    known = {skill.id: skill for skill in host.view.skills if skill.is_remote}
    pins = host.lock.approvals
    found = [await _check_pin(host, approval, known) for approval in pins]
    pinned = {approval.skill for approval in pins}
    found += [
        Checked(skill.reference, skill.id, PinState.NOT_IN_LOCK, _not_in_lock(skill.reference))
        for skill in known.values()
        if skill.id not in pinned and host.attention(skill) is not Attention.OFF
    ]
    return found


async def _check_pin(host: Host, approval: Approval, known: Mapping[SkillId, KnownSkill]) -> Checked:
    pin = approval.skill
    label, reference = pin.origin.label, full_reference(pin.origin.label, pin.uri)
    status = next((server for server in host.view.servers if server.origin.label == label), None)
    if status is None:
        return Checked(reference, pin, PinState.UNREACHABLE, await _why_no_server(host, label))
    if status.origin != pin.origin:
        refusal = _not_in_lock(reference, "the label stands for another endpoint than the one that is pinned")
        return Checked(reference, pin, PinState.DIFFERENT, refusal)
    skill = known.get(pin)
    if skill is None:
        if _is_away(status):
            return Checked(reference, pin, PinState.UNREACHABLE, _problem(status))
        try:
            skill = await host.find(reference)
        except NotFoundError as error:
            return Checked(reference, pin, PinState.MISSING, Refusal.of(error, reference))
        except SkillError as error:
            return Checked(reference, pin, PinState.UNREACHABLE, Refusal.of(error, reference))
    if skill.offline_since is not None:
        return Checked(skill.reference, pin, PinState.UNREACHABLE, _problem(status))
    if approval.is_for(skill.entry):
        return Checked(skill.reference, pin, PinState.SAME)
    manifest = skill.entry.manifest
    detail = "it has no digests any more" if manifest is None else ""
    if manifest is not None and manifest.coverage is not approval.manifest.coverage:
        detail = f"now {coverage_words(manifest, pin.uri)}"
    change = None if manifest is None else Change.between(approval.manifest, manifest)
    return Checked(skill.reference, pin, PinState.DIFFERENT, _not_in_lock(skill.reference, detail), change)


async def _why_no_server(host: Host, label: str) -> Refusal:
    """Say why a server that a pin needs is not there: turned off, configured wrongly, or not at all."""
    chain = await host.explain(label)
    refusals = [step.refusal for step in chain.steps if not step.is_well and step.refusal is not None]
    if chain.kind == "server" and refusals:
        return refusals[0]
    fix = "configure the server, or write the lock again without its skills"
    return Refusal("unknown-reference", label, "no server of this label is configured", fix=fix)


def _is_away(status: ServerStatus) -> bool:
    return status.state in ("failed", "waiting")


def _problem(status: ServerStatus) -> Refusal:
    return status.problem or Refusal("too-slow", status.origin.label, "it has not answered yet")


def _not_in_lock(reference: str, detail: str = "") -> Refusal:
    return Refusal("not-in-lock", reference, detail)
