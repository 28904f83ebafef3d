"""The skills page: skills by name, read with `skills/read`, and their files with `skills/read_reference`.

Scripts of such a server run on the server, and there is no way to read them:
they are known by their paths alone. `ExecVoice.execute` asks the server to run
one; whether that may be done is for its caller to know.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

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
from skillwire.wire.executed import MAX_CONTENT, Executed, parse_executed
from skillwire.wire.execution import (
    EXECUTE_METHOD,
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


class ExecuteParams(NameParams):
    """Parameters that name one script of a skill, with what the user agreed to send it."""

    script: str
    arguments: dict[str, Any]


class ReadRequest(Request[NameParams, Literal["skills/read"]]):
    method: Literal["skills/read"] = READ_METHOD


class ReadReferenceRequest(Request[ReferenceParams, Literal["skills/read_reference"]]):
    method: Literal["skills/read_reference"] = READ_REFERENCE_METHOD


class ExecuteRequest(Request[ExecuteParams, Literal["skills/execute"]]):
    method: Literal["skills/execute"] = EXECUTE_METHOD


@dataclass(frozen=True, slots=True)
class ExecFiles:
    """The files of one skill, readable ones and scripts: what to call them, by their URIs here."""

    references: dict[str, str] = field(default_factory=dict[str, str])
    scripts: dict[str, str] = field(default_factory=dict[str, str])

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
        files = await self._files_at(peer, card)
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

    async def scripts(self, peer: Peer, uri: SkillUri) -> tuple[str, ...]:
        """Return the paths of the scripts that the server offers to run for a skill.

        Raises:
            NotDeclaredError: It runs none; nothing was sent.
            SkillError: It does not have the skill, or cannot be asked.
        """
        _require_scripts(peer)
        card = self._roster.card_at(uri)
        files = await self._files_at(peer, card)
        return tuple(card.uri.relative_path(script) for script in files.scripts)

    async def execute(
        self, peer: Peer, uri: SkillUri, path: str, arguments: Mapping[str, JsonValue]
    ) -> Executed:
        """Ask the server to run one of the scripts it told of, and return what it says came of it.

        Raises:
            NotDeclaredError: It runs none, or did not tell of this one; nothing was sent.
            PeerError: It answered with an error.
            InvalidAnswerError: Its answer cannot be used.
        """
        _require_scripts(peer)
        card = self._roster.card_at(uri)
        called = (await self._files_at(peer, card)).scripts.get(card.uri.join(path))
        if called is None:
            raise NotDeclaredError(f"the server does not tell of a script {quoted(path)}", violates="EXEC-15")
        params = ExecuteParams(name=card.called, script=called, arguments=dict(arguments))
        answer = await peer.ask(ExecuteRequest(params=params), max_bytes=MAX_CONTENT)
        found, findings = parse_executed(answer)
        if found is None:
            raise no_use(card, findings, "EXEC-05")
        return found

    async def _files_at(self, peer: Peer, card: Card) -> ExecFiles:
        if card.uri.text not in self._files:
            self._roster.meet(card, (await self._skill(peer, card, MAX_TOTAL_SIZE)).description)
        return self._files[card.uri.text]

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
    script_names = Counter(file.name for file in told.scripts)
    references: dict[str, str] = {}
    scripts: dict[str, str] = {}
    taken = {fold_path(SKILL_FILE)}
    for number, file in enumerate((*readable, *told.scripts)[:MAX_FILES]):
        if not is_free(file.path, taken):
            continue
        taken.add(fold_path(file.path))
        uri = skill.join(file.path)
        # The page asks by name; where that means two files, only the path tells them apart.
        if number >= len(readable):
            scripts[uri] = file.name if script_names[file.name] == 1 else file.path
        else:
            references[uri] = file.name if names[file.name] == 1 else file.path
    return ExecFiles(references, scripts)


def _require_scripts(peer: Peer) -> None:
    """Check that the server said it runs scripts; where it says no, or nothing, none is asked for."""
    if (peer.skills_capability or {}).get(SCRIPTS) is not True:
        raise NotDeclaredError(
            "the server has not declared that it runs scripts",
            violates="EXEC-14",
            fix="go on without its scripts",
        )


async def _asked(peer: Peer, request: ReadRequest | ReadReferenceRequest, uri: str, max_bytes: int) -> Answer:
    with looking_for(uri, codes=_NOT_FOUND):
        return await peer.ask(request, max_bytes=max_bytes)
