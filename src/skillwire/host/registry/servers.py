"""`ServerRecord`: what is known of one server's skills, and how long it is fresh."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Final, Protocol

from skillwire.core import Dialect, Finding, SkillEntry, SkillUri, quoted
from skillwire.host.calls import Listing, RefusedEntry
from skillwire.host.model import (
    KnownSkill,
    KnownTemplate,
    Origin,
    Refusal,
    ServerState,
    ServerStatus,
    SkillId,
    full_reference,
    references_for,
    require_top_level,
    skipped,
    top_level,
)

# The history of an origin's listing: which skills were removed, and which got another reference.


MAX_REMEMBERED: Final = 100
"""The maximum number of removed and of renamed skills remembered for one origin; the oldest are dropped."""


class ListingHistory:
    """The skills that one origin removed or renamed since the host was opened.

    A skill that comes back, or gets its old reference back, is dropped from
    the history.
    """

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        self._renamed: dict[str, str] = {}
        self._now: dict[str, str] = {}

    def update(self, skills: Iterable[KnownSkill]) -> None:
        """Compare with a complete listing of the origin; do not pass incomplete ones."""
        now = {skill.id.uri: skill.reference for skill in skills if skill.is_listed}
        for uri, reference in self._before.items():
            current = now.get(uri)
            if current is None:
                self._gone[uri] = reference
            elif current != reference:
                self._renamed.setdefault(uri, reference)
        self._gone = _bounded({uri: was for uri, was in self._gone.items() if uri not in now})
        self._renamed = _bounded({uri: was for uri, was in self._renamed.items() if now.get(uri, was) != was})
        self._before, self._now = now, {uri: now[uri] for uri in self._renamed}

    def notices(self) -> Iterator[Refusal]:
        """Yield a notice for each removed and each renamed skill."""
        taken = set(self._before.values())
        for uri, was in self._gone.items():
            other = "; another skill has this reference now" if was in taken else ""
            yield Refusal("vanished", was, f"it was {quoted(uri)}{other}")
        for uri, was in self._renamed.items():
            yield Refusal(
                "reference-changed", was, f"it is {self._now[uri]} now", candidates=(self._now[uri],)
            )


def _bounded(found: Mapping[str, str]) -> dict[str, str]:
    return dict(list(found.items())[-MAX_REMEMBERED:])


MIN_SECONDS: Final = 5.0
MAX_SECONDS: Final = 3600.0
MAX_UNLISTED: Final = 1_000
MAX_HIDDEN: Final = 1_000
MAX_TEMPLATES: Final = 100
MAX_REMARKS: Final = 200

_LONGEST_SUBJECT = 200


def fresh_seconds(ttl_ms: float | None) -> float:
    """Return for how long a listing is fresh: the server's TTL, within bounds."""
    if ttl_ms is None or not ttl_ms > 0 or (isinstance(ttl_ms, float) and math.isnan(ttl_ms)):
        return MIN_SECONDS
    return max(MIN_SECONDS, min(ttl_ms, MAX_SECONDS * 1000) / 1000)


class ServerRecord:
    """The skills of one server: listed, unlisted, or cached under an earlier approval.

    An incomplete listing is merged into the last complete one. A failure
    removes nothing. Unlisted skills stay until the server reports that it does
    not serve them. With `top_level_only`, skills inside listed ones are hidden.
    """

    def __init__(self, origin: Origin, *, top_level_only: bool = False) -> None:
        self.origin = origin
        self.hidden: tuple[Refusal, ...] = ()
        self.remarks: tuple[Refusal, ...] = ()
        self.templates: tuple[KnownTemplate, ...] = ()
        self.history = ListingHistory()
        self._top_level_only = top_level_only
        self.signals = 0
        """The number of signals that the listing may have changed."""
        self._status = ServerStatus(origin)
        self.dialect = Dialect.CORE
        self._skills: dict[str, KnownSkill] = {}
        self._last_complete: dict[str, SkillEntry] = {}
        self._unlisted: dict[str, SkillEntry] = {}
        self._asked: tuple[int, int] | None = None
        self._failed_at: float | None = None
        self._asked_uris: set[str] = set()
        self._renewals: dict[str, tuple[int, int, float]] = {}
        self._renewed_since_listing: set[str] = set()

    @property
    def problem(self) -> Refusal | None:
        """The error of the last request, if it failed."""
        return self._status.problem

    @property
    def skills(self) -> Iterable[KnownSkill]:
        return self._skills.values()

    def find(self, uri: str) -> KnownSkill | None:
        return self._skills.get(uri)

    def by_reference(self, reference: str) -> KnownSkill | None:
        """Return the skill with exactly this reference."""
        return next((skill for skill in self._skills.values() if skill.reference == reference), None)

    def unconfirmed(self, uris: Iterable[str]) -> list[str]:
        """Return the URIs that are not known skills and were not looked up since the last change."""
        new = [uri for uri in uris if uri not in self._skills and uri not in self._asked_uris]
        self._asked_uris.update(new)
        return new

    def is_fresh(self, epoch: int, now: float) -> bool:
        """Return whether the listing is fresh: not expired, same connection, and no signal since."""
        until = self._status.fresh_until
        return until is not None and now < until and self._asked == (epoch, self.signals)

    def failed_recently(self, now: float) -> bool:
        """Return whether the server failed so recently that another request would only cost time."""
        return self._failed_at is not None and now < self._failed_at + MIN_SECONDS

    def was_renewed_recently(self, uri: str, epoch: int, now: float) -> bool:
        """Return whether this entry was fetched very recently, with no signal since."""
        asked, signals, at = self._renewals.get(uri, (-1, -1, -math.inf))
        return (asked, signals) == (epoch, self.signals) and now < at + MIN_SECONDS

    def begin_listing(self) -> None:
        """Start tracking the entries that are renewed while the server is listed."""
        self._renewed_since_listing.clear()

    def reconciled(self, listing: Listing) -> Listing:
        """Return a listing with the newer entries that were fetched one by one since it was started."""
        newer = {uri: self._skills[uri].entry for uri in self._renewed_since_listing if uri in self._skills}
        if not newer:
            return listing
        entries = tuple(newer.get(entry.uri.text, entry) for entry in listing.entries)
        return replace(listing, entries=entries)

    def note_renewal(self, uri: str, epoch: int, now: float) -> None:
        self._renewals[uri] = (epoch, self.signals, now)
        self._renewed_since_listing.add(uri)

    def status(self, epoch: int, now: float) -> ServerStatus:
        if self._status.state == "listed" and not self.is_fresh(epoch, now):
            return replace(self._status, state="stale")
        return self._status

    def apply_listing(
        self, listing: Listing, problem: Refusal | None, *, asked: tuple[int, int], now: float
    ) -> None:
        """Apply a listing requested at `asked`: the connection's epoch and the number of signals then."""
        listed = {entry.uri.text: entry for entry in listing.entries}
        if problem is None:
            self._last_complete = listed
        elif self._last_complete:
            refused_uris = {refused.uri for refused in listing.refused}
            kept = {uri: entry for uri, entry in self._last_complete.items() if uri not in refused_uris}
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
        self._assign_references(listed)
        if problem is None:
            self.history.update(self._skills.values())
        self._mark_asked("listed", asked, now, now + fresh_seconds(listing.ttl_ms))
        self._status = replace(
            self._status, listed=len(listed), refused=len(listing.refused), problem=problem, listed_at=now
        )

    def mark_without_skills(self, *, asked: tuple[int, int], now: float) -> None:
        """Record that the server does not serve skills."""
        self._last_complete, self._unlisted, self._skills, self.hidden = {}, {}, {}, ()
        self.remarks, self.templates = (), ()
        self.history.update(())
        self._status = ServerStatus(self.origin)
        self._mark_asked("no-skills", asked, now, now + MAX_SECONDS)

    def mark_failed(self, problem: Refusal, now: float) -> None:
        """Record a failed request; the known skills stay."""
        self._failed_at = now
        self._status = replace(self._status, state="failed", problem=problem, fresh_until=None)

    @property
    def was_never_listed(self) -> bool:
        return self._status.listed_at is None and not self._skills

    def use_offline(self, skills: Iterable[KnownSkill]) -> None:
        """Use skills that were approved and cached before the server became unavailable."""
        own = {skill.id.uri: skill for skill in skills if skill.id.origin == self.origin}
        references = references_for(self.origin.label, own)
        self._skills = {uri: replace(skill, reference=references[uri]) for uri, skill in own.items()}

    def put(self, entry: SkillEntry) -> KnownSkill:
        """Store one entry from `skills/get`, and return its record.

        Raises:
            NestedSkillError: It is inside a known skill, and only top-level skills are used.
        """
        uri = entry.uri.text
        if self._top_level_only:
            require_top_level(self.origin.label, uri, self._skills)
        known = self._skills.get(uri)
        if known is not None and known.is_listed:
            self._skills[uri] = replace(known, entry=entry, offline_since=None)
            if uri in self._last_complete:
                self._last_complete[uri] = entry
            return self._skills[uri]
        self._unlisted.pop(uri, None)
        self._unlisted[uri] = entry
        self._skills[uri] = self._unlisted_record(entry)
        if len(self._unlisted) > MAX_UNLISTED:
            oldest = next(iter(self._unlisted))
            del self._unlisted[oldest], self._skills[oldest]
        return self._skills[uri]

    def drop(self, uri: str) -> None:
        """Remove a skill that the server no longer serves; others may get a shorter reference."""
        for known in (self._skills, self._last_complete, self._unlisted):
            known.pop(uri, None)
        listed = [other for other, skill in self._skills.items() if skill.is_listed]
        for other, reference in references_for(self.origin.label, listed).items():
            if self._skills[other].reference != reference:
                self._skills[other] = replace(self._skills[other], reference=reference)
        if self._status.listed_at is not None:
            self._status = replace(self._status, listed=len(listed))
            self.history.update(self._skills.values())

    def _assign_references(self, listed: dict[str, SkillEntry]) -> None:
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

    def _mark_asked(self, state: ServerState, asked: tuple[int, int], now: float, until: float) -> None:
        if asked != self._asked:
            self._asked_uris = set()
        self._asked, self._failed_at = asked, None
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


# `RemoteServer`: the part of a server connection that the registry uses.


class RemoteServer(Protocol):
    """A server that lists skills. Every call has a deadline and raises only `SkillError`."""

    @property
    def origin(self) -> Origin: ...

    @property
    def epoch(self) -> int:
        """A number that grows with every new connection."""
        ...

    @property
    def instructions(self) -> str: ...

    async def connect(self, *, at_once: bool = False) -> None:
        """Connect if needed; with `at_once`, without waiting for the backoff after failures."""
        ...

    async def list_skills(self) -> Listing:
        """Return the server's listing, in whatever dialect it uses.

        Raises:
            NotDeclaredError: The server supports no skills dialect.
        """
        ...

    async def get_skill(self, uri: SkillUri | str) -> SkillEntry: ...
