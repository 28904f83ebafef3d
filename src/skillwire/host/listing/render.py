"""The list of skills for a model's context as one text, and its changes in a conversation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final

from skillwire.host.listing.layout import ListLayout, OriginContents, OriginKey, Section, SectionLayout, fit
from skillwire.host.listing.rows import Shown
from skillwire.host.listing.text import (
    MAX_REFERENCE,
    REMOVED,
    UNANSWERED,
    UNREACHABLE,
    WRITERS,
    ChangeMark,
    ListingForm,
    ListingWriter,
    OriginHeading,
    Wording,
    clean,
)
from skillwire.host.model import (
    KnownSkill,
    Origin,
    ServerStatus,
    ShowRule,
    ShowRules,
    TokenCounter,
    Trust,
    estimated_tokens,
)

DEFAULT_BUDGET: Final = 4_000


@dataclass(frozen=True, slots=True)
class RenderedListing:
    """A list of skills for a model: the text, its tokens, and how each skill is shown.

    `full`, `shortened` and `names` are references, by how much of the
    description is shown; `left_out` is the number of skills that are only
    counted.
    """

    text: str
    tokens: int
    full: tuple[str, ...] = ()
    shortened: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    left_out: int = 0


def render(
    skills: Sequence[KnownSkill],
    show_rules: ShowRules,
    *,
    form: ListingForm = ListingForm.COMPACT,
    budget_tokens: int = DEFAULT_BUDGET,
    server_budgets: Mapping[str, int] | None = None,
    count: TokenCounter = estimated_tokens,
    has_search: bool = True,
) -> RenderedListing:
    """List the skills a model may load, in at most `budget_tokens` by the given counter.

    The same skills give the same bytes, whatever their order. A server takes
    at most its budget, by default the one in the settings, and at most an
    equal share of what the others leave. If the budget is short, descriptions
    are shortened first, then omitted, and skills that do not fit are counted.
    When not even one skill fits, the text gives only their number, and when
    that does not fit either, or there are no skills, it is empty.
    """
    listed, _ = render_contents(
        contents_of(skills, show_rules),
        form=form,
        budget_tokens=budget_tokens,
        server_budgets=show_rules.budgets if server_budgets is None else server_budgets,
        count=count,
        has_search=has_search,
    )
    return listed


def render_contents(
    contents: Sequence[OriginContents],
    *,
    form: ListingForm,
    budget_tokens: int,
    server_budgets: Mapping[str, int],
    count: TokenCounter,
    has_search: bool,
) -> tuple[RenderedListing, ListLayout | None]:
    """Render a list as `render` does, and also return its layout, if it shows any skill."""
    if not contents:
        return RenderedListing("", 0), None
    writer, wording = WRITERS[form], Wording(has_search)
    sections = [Section(own, writer, wording) for own in contents]
    caps = {(True, label): cap for label, cap in server_budgets.items()}
    fitting = fit(sections, writer, wording, budget_tokens, caps, count)
    if fitting is not None:
        return _rendered_listing(*fitting), fitting[0]
    total = sum(section.count for section in sections)
    if not total:
        return RenderedListing("", 0), None
    text = writer.count_only(wording, total)
    if budget_tokens > 0 and (tokens := count(text)) <= budget_tokens:
        return RenderedListing(text, tokens, left_out=total), None
    return RenderedListing("", 0, left_out=total), None


def contents_of(
    skills: Iterable[KnownSkill], show_rules: ShowRules, servers: Iterable[ServerStatus] = ()
) -> list[OriginContents]:
    """Group the skills that a model may load by origin: local ones first, then servers by label.

    Those of `servers` that have never answered get a note instead.
    """
    found: dict[tuple[bool, str], _OriginSkills | None] = {}
    origin: Origin | None = None
    own: _OriginSkills | None = None
    # Looked up once, because the loop runs for every skill.
    rule_of, normal = show_rules.of, ShowRule.NORMAL
    for skill in show_rules.in_order(skills):
        if skill.id.origin is not origin:
            origin = skill.id.origin
            key = (origin.is_remote, origin.label)
            if key not in found:
                # Skills that may never be loaded are not listed.
                is_never_loaded = show_rules.trust(skill) is Trust.NEVER
                found[key] = None if is_never_loaded else _OriginSkills(origin)
            own = found[key]
        if own is None:
            continue
        shown = rule_of(skill)
        if shown is not normal:
            own.add(skill, shown)
        elif len(skill.reference) > MAX_REFERENCE:
            own.unlisted += 1
        else:
            own.others.append(skill)
    notes = {note.key: note for status in servers if (note := _note_on(status)) and note.key not in found}
    known = {key: own.contents() for key, own in found.items() if own is not None} | notes
    ordered = [content for _, content in sorted(known.items(), key=itemgetter(0))]
    return [content for content in ordered if content.count or content.note]


def _note_on(status: ServerStatus) -> OriginContents | None:
    """Return a note for a server that has never answered; None for one that has."""
    if not status.is_unanswered:
        return None
    # The note is the host's own text, so it is not marked as unverified.
    heading = replace(OriginHeading.of(status.origin), is_remote=False)
    note = UNANSWERED if status.state == "waiting" else UNREACHABLE
    return OriginContents((status.origin.is_remote, status.origin.label), heading, note=note)


@dataclass(slots=True)
class _OriginSkills:
    origin: Origin
    pins: list[KnownSkill] = field(default_factory=list[KnownSkill])
    others: list[KnownSkill] = field(default_factory=list[KnownSkill])
    names_only: set[str] = field(default_factory=set[str])
    unlisted: int = 0

    def add(self, skill: KnownSkill, rule: ShowRule) -> None:
        if rule in (ShowRule.MANUAL, ShowRule.OFF):
            return
        if len(skill.reference) > MAX_REFERENCE:
            self.unlisted += 1
        elif rule is ShowRule.PIN:
            self.pins.append(skill)
        else:
            self.others.append(skill)
            if rule is ShowRule.NAME_ONLY:
                self.names_only.add(skill.reference)

    def contents(self) -> OriginContents:
        key = (self.origin.is_remote, self.origin.label)
        heading = OriginHeading.of(self.origin)
        return OriginContents(key, heading, self.pins, self.others, frozenset(self.names_only), self.unlisted)


def _rendered_listing(layout: ListLayout, tokens: int) -> RenderedListing:
    full: list[str] = []
    shortened: list[str] = []
    names: list[str] = []
    for part in layout.sections:
        for row, text in part.shown:
            if not text:
                names.append(row.skill.reference)
            elif text == row.description.escaped and not row.description.is_cut:
                full.append(row.skill.reference)
            else:
                shortened.append(row.skill.reference)
    return RenderedListing(layout.text, tokens, tuple(full), tuple(shortened), tuple(names), layout.left_out)


# `FrozenListing`: the text for a conversation, and later changes.


# What was listed of one origin's skills in a conversation, and what has changed since.


ADDED = ChangeMark("added")
CHANGED = ChangeMark("changed")


@dataclass(frozen=True, slots=True)
class ListedSkill:
    """A skill that is in the list; `description` is None when only its name is."""

    skill: KnownSkill
    description: str | None


@dataclass(slots=True)
class ListedOrigin:
    """One origin as listed so far: the `listed` skills, and the URIs of all `known` ones, by reference.

    `spent` is the number of tokens of its changes so far. A dropped origin was
    removed from the list for good.
    """

    heading: OriginHeading
    listed: dict[str, ListedSkill] = field(default_factory=dict[str, ListedSkill])
    known: Mapping[str, str] = field(default_factory=dict[str, str])
    spent: int = 0
    is_dropped: bool = False

    def record(self, contents: OriginContents, shown: Iterable[Shown]) -> None:
        """Record the current contents and which of them were shown."""
        for row, text in shown:
            if row.mark is not None and row.mark.was:
                self.listed = {
                    reference: listed
                    for reference, listed in self.listed.items()
                    if listed.skill.id.uri != row.skill.id.uri
                }
            if row.mark is REMOVED:
                self.listed.pop(row.skill.reference, None)
            else:
                self.listed[row.skill.reference] = ListedSkill(
                    row.skill, row.description.text if text else None
                )
        self.known = {skill.reference: skill.id.uri for skill in (*contents.pins, *contents.others)}

    def differences(self, now: OriginContents, writer: ListingWriter) -> OriginContents | None:
        """Return the lines that bring the list up to date; None when nothing has changed.

        Changes of listed skills come first, as pins. New skills follow; they
        may also be counted only.
        """
        current = {skill.reference: skill for skill in (*now.pins, *now.others)}
        marks: dict[str, ChangeMark] = {}
        lines: dict[str, KnownSkill] = {}
        moved = {
            listed.skill.id.uri: reference
            for reference, listed in self.listed.items()
            if reference not in current
        }
        for reference, skill in current.items():
            listed = self.listed.get(reference)
            if listed is not None:
                if self._has_changed(listed, skill, now):
                    marks[reference], lines[reference] = CHANGED, skill
            elif (was := moved.pop(skill.id.uri, None)) is not None:
                marks[reference], lines[reference] = ChangeMark("renamed", writer.reference(was)), skill
            elif reference not in self.known:
                marks[reference] = ADDED
        for reference in moved.values():
            marks[reference], lines[reference] = REMOVED, self.listed[reference].skill
        if not marks:
            return None
        return replace(
            now,
            pins=[lines[reference] for reference in sorted(lines)],
            others=[current[reference] for reference in sorted(marks) if marks[reference] is ADDED],
            names_only=now.names_only | {reference for reference in lines if marks[reference] is REMOVED},
            unlisted=0,
            marks=marks,
            qualifier=" added",
        )

    def _has_changed(self, listed: ListedSkill, skill: KnownSkill, now: OriginContents) -> bool:
        if (
            listed.description is None
            or skill.entry is listed.skill.entry
            or skill.reference in now.names_only
        ):
            return False
        return clean(skill.description)[0] != listed.description


CHANGES_BUDGET: Final = 1_000
ORIGIN_BUDGET: Final = 2_000
"""The tokens that changes of one origin may take in a conversation; beyond that they are not reported."""


class FrozenListing:
    """The list of skills in one conversation: rendered once, and then only appended to."""

    def __init__(self) -> None:
        self.listed: RenderedListing | None = None
        self._form = ListingForm.COMPACT
        self._budget = 0
        self._count: TokenCounter = estimated_tokens
        self._has_search = True
        self._origins: dict[OriginKey, ListedOrigin] = {}
        self._was_empty = False
        self._is_given = False
        self.has_changes = False
        self._checked: tuple[Sequence[KnownSkill], ShowRules] | None = None

    def text(
        self,
        skills: Sequence[KnownSkill],
        show_rules: ShowRules,
        *,
        form: ListingForm = ListingForm.COMPACT,
        budget_tokens: int = DEFAULT_BUDGET,
        server_budgets: Mapping[str, int] | None = None,
        count: TokenCounter = estimated_tokens,
        has_search: bool = True,
        servers: Sequence[ServerStatus] = (),
    ) -> str:
        """Return the list as `render` does at the first call, and the same bytes afterwards.

        The arguments of later calls make no difference. Those of `servers`
        that have not answered are named in the list.
        """
        if self.listed is None:
            self._form, self._budget, self._count, self._has_search = form, budget_tokens, count, has_search
            budgets = show_rules.budgets if server_budgets is None else server_budgets
            self.listed = self._render_first(contents_of(skills, show_rules, servers), budget_tokens, budgets)
        return self.listed.text

    def changes(
        self,
        skills: Sequence[KnownSkill],
        show_rules: ShowRules,
        *,
        budget_tokens: int = CHANGES_BUDGET,
        origin_budget: int = ORIGIN_BUDGET,
    ) -> str:
        """Return a text to append to the list and its earlier changes; empty when nothing changed.

        The text takes at most `budget_tokens`; origins that do not fit follow
        at a later call. An origin that changed too much is listed again,
        replacing its earlier lines. When its changes would take more than
        `origin_budget` in total, it is removed from the list and not reported
        again. If the first list was empty, the first skills are returned as a
        new list.
        """
        if self.listed is None or not (self._is_given or self._was_empty):
            return ""
        if self._checked is not None and self._checked[0] is skills and self._checked[1] is show_rules:
            return ""
        contents = {own.key: own for own in contents_of(skills, show_rules)}
        if self._was_empty:
            budget = min(budget_tokens, self._budget)
            text = self._render_first(list(contents.values()), budget, show_rules.budgets).text
            self.has_changes = bool(text)
            return text
        drafts = [
            draft
            for key, origin in self._origins_for(contents).items()
            if (
                draft := self._draft(
                    origin, _contents_of(contents, key, origin), budget_tokens, origin_budget
                )
            )
        ]
        given = self._fit_drafts(drafts, budget_tokens, origin_budget)
        if given is None:
            # A tuple does not change, so the same one need not be compared again.
            is_same_later = isinstance(skills, tuple) and show_rules.is_static
            self._checked = (skills, show_rules) if not drafts and is_same_later else None
            return ""
        for part in given.sections:
            self._record(part, contents)
        self._checked = None
        self.has_changes = True
        return given.text

    def _render_first(
        self, contents: Sequence[OriginContents], budget: int, server_budgets: Mapping[str, int]
    ) -> RenderedListing:
        listed, layout = render_contents(
            contents,
            form=self._form,
            budget_tokens=budget,
            server_budgets=server_budgets,
            count=self._count,
            has_search=self._has_search,
        )
        self._is_given = bool(listed.text)
        self._was_empty = not self._is_given and not any(own.count for own in contents)
        shown = {part.section.contents.key: part.shown for part in layout.sections} if layout else {}
        for own in contents:
            origin = self._origins[own.key] = ListedOrigin(own.heading)
            origin.record(own, shown.get(own.key, ()))
        return listed

    def _origins_for(self, contents: Mapping[OriginKey, OriginContents]) -> dict[OriginKey, ListedOrigin]:
        """Return the records of all origins, new ones included, in the order of the list."""
        for key, own in contents.items():
            if key not in self._origins:
                self._origins[key] = ListedOrigin(own.heading)
        return {key: origin for key, origin in sorted(self._origins.items(), key=lambda pair: pair[0])}

    def _draft(
        self, origin: ListedOrigin, now: OriginContents, budget: int, origin_budget: int
    ) -> Section | None:
        """Return the update for an origin: its changes, its complete list, or its removal."""
        if origin.is_dropped:
            return None
        changed = origin.differences(now, WRITERS[self._form])
        if changed is None:
            return None
        caps = {now.key: origin_budget - origin.spent}
        heading = replace(now.heading, is_replaced=True)
        for contents in (changed, replace(now, heading=heading)):
            section = self._section(contents)
            layout = self._fit([section], budget, caps)
            if layout is not None and _is_complete(section, layout):
                return section
        return self._section(OriginContents(now.key, heading, unlisted=now.count))

    def _fit_drafts(self, drafts: list[Section], budget: int, origin_budget: int) -> ListLayout | None:
        """Return a layout of as many drafts as fit together; None when none fits."""
        while drafts:
            caps = {
                draft.contents.key: origin_budget - self._origins[draft.contents.key].spent
                for draft in drafts
                if draft.contents.has_lines
            }
            layout = self._fit(drafts, budget, caps)
            complete = [draft for draft in drafts if layout is not None and _is_complete(draft, layout)]
            if len(complete) == len(drafts):
                return layout
            # Each draft fits alone, unless not even the shortest one does.
            drafts = complete or drafts[: len(drafts) // 2]
        return None

    def _fit(
        self, sections: Sequence[Section], budget: int, caps: Mapping[OriginKey, int]
    ) -> ListLayout | None:
        fitting = fit(sections, WRITERS[self._form], self._wording, budget, caps, self._count)
        return None if fitting is None else fitting[0]

    def _record(self, part: SectionLayout, contents: Mapping[OriginKey, OriginContents]) -> None:
        written = part.section.contents
        origin = self._origins[written.key]
        if written.heading.is_replaced:
            origin.listed = {}
            origin.is_dropped = not written.has_lines and written.count > 0
        origin.record(_contents_of(contents, written.key, origin), part.shown)
        origin.spent += self._count(part.text())

    def _section(self, contents: OriginContents) -> Section:
        return Section(contents, WRITERS[self._form], self._wording)

    @property
    def _wording(self) -> Wording:
        return Wording(self._has_search, is_change=True)


def _contents_of(
    contents: Mapping[OriginKey, OriginContents], key: OriginKey, origin: ListedOrigin
) -> OriginContents:
    return contents.get(key) or OriginContents(key, origin.heading)


def _is_complete(section: Section, layout: ListLayout) -> bool:
    """Return whether a layout shows all required lines of a section; new skills may be counted only."""
    part = next((part for part in layout.sections if part.section is section), None)
    if part is None:
        return False
    if section.contents.marks is None:
        return True
    shown = {
        row.skill.reference
        for row, text in part.shown
        if text or row.mark is not CHANGED or not row.description.text
    }
    return all(skill.reference in shown for skill in section.contents.pins)
