"""The list of skills for a model's context, as one text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from skillwire.host.attention import Attention, Attentions, Trust
from skillwire.host.listing.cleaning import MAX_REFERENCE
from skillwire.host.listing.fitting import fit
from skillwire.host.listing.forms import ListingForm
from skillwire.host.listing.layout import Laid
from skillwire.host.listing.sections import Contents, Section
from skillwire.host.listing.tokens import TokenCounter, estimated_tokens
from skillwire.host.listing.wording import Place, Wording
from skillwire.host.listing.writing import WRITERS
from skillwire.host.origin import Origin
from skillwire.host.registry.known import KnownSkill

DEFAULT_BUDGET: Final = 4_000


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of skills for a model: the text, what it costs, and what became of every skill.

    `full`, `shortened` and `names` are references, by how much is shown of
    the description; `left_out` are so many more that the model is told of.
    """

    text: str
    tokens: int
    full: tuple[str, ...] = ()
    shortened: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    left_out: int = 0


def render(
    skills: Sequence[KnownSkill],
    attention: Attentions,
    *,
    form: ListingForm = ListingForm.COMPACT,
    budget_tokens: int = DEFAULT_BUDGET,
    server_budgets: Mapping[str, int] | None = None,
    count: TokenCounter = estimated_tokens,
    has_search: bool = True,
) -> Listed:
    """List the skills a model may load, in at most `budget_tokens` by the given counter.

    The same skills give the same bytes, in whatever order they come. A server
    takes at most its budget, by default the one in the settings, and at most
    an equal part of what the others leave. Skills are shown with a shorter
    description first, then by name, and what has no room is counted. When not
    one skill fits, the text only says how many there are, and when not even
    that fits, or there are none, it is empty.
    """
    listed, _ = rendered(
        contents_of(skills, attention),
        form=form,
        budget_tokens=budget_tokens,
        server_budgets=attention.budgets if server_budgets is None else server_budgets,
        count=count,
        has_search=has_search,
    )
    return listed


def rendered(
    contents: Sequence[Contents],
    *,
    form: ListingForm,
    budget_tokens: int,
    server_budgets: Mapping[str, int],
    count: TokenCounter,
    has_search: bool,
) -> tuple[Listed, Laid | None]:
    """Do what `render` does, and also return how the list is laid out, if any skill is in it."""
    if not contents:
        return Listed("", 0), None
    writer, wording = WRITERS[form], Wording(has_search)
    sections = [Section(own, writer, wording) for own in contents]
    caps = {(True, label): cap for label, cap in server_budgets.items()}
    fitting = fit(sections, writer, wording, budget_tokens, caps, count)
    if fitting is not None:
        return _listed(*fitting), fitting[0]
    total = sum(section.count for section in sections)
    alone = writer.alone(wording, total)
    if budget_tokens > 0 and (tokens := count(alone)) <= budget_tokens:
        return Listed(alone, tokens, left_out=total), None
    return Listed("", 0, left_out=total), None


def contents_of(skills: Iterable[KnownSkill], attention: Attentions) -> list[Contents]:
    """Put the skills that a model may load under their origins: local ones first, then servers by label."""
    found: dict[tuple[bool, str], _Found | None] = {}
    origin: Origin | None = None
    own: _Found | None = None
    # Looked up once: this runs for every skill there is.
    attention_of, normal = attention.of, Attention.NORMAL
    for skill in attention.in_order(skills):
        if skill.id.origin is not origin:
            origin = skill.id.origin
            key = (origin.is_remote, origin.label)
            if key not in found:
                # What nobody may load is not offered either.
                is_barred = attention.trust(skill) is Trust.NEVER
                found[key] = None if is_barred else _Found(origin)
            own = found[key]
        if own is None:
            continue
        shown = attention_of(skill)
        if shown is not normal:
            own.add(skill, shown)
        elif len(skill.reference) > MAX_REFERENCE:
            own.unlisted += 1
        else:
            own.others.append(skill)
    contents = [own.contents() for _, own in sorted(found.items(), key=itemgetter(0)) if own is not None]
    return [content for content in contents if content.count]


@dataclass(slots=True)
class _Found:
    origin: Origin
    pins: list[KnownSkill] = field(default_factory=list[KnownSkill])
    others: list[KnownSkill] = field(default_factory=list[KnownSkill])
    bare: set[str] = field(default_factory=set[str])
    unlisted: int = 0

    def add(self, skill: KnownSkill, attention: Attention) -> None:
        if attention in (Attention.MANUAL, Attention.OFF):
            return
        if len(skill.reference) > MAX_REFERENCE:
            self.unlisted += 1
        elif attention is Attention.PIN:
            self.pins.append(skill)
        else:
            self.others.append(skill)
            if attention is Attention.NAME_ONLY:
                self.bare.add(skill.reference)

    def contents(self) -> Contents:
        key = (self.origin.is_remote, self.origin.label)
        place = Place.of(self.origin)
        return Contents(key, place, self.pins, self.others, frozenset(self.bare), self.unlisted)


def _listed(laid: Laid, tokens: int) -> Listed:
    full: list[str] = []
    shortened: list[str] = []
    names: list[str] = []
    for part in laid.arranged:
        for item, text in part.shown:
            if not text:
                names.append(item.skill.reference)
            elif text == item.description.escaped and not item.description.is_cut:
                full.append(item.skill.reference)
            else:
                shortened.append(item.skill.reference)
    return Listed(laid.text, tokens, tuple(full), tuple(shortened), tuple(names), laid.left)
