"""A list that stays as it was given, so that prompt caches hold, and what to add to it later."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from skillwire.host.attention import Attentions
from skillwire.host.listing.differences import CHANGED, Memory
from skillwire.host.listing.fitting import fit
from skillwire.host.listing.forms import ListingForm
from skillwire.host.listing.layout import Laid
from skillwire.host.listing.rendering import DEFAULT_BUDGET, Listed, contents_of, rendered
from skillwire.host.listing.sections import Arranged, Contents, OriginKey, Section
from skillwire.host.listing.tokens import TokenCounter, estimated_tokens
from skillwire.host.listing.wording import Wording
from skillwire.host.listing.writing import WRITERS
from skillwire.host.registry.known import KnownSkill

CHANGES_BUDGET: Final = 1_000
ORIGIN_BUDGET: Final = 2_000
"""The tokens that changes of one origin may take in a conversation: a restless server is not followed."""


class FrozenListing:
    """The list of skills in one conversation: given once, and then only added to."""

    def __init__(self) -> None:
        self.listed: Listed | None = None
        self._form = ListingForm.COMPACT
        self._budget = 0
        self._count: TokenCounter = estimated_tokens
        self._has_search = True
        self._memories: dict[OriginKey, Memory] = {}
        self._is_blank = False
        self._is_given = False
        self._seen: tuple[Sequence[KnownSkill], Attentions] | None = None

    def text(
        self,
        skills: Sequence[KnownSkill],
        attention: Attentions,
        *,
        form: ListingForm = ListingForm.COMPACT,
        budget_tokens: int = DEFAULT_BUDGET,
        server_budgets: Mapping[str, int] | None = None,
        count: TokenCounter = estimated_tokens,
        has_search: bool = True,
    ) -> str:
        """Return the list as `render` makes it the first time, and the same bytes ever after.

        What is passed later, skills and options alike, makes no difference.
        """
        if self.listed is None:
            self._form, self._budget, self._count, self._has_search = form, budget_tokens, count, has_search
            budgets = attention.budgets if server_budgets is None else server_budgets
            self.listed = self._begin(contents_of(skills, attention), budget_tokens, budgets)
        return self.listed.text

    def changes(
        self,
        skills: Sequence[KnownSkill],
        attention: Attentions,
        *,
        budget_tokens: int = CHANGES_BUDGET,
        origin_budget: int = ORIGIN_BUDGET,
    ) -> str:
        """Return what to append because the list, with all changes given before, no longer holds.

        Empty when it does. The text takes at most `budget_tokens`; origins
        for which no room is left come the next time. An origin that changed
        too much is listed anew in place of all that was said of it. When its
        changes would take more than `origin_budget` in all, it is taken out of
        the list instead, and not spoken of again. Where there was nothing to
        list at first, the first skills come as a list of their own.
        """
        if self.listed is None or not (self._is_given or self._is_blank):
            return ""
        if self._seen is not None and self._seen[0] is skills and self._seen[1] is attention:
            return ""
        contents = {own.key: own for own in contents_of(skills, attention)}
        if self._is_blank:
            budget = min(budget_tokens, self._budget)
            return self._begin(list(contents.values()), budget, attention.budgets).text
        drafts = [
            draft
            for key, memory in self._memories_of(contents).items()
            if (draft := self._draft(memory, _own(contents, key, memory), budget_tokens, origin_budget))
        ]
        given = self._fitting(drafts, budget_tokens, origin_budget)
        if given is None:
            # A tuple never changes, so the same one needs no second look.
            is_same_later = isinstance(skills, tuple) and attention.is_settled
            self._seen = (skills, attention) if not drafts and is_same_later else None
            return ""
        for part in given.arranged:
            self._note(part, contents)
        self._seen = None
        return given.text

    def _begin(self, contents: Sequence[Contents], budget: int, server_budgets: Mapping[str, int]) -> Listed:
        listed, laid = rendered(
            contents,
            form=self._form,
            budget_tokens=budget,
            server_budgets=server_budgets,
            count=self._count,
            has_search=self._has_search,
        )
        self._is_blank, self._is_given = not contents, bool(listed.text)
        shown = {part.section.contents.key: part.shown for part in laid.arranged} if laid else {}
        for own in contents:
            memory = self._memories[own.key] = Memory(own.place)
            memory.note(own, shown.get(own.key, ()))
        return listed

    def _memories_of(self, contents: Mapping[OriginKey, Contents]) -> dict[OriginKey, Memory]:
        """Return what is known of all origins, those that have come since too, in the order of a list."""
        for key, own in contents.items():
            if key not in self._memories:
                self._memories[key] = Memory(own.place)
        return {key: memory for key, memory in sorted(self._memories.items(), key=lambda pair: pair[0])}

    def _draft(self, memory: Memory, now: Contents, budget: int, origin_budget: int) -> Section | None:
        """Return what there is to say of an origin: its changes, all of it anew, or that it is let go."""
        if memory.is_silent:
            return None
        changed = memory.differences(now, WRITERS[self._form])
        if changed is None:
            return None
        caps = {now.key: origin_budget - memory.spent}
        place = replace(now.place, is_replaced=True)
        for contents in (changed, replace(now, place=place)):
            section = self._section(contents)
            laid = self._fit([section], budget, caps)
            if laid is not None and _is_said(section, laid):
                return section
        return self._section(Contents(now.key, place, unlisted=now.count))

    def _fitting(self, drafts: list[Section], budget: int, origin_budget: int) -> Laid | None:
        """Return as many drafts as fit beside each other, or one of them."""
        while drafts:
            caps = {
                draft.contents.key: origin_budget - self._memories[draft.contents.key].spent
                for draft in drafts
                if draft.contents.has_lines
            }
            laid = self._fit(drafts, budget, caps)
            said = [draft for draft in drafts if laid is not None and _is_said(draft, laid)]
            if len(said) == len(drafts):
                return laid
            # Each of them fits alone, unless not even the shortest does.
            drafts = said or drafts[: len(drafts) // 2]
        return None

    def _fit(self, sections: Sequence[Section], budget: int, caps: Mapping[OriginKey, int]) -> Laid | None:
        fitting = fit(sections, WRITERS[self._form], self._wording, budget, caps, self._count)
        return None if fitting is None else fitting[0]

    def _note(self, part: Arranged, contents: Mapping[OriginKey, Contents]) -> None:
        said = part.section.contents
        memory = self._memories[said.key]
        if said.place.is_replaced:
            memory.told = {}
            memory.is_silent = not said.has_lines and said.count > 0
        memory.note(_own(contents, said.key, memory), part.shown)
        memory.spent += self._count(part.written())

    def _section(self, contents: Contents) -> Section:
        return Section(contents, WRITERS[self._form], self._wording)

    @property
    def _wording(self) -> Wording:
        return Wording(self._has_search, is_change=True)


def _own(contents: Mapping[OriginKey, Contents], key: OriginKey, memory: Memory) -> Contents:
    return contents.get(key) or Contents(key, memory.place)


def _is_said(section: Section, laid: Laid) -> bool:
    """Tell whether a text says all that it has to of an origin; new skills may also be counted only."""
    part = next((part for part in laid.arranged if part.section is section), None)
    if part is None:
        return False
    if section.contents.marks is None:
        return True
    said = {
        item.skill.reference
        for item, text in part.shown
        if text or item.mark is not CHANGED or not item.description.text
    }
    return all(skill.reference in said for skill in section.contents.pins)
