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
    ├── TamperedError           a state file was modified outside skillwire (in `seal`)
    ├── InvalidLockError        the project's lock is invalid (in `lockfile`)
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

from skillwire.core import LimitError, SkillArgument, SkillError, SourceError


class NotDeclaredError(SourceError):
    """The server has not declared what the call needs, so no request was sent."""

    refusal = "not-declared"
    requirement = "NEG-05"

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
    requirement = "SDK-03"

    def __init__(self, message: str, *, violates: str = "SDK-03", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.violates = violates


class TooSlowError(SourceError):
    """A server did not answer within its timeout."""

    refusal = "too-slow"
    requirement = "LIST-18"


class UnavailableError(SourceError):
    """A server cannot be reached, or the host is backing off after repeated failures.

    `retry_in` is the number of seconds until the next attempt; None if there
    is no automatic attempt.
    """

    refusal = "server-unavailable"
    requirement = "HOST-01"

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
    requirement = "LIST-18"


class MessageTooLargeError(LimitError):
    """A server sent a message that exceeds the size limit of its request; it was not parsed."""

    refusal = "message-too-large"
    requirement = "LIM-06"


class FloodError(LimitError):
    """A server sent too many unsolicited messages, so the connection was closed."""

    refusal = "flooding"
    requirement = "LIST-18"


class ArchiveBudgetError(LimitError):
    """The archives of one server together exceed the unpack budget of this host."""

    refusal = "archive-budget"
    requirement = "ARC-11"


class RefusedError(SkillError):
    """The host's policy does not allow it. Nothing was shown to the model.

    `reference` is the skill, server or file concerned, if any.
    """

    refusal = "refused"
    requirement = "SEC-11"

    def __init__(self, message: str, *, reference: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.reference = reference


class ConfigError(RefusedError):
    """The configuration is invalid; the message names the part."""

    refusal = "invalid-config"
    requirement = "NAME-05"


class UntrustedConfigError(RefusedError):
    """The current folder has a configuration that the user has not trusted."""

    refusal = "untrusted-config"
    requirement = "SEC-16"


class UnsafePlaceError(RefusedError):
    """The cache or the user's state would be stored where skills are discovered or tools may write."""

    refusal = "unsafe-place"
    requirement = "CACHE-04"


class UnknownReferenceError(RefusedError):
    """No skill has this reference; `candidates` are similar references."""

    refusal = "unknown-reference"
    requirement = "NAME-04"

    def __init__(
        self, message: str, *, reference: str = "", candidates: Sequence[str] = (), fix: str = ""
    ) -> None:
        super().__init__(message, reference=reference, fix=fix)
        self.candidates = tuple(candidates)


class AmbiguousReferenceError(UnknownReferenceError):
    """Several skills match the reference; `candidates` are their references."""

    refusal = "ambiguous-reference"
    requirement = "NAME-08"


class HiddenArchiveError(UnknownReferenceError):
    """The skill is served only as an archive, which this host's policy does not allow to be unpacked."""

    refusal = "archives-off"
    requirement = "ARC-18"


class DynamicDeclinedError(RefusedError):
    """The skill's content is generated when it is read, so it cannot be verified against a listing."""

    refusal = "dynamic-declined"
    requirement = "APPR-04"


class ArchivesOffError(RefusedError):
    """The skill is served as an archive, which this host's policy does not allow to be unpacked."""

    refusal = "archives-off"
    requirement = "ARC-18"


class UnverifiedFileError(RefusedError):
    """The file has no digest, and the policy does not allow such files."""

    refusal = "unverified-file"
    requirement = "IDX-10"


class UnsafePathsError(RefusedError):
    """Two of the skill's paths are the same file on some file systems."""

    refusal = "unsafe-paths"
    requirement = "CACHE-08"


class NotLoadedError(RefusedError):
    """The skill is not loaded, so its files cannot be read."""

    refusal = "not-loaded"
    requirement = "READ-05"


class NotTextError(RefusedError):
    """The file is not text."""

    refusal = "not-text"
    requirement = "SEC-01"


class NoSuchPageError(RefusedError):
    """The text has no such page."""

    refusal = "no-such-page"
    requirement = "HOST-14"


class InvalidArgumentsError(RefusedError):
    """The arguments are not valid for the tool or the skill."""

    refusal = "invalid-arguments"
    requirement = "HOST-06"


class ArgumentsNeededError(RefusedError):
    """The skill requires arguments, and required ones are missing.

    `arguments` are the missing ones as the server declares them; a caller may ask the user for them.
    """

    refusal = "arguments-needed"
    requirement = "P2076-04"

    def __init__(
        self, message: str, *, reference: str = "", fix: str = "", arguments: Iterable[SkillArgument] = ()
    ) -> None:
        super().__init__(message, reference=reference, fix=fix)
        self.arguments = tuple(arguments)


class TurnedOffError(RefusedError):
    """A skill, or all skills of a server, are turned off in the user's settings."""

    refusal = "turned-off"
    requirement = "HOST-05"


class ManualOnlyError(RefusedError):
    """The user's settings allow only people to load this skill."""

    refusal = "manual-only"
    requirement = "HOST-05"


class NestedSkillError(RefusedError):
    """The skill is nested in another skill, and this host uses only top-level skills."""

    refusal = "nested-skill"
    requirement = "ASK-02"


class ScriptsOffError(RefusedError):
    """Scripts are turned off on this host, so none is run here or on a server."""

    refusal = "scripts-off"
    requirement = "EXEC-13"


class VetoedError(RefusedError):
    """The provenance check vetoes this content."""

    refusal = "vetoed"
    requirement = "ASK-05"


class CrossOriginError(RefusedError):
    """A skill of one server would cause a read on another, and the user has not allowed that."""

    refusal = "cross-origin"
    requirement = "SEC-09"


class ApprovalError(RefusedError):
    """The user has not approved exactly this."""

    refusal = "not-approved"
    requirement = "SEC-12"


class ApprovalRequiredError(ApprovalError):
    """The user's approval is needed, and the user cannot be asked."""

    refusal = "approval-required"
    requirement = "APPR-10"


class ApprovalDeniedError(ApprovalError):
    """The user was asked and denied it."""

    refusal = "approval-denied"


class SkillChangedError(ApprovalError):
    """The skill is no longer what was approved; the new content needs a new approval."""

    refusal = "skill-changed"
    requirement = "APPR-02"


class KeepsChangingError(ApprovalError):
    """The skill changed so often that the user is not asked about it any more."""

    refusal = "keeps-changing"
    requirement = "APPR-02"


class PromptLimitError(ApprovalError):
    """The server has reached its limit of approval prompts."""

    refusal = "too-many-prompts"
    requirement = "SEC-12"


class NotLockedError(ApprovalError):
    """The lock is frozen, and does not contain exactly this skill and grant."""

    refusal = "not-in-lock"
    requirement = "APPR-10"


class LockUntrustedError(ApprovalError):
    """The lock would allow it, but was changed outside skillwire and has not been reviewed since."""

    refusal = "lock-untrusted"
    requirement = "APPR-10"
