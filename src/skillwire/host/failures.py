"""What can go wrong between a host and a server.

    SourceError
    ├── NotDeclaredError        the server never offered the method; nothing was sent
    ├── PeerError               the server, or the connection to it, answered with an error
    └── InvalidAnswerError      the answer breaks the rules, and nothing of it is used
    LimitError
    └── EndlessListingError     a listing that has no end, or is too large to go on with

The messages hold a server's words only quoted: short, on one line, and inert.
"""

from skillwire.errors import LimitError, SourceError


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


class EndlessListingError(LimitError):
    """A listing that repeats itself, or has more pages, entries or bytes than the caller allows."""

    refusal = "endless-listing"
    requirement = "LIST-18"
