"""`PlainConnection`: limits for the connections that uvicorn parses with h11, where there is no httptools.

h11 also takes line ends without a carriage return, and headers that go on in the
next line. A proxy that reads those in another way should not stand before it.
"""

from collections import deque
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from skillwire.server.protocol.guarded import Guarded, Reading, Refusal, check_head, head_bytes
from skillwire.server.protocol.limits import ConnectionLimits, Ending


class PlainConnection(Guarded, H11Protocol):
    """A connection that is parsed by h11, which reads the next request only after the answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pipeline = deque()
        self.conn = _Parser(self.turnstile.limits)

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return self.discard(data)
        if self.reading is Reading.NOTHING:
            self.reading = Reading.HEAD
            self.since = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()
        self._unset_keepalive_if_required()  # One timer is enough.

    def handle_events(self) -> None:
        if self.is_over:
            return
        super().handle_events()
        assert isinstance(self.conn, _Parser)
        self._expect(self.conn.reading)
        if self.conn.refused is not None:
            self.refuse(self.conn.refused)

    def shutdown(self) -> None:
        if not self.is_over:
            super().shutdown()
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _expect(self, reading: Reading) -> None:
        # An answer that is complete leaves the parser waiting for a request, but only bytes begin one.
        is_begun = reading is not Reading.HEAD or bool(self.conn.trailing_data[0])
        if self.reading is not reading and is_begun:
            self.reading = reading
            self.since = self.loop.time()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing about it: whoever asks decides how often that would be said."""


class _Parser(h11.Connection):
    """h11's parser, which also refuses what is too much; then it asks for more, in vain."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__(h11.SERVER, limits.head_bytes)
        self.reading = Reading.HEAD
        self.refused: Ending | None = None
        self._limits = limits
        self._body_bytes = 0

    def next_event(self) -> Any:
        try:
            event = super().next_event()
            self._check(event)
        except h11.RemoteProtocolError as error:
            is_large = error.error_status_hint == 431
            self.refused = Ending.LARGE_HEAD if is_large else Ending.MALFORMED
        except Refusal as refusal:
            self.refused = refusal.ending
        else:
            return event
        return h11.NEED_DATA

    def start_next_cycle(self) -> None:
        super().start_next_cycle()
        self.reading = Reading.HEAD

    def _check(self, event: Any) -> None:
        if isinstance(event, h11.Request):
            headers = [(bytes(name), bytes(value)) for name, value in event.headers]
            check_head(self._limits, event.http_version.decode(), event.target, headers)
            if head_bytes(event.target, headers) > self._limits.head_bytes:
                raise Refusal(Ending.LARGE_HEAD)
            self.reading = Reading.BODY
            self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._body_bytes += len(event.data)
            if self._body_bytes > self._limits.body_bytes:
                raise Refusal(Ending.LARGE_BODY)
        elif isinstance(event, h11.EndOfMessage):
            self.reading = Reading.NOTHING
