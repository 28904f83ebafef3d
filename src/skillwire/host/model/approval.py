"""Approvals: what they cover, what ends them, and the questions a user is asked.

An approval is bound to the origin and to every URI and digest its server
listed when it was given. Any other content needs a new approval.
"""

import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Literal, Protocol, TypeAlias

from skillwire.core import (
    MAX_FILES,
    MAX_TOTAL_SIZE,
    Coverage,
    LimitError,
    Manifest,
    SkillDocument,
    SkillEntry,
    differing,
)
from skillwire.host.model.origin import KnownSkill, Origin, SkillId

# `RunTerms`: how a script would run, for the user to decide on.


Where: TypeAlias = Literal["sandbox", "server"]
"""Where a script runs: in a sandbox on this machine, or on the server that its skill comes from."""


@dataclass(frozen=True, slots=True)
class RunTerms:
    """Where a script would run, what it receives, what it requests, and what it gets.

    `arguments` is JSON text with any content. `asked` and `limits` are texts
    such as "memory 256 MiB". `network` are the hosts it could reach, `secrets`
    the names of secrets it could read, and `unmet` the requests that are not
    granted. `other_skills` are the references of other loaded skills that do
    not allow the run.
    """

    where: Where
    arguments: str = field(default="{}", repr=False)
    asked: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    other_skills: tuple[str, ...] = ()

    @property
    def is_for_one_run(self) -> bool:
        """Whether an approval of these terms is valid for one run only."""
        return self.where == "server" or bool(self.network or self.secrets or self.other_skills)


# Provenance providers, asked about a skill before it is loaded: scanners, registries, signers (ASK-05).


MAX_WORDS: Final = 500
"""The maximum number of characters of a verdict that are shown."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The subject of a provenance check: one skill, with exactly these files.

    `binding` is the digest an approval would be bound to, over every file's
    URI and digest. A skill without digests has neither a manifest nor a
    binding; only its origin and URI can be checked.
    """

    origin: Origin
    uri: str
    manifest: Manifest | None
    binding: str


@dataclass(frozen=True, slots=True)
class ProvenanceVerdict:
    """A provider's answer: a text for the user, who decides, or a veto, which cannot be overruled."""

    words: str = ""
    is_veto: bool = False


class ProvenanceProvider(Protocol):
    """Returns verdicts about skills, identified by their digests."""

    async def check(self, subject: Provenance) -> ProvenanceVerdict | None:
        """Return a verdict about exactly this content; None when nothing is known.

        The call is cancelled when it takes too long. An exception counts as no
        verdict, and the user is informed.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProvenanceResult:
    """The result of asking a provider about the content with this binding.

    `words` is the provider's text, truncated; `problem` says why there is no
    verdict. Both are empty when the provider knows nothing.
    """

    binding: str
    words: str = ""
    is_veto: bool = False
    problem: str = ""


class Grant(StrEnum):
    """A permission that a user can give, independent of the others."""

    LOAD = "load"
    """The skill's text may enter the model's context."""
    SCRIPTS = "scripts"
    """The skill's own scripts, byte for byte, may be run."""
    ALLOWED_TOOLS = "allowed-tools"
    """The tools that its frontmatter requests may be used without asking again."""


@dataclass(frozen=True, slots=True)
class Approval:
    """The approval of one skill of one origin with exactly these files.

    The manifest is deliberately not optional: content without digests cannot
    be approved in advance.
    """

    skill: SkillId
    manifest: Manifest
    grants: frozenset[Grant]
    granted_at: datetime
    granted_by: str = ""

    def covers(self, skill: SkillId, entry: SkillEntry, grant: Grant = Grant.LOAD) -> bool:
        """Return whether the user agreed to `grant` for exactly this content from exactly this origin."""
        return grant in self.grants and skill == self.skill and self.is_for(entry)

    def is_for(self, entry: SkillEntry) -> bool:
        """Return whether an entry lists the same files with the same digests.

        Sizes are ignored, as in the extension: they follow from the bytes,
        and a wrong size fails verification when the file is read.
        """
        return entry.manifest is not None and binding_of(entry.manifest) == binding_of(self.manifest)

    def is_ended_by(self, entry: SkillEntry) -> bool:
        """Return whether an entry shows that the skill is no longer what was approved.

        A skill that a server offers both as an archive and as files is listed
        by its archive or by its `SKILL.md` alone, depending on the host's
        archive policy. An approval given under the other policy covers
        nothing, but does not end while the `SKILL.md` is the same.
        """
        if self.is_for(entry):
            return False
        if entry.manifest is None or Coverage.FILES in (self.manifest.coverage, entry.manifest.coverage):
            return True
        if self.manifest.coverage is entry.manifest.coverage:
            return True
        before, after = self.manifest.find(self.skill.uri), entry.manifest.find(self.skill.uri)
        return before is None or after is None or before.digest != after.digest


def binding_of(manifest: Manifest | None) -> str:
    """Return the full digest (`sha256:…`) of every file's URI and digest: what an approval is bound to.

    It is empty for a skill without digests.
    """
    if manifest is None:
        return ""
    # The coverage is part of the binding: the same lines mean something else under another coverage.
    head = "" if manifest.coverage is Coverage.FILES else f"{manifest.coverage}\n"
    lines = head + "".join(
        f"{uri}\0{digest}\n" for uri, digest in zip(manifest.uris, manifest.digests, strict=True)
    )
    return f"sha256:{hashlib.sha256(lines.encode('utf-8', 'surrogatepass')).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Change:
    """How a skill differs from what was approved: the URIs of its files, sorted."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()

    @classmethod
    def between(cls, before: Manifest, after: Manifest) -> "Change":
        return cls(*differing(before.digests_by_uri, after.digests_by_uri))

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.modified)


class Occasion(StrEnum):
    """The reason for a question to the user."""

    FIRST = "first"
    """The skill was never approved."""
    CHANGED = "changed"
    """It was approved and has changed since."""
    DYNAMIC = "dynamic"
    """It has no digests, so the user is asked at every load."""
    SCRIPTS = "scripts"
    """A script of the skill is about to run."""
    ALLOWED_TOOLS = "allowed-tools"
    """The skill requests tools."""
    UNVERIFIED = "unverified"
    """Files of the skill that have no digest are about to be read."""
    CROSS_ORIGIN = "cross-origin"
    """A read goes to a server other than the skill's."""
    CALL = "call"
    """The model wants to call a tool while the skill is active."""


class ApprovalState(StrEnum):
    """Whether a skill, with its current content, is approved."""

    LOCAL = "local"
    """A local skill, which needs no approval."""
    LOCKED = "locked"
    """Pinned by the project's lock."""
    APPROVED = "approved"
    """Approved on this machine."""
    ONCE = "once"
    """Approved until this host is closed."""
    CHANGED = "changed"
    """Approved before, with other content."""
    NEW = "new"
    """Not approved: never, or the approval of this content was revoked."""
    DYNAMIC = "dynamic"
    """It has no digests, so it cannot be approved in advance."""


class ApprovalValidity(StrEnum):
    """Whether a user's approval of some content still holds."""

    APPROVED = "approved"
    CHANGED = "changed"
    """It ended because the server listed other content, or other content was approved since."""
    UNTRUSTED = "untrusted"
    """It is a pin of a lock that changed outside skillwire since it was trusted."""
    ENDED = "ended"
    """It was revoked, or never given."""


class Reply(StrEnum):
    """The user's answer to a question."""

    DENY = "deny"
    ONCE = "once"
    """Yes, for this content, until the host is closed."""
    ALWAYS = "always"
    """Yes, and store it for this content; the same as `ONCE` where nothing may be stored."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question for the user, with everything needed to present it.

    Escape all text that comes from a server (names, descriptions, file URIs),
    and show it below the origin, which the host itself provides. The entry
    shown is the entry that will be loaded. `change` lists the differences from
    the content approved before, and `previous` is the manifest of that
    content. `provenance` is the result of a provenance check of exactly this
    content. `servers` are the labels that a cross-origin read would connect,
    the reading skill's server first. `call` describes the tool call in text.
    `terms` describe a single run of a script. `arguments` are names and values
    that would be sent to the skill's server.
    """

    occasion: Occasion
    skill: KnownSkill | None
    change: Change | None = None
    previous: Manifest | None = None
    servers: tuple[str, ...] = ()
    uri: str = ""
    call: str = ""
    script: str = ""
    script_digest: str = ""
    script_content: bytes = field(default=b"", repr=False)
    tools: tuple[str, ...] = ()
    provenance: ProvenanceResult | None = None
    terms: RunTerms | None = None
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def may_be_remembered(self) -> bool:
        """Whether a reply of `ALWAYS` is stored beyond this decision."""
        if self.occasion is Occasion.SCRIPTS and not self.script_digest:
            return False
        if self.terms is not None and self.terms.is_for_one_run:
            return False
        return self.occasion in _REMEMBERED and self.skill is not None and not self.skill.entry.is_dynamic


Ask: TypeAlias = Callable[[Question], Awaitable[Reply]]
"""Asks the user a question and returns the answer; `Host(approve=…)` takes it.

If nobody can be asked now, it raises an `ApprovalRequiredError`: then the
request is refused with it, and no denial is remembered.
"""

_REMEMBERED = frozenset({Occasion.FIRST, Occasion.CHANGED, Occasion.SCRIPTS, Occasion.ALLOWED_TOOLS})


def now() -> datetime:
    """Return the current time for an approval: whole seconds, in UTC."""
    return datetime.now(UTC).replace(microsecond=0)


# Windows: the periods in which a host acts on a loaded skill.


_BOUNDARY_BYTES = 16


def new_boundary() -> str:
    """Return a random boundary that no existing text can contain."""
    return secrets.token_hex(_BOUNDARY_BYTES)


@dataclass(frozen=True, slots=True)
class Activation:
    """One open window: the skill as it was approved and loaded.

    `boundary` is an unguessable marker generated for this load; it frames the
    server's text wherever it is shown. `fetched` holds the files that were
    read without a digest; they are dropped when the window closes.
    """

    skill: KnownSkill
    document: SkillDocument
    fetched: "DynamicFiles" = field(compare=False)
    boundary: str = field(default_factory=new_boundary)
    opened_at: datetime = field(default_factory=now)


@dataclass(eq=False, slots=True)
class DynamicFiles:
    """Files of a skill that were read without a known digest or size, limited in number and total size.

    `arguments` are sent with each request for such a file, where its dialect
    supports them. `permission` is the user's decision on files without
    digests, for this window only; None until the user was asked.
    """

    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    permission: bool | None = None
    _files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _counted: set[str] = field(default_factory=set[str])
    _size: int = 0

    @property
    def remaining_bytes(self) -> int:
        """The number of bytes that may still be read."""
        return MAX_TOTAL_SIZE - self._size

    def get(self, uri: str) -> bytes | None:
        return self._files.get(uri)

    def require_capacity(self, uri: str) -> None:
        """Check that one more file may be read.

        Raises:
            LimitError: The skill has reached its limit of files or bytes.
        """
        if uri not in self._counted and (len(self._counted) >= MAX_FILES or self.remaining_bytes <= 0):
            raise LimitError(
                f"{uri} is not read: the limit for files without a listed size is reached "
                f"({len(self._counted)} files, {self._size} bytes)"
            )

    def add(self, uri: str, content: bytes) -> None:
        """Store the content of a file and count it towards the limits."""
        self._size += len(content) - len(self._files.get(uri, b""))
        self._files[uri] = content
        self._counted.add(uri)

    def count(self, uri: str, size: int) -> None:
        """Count a file whose size was not listed and whose content is stored elsewhere."""
        if uri not in self._counted:
            self._counted.add(uri)
            self._size += size


class Windows:
    """The open windows of one conversation.

    A sub-agent's conversation starts with the windows of its parent; the
    windows it opens itself are returned to the parent through `adopt`.
    """

    def __init__(self, inherited: Iterable[Activation] = ()) -> None:
        self._open = {window.skill.id: window for window in inherited}
        self._pages: dict[SkillId, set[int]] = {}

    def open(self, window: Activation, page: int = 1) -> None:
        """Open a window and record the page shown; an older window of the same skill is replaced."""
        skill = window.skill.id
        if self._open.get(skill) is not window:
            # Keep the order of loading, also when a skill is loaded again.
            self._open.pop(skill, None)
            self._pages[skill] = set()
            self._open[skill] = window
        self._pages.setdefault(skill, set()).add(page)

    def pages_of(self, skill: SkillId) -> tuple[int, ...]:
        """Return the pages of a skill that were shown in this conversation; none for an inherited window."""
        return tuple(sorted(self._pages.get(skill, ())))

    def shown(self) -> tuple[Activation, ...]:
        """Return the windows whose text was shown in this conversation, oldest first."""
        return tuple(window for skill, window in self._open.items() if skill in self._pages)

    def find(self, skill: SkillId) -> Activation | None:
        return self._open.get(skill)

    def by_reference(self, reference: str) -> Activation | None:
        """Return the window of the skill that was loaded as `reference`, also if the reference changed."""
        return next((window for window in self._open.values() if window.skill.reference == reference), None)

    def all(self) -> tuple[Activation, ...]:
        """Return the open windows, oldest first."""
        return tuple(self._open.values())

    def close(self, skill: SkillId) -> bool:
        """Close a window because the skill's text has left the context; return whether one was open."""
        self._pages.pop(skill, None)
        return self._open.pop(skill, None) is not None

    def adopt(self, others: "Windows") -> None:
        """Add the windows of another conversation; a window that is already open is kept."""
        for window in others.all():
            self._open.setdefault(window.skill.id, window)

    def __len__(self) -> int:
        return len(self._open)


# The events a host reports to the program that embeds it. Nothing of them is sent to a server (ASK-37).


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SkillActivated:
    """A skill's text has entered a model's context.

    `binding` is the digest over every file's URI and digest, to which the
    approval is bound; it is empty for a skill without digests.
    """

    origin: Origin
    uri: str
    reference: str
    binding: str
    at: datetime

    @classmethod
    def of(cls, window: Activation) -> "SkillActivated":
        """Return the event for a skill that was loaded just now."""
        skill, binding = window.skill, binding_of(window.skill.entry.manifest)
        return cls(skill.id.origin, skill.id.uri, skill.reference, binding, window.opened_at)


HostEvent: TypeAlias = SkillActivated
"""An event that a host reports to `on_event`."""

OnEvent: TypeAlias = Callable[[HostEvent], None]


def emit(listener: OnEvent, event: HostEvent) -> None:
    """Call a listener with an event. What the listener raises is logged, and changes nothing else."""
    try:
        listener(event)
    except Exception:
        logger.exception("on_event failed for %s", type(event).__name__)
