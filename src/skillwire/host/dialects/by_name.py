"""The dialects that identify skills by name: `primitive` (SEP-2076) and `exec` (the skills page).

A server of `primitive` that does not answer `skills/get` is asked with
`skills/read`, as one of `exec`. Scripts of an `exec` server run on the server
and cannot be read: only their paths are known. `ExecDialectClient.execute` asks
the server to run one; the caller checks beforehand that this is allowed.
"""

import copy
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from mcp.types import METHOD_NOT_FOUND, PaginatedRequestParams, Request

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
from skillwire.host.calls import Answer, Listing, Pager, Session, not_found_errors
from skillwire.host.dialects.base import (
    NO_ARGUMENTS,
    Arguments,
    DialectClient,
    DialectMatch,
    DialectOptions,
    require_no_arguments,
    try_list,
)
from skillwire.host.dialects.named_skills import (
    NamedSkill,
    NamedSkills,
    NameParams,
    assign_uris,
    build_named_skill,
    is_free,
    joined,
    not_found,
    require_size,
    skills_page,
    unusable_answer,
)
from skillwire.host.model import InvalidAnswerError, NotDeclaredError, PeerError
from skillwire.wire.by_name import (
    GET_METHOD,
    PrimitiveItem,
    SkillDefinition,
    SkillDependencies,
    parse_definition,
    parse_item,
)
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
    parse_skill,
)
from skillwire.wire.execute import (
    parse_item as parse_exec_item,
)

_MAX_SKILLS = 256
_NOT_FOUND = (INVALID_PARAMS, SKILL_NOT_FOUND, REFERENCE_NOT_FOUND)
_EXEC_FRONTMATTER = ("name", "title", "description", "keywords")


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
            session, options, skills_page, parse_exec_skill, member="skills", dialect=Dialect.EXEC
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


async def find_exec(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return this client if the server declared the capability `skills` with its member for scripts."""
    capability = session.skills_capability
    if capability is None or (SCRIPTS not in capability and options.dialect is not Dialect.EXEC):
        return None
    client = ExecDialectClient()
    return await try_list(client, session, options)


def parse_exec_skill(value: object) -> tuple[NamedSkill | None, list[Finding]]:
    """Parse one item of a listing; members that are no frontmatter stay in `extra`."""
    item, findings = parse_exec_item(value)
    if item is None:
        return None, findings
    extra = {key: value for key, value in item.to_json().items() if key not in _EXEC_FRONTMATTER}
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


DEPENDENCIES: Final = "dependencies"
"""The member of an entry's `extra` that holds the dependencies of a skill."""

_FilesKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
_IN_FRONTMATTER = ("name", "title", "description", "version", "tags")

logger = logging.getLogger(__name__)


class GetParams(NameParams):
    """Parameters that name one skill, with the arguments that the user approved."""

    arguments: dict[str, str] | None = None


class GetRequest(Request[GetParams, Literal["skills/get"]]):
    method: Literal["skills/get"] = GET_METHOD


class PrimitiveDialectClient:
    """A client for servers that identify skills by name and return them with `skills/get`.

    With `may_switch`, a server that does not support `skills/get` is used with
    the `exec` dialect instead: its capability did not say which of both it speaks.
    """

    def __init__(self, *, may_switch: bool = False) -> None:
        self._skills = NamedSkills()
        self._files: dict[_FilesKey, dict[str, str]] = {}
        self._arguments = NO_ARGUMENTS
        self._may_switch = may_switch
        self._replacement: DialectClient | None = None

    @property
    def dialect(self) -> Dialect:
        return Dialect.PRIMITIVE if self._replacement is None else self._replacement.dialect

    def with_arguments(self, arguments: Arguments) -> "PrimitiveDialectClient":
        """Return a client that sends these arguments with each request for a skill.

        Raises:
            InvalidArgumentsError: The server turned out to speak a dialect without arguments.
        """
        if self._replacement is not None:
            require_no_arguments(arguments, self._replacement.dialect)
        bound = copy.copy(self)  # Both share the known names and files.
        bound._arguments = arguments
        return bound

    async def list(self, session: Session, options: DialectOptions) -> Listing:
        if self._replacement is not None:
            return await self._replacement.list(session, options)
        return await self._skills.list(
            session, options, skills_page, parse_primitive_skill, member="skills", dialect=Dialect.PRIMITIVE
        )

    async def get(self, session: Session, uri: SkillUri) -> SkillEntry:
        if self._replacement is None:
            named = self._skills.skill_at(uri)
            definition = await self._definition(session, named, MAX_TOTAL_SIZE)
            if definition is not None:
                named = self._skills.remember(named, definition.description)
                return named.entry(self._files[self._key(named)])
        return await self._other.get(session, uri)

    async def read(self, session: Session, uri: str, *, max_bytes: int) -> bytes:
        if self._replacement is None:
            content = await self._read(session, uri, max_bytes)
            if content is not None:
                return content
        return await self._other.read(session, uri, max_bytes=max_bytes)

    @property
    def _other(self) -> DialectClient:
        assert self._replacement is not None, "the server turned out to speak the other dialect"
        return self._replacement

    async def _read(self, session: Session, uri: str, max_bytes: int) -> bytes | None:
        named, canonical = self._skills.owner(uri)
        is_skill = canonical == named.uri.text
        if is_skill or self._key(named) not in self._files:
            definition = await self._definition(session, named, max_bytes if is_skill else MAX_TOTAL_SIZE)
            if definition is None:
                return None
            named = self._skills.remember(named, definition.description)
            if is_skill:
                return named.skill_md(definition.instructions, max_bytes=max_bytes)
        declared = self._files[self._key(named)].get(canonical)
        if declared is None:
            raise not_found(uri)
        return await session.read_any(declared, max_bytes=max_bytes)

    async def _definition(
        self, session: Session, named: NamedSkill, max_bytes: int
    ) -> SkillDefinition | None:
        """Request a skill, and remember where its files are; None if the server speaks the other dialect.

        Raises:
            NotFoundError: There is no such skill.
            ArgumentsNeededError: It needs arguments.
            SkillError: The answer cannot be used.
        """
        named.require_arguments(self._arguments)
        request = GetRequest(
            params=GetParams(name=named.remote_name, arguments=dict(self._arguments) or None)
        )
        try:
            with not_found_errors(named.uri.text, codes=self._absent_codes):
                answer = await session.send_request(request, max_bytes=max_bytes)
        except PeerError as error:
            if error.peer_code != METHOD_NOT_FOUND:
                raise
            self._switch_dialect(error)
            require_no_arguments(self._arguments, self.dialect)
            return None
        definition, findings = parse_definition(answer)
        if definition is None:
            raise unusable_answer(named, findings, "P2076-03")
        self._files.pop(self._key(named), None)
        self._files[self._key(named)] = assign_uris(named.uri, definition.files)
        if len(self._files) > _MAX_SKILLS:
            del self._files[next(iter(self._files))]
        return definition

    @property
    def _absent_codes(self) -> tuple[int, ...]:
        """The error codes for "no such skill"; with arguments, invalid params may refer to them."""
        return (SKILL_NOT_FOUND,) if self._arguments else (INVALID_PARAMS, SKILL_NOT_FOUND)

    def _key(self, named: NamedSkill) -> _FilesKey:
        return named.uri.text, tuple(sorted(self._arguments.items()))

    def _switch_dialect(self, error: PeerError) -> None:
        """Switch to the `exec` dialect, if the declaration allows both.

        Raises:
            PeerError: It does not, or the user chose this dialect.
        """
        if not self._may_switch:
            raise PeerError(
                f"the server lists skills but does not support {GET_METHOD}: {error}",
                method=error.method,
                peer_code=error.peer_code,
                fix=f'if it supports {READ_METHOD}, set "dialect": "{Dialect.EXEC}" in its `skills`',
            ) from error
        logger.info("the server does not support %s; trying %s", GET_METHOD, READ_METHOD)
        self._replacement = ExecDialectClient(self._skills)


async def find_primitive(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return this client if the server declared the capability `skills`, without the scripts of `exec`."""
    capability = session.skills_capability
    is_pinned = options.dialect is Dialect.PRIMITIVE
    if capability is None or (SCRIPTS in capability and not is_pinned):
        return None
    client = PrimitiveDialectClient(may_switch=not is_pinned and SCRIPTS not in capability)
    return await try_list(client, session, options)


def parse_primitive_skill(value: object) -> tuple[NamedSkill | None, list[Finding]]:
    """Parse one item of a listing; members that are no frontmatter stay in `extra`."""
    item, findings = parse_item(value)
    if item is None:
        return None, findings
    extra = {key: value for key, value in item.to_json().items() if key not in _IN_FRONTMATTER}
    named, more = build_named_skill(
        item.name,
        description=item.description,
        metadata=_metadata(item),
        extra=cast("dict[str, JsonValue]", extra),
        required_arguments=[argument.name for argument in item.arguments if argument.required],
    )
    return named, [*findings, *more]


async def missing_dependencies(
    session: Session, options: DialectOptions, entry: SkillEntry
) -> SkillDependencies:
    """Return the tools and prompts that a skill depends on and its server does not list (ASK-15).

    Resources are not checked: an unlisted one may be readable.

    Raises:
        SkillError: The server's tools or prompts cannot be listed.
    """
    item, _ = parse_item({"name": entry.name, DEPENDENCIES: entry.extra.get(DEPENDENCIES)})
    needed = item.dependencies if item is not None else SkillDependencies()
    tools = (
        await _names(session, options, "tools", has=session.client.server_capabilities.tools is not None)
        if needed.tools
        else set[str]()
    )
    prompts = (
        await _names(session, options, "prompts", has=session.has_prompts) if needed.prompts else set[str]()
    )
    return SkillDependencies(
        tools=tuple(name for name in needed.tools if name not in tools),
        prompts=tuple(name for name in needed.prompts if name not in prompts),
    )


class _AnyListRequest(Request[PaginatedRequestParams, str]):
    method: str


async def _names(session: Session, options: DialectOptions, member: str, *, has: bool) -> set[str]:
    found: set[str] = set()
    if not has:
        return found

    def page_request(cursor: str | None) -> _AnyListRequest:
        return _AnyListRequest(method=f"{member}/list", params=PaginatedRequestParams(cursor=cursor))

    pager = Pager(session.client, page_request, member=member, limits=options.limits)
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
