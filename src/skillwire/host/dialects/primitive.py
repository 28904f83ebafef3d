"""SEP-2076: skills by name, got one at a time, with files that are plain resources."""

import logging
from typing import Any, Final, Literal, cast

from mcp.types import METHOD_NOT_FOUND, PaginatedRequestParams, Request

from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import INVALID_PARAMS
from skillwire.host.calls.enumeration import Listing
from skillwire.host.calls.exchange import looking_for
from skillwire.host.calls.paging import Pager
from skillwire.host.dialects.byname import (
    Card,
    NameParams,
    Roster,
    joined,
    make_card,
    no_use,
    nothing_at,
    skills_page,
)
from skillwire.host.dialects.declaredfiles import placed
from skillwire.host.dialects.execution import ExecVoice
from skillwire.host.dialects.voice import Found, Hearing, Peer, Voice, heard
from skillwire.host.failures import PeerError
from skillwire.wire.dialect import Dialect
from skillwire.wire.execution import READ_METHOD, SCRIPTS, SKILL_NOT_FOUND
from skillwire.wire.primitive import (
    GET_METHOD,
    PrimitiveItem,
    SkillDefinition,
    SkillDependencies,
    parse_definition,
    parse_item,
)

DEPENDENCIES: Final = "dependencies"
"""The member of an entry's `extra` under which the dependencies of a skill stay."""

_MAX_KEPT = 256
_IN_FRONTMATTER = ("name", "title", "description", "version", "tags")

logger = logging.getLogger(__name__)


class GetRequest(Request[NameParams, Literal["skills/get"]]):
    method: Literal["skills/get"] = GET_METHOD


class PrimitiveVoice:
    """A server that knows skills by name and gives them out with `skills/get`.

    With `may_turn`, a server whose capability did not tell the two dialects by
    name apart, and that does not know `skills/get`, is spoken to in the other one.
    """

    def __init__(self, *, may_turn: bool = False) -> None:
        self._roster = Roster()
        self._files: dict[str, dict[str, str]] = {}
        self._may_turn = may_turn
        self._instead: Voice | None = None

    @property
    def dialect(self) -> Dialect:
        return Dialect.PRIMITIVE if self._instead is None else self._instead.dialect

    async def list(self, peer: Peer, hearing: Hearing) -> Listing:
        if self._instead is not None:
            return await self._instead.list(peer, hearing)
        return await self._roster.listed(
            peer, hearing, skills_page, read_card, member="skills", dialect=Dialect.PRIMITIVE
        )

    async def get(self, peer: Peer, uri: SkillUri) -> SkillEntry:
        if self._instead is None:
            card = self._roster.card_at(uri)
            definition = await self._definition(peer, card, MAX_TOTAL_SIZE)
            if definition is not None:
                card = self._roster.meet(card, definition.description)
                return card.entry(self._files[card.uri.text])
        return await self._other.get(peer, uri)

    async def read(self, peer: Peer, uri: str, *, max_bytes: int) -> bytes:
        if self._instead is None:
            content = await self._read(peer, uri, max_bytes)
            if content is not None:
                return content
        return await self._other.read(peer, uri, max_bytes=max_bytes)

    @property
    def _other(self) -> Voice:
        assert self._instead is not None, "the server turned out to speak the other dialect"
        return self._instead

    async def _read(self, peer: Peer, uri: str, max_bytes: int) -> bytes | None:
        card, canonical = self._roster.owner(uri)
        is_skill = canonical == card.uri.text
        if is_skill or card.uri.text not in self._files:
            definition = await self._definition(peer, card, max_bytes if is_skill else MAX_TOTAL_SIZE)
            if definition is None:
                return None
            card = self._roster.meet(card, definition.description)
            if is_skill:
                return card.skill_md(definition.instructions, max_bytes=max_bytes)
        declared = self._files[card.uri.text].get(canonical)
        if declared is None:
            raise nothing_at(uri)
        return await peer.read_any(declared, max_bytes=max_bytes)

    async def _definition(self, peer: Peer, card: Card, max_bytes: int) -> SkillDefinition | None:
        """Ask for a skill, and remember where its files are; None when the server speaks the other dialect.

        Raises:
            NotFoundError: There is no such skill.
            ArgumentsNeededError: It needs arguments.
            SkillError: The answer cannot be used.
        """
        card.require_nothing()
        request = GetRequest(params=NameParams(name=card.called))
        try:
            with looking_for(card.uri.text, codes=(INVALID_PARAMS, SKILL_NOT_FOUND)):
                answer = await peer.ask(request, max_bytes=max_bytes)
        except PeerError as error:
            if error.peer_code != METHOD_NOT_FOUND:
                raise
            self._turn(error)
            return None
        definition, findings = parse_definition(answer)
        if definition is None:
            raise no_use(card, findings, "P2076-03")
        self._files.pop(card.uri.text, None)
        self._files[card.uri.text] = placed(card.uri, definition.files)
        if len(self._files) > _MAX_KEPT:
            del self._files[next(iter(self._files))]
        return definition

    def _turn(self, error: PeerError) -> None:
        """Go on in the other dialect, where nobody said which of the two it is.

        Raises:
            PeerError: Somebody did.
        """
        if not self._may_turn:
            raise PeerError(
                f"the server lists skills and does not know {GET_METHOD}: {error}",
                method=error.method,
                peer_code=error.peer_code,
                fix=f'if it knows {READ_METHOD}, put "dialect": "{Dialect.EXEC}" in its `skills` settings',
            ) from error
        logger.info("the server does not know %s; %s is tried", GET_METHOD, READ_METHOD)
        self._instead = ExecVoice(self._roster)


async def find(peer: Peer, hearing: Hearing) -> Found | None:
    """Return this voice if the server declared the capability `skills`, without the scripts of `exec`."""
    capability = peer.skills_capability
    is_pinned = hearing.dialect is Dialect.PRIMITIVE
    if capability is None or (SCRIPTS in capability and not is_pinned):
        return None
    voice = PrimitiveVoice(may_turn=not is_pinned and SCRIPTS not in capability)
    return await heard(voice, peer, hearing)


def read_card(value: object) -> tuple[Card | None, list[Finding]]:
    """Read one item of a listing; what of it is no frontmatter stays with the entry."""
    item, findings = parse_item(value)
    if item is None:
        return None, findings
    extra = {key: value for key, value in item.to_json().items() if key not in _IN_FRONTMATTER}
    card, more = make_card(
        item.name,
        description=item.description,
        metadata=_metadata(item),
        extra=cast("dict[str, JsonValue]", extra),
        needs=[argument.name for argument in item.arguments if argument.required],
    )
    return card, [*findings, *more]


async def missing_dependencies(peer: Peer, hearing: Hearing, entry: SkillEntry) -> SkillDependencies:
    """Return the tools and prompts a skill declares to need and its server does not list (ASK-15).

    Resources are not looked at: one that is not listed may be readable all the same.

    Raises:
        SkillError: The server cannot be asked what it has.
    """
    item, _ = parse_item({"name": entry.name, DEPENDENCIES: entry.extra.get(DEPENDENCIES)})
    needed = item.dependencies if item is not None else SkillDependencies()
    tools = (
        await _names(peer, hearing, "tools", has=peer.client.server_capabilities.tools is not None)
        if needed.tools
        else set[str]()
    )
    prompts = await _names(peer, hearing, "prompts", has=peer.has_prompts) if needed.prompts else set[str]()
    return SkillDependencies(
        tools=tuple(name for name in needed.tools if name not in tools),
        prompts=tuple(name for name in needed.prompts if name not in prompts),
    )


class _AnyListRequest(Request[PaginatedRequestParams, str]):
    method: str


async def _names(peer: Peer, hearing: Hearing, member: str, *, has: bool) -> set[str]:
    found: set[str] = set()
    if not has:
        return found

    def page_request(cursor: str | None) -> _AnyListRequest:
        return _AnyListRequest(method=f"{member}/list", params=PaginatedRequestParams(cursor=cursor))

    pager = Pager(peer.client, page_request, member=member, limits=hearing.limits)
    while (page := await pager.next_page()) is not None:
        if page.is_first:
            found = set()
        for item in page.items:
            name = cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None
            if isinstance(name, str):
                found.add(name)
    return found


def _metadata(item: PrimitiveItem) -> dict[str, str | None]:
    return {"title": item.title, "version": item.version, "tags": joined(item.tags)}
