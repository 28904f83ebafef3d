"""`ClientConsent`: asks the user of the MCP client whose request needs an approval.

The client asks by elicitation: with a form, or with the URL of a page on this
machine if it supports only that. A client of revision 2026-07-28 gets the
question as the result of its request, and sends the request again once its
user has answered the form or agreed to open the page. Only a choice that the
user made counts: a client without a person declines at once, which is a no for
now and is not remembered. If nobody can be asked, the refusal names the command
with which the user approves the skill.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from html import escape
from typing import Any, Final, TypeAlias

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
from starlette.types import ASGIApp

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
"""How many questions may be open; the oldest are dropped."""
MAX_UNDECIDED: Final = 3
"""How often a question is asked that gets no choice; then only the command is named."""
ANSWER_SECONDS: Final = 600.0
"""How long a page takes an answer."""
RETRY_SECONDS: Final = 50.0
"""How long a request of revision 2026-07-28 waits for it: many clients give up after a minute."""

logger = logging.getLogger(__name__)

_CHOICES: Final = {
    Reply.DENY: "No",
    Reply.ONCE: "Yes, for this session",
    Reply.ALWAYS: "Yes, and remember it for exactly these files",
}
_WIDTH: Final = 84
_NOTE: Final = "skillwire asks this, not the model. Approve only what you want in the model's context."


@dataclass(slots=True)
class RequestConsent:
    """One request: whom to ask, the answers that came with it, and what to ask before there is a result."""

    context: Context
    answers: Mapping[str, Any]
    needed: types.InputRequiredResult | None = None


class ClientConsent:
    """Asks users through their clients.

    `command_line` returns a command line of this program, for the user to
    type. `group` runs the server of the pages.
    """

    def __init__(self, command_line: Callable[..., str], group: anyio.abc.TaskGroup) -> None:
        self._command_line = command_line
        self._pages = ConsentPages(group)
        self._undecided: Counter[bytes] = Counter()
        self._current: ContextVar[RequestConsent | None] = ContextVar("asking", default=None)

    @contextmanager
    def asking(self, context: Context, answers: Mapping[str, Any] | None) -> Generator[RequestConsent]:
        """Ask the client of this request while it is answered; `needed` is set if it must answer first."""
        current = RequestConsent(context, answers or {})
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
        if current is None:
            raise self.refusal(question)
        if (late := self._pages.late_answer(question)) is not None:
            return late
        if self._undecided[digest] >= MAX_UNDECIDED:
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
        """Return the user's choice, or None; then `current.needed` is set if the client is to ask first."""
        session = current.context.session
        elicitation = session.client_capabilities and session.client_capabilities.elicitation
        if elicitation is None:
            return None
        by_form = elicitation.url is None or elicitation.form is not None
        try:
            if current.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                return await self._answered(current, question, by_form=by_form)
            if session.can_send_request:
                return await self._elicited(current.context, question, by_form=by_form)
        except (MCPError, OSError, ValueError) as error:
            logger.info("the client did not ask its user: %s", visible(str(error), most=200))
        return None

    async def _elicited(self, context: Context, question: Question, *, by_form: bool) -> Reply | None:
        """Ask a client of the handshake era, and wait for the answer."""
        session = context.session
        if by_form:
            found = await session.elicit_form(_text(question), _schema(question), context.request_id)
            return _reply_in(found, question)
        asked = self._pages.open(question, on_page=True)
        try:
            found = await session.elicit_url(_url_text(question), asked.url, asked.name, context.request_id)
            reply = await self._pages.reply(asked, ANSWER_SECONDS) if found.action == "accept" else None
            await session.send_elicit_complete(asked.name)
            return reply
        finally:
            self._pages.close(asked)

    async def _answered(self, current: RequestConsent, question: Question, *, by_form: bool) -> Reply | None:
        """Return the answer to a question that was the result of an earlier request, or note what to ask."""
        for name, response in current.answers.items():
            if (asked := self._pages.asked(name, question)) is None:
                continue
            if asked.url and isinstance(response, types.ElicitResult) and response.action == "accept":
                return await self._pages.reply(asked, RETRY_SECONDS)
            self._pages.close(asked)
            return None if asked.url else _reply_in(response, question)
        asked = self._pages.open(question, on_page=not by_form)
        if by_form:
            params = types.ElicitRequestFormParams(
                message=_text(question), requested_schema=_schema(question)
            )
        else:
            params = types.ElicitRequestURLParams(message=_url_text(question), url=asked.url)
        request = types.ElicitRequest(params=params)
        current.needed = types.InputRequiredResult(input_requests={asked.name: request})
        return None


_GRANTS: Final[Mapping[Occasion, tuple[str, ...]]] = {
    Occasion.SCRIPTS: ("--grant", Grant.LOAD.value, "--grant", Grant.SCRIPTS.value),
    Occasion.ALLOWED_TOOLS: ("--grant", Grant.LOAD.value, "--grant", Grant.ALLOWED_TOOLS.value),
}


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
    choice = {"type": "string", "enum": list(labels), "enumNames": list(labels.values())}
    answer = {"title": "Your decision", **choice}
    return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}


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


# Open questions. Those on web pages of this machine are for clients that open URLs to ask their users: the
# address of a page cannot be guessed, and a page takes one answer.


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
    "<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}pre{overflow-x:auto;padding:1rem;border:1px solid}"
    "button{font:inherit;margin:0 .5rem .5rem 0;padding:.5rem 1rem}</style>"
)
_MAX_BODY: Final = 1024


@dataclass(slots=True)
class OpenQuestion:
    """A question that a client was asked: the page that shows it, if any, and the answer given there."""

    question: Question
    digest: bytes
    name: str = field(default_factory=partial(secrets.token_urlsafe, 32))
    url: str = ""
    ends: float = field(default_factory=lambda: anyio.current_time() + ANSWER_SECONDS)
    answer: Reply | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)

    @property
    def is_recent(self) -> bool:
        return anyio.current_time() < self.ends


class ConsentPages:
    """The open questions; pages are served on a port of the loopback interface once there is the first."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self._group = group
        self._origin = ""
        self._open: dict[str, OpenQuestion] = {}

    def open(self, question: Question, *, on_page: bool) -> OpenQuestion:
        """Return a new open question; with `on_page`, it is shown at its URL.

        Raises:
            OSError: No port is free.
        """
        asked = OpenQuestion(question, _digest(question))
        if on_page:
            asked.url = f"{self._start()}/{asked.name}"
        self._open[asked.name] = asked
        if len(self._open) > MAX_OPEN:
            del self._open[next(iter(self._open))]
        return asked

    def asked(self, name: str, question: Question) -> OpenQuestion | None:
        """Return the open question of a name, if it is exactly this one."""
        asked = self._open.get(name)
        return asked if asked is not None and asked.digest == _digest(question) else None

    async def reply(self, asked: OpenQuestion, seconds: float) -> Reply | None:
        """Wait for the answer on a page and close it; None if there is none yet, and then it stays open."""
        with anyio.move_on_at(min(asked.ends, anyio.current_time() + seconds)):
            await asked.answered.wait()
        return asked.answer if asked.answer is not None and self.close(asked) else None

    def late_answer(self, question: Question) -> Reply | None:
        """Return the answer on a page that asked exactly this, given when no request waited for it."""
        digest = _digest(question)
        answered = (each for each in self._open.values() if each.answer is not None and each.is_recent)
        found = next((each for each in answered if each.digest == digest), None)
        return found.answer if found is not None and self.close(found) else None

    def close(self, asked: OpenQuestion) -> bool:
        """Close a question; return whether it was open, since an answer counts once."""
        return self._open.pop(asked.name, None) is not None

    def _start(self) -> str:
        """Return the address of the server, which runs from now on."""
        if not self._origin:
            listener = socket.create_server(("127.0.0.1", 0))
            self._origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
            handlers = {"GET": self._show, "POST": self._take}
            routes = [Route("/{name}", one, methods=[method]) for method, one in handlers.items()]
            self._group.start_soon(_serve, http_config(Starlette(routes=routes)), listener)
        return self._origin

    def _page(self, request: Request) -> OpenQuestion | None:
        """Return the question of a page that takes an answer."""
        is_here = f"http://{request.headers.get('host')}" == self._origin
        asked = self._open.get(request.path_params["name"]) if is_here else None
        is_open = asked is not None and asked.url and asked.answer is None and asked.is_recent
        return asked if is_open else None

    async def _show(self, request: Request) -> Response:
        if (page := self._page(request)) is None:
            return _html("This question is closed.", status=404)
        buttons = "".join(
            f'<button name="answer" value="{escape(value)}">{escape(label)}</button>'
            for value, label in _labels(page.question).items()
        )
        question, text = escape(final_question(page.question)), escape(_details(page.question))
        return _html(f'<h1>{question}</h1><pre>{text}</pre><form method="post">{buttons}</form>')

    async def _take(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY:
                return _html("The answer is too long.", status=413)
        page = self._page(request)
        if page is None or request.headers.get("origin") not in (None, self._origin):
            return _html("This question is closed.", status=404)
        reply = _reply_of(body.decode("latin-1").removeprefix("answer="), page.question)
        if reply is None or not body.startswith(b"answer="):
            return _html("This is no answer to the question.", status=400)
        page.answer = reply
        page.answered.set()
        return _html("Thank you. You can close this page.")


class _PageServer(uvicorn.Server):
    """A server that leaves the signals of the process alone."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def http_config(app: ASGIApp) -> uvicorn.Config:
    """Return how an app is served to this machine, without a log of its own."""
    quiet: dict[str, Any] = {"log_config": None, "access_log": False}
    return uvicorn.Config(app, ws="none", server_header=False, proxy_headers=False, **quiet)


async def _serve(config: uvicorn.Config, listener: socket.socket) -> None:
    with closing(listener):
        await _PageServer(config).serve([listener])


def _html(content: str, *, status: int = 200) -> HTMLResponse:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>skillwire</title>{_STYLE}'
    return HTMLResponse(f"{head}<main>{content}</main></html>", status_code=status, headers=_HEADERS)
