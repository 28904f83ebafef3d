"""Whole skills as the texts of prompts: the last resort, for servers that offer them no other way.

A prompt of an ordinary server is no skill. So prompts are taken for skills
only where the server declared skills and none of the better dialects works, or
where the user said so. Nothing in such a text is verified, and nothing it
points at is followed (DUAL-04, DUAL-12).
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from mcp.types import (
    GetPromptRequest,
    GetPromptRequestParams,
    ListPromptsRequest,
    PaginatedRequestParams,
)

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.fields import suggest_name
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.errors import INVALID_PARAMS, FrontmatterError, InvalidUriError
from skillwire.host.calls.enumeration import Listing
from skillwire.host.calls.exchange import Answer, looking_for
from skillwire.host.dialects.byname import Card, Roster, joined, make_card, nothing_at, require_size
from skillwire.host.dialects.voice import Found, Hearing, Peer, is_absent
from skillwire.host.failures import InvalidAnswerError, PeerError
from skillwire.wire.dialect import Dialect
from skillwire.wire.members import open_object
from skillwire.wire.prompt import PromptParts, unstitched

PROMPT: Final = "prompt"
"""The member of an entry's `extra` under which the prompt's own name stays."""

_MAX_NAME = 256


class PromptVoice:
    """A server whose prompts are skills. Each is asked for anew whenever something of it is read."""

    def __init__(self) -> None:
        self._roster = Roster()

    @property
    def dialect(self) -> Dialect:
        return Dialect.PROMPT

    async def list(self, peer: Peer, hearing: Hearing) -> Listing:
        return await self._roster.listed(
            peer, hearing, _page_request, read_card, member="prompts", dialect=Dialect.PROMPT
        )

    async def get(self, peer: Peer, uri: SkillUri) -> SkillEntry:
        card = self._known(uri.text)
        if card.uri != uri:
            raise nothing_at(uri.text)
        parts = await self._parts(peer, card, MAX_TOTAL_SIZE)
        return card.entry(card.uri.join(path) for path, _ in parts.references)

    async def read(self, peer: Peer, uri: str, *, max_bytes: int) -> bytes:
        try:
            canonical = canonical_uri(uri)
        except InvalidUriError as error:
            raise nothing_at(uri) from error
        card = self._known(canonical)
        parts = await self._parts(peer, card, MAX_TOTAL_SIZE)
        if canonical == card.uri.text:
            return card.skill_md(parts.skill_md, max_bytes=max_bytes)
        for path, text in parts.references:
            if card.uri.join(path) == canonical:
                content = text.encode()
                require_size(content, uri, max_bytes)
                return content
        raise nothing_at(uri)

    def _known(self, uri: str) -> Card:
        """Return the card of a skill that was listed: the name of a prompt does not follow from a URI."""
        card = self._roster.find(uri)
        if card is None:
            raise nothing_at(uri)
        return card

    async def _parts(self, peer: Peer, card: Card, max_bytes: int) -> PromptParts:
        """Ask for a prompt and take its text apart; `skill_md` is then the instructions alone."""
        request = GetPromptRequest(params=GetPromptRequestParams(name=card.called))
        with looking_for(card.uri.text, codes=(INVALID_PARAMS,)):
            answer = await peer.ask(request, max_bytes=max_bytes)
        text = _text_of(answer, card)
        try:
            parts = unstitched(text)
            body = parse_skill_md(parts.skill_md.encode()).body
        except FrontmatterError:
            return PromptParts(text, is_whole=True)
        return PromptParts(body, parts.references, parts.omitted, parts.is_whole)


async def find(peer: Peer, hearing: Hearing) -> Found | None:
    """Return this voice if the server has prompts, and said that it has skills; or if the user did."""
    is_pinned = hearing.dialect is Dialect.PROMPT
    is_declared = peer.declares_extension or peer.skills_capability is not None
    if not (peer.has_prompts and (is_pinned or is_declared)):
        return None
    voice = PromptVoice()
    try:
        listing = await voice.list(peer, hearing)
    except PeerError as error:
        if is_absent(error):
            return None
        raise
    return Found(voice, listing) if is_pinned or listing.entries or listing.refused else None


def read_card(value: object) -> tuple[Card | None, list[Finding]]:
    """Read one prompt of a listing. Its name becomes one that a skill may have, and is kept beside it."""
    members, findings = open_object(
        value, required="prompt-invalid", optional="prompt-field-invalid", what="an item of the listing"
    )
    name = members.required_text("name", most=_MAX_NAME) if members is not None else None
    if members is None or name is None:
        return None, findings
    needs = [
        str(argument.get("name"))
        for argument in members.objects("arguments")
        if argument.get("required") is True
    ]
    path = suggest_name(name)
    if not any(character.isalnum() and character.isascii() for character in name):
        message = f"nothing of the prompt's name {quoted(name)} can be part of a skill's name"
        return None, [*findings, Finding("name-invalid", message, file="")]
    card, more = make_card(
        name,
        path=path,
        description=members.text("description"),
        metadata={"title": members.text("title")},
        extra={PROMPT: name},
    )
    if needs:
        message = f"the prompt {quoted(name)} needs arguments: {quoted(joined(needs)[:80])}"
        more = [*more, Finding("prompt-arguments", message, file="")]
    return card, [*findings, *more]


def _text_of(answer: Answer, card: Card) -> str:
    """Return the text of a prompt's one message.

    Raises:
        InvalidAnswerError: There is not exactly one message, of the user and with text.
    """
    value = answer.get("messages")
    messages = cast(list[object], value) if isinstance(value, list) else []
    if len(messages) == 1 and isinstance(messages[0], dict):
        message = cast(Mapping[str, Any], messages[0])
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, dict):
            block = cast(Mapping[str, Any], content)
            if block.get("type") == "text" and isinstance(block.get("text"), str):
                return str(block["text"])
    raise InvalidAnswerError(
        f"the prompt {quoted(card.called)} is not one message of the user with text in it, so it is no skill",
        violates="DUAL-05",
    )


def _page_request(cursor: str | None) -> ListPromptsRequest:
    return ListPromptsRequest(params=PaginatedRequestParams(cursor=cursor))
