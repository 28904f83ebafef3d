"""The HTTP surface of a running server: how to send it anything at all, and what any answer must be like."""

import http.client
import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson

from fuzz.properties import json_of

DESCRIPTION: Final = Path(__file__).parents[2] / "docs" / "schemas" / "http.json"
API: Final[Mapping[str, Any]] = json.loads(DESCRIPTION.read_text("utf-8"))
DEADLINE: Final = 20.0

# What would tell a stranger how or where the server is made.
_TELLTALE = re.compile(
    rb"Traceback|File \"|site-packages|/src/skillwire|\.py\", line|line \d+, in |<class |object at 0x"
    rb"|/tmp/|/home/|/root/"
)
# Statuses of HTTP itself, given before anything is looked for.
_OF_HTTP = frozenset({400, 408, 413, 414, 431})
_PLAIN = ("", "text/plain")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a status of 0 means that the server hung up."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for known, value in self.headers if known.lower() == name), "")

    @property
    def media_type(self) -> str:
        return self.header("content-type").partition(";")[0].strip()

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


def send(
    port: int,
    method: str,
    target: str,
    headers: Sequence[tuple[bytes, bytes]] = (),
    body: Sequence[bytes] = (),
    *,
    is_chunked: bool = False,
    leaves: bool = False,
) -> Answer:
    """Send a request as it is, on a connection of its own, and wait for all of the answer.

    With `leaves`, the client says that nothing more will come, and may get no answer.
    """
    lines = [f"{method} {target} HTTP/1.1\r\n".encode("utf-8", "surrogatepass")]
    lines += [name + b": " + value + b"\r\n" for name, value in headers]
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as connection:
        try:
            connection.sendall(b"".join(lines) + b"connection: close\r\n\r\n")
            for piece in body:
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked and piece else piece)
            if is_chunked:
                connection.sendall(b"0\r\n\r\n")
            if leaves:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # It answered before it had heard everything, and that counts.
        response = http.client.HTTPResponse(connection, method=method)
        try:
            response.begin()
            return Answer(response.status, tuple(response.getheaders()), _some_of(response))
        except (http.client.HTTPException, ConnectionError):
            return Answer(0, (), b"")


def _some_of(response: http.client.HTTPResponse) -> bytes:
    """Read a body, but of a stream, which may never end, only its first bytes."""
    if response.headers.get_content_type() == "text/event-stream":
        return response.read1(65_536)
    return response.read()


def require_sound(answer: Answer, path: str, *, secrets: Sequence[bytes] = ()) -> None:
    """Check what must be true of any answer to anything."""
    assert answer.status < 500, f"{answer.status}: {answer.body[:500]!r}"
    told = repr(answer.headers).encode() + (b"" if _is_content(answer, path) else answer.body)
    assert not _TELLTALE.search(told), told[:2000]
    for secret in secrets:
        assert secret not in told
        assert secret not in answer.body
    if answer.media_type == "application/json":
        value, is_json = json_of(answer.body or b"null")
        assert is_json, answer.body[:500]
        if path == "/mcp" and value is not None:
            require_message(value)


def _is_content(answer: Answer, path: str) -> bool:
    """Tell whether a body is a skill's or a page's, which may speak of anything."""
    return answer.status == 200 and path != "/mcp"


def require_message(value: object) -> None:
    """Check that something is an answer as JSON-RPC has them."""
    assert isinstance(value, dict), value
    message = cast("dict[str, Any]", value)
    assert message["jsonrpc"] == "2.0", message
    assert "id" in message, message
    assert type(message["id"]) in (int, str, float, type(None)), message
    assert ("result" in message) != ("error" in message), message
    if "error" in message:
        error = message["error"]
        assert type(error["code"]) is int, message
        assert isinstance(error["message"], str), message
        assert 0 < len(error["message"]) <= 4000, message
        assert error["code"] != -32603, message
    else:
        assert isinstance(message["result"], dict), message


def require_declared(answer: Answer, method: str, path: str) -> None:
    """Check that a status and a form are among those that the description has."""
    if answer.status in _OF_HTTP and answer.media_type in _PLAIN:
        return
    operations: Mapping[str, Any] = API["paths"].get(_template_of(path), {})
    operation = operations.get("get" if method == "HEAD" else method.lower())
    if operation is None:
        assert answer.status in (400, 401, 403, 404, 405, 406, 413, 421, 429), (method, path, answer)
        return
    response = operation["responses"].get(str(answer.status))
    assert response is not None, (method, path, answer)
    if "$ref" in response:
        response = API["components"]["responses"][response["$ref"].rpartition("/")[2]]
    # A refusal of the SDK has no body, or one of a form that it does not name.
    allowed = {"", *response.get("content", {})}
    assert answer.media_type in allowed or not answer.body, (method, path, answer)


def _template_of(path: str) -> str:
    if path in API["paths"]:
        return path
    return next(
        (
            template
            for template in API["paths"]
            if template.endswith("{path}") and path.startswith(template.removesuffix("{path}"))
        ),
        path,
    )
