"""Where the tokens for a server are kept: one file for each origin, readable by this user alone."""

import logging
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken
from pydantic import BaseModel, ValidationError

from skillwire.host.origin import Origin
from skillwire.host.state.vault import make_folder, read_private, replace

FORMAT = 1
MAX_TOKEN_BYTES = 256 * 1024

logger = logging.getLogger(__name__)


class Kept(BaseModel):
    """What a file holds.

    Without the time of expiry and the server's metadata, tokens could not be
    refreshed after a restart; without the port, no redirect would be accepted.
    """

    format: int = FORMAT
    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    expires_at: float | None = None
    metadata: OAuthMetadata | None = None
    port: int | None = None


class FileTokenStorage:
    """The tokens for one origin, as the SDK's OAuth client asks for them.

    The file is named after the origin's fingerprint: a label that is given to
    another endpoint finds no tokens. Nothing of what is kept is ever shown.
    """

    def __init__(self, directory: Path, origin: Origin) -> None:
        self._path = directory / f"{origin.fingerprint.removeprefix('sha256:')}.json"
        self._lock = anyio.Lock()

    def __repr__(self) -> str:
        return "FileTokenStorage(…)"

    async def kept(self) -> Kept:
        """Return everything the file holds; nothing when it is not there, not ours, or not readable."""
        return await anyio.to_thread.run_sync(self._read)

    async def get_tokens(self) -> OAuthToken | None:
        return (await self.kept()).tokens

    async def set_tokens(self, tokens: OAuthToken, *, metadata: OAuthMetadata | None = None) -> None:
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self._keep(tokens=tokens, expires_at=expires_at, metadata=metadata)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return (await self.kept()).client

    async def set_client_info(
        self, client_info: OAuthClientInformationFull, *, port: int | None = None
    ) -> None:
        await self._keep(client=client_info, port=port)

    async def forget(self) -> None:
        """Remove everything, as when the user removes the server."""
        async with self._lock:
            await anyio.to_thread.run_sync(lambda: self._path.unlink(missing_ok=True))

    async def _keep(self, **changes: Any) -> None:
        """Change some of what the file holds.

        Raises:
            OSError: It cannot be written; what it held is still there.
        """
        async with self._lock:
            kept = await self.kept()
            await anyio.to_thread.run_sync(self._write, kept.model_copy(update=changes))

    def _read(self) -> Kept:
        try:
            data = read_private(self._path, most=MAX_TOKEN_BYTES, secret=True)
            kept = Kept() if data is None else Kept.model_validate_json(data)
            return kept if kept.format == FORMAT else Kept()
        except ValidationError:
            # The error would show what it found.
            logger.warning("the file with a server's tokens is not readable; signing in is needed")
            return Kept()
        except (OSError, ValueError) as error:
            logger.warning("the file with a server's tokens is not used: %s", error)
            return Kept()

    def _write(self, kept: Kept) -> None:
        make_folder(self._path.parent)
        replace(self._path, kept.model_dump_json(exclude_none=True).encode())
