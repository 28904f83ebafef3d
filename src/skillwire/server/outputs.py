"""`OutputShelf`: the files that scripts left, kept in memory for a while so that they can be read.

Nothing here is written to disk, unpacked or looked into. With several
processes behind one address, what a script left is in the one that ran it.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import anyio
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import ServerRequestContext

from skillwire.core.media import media_type_of
from skillwire.runner import OutputFile
from skillwire.server.answers import FileContent
from skillwire.server.changes import connection_of

OUTPUT_SCHEME: Final = "skill-output"

_MIB = 1024 * 1024
_TIDY_SECONDS = 30.0

Caller: TypeAlias = tuple[str | None, ...]
"""Who asks, as far as that can be known."""


def caller_of(context: ServerRequestContext[Any, Any]) -> Caller:
    """Return who sends a request: the session it belongs to, and whose token came with it.

    Only sessions over HTTP have an id, and only a server that asks for
    authorization sees tokens. Otherwise all callers look the same: on a pipe
    there is but one, and over HTTP from revision 2026-07-28 on there are no
    sessions, so that whoever knows the URI of an output may read it.
    """
    token = get_access_token()
    principal = (None,) if token is None else principal_components(token)
    return connection_of(context).session_id, *principal


@dataclass(frozen=True, slots=True)
class Quota:
    """How long outputs are kept, how much of one run, and how much of all together."""

    seconds: float = 15 * 60
    run_bytes: int = 64 * _MIB
    run_files: int = 256
    all_bytes: int = 256 * _MIB
    all_files: int = 1000


@dataclass(slots=True)
class _Run:
    """What one run left, by URI, for whom, and when it goes."""

    files: dict[str, FileContent]
    size: int
    caller: Caller
    ends: float


class OutputShelf:
    """Files of recent runs, by `skill-output://` URIs that nobody can guess.

    The oldest runs make room for new ones. Who did not run a script finds
    nothing here, and neither does who comes too late.
    """

    def __init__(self, quota: Quota | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.quota = quota or Quota()
        self._clock = clock
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._size = 0
        self._count = 0

    def put(self, files: Sequence[OutputFile], caller: Caller) -> dict[str, str]:
        """Keep the files of one run, and return their URIs by path; what is too much is not kept."""
        self.tidy()
        # In lower case, because some clients take this part for the name of a host.
        key, room = secrets.token_hex(16), min(self.quota.run_bytes, self.quota.all_bytes)
        most = min(self.quota.run_files, self.quota.all_files)
        run = _Run({}, 0, caller, self._clock() + self.quota.seconds)
        uris: dict[str, str] = {}
        for file in files:
            if len(uris) == most or run.size + len(file.content) > room:
                continue
            uri = uris[file.path] = f"{OUTPUT_SCHEME}://{key}/{quote(file.path, errors='surrogateescape')}"
            run.files[uri] = FileContent(uri, media_type_of(file.path), file.content, "", is_private=True)
            run.size += len(file.content)
        if run.files:
            self._runs[key] = run
            self._size += run.size
            self._count += len(run.files)
            while self._size > self.quota.all_bytes or self._count > self.quota.all_files:
                self._drop(next(iter(self._runs)))
        return uris

    def read(self, uri: str, caller: Caller) -> FileContent | None:
        """Return an output of a run of this caller; None for anything else, whatever the reason."""
        scheme, _, rest = uri.partition("://")
        run = self._runs.get(rest.partition("/")[0]) if scheme == OUTPUT_SCHEME else None
        if run is None or run.caller != caller or run.ends <= self._clock():
            return None
        return run.files.get(uri)

    def tidy(self) -> None:
        """Forget what has been here long enough."""
        now = self._clock()
        for key in [key for key, run in self._runs.items() if run.ends <= now]:
            self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        self._runs.clear()
        self._size = self._count = 0

    async def keep_tidy(self) -> None:
        """Give back, for as long as this runs, the memory of what nobody can read any more."""
        while True:
            await anyio.sleep(min(_TIDY_SECONDS, self.quota.seconds))
            self.tidy()

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self._size

    def __len__(self) -> int:
        return self._count

    def _drop(self, key: str) -> None:
        run = self._runs.pop(key)
        self._size -= run.size
        self._count -= len(run.files)
