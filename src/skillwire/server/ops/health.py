"""What a supervisor asks a server: whether it is alive, whether to send it work, and how it does."""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from skillwire.server.ops.exposition import MEDIA_TYPE, exposition
from skillwire.server.ops.metrics import Meter

ALIVE_PATH: Final = "/healthz"
READY_PATH: Final = "/readyz"
METRICS_PATH: Final = "/metrics"
OPS_PATHS: Final = frozenset({ALIVE_PATH, READY_PATH, METRICS_PATH})

_METHODS: Final = ("GET", "HEAD")
_WORDS: Final = "text/plain; charset=utf-8"
_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Health:
    """Answers GET and HEAD at the paths above. `/metrics` is for those who may operate: ask before."""

    def __init__(self, meter: Meter, hindrance: Callable[[], str], refresh: Callable[[], None]) -> None:
        """Tell with `hindrance`, in a word, what keeps the server from answering; nothing when it is ready.

        `refresh` brings the meter's numbers about this worker up to date.
        """
        self._meter = meter
        self._hindrance = hindrance
        self._refresh = refresh

    def respond(self, request: Request) -> Response:
        """Answer a request for one of `OPS_PATHS`."""
        if request.method not in _METHODS:
            return _words(405, "only GET and HEAD are answered here", allow=", ".join(_METHODS))
        path = request.scope["path"]
        if path == ALIVE_PATH:
            return _words(200, "ok")
        if path == READY_PATH:
            hindrance = self._hindrance()
            return _words(503, hindrance) if hindrance else _words(200, "ok")
        if path == METRICS_PATH:
            self._refresh()
            return Response(exposition(self._meter), headers=_HEADERS, media_type=MEDIA_TYPE)
        return _words(404, "there is nothing here")


def _words(status: int, words: str, **headers: str) -> Response:
    return Response(f"{words}\n", status, {**_HEADERS, **headers}, media_type=_WORDS)
