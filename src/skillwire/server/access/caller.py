"""`Caller`: who sent a request, as far as a credential proves it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever holds a credential that was found good.

    `name` is for logs, rate limits and sessions: two callers with the same name
    are one. `token` is the name of a token of ours, `subject` and `issuer` come
    from a signed one; what a credential does not tell is empty. `expires` is
    the POSIX time after which the credential proves nothing any more.
    """

    name: str
    token: str = ""
    subject: str = ""
    issuer: str = ""
    client: str = ""
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    expires: float | None = None

    @property
    def is_anonymous(self) -> bool:
        """Whether no credential was shown."""
        return not self.token and not self.subject


ANONYMOUS: Final = Caller("anonymous")
