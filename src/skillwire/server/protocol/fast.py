"""`FastConnection`: limits for connections that uvicorn parses with httptools, which is fast and strict.

Every request pays for what is done here, so ordinary ones pay for little: what
is large, late or odd is looked at where it shows.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from skillwire.server.asgi import HEADERS
from skillwire.server.protocol.guarded import Guarded, Reading, Refusal, check_head, head_bytes
from skillwire.server.protocol.limits import Ending

_FIRST, _HEAD, _BODY, _NOTHING = Reading.FIRST, Reading.HEAD, Reading.BODY, Reading.NOTHING
_UPGRADE = frozenset({b"connection", b"upgrade", b"http2-settings"})


class FastConnection(Guarded, HttpToolsProtocol):
    """A connection that is parsed by httptools."""

    _chunk = 0
    _taken = 0
    _is_upgrade = False

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return self.discard(data)
        if self.reading is _NOTHING:
            # Also line ends, which the parser ignores, must lead to a request in time.
            self._expect_head()
        self._feed(data)
        if self.reading is not _NOTHING or self.cycle.scope is not self.scope:
            self._check_unfinished()

    def _feed(self, data: bytes) -> None:
        self._chunk = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            offset: int = upgrade.args[0]
            self._ignore_upgrade(data[offset:])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self.refuse(cause.ending if isinstance(cause, Refusal) else Ending.MALFORMED)

    def on_headers_complete(self) -> None:
        limits = self.turnstile.limits
        most = self._taken + self._chunk
        if most > limits.head_bytes and head_bytes(self.url, self.headers) > limits.head_bytes:
            raise Refusal(Ending.LARGE_HEAD)
        by_name = check_head(limits, self.parser.get_http_version(), self.url, self.headers)
        if self.parser.should_upgrade():
            self._is_upgrade = True
            return
        if len(self.pipeline) >= limits.pipelined:
            raise Refusal(Ending.PIPELINED)
        self.reading = _BODY
        self._taken = 0
        if by_name is not None:
            self.scope[HEADERS] = by_name  # pyright: ignore[reportGeneralTypeIssues] -- ASGI allows more keys
        super().on_headers_complete()
        # Headers that come after the body must not become headers of a request that is being answered.
        self.headers = []

    def on_message_complete(self) -> None:
        """Do what uvicorn does, and note that nothing more belongs to this request."""
        if self._is_upgrade:
            return
        self.reading = _NOTHING
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Do what uvicorn does, but without a timer of its own for the time until the next request."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def _expect_head(self) -> None:
        self.reading = _HEAD
        self._taken = 0
        self.since = self.loop.time()

    def _check_unfinished(self) -> None:
        """Check how much of a request has come that is not complete yet."""
        if self.is_over:
            return
        if self.reading is _NOTHING:
            # It began after another one in the same piece, and is counted from the next piece on.
            return self._expect_head()
        if self.reading is _FIRST and self.scope is not None:  # pyright: ignore[reportUnnecessaryComparison] -- uvicorn says it never is
            self._expect_head()
        limits = self.turnstile.limits
        self._taken += self._chunk
        if self.reading is _BODY:
            if self._taken > 2 * limits.body_bytes or len(self.headers) > limits.header_count:
                self.refuse(Ending.LARGE_BODY)
        elif self._taken > limits.head_bytes or len(self.headers or ()) > limits.header_count:
            self.refuse(Ending.LARGE_HEAD)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read a request as if it did not offer to speak another protocol.

        The parser leaves off after the headers of such a request; so another one
        reads the same headers without the offer, and then what follows.
        """
        self._is_upgrade = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            return self.refuse(Ending.MALFORMED)
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [name + b": " + value for name, value in self.headers if name not in _UPGRADE]
        if not self.parser.should_keep_alive():
            lines.append(b"connection: close")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"\r\n".join([*lines, b"", rest]))
