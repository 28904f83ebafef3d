"""The links of an explanation: what a load would look at, one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from skillwire.core.manifest import Coverage
from skillwire.errors import SkillError
from skillwire.host.approval.approvals import Approval, Change, Grant, Standing
from skillwire.host.approval.policy import ProjectLock
from skillwire.host.asking import is_older
from skillwire.host.attention import Attention
from skillwire.host.loading import Machinery
from skillwire.host.promises import coverage_words
from skillwire.host.refusals import Refusal
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.naming import name_of
from skillwire.host.registry.registry import RegistryView
from skillwire.host.registry.view import ServerStatus
from skillwire.host.surroundings import missing_of

_MOST_NAMED = 10

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
class Circumstances:
    """What a host knows besides its machinery.

    `unused` are the labels of servers that are configured and turned off,
    `problems` the host's own, with the servers that cannot be configured.
    `audit` is the log of what was refused before.
    """

    unused: tuple[str, ...] = ()
    problems: tuple[Refusal, ...] = ()
    approvals: tuple[Approval, ...] = ()
    lock: ProjectLock | None = None
    audit: Path | None = None


def status_of(view: RegistryView, label: str) -> ServerStatus | None:
    return next((server for server in view.servers if server.origin.label == label), None)


def server_step(status: ServerStatus, *, is_found: bool) -> Step:
    """Say how a server stands. What went wrong with it matters less where the skill is known all the same."""
    words = f"{status.state}; {status.listed:,} listed, {status.refused:,} refused"
    label, problem = status.origin.label, status.problem
    if status.state == "no-skills":
        problem = problem or Refusal("not-declared", label)
    elif status.state == "waiting":
        problem = problem or Refusal("too-slow", label, "it has not answered yet")
    return Step("server", problem is None or is_found or status.state == "stale", words, problem)


def label_steps(view: RegistryView, label: str) -> Iterator[Step]:
    for notice in view.notices:
        if notice.code == "confusable-label" and label in notice.candidates:
            others = ", ".join(other for other in notice.candidates if other != label)
            yield Step("label", True, f"it looks like {others}", notice)


def found_steps(machinery: Machinery, view: RegistryView, skill: KnownSkill) -> Iterator[Step]:
    where = str(skill.directory) if skill.directory else f"{skill.id.origin}, {skill.id.uri}"
    dialect = f", in the dialect {skill.dialect}" if is_older(skill) else ""
    yield Step("found", True, f"{where}{'' if skill.is_listed else ', which does not list it'}{dialect}")
    status = status_of(view, skill.id.origin.label) if skill.is_remote else None
    if status is not None:
        yield server_step(status, is_found=status.state == "listed" or skill.offline_since is not None)
        yield from label_steps(view, status.origin.label)
    yield from _name_steps(view, skill)
    yield from _notice_steps(view, skill)
    for finding in skill.findings:
        yield Step("finding", True, f"{finding.message} [{finding.code}]")
    yield from _attention_steps(machinery, skill)
    yield _limit_step(machinery, skill)


def _name_steps(view: RegistryView, skill: KnownSkill) -> Iterator[Step]:
    short = f"{skill.id.origin.label}/{name_of(skill.id.uri)}"
    for collision in view.collisions:
        if skill.reference not in collision.references:
            continue
        others = [other for other in collision.references if other != skill.reference]
        if skill.is_remote and skill.is_listed and skill.reference != short:
            twins = tuple(
                other for other in collision.references if other.startswith(f"{short[: short.index('/')]}/")
            )
            notice = Refusal("renamed", short, f"{len(twins)} skills", candidates=twins[:_MOST_NAMED])
            yield Step(
                "name", True, f"{short} would mean several skills, so this one goes by its path", notice
            )
            others = [other for other in others if other not in twins]
        if others:
            detail = f"also called {skill.name}: {', '.join(others[:_MOST_NAMED])}"
            notice = Refusal("name-collision", skill.reference, detail)
            yield Step("name", True, f"{skill.name} is not the only one of this name", notice)
    for refusal in view.hidden:
        if refusal.code == "shadowed" and refusal.subject == skill.reference:
            yield Step("name", True, "another skill of this name is left out", refusal)


def _notice_steps(view: RegistryView, skill: KnownSkill) -> Iterator[Step]:
    """Yield what else is noticed about a skill: names like it, an earlier reference, and odd entries."""
    subject = f"{skill.id.origin.label}/{skill.id.uri}"
    for notice in view.notices:
        if notice.code == "similar-name" and skill.reference in notice.candidates:
            yield Step("name", True, f"easily taken for another: {notice.subject}", notice)
        elif notice.code == "reference-changed" and skill.reference in notice.candidates:
            yield Step("name", True, f"it was {notice.subject} before", notice)
        elif notice.code == "entry-remark" and notice.subject == subject:
            yield Step("entry", True, notice.detail, notice)


async def judgement_steps(machinery: Machinery, skill: KnownSkill) -> list[Step]:
    """Return what a provenance check says of exactly this content; nothing is fetched for it."""
    found = None if machinery.judge is None else await machinery.judge.of(skill)
    if found is None:
        return []
    if found.problem:
        notice = Refusal("provenance-unknown", skill.reference, found.problem)
        return [Step("provenance", True, "no verdict", notice)]
    if found.is_veto:
        return [Step("provenance", False, "a veto", Refusal("vetoed", skill.reference, found.words))]
    return [Step("provenance", True, found.words or "nothing is known about this content")]


async def needs_steps(machinery: Machinery, skill: KnownSkill) -> list[Step]:
    """Return what a skill declares to need of its server, and the server does not have."""
    try:
        missing = await missing_of(machinery.fetcher, skill)
    except SkillError as error:
        return [Step("needs", True, "its server cannot be asked what it has", Refusal.of(error))]
    return [] if missing is None else [Step("needs", True, missing.detail, missing)]


def _attention_steps(machinery: Machinery, skill: KnownSkill) -> Iterator[Step]:
    attention = machinery.attention.of(skill)
    if not machinery.attention.is_visible(skill):
        notice = Refusal("hidden-until-approved", skill.reference)
        yield Step("settings", True, "not shown to the model; a person can load it", notice)
    try:
        machinery.attention.require_allowed(skill, by_user=True)
    except SkillError as error:
        yield Step("settings", False, str(error), Refusal.of(error, skill.reference))
        return
    if attention is Attention.MANUAL:
        notice = Refusal("manual-only", skill.reference)
        yield Step("settings", True, "not shown to the model; a person can load it", notice)
    elif attention is not Attention.NORMAL:
        yield Step("settings", True, f"shown to the model as {attention.value}")


def _limit_step(machinery: Machinery, skill: KnownSkill) -> Step:
    what = "archive" if skill.entry.coverage is Coverage.ARCHIVE else "size"
    words = coverage_words(skill.entry.manifest, skill.id.uri)
    try:
        machinery.fetcher.require_safe(skill)
    except SkillError as error:
        return Step(what, False, words, Refusal.of(error, skill.reference))
    return Step(what, True, words)


def consent_steps(machinery: Machinery, around: Circumstances, skill: KnownSkill) -> Iterator[Step]:
    consent = machinery.consent
    standing = consent.standing(skill)
    if standing is Standing.LOCAL:
        yield Step("approval", True, "not needed: the folder is the user's own")
        return
    grants = consent.grants(skill)
    if Grant.LOAD in grants:
        yield Step("approval", True, f"granted for exactly this content: {', '.join(sorted(grants))}")
        return
    is_frozen = around.lock is not None and around.lock.is_frozen
    yield from _change_steps(machinery, skill, is_frozen=is_frozen)
    for approval in around.approvals:
        if approval.skill.uri == skill.id.uri and _is_other_endpoint(approval, skill):
            yield Step(
                "approval",
                True,
                f"one was given for another endpoint that was called {skill.id.origin.label}",
            )
    if around.lock is not None and around.lock.path is not None and around.lock.untrusted_pin(skill.id):
        words = "it is pinned in a lock that nobody has looked at since it changed"
        yield Step("lock", True, words, Refusal("lock-untrusted", around.lock.path.name))
    refusal = consent.expected_refusal(skill)
    if refusal is None and standing is Standing.NEW:
        words = "never given" if consent.previous(skill) is None else "given once, and not any more"
        notice = Refusal("not-approved", skill.reference)
        yield Step("approval", True, f"{words}; the user is asked", notice)
    elif is_frozen:
        words = "the frozen lock alone decides, and does not hold exactly these files"
        yield Step("approval", refusal is None, words, refusal)
    else:
        asked = "; the user is asked" if refusal is None else ""
        yield Step("approval", refusal is None, f"not given for this content{asked}", refusal)


def _is_other_endpoint(approval: Approval, skill: KnownSkill) -> bool:
    return approval.skill.origin.label == skill.id.origin.label and approval.skill.origin != skill.id.origin


def _change_steps(machinery: Machinery, skill: KnownSkill, *, is_frozen: bool) -> Iterator[Step]:
    """Yield how the skill differs from what was approved before, in numbers of files."""
    before, after = machinery.consent.previous(skill), skill.entry.manifest
    if before is None:
        return
    words = "it has no digests any more"
    if after is not None:
        change = Change.between(before, after)
        is_alike = before.coverage is after.coverage
        if change.is_empty and is_alike:
            yield Step("approval", True, "it was approved once with exactly these files, and is not now")
            return
        counts = {"changed": change.modified, "added": change.added, "removed": change.removed}
        parts = [f"{_files(len(uris))} {word}" for word, uris in counts.items() if uris]
        words = "; ".join(parts) if is_alike else f"then {coverage_words(before, skill.id.uri)}"
    if is_frozen:
        yield Step("change", True, f"it is pinned, with other files: {words}")
        return
    yield Step("change", True, f"it was approved before: {words}", Refusal("skill-changed", skill.reference))


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
