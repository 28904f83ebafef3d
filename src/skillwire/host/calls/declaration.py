"""What a server declared about skills when the connection was made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.client import Client

from skillwire.host.failures import NotDeclaredError
from skillwire.wire.core import EXTENSION, READ_DIRECTORY


@dataclass(frozen=True, slots=True)
class Declaration:
    """A server's settings for the extension.

    `settings` holds them as they came, with those this version does not know.
    """

    directory_read: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


def declared(client: Client) -> Declaration | None:
    """Return what the server declared; None when it did not declare the extension.

    Revision 2026-07-28 declares in `server/discover` and earlier ones in
    `initialize`; the client keeps both in one place. A client that was told
    its revision without asking the server has seen no declaration at all.
    """
    settings = (client.server_capabilities.extensions or {}).get(EXTENSION)
    if settings is None:
        return None
    return Declaration(settings.get("directoryRead") is True, settings)


def require_skills(client: Client, method: str) -> Declaration:
    """Return what the server declared, which commits it to answering `method`.

    Raises:
        NotDeclaredError: It did not declare the extension.
    """
    declaration = declared(client)
    if declaration is None:
        raise NotDeclaredError(
            f"{method} was not sent: the server has not declared {EXTENSION}",
            violates="NEG-05",
            fix='let the client ask the server what it offers (mode "auto" or "legacy")',
        )
    return declaration


def require_directory_read(client: Client) -> None:
    """Check that the server declared `directoryRead`, and as exactly true.

    Raises:
        NotDeclaredError: It did not.
    """
    if not require_skills(client, READ_DIRECTORY).directory_read:
        raise NotDeclaredError(
            f"{READ_DIRECTORY} was not sent: the server has not declared directoryRead",
            violates="NEG-06",
            fix="take the files from the skill's manifest",
        )
