"""What can go wrong between us and a web site.

    SourceError
    ├── SiteUnavailableError    the site cannot be reached, or says that it is in trouble
    ├── SiteTooSlowError        the answer did not come in time
    ├── SiteAnswerError         the answer breaks the rules, and nothing of it is used
    ├── ForeignHostError        the site sends us to a host that the user has not allowed
    └── UnsafeAddressError      an address, or a way to it, that no site may send us to

What a site says stands in the messages only quoted and cut short.
"""

from skillwire.errors import SourceError


class SiteUnavailableError(SourceError):
    """The site cannot be reached, or says itself that it cannot answer."""

    refusal = "server-unavailable"
    requirement = "HOST-01"


class SiteTooSlowError(SourceError):
    """The site did not answer within its deadline."""

    refusal = "too-slow"
    requirement = "LIST-18"


class SiteAnswerError(SourceError):
    """What the site answers breaks the rules of its dialect.

    `violates` is the entry of `docs/requirements.md` that forbids using it.
    """

    refusal = "invalid-answer"
    requirement = "DISC-02"

    def __init__(self, message: str, *, violates: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.violates = violates


class ForeignHostError(SourceError):
    """The site refers to another host, in a redirect or as the place of a skill; nothing was sent there."""

    refusal = "foreign-host"
    requirement = "DISC-11"

    def __init__(self, message: str, *, host: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.host = host


class UnsafeAddressError(SourceError):
    """The way there is not encrypted, or leads to an address inside a network; nothing was sent there."""

    refusal = "unsafe-address"
    requirement = "DISC-13"
