"""How much of each text MCP clients show their models, as observed; see docs/agents/bridge.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skillwire.host.use.definitions import HEADER_BYTES


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How many bytes of UTF-8 a client shows: of a tool's result, of instructions, of a tool's description.

    Longer results are cut, or stored in a file.
    """

    result: int
    instructions: int
    description: int

    @property
    def page(self) -> int:
        """How many bytes of a skill's text fit into a result, below the host's own lines about it."""
        return self.result - HEADER_BYTES


ANY_CLIENT: Final = ""
CLIENTS: Final[Mapping[str, ClientLimits]] = {
    ANY_CLIENT: ClientLimits(11_900, 2_048, 2_048),
    "claude-code": ClientLimits(48_000, 2_048, 2_048),
    # Depends on the model: 11,900 for one whose name it does not know.
    "codex-mcp-client": ClientLimits(11_900, 3_000, 3_000),
    "gemini-cli-mcp-client": ClientLimits(38_000, 6_000, 3_000),
    "opencode": ClientLimits(48_000, 6_000, 3_000),
}
"""The limits by the name that a client gives in `clientInfo`, and those that are safe for any client."""


def known_client(name: object) -> str:
    """Return the key of a client in `CLIENTS`."""
    return name if isinstance(name, str) and name in CLIENTS else ANY_CLIENT
