"""The lists and hints of one conversation, and what its model is shown again after a summary.

The texts come from the open windows, which hold what was loaded and verified,
in the same frames. Nothing is fetched, and the user is not asked.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from skillwire.core import MAX_DESCRIPTION, visible
from skillwire.host.listing.render import DEFAULT_BUDGET, FrozenListing
from skillwire.host.listing.text import ListingForm
from skillwire.host.model import (
    Activation,
    ApprovalError,
    KnownSkill,
    Refusal,
    RegistryView,
    ShowRules,
    SkillId,
    TokenCounter,
    Windows,
    estimated_tokens,
)
from skillwire.host.use.definitions import LOAD_TOOL
from skillwire.host.use.load import SkillLoader
from skillwire.host.use.present import LoadedSkill, frame_skill, max_min_shares

RESTORED_TOKENS: Final = 20_000
"""The default number of tokens that are restored after a compaction."""

_LEAST_CHARACTERS = 200
_MOST_STEPS = 16
_MOST_NAMED = 20
_HEAD = (
    "The conversation was summarised. The skills below are still loaded; "
    "their texts are repeated here as they were loaded."
)


@dataclass(frozen=True, slots=True)
class RestoredTexts:
    """Text to add to a context again: `text` is all of it, complete and framed, or empty.

    `skills` begins with the skill that was loaded last; a long text may be
    cut, with a note. `left_out` are the references of loaded skills that did
    not fit, and `refused` lists those that are no longer approved.
    """

    listing: str = ""
    skills: tuple[LoadedSkill, ...] = ()
    left_out: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()

    @property
    def texts(self) -> str:
        """The texts of the loaded skills, without the listing."""
        if not (self.skills or self.left_out):
            return ""
        return "\n\n".join([_HEAD, *(skill.text for skill in self.skills), *_left_out_lines(self.left_out)])

    @property
    def text(self) -> str:
        return "\n\n".join(filter(None, (self.listing, self.texts)))


def restore_texts(
    loader: SkillLoader, windows: Windows, among: Iterable[Activation], budget: int, count: TokenCounter
) -> RestoredTexts:
    """Return the texts of some windows within `budget` tokens: newest first, each with a fair share.

    Only pages that were shown in this conversation are repeated. The oldest
    skills are left out if the shares would become too small.
    """
    refused: list[Refusal] = []
    given: list[_ShownSkill] = []
    for window in reversed(list(among)):
        try:
            loader.require_still_approved(window)
        except ApprovalError as error:
            refused.append(Refusal.of(error))
            continue
        given.append(_ShownSkill.of(loader, window, windows.pages_of(window.skill.id)))
    for kept in range(len(given), -1, -1):
        left = tuple(skill.reference for skill in given[kept:])
        room = budget - count("\n\n".join([_HEAD, *_left_out_lines(left)]))
        skills = _shared(given[:kept], room, count)
        if skills is not None:
            return RestoredTexts("", tuple(skills), left if room >= 0 else (), tuple(refused))
    return RestoredTexts(refused=tuple(refused))


def is_present(window: Activation, context: Iterable[str]) -> bool:
    """Return whether a skill's instructions, as framed when it was loaded, are in a context.

    Files of the skill are framed with the same boundary, so the boundary alone is not enough.
    """
    head = f"Skill: {window.skill.reference}"
    return any(window.boundary in text and head in text for text in context)


# A context can be the `repr` or the JSON of messages, where other characters are escaped.
_UNESCAPED: Final = re.compile(r"[A-Za-z0-9 ,.:;/()_-]+")


# Older ones are forgotten: that they are lost is then not noticed.
_MOST_CHANGES: Final = 100


class AnnouncedChanges:
    """The texts about changes of the list that a model was given, to find out which it has lost."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, ...]] = {}
        self._seen: set[str] = set()

    @property
    def is_empty(self) -> bool:
        return not self._texts

    def add(self, text: str) -> None:
        """Remember a text that is about to be given to the model; an empty one is nothing."""
        if text:
            self._texts[text] = tuple(_UNESCAPED.findall(text))
            if len(self._texts) > _MOST_CHANGES:
                oldest = next(iter(self._texts))
                del self._texts[oldest]
                self._seen.discard(oldest)

    def replace(self, text: str) -> None:
        """Forget all texts except a new one, which contains what they say."""
        self._texts, self._seen = {}, set()
        self.add(text)

    def are_lost(self, context: Sequence[str]) -> bool:
        """Return whether a text that was in an earlier context is not in this one."""
        there = {text for text, parts in self._texts.items() if _has_all(parts, context)}
        lost, self._seen = self._seen - there, self._seen | there
        return bool(lost)


def _has_all(parts: Sequence[str], context: Iterable[str]) -> bool:
    return any(all(part in text for part in parts) for text in context)


@dataclass(frozen=True, slots=True)
class _ShownSkill:
    """A loaded skill with all its pages that were shown before, framed again."""

    reference: str
    pages: tuple[LoadedSkill, ...]

    @classmethod
    def of(cls, loader: SkillLoader, window: Activation, pages: Sequence[int]) -> "_ShownSkill":
        is_offline = loader.files.is_offline(window.skill)
        length = loader.page_length
        framed = [
            frame_skill(window, page, page_length=length, is_again=True, is_offline=is_offline)
            for page in pages
        ]
        return cls(window.skill.reference, tuple(framed))

    @property
    def whole(self) -> LoadedSkill:
        return replace(self.pages[0], text="\n\n".join(page.text for page in self.pages))


def _shared(given: Sequence[_ShownSkill], room: int, count: TokenCounter) -> list[LoadedSkill] | None:
    """Return the texts, each within its fair share of the tokens; None if one share is too small."""
    wholes = [skill.whole for skill in given]
    # The separator between two texts takes about one token.
    needs = [count(whole.text) + 1 for whole in wholes]
    found: list[LoadedSkill] = []
    for skill, whole, need, share in zip(given, wholes, needs, max_min_shares(room, needs), strict=True):
        text = whole.text if need <= share else _fitted(skill, share - 1, count)
        if text is None:
            return None
        found.append(replace(whole, text=text))
    return found


def _fitted(skill: _ShownSkill, room: int, count: TokenCounter) -> str | None:
    """Return as many of a skill's pages as fit, the last of them cut; None when nothing of it fits."""
    texts: list[str] = []
    for page in skill.pages:
        if count("\n\n".join([*texts, page.text])) <= room:
            texts.append(page.text)
            continue
        cut = _cut(page, room - (count("\n\n".join(texts)) + 1 if texts else 0), count)
        texts += [cut] if cut is not None else []
        break
    return "\n\n".join(texts) or None


def _cut(page: LoadedSkill, room: int, count: TokenCounter) -> str | None:
    """Return a framed page, cut to fit, with a line on how to read the rest."""
    begin, end = f"----- begin {page.boundary} -----\n", f"\n----- end {page.boundary} -----"
    first, _, rest = page.text.partition("\n")
    head, _, body = rest.partition(begin)
    content, _, _ = body.rpartition(end)
    number = f", page={page.page}" if page.page > 1 else ""
    how = f'{LOAD_TOOL}(skill="{page.reference}"{number})'

    def framed(length: int) -> str:
        note = f"Cut: only the first {length:,} of {len(content):,} characters; for all of them: {how}"
        return f"{first}\n{note}\n{head}{begin}{content[:length]}{end}"

    least, most = min(_LEAST_CHARACTERS, len(content)), len(content)
    if count(framed(least)) > room:
        return None
    for _ in range(_MOST_STEPS):
        if most - least <= 1:
            break
        middle = (least + most) // 2
        least, most = (middle, most) if count(framed(middle)) <= room else (least, middle)
    return framed(least)


def _left_out_lines(references: Sequence[str]) -> list[str]:
    if not references:
        return []
    named = ", ".join(references[:_MOST_NAMED])
    more = f" and {len(references) - _MOST_NAMED} more" if len(references) > _MOST_NAMED else ""
    return [
        f'Also loaded, not repeated for lack of space: {named}{more}. Read one with {LOAD_TOOL}(skill="…").'
    ]


# The lists of one conversation, and what to restore of them.


MAX_LISTINGS: Final = 16
"""The maximum number of lists, with different arguments, that one conversation keeps."""


class ConversationListings:
    """The lists of one conversation, one for each set of arguments; the last one requested is in use.

    It also knows which texts about changes, and of loaded skills, the model
    was given, to give it again those that its context has lost.
    """

    def __init__(self) -> None:
        self._form = ListingForm.COMPACT
        self._count: TokenCounter = estimated_tokens
        self._budget = DEFAULT_BUDGET
        self._listings: dict[tuple[ListingForm, int, TokenCounter], FrozenListing] = {}
        self._announced = AnnouncedChanges()
        self._sent: set[str] = set()

    def text(
        self,
        loader: SkillLoader,
        *,
        form: ListingForm | None = None,
        budget_tokens: int | None = None,
        count: TokenCounter | None = None,
    ) -> str:
        """Return the list for these arguments, or without arguments the one in use; always the same bytes."""
        if not (form is None and budget_tokens is None and count is None):
            self._form = ListingForm.COMPACT if form is None else form
            self._budget = DEFAULT_BUDGET if budget_tokens is None else budget_tokens
            self._count = estimated_tokens if count is None else count
        key = (self._form, self._budget, self._count)
        listing = self._listings.pop(key, None) or FrozenListing()
        self._listings[key] = listing
        while len(self._listings) > MAX_LISTINGS:
            self._listings.pop(next(iter(self._listings)))
        return self._text_of(listing, loader, self._budget, self._count)

    def changes(self, skills: Sequence[KnownSkill], show_rules: ShowRules) -> str:
        """Return the text to append to the list in use; empty when there is none yet."""
        listing = self._listings.get((self._form, self._budget, self._count))
        changes = "" if listing is None else listing.changes(skills, show_rules)
        self._announced.add(changes)
        return changes

    def after_compaction(
        self, loader: SkillLoader, windows: Windows, budget_tokens: int, count: TokenCounter | None
    ) -> RestoredTexts:
        """Return the current list and the texts of the skills loaded in this conversation."""
        count = count or self._count
        listing = self._renewed(loader, budget_tokens, count)
        left = budget_tokens - count(listing) - 1
        return replace(restore_texts(loader, windows, windows.shown(), left, count), listing=listing)

    def restore(
        self, loader: SkillLoader, windows: Windows, context: Iterable[str], budget_tokens: int
    ) -> str:
        """Return the texts that the model was given and `context` no longer has."""
        given = windows.shown()
        if not given and self._announced.is_empty:
            return ""
        texts = tuple(context)
        listing, count = "", self._count
        if self._announced.are_lost(texts):
            listing = self._renewed(loader, budget_tokens, count)
            budget_tokens -= count(listing) + 1
        there = {window.boundary for window in given if is_present(window, texts)}
        lost = [window for window in given if window.boundary in self._sent - there]
        if not lost:
            self._sent |= there
            return listing
        self._renew()
        found = restore_texts(loader, windows, lost, budget_tokens, count)
        # A text for which there is no room now is not looked for again with every request.
        self._sent = there | {skill.boundary for skill in found.skills}
        return replace(found, listing=listing).text

    def _renew(self) -> None:
        """Discard all lists, so that they are rendered again; keep the one in use if it has no changes."""
        key = (self._form, self._budget, self._count)
        listing = self._listings.get(key)
        self._listings = {} if listing is None or listing.has_changes else {key: listing}

    def _renewed(self, loader: SkillLoader, budget_tokens: int, count: TokenCounter) -> str:
        """Return the current list, which replaces the one in use, in at most half of the budget."""
        self._renew()
        listing = self.text(loader)
        if count(listing) * 2 > budget_tokens:
            listing = self._text_of(FrozenListing(), loader, budget_tokens // 2, count)
        self._announced.replace(listing)
        return listing

    def _text_of(self, listing: FrozenListing, loader: SkillLoader, budget: int, count: TokenCounter) -> str:
        view = loader.registry.view
        return listing.text(
            view.skills,
            loader.show_rules,
            form=self._form,
            budget_tokens=budget,
            count=count,
            servers=view.servers,
        )


# Hints to the model about skills that explain the tool it is about to call.


MOST_NAMED: Final = 3

_MOST_TOOLS = 256
_MOST_ALLOWED = 4096
# The tool names that MCP allows. No other name is repeated in a hint.
_TOOL = re.compile("(?=.*[A-Za-z0-9])[A-Za-z0-9_./-]{1,128}")
# Such a name is an ordinary word or number too, so prose that contains it may not mean the tool.
_WORD = re.compile("[A-Za-z]?[a-z]*|[A-Z]+|[0-9]+")
_AFTER = r"(?!\w)(?![-./:]\w)"


class Nudges:
    """The hints of one conversation. Each skill is named in at most one hint."""

    def __init__(self) -> None:
        self._named: set[SkillId] = set()
        self._index = _ExplainingSkills(())

    def for_call(
        self,
        view: RegistryView,
        show_rules: ShowRules,
        *,
        tool: str,
        server: str,
        loaded: Collection[SkillId],
    ) -> str:
        """Return a sentence about the skills that mention this tool, or an empty string.

        `server` is the label of the tool's server; it is empty for the agent's
        own tools, which only local skills explain. Skills that are loaded,
        were named in a hint before, or may not be loaded by the model are left
        out. Only the first few are named, and the others are not named later
        either, so that no server can add a hint to every call.
        """
        name = tool.removeprefix(f"mcp__{server}__") if server else tool
        if not _TOOL.fullmatch(name):
            return ""
        if self._index.skills is not view.skills:
            self._index = _ExplainingSkills(view.skills)
        fitting = [
            skill
            for skill in self._index.explaining(name, server)
            if skill.id not in self._named and skill.id not in loaded and show_rules.may_model_load(skill)
        ]
        self._named.update(skill.id for skill in fitting)
        return _sentence(name, server, [skill.reference for skill in fitting]) if fitting else ""


class _ExplainingSkills:
    """The skills of one view by server, and a cache of the skills that explain a tool."""

    def __init__(self, skills: tuple[KnownSkill, ...]) -> None:
        self.skills = skills
        self._local: list[KnownSkill] = []
        self._remote: dict[str, list[KnownSkill]] = {}
        self._explaining: dict[tuple[str, str], tuple[KnownSkill, ...]] = {}
        for skill in skills:
            place = self._remote.setdefault(skill.id.origin.label, []) if skill.is_remote else self._local
            place.append(skill)

    def explaining(self, tool: str, server: str) -> tuple[KnownSkill, ...]:
        """Return the skills that may explain a tool and mention it: local skills first."""
        found = self._explaining.get((tool, server))
        if found is None:
            if len(self._explaining) >= _MOST_TOOLS:
                self._explaining.clear()
            found = self._explaining[tool, server] = tuple(self._search(tool, server))
        return found

    def _search(self, tool: str, server: str) -> Iterator[KnownSkill]:
        yield from _naming(self._local, tool, server, r"(?<![\w./:-])")
        if server:
            # A server may write any prefix before the name of its own tool.
            yield from _naming(self._remote.get(server, ()), tool, server, r"(?<![\w/-])")


def _naming(skills: Iterable[KnownSkill], tool: str, server: str, before: str) -> Iterator[KnownSkill]:
    """Yield the skills that mention a tool as a whole identifier, plain or with its server's label."""
    name, label = re.escape(tool), re.escape(server)
    owner = f"(?:mcp__{label}__|(?i:{label})[.:/])" if server else "(?!)"
    named = in_prose = re.compile(f"{before}{owner}?{name}{_AFTER}")
    if _WORD.fullmatch(tool):
        in_prose = re.compile(rf"`{name}`|{before}{name}\(|{before}{owner}{name}{_AFTER}")
    for skill in skills:
        description, allowed = skill.description[:MAX_DESCRIPTION], _allowed(skill)
        if (tool in description and in_prose.search(description)) or (
            tool in allowed and named.search(allowed)
        ):
            yield skill


def _allowed(skill: KnownSkill) -> str:
    """Return the tools that a skill's frontmatter mentions, as text."""
    value = skill.entry.frontmatter.fields.get("allowed-tools")
    if isinstance(value, list):
        value = " ".join(item for item in value if isinstance(item, str))
    return value[:_MOST_ALLOWED] if isinstance(value, str) else ""


def _sentence(tool: str, server: str, references: Sequence[str]) -> str:
    call = f"{tool} of the server {visible(server)}" if server else tool
    shown = references[:MOST_NAMED]
    load = f"{LOAD_TOOL}(skill={json.dumps(shown[0], ensure_ascii=False)})"
    if len(references) == 1:
        which, advice = f"the skill {shown[0]} names", f"load it with {load}"
    else:
        more = len(references) - len(shown)
        others = f" and {more} more" if more else ""
        which = f"the skills {', '.join(shown)}{others} name"
        advice = f"load what fits, for example with {load},"
    return f"Before you call {call}: {which} this tool; {advice} and then decide."
