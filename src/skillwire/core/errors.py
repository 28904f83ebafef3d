"""Exceptions of skillwire.

    SkillError                      something about skills went wrong
    ├── InvalidSkillError           something that should be a skill is not valid
    │   ├── InvalidUriError         a URI no skill may have
    │   ├── FrontmatterError        SKILL.md has no readable frontmatter
    │   ├── InvalidEntryError       a published entry breaks the rules
    │   ├── InvalidArchiveError     an archive that must not be unpacked
    │   └── DuplicateSkillError     one URI, served by more than one skill
    ├── LimitError                  a skill larger than the extension allows
    ├── NotFoundError               the URI names nothing that is served
    ├── InvalidCursorError          a listing cannot be continued there
    ├── SourceError                 a source cannot be read
    ├── RunnerError                 a script could not be run
    │   ├── SandboxUnavailableError no sandbox for untrusted scripts is available
    │   └── RunnerBusyError         too many scripts run or wait already
    ├── ScriptNotFoundError         the skill has no such script
    ├── InvalidScriptArgumentsError the arguments do not fit the script
    ├── CredentialError             a credential is missing or invalid
    └── VerificationError           bytes do not match the manifest
        ├── SizeMismatchError
        ├── DigestMismatchError
        ├── UnlistedFileError
        └── FrontmatterMismatchError

Messages are safe for a peer to read: they name URIs and file names inside a
skill, never a local path. Private detail travels in `__cause__` and the log.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
EXECUTION_FAILED = -32003


class SkillError(Exception):
    """Base class of all errors of skillwire.

    `code` is the JSON-RPC code it becomes on the wire, `refusal` the stable
    name the command line, JSON output and tool results use for it; its texts
    and the requirement behind it are in `core/refusals.py`. `violates` is the
    entry of `docs/requirements.md` where that is another one. `server` is the
    label of the server whose answer caused it, where a host knows that.
    """

    code: ClassVar[int] = INTERNAL_ERROR
    refusal: ClassVar[str] = "skill-error"
    violates: str = ""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix
        self.server = ""


class InvalidSkillError(SkillError):
    """A skill is not valid."""

    refusal = "invalid-skill"


class InvalidUriError(InvalidSkillError):
    """A URI no skill, file or directory may have."""

    code = INVALID_PARAMS
    refusal = "invalid-uri"


class FrontmatterError(InvalidSkillError):
    """`SKILL.md` does not start with frontmatter that can be read.

    `line` counts from 1 in the file, so an editor can jump there. `reason`
    is the code of the finding that validation makes of this error.
    """

    refusal = "invalid-frontmatter"

    def __init__(self, message: str, *, reason: str, line: int | None = None, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.reason = reason
        self.line = line


class InvalidEntryError(InvalidSkillError):
    """An entry that breaks the extension's rules; `uri` is the requested skill, if there was one."""

    refusal = "invalid-entry"

    def __init__(self, message: str, *, uri: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.uri = uri


class InvalidArchiveError(InvalidSkillError):
    """An archive that must not be unpacked; nothing of it was written."""

    refusal = "invalid-archive"

    def __init__(self, message: str, *, requirement: str = "ARC-06") -> None:
        super().__init__(message)
        self.violates = requirement


class DuplicateSkillError(InvalidSkillError):
    """More than one skill would be served under the same URI.

    `uris` holds every such URI, so that one run shows all of them. `claims`
    maps each to the places that serve it; these may be local paths, which the
    message never contains.
    """

    refusal = "duplicate-uri"

    def __init__(
        self,
        message: str,
        *,
        uris: Sequence[str],
        claims: Mapping[str, Sequence[str]] | None = None,
        fix: str = "",
    ) -> None:
        super().__init__(message, fix=fix)
        self.uris = tuple(uris)
        self.claims = dict(claims or {})


class LimitError(SkillError):
    """A skill, file or listing larger than the extension or the policy allows."""

    refusal = "over-limit"


class NotFoundError(SkillError):
    """The source has nothing at this URI."""

    code = INVALID_PARAMS
    refusal = "not-found"

    def __init__(self, message: str, *, uri: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.uri = uri


class InvalidCursorError(SkillError):
    """The cursor does not belong to this listing."""

    code = INVALID_PARAMS
    refusal = "invalid-cursor"


class SourceError(SkillError):
    """A source cannot be read."""

    refusal = "source-unreadable"


class RunnerError(SkillError):
    """A script could not be run, or did not run to completion."""

    code = EXECUTION_FAILED
    refusal = "script-not-run"

    def __init__(self, message: str, *, script: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.script = script


class SandboxUnavailableError(RunnerError):
    """No sandbox for untrusted scripts is available on this machine, so none is run.

    `reason` is a stable identifier, `backend` names the sandbox that was tried.
    """

    refusal = "sandbox-unavailable"

    def __init__(
        self, message: str, *, reason: str = "sandbox_unavailable", backend: str = "bwrap", fix: str = ""
    ) -> None:
        super().__init__(message, fix=fix)
        self.reason = reason
        self.backend = backend


class RunnerBusyError(RunnerError):
    """The limit of running and waiting scripts, or of their memory, is reached."""

    refusal = "runner-busy"


class ScriptNotFoundError(SkillError):
    """The skill has no such script, or several match: `candidates` are their paths."""

    code = INVALID_PARAMS
    refusal = "script-not-found"

    def __init__(self, message: str, *, script: str, candidates: Sequence[str] = (), fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.script = script
        self.candidates = tuple(candidates)


class InvalidScriptArgumentsError(SkillError):
    """The arguments are not a JSON object, are too large, or do not match the script's schema."""

    code = INVALID_PARAMS
    refusal = "invalid-script-arguments"

    def __init__(self, message: str, *, script: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.script = script


class CredentialError(SkillError):
    """A credential is invalid, or missing where one is required.

    `reason` is a short, stable identifier for logs, such as `missing`, `malformed`,
    `unknown` or `expired`. The message never repeats the credential.
    """

    refusal = "not-signed-in"
    violates = "SEC-14"

    def __init__(self, message: str, *, reason: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.reason = reason


class VerificationError(SkillError):
    """The bytes do not match the entry's digest or size."""

    refusal = "verification-failed"

    def __init__(self, message: str, *, uri: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.uri = uri


class SizeMismatchError(VerificationError):
    """A file is shorter or longer than the entry says."""

    refusal = "size-mismatch"


class DigestMismatchError(VerificationError):
    """A file has the expected size and different bytes."""

    refusal = "digest-mismatch"


class UnlistedFileError(VerificationError):
    """The entry does not list the file, so it is not part of the skill."""

    refusal = "unlisted-file"


class FrontmatterMismatchError(VerificationError):
    """The file's frontmatter differs from the entry's.

    `differences` names each field that differs.
    """

    refusal = "frontmatter-mismatch"

    def __init__(self, message: str, *, uri: str, differences: Sequence[str], fix: str = "") -> None:
        super().__init__(message, uri=uri, fix=fix)
        self.differences = tuple(differences)
