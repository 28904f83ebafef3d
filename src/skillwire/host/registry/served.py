"""What is known of one server's skills, and how long that may be relied on."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.host.calls.enumeration import Listing, RefusedEntry
from skillwire.host.origin import Origin, SkillId
from skillwire.host.refusals import Refusal
from skillwire.host.registry.aftermath import Aftermath
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.naming import full_reference, references_for
from skillwire.host.registry.nesting import require_top_level, skipped, top_level
from skillwire.host.registry.view import KnownTemplate, ServerState, ServerStatus
from skillwire.wire.dialect import Dialect

MIN_SECONDS: Final = 5.0
MAX_SECONDS: Final = 3600.0
MAX_UNLISTED: Final = 1_000
MAX_HIDDEN: Final = 1_000
MAX_TEMPLATES: Final = 100
MAX_REMARKS: Final = 200

_LONGEST_SUBJECT = 200


def fresh_seconds(ttl_ms: float | None) -> float:
    """Return for how long a listing is taken as current: what the server says, within sane bounds."""
    if ttl_ms is None or not ttl_ms > 0 or (isinstance(ttl_ms, float) and math.isnan(ttl_ms)):
        return MIN_SECONDS
    return max(MIN_SECONDS, min(ttl_ms, MAX_SECONDS * 1000) / 1000)


class Served:
    """The records of one server: listed, unlisted, or kept from an earlier approval.

    A listing that came only in part adds to the last whole one. A failure
    takes nothing away. Skills that are not listed stay until the server says
    that it does not serve them. With `top_level_only`, skills inside listed
    ones are hidden instead.
    """

    def __init__(self, origin: Origin, *, top_level_only: bool = False) -> None:
        self.origin = origin
        self.hidden: tuple[Refusal, ...] = ()
        self.remarks: tuple[Refusal, ...] = ()
        self.templates: tuple[KnownTemplate, ...] = ()
        self.aftermath = Aftermath()
        self._top_level_only = top_level_only
        self.signals = 0
        """How often something said that the listing may have changed."""
        self._status = ServerStatus(origin)
        self.dialect = Dialect.CORE
        self._skills: dict[str, KnownSkill] = {}
        self._whole: dict[str, SkillEntry] = {}
        self._unlisted: dict[str, SkillEntry] = {}
        self._asked: tuple[int, int] | None = None
        self._tried_at: float | None = None
        self._mentioned: set[str] = set()
        self._renewals: dict[str, tuple[int, int, float]] = {}
        self._since_begun: set[str] = set()

    @property
    def problem(self) -> Refusal | None:
        """What went wrong when the server was last asked."""
        return self._status.problem

    @property
    def skills(self) -> Iterable[KnownSkill]:
        return self._skills.values()

    def find(self, uri: str) -> KnownSkill | None:
        return self._skills.get(uri)

    def unconfirmed(self, uris: Iterable[str]) -> list[str]:
        """Return those URIs that are no known skills and were not asked about since things last changed."""
        new = [uri for uri in uris if uri not in self._skills and uri not in self._mentioned]
        self._mentioned.update(new)
        return new

    def is_fresh(self, epoch: int, now: float) -> bool:
        """Tell whether the listing still holds: in time, on the same connection, and no signal since."""
        until = self._status.fresh_until
        return until is not None and now < until and self._asked == (epoch, self.signals)

    def was_tried(self, now: float) -> bool:
        """Tell whether the server failed a moment ago, so that asking again would only cost time."""
        return self._tried_at is not None and now < self._tried_at + MIN_SECONDS

    def was_renewed(self, uri: str, epoch: int, now: float) -> bool:
        """Tell whether this one entry was asked for a moment ago, and nothing has happened since."""
        asked, signals, at = self._renewals.get(uri, (-1, -1, -math.inf))
        return (asked, signals) == (epoch, self.signals) and now < at + MIN_SECONDS

    def begin_listing(self) -> None:
        """Note that the server is about to be asked for all."""
        self._since_begun.clear()

    def reconciled(self, listing: Listing) -> Listing:
        """Return a listing with the entries instead that were asked for one by one since it was begun."""
        newer = {uri: self._skills[uri].entry for uri in self._since_begun if uri in self._skills}
        if not newer:
            return listing
        entries = tuple(newer.get(entry.uri.text, entry) for entry in listing.entries)
        return replace(listing, entries=entries)

    def note_renewal(self, uri: str, epoch: int, now: float) -> None:
        self._renewals[uri] = (epoch, self.signals, now)
        self._since_begun.add(uri)

    def status(self, epoch: int, now: float) -> ServerStatus:
        if self._status.state == "listed" and not self.is_fresh(epoch, now):
            return replace(self._status, state="stale")
        return self._status

    def take(self, listing: Listing, problem: Refusal | None, *, asked: tuple[int, int], now: float) -> None:
        """Take a listing that was asked for at `asked`: the connection's epoch, and the count of signals."""
        listed = {entry.uri.text: entry for entry in listing.entries}
        if problem is None:
            self._whole = listed
        elif self._whole:
            doubted = {refused.uri for refused in listing.refused}
            kept = {uri: entry for uri, entry in self._whole.items() if uri not in doubted}
            listed = {**kept, **listed}
        self._unlisted = {uri: entry for uri, entry in self._unlisted.items() if uri not in listed}
        self._renewals.clear()
        label = self.origin.label
        nested: dict[str, str] = {}
        if self._top_level_only:
            listed, nested = top_level(listed)
        hidden = chain((_hidden(label, refused) for refused in listing.refused), skipped(label, nested))
        self.hidden = tuple(islice(hidden, MAX_HIDDEN))
        self.remarks = tuple(_remark(label, *remark) for remark in listing.remarks[:MAX_REMARKS])
        self.templates = tuple(
            KnownTemplate(self.origin, template) for template in listing.templates[:MAX_TEMPLATES]
        )
        self.dialect = listing.dialect
        self._name(listed)
        if problem is None:
            self.aftermath.take(self._skills.values())
        self._settle("listed", asked, now, now + fresh_seconds(listing.ttl_ms))
        self._status = replace(
            self._status, listed=len(listed), refused=len(listing.refused), problem=problem, listed_at=now
        )

    def take_none(self, *, asked: tuple[int, int], now: float) -> None:
        """Note that the server does not offer skills."""
        self._whole, self._unlisted, self._skills, self.hidden = {}, {}, {}, ()
        self.remarks, self.templates = (), ()
        self.aftermath.take(())
        self._status = ServerStatus(self.origin)
        self._settle("no-skills", asked, now, now + MAX_SECONDS)

    def fail(self, problem: Refusal, now: float) -> None:
        """Note that the server could not be asked; what was known of it stays."""
        self._tried_at = now
        self._status = replace(self._status, state="failed", problem=problem, fresh_until=None)

    @property
    def was_never_listed(self) -> bool:
        return self._status.listed_at is None and not self._skills

    def take_offline(self, skills: Iterable[KnownSkill]) -> None:
        """Take skills that were approved and cached while the server could still be asked."""
        own = {skill.id.uri: skill for skill in skills if skill.id.origin == self.origin}
        references = references_for(self.origin.label, own)
        self._skills = {uri: replace(skill, reference=references[uri]) for uri, skill in own.items()}

    def put(self, entry: SkillEntry) -> KnownSkill:
        """Take one entry that `skills/get` answered with, and return its record.

        Raises:
            NestedSkillError: It is inside a skill that is known, and such are not wanted.
        """
        uri = entry.uri.text
        if self._top_level_only:
            require_top_level(self.origin.label, uri, self._skills)
        known = self._skills.get(uri)
        if known is not None and known.is_listed:
            self._skills[uri] = replace(known, entry=entry, offline_since=None)
            if uri in self._whole:
                self._whole[uri] = entry
            return self._skills[uri]
        self._unlisted.pop(uri, None)
        self._unlisted[uri] = entry
        self._skills[uri] = self._unlisted_record(entry)
        if len(self._unlisted) > MAX_UNLISTED:
            oldest = next(iter(self._unlisted))
            del self._unlisted[oldest], self._skills[oldest]
        return self._skills[uri]

    def drop(self, uri: str) -> None:
        """Forget a skill that the server serves no more; others may get a shorter reference by that."""
        for known in (self._skills, self._whole, self._unlisted):
            known.pop(uri, None)
        listed = [other for other, skill in self._skills.items() if skill.is_listed]
        for other, reference in references_for(self.origin.label, listed).items():
            if self._skills[other].reference != reference:
                self._skills[other] = replace(self._skills[other], reference=reference)
        if self._status.listed_at is not None:
            self._status = replace(self._status, listed=len(listed))
            self.aftermath.take(self._skills.values())

    def _name(self, listed: dict[str, SkillEntry]) -> None:
        origin = self.origin
        references = references_for(origin.label, listed)
        self._skills = {
            uri: KnownSkill(SkillId(origin, uri), references[uri], entry, self.dialect)
            for uri, entry in listed.items()
        }
        for uri, entry in self._unlisted.items():
            self._skills[uri] = self._unlisted_record(entry)

    def _unlisted_record(self, entry: SkillEntry) -> KnownSkill:
        uri = entry.uri.text
        reference = full_reference(self.origin.label, uri)
        return KnownSkill(SkillId(self.origin, uri), reference, entry, self.dialect, is_listed=False)

    def _settle(self, state: ServerState, asked: tuple[int, int], now: float, until: float) -> None:
        if asked != self._asked:
            self._mentioned = set()
        self._asked, self._tried_at = asked, None
        self._status = replace(self._status, state=state, fresh_until=until)


def _hidden(label: str, refused: RefusedEntry) -> Refusal:
    subject = (
        f"{label}/{refused.uri}" if refused.uri is not None else f"{label}: entry {refused.position + 1}"
    )
    return Refusal.of_findings(refused.findings, _short(subject))


def _remark(label: str, uri: str, finding: Finding) -> Refusal:
    words = f"{finding.message} [{finding.code}]"
    return Refusal("entry-remark", _short(f"{label}/{uri}"), words, finding.rule, finding.fix)


def _short(subject: str) -> str:
    return subject if len(subject) <= _LONGEST_SUBJECT else subject[: _LONGEST_SUBJECT - 1] + "…"
