"""What can go wrong between a host and a server, and what a host refuses.

    SourceError
    ├── NotDeclaredError        the server never offered the method; nothing was sent
    ├── PeerError               the server, or the connection to it, answered with an error
    ├── InvalidAnswerError      the answer breaks the rules, and nothing of it is used
    ├── TooSlowError            the answer did not come in time
    └── UnavailableError        the server cannot be reached, or is left alone for a while
        ├── NotSignedInError    it wants to know who asks
        └── SessionLostError    it was started anew, and another session can be had
    LimitError
    ├── EndlessListingError     a listing that has no end, or is too large to go on with
    ├── MessageTooLargeError    a message larger than its request allows
    ├── ArchiveBudgetError      a server's archives unpack to more than all of them may
    └── FloodError              more messages than anyone asked for
    RefusedError                the host's own rules say no
    ├── ConfigError             the configuration cannot be used
    ├── UntrustedConfigError    a configuration that was found, and that nobody has agreed to
    ├── UnsafePlaceError        the cache or state would lie where it must not
    ├── TamperedError           a file of the state was changed by something else (in `seal`)
    ├── InvalidLockError        the project's lock cannot be used (in `lockfile`)
    ├── UnknownReferenceError   no skill has this reference
    ├── AmbiguousReferenceError several skills do
    ├── DynamicDeclinedError    content without digests is not wanted here
    ├── ArchivesOffError        this host does not unpack such archives, or none of this server
    ├── UnverifiedFileError     a file nobody promises anything about is not wanted here
    ├── UnsafePathsError        paths that some file system takes for one
    ├── NotLoadedError          the skill has not been loaded, so its files are not read
    ├── NotTextError            a file that is no text cannot be shown
    ├── NoSuchPageError         the text is shorter than that
    ├── InvalidArgumentsError   a tool was called with something else than it takes
    ├── ArgumentsNeededError    the server gives the skill out only with arguments
    ├── TurnedOffError          the user's settings say that it is not used
    ├── ManualOnlyError         the user's settings leave it to people
    ├── NestedSkillError        a skill inside another one, and such are not wanted
    ├── ScriptsOffError         this host runs no scripts, and asks no server to
    ├── VetoedError             a provenance check says no
    ├── CrossOriginError        one server's skill would reach into another server
    └── ApprovalError           the user has not agreed
        ├── ApprovalRequiredError   nobody could be asked
        ├── ApprovalDeniedError     the answer was no
        ├── SkillChangedError       the approval was for other content
        ├── KeepsChangingError      it changes faster than anyone can read
        ├── PromptLimitError        the server has caused too many questions
        ├── NotLockedError          the frozen lock does not name exactly this
        └── LockUntrustedError      the lock changed and nobody has looked

The messages hold a server's words only quoted: short, on one line, and inert.
"""

from collections.abc import Sequence

from skillwire.errors import LimitError, SkillError, SourceError


class NotDeclaredError(SourceError):
    """The server has not declared what the call needs, so no request was sent."""

    refusal = "not-declared"
    requirement = "NEG-05"

    def __init__(self, message: str, *, violates: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.violates = violates


class PeerError(SourceError):
    """A request was answered with an error, or the connection ended before the answer.

    `peer_code` is the JSON-RPC code that came back, so that a caller can tell
    a method the server does not know from a server that is in trouble.
    """

    refusal = "server-error"

    def __init__(self, message: str, *, method: str, peer_code: int, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.method = method
        self.peer_code = peer_code


class InvalidAnswerError(SourceError):
    """A server's answer breaks the rules of the protocol or the extension.

    `violates` is the entry of `docs/requirements.md` that forbids using it.
    """

    refusal = "invalid-answer"
    requirement = "SDK-03"

    def __init__(self, message: str, *, violates: str = "SDK-03", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.violates = violates


class TooSlowError(SourceError):
    """A server did not answer within its deadline."""

    refusal = "too-slow"
    requirement = "LIST-18"


class UnavailableError(SourceError):
    """A server cannot be reached, or failed so often that it is left alone for a while.

    `retry_in` is the number of seconds until the next attempt is made; None
    when none will be made unless someone asks for it.
    """

    refusal = "server-unavailable"
    requirement = "HOST-01"

    def __init__(self, message: str, *, retry_in: float | None = None, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.retry_in = retry_in


class NotSignedInError(UnavailableError):
    """The server turns requests away until someone signs in, or may not be used by whoever did."""

    refusal = "not-signed-in"


class SessionLostError(UnavailableError):
    """The server was started anew and does not know this session; another one can be had at once."""


class EndlessListingError(LimitError):
    """A listing that repeats itself, or has more pages, entries or bytes than the caller allows."""

    refusal = "endless-listing"
    requirement = "LIST-18"


class MessageTooLargeError(LimitError):
    """A server sent a message larger than any answer to its request may be; it was not parsed."""

    refusal = "message-too-large"
    requirement = "LIM-06"


class FloodError(LimitError):
    """A server sent so many messages nobody asked for that the connection was closed."""

    refusal = "flooding"
    requirement = "LIST-18"


class ArchiveBudgetError(LimitError):
    """All archives of one server together would unpack to more than this host allows."""

    refusal = "archive-budget"
    requirement = "ARC-11"


class RefusedError(SkillError):
    """The host's own rules say no. Nothing was given to the model.

    `reference` is the skill, server or file it is about, where there is one.
    """

    refusal = "refused"
    requirement = "SEC-11"

    def __init__(self, message: str, *, reference: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.reference = reference


class ConfigError(RefusedError):
    """A configuration that cannot be used; the message says which part."""

    refusal = "invalid-config"
    requirement = "NAME-05"


class UntrustedConfigError(RefusedError):
    """A configuration lies in the folder at hand, and the user has not agreed to use it."""

    refusal = "untrusted-config"
    requirement = "SEC-16"


class UnsafePlaceError(RefusedError):
    """The cache or the user's state would lie where skills are discovered or tools may write."""

    refusal = "unsafe-place"
    requirement = "CACHE-04"


class UnknownReferenceError(RefusedError):
    """No skill has this reference; `candidates` are those that look like it."""

    refusal = "unknown-reference"
    requirement = "NAME-04"

    def __init__(
        self, message: str, *, reference: str = "", candidates: Sequence[str] = (), fix: str = ""
    ) -> None:
        super().__init__(message, reference=reference, fix=fix)
        self.candidates = tuple(candidates)


class AmbiguousReferenceError(UnknownReferenceError):
    """Several skills could be meant; `candidates` are their references."""

    refusal = "ambiguous-reference"
    requirement = "NAME-08"


class DynamicDeclinedError(RefusedError):
    """The skill's content is made when it is read, so nothing could be held against a listing."""

    refusal = "dynamic-declined"
    requirement = "APPR-04"


class ArchivesOffError(RefusedError):
    """The skill comes as an archive, and this host's policy does not unpack it."""

    refusal = "archives-off"
    requirement = "ARC-18"


class UnverifiedFileError(RefusedError):
    """The server promises nothing about the file, and such files are not wanted."""

    refusal = "unverified-file"
    requirement = "IDX-10"


class UnsafePathsError(RefusedError):
    """The skill's files have paths that some file system would take for one."""

    refusal = "unsafe-paths"
    requirement = "CACHE-08"


class NotLoadedError(RefusedError):
    """The skill is not loaded, so none of its files is read."""

    refusal = "not-loaded"
    requirement = "READ-05"


class NotTextError(RefusedError):
    """The file is no text a model could read."""

    refusal = "not-text"
    requirement = "SEC-01"


class NoSuchPageError(RefusedError):
    """The text has fewer pages."""

    refusal = "no-such-page"
    requirement = "HOST-14"


class InvalidArgumentsError(RefusedError):
    """A tool for the model was called with arguments it does not take."""

    refusal = "invalid-arguments"
    requirement = "HOST-06"


class ArgumentsNeededError(RefusedError):
    """The server gives the skill out only with arguments, which this host does not make up."""

    refusal = "arguments-needed"
    requirement = "P2076-04"


class TurnedOffError(RefusedError):
    """The user's settings say that a skill, or a server's skills, are not used."""

    refusal = "turned-off"
    requirement = "HOST-05"


class ManualOnlyError(RefusedError):
    """The user's settings say that only a person loads this skill."""

    refusal = "manual-only"
    requirement = "HOST-05"


class NestedSkillError(RefusedError):
    """The skill lies inside another one, and this host uses only those at the top."""

    refusal = "nested-skill"
    requirement = "ASK-02"


class ScriptsOffError(RefusedError):
    """This host was not told that scripts may be run, so it runs none and asks no server to."""

    refusal = "scripts-off"
    requirement = "EXEC-13"


class VetoedError(RefusedError):
    """Whoever the host asks about provenance says that this content must not be loaded."""

    refusal = "vetoed"
    requirement = "ASK-05"


class CrossOriginError(RefusedError):
    """A skill of one server would cause a read on another, and the user has not allowed that."""

    refusal = "cross-origin"
    requirement = "SEC-09"


class ApprovalError(RefusedError):
    """The user has not agreed to exactly this."""

    refusal = "not-approved"
    requirement = "SEC-12"


class ApprovalRequiredError(ApprovalError):
    """The user would have to be asked, and nobody can be."""

    refusal = "approval-required"
    requirement = "APPR-10"


class ApprovalDeniedError(ApprovalError):
    """The user was asked and said no."""

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
    """The server has caused as many questions as one server may."""

    refusal = "too-many-prompts"
    requirement = "SEC-12"


class NotLockedError(ApprovalError):
    """The lock is frozen, and does not hold exactly this skill and grant."""

    refusal = "not-in-lock"
    requirement = "APPR-10"


class LockUntrustedError(ApprovalError):
    """The lock would allow it, but changed outside skillwire and nobody has looked at it since."""

    refusal = "lock-untrusted"
    requirement = "APPR-10"
