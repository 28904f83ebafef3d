"""Whole skills as the texts of prompts: the last resort, for servers that offer them no other way.

A prompt of an ordinary server is not a skill. So prompts are used as skills
only if the server declared skills and none of the better dialects works, or if
the user chose this dialect. Nothing in such a text is verified, and none of its
links are followed (DUAL-04, DUAL-12).
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from mcp.types import (
    GetPromptRequest,
    GetPromptRequestParams,
    ListPromptsRequest,
    PaginatedRequestParams,
)

from skillwire.core import (
    INVALID_PARAMS,
    MAX_TOTAL_SIZE,
    Dialect,
    Finding,
    FrontmatterError,
    InvalidUriError,
    PromptParts,
    SkillEntry,
    SkillUri,
    canonical_uri,
    open_object,
    parse_skill_md,
    quoted,
    split_prompt,
    suggest_name,
)
from skillwire.host.calls import Answer, Listing, Session, not_found_errors
from skillwire.host.dialects.base import NO_ARGUMENTS, Arguments, DialectMatch, DialectOptions, is_absent
from skillwire.host.dialects.named_skills import (
    NamedSkill,
    NamedSkills,
    build_named_skill,
    not_found,
    require_size,
)
from skillwire.host.model import ARGUMENTS, InvalidAnswerError, PeerError
from skillwire.wire.by_name import parse_arguments

PROMPT: Final = "prompt"
"""The member of an entry's `extra` that holds the prompt's own name."""

_MAX_NAME = 256


class PromptDialectClient:
    """A client for servers whose prompts are skills. Each read requests the prompt again."""

    def __init__(self, skills: NamedSkills | None = None, arguments: Arguments = NO_ARGUMENTS) -> None:
        self._skills = skills or NamedSkills()
        self._arguments = arguments

    @property
    def dialect(self) -> Dialect:
        return Dialect.PROMPT

    def with_arguments(self, arguments: Arguments) -> "PromptDialectClient":
        """Return a client that sends these arguments with each request for a prompt."""
        return PromptDialectClient(self._skills, arguments)

    async def list(self, session: Session, options: DialectOptions) -> Listing:
        return await self._skills.list(
            session, options, _page_request, parse_named_skill, member="prompts", dialect=Dialect.PROMPT
        )

    async def get(self, session: Session, uri: SkillUri) -> SkillEntry:
        named = self._known(uri.text)
        if named.uri != uri:
            raise not_found(uri.text)
        parts = await self._parts(session, named, MAX_TOTAL_SIZE)
        return named.entry(named.uri.join(path) for path, _ in parts.references)

    async def read(self, session: Session, uri: str, *, max_bytes: int) -> bytes:
        try:
            canonical = canonical_uri(uri)
        except InvalidUriError as error:
            raise not_found(uri) from error
        named = self._known(canonical)
        parts = await self._parts(session, named, MAX_TOTAL_SIZE)
        if canonical == named.uri.text:
            return named.skill_md(parts.skill_md, max_bytes=max_bytes)
        for path, text in parts.references:
            if named.uri.join(path) == canonical:
                content = text.encode()
                require_size(content, uri, max_bytes)
                return content
        raise not_found(uri)

    def _known(self, uri: str) -> NamedSkill:
        """Return a listed skill: the name of a prompt cannot be derived from a URI."""
        named = self._skills.find(uri)
        if named is None:
            raise not_found(uri)
        return named

    async def _parts(self, session: Session, named: NamedSkill, max_bytes: int) -> PromptParts:
        """Request a prompt and split its text; `skill_md` of the result holds only the instructions."""
        named.require_arguments(self._arguments)
        params = GetPromptRequestParams(name=named.remote_name, arguments=dict(self._arguments) or None)
        # With arguments, invalid params may refer to them.
        with not_found_errors(named.uri.text, codes=() if self._arguments else (INVALID_PARAMS,)):
            answer = await session.send_request(GetPromptRequest(params=params), max_bytes=max_bytes)
        text = _text_of(answer, named)
        try:
            parts = split_prompt(text)
            body = parse_skill_md(parts.skill_md.encode()).body
        except FrontmatterError:
            return PromptParts(text, is_whole=True)
        return PromptParts(body, parts.references, parts.omitted, parts.is_whole)


async def find(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return this client if the server has prompts and declared skills, or if the user chose it."""
    is_pinned = options.dialect is Dialect.PROMPT
    is_declared = session.declares_extension or session.skills_capability is not None
    if not (session.has_prompts and (is_pinned or is_declared)):
        return None
    client = PromptDialectClient()
    try:
        listing = await client.list(session, options)
    except PeerError as error:
        if is_absent(error):
            return None
        raise
    return DialectMatch(client, listing) if is_pinned or listing.entries or listing.refused else None


def parse_named_skill(value: object) -> tuple[NamedSkill | None, list[Finding]]:
    """Parse one prompt of a listing; its name is converted to a valid skill name."""
    members, findings = open_object(
        value, required="prompt-invalid", optional="prompt-field-invalid", what="an item of the listing"
    )
    name = members.required_text("name", most=_MAX_NAME) if members is not None else None
    if members is None or name is None:
        return None, findings
    arguments = parse_arguments(members)
    path = suggest_name(name)
    if not any(character.isalnum() and character.isascii() for character in name):
        message = f"the prompt's name {quoted(name)} has no character that a skill's name may have"
        return None, [*findings, Finding("name-invalid", message, file="")]
    named, more = build_named_skill(
        name,
        path=path,
        description=members.text("description"),
        metadata={"title": members.text("title")},
        extra={PROMPT: name, **({ARGUMENTS: [it.to_json() for it in arguments]} if arguments else {})},
        required_arguments=[argument.name for argument in arguments if argument.required],
    )
    return named, [*findings, *more]


def _text_of(answer: Answer, named: NamedSkill) -> str:
    """Return the text of a prompt's one message.

    Raises:
        InvalidAnswerError: There is not exactly one message with the role user and a text.
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
        f"the prompt {quoted(named.remote_name)} is no skill: it is not one user message with text",
        violates="DUAL-05",
    )


def _page_request(cursor: str | None) -> ListPromptsRequest:
    return ListPromptsRequest(params=PaginatedRequestParams(cursor=cursor))
