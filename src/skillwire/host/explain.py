"""Why a skill is as it is: the whole chain from where it was found to what may be done with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from skillwire.core.characters import visible
from skillwire.errors import SkillError
from skillwire.host.approval.approvals import Grant
from skillwire.host.loading import Machinery
from skillwire.host.refusals import Refusal
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.registry import RegistryView

StepJson: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Step:
    """One link of the chain: what was looked at, whether all was well, and what was found.

    `refusal` says what stands in the way, or what was changed, and the remedy.
    """

    what: str
    is_well: bool
    found: str
    refusal: Refusal | None = None

    def to_json(self) -> StepJson:
        return {
            "what": self.what,
            "ok": self.is_well,
            "found": self.found,
            "refusal": None if self.refusal is None else self.refusal.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The chain for one reference, in the order in which a load would go through it."""

    reference: str
    steps: tuple[Step, ...]

    @property
    def can_be_loaded(self) -> bool:
        """Whether a load would get past everything that can be known beforehand."""
        return all(step.is_well for step in self.steps)

    def to_json(self) -> StepJson:
        return {
            "reference": self.reference,
            "loadable": self.can_be_loaded,
            "steps": [step.to_json() for step in self.steps],
        }

    def __str__(self) -> str:
        lines = [visible(self.reference)]
        for step in self.steps:
            lines.append(f"  {'ok' if step.is_well else 'no'}  {step.what}: {visible(step.found)}")
            if step.refusal is not None:
                lines.append(f"      {visible(str(step.refusal))}")
        return "\n".join(lines)


async def explain(machinery: Machinery, reference: str, *, is_loaded: bool) -> Explanation:
    """Go through everything a load would look at, without loading or asking anyone."""
    steps: list[Step] = []
    skill: KnownSkill | None = None
    try:
        skill = await machinery.registry.resolve(reference)
    except SkillError as error:
        steps += _server_steps(machinery.registry.view, reference)
        steps += _hidden_steps(machinery.registry.view, reference)
        steps.append(Step("found", False, "no skill answers to this reference", Refusal.of(error, reference)))
        return Explanation(reference, tuple(steps))
    view = machinery.registry.view
    where = str(skill.directory) if skill.directory else f"{skill.id.origin}, {skill.id.uri}"
    steps.append(Step("found", True, f"{where}{'' if skill.is_listed else ', which does not list it'}"))
    if skill.is_remote:
        steps += _server_steps(view, reference)
    steps += _name_steps(view, skill)
    steps += [Step("finding", True, f"{found.message} [{found.code}]") for found in skill.findings]
    steps.append(_limit_step(machinery, skill))
    steps += _consent_steps(machinery, skill)
    if skill.offline_since is not None:
        steps.append(Step("offline", True, f"the copy approved on {skill.offline_since} is used"))
    if is_loaded:
        steps.append(Step("loaded", True, "its window is open"))
    return Explanation(reference, tuple(steps))


def _server_steps(view: RegistryView, reference: str) -> Iterator[Step]:
    label = reference.partition("/")[0]
    for server in view.servers:
        if server.origin.label == label:
            well = server.problem is None
            words = f"{server.state}; {server.listed} listed, {server.refused} refused"
            yield Step("server", well or server.state == "stale", words, server.problem)


def _hidden_steps(view: RegistryView, reference: str) -> Iterator[Step]:
    """Yield the refusals that may be about what the user means: by subject, or by the name at its end."""
    name = reference.rpartition("/")[2]
    for refusal in view.hidden:
        parts = refusal.subject.removesuffix("/SKILL.md").replace("\\", "/").split("/")
        if refusal.subject == reference or (name and name in parts):
            yield Step("hidden", False, refusal.subject, refusal)


def _name_steps(view: RegistryView, skill: KnownSkill) -> Iterator[Step]:
    for collision in view.collisions:
        if skill.reference in collision.references:
            others = ", ".join(other for other in collision.references if other != skill.reference)
            notice = Refusal("name-collision", skill.reference, f"also called {skill.name}: {others}")
            yield Step("name", True, f"{skill.name} is not the only one of this name", notice)


def _limit_step(machinery: Machinery, skill: KnownSkill) -> Step:
    manifest = skill.entry.manifest
    size = "no digests" if manifest is None else f"{len(manifest)} files, {manifest.total_size} bytes"
    try:
        machinery.fetcher.require_safe(skill)
    except SkillError as error:
        return Step("size", False, size, Refusal.of(error, skill.reference))
    return Step("size", True, size)


def _consent_steps(machinery: Machinery, skill: KnownSkill) -> Iterator[Step]:
    if not skill.is_remote:
        yield Step("approval", True, "not needed: the folder is the user's own")
        return
    grants = machinery.consent.grants(skill)
    if Grant.LOAD in grants:
        yield Step("approval", True, f"granted for exactly this content: {', '.join(sorted(grants))}")
        return
    refusal = machinery.consent.expected_refusal(skill)
    yield Step("approval", refusal is None, "not given for this content; the user is asked", refusal)
