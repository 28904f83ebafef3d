"""The `prompt` dialect: skills among a server's prompts, each with all of its text."""

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType

import mcp_types as types
from mcp.server.context import HandlerResult
from mcp.server.subscriptions import PromptsListChanged, ServerEvent
from mcp.shared.exceptions import MCPError

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SKILL_FILE
from skillwire.errors import InvalidSkillError, LimitError, NotFoundError, SourceError, VerificationError
from skillwire.server.bytecache import ByteCache
from skillwire.server.dialects.compat import Binding, Compat, Context, Published
from skillwire.server.dialects.names import names_of
from skillwire.server.failures import invalid_params, wire_errors
from skillwire.server.pages import cut
from skillwire.server.results import as_json, is_modern, shared_terms
from skillwire.sources import Catalog, Snapshot
from skillwire.wire.core import JsonDict
from skillwire.wire.cursor import is_cursor_of, read_cursor, write_cursor
from skillwire.wire.dialect import Dialect
from skillwire.wire.encoding import encode
from skillwire.wire.prompt import (
    GET_PROMPT,
    LIST_PROMPTS,
    MAX_PROMPT_NAME,
    PROMPTS_CHANGED,
    Stitching,
    is_prompt_name,
    prompt_item,
    prompt_result,
)

logger = logging.getLogger(__name__)

_URI = attrgetter("entry.uri.text")
_READ_ATTEMPTS = 3
_MAX_OWN_PAGES = 1000
_MAX_TOLD = 10_000
_KEPT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SkillPrompt:
    """A prompt by its name, and the skill whose text it has."""

    name: str
    entry: SkillEntry


@dataclass(frozen=True, slots=True)
class PromptBook:
    """The prompts of one snapshot, sorted by the URIs of their skills. Nothing of it ever changes.

    `prompts` are those that are listed: of listed skills, and all with a name
    that somebody chose. Any skill's prompt can be had by name.
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
    ) -> "PromptBook":
        """Make the prompts of the skills with a chosen name, by URI, and of all others if `is_for_all`."""
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


class Prompts(Compat):
    """Skills as prompts, beside the server's own, which win where names clash.

    With `is_for_all` every listed skill is one, under its name; otherwise
    those are for which a name was chosen. A skill has one prompt.
    """

    dialect = Dialect.PROMPT

    def __init__(self, skills: Published, *, is_for_all: bool = True) -> None:
        super().__init__(skills)
        self._is_for_all = is_for_all
        self._chosen: Mapping[str, str] = {}
        self._book: PromptBook | None = None
        self._texts: ByteCache[str, tuple[SkillEntry, Sequence[str], str]] = ByteCache(_KEPT_BYTES)
        self._told: set[tuple[str, str]] = set()

    def check(self, uri: str, name: str) -> None:
        """Check that the prompt of the skill at the canonical `uri` may have a name.

        Raises:
            InvalidSkillError: No prompt may be called that, or another one is.
        """
        if not is_prompt_name(name):
            raise InvalidSkillError(
                f"a prompt cannot be called {quoted(name)}",
                fix=f"use up to {MAX_PROMPT_NAME} letters, digits, _, -, . and /",
            )
        if any(name == other for owner, other in self._chosen.items() if owner != uri):
            raise InvalidSkillError(f"two prompts would be called {quoted(name)}", fix="choose another name")

    def choose(self, uri: str, name: str) -> None:
        """Give a skill's prompt a name of its own, as far as `check` allows it."""
        self.check(uri, name)
        self._chosen, self._book = {**self._chosen, uri: name}, None

    def forget(self, uri: str) -> None:
        """Take a chosen name back, if there is one."""
        self._chosen = {owner: name for owner, name in self._chosen.items() if owner != uri}
        self._book = None

    @property
    def book(self) -> PromptBook:
        """The prompts as they are now.

        Raises:
            SourceError: The server is not running.
        """
        answers = self.skills.answers
        snapshot = answers.catalog.snapshot
        if self._book is None or self._book.snapshot is not snapshot:
            listed = answers.listed_of(snapshot)
            self._book = PromptBook.of(snapshot, self._chosen, listed, is_for_all=self._is_for_all)
        return self._book

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
        """List the server's own prompts, page by page, and those of skills after that."""
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
            return {**result, **shared_terms(answers.on_terms({}), before)} if is_modern(context) else result

    async def get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> HandlerResult:
        """Answer with a skill's whole text, or else with what the server had before."""
        other = self.others.get(GET_PROMPT)
        with wire_errors():
            prompt = self.book.by_name.get(params.name)
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
        """Return a listed skill's text, and the entry that all of it belongs to.

        Raises:
            MCPError: It is longer than a prompt may be.
            NotFoundError: The skill is not served any more.
            SourceError: It keeps changing, or cannot be read.
        """
        for _ in range(_READ_ATTEMPTS):
            catalog = self.skills.answers.catalog
            now = catalog.snapshot.get(entry.uri)
            try:
                return now, await self._stitched(catalog, now)
            except (VerificationError, NotFoundError):
                await catalog.refresh()
            except LimitError as error:
                self._tell_once(now.uri.text, str(error))
                raise MCPError(error.code, f"{now.uri}: {error}; {error.fix}") from error
        raise SourceError(f"{entry.uri} is changing and cannot be served as published")

    async def _stitched(self, catalog: Catalog, entry: SkillEntry) -> str:
        paths = files_in_order(catalog, entry)
        held = self._texts.get(entry.uri.text)
        if held is not None and held[0] is entry and held[1] == paths:
            return held[2]
        stitching = Stitching(await _read(catalog, entry, SKILL_FILE))
        for path in paths:
            stitching.add(path, await _read(catalog, entry, path))
        made = stitching.finish()
        for path in made.ambiguous:
            self._tell_once(entry.uri.text, f"{quoted(path)} has a line like those between files in a prompt")
        if entry.manifest is not None:
            self._texts.put(entry.uri.text, (entry, paths, made.text), len(made.text.encode()))
        return made.text

    async def _page(self, after: str | None, taken: frozenset[str]) -> JsonDict:
        prompts, size = self.book.prompts, self.skills.answers.terms.page_size
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
        """Return the names of the prompts that the server has beside those of skills."""
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
            self._tell_once(
                prompt.entry.uri.text, f"the server has a prompt {quoted(prompt.name)} of its own"
            )
            return True
        return False

    def _tell_once(self, uri: str, words: str) -> None:
        if (uri, words) not in self._told:
            if len(self._told) >= _MAX_TOLD:
                self._told.clear()
            self._told.add((uri, words))
            logger.warning("%s: %s", uri, words)


def files_in_order(catalog: Catalog, entry: SkillEntry) -> list[str]:
    """Return the paths of a skill's supporting files: in its author's order, the others by path (DUAL-11)."""
    uris = entry.dynamic_files if entry.manifest is None else entry.manifest.uris
    paths = {entry.uri.relative_path(uri) for uri in uris if uri != entry.uri.text}
    ordered = [path for path in catalog.order_of(entry.uri) if path in paths]
    return [*ordered, *sorted(paths.difference(ordered))]


async def _read(catalog: Catalog, entry: SkillEntry, path: str) -> bytes:
    """Read a file of the skill that `entry` tells of, and not of what it has become meanwhile.

    Raises:
        VerificationError: The file has changed.
        NotFoundError: It is gone.
    """
    uri = entry.uri.join(path)
    content = await catalog.read_file(uri)
    if entry.manifest is not None:
        entry.manifest.require(uri).verify(content)
    return content
