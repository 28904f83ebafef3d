"""Signals that a server's skills changed: told at once, and at most once in a while."""

import logging
from collections.abc import Callable
from typing import Final

import anyio
from mcp.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND
from mcp_types import (
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillwire.errors import SkillError
from skillwire.host.calls.exchange import ask, within
from skillwire.host.connections.throttle import Backoff
from skillwire.wire.dialect import Dialect
from skillwire.wire.index import INDEX_URI

SKILLS_CHANGED: Final = "notifications/skills/list_changed"

_MOST_FAILURES = 10
_SUBSCRIBE_SECONDS = 30.0
_INDEXES = frozenset({Dialect.INDEX_JUNE, Dialect.INDEX_APRIL})

logger = logging.getLogger(__name__)


class ChangeSignals:
    """Passes on, as calls of `on_change`, what servers of both generations say about their listings.

    What counts depends on the dialect that is spoken with the server: where an
    index lists the skills, that it was updated; where prompts are skills, that
    the list of prompts changed; and always that the resources did (HOST-19).
    """

    def __init__(self, on_change: Callable[[], None] | None, *, gap: float) -> None:
        self._on_change = on_change
        self._gap = gap
        self._noted = anyio.Event()
        self._dialect: Dialect | None = None
        self._turned = anyio.Event()

    def note(self) -> None:
        """Something changed, or may have."""
        self._noted.set()

    def follow(self, dialect: Dialect) -> None:
        """Take it from here on that the server speaks this dialect."""
        is_other = _has_own_signals(dialect) or _has_own_signals(self._dialect)
        if is_other and dialect is not self._dialect:
            self._turned.set()
            self._turned = anyio.Event()
        self._dialect = dialect

    async def tell(self) -> None:
        """Call `on_change` for what was noted, with a pause after each call; runs until it is cancelled."""
        while True:
            await self._noted.wait()
            self._noted = anyio.Event()
            if self._on_change is not None:
                try:
                    self._on_change()
                except Exception:
                    logger.exception("the callback for changed listings failed")
            await anyio.sleep(self._gap)

    def notice(self, method: str) -> None:
        """Take the name of a notification, among them one that only older dialects of skills know."""
        if method == SKILLS_CHANGED:
            self.note()

    async def receive(self, message: IncomingMessage) -> None:
        """Take a message of a server: what the older generation sends unasked, or what was listened for."""
        if isinstance(message, ResourceListChangedNotification):
            self.note()
        elif isinstance(message, ResourceUpdatedNotification):
            if self._dialect in _INDEXES and str(message.params.uri) == INDEX_URI:
                self.note()
        elif isinstance(message, PromptListChangedNotification):
            if self._dialect is Dialect.PROMPT:
                self.note()

    async def listen(self, client: Client, backoff: Backoff) -> None:
        """Subscribe to changes where the server offers that; runs until it is cancelled or hopeless.

        What is subscribed to follows the dialect, which is known only after a
        listing. A subscription that is refused or lost costs nothing else.
        """
        is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        while True:
            turned = self._turned
            async with anyio.create_task_group() as tasks:
                if is_modern:
                    tasks.start_soon(self._listen, client, backoff)
                elif self._dialect in _INDEXES:
                    tasks.start_soon(self._subscribe, client)
                await turned.wait()
                tasks.cancel_scope.cancel()

    async def _subscribe(self, client: Client) -> None:
        """Ask a server of the older generation to say when its index changes."""
        resources = client.server_capabilities.resources
        if not (resources and resources.subscribe):
            return
        try:
            with within(_SUBSCRIBE_SECONDS, "resources/subscribe"):
                await ask(client, SubscribeRequest(params=SubscribeRequestParams(uri=INDEX_URI)))
        except SkillError as error:
            logger.debug("the server does not tell of changes to its index: %s", error)

    async def _listen(self, client: Client, backoff: Backoff) -> None:
        """Hold a stream of changes; one that is lost is asked for again after a pause.

        That counts as a change then: some may have been missed.
        """
        resources, prompts = client.server_capabilities.resources, client.server_capabilities.prompts
        of_resources = bool(resources and resources.list_changed)
        of_index = bool(resources and resources.subscribe) and self._dialect in _INDEXES
        of_prompts = bool(prompts and prompts.list_changed) and self._dialect is Dialect.PROMPT
        if not (of_resources or of_index or of_prompts):
            return
        is_first = True
        while backoff.failures < _MOST_FAILURES:
            try:
                async with client.listen(
                    resources_list_changed=of_resources,
                    prompts_list_changed=of_prompts,
                    resource_subscriptions=(INDEX_URI,) if of_index else (),
                ) as subscription:
                    if not is_first:
                        self.note()
                    is_first = False
                    opened = anyio.current_time()
                    async for _ in subscription:
                        # The same event comes to `receive` as well, which notes it.
                        backoff.reset()
                    if anyio.current_time() - opened > backoff.most:
                        backoff.reset()
            except ListenNotSupportedError:
                return
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            await anyio.sleep(backoff.failed())


def _has_own_signals(dialect: Dialect | None) -> bool:
    return dialect in _INDEXES or dialect is Dialect.PROMPT
