"""Why a skill is as it is: the whole chain from where it was found to what may be done with it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

import anyio
import anyio.to_thread

from skillwire.core.characters import quoted, visible
from skillwire.errors import SkillError
from skillwire.host.connections.labels import label_of
from skillwire.host.failures import ConfigError, TooSlowError, UnknownReferenceError
from skillwire.host.history import past_refusals
from skillwire.host.loading import Machinery
from skillwire.host.refusals import Refusal
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.naming import full_reference, name_of, uri_in
from skillwire.host.registry.registry import RegistryView
from skillwire.host.steps import (
    Circumstances,
    Step,
    StepJson,
    consent_steps,
    found_steps,
    judgement_steps,
    label_steps,
    needs_steps,
    server_step,
    status_of,
)

__all__ = ["Circumstances", "Explanation", "Step", "explain"]

_MOST_HIDDEN = 20
_MOST_MEANT = 10
_MOST_COMPARED = 2_000
_LONGEST_COMPARED = 100
# Refusals about a whole folder of local skills, in which any of them may lie.
_OF_FOLDERS = frozenset({"untrusted-folder", "source-unreadable"})
_OF_THE_PAST = frozenset({"vanished", "reference-changed"})


@dataclass(frozen=True, slots=True)
class Explanation:
    """The chain for one reference, in the order in which a load would go through it.

    For the label of a server it is about the server instead, as `kind` says.
    """

    reference: str
    steps: tuple[Step, ...]
    kind: Literal["skill", "server"] = "skill"

    @property
    def can_be_loaded(self) -> bool:
        """Whether a load would get past all that can be known beforehand; of a server, whether it is well."""
        return all(step.is_well for step in self.steps)

    def to_json(self) -> StepJson:
        return {
            "reference": self.reference,
            "kind": self.kind,
            "loadable": self.can_be_loaded,
            "steps": [step.to_json() for step in self.steps],
        }

    def __str__(self) -> str:
        lines = [visible(self.reference)]
        for step in self.steps:
            lines.append(f"  {'ok' if step.is_well else 'no'}  {step.what}: {visible(step.found)}")
            if step.refusal is not None:
                lines.append(f"      {visible(str(step.refusal))}")
                if step.refusal.candidates:
                    lines.append(f"      did you mean: {visible(', '.join(step.refusal.candidates))}")
        return "\n".join(lines)


async def explain(
    machinery: Machinery,
    reference: str,
    *,
    is_loaded: bool,
    circumstances: Circumstances | None = None,
    wait_seconds: float | None = None,
) -> Explanation:
    """Go through everything a load would look at, without loading or asking anyone.

    Where `wait_seconds` is given, a server that takes longer to answer is one that is too slow.
    """
    around = circumstances or Circumstances()
    label, slash, _ = reference.partition("/")
    barred = list(_configuration_steps(around, label))
    if barred and slash:
        return Explanation(reference, tuple(barred))
    skill, error = await _resolved(machinery, reference, wait_seconds)
    view = machinery.registry.view
    if skill is None and not slash and (barred or status_of(view, label) is not None):
        steps = [*barred, *_server_chain(view, label), *await _past_steps(around, label, None)]
        return Explanation(reference, tuple(steps), "server")
    steps = list(_state_steps(around))
    if skill is None or error is not None:
        assert error is not None, "what is not found was refused"
        steps += _missing_steps(view, reference)
        steps += _remembered_steps(around, reference)
        steps += await _past_steps(around, reference, None)
        steps.append(
            Step("found", False, "no skill answers to this reference", _guess(view, reference, error))
        )
        return Explanation(reference, tuple(steps))
    steps += found_steps(machinery, view, skill)
    steps += await needs_steps(machinery, skill)
    steps += await judgement_steps(machinery, skill)
    steps += consent_steps(machinery, around, skill)
    if skill.offline_since is not None:
        steps.append(Step("offline", True, f"the copy approved on {skill.offline_since} is used"))
    if is_loaded:
        steps.append(Step("loaded", True, "its window is open"))
    steps += await _past_steps(around, reference, skill)
    return Explanation(reference, tuple(steps))


async def _resolved(
    machinery: Machinery, reference: str, wait_seconds: float | None
) -> tuple[KnownSkill | None, SkillError | None]:
    try:
        with anyio.fail_after(wait_seconds):
            return await machinery.registry.resolve(reference), None
    except TimeoutError:
        label = reference.partition("/")[0]
        return None, TooSlowError(f"the server {quoted(label)} has not answered in {wait_seconds:g} seconds")
    except SkillError as error:
        return None, error


def _configuration_steps(around: Circumstances, label: str) -> Iterator[Step]:
    """Yield why a server is not even connected to: the user turned it off, or its configuration is wrong."""
    if label in around.unused:
        refusal = Refusal("turned-off", label, "its skills are turned off in the configuration")
        yield Step("configuration", False, "the server is not connected", refusal)
    for problem in around.problems:
        if problem.code == "invalid-config" and label in (problem.subject, _label_meant(problem.subject)):
            yield Step("configuration", False, "the server cannot be used as it is configured", problem)


def _label_meant(key: str) -> str:
    try:
        return label_of(key)
    except ConfigError:
        return key


def _state_steps(around: Circumstances) -> Iterator[Step]:
    for problem in around.problems:
        if problem.code == "state-tampered":
            yield Step(
                "approvals", True, "what was approved on this machine does not count any more", problem
            )


def _server_chain(view: RegistryView, label: str) -> Iterator[Step]:
    status = status_of(view, label)
    if status is None:
        return
    yield server_step(status, is_found=False)
    yield from label_steps(view, label)
    own = [
        refusal for refusal in view.hidden if refusal.subject.startswith((f"{label}/", f"{label}: entry "))
    ]
    for refusal in own[:_MOST_HIDDEN]:
        yield Step("hidden", True, refusal.subject, refusal)
    if len(own) > _MOST_HIDDEN:
        yield Step("hidden", True, f"and {len(own) - _MOST_HIDDEN:,} more")


def _missing_steps(view: RegistryView, reference: str) -> Iterator[Step]:
    """Yield what may be the reason that a skill is not there: its server, or a refusal that is about it."""
    label, slash, _ = reference.partition("/")
    if slash:
        status = status_of(view, label)
        if status is not None:
            yield server_step(status, is_found=False)
        else:
            known = [server.origin.label for server in view.servers]
            alike = tuple(get_close_matches(label[:_LONGEST_COMPARED], known, n=_MOST_MEANT))
            fix = (
                f"use one of the labels {', '.join(known[:_MOST_MEANT])}" if known else "configure the server"
            )
            refusal = Refusal("unknown-reference", visible(label), "", fix=fix, candidates=alike)
            yield Step("server", False, f"no server is called {quoted(label)}", refusal)
    for refusal in view.hidden:
        is_folder = not slash and (refusal.code in _OF_FOLDERS or refusal.violates == "FS-01")
        is_nameless = bool(slash) and refusal.subject.startswith(f"{label}: entry ")
        if is_folder or is_nameless or _is_about(refusal, reference):
            yield Step("hidden", False, refusal.subject, refusal)
    for notice in view.notices:
        if notice.code in _OF_THE_PAST and notice.subject == reference:
            yield Step("before", True, "it was there before", notice)


def _is_about(refusal: Refusal, reference: str) -> bool:
    """Tell whether a refusal may be about what the user means: by subject, or by the name at its end."""
    name = reference.removesuffix("/SKILL.md").rpartition("/")[2]
    parts = refusal.subject.removesuffix("/SKILL.md").replace("\\", "/").split("/")
    # Subjects are written as they may be shown.
    return refusal.subject in (reference, visible(reference)) or bool(name and visible(name) in parts)


def _remembered_steps(around: Circumstances, reference: str) -> Iterator[Step]:
    """Yield what was approved under a reference that means nothing now."""
    label, _, name = reference.partition("/")
    uri = uri_in(reference)
    for approval in (*around.approvals, *(around.lock.approvals if around.lock else ())):
        skill = approval.skill
        is_meant = skill.uri == uri.text if uri else name_of(skill.uri) == name.rpartition("/")[2]
        if skill.origin.label == label and is_meant:
            date = approval.granted_at.date().isoformat()
            yield Step("approval", True, f"{skill.uri} was approved on {date}, and is not shown now")


def _guess(view: RegistryView, reference: str, error: SkillError) -> Refusal:
    """Return the refusal for a reference that means nothing, with what else may have been meant."""
    refusal = Refusal.of(error, reference)
    if refusal.candidates or not isinstance(error, UnknownReferenceError):
        return refusal
    name = reference.removesuffix("/SKILL.md").rpartition("/")[2]
    names = {skill.reference: name_of(skill.id.uri) for skill in view.skills}
    meant = [known for known, own in names.items() if name in (own, known)]
    if not meant and name and len(name) <= _LONGEST_COMPARED and len(names) <= _MOST_COMPARED:
        alike = get_close_matches(name, {*names.values(), *names}, n=_MOST_MEANT, cutoff=0.75)
        meant = [known for known, own in names.items() if known in alike or own in alike]
    return replace(refusal, candidates=tuple(sorted(meant)[:_MOST_MEANT]))


async def _past_steps(around: Circumstances, reference: str, skill: KnownSkill | None) -> list[Step]:
    """Return what was refused lately: of a skill, or of a server whose label was asked for."""
    if around.audit is None:
        return []
    spellings = {visible(reference)}
    if skill is not None:
        spellings |= {visible(skill.reference), full_reference(skill.id.origin.label, skill.id.uri)}
    of_server = (f"{reference} ", f"{reference}/") if "/" not in reference and skill is None else ()

    def is_about(word: str) -> bool:
        return word in spellings or bool(of_server and word.startswith(of_server))

    past = await anyio.to_thread.run_sync(past_refusals, around.audit, is_about)
    return [Step("before", True, str(found), found.refusal) for found in past]
