"""Notifications that a server's skills changed, passed on at a limited rate."""

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

from skillwire.core import Dialect, SkillError
from skillwire.host.calls import Backoff, send_request, within
from skillwire.wire.index import INDEX_URI

SKILLS_CHANGED: Final = "notifications/skills/list_changed"

_MAX_FAILURES = 10
_SUBSCRIBE_SECONDS = 30.0
_INDEXES = frozenset({Dialect.INDEX_JUNE, Dialect.INDEX_APRIL})

logger = logging.getLogger(__name__)


class ChangeSignals:
    """Calls `on_change` when a server of either protocol generation reports changes of its listing.

    Which notifications count depends on the server's dialect: an update of the
    index, if it lists the skills; a change of the prompts, if these are skills;
    and always a change of the resources (HOST-19).
    """

    def __init__(self, on_change: Callable[[], None] | None, *, gap: float) -> None:
        self._on_change = on_change
        self._gap = gap
        self._changed = anyio.Event()
        self._dialect: Dialect | None = None
        self._dialect_changed = anyio.Event()

    def mark_changed(self) -> None:
        """Record that the listing changed, or may have."""
        self._changed.set()

    def set_dialect(self, dialect: Dialect) -> None:
        """Set the dialect of the server, which decides what to subscribe to."""
        is_other = _has_own_signals(dialect) or _has_own_signals(self._dialect)
        if is_other and dialect is not self._dialect:
            self._dialect_changed.set()
            self._dialect_changed = anyio.Event()
        self._dialect = dialect

    async def run_callbacks(self) -> None:
        """Call `on_change` after changes, with a pause after each call; runs until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            if self._on_change is not None:
                try:
                    self._on_change()
                except Exception:
                    logger.exception("the callback for changed listings failed")
            await anyio.sleep(self._gap)

    def receive_method(self, method: str) -> None:
        """Process the method of a notification, which the SDK may not know."""
        if method == SKILLS_CHANGED:
            self.mark_changed()

    async def receive(self, message: IncomingMessage) -> None:
        """Process a notification of a server, with or without a subscription."""
        if isinstance(message, ResourceListChangedNotification):
            self.mark_changed()
        elif isinstance(message, ResourceUpdatedNotification):
            if self._dialect in _INDEXES and str(message.params.uri) == INDEX_URI:
                self.mark_changed()
        elif isinstance(message, PromptListChangedNotification):
            if self._dialect is Dialect.PROMPT:
                self.mark_changed()

    async def listen(self, client: Client, backoff: Backoff) -> None:
        """Subscribe to changes if the server supports that; runs until cancelled.

        What is subscribed to depends on the dialect, which is known only after a
        listing. A refused or lost subscription does not affect the connection.
        """
        is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        while True:
            turned = self._dialect_changed
            async with anyio.create_task_group() as tasks:
                if is_modern:
                    tasks.start_soon(self._listen, client, backoff)
                elif self._dialect in _INDEXES:
                    tasks.start_soon(self._subscribe, client)
                await turned.wait()
                tasks.cancel_scope.cancel()

    async def _subscribe(self, client: Client) -> None:
        """Subscribe to changes of the index, on a server of the older generation."""
        resources = client.server_capabilities.resources
        if not (resources and resources.subscribe):
            return
        try:
            with within(_SUBSCRIBE_SECONDS, "resources/subscribe"):
                await send_request(client, SubscribeRequest(params=SubscribeRequestParams(uri=INDEX_URI)))
        except SkillError as error:
            logger.debug("the server refused the subscription to its index: %s", error)

    async def _listen(self, client: Client, backoff: Backoff) -> None:
        """Keep a stream of changes open; a lost one is opened again after a pause.

        Reopening counts as a change, because some may have been missed.
        """
        resources, prompts = client.server_capabilities.resources, client.server_capabilities.prompts
        of_resources = bool(resources and resources.list_changed)
        of_index = bool(resources and resources.subscribe) and self._dialect in _INDEXES
        of_prompts = bool(prompts and prompts.list_changed) and self._dialect is Dialect.PROMPT
        if not (of_resources or of_index or of_prompts):
            return
        is_first = True
        while backoff.failures < _MAX_FAILURES:
            try:
                async with client.listen(
                    resources_list_changed=of_resources,
                    prompts_list_changed=of_prompts,
                    resource_subscriptions=(INDEX_URI,) if of_index else (),
                ) as subscription:
                    if not is_first:
                        self.mark_changed()
                    is_first = False
                    opened = anyio.current_time()
                    async for _ in subscription:
                        # `receive` gets the same event and records it.
                        backoff.reset()
                    if anyio.current_time() - opened > backoff.max_delay:
                        backoff.reset()
            except ListenNotSupportedError:
                return
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            await anyio.sleep(backoff.record_failure())


def _has_own_signals(dialect: Dialect | None) -> bool:
    return dialect in _INDEXES or dialect is Dialect.PROMPT
