"""Framework-independent tools for the model, with a name, a JSON Schema and an async handler.

They can be adapted to every agent framework and message format. A call never
raises for a mistake of the model: it returns a refusal with a code and a
remedy that the model can act on.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from skillwire.core import SkillError, quoted, visible
from skillwire.host.model import InvalidArgumentsError, NoSuchPageError, Refusal
from skillwire.host.use.definitions import (
    LIST_SKILL_FILES,
    LOAD_SKILL,
    READ_RESOURCE,
    READ_SKILL_FILE,
    RUN_SKILL_SCRIPT,
    SEARCH_SKILLS,
    SEARCH_TOOL,
    ToolDefinition,
)
from skillwire.host.use.present import FramedText, LoadedSkill, SkillFileLine
from skillwire.host.use.script_results import ScriptResult
from skillwire.host.use.search import Match, SearchPage

Arguments: TypeAlias = Mapping[str, object]
Handler: TypeAlias = Callable[[Arguments], Awaitable[str]]

FILES_PER_PAGE = 200
FILE_BYTES_PER_PAGE = 8_000
MAX_ARGUMENT_LENGTH = 10_000
_LONGEST_NAME = 1_000


class SkillOperations(Protocol):
    """The operations of a conversation that the tools use."""

    async def load(
        self, reference: str, *, page: int = 1, arguments: Mapping[str, str] | None = None
    ) -> LoadedSkill: ...
    async def read_skill_file(self, reference: str, path: str, *, page: int = 1) -> FramedText: ...
    def list_skill_files(self, reference: str) -> tuple[SkillFileLine, ...]: ...
    async def read_skill_directory(self, reference: str, path: str = "") -> tuple[SkillFileLine, ...]: ...
    async def read_resource(self, server: str, uri: str, *, page: int = 1) -> FramedText: ...
    async def search(self, query: str, *, cursor: str | None = None) -> SearchPage: ...
    def unanswered_servers(self) -> Sequence[str]: ...
    async def run_script(
        self, reference: str, script: str, arguments: Mapping[str, Any] | None = None
    ) -> ScriptResult: ...


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool: `text` is complete and for the model, also if the call was refused."""

    text: str
    refusal: Refusal | None = None

    @classmethod
    def refused(cls, refusal: Refusal) -> "ToolResult":
        return cls(json.dumps({"refused": refusal.to_json()}, ensure_ascii=False), refusal)

    @property
    def is_error(self) -> bool:
        return self.refusal is not None


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool for the model. `parameters` is the JSON Schema of its arguments, an object.

    `handler` receives only known arguments, without nulls and with all that are
    required. An agent's own tools can be given in the same form.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    handler: Handler

    @classmethod
    def from_definition(cls, definition: ToolDefinition, handler: Handler) -> "Tool":
        return cls(definition.name, definition.description, definition.parameters, handler)

    async def __call__(self, arguments: Arguments | None = None) -> ToolResult:
        """Run a model's call; mistakes of the model are returned as refusals and not raised."""
        try:
            return ToolResult(await self.handler(_checked(self, arguments or {})))
        except SkillError as error:
            return ToolResult.refused(Refusal.of(error))


def tools_for(
    skills: SkillOperations, *, with_resources: bool = False, with_scripts: bool = False
) -> tuple[Tool, ...]:
    """Return the tools for one conversation.

    `with_resources` adds one that reads a server's resources, `with_scripts` one that runs scripts.
    """
    found = (
        _load_tool(skills),
        _read_tool(skills),
        _files_tool(skills),
        _search_tool(skills),
    )
    more = (_resource_tool(skills),) if with_resources else ()
    return (*found, *more, _run_tool(skills)) if with_scripts else (*found, *more)


def _load_tool(skills: SkillOperations) -> Tool:
    async def handler(arguments: Arguments) -> str:
        values = _object(arguments, "arguments") if "arguments" in arguments else None
        texts = cast("Mapping[str, str] | None", values)  # `checked_arguments` refuses non-strings.
        loaded = await skills.load(_text(arguments, "skill"), page=_page(arguments), arguments=texts)
        return loaded.text

    return Tool.from_definition(LOAD_SKILL, handler)


def _read_tool(skills: SkillOperations) -> Tool:
    async def handler(arguments: Arguments) -> str:
        framed = await skills.read_skill_file(
            _text(arguments, "skill"), _text(arguments, "path"), page=_page(arguments)
        )
        return framed.text

    return Tool.from_definition(READ_SKILL_FILE, handler)


def _files_tool(skills: SkillOperations) -> Tool:
    async def handler(arguments: Arguments) -> str:
        reference, path, page = _text(arguments, "skill"), _text(arguments, "path"), _page(arguments)
        files = () if path else skills.list_skill_files(reference)
        if not files:  # A skill without listed files, or a folder: ask the server.
            files = await skills.read_skill_directory(reference, path)
        pages = _pages_of([_file_line(file) for file in files])
        if not 1 <= page <= len(pages):
            raise NoSuchPageError(f"there is no page {page}; the list has {len(pages)} pages")
        head = f"Files of {visible(reference, most=_LONGEST_NAME)}: {len(files)}" + (
            f", page {page} of {len(pages)}" if len(pages) > 1 else ""
        )
        return "\n".join([head, *pages[page - 1]])

    return Tool.from_definition(LIST_SKILL_FILES, handler)


def _search_tool(skills: SkillOperations) -> Tool:
    async def handler(arguments: Arguments) -> str:
        cursor = _text(arguments, "cursor") or None
        found = await skills.search(_text(arguments, "query"), cursor=cursor)
        return "\n".join([_search_text(found), *map(_unanswered_line, skills.unanswered_servers())])

    return Tool.from_definition(SEARCH_SKILLS, handler)


def _resource_tool(skills: SkillOperations) -> Tool:
    async def handler(arguments: Arguments) -> str:
        framed = await skills.read_resource(
            _text(arguments, "server"), _text(arguments, "uri"), page=_page(arguments)
        )
        return framed.text

    return Tool.from_definition(READ_RESOURCE, handler)


def _run_tool(skills: SkillOperations) -> Tool:
    async def handler(arguments: Arguments) -> str:
        values = _object(arguments, "arguments")
        return (await skills.run_script(_text(arguments, "skill"), _text(arguments, "script"), values)).text

    return Tool.from_definition(RUN_SKILL_SCRIPT, handler)


def _search_text(page: SearchPage) -> str:
    if not page.matches:
        return "No skill matches. Try other words, or go on without a skill."
    lines = [f"{page.total} found, {len(page.matches)} shown. Descriptions are their authors' own words."]
    lines += map(_match_line, page.matches)
    if page.cursor is not None:
        asked = json.dumps(visible(page.query), ensure_ascii=False)
        lines.append(f'More: {SEARCH_TOOL}(query={asked}, cursor="{page.cursor}")')
    return "\n".join(lines)


def _match_line(match: Match) -> str:
    fields = f" (in {', '.join(match.matched_in)})" if match.matched_in else ""
    return f"- {match.skill.reference}: {match.snippet}{fields}"


def _unanswered_line(label: str) -> str:
    return f"Not searched: the MCP server {visible(label)} has not answered yet."


def _pages_of(lines: Iterable[str]) -> list[list[str]]:
    """Split lines into pages, one at least, of at most `FILES_PER_PAGE` lines and `FILE_BYTES_PER_PAGE`."""
    pages: list[list[str]] = [[]]
    room = FILE_BYTES_PER_PAGE
    for line in lines:
        size = len(line.encode()) + 1
        if pages[-1] and (len(pages[-1]) == FILES_PER_PAGE or size > room):
            pages.append([])
            room = FILE_BYTES_PER_PAGE
        pages[-1].append(line)
        room -= size
    return pages


def _file_line(file: SkillFileLine) -> str:
    words = [] if file.size is None else [f"{file.size} bytes"]
    words += ["unverified"] if file.is_unverified else []
    return f"- {visible(file.path, most=_LONGEST_NAME)}" + (f" ({', '.join(words)})" if words else "")


def _checked(tool: Tool, arguments: Arguments) -> Arguments:
    """Check the names of a model's arguments; a null counts as missing.

    Raises:
        InvalidArgumentsError: An argument is unknown, or a required one is missing.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    known = tool.parameters.get("properties", {})
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InvalidArgumentsError(
                f"{tool.name} has no argument {quoted(name)}; {takes}", reference=tool.name
            )
    for name in tool.parameters.get("required", ()):
        if name not in given:
            raise InvalidArgumentsError(f"{tool.name} needs {quoted(name)}", reference=tool.name)
    return given


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name, "")
    if not isinstance(value, str) or len(value) > MAX_ARGUMENT_LENGTH:
        raise InvalidArgumentsError(
            f"{quoted(name)} must be a string of at most {MAX_ARGUMENT_LENGTH:,} characters"
        )
    return value


def _object(arguments: Arguments, name: str) -> Mapping[str, Any]:
    value = arguments.get(name, {})
    if not isinstance(value, Mapping):
        raise InvalidArgumentsError(f"{quoted(name)} must be an object")
    return cast(Mapping[str, Any], value)


def _page(arguments: Arguments) -> int:
    value = arguments.get("page", 1)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)  # Models sometimes write numbers as strings.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentsError('"page" must be an integer')
    return value
