"""Skills that a server knows by name: the URIs and the `SKILL.md` this host makes up for them.

Such a dialect has neither URIs nor frontmatter. So each name becomes a URI
that means something inside its server's origin and nowhere else, and what the
server tells of a skill becomes the frontmatter of a file that is composed when
the skill is read. Nothing is promised about it: every such skill is dynamic.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, TypeAlias, cast

from mcp.types import PaginatedRequestParams, Request, RequestParams

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.fields import is_name, published_findings
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.skill import write_frontmatter
from skillwire.core.uri import DEFAULT_SCHEME, SKILL_FILE, SkillUri, canonical_uri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidUriError, LimitError, NotFoundError
from skillwire.host.calls.enumeration import Listing, Reading, RefusedEntry, shortened, walk
from skillwire.host.calls.exchange import ListSkillsRequest
from skillwire.host.calls.paging import Pager
from skillwire.host.dialects.voice import Hearing, Peer
from skillwire.host.failures import ArgumentsNeededError, InvalidAnswerError
from skillwire.wire.dialect import Dialect

MAX_METADATA: Final = 1024
"""The longest text that is taken over into `metadata`, in characters; a longer one is left out."""

_MAX_MET = 256
_NOTHING: Mapping[str, JsonValue] = {}
# What an item may say that would pass for a member of the entry made of it.
_OWN_MEMBERS = frozenset({"uri", "frontmatter", "resources"})

ReadCard: TypeAlias = "Callable[[object], tuple[Card | None, list[Finding]]]"


class NameParams(RequestParams):
    """Parameters that name one skill. Arguments are never sent: nobody gave any."""

    name: str


@dataclass(frozen=True, slots=True)
class Card:
    """What a server tells of one skill before it is asked for it.

    `called` is the server's own name for it, `needs` are the arguments without
    which the server does not give it out.
    """

    called: str
    uri: SkillUri
    frontmatter: Frontmatter
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)
    needs: tuple[str, ...] = ()

    def entry(self, files: Iterable[str] = ()) -> SkillEntry:
        """Return the entry of this skill, with the URIs of the files that are known of."""
        return SkillEntry(self.uri, self.frontmatter, None, self.extra, tuple(files))

    def skill_md(self, instructions: str, *, max_bytes: int) -> bytes:
        """Compose the file that holds exactly these fields and, as its body, exactly these instructions.

        Raises:
            LimitError: It is larger than `max_bytes`.
            InvalidAnswerError: The instructions are not valid Unicode.
        """
        try:
            body = instructions.encode()
        except UnicodeEncodeError as error:
            raise InvalidAnswerError(f"the text of {quoted(self.called)} is not valid Unicode") from error
        content = f"---\n{write_frontmatter(self.frontmatter.fields)}---\n".encode() + body
        require_size(content, self.uri.text, max_bytes)
        return content

    def require_nothing(self) -> None:
        """Check that the server gives the skill out without arguments: none is ever guessed.

        Raises:
            ArgumentsNeededError: It does not.
        """
        if self.needs:
            names = ", ".join(quoted(name) for name in self.needs[:10])
            raise ArgumentsNeededError(
                f"{quoted(self.called)} is given out only with arguments, which this host does not make up: "
                f"{names}",
                reference=self.uri.text,
            )


def make_card(
    called: str,
    *,
    path: str | None = None,
    description: str | None = None,
    metadata: Mapping[str, str | None] | None = None,
    extra: Mapping[str, JsonValue] = _NOTHING,
    needs: Sequence[str] = (),
    is_described: bool = False,
) -> tuple[Card | None, list[Finding]]:
    """Make the card of a skill at `path`, or at its own name, and say everything that is wrong with it.

    `is_described` says that its dialect asks for a description, which may be missing elsewhere.
    """
    uri = made_up(called if path is None else path)
    if isinstance(uri, Finding):
        return None, [uri]
    fields: dict[str, JsonValue] = {"name": uri.name}
    if description and description.strip():
        fields["description"] = description
    kept = {key: text for key, text in (metadata or {}).items() if text and len(text) <= MAX_METADATA}
    if kept:
        fields["metadata"] = cast("dict[str, JsonValue]", kept)
    frontmatter = Frontmatter(fields)
    findings = [
        replace(finding, file="")
        for finding in published_findings(frontmatter)
        if finding.is_error and (is_described or finding.code != "description-missing")
    ]
    passed_on = {key: value for key, value in extra.items() if key not in _OWN_MEMBERS}
    return Card(called, uri, frontmatter, passed_on, tuple(needs)), findings


def made_up(path: str) -> SkillUri | Finding:
    """Return the URI of a skill by its name, or by names with slashes between them."""
    if all(map(is_name, path.split("/"))):
        return SkillUri.build(path)
    message = f"the name {quoted(path)} is not made of a-z, 0-9 and single hyphens, at most 64 characters"
    return Finding("name-invalid", message, file="", fix="ask the server's author to rename it")


def joined(texts: Iterable[str]) -> str:
    """Write a list of a stranger's words as one text of a bounded length."""
    return ", ".join(texts)[:MAX_METADATA]


def require_size(content: bytes, uri: str, max_bytes: int) -> None:
    """Check the size of what a server sent.

    Raises:
        LimitError: It is larger than `max_bytes`.
    """
    if len(content) > max_bytes:
        raise LimitError(f"{quoted(uri)} is larger than the {max_bytes} bytes that are accepted")


class Roster:
    """The cards of one server's skills, by the URIs made up for them: the way back to their names."""

    def __init__(self) -> None:
        self._whole: dict[str, Card] = {}
        self._listed: dict[str, Card] = {}
        self._met: dict[str, Card] = {}

    async def listed(
        self,
        peer: Peer,
        hearing: Hearing,
        request_for: Callable[[str | None], Request[Any, Any]],
        read: ReadCard,
        *,
        member: str,
        dialect: Dialect,
    ) -> Listing:
        """Ask for all pages of a listing, and know from now on what it tells.

        Raises:
            SkillError: There is not even a first page.
        """
        cards: dict[str, Card] = {}

        def check(items: Sequence[object]) -> Iterator[tuple[SkillEntry | None, list[Finding]]]:
            for item in items:
                card, findings = read(item)
                if card is not None:
                    cards[card.uri.text] = card
                yield None if card is None else card.entry(), findings

        def uri_of(item: object) -> str | None:
            card = read(item)[0]
            return None if card is None else card.uri.text

        pager = Pager(peer.client, request_for, member=member, limits=hearing.limits)
        method = str(request_for(None).method)
        listing = await walk(
            pager, Reading(check, uri_of, dialect), method, max_seconds=hearing.seconds, keep_partial=True
        )
        listing = without_nested(listing)
        found = {entry.uri.text: cards[entry.uri.text] for entry in listing.entries}
        if listing.problem is None:
            self._whole = found
        # A listing that breaks off adds to the last whole one, as the registry has it too.
        self._listed = {**self._whole, **found}
        return listing

    def find(self, uri: str) -> Card | None:
        """Return the card of the skill to which the file at `uri` belongs, if one is known."""
        root = uri
        while root.count("/") > 2:
            root = root.rpartition("/")[0]
            own = f"{root}/{SKILL_FILE}"
            card = self._listed.get(own) or self._met.get(own)
            if card is not None:
                return card
        return None

    def card_at(self, uri: SkillUri) -> Card:
        """Return the card of the skill at `uri`, listed or not: its path is the name to ask for.

        Raises:
            NotFoundError: No skill of this dialect could be there.
        """
        card = self.find(uri.text)
        if card is not None and card.uri == uri:
            return card
        made = made_up(uri.path)
        if card is not None or isinstance(made, Finding) or made != uri or uri.scheme != DEFAULT_SCHEME:
            raise nothing_at(uri.text)
        return Card(uri.path, uri, Frontmatter({"name": uri.name}))

    def meet(self, card: Card, description: str | None) -> Card:
        """Remember a skill that no listing told of, and return its card with the description it has."""
        if card.uri.text in self._listed or card.uri.text in self._met:
            return card
        met, findings = make_card(card.called, path=card.uri.path, description=description)
        if met is None or findings:
            words = "; ".join(finding.message for finding in shortened(findings))
            raise InvalidAnswerError(
                f"what the server tells of {quoted(card.called)} breaks the rules: {words}"
            )
        self._met[card.uri.text] = met
        if len(self._met) > _MAX_MET:
            del self._met[next(iter(self._met))]
        return met

    def owner(self, uri: str) -> tuple[Card, str]:
        """Return the card of the skill that the file at `uri` belongs to, and the URI's canonical spelling.

        Raises:
            NotFoundError: It belongs to none.
        """
        try:
            canonical = canonical_uri(uri)
            card = self.find(canonical)
            if card is None:
                card = self.card_at(SkillUri.parse(canonical))
        except InvalidUriError as error:
            raise nothing_at(uri) from error
        return card, canonical


def without_nested(listing: Listing) -> Listing:
    """Refuse the skills whose made-up URIs lie inside another's: a file there would belong to both."""
    roots = {entry.uri.root for entry in listing.entries}
    inner = {entry.uri.text for entry in listing.entries if not roots.isdisjoint(_above(entry.uri.root))}
    if not inner:
        return listing
    finding = Finding("uri-overlap", "its name begins with the whole name of another skill", file="")
    taken = {refused.position for refused in listing.refused}
    free = (position for position in count() if position not in taken)
    refused = list(listing.refused)
    for position, entry in zip(free, listing.entries, strict=False):
        if entry.uri.text in inner:
            refused.append(RefusedEntry(position, entry.uri.text, (finding,)))
    kept = tuple(entry for entry in listing.entries if entry.uri.text not in inner)
    ordered = sorted(refused, key=lambda entry: entry.position)
    return replace(listing, entries=kept, refused=tuple(ordered))


def skills_page(cursor: str | None) -> ListSkillsRequest:
    """Ask for one page of `skills/list`, which is the same request in every dialect that has it."""
    return ListSkillsRequest(params=PaginatedRequestParams(cursor=cursor))


def no_use(card: Card, findings: Iterable[Finding], violates: str) -> InvalidAnswerError:
    """Say in few words why an answer about a skill cannot be used."""
    words = "; ".join(finding.message for finding in shortened(findings))
    return InvalidAnswerError(
        f"the server's answer for {quoted(card.called)} cannot be used: {words}", violates=violates
    )


def nothing_at(uri: str) -> NotFoundError:
    return NotFoundError(f"nothing is served at {quoted(uri)}", uri=uri[:500])


def _above(root: str) -> Iterator[str]:
    """Yield the directories above a skill's own."""
    while root.count("/") > 2:
        root = root.rpartition("/")[0]
        yield root
