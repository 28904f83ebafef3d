"""SEP-2076: skills by name, requested one at a time, with files that are plain resources."""

import copy
import logging
from typing import Any, Final, Literal, TypeAlias, cast

from mcp.types import METHOD_NOT_FOUND, PaginatedRequestParams, Request

from skillwire.core import INVALID_PARAMS, MAX_TOTAL_SIZE, Dialect, Finding, JsonValue, SkillEntry, SkillUri
from skillwire.host.calls import Listing, Pager, not_found_errors
from skillwire.host.dialects.base import (
    NO_ARGUMENTS,
    Arguments,
    DialectClient,
    DialectMatch,
    DialectOptions,
    Session,
    require_no_arguments,
    try_list,
)
from skillwire.host.dialects.by_name import (
    NamedSkill,
    NamedSkills,
    NameParams,
    assign_uris,
    build_named_skill,
    joined,
    not_found,
    skills_page,
    unusable_answer,
)
from skillwire.host.dialects.execute import ExecDialectClient
from skillwire.host.model import PeerError
from skillwire.wire.by_name import (
    GET_METHOD,
    PrimitiveItem,
    SkillDefinition,
    SkillDependencies,
    parse_definition,
    parse_item,
)
from skillwire.wire.execute import READ_METHOD, SCRIPTS, SKILL_NOT_FOUND

DEPENDENCIES: Final = "dependencies"
"""The member of an entry's `extra` that holds the dependencies of a skill."""

_MAX_SKILLS = 256
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
            session, options, skills_page, parse_named_skill, member="skills", dialect=Dialect.PRIMITIVE
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


async def find(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return this client if the server declared the capability `skills`, without the scripts of `exec`."""
    capability = session.skills_capability
    is_pinned = options.dialect is Dialect.PRIMITIVE
    if capability is None or (SCRIPTS in capability and not is_pinned):
        return None
    client = PrimitiveDialectClient(may_switch=not is_pinned and SCRIPTS not in capability)
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
