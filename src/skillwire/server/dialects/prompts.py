"""The `prompt` dialect: skills as prompts with the text of all their files."""

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType

import mcp_types as types
from mcp.server.context import HandlerResult
from mcp.server.subscriptions import PromptsListChanged, ServerEvent

from skillwire.core import (
    SKILL_FILE,
    ByteCache,
    Dialect,
    InvalidSkillError,
    JsonDict,
    LimitError,
    NotFoundError,
    PromptBuilder,
    SkillEntry,
    SourceError,
    VerificationError,
    encode,
    quoted,
)
from skillwire.server.dialects.base import (
    Binding,
    Context,
    DialectServer,
    DialectSkills,
    as_json,
    is_modern,
    merged_cache_fields,
    names_of,
)
from skillwire.server.listed import cut
from skillwire.server.messages import invalid_params, peer_error, wire_errors
from skillwire.sources.background import LogFilter
from skillwire.sources.combined import CombinedSource
from skillwire.sources.snapshot import Snapshot
from skillwire.wire.core import (
    GET_PROMPT,
    LIST_PROMPTS,
    MAX_PROMPT_NAME,
    PROMPTS_CHANGED,
    is_cursor_of,
    is_prompt_name,
    prompt_item,
    prompt_result,
    read_cursor,
    write_cursor,
)

logger = logging.getLogger(__name__)

_URI = attrgetter("entry.uri.text")
_READ_ATTEMPTS = 3
_MAX_OWN_PAGES = 1000
_KEPT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SkillPrompt:
    """The name of a prompt and its skill."""

    name: str
    entry: SkillEntry


@dataclass(frozen=True, slots=True)
class PromptTable:
    """The prompts of one snapshot, sorted by the URIs of their skills.

    `prompts` are the listed ones: those of listed skills, and all with a chosen
    name. `by_name` has the prompts of all skills.
    """

    snapshot: Snapshot
    prompts: tuple[SkillPrompt, ...]
    by_name: Mapping[str, SkillPrompt]

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        chosen: Mapping[str, str],
        listed: Sequence[SkillEntry],
        *,
        is_for_all: bool,
    ) -> "PromptTable":
        """Build the prompts of skills with a name in `chosen`, by URI, and of all others if `is_for_all`."""
        names = {uri: name for uri, name in chosen.items() if uri in snapshot.by_uri}
        if is_for_all:
            taken = frozenset(names.values())
            for uri, name in names_of(snapshot).items():
                # A chosen name has no colon, so this one is free.
                names.setdefault(uri, snapshot.by_uri[uri].uri.root if name in taken else name)
        prompts = tuple(SkillPrompt(names[uri], snapshot.by_uri[uri]) for uri in sorted(names))
        shown = {*chosen, *(entry.uri.text for entry in listed)}
        return cls(
            snapshot,
            tuple(prompt for prompt in prompts if prompt.entry.uri.text in shown),
            MappingProxyType({prompt.name: prompt for prompt in prompts}),
        )


class Prompts(DialectServer):
    """Skills as prompts. The server's own prompts take precedence.

    With `is_for_all`, every listed skill is a prompt with its name; otherwise
    only those with a chosen name. A skill has one prompt.
    """

    dialect = Dialect.PROMPT

    def __init__(self, skills: DialectSkills, *, is_for_all: bool = True) -> None:
        super().__init__(skills)
        self._is_for_all = is_for_all
        self._chosen: Mapping[str, str] = {}
        self._table: PromptTable | None = None
        self._texts: ByteCache[str, tuple[SkillEntry, Sequence[str], str]] = ByteCache(_KEPT_BYTES)
        self._warnings = LogFilter()

    def check_name(self, uri: str, name: str) -> None:
        """Check that the prompt of the skill at the canonical `uri` may have a name.

        Raises:
            InvalidSkillError: The name is invalid, or another prompt has it.
        """
        if not is_prompt_name(name):
            raise InvalidSkillError(
                f"a prompt cannot be called {quoted(name)}",
                fix=f"use up to {MAX_PROMPT_NAME} letters, digits, _, -, . and /",
            )
        if any(name == other for owner, other in self._chosen.items() if owner != uri):
            raise InvalidSkillError(f"two prompts would be called {quoted(name)}", fix="choose another name")

    def set_name(self, uri: str, name: str) -> None:
        """Set the name of a skill's prompt, after `check_name`."""
        self.check_name(uri, name)
        self._chosen, self._table = {**self._chosen, uri: name}, None

    def remove_name(self, uri: str) -> None:
        """Remove the chosen name of a skill's prompt, if any."""
        self._chosen = {owner: name for owner, name in self._chosen.items() if owner != uri}
        self._table = None

    @property
    def table(self) -> PromptTable:
        """The current prompts.

        Raises:
            SourceError: The server is not running.
        """
        answers = self.skills.answers
        snapshot = answers.source.snapshot
        if self._table is None or self._table.snapshot is not snapshot:
            listed = answers.listed_of(snapshot)
            self._table = PromptTable.of(snapshot, self._chosen, listed, is_for_all=self._is_for_all)
        return self._table

    @property
    def cached_bytes(self) -> int:
        return self._texts.size

    def bindings(self) -> Sequence[Binding]:
        return (
            (LIST_PROMPTS, types.PaginatedRequestParams, self.list_prompts),
            (GET_PROMPT, types.GetPromptRequestParams, self.get_prompt),
        )

    def notifications(self) -> Sequence[str]:
        return (PROMPTS_CHANGED,)

    def events(self) -> Sequence[ServerEvent]:
        return (PromptsListChanged(),)

    async def list_prompts(self, context: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        """List the server's own prompts, page by page, then those of skills."""
        other, cursor = self.others.get(LIST_PROMPTS), params.cursor
        is_ours = cursor is not None and is_cursor_of(LIST_PROMPTS, cursor)
        before: JsonDict = {"prompts": []}
        if other is not None and not is_ours:
            before = as_json(await other.handler(context, params))
            if before.get("nextCursor") is not None:
                return before
        with wire_errors():
            answers = self.skills.answers
            after = read_cursor(LIST_PROMPTS, cursor) if cursor and (is_ours or other is None) else None
            page = await self._page(after, await self._own_names(context))
            result = {**before, **page, "prompts": [*before["prompts"], *page["prompts"]]}
            return (
                {**result, **merged_cache_fields(answers.with_cache_fields({}), before)}
                if is_modern(context)
                else result
            )

    async def get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> HandlerResult:
        """Return the text of a skill, or else a prompt of the server."""
        other = self.others.get(GET_PROMPT)
        with wire_errors():
            prompt = self.table.by_name.get(params.name)
            if prompt is not None and not await self.may_see(prompt.entry.uri.published):
                prompt = None
            if prompt is not None and not self._is_taken(prompt, await self._own_names(context)):
                entry, text = await self.text_of(prompt.entry)
                result = prompt_result(entry, text)
                return {**result, "resultType": "complete"} if is_modern(context) else result
            if other is None:
                raise invalid_params(f"no prompt is called {quoted(params.name)}")
        return await other.handler(context, params)

    async def text_of(self, entry: SkillEntry) -> tuple[SkillEntry, str]:
        """Return the text of a skill, and the entry that it matches.

        Raises:
            MCPError: It is too long for a prompt.
            NotFoundError: The skill is no longer served.
            SourceError: It keeps changing, or cannot be read.
        """
        for _ in range(_READ_ATTEMPTS):
            catalog = self.skills.answers.source
            now = catalog.snapshot.get(entry.uri)
            try:
                return now, await self._joined_text(catalog, now)
            except (VerificationError, NotFoundError):
                await catalog.refresh()
            except LimitError as error:
                self._warn_once(now.uri.text, str(error))
                raise peer_error(error.code, f"{now.uri}: {error}; {error.fix}") from error
        raise SourceError(f"{entry.uri} is changing and cannot be served as published")

    async def _joined_text(self, catalog: CombinedSource, entry: SkillEntry) -> str:
        paths = files_in_order(catalog, entry)
        cached = self._texts.get(entry.uri.text)
        if cached is not None and cached[0] is entry and cached[1] == paths:
            return cached[2]
        stitching = PromptBuilder(await _read(catalog, entry, SKILL_FILE))
        for path in paths:
            stitching.add(path, await _read(catalog, entry, path))
        made = stitching.finish()
        for path in made.ambiguous:
            self._warn_once(entry.uri.text, f"{quoted(path)} has a line like those between files in a prompt")
        if entry.manifest is not None:
            self._texts.put(entry.uri.text, (entry, paths, made.text), len(made.text.encode()))
        return made.text

    async def _page(self, after: str | None, taken: frozenset[str]) -> JsonDict:
        prompts, size = self.table.prompts, self.skills.answers.settings.page_size
        start = 0 if after is None else bisect_right(prompts, after, key=_URI)
        few = prompts[start : start + size]
        items = [prompt_item(prompt.name, prompt.entry) for prompt in few]
        count = cut(items, 0, len(items), encode)[1]
        page: JsonDict = {
            "prompts": [
                item
                for prompt, item in zip(few[:count], items[:count], strict=True)
                if not self._is_taken(prompt, taken) and await self.may_see(prompt.entry.uri.published)
            ]
        }
        if start + count < len(prompts):
            page["nextCursor"] = write_cursor(LIST_PROMPTS, prompts[start + count - 1].entry.uri.text)
        return page

    async def _own_names(self, context: Context) -> frozenset[str]:
        """Return the names of the server's own prompts."""
        other = self.others.get(LIST_PROMPTS)
        names: set[str] = set()
        params = types.PaginatedRequestParams()
        try:
            for _ in range(_MAX_OWN_PAGES if other is not None else 0):
                assert other is not None
                page = as_json(await other.handler(context, params))
                names.update(prompt["name"] for prompt in page["prompts"])
                cursor = page.get("nextCursor")
                if cursor is None:
                    break
                params = types.PaginatedRequestParams(cursor=cursor)
        except Exception:
            logger.warning("the server's own prompts could not be listed", exc_info=True)
        return frozenset(names)

    def _is_taken(self, prompt: SkillPrompt, own: frozenset[str]) -> bool:
        if prompt.name in own:
            self._warn_once(prompt.entry.uri.text, f"the server has its own prompt {quoted(prompt.name)}")
            return True
        return False

    def _warn_once(self, uri: str, message: str) -> None:
        if self._warnings.admits(uri, message):
            logger.warning("%s: %s", uri, message)


def files_in_order(catalog: CombinedSource, entry: SkillEntry) -> list[str]:
    """Return the paths of a skill's supporting files: in the author's order, then sorted (DUAL-11)."""
    uris = entry.dynamic_files if entry.manifest is None else entry.manifest.uris
    paths = {entry.uri.relative_path(uri) for uri in uris if uri != entry.uri.text}
    ordered = [path for path in catalog.order_of(entry.uri) if path in paths]
    return [*ordered, *sorted(paths.difference(ordered))]


async def _read(catalog: CombinedSource, entry: SkillEntry, path: str) -> bytes:
    """Read a file of a skill and verify it against `entry`.

    Raises:
        VerificationError: The file has changed.
        NotFoundError: It is gone.
    """
    uri = entry.uri.join(path)
    content = await catalog.read_file(uri)
    if entry.manifest is not None:
        entry.manifest.require(uri).verify(content)
    return content
