"""The skills page: skills by name, read with `skills/read`, and their files with `skills/read_reference`.

Scripts of such a server run on the server and cannot be read: only their paths
are known. `ExecDialectClient.execute` asks the server to run one; the caller
checks beforehand that this is allowed.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from mcp.types import METHOD_NOT_FOUND, Request

from skillwire.core import (
    INVALID_PARAMS,
    MAX_FILES,
    MAX_TOTAL_SIZE,
    SKILL_FILE,
    Dialect,
    Finding,
    JsonValue,
    SkillEntry,
    SkillUri,
    fold_path,
    quoted,
)
from skillwire.host.calls import Answer, Listing, not_found_errors
from skillwire.host.dialects.base import DialectMatch, DialectOptions, Session, try_list
from skillwire.host.dialects.by_name import (
    NamedSkill,
    NamedSkills,
    NameParams,
    build_named_skill,
    is_free,
    joined,
    not_found,
    require_size,
    skills_page,
    unusable_answer,
)
from skillwire.host.model import InvalidAnswerError, NotDeclaredError, PeerError
from skillwire.wire.core import GET_SKILL
from skillwire.wire.execute import (
    EXECUTE_METHOD,
    MAX_CONTENT,
    READ_METHOD,
    READ_REFERENCE_METHOD,
    REFERENCE_NOT_FOUND,
    SCRIPTS,
    SKILL_NOT_FOUND,
    ExecSkill,
    ExecutionResult,
    parse_content,
    parse_execution_result,
    parse_item,
    parse_skill,
)

_NOT_FOUND = (INVALID_PARAMS, SKILL_NOT_FOUND, REFERENCE_NOT_FOUND)
_MAX_SKILLS = 256
_IN_FRONTMATTER = ("name", "title", "description", "keywords")


class ReferenceParams(NameParams):
    """Parameters that name one file of a skill."""

    reference: str


class ExecuteParams(NameParams):
    """Parameters that name one script of a skill, with the arguments that the user approved."""

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
    """The readable files and the scripts of one skill: the server's names for them, by their URIs here."""

    references: dict[str, str] = field(default_factory=dict[str, str])
    scripts: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def uris(self) -> tuple[str, ...]:
        return (*self.references, *sorted(self.scripts))


class ExecDialectClient:
    """A client for servers that identify skills by name and return them with `skills/read`."""

    def __init__(self, skills: NamedSkills | None = None) -> None:
        self._skills = skills or NamedSkills()
        self._files: dict[str, ExecFiles] = {}

    @property
    def dialect(self) -> Dialect:
        return Dialect.EXEC

    async def list(self, session: Session, options: DialectOptions) -> Listing:
        return await self._skills.list(
            session, options, skills_page, parse_named_skill, member="skills", dialect=Dialect.EXEC
        )

    async def get(self, session: Session, uri: SkillUri) -> SkillEntry:
        named = self._skills.skill_at(uri)
        skill = await self._skill(session, named, MAX_TOTAL_SIZE)
        named = self._skills.remember(named, skill.description)
        return named.entry(self._files[named.uri.text].uris)

    async def read(self, session: Session, uri: str, *, max_bytes: int) -> bytes:
        named, canonical = self._skills.owner(uri)
        if canonical == named.uri.text:
            skill = await self._skill(session, named, max_bytes)
            named = self._skills.remember(named, skill.description)
            return named.skill_md(skill.instructions, max_bytes=max_bytes)
        files = await self._files_at(session, named)
        if canonical in files.scripts:
            raise NotDeclaredError(
                f"{quoted(canonical)} is a script that only its server can read and run",
                violates="EXEC-04",
                fix="continue without its text: this dialect cannot read scripts",
            )
        reference = files.references.get(canonical)
        if reference is None:
            raise not_found(uri)
        return await self._reference(session, named, reference, canonical, max_bytes)

    async def scripts(self, session: Session, uri: SkillUri) -> tuple[str, ...]:
        """Return the paths of the scripts of a skill that the server can run.

        Raises:
            NotDeclaredError: The server does not run scripts; nothing was sent.
            SkillError: It does not have the skill, or cannot be reached.
        """
        _require_scripts(session)
        named = self._skills.skill_at(uri)
        files = await self._files_at(session, named)
        return tuple(named.uri.relative_path(script) for script in files.scripts)

    async def execute(
        self, session: Session, uri: SkillUri, path: str, arguments: Mapping[str, JsonValue]
    ) -> ExecutionResult:
        """Ask the server to run one of the scripts it lists, and return the result it reports.

        Raises:
            NotDeclaredError: The server does not run scripts, or does not list this one; nothing was sent.
            PeerError: It answered with an error.
            InvalidAnswerError: Its answer cannot be used.
        """
        _require_scripts(session)
        named = self._skills.skill_at(uri)
        script_name = (await self._files_at(session, named)).scripts.get(named.uri.join(path))
        if script_name is None:
            raise NotDeclaredError(f"the server does not list a script {quoted(path)}", violates="EXEC-15")
        params = ExecuteParams(name=named.remote_name, script=script_name, arguments=dict(arguments))
        answer = await session.send_request(ExecuteRequest(params=params), max_bytes=MAX_CONTENT)
        found, findings = parse_execution_result(answer)
        if found is None:
            raise unusable_answer(named, findings, "EXEC-05")
        return found

    async def _files_at(self, session: Session, named: NamedSkill) -> ExecFiles:
        if named.uri.text not in self._files:
            self._skills.remember(named, (await self._skill(session, named, MAX_TOTAL_SIZE)).description)
        return self._files[named.uri.text]

    async def _skill(self, session: Session, named: NamedSkill, max_bytes: int) -> ExecSkill:
        """Request a whole skill, and remember its files."""
        request = ReadRequest(params=NameParams(name=named.remote_name))
        try:
            answer = await _send(session, request, named.uri.text, max_bytes)
        except PeerError as error:
            if error.peer_code != METHOD_NOT_FOUND:
                raise
            raise PeerError(
                f"the server lists skills but does not support {READ_METHOD}: {error}",
                method=error.method,
                peer_code=error.peer_code,
                fix=f'if it supports {GET_SKILL}, set "dialect": "{Dialect.PRIMITIVE}" in its `skills`',
            ) from error
        skill, findings = parse_skill(answer)
        if skill is None:
            raise unusable_answer(named, findings, "EXEC-03")
        if skill.name != named.remote_name:
            raise InvalidAnswerError(
                f"the server was asked for {quoted(named.remote_name)} and returned {quoted(skill.name)}",
                violates="GET-06",
            )
        self._files.pop(named.uri.text, None)
        self._files[named.uri.text] = _files_of(named.uri, skill)
        if len(self._files) > _MAX_SKILLS:
            del self._files[next(iter(self._files))]
        return skill

    async def _reference(
        self, session: Session, named: NamedSkill, reference: str, uri: str, max_bytes: int
    ) -> bytes:
        params = ReferenceParams(name=named.remote_name, reference=reference)
        answer = await _send(session, ReadReferenceRequest(params=params), uri, max_bytes)
        found, findings = parse_content(answer)
        if found is None:
            raise unusable_answer(named, findings, "EXEC-04")
        require_size(found.content, uri, max_bytes)
        return found.content


async def find(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return this client if the server declared the capability `skills` with its member for scripts."""
    capability = session.skills_capability
    if capability is None or (SCRIPTS not in capability and options.dialect is not Dialect.EXEC):
        return None
    client = ExecDialectClient()
    return await try_list(client, session, options)


def parse_named_skill(value: object) -> tuple[NamedSkill | None, list[Finding]]:
    """Parse one item of a listing; members that are no frontmatter stay in `extra`."""
    item, findings = parse_item(value)
    if item is None:
        return None, findings
    extra = {key: value for key, value in item.to_json().items() if key not in _IN_FRONTMATTER}
    named, more = build_named_skill(
        item.name,
        description=item.description,
        metadata={"title": item.title, "keywords": joined(item.keywords)},
        extra=cast("dict[str, JsonValue]", extra),
        is_described=True,
    )
    return named, [*findings, *more]


def _files_of(skill: SkillUri, found: ExecSkill) -> ExecFiles:
    """Assign each file the URI of its path; a file whose path conflicts with another is left out."""
    readable = (*found.references, *found.assets)
    names = Counter(file.name for file in readable)
    script_names = Counter(file.name for file in found.scripts)
    references: dict[str, str] = {}
    scripts: dict[str, str] = {}
    taken = {fold_path(SKILL_FILE)}
    for number, file in enumerate((*readable, *found.scripts)[:MAX_FILES]):
        if not is_free(file.path, taken):
            continue
        taken.add(fold_path(file.path))
        uri = skill.join(file.path)
        # Files are requested by name; where two files share a name, by path.
        if number >= len(readable):
            scripts[uri] = file.name if script_names[file.name] == 1 else file.path
        else:
            references[uri] = file.name if names[file.name] == 1 else file.path
    return ExecFiles(references, scripts)


def _require_scripts(session: Session) -> None:
    """Check that the server declared that it runs scripts.

    Raises:
        NotDeclaredError: It declared false, or nothing.
    """
    if (session.skills_capability or {}).get(SCRIPTS) is not True:
        raise NotDeclaredError(
            "the server has not declared that it runs scripts",
            violates="EXEC-14",
            fix="continue without its scripts",
        )


async def _send(
    session: Session, request: ReadRequest | ReadReferenceRequest, uri: str, max_bytes: int
) -> Answer:
    with not_found_errors(uri, codes=_NOT_FOUND):
        return await session.send_request(request, max_bytes=max_bytes)
