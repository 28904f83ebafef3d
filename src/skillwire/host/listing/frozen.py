"""A list that does not change during a conversation, so that prompt caches hold, and its later changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from skillwire.host.listing.layout import ListLayout, OriginContents, OriginKey, Section, SectionLayout, fit
from skillwire.host.listing.render import DEFAULT_BUDGET, RenderedListing, contents_of, render_contents
from skillwire.host.listing.rows import Shown
from skillwire.host.listing.text import (
    REMOVED,
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
    ServerStatus,
    ShowRules,
    TokenCounter,
    estimated_tokens,
)

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
