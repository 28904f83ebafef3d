"""Sessions of older clients, begun, used, watched, ended and used again in every order."""

import http.client
from typing import ClassVar

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fuzz.surface import DEADLINE, Answer, require_declared, require_sound, send
from serving import HttpServer, Json, handshake, legacy

VERSION = b"2025-11-25"
_JSON = (
    (b"host", b"127.0.0.1:80"),
    (b"accept", b"application/json, text/event-stream"),
    (b"content-type", b"application/json"),
)
CALLS = (
    legacy("ping", 1),
    legacy("resources/list", 2),
    legacy("resources/list", 3, cursor="no cursor"),
    legacy("resources/read", 4, uri="skill://tea/SKILL.md"),
    legacy("resources/read", 5, uri="skill://no/SKILL.md"),
    legacy("skills/list", 6),
    legacy("tools/list", 7),
    legacy("prompts/get", 8, name="tea"),
    legacy("no/such/method", 9),
    legacy("resources/subscribe", 10, uri="skill://tea/SKILL.md"),
    legacy(
        "initialize",
        11,
        protocolVersion="1999-01-01",
        capabilities={},
        clientInfo={"name": "x", "version": "1"},
    ),
)
NOTES: tuple[Json, ...] = (
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4}},
    {"jsonrpc": "2.0", "method": "notifications/nothing"},
    {"jsonrpc": "2.0", "id": 77, "result": {}},
)


class Sessions(RuleBasedStateMachine):
    """Holds what the server must know: which sessions live, and which have a stream open."""

    server: ClassVar[HttpServer]
    sessions: Bundle[bytes] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.live: set[bytes] = set()
        self.ended: set[bytes] = set()
        self.streams: dict[bytes, http.client.HTTPConnection] = {}

    @rule(target=sessions)
    def begin(self) -> bytes:
        answer = self._post(handshake(), None)

        assert answer.status == 200, answer
        session = answer.header("mcp-session-id").encode()
        assert session
        assert session not in self.live | self.ended
        self.live.add(session)
        return session

    @rule(session=sessions, note=st.sampled_from(NOTES))
    def tell(self, session: bytes, note: Json) -> None:
        answer = self._post(note, session)

        assert answer.status == (202 if session in self.live else 404), answer

    @rule(session=sessions, call=st.sampled_from(CALLS))
    def ask(self, session: bytes, call: Json) -> None:
        answer = self._post(call, session)

        if session in self.ended:
            assert answer.status == 404, answer
        else:
            assert answer.status == 200, answer
            assert answer.json["id"] == call["id"]

    @rule(
        call=st.sampled_from(CALLS[:-1]),
        session=st.sampled_from([None, b"", b"0" * 32, b"x\xff", b"a" * 2000]),
    )
    def ask_in_no_session(self, call: Json, session: bytes | None) -> None:
        answer = self._post(call, session)

        assert answer.status in (400, 404), answer

    @rule(session=sessions)
    def listen(self, session: bytes) -> None:
        if session in self.streams:
            answer = send(
                self.server.port,
                "GET",
                "/mcp",
                (*_JSON, (b"mcp-session-id", session), (b"mcp-protocol-version", VERSION)),
            )
            assert answer.status == 409, answer
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=DEADLINE)
        connection.request(
            "GET", "/mcp", headers={"accept": "text/event-stream", "mcp-session-id": session.decode()}
        )
        response = connection.getresponse()
        if session in self.ended:
            assert response.status == 404
            connection.close()
        else:
            assert response.status == 200
            assert response.headers.get_content_type() == "text/event-stream"
            self.streams[session] = connection

    @rule(session=consumes(sessions), is_again=st.booleans())
    def end(self, session: bytes, is_again: bool) -> None:
        headers = (*_JSON, (b"mcp-session-id", session), (b"mcp-protocol-version", VERSION))
        answer = send(self.server.port, "DELETE", "/mcp", headers)

        assert answer.status == (200 if session in self.live else 404), answer
        self.live.discard(session)
        self.ended.add(session)
        if is_again:
            assert send(self.server.port, "DELETE", "/mcp", headers).status == 404
        stream = self.streams.pop(session, None)
        if stream is not None:
            stream.close()

    @invariant()
    def the_server_lives(self) -> None:
        assert self.server.process.poll() is None

    def teardown(self) -> None:
        for stream in self.streams.values():
            stream.close()
        for session in self.live:
            send(self.server.port, "DELETE", "/mcp", (*_JSON, (b"mcp-session-id", session)))

    def _post(self, message: object, session: bytes | None) -> Answer:
        body = orjson.dumps(message)
        headers = [*_JSON, (b"content-length", b"%d" % len(body))]
        if session is not None:
            headers += [(b"mcp-session-id", session), (b"mcp-protocol-version", VERSION)]
        answer = send(self.server.port, "POST", "/mcp", headers, [body])
        require_sound(answer, "/mcp")
        require_declared(answer, "POST", "/mcp")
        return answer
