"""Rendering of the list of skills for a model's context, as one text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final

from skillwire.host.listing.layout import ListLayout, OriginContents, Section, fit
from skillwire.host.listing.text import (
    MAX_REFERENCE,
    UNANSWERED,
    UNREACHABLE,
    WRITERS,
    ListingForm,
    OriginHeading,
    Wording,
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
