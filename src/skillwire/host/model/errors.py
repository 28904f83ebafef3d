"""Errors between a host and a server, and refusals of the host.

    SourceError
    ├── NotDeclaredError        the server has not declared the capability; no request was sent
    ├── PeerError               the server answered with an error, or the connection failed
    ├── InvalidAnswerError      the response violates the protocol and is not used
    ├── TooSlowError            the response did not arrive in time
    └── UnavailableError        the server cannot be reached, or is in backoff after failures
        ├── NotSignedInError    the server requires a sign-in
        └── SessionLostError    the server was restarted; a new session can be opened
    LimitError
    ├── EndlessListingError     a listing repeats itself or exceeds its limits
    ├── MessageTooLargeError    a message exceeds the size limit of its request
    ├── ArchiveBudgetError      a server's archives together exceed the unpack budget
    └── FloodError              too many unsolicited messages
    RefusedError                the host's policy does not allow it
    ├── ConfigError             the configuration is invalid
    ├── UntrustedConfigError    the configuration found in the folder is not trusted
    ├── UnsafePlaceError        the cache or state would be stored in an unsafe folder
    ├── TamperedError           a state file was modified outside skillwire (in `sealed`)
    ├── InvalidLockError        the project's lock is invalid (in `lock`)
    ├── UnknownReferenceError   no skill has this reference
    │   ├── AmbiguousReferenceError several skills match this reference
    │   └── HiddenArchiveError  the skill is served as an archive, which this host does not unpack
    ├── DynamicDeclinedError    content without digests is not allowed
    ├── ArchivesOffError        the policy does not allow the archive to be unpacked
    ├── UnverifiedFileError     a file without a digest is not allowed
    ├── UnsafePathsError        paths that are the same file on some file systems
    ├── NotLoadedError          the skill is not loaded, so its files are not read
    ├── NotTextError            a file that is not text cannot be shown
    ├── NoSuchPageError         the text has no such page
    ├── InvalidArgumentsError   the arguments are not valid for the tool or skill
    ├── ArgumentsNeededError    required arguments of the skill are missing
    ├── TurnedOffError          it is turned off in the user's settings
    ├── ManualOnlyError         the user's settings allow only people to load it
    ├── NestedSkillError        the skill is nested in another one, which is not allowed
    ├── ScriptsOffError         scripts are turned off, here and on servers
    ├── VetoedError             the provenance check vetoes the content
    ├── CrossOriginError        a skill of one server would cause a read on another
    └── ApprovalError           the user has not approved it
        ├── ApprovalRequiredError   the user cannot be asked
        ├── ApprovalDeniedError     the user denied it
        ├── SkillChangedError       the approval was for other content
        ├── KeepsChangingError      the skill changes too often to be approved
        ├── PromptLimitError        the server has caused too many approval prompts
        ├── NotLockedError          the frozen lock does not contain exactly this
        └── LockUntrustedError      the lock changed and was not reviewed

Messages contain a server's text only quoted: short, on one line, and escaped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from skillwire.core import Finding, LimitError, SkillArgument, SkillError, SourceError, visible
from skillwire.core.refusals import REFUSALS, RefusalKind


class NotDeclaredError(SourceError):
    """The server has not declared what the call needs, so no request was sent."""

    refusal = "not-declared"

    def __init__(self, message: str, *, violates: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.violates = violates


class PeerError(SourceError):
    """A request was answered with an error, or the connection ended before the response.

    `peer_code` is the JSON-RPC error code, so that a caller can distinguish
    an unknown method from a failure of the server.
    """

    refusal = "server-error"

    def __init__(self, message: str, *, method: str, peer_code: int, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.method = method
        self.peer_code = peer_code


class InvalidAnswerError(SourceError):
    """A server's response violates the protocol or the extension.

    `violates` is the violated requirement of `docs/requirements.md`.
    """

    refusal = "invalid-answer"

    def __init__(self, message: str, *, violates: str = "SDK-03", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.violates = violates


class TooSlowError(SourceError):
    """A server did not answer within its timeout."""

    refusal = "too-slow"


class UnavailableError(SourceError):
    """A server cannot be reached, or the host is backing off after repeated failures.

    `retry_in` is the number of seconds until the next attempt; None if there
    is no automatic attempt.
    """

    refusal = "server-unavailable"

    def __init__(self, message: str, *, retry_in: float | None = None, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.retry_in = retry_in


class NotSignedInError(UnavailableError):
    """The server requires a sign-in, or does not accept the user who signed in."""

    refusal = "not-signed-in"


class SessionLostError(UnavailableError):
    """The server was restarted and does not know this session; a new one can be opened immediately."""


class EndlessListingError(LimitError):
    """A listing repeats itself, or has more pages, entries or bytes than the caller allows."""

    refusal = "endless-listing"


class MessageTooLargeError(LimitError):
    """A server sent a message that exceeds the size limit of its request; it was not parsed."""

    refusal = "message-too-large"


class FloodError(LimitError):
    """A server sent too many unsolicited messages, so the connection was closed."""

    refusal = "flooding"


class ArchiveBudgetError(LimitError):
    """The archives of one server together exceed the unpack budget of this host."""

    refusal = "archive-budget"


class RefusedError(SkillError):
    """The host's policy does not allow it. Nothing was shown to the model.

    `reference` is the skill, server or file concerned, if any.
    """

    refusal = "refused"

    def __init__(self, message: str, *, reference: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.reference = reference


class ConfigError(RefusedError):
    """The configuration is invalid; the message names the part."""

    refusal = "invalid-config"


class UntrustedConfigError(RefusedError):
    """The current folder has a configuration that the user has not trusted."""

    refusal = "untrusted-config"


class UnsafePlaceError(RefusedError):
    """The cache or the user's state would be stored where skills are discovered or tools may write."""

    refusal = "unsafe-place"


class UnknownReferenceError(RefusedError):
    """No skill has this reference; `candidates` are similar references."""

    refusal = "unknown-reference"

    def __init__(
        self, message: str, *, reference: str = "", candidates: Sequence[str] = (), fix: str = ""
    ) -> None:
        super().__init__(message, reference=reference, fix=fix)
        self.candidates = tuple(candidates)


class AmbiguousReferenceError(UnknownReferenceError):
    """Several skills match the reference; `candidates` are their references."""

    refusal = "ambiguous-reference"


class HiddenArchiveError(UnknownReferenceError):
    """The skill is served only as an archive, which this host's policy does not allow to be unpacked."""

    refusal = "archives-off"


class DynamicDeclinedError(RefusedError):
    """The skill's content is generated when it is read, so it cannot be verified against a listing."""

    refusal = "dynamic-declined"


class ArchivesOffError(RefusedError):
    """The skill is served as an archive, which this host's policy does not allow to be unpacked."""

    refusal = "archives-off"


class UnverifiedFileError(RefusedError):
    """The file has no digest, and the policy does not allow such files."""

    refusal = "unverified-file"


class UnsafePathsError(RefusedError):
    """Two of the skill's paths are the same file on some file systems."""

    refusal = "unsafe-paths"


class NotLoadedError(RefusedError):
    """The skill is not loaded, so its files cannot be read."""

    refusal = "not-loaded"


class NotTextError(RefusedError):
    """The file is not text."""

    refusal = "not-text"


class NoSuchPageError(RefusedError):
    """The text has no such page."""

    refusal = "no-such-page"


class InvalidArgumentsError(RefusedError):
    """The arguments are not valid for the tool or the skill."""

    refusal = "invalid-arguments"


class ArgumentsNeededError(RefusedError):
    """The skill requires arguments, and required ones are missing.

    `arguments` are the missing ones as the server declares them; a caller may ask the user for them.
    """

    refusal = "arguments-needed"

    def __init__(
        self, message: str, *, reference: str = "", fix: str = "", arguments: Iterable[SkillArgument] = ()
    ) -> None:
        super().__init__(message, reference=reference, fix=fix)
        self.arguments = tuple(arguments)


class TurnedOffError(RefusedError):
    """A skill, or all skills of a server, are turned off in the user's settings."""

    refusal = "turned-off"


class ManualOnlyError(RefusedError):
    """The user's settings allow only people to load this skill."""

    refusal = "manual-only"


class NestedSkillError(RefusedError):
    """The skill is nested in another skill, and this host uses only top-level skills."""

    refusal = "nested-skill"


class ScriptsOffError(RefusedError):
    """Scripts are turned off on this host, so none is run here or on a server."""

    refusal = "scripts-off"


class VetoedError(RefusedError):
    """The provenance check vetoes this content."""

    refusal = "vetoed"


class CrossOriginError(RefusedError):
    """A skill of one server would cause a read on another, and the user has not allowed that."""

    refusal = "cross-origin"


class ApprovalError(RefusedError):
    """The user has not approved exactly this."""

    refusal = "not-approved"


class ApprovalRequiredError(ApprovalError):
    """The user's approval is needed, and the user cannot be asked."""

    refusal = "approval-required"


class ApprovalDeniedError(ApprovalError):
    """The user was asked and denied it."""

    refusal = "approval-denied"


class SkillChangedError(ApprovalError):
    """The skill is no longer what was approved; the new content needs a new approval."""

    refusal = "skill-changed"


class KeepsChangingError(ApprovalError):
    """The skill changed so often that the user is not asked about it any more."""

    refusal = "keeps-changing"


class PromptLimitError(ApprovalError):
    """The server has reached its limit of approval prompts."""

    refusal = "too-many-prompts"


class NotLockedError(ApprovalError):
    """The lock is frozen, and does not contain exactly this skill and grant."""

    refusal = "not-in-lock"


class LockUntrustedError(ApprovalError):
    """The lock would allow it, but was changed outside skillwire and has not been reviewed since."""

    refusal = "lock-untrusted"


# `Refusal`: why something is hidden, renamed, quarantined or refused, as data.


RefusalJson: TypeAlias = dict[str, object]

_MOST_FINDINGS = 10
_LONGEST = 1_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal: its kind, its subject, and the detail.

    `violates` and `fix` replace the requirement and remedy of the kind where
    more specific ones are known. Every text is safe to show, even if a server
    wrote it: it is cut to a bounded length, put on one line, and its hidden
    characters are escaped.
    """

    code: str
    subject: str = ""
    detail: str = ""
    violates: str = ""
    fix: str = ""
    candidates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("subject", "detail", "fix"):
            object.__setattr__(self, name, visible(getattr(self, name), most=_LONGEST))
        shown = tuple(visible(candidate, most=_LONGEST) for candidate in self.candidates)
        object.__setattr__(self, "candidates", shown)

    @classmethod
    def of(cls, error: SkillError, subject: str = "") -> "Refusal":
        """Return the refusal for an exception."""
        return cls(
            error.refusal,
            subject or getattr(error, "reference", "") or getattr(error, "uri", ""),
            str(error),
            error.violates,
            error.fix,
            getattr(error, "candidates", ()),
        )

    @classmethod
    def of_findings(cls, findings: Iterable[Finding], subject: str) -> "Refusal":
        """Return why an entry is not used: each rule it breaks, and the remedy of the first."""
        some = list(findings)[:_MOST_FINDINGS]
        words = "; ".join(f"{finding.message} [{finding.code}]" for finding in some)
        first = some[0] if some else None
        # The code of a finding may be a refusal code of its own.
        code = first.code if first is not None and first.code in REFUSALS else "invalid-entry"
        return cls(code, subject, words, first.rule if first else "", first.fix if first else "")

    @property
    def kind(self) -> RefusalKind:
        return REFUSALS[self.code]

    @property
    def sentence(self) -> str:
        return self.kind.sentence

    @property
    def requirement(self) -> str:
        return self.violates or self.kind.requirement

    @property
    def remedy(self) -> str:
        return self.fix or self.kind.remedy

    def to_json(self) -> RefusalJson:
        """Return the refusal as data a program, or a model, can act on."""
        found: RefusalJson = {
            "code": self.code,
            "sentence": self.sentence,
            "subject": self.subject,
            "detail": self.detail,
            "requirement": self.requirement,
            "remedy": self.remedy,
        }
        return {**found, "candidates": list(self.candidates)} if self.candidates else found

    def __str__(self) -> str:
        about = f"{self.subject}: " if self.subject else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{about}{self.sentence}{detail} To do: {self.remedy}. [{self.code}, {self.requirement}]"
