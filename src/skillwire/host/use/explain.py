"""Explanation of a skill's state: all steps from discovery to whether it can be loaded."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

import anyio
import anyio.to_thread
import orjson

from skillwire.core import Coverage, Dialect, SkillError, coverage_words, quoted, visible
from skillwire.host.approval.lock_trust import ProjectLock
from skillwire.host.calls import COMPLETE, Session, complete
from skillwire.host.connect.config_file import label_of
from skillwire.host.dialects.base import DialectOptions
from skillwire.host.dialects.by_name import DEPENDENCIES, missing_dependencies
from skillwire.host.model import (
    REFUSALS,
    Approval,
    ApprovalState,
    Change,
    ConfigError,
    Grant,
    KnownSkill,
    KnownTemplate,
    Refusal,
    RegistryView,
    ServerStatus,
    ShowRule,
    TooSlowError,
    UnknownReferenceError,
    full_reference,
    name_of,
    uri_in,
)
from skillwire.host.state.audit import MAX_BYTES
from skillwire.host.state.vault import read_private
from skillwire.host.use.fetch import Files
from skillwire.host.use.load import SkillLoader
from skillwire.host.use.question import uses_older_dialect

# Recent refusals, read from the audit log for explanations.


logger = logging.getLogger(__name__)

MOST: Final = 5
"""The maximum number of different refusals returned for one skill or server."""

_LONGEST_WORD = 100
_MARKS = (b'"refusal"', b'"gate"', b'"load"')


@dataclass(frozen=True, slots=True)
class PastRefusal:
    """One past refusal: when, during which operation, and why."""

    time: str
    during: str
    refusal: Refusal

    def __str__(self) -> str:
        return f"refused on {self.time} during {self.during}"


def past_refusals(log: Path, is_about: Callable[[str], bool]) -> list[PastRefusal]:
    """Return the refusals since the last load, the newest of each kind, newest first.

    `is_about` selects events by their reference. A log that cannot be read is
    treated as empty, and malformed lines are skipped.
    """
    found: dict[str, PastRefusal] = {}
    for path in (log, log.with_name(f"{log.name}.1")):
        for event in _newest_first(path):
            if event.get("event") == "load" and is_about(_word(event, "reference")):
                return list(found.values())
            past = _refusal_in(event, is_about)
            if past is not None:
                found.setdefault(past.refusal.code, past)
            if len(found) == MOST:
                return list(found.values())
    return list(found.values())


def _newest_first(path: Path) -> Iterator[dict[str, object]]:
    try:
        # A log may exceed its limit if it could not be rotated because of a disk error.
        content = read_private(path, most=2 * MAX_BYTES + MAX_BYTES // 2) or b""
    except OSError as error:
        logger.info("the audit log cannot be read: %s", error)
        return
    for line in reversed(content.splitlines()):
        if not any(mark in line for mark in _MARKS):
            continue
        try:
            event: object = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield cast(dict[str, object], event)


def _refusal_in(event: dict[str, object], is_about: Callable[[str], bool]) -> PastRefusal | None:
    code = _word(event, "code")
    if code not in REFUSALS:
        return None
    if event.get("event") == "refusal":
        about, during = [_word(event, "reference")], _word(event, "during")
    elif event.get("event") == "gate" and event.get("verdict") != "allow":
        skills = event.get("skills")
        names = cast(list[object], skills) if isinstance(skills, list) else []
        about = [name for name in names if isinstance(name, str)]
        during = f"a call of the tool {_word(event, 'tool')}"
    else:
        return None
    meant = next((name for name in about if is_about(name)), None)
    return None if meant is None else PastRefusal(_word(event, "time"), during, Refusal(code, meant))


def _word(event: dict[str, object], name: str) -> str:
    value = event.get(name)
    longest = 512 if name == "reference" else _LONGEST_WORD
    return visible(value[:longest]) if isinstance(value, str) else ""


# What a server offers besides its skills: tools and prompts they depend on, and URI templates.


MOST_NAMED: Final = 10

_LISTS = "tools/list"


async def missing_dependency(files: Files, skill: KnownSkill) -> Refusal | None:
    """Return which tools and prompts a skill depends on that its server does not list (ASK-15).

    Only one dialect has such dependencies; for others no request is sent.
    None if nothing is missing.

    Raises:
        SkillError: The server's tools and prompts cannot be listed.
    """
    if skill.dialect is not Dialect.PRIMITIVE or not skill.entry.extra.get(DEPENDENCIES):
        return None
    connection = files.connection(skill.id.origin.label)
    if connection.dialect is Dialect.WELL_KNOWN:
        return None

    async def look(session: Session, options: DialectOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
        found = await missing_dependencies(session, options, skill.entry)
        return tuple(found.tools), tuple(found.prompts)

    tools, prompts = await connection.query((_LISTS, skill.id.uri), _LISTS, look)
    words = [
        *(f"the tool {quoted(name)}" for name in tools),
        *(f"the prompt {quoted(name)}" for name in prompts),
    ]
    if not words:
        return None
    rest = len(words) - MOST_NAMED
    more = f" and {rest:,} more" if rest > 0 else ""
    detail = f"its server does not list {', '.join(words[:MOST_NAMED])}{more}"
    return Refusal("missing-dependency", skill.reference, detail)


async def complete_variable(
    files: Files,
    view: RegistryView,
    label: str,
    template: str,
    variable: str,
    typed: str,
    others: Mapping[str, str] | None,
) -> tuple[str, ...]:
    """Return a server's completions for a variable of one of its templates, as untrusted text.

    Raises:
        UnknownReferenceError: There is no such server, template or variable.
        SkillError: The server cannot be asked.
    """
    connection = files.connection(label)
    known = _template_of(view, label, template)
    if variable not in known.template.variables:
        raise UnknownReferenceError(
            f"the template {quoted(template)} has no variable {quoted(variable)}",
            reference=label,
            fix=f"use one of {', '.join(known.template.variables)}",
        )
    if connection.dialect is Dialect.WELL_KNOWN:
        return ()
    key = (COMPLETE, template, variable, typed, tuple(sorted((others or {}).items())))

    async def ask(session: Session, options: DialectOptions) -> tuple[str, ...]:
        return await complete(
            session.client, known.skill_template, variable, typed, others=others, max_seconds=None
        )

    return await connection.query(key, COMPLETE, ask)


def _template_of(view: RegistryView, label: str, template: str) -> KnownTemplate:
    for known in view.templates:
        if known.origin.label == label and known.template.text == template:
            return known
    raise UnknownReferenceError(
        f"the server {quoted(label)} lists no template {quoted(template)}",
        reference=label,
        candidates=[
            f"{label}/{known.template.text}" for known in view.templates if known.origin.label == label
        ][:MOST_NAMED],
    )


# The steps of an explanation: what a load would check, in order.


_MOST_NAMED = 10

StepJson: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an explanation: what was checked, whether it passed, and what was found.

    `refusal` is what prevents the load, or a notice about a change, with the remedy.
    """

    what: str
    ok: bool
    found: str
    refusal: Refusal | None = None

    def to_json(self) -> StepJson:
        return {
            "what": self.what,
            "ok": self.ok,
            "found": self.found,
            "refusal": None if self.refusal is None else self.refusal.to_json(),
        }


@dataclass(frozen=True, slots=True)
class ExplainContext:
    """What an explanation needs besides the host's collaborators.

    `unused` are the labels of servers that are configured but turned off,
    `problems` those of the host, including invalid server configurations.
    `audit` is the path of the audit log.
    """

    unused: tuple[str, ...] = ()
    problems: tuple[Refusal, ...] = ()
    approvals: tuple[Approval, ...] = ()
    lock: ProjectLock | None = None
    audit: Path | None = None


def status_of(view: RegistryView, label: str) -> ServerStatus | None:
    return next((server for server in view.servers if server.origin.label == label), None)


def server_step(status: ServerStatus, *, is_found: bool) -> Step:
    """Return the state of a server. With `is_found`, a problem of the server does not fail the step."""
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


def found_steps(loader: SkillLoader, view: RegistryView, skill: KnownSkill) -> Iterator[Step]:
    where = str(skill.directory) if skill.directory else f"{skill.id.origin}, {skill.id.uri}"
    dialect = f", in the dialect {skill.dialect}" if uses_older_dialect(skill) else ""
    yield Step("found", True, f"{where}{'' if skill.is_listed else ', which does not list it'}{dialect}")
    status = status_of(view, skill.id.origin.label) if skill.is_remote else None
    if status is not None:
        yield server_step(status, is_found=status.state == "listed" or skill.offline_since is not None)
        yield from label_steps(view, status.origin.label)
    yield from _name_steps(view, skill)
    yield from _notice_steps(view, skill)
    for finding in skill.findings:
        yield Step("finding", True, f"{finding.message} [{finding.code}]")
    yield from _show_rule_steps(loader, skill)
    yield _limit_step(loader, skill)


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
            yield Step("name", True, f"{short} is ambiguous, so this skill is referenced by its path", notice)
            others = [other for other in others if other not in twins]
        if others:
            detail = f"also called {skill.name}: {', '.join(others[:_MOST_NAMED])}"
            notice = Refusal("name-collision", skill.reference, detail)
            yield Step("name", True, f"{skill.name} is not the only skill of this name", notice)
    for refusal in view.hidden:
        if refusal.code == "shadowed" and refusal.subject == skill.reference:
            yield Step("name", True, "another skill of this name is left out", refusal)


def _notice_steps(view: RegistryView, skill: KnownSkill) -> Iterator[Step]:
    """Yield the notices about a skill: similar names, an earlier reference, and remarks on its entry."""
    subject = f"{skill.id.origin.label}/{skill.id.uri}"
    for notice in view.notices:
        if notice.code == "similar-name" and skill.reference in notice.candidates:
            yield Step("name", True, f"easily confused with another: {notice.subject}", notice)
        elif notice.code == "reference-changed" and skill.reference in notice.candidates:
            yield Step("name", True, f"it was {notice.subject} before", notice)
        elif notice.code == "entry-remark" and notice.subject == subject:
            yield Step("entry", True, notice.detail, notice)


async def provenance_steps(loader: SkillLoader, skill: KnownSkill) -> list[Step]:
    """Return the provenance check's verdict on exactly this content; nothing is fetched for it."""
    found = None if loader.provenance is None else await loader.provenance.result_for(skill)
    if found is None:
        return []
    if found.problem:
        notice = Refusal("provenance-unknown", skill.reference, found.problem)
        return [Step("provenance", True, "no verdict", notice)]
    if found.is_veto:
        return [Step("provenance", False, "a veto", Refusal("vetoed", skill.reference, found.words))]
    return [Step("provenance", True, found.words or "nothing is known about this content")]


async def needs_steps(loader: SkillLoader, skill: KnownSkill) -> list[Step]:
    """Return the declared dependencies of a skill that its server does not list."""
    try:
        missing = await missing_dependency(loader.files, skill)
    except SkillError as error:
        return [
            Step("needs", True, "its server cannot be asked for its tools and prompts", Refusal.of(error))
        ]
    return [] if missing is None else [Step("needs", True, missing.detail, missing)]


def _show_rule_steps(loader: SkillLoader, skill: KnownSkill) -> Iterator[Step]:
    rule = loader.show_rules.of(skill)
    if not loader.show_rules.is_visible(skill):
        notice = Refusal("hidden-until-approved", skill.reference)
        yield Step("settings", True, "not shown to the model; a person can load it", notice)
    try:
        loader.show_rules.require_allowed(skill, by_user=True)
    except SkillError as error:
        yield Step("settings", False, str(error), Refusal.of(error, skill.reference))
        return
    if rule is ShowRule.MANUAL:
        notice = Refusal("manual-only", skill.reference)
        yield Step("settings", True, "not shown to the model; a person can load it", notice)
    elif rule is not ShowRule.NORMAL:
        yield Step("settings", True, f"shown to the model as {rule.value}")


def _limit_step(loader: SkillLoader, skill: KnownSkill) -> Step:
    what = "archive" if skill.entry.coverage is Coverage.ARCHIVE else "size"
    words = coverage_words(skill.entry.manifest, skill.id.uri)
    try:
        loader.files.require_safe(skill)
    except SkillError as error:
        return Step(what, False, words, Refusal.of(error, skill.reference))
    return Step(what, True, words)


def consent_steps(loader: SkillLoader, context: ExplainContext, skill: KnownSkill) -> Iterator[Step]:
    consent = loader.consent
    state = consent.approval_state(skill)
    if state is ApprovalState.LOCAL:
        yield Step("approval", True, "not needed: a local skill of the user")
        return
    grants = consent.grants(skill)
    if Grant.LOAD in grants:
        yield Step("approval", True, f"granted for exactly this content: {', '.join(sorted(grants))}")
        return
    is_frozen = context.lock is not None and context.lock.is_frozen
    yield from _change_steps(loader, skill, is_frozen=is_frozen)
    for approval in context.approvals:
        if approval.skill.uri == skill.id.uri and _is_other_endpoint(approval, skill):
            yield Step(
                "approval",
                True,
                f"one was granted for another endpoint with the label {skill.id.origin.label}",
            )
    if context.lock is not None and context.lock.path is not None and context.lock.untrusted_pin(skill.id):
        words = "it is pinned in a lock that was not reviewed since it changed"
        yield Step("lock", True, words, Refusal("lock-untrusted", context.lock.path.name))
    refusal = consent.expected_refusal(skill)
    if refusal is None and state is ApprovalState.NEW:
        words = "never granted" if consent.previous(skill) is None else "granted before, but not any more"
        notice = Refusal("not-approved", skill.reference)
        yield Step("approval", True, f"{words}; the user is asked", notice)
    elif is_frozen:
        words = "the frozen lock alone decides, and does not contain exactly these files"
        yield Step("approval", refusal is None, words, refusal)
    else:
        asked = "; the user is asked" if refusal is None else ""
        yield Step("approval", refusal is None, f"not granted for this content{asked}", refusal)


def _is_other_endpoint(approval: Approval, skill: KnownSkill) -> bool:
    return approval.skill.origin.label == skill.id.origin.label and approval.skill.origin != skill.id.origin


def _change_steps(loader: SkillLoader, skill: KnownSkill, *, is_frozen: bool) -> Iterator[Step]:
    """Yield how the skill differs from what was approved before, as counts of files."""
    before, after = loader.consent.previous(skill), skill.entry.manifest
    if before is None:
        return
    words = "it has no digests any more"
    if after is not None:
        change = Change.between(before, after)
        is_alike = before.coverage is after.coverage
        if change.is_empty and is_alike:
            yield Step("approval", True, "exactly these files were approved before, but are not now")
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


_MOST_HIDDEN = 20
_LONGEST_SHOWN = 1_000
_MOST_MEANT = 10
_MOST_COMPARED = 2_000
_LONGEST_COMPARED = 100
# Refusals about a whole folder of local skills.
_OF_FOLDERS = frozenset({"untrusted-folder", "source-unreadable"})
_OF_THE_PAST = frozenset({"vanished", "reference-changed"})


@dataclass(frozen=True, slots=True)
class Explanation:
    """The steps for one reference, in the order in which a load would check them.

    For the label of a server, `kind` is `server` and the steps are about the server.
    """

    reference: str
    steps: tuple[Step, ...]
    kind: Literal["skill", "server"] = "skill"

    @property
    def can_be_loaded(self) -> bool:
        """Whether a load would pass all checks known beforehand; for a server, whether it works."""
        return all(step.ok for step in self.steps)

    def to_json(self) -> StepJson:
        return {
            "reference": visible(self.reference, most=_LONGEST_SHOWN),
            "kind": self.kind,
            "loadable": self.can_be_loaded,
            "steps": [step.to_json() for step in self.steps],
        }

    def __str__(self) -> str:
        lines = [visible(self.reference, most=_LONGEST_SHOWN)]
        for step in self.steps:
            lines.append(
                f"  {'ok' if step.ok else 'no'}  {step.what}: {visible(step.found, most=_LONGEST_SHOWN)}"
            )
            if step.refusal is not None:
                lines.append(f"      {visible(str(step.refusal))}")
                if step.refusal.candidates:
                    lines.append(f"      did you mean: {visible(', '.join(step.refusal.candidates))}")
        return "\n".join(lines)


async def explain(
    loader: SkillLoader,
    reference: str,
    *,
    is_loaded: bool,
    context: ExplainContext | None = None,
    wait_seconds: float | None = None,
) -> Explanation:
    """Check everything a load would check, without loading the skill or asking the user.

    A server that takes longer than `wait_seconds` to answer is reported as too slow.
    """
    context = context or ExplainContext()
    label, slash, _ = reference.partition("/")
    barred = list(_configuration_steps(context, label))
    if barred and slash:
        return Explanation(reference, tuple(barred))
    skill, error = await _resolved(loader, reference, wait_seconds)
    view = loader.registry.view
    if skill is None and not slash and (barred or status_of(view, label) is not None):
        steps = [*barred, *_server_chain(view, label), *await _past_steps(context, label, None)]
        return Explanation(reference, tuple(steps), "server")
    steps = list(_state_steps(context))
    if skill is None or error is not None:
        assert error is not None, "a reference that cannot be resolved raises an error"
        steps += _missing_steps(view, reference)
        steps += _remembered_steps(context, reference)
        steps += await _past_steps(context, reference, None)
        steps.append(
            Step("found", False, "no skill has this reference", _with_candidates(view, reference, error))
        )
        return Explanation(reference, tuple(steps))
    steps += found_steps(loader, view, skill)
    steps += await needs_steps(loader, skill)
    steps += await provenance_steps(loader, skill)
    steps += consent_steps(loader, context, skill)
    if skill.offline_since is not None:
        steps.append(Step("offline", True, f"the copy approved on {skill.offline_since} is used"))
    if is_loaded:
        steps.append(Step("loaded", True, "loaded in this conversation"))
    steps += await _past_steps(context, reference, skill)
    return Explanation(reference, tuple(steps))


async def _resolved(
    loader: SkillLoader, reference: str, wait_seconds: float | None
) -> tuple[KnownSkill | None, SkillError | None]:
    try:
        with anyio.fail_after(wait_seconds):
            return await loader.registry.resolve(reference), None
    except TimeoutError:
        label = reference.partition("/")[0]
        return None, TooSlowError(f"the server {quoted(label)} has not answered yet")
    except SkillError as error:
        return None, error


def _configuration_steps(context: ExplainContext, label: str) -> Iterator[Step]:
    """Yield why a server is not connected: it is turned off, or its configuration is invalid."""
    if label in context.unused:
        refusal = Refusal("turned-off", label, "its skills are turned off in the configuration")
        yield Step("configuration", False, "the server is not connected", refusal)
    for problem in context.problems:
        if problem.code == "invalid-config" and label in (problem.subject, _label_meant(problem.subject)):
            yield Step("configuration", False, "the server's configuration is invalid", problem)


def _label_meant(key: str) -> str:
    try:
        return label_of(key)
    except ConfigError:
        return key


def _state_steps(context: ExplainContext) -> Iterator[Step]:
    for problem in context.problems:
        if problem.code == "state-tampered":
            yield Step("approvals", True, "the approvals on this machine are no longer valid", problem)


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
    """Yield possible reasons why a skill is missing: its server's state, or a refusal about it."""
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
            yield Step("server", False, f"no server has the label {quoted(label)}", refusal)
    for refusal in view.hidden:
        is_folder = not slash and (refusal.code in _OF_FOLDERS or refusal.violates == "FS-01")
        is_nameless = bool(slash) and refusal.subject.startswith(f"{label}: entry ")
        if is_folder or is_nameless or _is_about(refusal, reference):
            yield Step("hidden", False, refusal.subject, refusal)
    for notice in view.notices:
        if notice.code in _OF_THE_PAST and notice.subject == reference:
            yield Step("before", True, "it was listed before", notice)


def _is_about(refusal: Refusal, reference: str) -> bool:
    """Return whether a refusal may be about a reference: by subject, or by the name at its end."""
    name = reference.removesuffix("/SKILL.md").rpartition("/")[2]
    parts = refusal.subject.removesuffix("/SKILL.md").replace("\\", "/").split("/")
    # Subjects are already escaped.
    return refusal.subject in (reference, visible(reference)) or bool(name and visible(name) in parts)


def _remembered_steps(context: ExplainContext, reference: str) -> Iterator[Step]:
    """Yield approvals for a reference that no skill has now."""
    label, _, name = reference.partition("/")
    uri = uri_in(reference)
    for approval in (*context.approvals, *(context.lock.approvals if context.lock else ())):
        skill = approval.skill
        is_meant = skill.uri == uri.text if uri else name_of(skill.uri) == name.rpartition("/")[2]
        if skill.origin.label == label and is_meant:
            date = approval.granted_at.date().isoformat()
            yield Step("approval", True, f"{skill.uri} was approved on {date}, and is not listed now")


def _with_candidates(view: RegistryView, reference: str, error: SkillError) -> Refusal:
    """Return the refusal for an unknown reference, with similar references as candidates."""
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


async def _past_steps(context: ExplainContext, reference: str, skill: KnownSkill | None) -> list[Step]:
    """Return recent refusals about a skill, or about a server if the reference is its label."""
    if context.audit is None:
        return []
    spellings = {visible(reference)}
    if skill is not None:
        spellings |= {visible(skill.reference), full_reference(skill.id.origin.label, skill.id.uri)}
    of_server = (f"{reference} ", f"{reference}/") if "/" not in reference and skill is None else ()

    def is_about(word: str) -> bool:
        return word in spellings or bool(of_server and word.startswith(of_server))

    past = await anyio.to_thread.run_sync(past_refusals, context.audit, is_about)
    return [Step("before", True, str(found), found.refusal) for found in past]
