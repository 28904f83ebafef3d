"""`Compat`: what an older dialect may add to a server that serves skills."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import mcp_types as types
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import HandlerEntry
from mcp.server.subscriptions import ServerEvent

from skillwire.core.entry import SkillEntry
from skillwire.server.answers import Answers, FileContent
from skillwire.server.dialects.rendering import Render
from skillwire.server.scripts import Scripts
from skillwire.sources import Report
from skillwire.wire.core import JsonDict
from skillwire.wire.dialect import Dialect

Context: TypeAlias = ServerRequestContext[Any, Any]
Handler: TypeAlias = Callable[[Context, Any], Awaitable[HandlerResult]]
Binding: TypeAlias = tuple[str, type[types.RequestParams], Handler]


MaySee: TypeAlias = Callable[[str], Awaitable[bool]]
"""Tells whether who asks right now may see the skill or file at a URI."""


class Published(Protocol):
    """The skills of one server, as far as a dialect needs to know them."""

    @property
    def answers(self) -> Answers: ...

    @property
    def renderers(self) -> Mapping[str, Render]: ...

    @property
    def scripts(self) -> Scripts | None: ...


class Compat:
    """One dialect of one server. A subclass overrides what its dialect has; the rest adds nothing.

    `others` are the handlers the server had before for the methods in
    `bindings`; they answer for everything that is no skill's. `may_see` is to be
    asked about every skill that a method of this dialect's own would tell of.
    """

    dialect: ClassVar[Dialect]

    def __init__(self, skills: Published) -> None:
        self.skills = skills
        self.server: Server[Any] | None = None
        self.others: dict[str, HandlerEntry[Any]] = {}
        self.may_see: MaySee = _everyone_sees

    def capabilities(self) -> JsonDict:
        """Return what the server declares beside the extension, as members of its `capabilities`."""
        return {}

    def bindings(self) -> Sequence[Binding]:
        """Return the methods that this dialect answers, except `skills/list` and `skills/get`."""
        return ()

    is_by_name: ClassVar[bool] = False
    """Whether this dialect knows skills by name, and has an own idea of `skills/list`."""

    def legacy_fields(self, entry: SkillEntry) -> JsonDict:
        """Return what this dialect adds to an entry of `skills/list` for clients that know no extension."""
        return {}

    def entry_named(self, name: str) -> SkillEntry | None:
        """Return the skill that `skills/get` means by a name; None when this dialect gets none by name."""
        return None

    async def get_named(self, entry: SkillEntry, arguments: object) -> JsonDict:
        """Answer `skills/get` for the skill of `entry_named`; `arguments` is what the client sent, or None.

        Raises:
            NotFoundError: A required argument is missing, or is none.
        """
        raise AssertionError("asked only for what `entry_named` found")

    async def prepare(self) -> None:
        """Make ready, in the background, what takes long; called once the skills are open."""

    async def read(self, uri: str) -> FileContent | None:
        """Return a resource of this dialect's own, such as an index; None when it has none there."""
        return None

    async def children(self, uri: str) -> Sequence[JsonDict] | None:
        """Return what is in a directory that is no skill's, sorted by URI; None when there is none."""
        return None

    def resources(self) -> Sequence[JsonDict]:
        """Return the resources of this dialect's own that belong into `resources/list`."""
        return ()

    def list_scoped(self, uri: str, cursor: str | None) -> JsonDict | None:
        """Answer `resources/list` for one `uri` only; None when this dialect knows no such scope."""
        return None

    def templates(self) -> Sequence[JsonDict]:
        """Return the resource templates of this dialect's own."""
        return ()

    async def complete(self, template: str, argument: str, typed: str) -> JsonDict | None:
        """Complete a variable of one of `templates`; None when it is not ours."""
        return None

    def notifications(self) -> Sequence[str]:
        """Return the methods with which clients of the handshake era are told that the listing changed."""
        return ()

    def events(self) -> Sequence[ServerEvent]:
        """Return what modern clients that listen are told, beside of resources, when the listing changed."""
        return ()

    async def look_around(self, context: Context) -> None:
        """Find out what the server offers beside skills, after a message of a client was answered."""

    def reports(self) -> Sequence[Report]:
        """Return what this dialect has to say about the skills, for people who run the server."""
        return ()

    def changed_resources(self) -> Sequence[str]:
        """Return the URIs of this dialect's own resources that change whenever the listing does."""
        return ()

    def take_over(self, server: Server[Any]) -> None:
        """Answer `bindings` on `server`, and keep its own handlers for what is no skill's."""
        self.server = server
        for method, params_type, handler in self.bindings():
            current = server.get_request_handler(method)
            if current is None or current.handler != handler:
                if current is not None:
                    self.others[method] = current
                server.add_request_handler(method, params_type, handler)


async def _everyone_sees(uri: str) -> bool:
    return True
