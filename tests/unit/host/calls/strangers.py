"""Servers for tests: real ones, that answer exactly what they are told to, and note what they are asked."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar

import anyio
from mcp.client import Client
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server

from skillwire.core.errors import SkillError
from skillwire.core.manifest import digest_of

EXTENSION = "io.modelcontextprotocol/skills"
DEADLINE = 30.0
MODES = ("legacy", "auto")
"""How to connect: as revision 2025-11-25, and as 2026-07-28."""

Params: TypeAlias = dict[str, Any]
Pages: TypeAlias = Mapping[str | None, Params]
"""The pages of a listing by the cursor that leads to them, None for the first."""
Answers: TypeAlias = Callable[[Params], Any]
"""Makes the whole result of one method from its parameters; it may wait, or raise an `MCPError`."""

T = TypeVar("T")


class Stranger:
    """A server that answers `methods` as they say, and declares `settings`, or nothing when that is None.

    Its results reach the client untouched: the SDK adds nothing and checks
    nothing, so that they can break any rule.
    """

    def __init__(
        self,
        methods: Mapping[str, Answers],
        *,
        settings: Mapping[str, Any] | None = None,
        declares: bool = True,
    ) -> None:
        self._methods = methods
        self._settings = dict(settings or {}) if declares else None
        self.requests: list[tuple[str, Params]] = []

    @asynccontextmanager
    async def connected(self, mode: str, **options: Any) -> AsyncGenerator[Client]:
        """Connect a client, and forget what was asked on the way."""
        with anyio.fail_after(DEADLINE):
            async with Client(self.server(), mode=mode, **options) as client:
                self.requests.clear()
                yield client

    async def visited(self, mode: str, call: Callable[[Client], Awaitable[T]], **options: Any) -> T:
        """Return what comes of a call, or raise its error as it was: a client would wrap it in a group."""
        failure: SkillError | None = None
        async with self.connected(mode, **options) as client:
            try:
                return await call(client)
            except SkillError as error:
                failure = error
        assert failure is not None
        raise failure

    def server(self) -> Server[Any]:
        server: Server[Any] = Server("stranger")
        if self._settings is not None:
            server.extensions[EXTENSION] = self._settings
        server.middleware.append(self._answer)
        return server

    async def _answer(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None:
            return await call_next(ctx)
        params = {key: value for key, value in (ctx.params or {}).items() if key != "_meta"}
        self.requests.append((ctx.method, params))
        answers = self._methods.get(ctx.method)
        if answers is not None:
            result = answers(params)
            return await result if isawaitable(result) else result
        result = await call_next(ctx)
        if ctx.method == "initialize" and self._settings is not None and isinstance(result, dict):
            # The SDK declares extensions at 2026-07-28 only.
            result["capabilities"]["extensions"] = {EXTENSION: self._settings}
        return result


def entry(name: str = "refunds", *, files: tuple[str, ...] = ("SKILL.md",)) -> dict[str, Any]:
    """Return an entry that breaks no rule."""
    root = f"skill://acme/{name}"
    return {
        "uri": f"{root}/SKILL.md",
        "frontmatter": {"name": name, "description": f"Does {name}. Use when asked."},
        "resources": [{"uri": f"{root}/{file}", "digest": digest_of(b"text"), "size": 4} for file in files],
    }


def listing(pages: Pages) -> Answers:
    """Answer each cursor with its page."""
    return lambda params: dict(pages[params.get("cursor")])


def always(result: Any) -> Answers:
    return lambda _params: result
