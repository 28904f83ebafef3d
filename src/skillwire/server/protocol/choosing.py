"""`http_protocol`: the class uvicorn makes a connection of, with the fastest parser there is."""

import asyncio
from importlib import import_module
from importlib.util import find_spec
from typing import Final, cast

from skillwire.server.protocol.guarded import Guarded, Turnstile
from skillwire.server.protocol.plain import PlainConnection


def _fastest() -> type[Guarded]:
    """Return the connection with the parser that is written in C, if that is installed."""
    if find_spec("httptools") is None:
        return PlainConnection
    return import_module("skillwire.server.protocol.fast").FastConnection


FASTEST: Final = _fastest()


def http_protocol(turnstile: Turnstile, kind: type[Guarded] = FASTEST) -> type[asyncio.Protocol]:
    """Return what `uvicorn.Config` takes as `http`: connections that come in through `turnstile`."""
    return cast(type[asyncio.Protocol], type(kind.__name__, (kind,), {"turnstile": turnstile}))
