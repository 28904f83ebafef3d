"""`ConsentPages`: questions as web pages on this machine, for clients that open URLs to ask their users.

The address of a page cannot be guessed, and a page takes one answer.
"""

import secrets
import socket
from collections.abc import Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from html import escape
from types import TracebackType
from typing import Final

import anyio
import anyio.abc
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_STYLE: Final = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:1rem;"
    "border:1px solid}button{font:inherit;margin:0 .5rem .5rem 0;padding:.5rem 1rem}"
)
_MAX_BODY: Final = 1024
ANSWER_SECONDS: Final = 600.0
"""How long a page waits for its answer."""


@dataclass(slots=True)
class ConsentPage:
    """One question on a page, the choices with their labels, and the one that was made, if any."""

    name: str
    url: str
    question: str
    text: str
    choices: Mapping[str, str]
    answer: str | None = None
    _answered: anyio.Event = field(default_factory=anyio.Event)

    def take(self, answer: str) -> None:
        """Take the answer of the user; a second one changes nothing."""
        if self.answer is None:
            self.answer = answer
            self._answered.set()

    async def reply(self) -> str | None:
        """Return the answer, or None if there is none in time."""
        with anyio.move_on_after(ANSWER_SECONDS):
            await self._answered.wait()
        return self.answer


class ConsentPages:
    """Serves pages with questions on a port of the loopback interface, once there is the first question."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._group: anyio.abc.TaskGroup | None = None
        self._origin = ""
        self._pages: dict[str, ConsentPage] = {}

    async def __aenter__(self) -> "ConsentPages":
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group is not None:
            self._group.cancel_scope.cancel()
        await self._stack.aclose()

    @contextmanager
    def open(self, question: str, text: str, choices: Mapping[str, str]) -> Generator[ConsentPage]:
        """Show a question and a text on a page of its own, as long as it is needed.

        Raises:
            OSError: No port is free.
        """
        name = secrets.token_urlsafe(32)
        self._start()
        page = ConsentPage(name, f"{self._origin}/{name}", question, text, choices)
        self._pages[name] = page
        try:
            yield page
        finally:
            del self._pages[name]

    def _start(self) -> None:
        if self._origin or self._group is None:
            return
        listener = socket.create_server(("127.0.0.1", 0))
        self._origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        routes = [
            Route("/{name}", self._show, methods=["GET"]),
            Route("/{name}", self._take, methods=["POST"]),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, proxy_headers=False,
        )  # fmt: skip
        self._group.start_soon(_PageServer(config).serve, [listener])

    def _page(self, request: Request) -> ConsentPage | None:
        if f"http://{request.headers.get('host')}" != self._origin:
            return None
        return self._pages.get(request.path_params["name"])

    async def _show(self, request: Request) -> Response:
        page = self._page(request)
        if page is None or page.answer is not None:
            return _html("This question is closed.", status=404)
        buttons = "".join(
            f'<button name="answer" value="{escape(value)}">{escape(label)}</button>'
            for value, label in page.choices.items()
        )
        question, text = escape(page.question), escape(page.text)
        return _html(f'<h1>{question}</h1><pre>{text}</pre><form method="post">{buttons}</form>')

    async def _take(self, request: Request) -> Response:
        page = self._page(request)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY:
                return _html("The answer is too long.", status=413)
        if page is None or request.headers.get("origin") not in (None, self._origin):
            return _html("This question is closed.", status=404)
        answers = {f"answer={value}".encode(): value for value in page.choices}
        if body not in answers:
            return _html("This is no answer to the question.", status=400)
        page.take(answers[body])
        return _html("Thank you. You can close this page.")


class _PageServer(uvicorn.Server):
    """A server that leaves the signals of the process alone."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _html(content: str, *, status: int = 200) -> HTMLResponse:
    head = f'<html lang="en"><meta charset="utf-8"><title>skillwire</title><style>{_STYLE}</style>'
    head = f"<!doctype html>{head}"
    return HTMLResponse(f"{head}<main>{content}</main></html>", status_code=status, headers=_HEADERS)
