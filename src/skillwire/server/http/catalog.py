"""`PublishingApp`: passes requests below `/catalog/` to the catalog of the server, with the caller's rights.

What a request means is decided by the `Publishing` object. Here its body is
limited in size and time, and the caller is authenticated again when it has
arrived.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeAlias

import anyio
from starlette.requests import Request

from skillwire.core import MAX_TOTAL_SIZE, CredentialError, encode
from skillwire.server.access.admission import AdmittedCaller, LiveGrants
from skillwire.server.fast.asgi import read_body, refuse, until
from skillwire.server.fast.requests import Receive, Scope, Send
from skillwire.server.options import Publishing, PublishingRequest
from skillwire.server.visibility import Visibility

CATALOG_PATH: Final = "/catalog/"
MAX_BODY: Final = MAX_TOTAL_SIZE
"""The maximum size of a body: the largest file of a skill."""
BODY_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 300.0

_AT_ONCE = 8
_OF_CALLER = 4
_ALLOW = "allow"

Readmit: TypeAlias = Callable[[], Awaitable[AdmittedCaller]]


class RefusedBodyError(Exception):
    """A body that is too large, or did not arrive in time."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PublishingApp:
    """The paths below `/catalog/`. A few requests are answered at a time, of each caller and of all."""

    def __init__(self, publishing: Publishing, grants: LiveGrants) -> None:
        self._publishing = publishing
        self._grants = grants
        self._requests: Counter[str] = Counter()

    async def respond(
        self, scope: Scope, receive: Receive, send: Send, admitted: AdmittedCaller, readmit: Readmit
    ) -> None:
        """Answer a request of an authenticated caller.

        Raises:
            CredentialError: The caller is anonymous, or the credential is not valid any more.
        """
        if admitted.caller.is_anonymous:
            raise CredentialError("publishing requires a credential", reason="missing")
        own = self._requests[admitted.caller.name] >= _OF_CALLER
        if own or self._requests.total() >= _AT_ONCE:
            status, words = (429, "Too many requests") if own else (503, "Too many callers publish")
            return await refuse(
                send, status, f"{words} at the moment. Try again later.", {"retry-after": "1"}
            )
        request = PublishingRequest(
            scope["method"],
            scope["path"].removeprefix(CATALOG_PATH),
            Request(scope).query_params,
            admitted.caller.name,
            admitted.visibility,
            partial(self._read, receive, admitted, readmit),
        )
        try:
            with self._counted(admitted.caller.name), anyio.fail_after(ANSWER_SECONDS):
                status, document = await self._publishing.answer(request)
        except RefusedBodyError as error:
            return await refuse(send, error.status, str(error))
        except TimeoutError:
            words = "The catalog did not answer in time. Try again later."
            return await refuse(send, 503, words, {"retry-after": "5"})
        body = encode(document)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            **({"retry-after": "5"} if status == 503 else {}),
            **({_ALLOW: document[_ALLOW]} if _ALLOW in document else {}),
        }
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    async def _read(
        self, receive: Receive, admitted: AdmittedCaller, readmit: Readmit
    ) -> tuple[bytes, Visibility]:
        """Return the body, and what the caller may do, who is authenticated again when it has arrived.

        Raises:
            RefusedBodyError: It is too large, incomplete or too slow, or the caller's access ended.
            CredentialError: The credential is not valid any more.
        """
        body = None
        with anyio.move_on_after(BODY_SECONDS) as scope, self._grants.track(admitted, readmit) as ended:
            body = await read_body(until((ended,), receive), MAX_BODY)
        if scope.cancelled_caught:
            raise RefusedBodyError(408, "The body of the request took too long")
        rights = (await readmit()).visibility
        if body is None:
            raise RefusedBodyError(403, "The rights of this caller have changed. Try again.")
        if len(body.content) > MAX_BODY:
            raise RefusedBodyError(413, f"The body of the request is larger than {MAX_BODY} bytes")
        return body.content, rights

    @contextmanager
    def _counted(self, caller: str) -> Generator[None]:
        """Count a request of a caller while the context is open."""
        self._requests[caller] += 1
        try:
            yield
        finally:
            self._requests[caller] -= 1
            if not self._requests[caller]:
                del self._requests[caller]
