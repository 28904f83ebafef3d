"""Whether a tool call may run: `decide` is a pure function of the call, the open windows and their grants.

A model that has read a server's skill may act on it, and models do not refuse
reliably. So while such a window is open, calls that run code, write, or use
the network need the user's approval, whatever the source of the command
(SEP-2640, "No implicit local execution").
"""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePath

from skillwire.core import fold_path
from skillwire.host.approval.consent import Consent
from skillwire.host.model import Activation, ApprovalError, Grant, KnownSkill, Occasion, Question, Refusal
from skillwire.host.state.audit import AuditLog

logger = logging.getLogger(__name__)


class ToolKind(StrEnum):
    """The most that a tool call can do, as the embedding agent declares it."""

    EXECUTE = "execute"
    """Runs code or a command on this machine."""
    WRITE = "write"
    """Changes files or other state on this machine."""
    NETWORK = "network"
    """Sends something to another machine."""
    READ = "read"
    """Only reads files of this machine, or resources of a server."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model requests.

    A call without a `kind` counts as one that runs code. `server` is the label
    of the MCP server whose resource would be read, with its `uri`. `path` is
    the real path of the file that would be written or read. `skill` and `script` name
    a script of a loaded skill, if the call runs exactly that, and
    `script_digest` its bytes. `detail` describes the call to the user, such
    as the command.
    """

    name: str
    kind: ToolKind | None = None
    server: str = ""
    uri: str = ""
    path: str = ""
    skill: str = ""
    script: str = ""
    script_digest: str = ""
    detail: str = ""

    def describe(self) -> str:
        """Describe the call, for a question or a refusal."""
        what = (self.kind or ToolKind.EXECUTE).value
        parts = (
            ("server", self.server),
            ("uri", self.uri),
            ("path", self.path),
            ("skill", self.skill),
            ("script", self.script),
        )
        details = ", ".join(f"{key} {value}" for key, value in parts if value)
        said = f"{self.name} ({what}{'; ' if details else ''}{details})"
        return f"{said}: {self.detail}" if self.detail else said


class Verdict(StrEnum):
    """The decision on a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and its reason. `skills` are the references of the loaded skills that caused it."""

    verdict: Verdict
    call: ToolCall
    code: str = ""
    skills: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def refusal(self) -> Refusal | None:
        """The refusal of the call; None if the call may run."""
        if self.verdict is Verdict.ALLOW:
            return None
        because = f"{self.call.describe()}, while acting on {', '.join(self.skills)}" if self.skills else ""
        return Refusal(self.code, self.call.name, because or self.call.describe())


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """An open window for the gate: the loaded skill, and what the user granted it."""

    skill: KnownSkill
    grants: frozenset[Grant]


def decide(
    call: ToolCall,
    windows: Sequence[OpenWindow],
    protected: Sequence[str] = (),
    private: Sequence[str] = (),
) -> Decision:
    """Decide on a call. Every open window of a server's skill must allow it; none can widen another.

    `protected` are the real paths of folders and files no tool may write to,
    and `private` those no tool may read either. Windows of local skills
    restrict nothing.
    """
    closed = private if call.kind is ToolKind.READ else (*protected, *private)
    if call.path and _is_inside(call.path, closed):
        return Decision(Verdict.DENY, call, "protected-place")
    objecting = [window for window in windows if window.skill.is_remote and not _allows(window, call)]
    if not objecting:
        return Decision(Verdict.ALLOW, call)
    return Decision(
        Verdict.ASK,
        call,
        _code_for(call),
        tuple(sorted(window.skill.reference for window in objecting)),
        tuple(sorted({window.skill.id.origin.label for window in objecting})),
    )


def _allows(window: OpenWindow, call: ToolCall) -> bool:
    if call.kind is ToolKind.READ:
        return not call.server or call.server == window.skill.id.origin.label
    if Grant.ALLOWED_TOOLS in window.grants and call.name in allowed_tools(window.skill):
        return True
    return (
        call.kind is ToolKind.EXECUTE
        and Grant.SCRIPTS in window.grants
        and call.skill == window.skill.reference
        and _is_own_script(window.skill, call)
    )


def _is_own_script(skill: KnownSkill, call: ToolCall) -> bool:
    """Return whether a call runs a file of the skill with exactly the approved bytes.

    A file without a digest never qualifies, because its content was not approved.
    """
    uri = skill.entry.uri.resolve(call.script)
    files = skill.entry.files
    file = files.find(uri) if files is not None and uri is not None else None
    return file is not None and file.digest == call.script_digest


def allowed_tools(skill: KnownSkill) -> tuple[str, ...]:
    """Return the plain tool names that a skill's frontmatter asks for.

    Patterns such as `Bash(git:*)` are left out: they are not interpreted, and
    the user is asked about such calls.
    """
    value = skill.entry.frontmatter.fields.get("allowed-tools")
    words = value.replace(",", " ").split() if isinstance(value, str) else []
    return tuple(word for word in words if word.replace("_", "").replace("-", "").isalnum())


def _is_inside(path: str, protected: Sequence[str]) -> bool:
    # Some file systems ignore case and Unicode normalization, so compare folded paths.
    place = PurePath(fold_path(path))
    return any(place.is_relative_to(fold_path(folder)) for folder in protected)


def _code_for(call: ToolCall) -> str:
    if call.kind is ToolKind.READ:
        return "cross-origin"
    if call.kind is ToolKind.WRITE:
        return "writing"
    return "network" if call.kind is ToolKind.NETWORK else "execution"


class ToolGate:
    """Decides on the tool calls of all conversations of one host, and records the decisions."""

    def __init__(
        self, consent: Consent, audit: AuditLog, protected: Sequence[str], private: Sequence[str]
    ) -> None:
        self._consent = consent
        self._audit = audit
        self._protected = protected
        self._private = private

    def decide(self, call: ToolCall, windows: Iterable[Activation]) -> Decision:
        """Decide on a call while these windows are open. Nobody is asked."""
        among = [OpenWindow(window.skill, self._consent.grants(window.skill)) for window in windows]
        real = replace(call, path=os.path.realpath(call.path)) if call.path else call
        decision = decide(real, among, self._protected, self._private)
        self._audit.record(
            "gate",
            tool=call.name,
            kind=call.kind.value if call.kind else "",
            verdict=decision.verdict.value,
            code=decision.code,
            skills=list(decision.skills),
        )
        return decision

    async def authorise(self, call: ToolCall, windows: Sequence[Activation]) -> Decision:
        """Decide on a call, and ask the user if needed; the verdict is allow or deny."""
        decision = self.decide(call, windows)
        if decision.verdict is not Verdict.ASK:
            return decision
        question = Question(
            Occasion.CROSS_ORIGIN if decision.code == "cross-origin" else Occasion.CALL,
            next(window.skill for window in windows if window.skill.reference == decision.skills[0]),
            servers=(*decision.origins, call.server) if call.server else decision.origins,
            uri=call.uri,
            call=call.describe(),
        )
        try:
            agreed = await self._consent.permit(question)
        except ApprovalError as error:
            logger.info("tool call denied: %s", error)
            agreed = False
        return replace(decision, verdict=Verdict.ALLOW if agreed else Verdict.DENY)
