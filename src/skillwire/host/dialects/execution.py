"""The skills page: skills by name, read with `skills/read`, and their files with `skills/read_reference`.

Scripts of such a server run on the server. This host never asks it to
(`skills/execute` is not sent), and has no way to read them: they are known by
their paths alone.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, cast

from mcp.types import METHOD_NOT_FOUND, Request

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.core.paths import fold_path
from skillwire.core.uri import SKILL_FILE, SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import INVALID_PARAMS
from skillwire.host.calls.enumeration import Listing
from skillwire.host.calls.exchange import Answer, looking_for
from skillwire.host.dialects.byname import (
    Card,
    NameParams,
    Roster,
    joined,
    make_card,
    no_use,
    nothing_at,
    require_size,
    skills_page,
)
from skillwire.host.dialects.declaredfiles import is_free
from skillwire.host.dialects.voice import Found, Hearing, Peer, heard
from skillwire.host.failures import InvalidAnswerError, NotDeclaredError, PeerError
from skillwire.wire.core import GET_SKILL
from skillwire.wire.dialect import Dialect
from skillwire.wire.execution import (
    READ_METHOD,
    READ_REFERENCE_METHOD,
    REFERENCE_NOT_FOUND,
    SCRIPTS,
    SKILL_NOT_FOUND,
    ExecSkill,
    parse_content,
    parse_item,
    parse_skill,
)

_NOT_FOUND = (INVALID_PARAMS, SKILL_NOT_FOUND, REFERENCE_NOT_FOUND)
_MAX_KEPT = 256
_IN_FRONTMATTER = ("name", "title", "description", "keywords")


class ReferenceParams(NameParams):
    """Parameters that name one file of a skill."""

    reference: str


class ReadRequest(Request[NameParams, Literal["skills/read"]]):
    method: Literal["skills/read"] = READ_METHOD


class ReadReferenceRequest(Request[ReferenceParams, Literal["skills/read_reference"]]):
    method: Literal["skills/read_reference"] = READ_REFERENCE_METHOD


@dataclass(frozen=True, slots=True)
class ExecFiles:
    """The files of one skill: what to call them when asking, by their URIs here; and its scripts."""

    references: dict[str, str] = field(default_factory=dict[str, str])
    scripts: frozenset[str] = frozenset()

    @property
    def uris(self) -> tuple[str, ...]:
        return (*self.references, *sorted(self.scripts))


class ExecVoice:
    """A server that knows skills by name and gives them out with `skills/read`."""

    def __init__(self, roster: Roster | None = None) -> None:
        self._roster = roster or Roster()
        self._files: dict[str, ExecFiles] = {}

    @property
    def dialect(self) -> Dialect:
        return Dialect.EXEC

    async def list(self, peer: Peer, hearing: Hearing) -> Listing:
        return await self._roster.listed(
            peer, hearing, skills_page, read_card, member="skills", dialect=Dialect.EXEC
        )

    async def get(self, peer: Peer, uri: SkillUri) -> SkillEntry:
        card = self._roster.card_at(uri)
        skill = await self._skill(peer, card, MAX_TOTAL_SIZE)
        card = self._roster.meet(card, skill.description)
        return card.entry(self._files[card.uri.text].uris)

    async def read(self, peer: Peer, uri: str, *, max_bytes: int) -> bytes:
        card, canonical = self._roster.owner(uri)
        if canonical == card.uri.text:
            skill = await self._skill(peer, card, max_bytes)
            card = self._roster.meet(card, skill.description)
            return card.skill_md(skill.instructions, max_bytes=max_bytes)
        if card.uri.text not in self._files:
            self._roster.meet(card, (await self._skill(peer, card, MAX_TOTAL_SIZE)).description)
        files = self._files[card.uri.text]
        if canonical in files.scripts:
            raise NotDeclaredError(
                f"{quoted(canonical)} is a script that its server keeps to itself, and runs itself",
                violates="EXEC-04",
                fix="do without its text: this dialect has no way to read it",
            )
        reference = files.references.get(canonical)
        if reference is None:
            raise nothing_at(uri)
        return await self._reference(peer, card, reference, canonical, max_bytes)

    async def _skill(self, peer: Peer, card: Card, max_bytes: int) -> ExecSkill:
        """Ask for a whole skill, and remember which files it has."""
        request = ReadRequest(params=NameParams(name=card.called))
        try:
            answer = await _asked(peer, request, card.uri.text, max_bytes)
        except PeerError as error:
            if error.peer_code != METHOD_NOT_FOUND:
                raise
            raise PeerError(
                f"the server lists skills and does not know {READ_METHOD}: {error}",
                method=error.method,
                peer_code=error.peer_code,
                fix=f'if it knows {GET_SKILL}, put "dialect": "{Dialect.PRIMITIVE}" in its `skills` settings',
            ) from error
        skill, findings = parse_skill(answer)
        if skill is None:
            raise no_use(card, findings, "EXEC-03")
        if skill.name != card.called:
            raise InvalidAnswerError(
                f"the server was asked for {quoted(card.called)} and returned {quoted(skill.name)}",
                violates="GET-06",
            )
        self._files.pop(card.uri.text, None)
        self._files[card.uri.text] = _files_of(card.uri, skill)
        if len(self._files) > _MAX_KEPT:
            del self._files[next(iter(self._files))]
        return skill

    async def _reference(self, peer: Peer, card: Card, reference: str, uri: str, max_bytes: int) -> bytes:
        params = ReferenceParams(name=card.called, reference=reference)
        answer = await _asked(peer, ReadReferenceRequest(params=params), uri, max_bytes)
        found, findings = parse_content(answer)
        if found is None:
            raise no_use(card, findings, "EXEC-04")
        require_size(found.content, uri, max_bytes)
        return found.content


async def find(peer: Peer, hearing: Hearing) -> Found | None:
    """Return this voice if the server declared the capability `skills`, and in it whether it has scripts."""
    capability = peer.skills_capability
    if capability is None or (SCRIPTS not in capability and hearing.dialect is not Dialect.EXEC):
        return None
    voice = ExecVoice()
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
        metadata={"title": item.title, "keywords": joined(item.keywords)},
        extra=cast("dict[str, JsonValue]", extra),
        is_described=True,
    )
    return card, [*findings, *more]


def _files_of(skill: SkillUri, told: ExecSkill) -> ExecFiles:
    """Give each file the URI of its path; one whose path is another's, or in its way, is left out."""
    readable = (*told.references, *told.assets)
    names = Counter(file.name for file in readable)
    references: dict[str, str] = {}
    scripts: set[str] = set()
    taken = {fold_path(SKILL_FILE)}
    for number, file in enumerate((*readable, *told.scripts)[:MAX_FILES]):
        if not is_free(file.path, taken):
            continue
        taken.add(fold_path(file.path))
        uri = skill.join(file.path)
        if number >= len(readable):
            scripts.add(uri)
        else:
            # The page asks by name; where that means two files, only the path tells them apart.
            references[uri] = file.name if names[file.name] == 1 else file.path
    return ExecFiles(references, frozenset(scripts))


async def _asked(peer: Peer, request: ReadRequest | ReadReferenceRequest, uri: str, max_bytes: int) -> Answer:
    with looking_for(uri, codes=_NOT_FOUND):
        return await peer.ask(request, max_bytes=max_bytes)
