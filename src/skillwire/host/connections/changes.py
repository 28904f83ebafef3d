"""Signals that a server's resources changed: told at once, and at most once in a while."""

import logging
from collections.abc import Callable
from typing import Final

import anyio
from mcp.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND
from mcp_types import ResourceListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillwire.host.connections.throttle import Backoff

SKILLS_CHANGED: Final = "notifications/skills/list_changed"

_MOST_FAILURES = 10

logger = logging.getLogger(__name__)


class ChangeSignals:
    """Passes on, as calls of `on_change`, what servers of both generations say about their listings."""

    def __init__(self, on_change: Callable[[], None] | None, *, gap: float) -> None:
        self._on_change = on_change
        self._gap = gap
        self._noted = anyio.Event()

    def note(self) -> None:
        """Something changed, or may have."""
        self._noted.set()

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
        """Take a message of a server of the older generation, which sends changes unasked."""
        if isinstance(message, ResourceListChangedNotification):
            self.note()

    async def listen(self, client: Client, backoff: Backoff) -> None:
        """Subscribe to changes where the server offers that; runs until it is cancelled or hopeless.

        A stream that is refused or lost costs nothing else. It is asked for
        again after a pause, and then counts as a change: some may have been missed.
        """
        resources = client.server_capabilities.resources
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (
            resources and resources.list_changed
        ):
            return
        is_first = True
        while backoff.failures < _MOST_FAILURES:
            try:
                async with client.listen(resources_list_changed=True) as subscription:
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
