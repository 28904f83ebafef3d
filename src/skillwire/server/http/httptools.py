"""`HttptoolsConnection`: limits for connections that uvicorn parses with httptools.

This code runs for every request, so the usual case is kept short: sizes and
times are checked only where a limit can be exceeded.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from skillwire.server.fast.asgi import HEADERS
from skillwire.server.http.guard import (
    LimitedConnection,
    ReadState,
    RejectedRequestError,
    check_head,
    head_bytes,
)
from skillwire.server.limits import CloseReason

_FIRST_REQUEST, _HEAD = ReadState.FIRST_REQUEST, ReadState.HEAD
_BODY, _NOTHING = ReadState.BODY, ReadState.NOTHING
_UPGRADE = frozenset({b"connection", b"upgrade", b"http2-settings"})


class HttptoolsConnection(LimitedConnection, HttpToolsProtocol):
    """A connection that is parsed by httptools."""

    _chunk = 0
    _taken = 0
    _is_upgrade = False

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return self.discard(data)
        if self.read_state is _NOTHING:
            # Line ends, which the parser ignores, start the time limit as well.
            self._expect_head()
        self._feed(data)
        if self.read_state is not _NOTHING or self.cycle.scope is not self.scope:
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
            self.refuse(cause.reason if isinstance(cause, RejectedRequestError) else CloseReason.MALFORMED)

    def on_headers_complete(self) -> None:
        limits = self.tracker.limits
        most = self._taken + self._chunk
        if most > limits.head_bytes and head_bytes(self.url, self.headers) > limits.head_bytes:
            raise RejectedRequestError(CloseReason.LARGE_HEAD)
        by_name = check_head(limits, self.parser.get_http_version(), self.url, self.headers)
        if self.parser.should_upgrade():
            self._is_upgrade = True
            return
        if len(self.pipeline) >= limits.pipelined:
            raise RejectedRequestError(CloseReason.PIPELINED)
        self.read_state = _BODY
        self._taken = 0
        if by_name is not None:
            self.scope[HEADERS] = by_name  # pyright: ignore[reportGeneralTypeIssues] -- ASGI allows more keys
        super().on_headers_complete()
        # Trailers must not be added to the headers of a request that is being answered.
        self.headers = []

    def on_message_complete(self) -> None:
        """Do what uvicorn does, and note that the request is complete."""
        if self._is_upgrade:
            return
        self.read_state = _NOTHING
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Do what uvicorn does, but without its keep-alive timer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def _expect_head(self) -> None:
        self.read_state = _HEAD
        self._taken = 0
        self.since = self.loop.time()

    def _check_unfinished(self) -> None:
        """Check the size of a request that is not complete yet."""
        if self.is_over:
            return
        if self.read_state is _NOTHING:
            # It began after another one in the same chunk, and is counted from the next chunk on.
            return self._expect_head()
        if self.read_state is _FIRST_REQUEST and self.scope is not None:  # pyright: ignore[reportUnnecessaryComparison] -- uvicorn declares it as never None
            self._expect_head()
        limits = self.tracker.limits
        self._taken += self._chunk
        if self.read_state is _BODY:
            if self._taken > 2 * limits.body_bytes or len(self.headers) > limits.header_count:
                self.refuse(CloseReason.LARGE_BODY)
        elif self._taken > limits.head_bytes or len(self.headers or ()) > limits.header_count:
            self.refuse(CloseReason.LARGE_HEAD)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request as if it had no upgrade headers.

        The parser stops after the headers of such a request, so a new parser
        gets the headers without the upgrade, and then the rest.
        """
        self._is_upgrade = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            return self.refuse(CloseReason.MALFORMED)
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [name + b": " + value for name, value in self.headers if name not in _UPGRADE]
        if not self.parser.should_keep_alive():
            lines.append(b"connection: close")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"\r\n".join([*lines, b"", rest]))
