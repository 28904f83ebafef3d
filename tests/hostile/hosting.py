"""A host with a user in front of a peer: what every attack test is made of."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from hostile.running import Peer, hostile
from skillwire.core.errors import SkillError
from skillwire.core.refusals import REFUSALS
from skillwire.host.connect.config import Servers
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion, Question, Reply
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.state.places import Storage

DEADLINE = 90.0
PATIENCE = 20.0
LABEL = "shop"
REFUNDS = f"{LABEL}/refunds"
REPORTS = f"{LABEL}/reports"
ROOT = "skill://acme/refunds"
BODY_URI = f"{ROOT}/SKILL.md"
INDEX = "skill://index.json"


class User:
    """Answers questions as it was told, the last answer again and again, and remembers what was asked.

    `meanwhile` is what happens while a question is on the screen.
    """

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies or [Reply.ALWAYS])
        self.questions: list[Question] = []
        self.meanwhile: Callable[[Question], None] = lambda _question: None

    def will(self, *replies: Reply) -> None:
        """Answer so from now on."""
        self._replies = list(replies)

    async def __call__(self, question: Question) -> Reply:
        self.questions.append(question)
        self.meanwhile(question)
        return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]

    @property
    def occasions(self) -> list[Occasion]:
        return [question.occasion for question in self.questions]


@dataclass(frozen=True, slots=True)
class Visit:
    """A host that has listed one peer, and the user in front of it."""

    host: Host
    peer: Peer
    user: User

    def references(self) -> list[str]:
        return [skill.reference for skill in self.host.view.skills]

    def codes(self) -> list[str]:
        """The codes of everything that is hidden or noticed."""
        return [refusal.code for refusal in (*self.host.view.hidden, *self.host.view.notices)]

    def problem(self, label: str = LABEL) -> str:
        """The code of what is wrong with a server, or nothing."""
        [status] = [status for status in self.host.view.servers if status.origin.label == label]
        return status.problem.code if status.problem is not None else ""


def config(peer: Peer, label: str = LABEL, *, seconds: float = PATIENCE) -> ServerConfig:
    """Say how a host reaches a peer, under the label a user might give it."""
    if peer.transport == "http":
        return ServerConfig(label, HttpEndpoint(peer.url, {}), seconds=seconds)
    command, *args = peer.command
    return ServerConfig(label, StdioEndpoint(command, tuple(args), peer.environment, None), seconds=seconds)


def storage_in(folder: Path) -> Storage:
    return Storage(folder / "state", folder / "cache")


@asynccontextmanager
async def hosting(
    folder: Path, servers: Servers | Iterable[ServerConfig], *, user: User | None, **options: Any
) -> AsyncGenerator[Host]:
    """Run a host whose state and cache lie in `folder`, so that the next one finds them again."""
    with anyio.fail_after(DEADLINE):
        async with Host(
            servers,
            roots=options.pop("roots", ()),
            storage=options.pop("storage", None) or storage_in(folder),
            approve=user,
            **options,
        ) as host:
            yield host


@asynccontextmanager
async def visiting(
    scenario: str,
    folder: Path,
    *,
    transport: str = "stdio",
    era: str = "both",
    user: User | None = None,
    seconds: float = PATIENCE,
    options: dict[str, Any] | None = None,
    **control: Any,
) -> AsyncGenerator[Visit]:
    """Start a scenario and a host that has listed it; no file has been read by then but an index."""
    asked = user or User()
    async with (
        hostile(scenario, transport=transport, era=era, **control) as peer,
        hosting(folder, [config(peer, seconds=seconds)], user=asked, **(options or {})) as host,
    ):
        await host.refresh()
        assert set(peer.reads()) <= {INDEX}
        yield Visit(host, peer, asked)


async def refused(call: Awaitable[object]) -> SkillError:
    """Return the error with which a call is refused; its code is one that everybody can look up."""
    try:
        result = await call
    except SkillError as error:
        assert error.refusal in REFUSALS
        return error
    raise AssertionError(f"nothing was refused: {result!r}")
