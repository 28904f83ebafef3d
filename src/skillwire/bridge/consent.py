"""`ClientConsent`: asks the user of the MCP client whose request needs an approval.

The client asks by elicitation: with a form, or with the URL of a page on this
machine if it supports only that. A client of revision 2026-07-28 gets the
question as the result of its request, and sends the request again with the
answer. Only a choice that the user made counts: a client without a person
declines at once, which is a no for now and is not remembered. If nobody can
be asked, the refusal names the command with which the user approves the skill.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from html import escape
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias

import anyio
import anyio.abc
import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from skillwire.core import visible
from skillwire.host.model import (
    ApprovalRequiredError,
    Grant,
    KnownSkill,
    Occasion,
    Question,
    Reply,
    binding_of,
)
from skillwire.host.use.question import choices_of, final_question, text_of_question

Context: TypeAlias = ServerRequestContext[Any, Any]

MAX_OPEN: Final = 100
"""How many questions to clients of revision 2026-07-28 may be open; the oldest are dropped."""
MAX_UNDECIDED: Final = 3
"""How often a question is asked that gets no choice; then only the command is named."""

logger = logging.getLogger(__name__)

_CHOICES: Final = {
    Reply.DENY: "No",
    Reply.ONCE: "Yes, for this session",
    Reply.ALWAYS: "Yes, and remember it for exactly these files",
}
_WIDTH: Final = 84
_NOTE: Final = "skillwire asks this, not the model. Approve only what you want in the model's context."


class AnsweredParams(Protocol):
    """The parameters of a request that may be sent again with answers."""

    @property
    def input_responses(self) -> Mapping[str, Any] | None: ...


@dataclass(slots=True)
class RequestConsent:
    """One request: whom to ask, the answers that came with it, and what to ask before there is a result."""

    context: Context
    answers: Mapping[str, Any]
    needed: types.InputRequiredResult | None = None


class ClientConsent:
    """Asks users through their clients.

    `command_line` returns a command line of this program, for the user to type.
    """

    def __init__(self, command_line: Callable[..., str], pages: ConsentPages) -> None:
        self._command_line = command_line
        self._pages = pages
        self._open: OrderedDict[str, bytes] = OrderedDict()
        self._undecided: Counter[bytes] = Counter()
        self._current: ContextVar[RequestConsent | None] = ContextVar("asking", default=None)

    @contextmanager
    def asking(self, context: Context, params: AnsweredParams) -> Generator[RequestConsent]:
        """Ask the client of this request while it is answered; `needed` is set if it must answer first."""
        current = RequestConsent(context, params.input_responses or {})
        token = self._current.set(current)
        try:
            yield current
        finally:
            self._current.reset(token)

    async def ask(self, question: Question) -> Reply:
        """Return the user's choice.

        Raises:
            ApprovalRequiredError: Nobody made a choice.
        """
        current, digest = self._current.get(), _digest(question)
        if current is None or self._undecided[digest] >= MAX_UNDECIDED:
            raise self.refusal(question)
        reply = await self._asked(current, question)
        if reply is not None:
            return reply
        if current.needed is None:
            self._undecided[digest] += 1
        raise self.refusal(question)

    def refusal(self, question: Question) -> ApprovalRequiredError:
        """Return the refusal of a request that needs an approval, with the command that gives it."""
        skill = question.skill
        if skill is None:
            return ApprovalRequiredError("this needs the user's approval")
        reference = skill.reference
        has_changed = question.occasion is Occasion.CHANGED
        what = "has changed since the user approved it" if has_changed else "needs the user's approval"
        return ApprovalRequiredError(
            f"{reference} {what}", reference=reference, fix=self._fix(question, skill)
        )

    def _fix(self, question: Question, skill: KnownSkill) -> str:
        if not question.may_be_remembered:
            return (
                "the user can only be asked at each call, which this client does not support; "
                "go on without it"
            )
        look = "diff" if question.occasion is Occasion.CHANGED else "show"
        review = self._command_line(look, skill.reference)
        grant = _GRANTS.get(question.occasion, ())
        approve = self._command_line("approve", skill.reference, *grant)
        return (
            f"tell the user that `{approve}` in a terminal approves it, and that `{review}` shows it first; "
            "then call this tool again. You cannot approve it yourself"
        )

    async def _asked(self, current: RequestConsent, question: Question) -> Reply | None:
        mode = _mode_of(current.context.session.client_capabilities)
        if mode is None:
            return None
        if current.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return self._answered(current, question, mode)
        if not current.context.session.can_send_request:
            return None
        return await self._elicited(current.context, question, mode)

    async def _elicited(self, context: Context, question: Question, mode: str) -> Reply | None:
        """Ask a client of the handshake era, and wait for the answer."""
        session, title = context.session, final_question(question)
        try:
            if mode == "form":
                found = await session.elicit_form(_text(question), _schema(question), context.request_id)
                return _reply_in(found, question)
            with self._pages.open(title, _details(question), _labels(question)) as page:
                found = await session.elicit_url(_url_text(question), page.url, page.name, context.request_id)
                answer = await page.reply() if found.action == "accept" else None
                await session.send_elicit_complete(page.name)
                return _reply_of(answer, question)
        except (MCPError, OSError, ValueError) as error:
            logger.info("the client did not ask its user: %s", visible(str(error), most=200))
            return None

    def _answered(self, current: RequestConsent, question: Question, mode: str) -> Reply | None:
        """Return the answer that came with a request of revision 2026-07-28, or note what is to be asked."""
        digest = _digest(question)
        for name, response in current.answers.items():
            if self._open.get(name) == digest:
                del self._open[name]
                return _reply_in(response, question)
        if mode == "form":
            name = secrets.token_urlsafe(16)
            self._open[name] = digest
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
            params = types.ElicitRequestFormParams(
                message=_text(question), requested_schema=_schema(question)
            )
            request = types.ElicitRequest(params=params)
            current.needed = types.InputRequiredResult(input_requests={name: request})
        return None


_GRANTS: Final[Mapping[Occasion, tuple[str, ...]]] = {
    Occasion.SCRIPTS: ("--grant", Grant.LOAD.value, "--grant", Grant.SCRIPTS.value),
    Occasion.ALLOWED_TOOLS: ("--grant", Grant.LOAD.value, "--grant", Grant.ALLOWED_TOOLS.value),
}


def _mode_of(capabilities: types.ClientCapabilities | None) -> str | None:
    """Return how a client can ask its user: with a form, with a URL, or not at all."""
    found = None if capabilities is None else capabilities.elicitation
    if found is None:
        return None
    return "url" if found.url is not None and found.form is None else "form"


def _text(question: Question) -> str:
    return f"{_details(question)}\n\n{final_question(question)}\n{_NOTE}"


def _details(question: Question) -> str:
    """Return what the user needs to decide, origin first, with the digest of all files at the end."""
    skill = question.skill
    binding = "" if skill is None else binding_of(skill.entry.manifest)
    digest = f"\nDigest of all files:\n  {binding}" if binding else ""
    # Wrapped here, because each part of a line by a server must begin with the bar.
    return f"{text_of_question(question, _WIDTH)}{digest}"


def _url_text(question: Question) -> str:
    return f"{final_question(question)} The page shows its files. {_NOTE}"


def _schema(question: Question) -> dict[str, Any]:
    labels = _labels(question)
    return {
        "type": "object",
        "properties": {
            "answer": {
                "type": "string",
                "title": "Your decision",
                "enum": list(labels),
                "enumNames": list(labels.values()),
            }
        },
        "required": ["answer"],
    }


def _reply_in(found: object, question: Question) -> Reply | None:
    """Return the choice that a user made; None if it is none of those that were offered."""
    if not isinstance(found, types.ElicitResult) or found.action != "accept":
        return None
    return _reply_of((found.content or {}).get("answer"), question)


def _reply_of(answer: object, question: Question) -> Reply | None:
    return next((reply for reply in choices_of(question) if reply.value == answer), None)


def _labels(question: Question) -> dict[str, str]:
    """Return the possible answers, each with what people read for it."""
    return {reply.value: _CHOICES[reply] for reply in choices_of(question)}


def _digest(question: Question) -> bytes:
    """Return a digest of everything that the user is shown."""
    skill = question.skill
    binding = "" if skill is None else f"{skill.id} {binding_of(skill.entry.manifest)}"
    return blake2b(f"{binding}\n{_text(question)}".encode("utf-8", "replace"), digest_size=16).digest()


# Questions as web pages on this machine, for clients that open URLs to ask their users. The address of a page
# cannot be guessed, and a page takes one answer.


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
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}pre{overflow-x:auto;padding:1rem;"
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

    async def __aenter__(self) -> ConsentPages:
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
