"""`DialectServer`: what an older dialect may add to a server that serves skills."""

import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from itertools import count
from typing import Any, ClassVar, Final, Protocol, TypeAlias, cast

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import HandlerEntry
from mcp.server.subscriptions import ServerEvent
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from skillwire.core import (
    MAX_NAME,
    MAX_TOTAL_SIZE,
    Dialect,
    JsonDict,
    SkillArgument,
    SkillDocument,
    SkillEntry,
    SkillUri,
    SourceError,
    VerificationError,
    is_name,
    media_type_of,
    parse_skill_md,
    quoted,
)
from skillwire.server.answers import Answers, FileContent
from skillwire.server.messages import invalid_params
from skillwire.server.outputs import Scripts
from skillwire.sources.snapshot import Report, Snapshot, names_in
from skillwire.wire.by_name import CAPABILITY, LIST_CHANGED, Declarations, declarations_in

# One name for each skill of a server, for dialects that identify skills by name.


_TAIL = 8


class SkillNames:
    """The unique names of one snapshot's skills, and the skills by name.

    A skill keeps its own name if no other has it. Skills that share a name get
    names from their paths (P2076-11): `acme/billing/refunds` becomes
    `acme-billing-refunds`, which is a valid name in the format. If the result is
    invalid or taken, digits of a hash of the URI are appended. The same snapshot
    always gives the same names.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.by_uri: Mapping[str, str] = _assign_names(snapshot)
        self._uris = {name: uri for uri, name in self.by_uri.items()}

    def of(self, entry: SkillEntry) -> str:
        """Return the name of a skill; its own name if it is not in this snapshot."""
        return self.by_uri.get(entry.uri.text, entry.name)

    def find(self, name: str) -> SkillEntry | None:
        """Return the skill with a name, if any."""
        uri = self._uris.get(name)
        return None if uri is None else self.snapshot.by_uri[uri]


def names_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Map the URI of each skill to its unique name."""
    return SkillNames(snapshot).by_uri


def _assign_names(snapshot: Snapshot) -> dict[str, str]:
    repeats = Counter(name for _, name in names_in(snapshot.entries))
    named = {uri: name for uri, name in names_in(snapshot.entries) if repeats[name] == 1}
    taken = set(named.values())
    others = (uri for uri, name in names_in(snapshot.entries) if repeats[name] > 1)
    wanted = {uri: _from_path(SkillUri(uri).path) for uri in others}
    claims = Counter(wanted.values())
    for uri, name in wanted.items():
        if claims[name] == 1 and is_name(name) and name not in taken:
            named[uri] = name
    taken.update(named.values())
    for uri in sorted(wanted.keys() - named.keys()):
        named[uri] = _disambiguated(wanted[uri], uri, taken)
        taken.add(named[uri])
    return named


def _from_path(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")


def _disambiguated(name: str, uri: str, taken: set[str]) -> str:
    stem = name[: MAX_NAME - _TAIL - 1].strip("-") or "skill"
    for attempt in count():  # Terminates: the number of taken names is finite.
        digits = hashlib.sha256(f"{attempt} {uri}".encode()).hexdigest()[:_TAIL]
        if f"{stem}-{digits}" not in taken:
            return f"{stem}-{digits}"
    raise AssertionError("there are more numbers than names")


# Renders a skill's instructions with the arguments of the client.


Render: TypeAlias = Callable[[str, Mapping[str, str]], str | Awaitable[str]]
"""Renders instructions from the body of `SKILL.md` and the arguments of the client.

A plain function runs in a thread, a coroutine function in the event loop.
"""

MAX_VALUES: Final = 64
MAX_VALUE_BYTES: Final = 64 * 1024
RENDER_SECONDS: Final = 30.0

_PLACEHOLDER = re.compile(r"\{\{[ \t]*([A-Za-z_][A-Za-z0-9_-]{0,63})[ \t]*\}\}")


def check_arguments(sent: object, declared: Sequence[SkillArgument]) -> dict[str, str]:
    """Validate the arguments of a client and return them.

    Raises:
        MCPError: They are not strings, too many or too large, or a required one is missing (-32602).
    """
    values: dict[str, str] = {}
    if sent is not None and not isinstance(sent, dict):
        raise invalid_params("`arguments` must be an object")
    items = cast("dict[str, object]", sent or {})
    if len(items) > MAX_VALUES:
        raise invalid_params(f"there are more than {MAX_VALUES} arguments")
    for name, value in items.items():
        if not isinstance(value, str):
            raise invalid_params(f"the argument {quoted(name)} must be a string")
        if len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
            raise invalid_params(f"the argument {quoted(name)} is larger than {MAX_VALUE_BYTES} bytes")
        if re.search("[\ud800-\udfff]", value):
            raise invalid_params(f"the argument {quoted(name)} has an unpaired surrogate")
        values[name] = value
    missing = [argument.name for argument in declared if argument.required and argument.name not in values]
    if missing:
        raise invalid_params(f"required arguments are missing: {', '.join(missing)}")
    return values


def fill_placeholders(body: str, declared: Sequence[SkillArgument], values: Mapping[str, str]) -> str:
    """Replace `{{name}}` with its value, for declared names only; a missing value is empty.

    The body of a skill without declared arguments does not change. Placeholders
    inside values are not replaced.

    Raises:
        MCPError: The result would be larger than a whole skill may be (-32602).
    """
    known = {argument.name: values.get(argument.name, "") for argument in declared}
    if not known:
        return body
    size = len(body)
    for match in _PLACEHOLDER.finditer(body):
        size += len(known.get(match[1], ""))
        if size > MAX_TOTAL_SIZE:
            raise invalid_params("with these arguments the instructions would be too large")
    return _PLACEHOLDER.sub(lambda match: known.get(match[1], match[0]), body)


async def render_instructions(render: Render, body: str, values: Mapping[str, str], uri: str) -> str:
    """Render the instructions with the author's function.

    Raises:
        SourceError: It failed, took too long, or returned no text or too much of it.
    """
    try:
        with anyio.fail_after(RENDER_SECONDS):
            made = await anyio.to_thread.run_sync(render, body, dict(values), abandon_on_cancel=True)
            if isawaitable(made):
                made = await made
            size = len(made.encode())
    except Exception as error:
        raise SourceError(f"the instructions of {uri} could not be rendered") from error
    if size > MAX_TOTAL_SIZE:
        raise SourceError(f"the instructions of {uri} are larger than a skill may be")
    return made


Context: TypeAlias = ServerRequestContext[Any, Any]
Handler: TypeAlias = Callable[[Context, Any], Awaitable[HandlerResult]]
Binding: TypeAlias = tuple[str, type[types.RequestParams], Handler]


MaySee: TypeAlias = Callable[[str], Awaitable[bool]]
"""Returns whether the current caller may see the skill or file at a URI."""


class DialectSkills(Protocol):
    """The part of `Skills` that a dialect uses."""

    @property
    def answers(self) -> Answers: ...

    @property
    def renderers(self) -> Mapping[str, Render]: ...

    @property
    def scripts(self) -> Scripts | None: ...


class DialectServer:
    """One dialect of one server. A subclass overrides what its dialect has; the defaults add nothing.

    `others` are the server's own handlers of the methods in `bindings`; they
    answer for everything that does not belong to a skill. The methods of a
    dialect must check `may_see` for every skill in their results.
    """

    dialect: ClassVar[Dialect]

    def __init__(self, skills: DialectSkills) -> None:
        self.skills = skills
        self.server: Server[Any] | None = None
        self.others: dict[str, HandlerEntry[Any]] = {}
        self.may_see: MaySee = _always_visible

    def capabilities(self) -> JsonDict:
        """Return the members that this dialect adds to the server's `capabilities`."""
        return {}

    @property
    def cached_bytes(self) -> int:
        """The size of this dialect's cached answers in bytes."""
        return 0

    def bindings(self) -> Sequence[Binding]:
        """Return the methods of this dialect, except `skills/list` and `skills/get`."""
        return ()

    is_by_name: ClassVar[bool] = False
    """Whether this dialect identifies skills by name, and has its own members in `skills/list`."""

    async def legacy_fields(self, context: Context, entries: Sequence[SkillEntry]) -> Sequence[JsonDict]:
        """Return the members to add to each entry of `skills/list` for clients without the extension."""
        return [{} for _ in entries]

    def entry_named(self, name: str) -> SkillEntry | None:
        """Return the skill with a name for `skills/get`; None if unknown or not by name."""
        return None

    async def get_named(self, context: Context, entry: SkillEntry, arguments: object) -> JsonDict:
        """Answer `skills/get` for the skill of `entry_named`; `arguments` is what the client sent, or None.

        Raises:
            NotFoundError: A required argument is missing or unknown.
        """
        raise AssertionError("called only for an entry of `entry_named`")

    async def prepare(self) -> None:
        """Build in the background what takes long; called once the skills are open."""

    async def read(self, uri: str) -> FileContent | None:
        """Return a resource of this dialect, such as an index; None when it has none at `uri`."""
        return None

    async def children(self, uri: str) -> Sequence[JsonDict] | None:
        """Return the children of a directory of this dialect, sorted by URI; None when there is none."""
        return None

    def resources(self) -> Sequence[JsonDict]:
        """Return the resources of this dialect for `resources/list`."""
        return ()

    def list_scoped(self, uri: str, cursor: str | None) -> JsonDict | None:
        """Answer `resources/list` for one `uri` only; None when this dialect does not scope it."""
        return None

    def templates(self) -> Sequence[JsonDict]:
        """Return the resource templates of this dialect."""
        return ()

    async def complete(self, template: str, argument: str, typed: str) -> JsonDict | None:
        """Complete a variable of one of `templates`; None for any other template."""
        return None

    def notifications(self) -> Sequence[str]:
        """Return the notifications to clients of the handshake era when the listing changed."""
        return ()

    def events(self) -> Sequence[ServerEvent]:
        """Return the events for modern clients, in addition to resources, when the listing changed."""
        return ()

    async def after_message(self, context: Context) -> None:
        """Run follow-up work after a client's message was answered, such as checking dependencies."""

    def reports(self) -> Sequence[Report]:
        """Return the reports of this dialect about the skills, for operators."""
        return ()

    def reserved(self) -> Sequence[str]:
        """Return the URIs at and below which no skill can be while this dialect is served."""
        return ()

    def changed_resources(self) -> Sequence[str]:
        """Return the URIs of this dialect's resources that change with the listing."""
        return ()

    def wrap_handlers(self, server: Server[Any]) -> None:
        """Answer `bindings` on `server`; keep its own handlers for everything that is not a skill."""
        self.server = server
        for method, params_type, handler in self.bindings():
            current = server.get_request_handler(method)
            if current is None or current.handler != handler:
                if current is not None:
                    self.others[method] = current
                server.add_request_handler(method, params_type, handler)


async def _always_visible(uri: str) -> bool:
    return True


# Helpers for results of the base protocol: as JSON, and merged with the server's own.


def is_modern(context: Context) -> bool:
    """Return whether a request is of revision 2026-07-28 or later."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def as_json(result: HandlerResult) -> JsonDict:
    """Return the result of a handler as a new JSON object."""
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(result or {})


def merged_cache_fields(ours: JsonDict, theirs: JsonDict) -> JsonDict:
    """Return the cache members of a merged page: the smaller `ttlMs`, and private if one part is."""
    ttl_ms = min(ours["ttlMs"], theirs.get("ttlMs", ours["ttlMs"]))
    scope = "private" if theirs.get("cacheScope") == "private" else ours["cacheScope"]
    return {**ours, "ttlMs": ttl_ms, "cacheScope": scope}


# `ByNameDialectServer`: the base of dialects that identify skills by name.


_READ_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class SupportingFile:
    """A file of a skill other than `SKILL.md`: its relative path, its published URI, its media type."""

    path: str
    uri: str
    media_type: str


class ByNameDialectServer(DialectServer):
    """A dialect with its own members in `skills/list`: the names and declarations of one snapshot."""

    is_by_name: ClassVar[bool] = True

    def __init__(self, skills: DialectSkills) -> None:
        super().__init__(skills)
        self._names: SkillNames | None = None
        self._declared: dict[str, Declarations] = {}

    @property
    def names(self) -> SkillNames:
        """The current names of all skills."""
        snapshot, names = self.skills.answers.source.snapshot, self._names
        if names is None or names.snapshot is not snapshot:
            names = self._names = SkillNames(snapshot)
            self._declared = {}
        return names

    def declared(self, entry: SkillEntry) -> Declarations:
        """Return what a skill declares in its frontmatter."""
        if self.names.snapshot.by_uri.get(entry.uri.text) is not entry:
            return declarations_in(entry.frontmatter)
        known = self._declared.get(entry.uri.text)
        if known is None:
            known = self._declared[entry.uri.text] = declarations_in(entry.frontmatter)
        return known

    def capabilities(self) -> JsonDict:
        return {CAPABILITY: {"listChanged": True}}

    def notifications(self) -> Sequence[str]:
        return (LIST_CHANGED,)

    def reports(self) -> Sequence[Report]:
        """Return findings about the declarations of skills for this dialect."""
        found: list[Report] = []
        for entry in self.names.snapshot.entries:
            declared = self.declared(entry)
            if declared.findings:
                found.append(Report(entry.uri.text, declared.findings, entry.uri))
        return found

    async def read_document(self, uri: SkillUri) -> tuple[SkillEntry, SkillDocument]:
        """Read a skill's `SKILL.md`, and return it with the entry that it matches.

        Raises:
            NotFoundError: The skill is no longer served.
            SourceError: It keeps changing, or cannot be read.
        """
        for _ in range(_READ_ATTEMPTS):
            catalog = self.skills.answers.source
            entry = catalog.snapshot.get(uri)
            content = await catalog.read_file(uri.text)
            line = None if entry.manifest is None else entry.manifest.find(uri.text)
            try:
                if line is not None:
                    line.verify(content)
                return entry, parse_skill_md(content)
            except VerificationError:
                await catalog.refresh()
        raise SourceError(f"{uri} is changing and cannot be served as published")

    def supporting_files(self, entry: SkillEntry) -> list[SupportingFile]:
        """Return the files of a skill except `SKILL.md`, sorted by URI."""
        media_types = self.skills.answers.source.snapshot.media_types
        if entry.manifest is None:
            pairs = [(uri, uri) for uri in entry.dynamic_files]
        else:
            pairs = [(file.uri, file.published) for file in entry.manifest.files]
        return [
            SupportingFile(
                entry.uri.relative_path(uri), published, media_types.get(uri) or media_type_of(uri)
            )
            for uri, published in pairs
            if uri != entry.uri.text
        ]
