"""Answers over plain HTTP to what is not served: one clear line each."""

from collections.abc import Mapping

from skillwire.server.asgi import Send


async def refuse(send: Send, status: int, words: str, headers: Mapping[str, str] | None = None) -> None:
    """Answer with a status and one line of text, which no cache may keep."""
    body = words.encode()
    told = {
        "content-type": "text/plain; charset=utf-8",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        **(headers or {}),
    }
    pairs = [(name.encode("ascii"), value.encode("latin-1")) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
