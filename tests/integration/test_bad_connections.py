"""Clients that misbehave, over real sockets: each gets its one answer or none, and others are served."""

import json
import os
import random
import re
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import skillwire
from skillwire.server.limits import CloseReason

HERE = Path(__file__).parent
WITHIN = 15.0
SHORT: dict[str, float] = {
    "head_seconds": 0.8,
    "silent_seconds": 0.8,
    "idle_seconds": 1.0,
    "body_seconds": 0.8,
    "unread_seconds": 1.0,
    "linger_seconds": 0.5,
}
MIB = 1024 * 1024
GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
Limits = dict[str, float]


class Peer:
    """A server as a process of its own, and what a client does to it in plain bytes."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def connect(self, receive_bytes: int = 0) -> socket.socket:
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(WITHIN)
        client.connect(("127.0.0.1", self.port))
        return client

    def say(self, *pieces: bytes, pause: float = 0.0) -> bytes:
        """Write pieces, and return all that is answered until the server closes."""
        with self.connect() as client:
            for piece in pieces:
                try:
                    client.sendall(piece)
                except OSError:
                    break  # It was refused already; what it said can still be read.
                time.sleep(pause)
            return read_all(client)

    def get(self, path: str) -> Any:
        """Ask as a client does that behaves well."""
        request = f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode()
        with self.connect() as client:
            client.sendall(request)
            head, _, body = read_all(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return json.loads(body)

    def endings(self) -> dict[str, int]:
        return self.get("/counts")["endings"]

    def slowest_answer(self, times: int) -> float:
        """Return how long a client that behaves well had to wait, at most."""
        slowest = 0.0
        for _ in range(times):
            start = time.monotonic()
            self.get("/")
            slowest = max(slowest, time.monotonic() - start)
        return slowest

    def wait_for(self, condition: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + WITHIN
        while not condition(state := self.get("/counts")):
            assert time.monotonic() < deadline, state
            time.sleep(0.05)
        return state


def read_all(client: socket.socket) -> bytes:
    found = bytearray()
    try:
        while piece := client.recv(MIB):
            found += piece
    except ConnectionResetError:
        pass
    return bytes(found)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


@contextmanager
def serving(folder: Path, limits: Limits) -> Generator[Peer]:
    log = folder / "log"
    command = [sys.executable, str(HERE / "guarded_server.py"), json.dumps({**SHORT, **limits})]
    environment = {**os.environ, "PYTHONPATH": str(Path(skillwire.__file__).parents[1])}
    with log.open("wb") as words:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
        )
    try:
        with process:
            assert process.stdin is not None and process.stdout is not None
            yield Peer(process, int(process.stdout.readline()), log)
            process.stdin.close()
            assert process.wait(WITHIN) == 0, log.read_text()
    finally:
        process.kill()


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Generator[Peer]:
    with serving(tmp_path_factory.mktemp("peer"), {}) as started:
        yield started


def post(*headers: bytes, body: bytes = b"", target: bytes = b"/", version: bytes = b"1.1") -> bytes:
    lines = [b"POST %s HTTP/%s" % (target, version), b"Host: here", *headers, b"", body]
    return b"\r\n".join(lines)


CHUNKED = b"Transfer-Encoding: chunked"
REFUSED = {
    "too many headers": (post(*[b"X-%d: y" % number for number in range(150)]), 431),
    "ten thousand headers": (post(*[b"X-%d: y" % number for number in range(10_000)]), 431),
    "a huge header": (post(b"X: " + b"y" * 300_000), 431),
    "a header beyond the limit": (post(b"X: " + b"y" * 66_000), 431),
    "a long URL": (post(target=b"/" + b"u" * 9_000), 414),
    "a body that is declared too large": (post(b"Content-Length: 262145"), 413),
    "an absurd length": (post(b"Content-Length: " + b"9" * 5_000), 400),
    "a length and chunks": (post(b"Content-Length: 5", CHUNKED, body=b"0\r\n\r\n"), 400),
    "chunks and a length": (post(CHUNKED, b"Content-Length: 5", body=b"0\r\n\r\n"), 400),
    "two lengths": (post(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd"), 400),
    "a length with a sign": (post(b"Content-Length: +3", body=b"abc"), 400),
    "a negative length": (post(b"Content-Length: -3", body=b"abc"), 400),
    "chunks within something else": (post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 400),
    "chunks of an older version": (post(CHUNKED, body=b"0\r\n\r\n", version=b"1.0"), 400),
    "a chunk without a size": (post(CHUNKED, body=b"zz\r\nabc\r\n"), 400),
    "a blank before the colon": (post(b"Content-Length : 3", body=b"abc"), 400),
    "a zero byte": (post(b"X: a\0b"), 400),
    "two hosts": (post(b"Host: there"), 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "another host in the URL": (post(target=b"http://there/"), 400),
    "a proxy's request": (b"CONNECT there:443 HTTP/1.1\r\nHost: there:443\r\n\r\n", 400),
    "a version without headers": (b"GET /\r\n\r\n", 400),
    "the next version": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a TLS greeting": (bytes.fromhex("160301020001000001fc0303") + bytes(40), 400),
    "noise": (random.Random(7).randbytes(400) + b"\r\n\r\n", 400),
}
# What other parsers take for a valid request.
STRICT = {
    "a header that goes on": (post(b"X: a\r\n b"), 400),
    "a line end of one byte": (b"GET / HTTP/1.1\nHost: here\n\n", 400),
    "a chunk line of one byte": (post(CHUNKED, body=b"3\nabc\n0\n\n"), 400),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_too_much_or_ambiguous_gets_one_clear_answer_and_the_connection_ends(
    peer: Peer, what: str
) -> None:
    request, expected = REFUSED[what]

    answer = peer.say(request)

    assert status(answer) == expected, answer[:200]
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("what", STRICT)
def test_spellings_that_parsers_disagree_about_are_refused(peer: Peer, what: str) -> None:
    request, expected = STRICT[what]

    assert status(peer.say(request)) == expected


def test_what_is_within_the_limits_is_answered(peer: Peer) -> None:
    close = b"Connection: close"
    ordinary = {
        "many headers": post(close, *[b"X-%d: y" % number for number in range(90)]),
        "a large head": post(close, b"X: " + b"y" * 60_000),
        "a large body": post(close, b"Content-Length: 262144", body=b"b" * 262_144),
        "chunks": post(close, CHUNKED, body=b"3;a=b\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"),
        "an old client": b"GET / HTTP/1.0\r\n\r\n",
    }

    assert {what: status(peer.say(request)) for what, request in ordinary.items()} == dict.fromkeys(
        ordinary, 200
    )


def test_a_target_in_absolute_form_is_taken_when_it_names_the_same_host(peer: Peer) -> None:
    answer = peer.say(post(b"Connection: close", target=b"http://HERE/some/where"))

    assert b'"path": "/some/where"' in answer


def test_headers_that_come_after_the_body_do_not_become_headers_of_the_request(peer: Peer) -> None:
    trailer = b"3\r\nabc\r\n0\r\nAuthorization: Bearer later\r\n\r\n"

    answer = peer.say(post(b"Connection: close", CHUNKED, body=trailer))

    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
        "path": "/",
        "body": 3,
        "headers": ["host", "connection", "transfer-encoding"],
    }


def test_an_offer_to_speak_another_protocol_is_ignored_and_the_body_kept(peer: Peer) -> None:
    offer = [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"]
    request = post(*offer, b"Content-Length: 5", body=b"hello")

    with peer.connect() as client:
        client.sendall(request + request[:20])
        first = read_until(client, b"}")
        client.sendall(request[20:-2])
        client.sendall(request[-2:])
        second = read_until(client, b"}")

    bodies = [json.loads(answer.partition(b"\r\n\r\n")[2]) for answer in (first, second)]
    assert bodies == [{"path": "/", "body": 5, "headers": ["host", "content-length"]}] * 2


def trickle(peer: Peer, start: bytes, piece: bytes) -> tuple[int, float]:
    """Send something, then a little again and again, until the server has had enough."""
    with peer.connect() as client:
        client.sendall(start)
        began = time.monotonic()
        while not select.select([client], [], [], 0.05)[0] and time.monotonic() - began < WITHIN:
            client.sendall(piece)
        return status(read_all(client)), time.monotonic() - began


SLOW = {
    "nothing at all": (b"", b"", 0),
    "half a line": (b"GET / HT", b"", 408),
    "header after header": (b"GET / HTTP/1.1\r\n", b"X: y\r\n", 408),
    "an endless header": (b"GET / HTTP/1.1\r\nX: ", b"y", 408),
    "half a body": (post(b"Content-Length: 1000"), b"", 408),
    "a body byte by byte": (post(b"Content-Length: 1000"), b"b", 408),
    "a body chunk by chunk": (post(CHUNKED), b"1\r\nb\r\n", 408),
}


def test_what_does_not_come_to_an_end_in_time_is_hung_up_on(peer: Peer) -> None:
    with ThreadPoolExecutor(len(SLOW)) as clients:
        trickles = {what: clients.submit(trickle, peer, *slow[:2]) for what, slow in SLOW.items()}
        found = {what: future.result(WITHIN) for what, future in trickles.items()}

    assert {what: answered for what, (answered, _) in found.items()} == {
        what: expected for what, (_, _, expected) in SLOW.items()
    }
    assert max(seconds for _, seconds in found.values()) < WITHIN


def test_a_connection_that_is_used_again_has_the_same_deadlines(peer: Peer) -> None:
    for piece, expected in ((b"", 0), (b"GET /", 408)):
        with peer.connect() as client:
            client.sendall(GET)
            assert status(read_until(client, b"}")) == 200

            client.sendall(piece)

            assert status(read_all(client)) == expected


def test_blank_lines_before_a_request_are_ignored_but_do_not_keep_a_connection(peer: Peer) -> None:
    answer = peer.say(b"\r\n\r\n" + post(b"Connection: close"))
    blank, _ = trickle(peer, b"", b"\r\n")
    later, _ = trickle(peer, GET, b"\r\n")
    with peer.connect() as client:
        client.sendall(GET)
        assert status(read_until(client, b"}")) == 200
        began = time.monotonic()
        while not select.select([client], [], [], 0.05)[0] and time.monotonic() - began < WITHIN:
            client.sendall(b"\r\n")
        after = read_all(client)

    assert [status(answer), blank, later, status(after)] == [200, 0, 200, 408]


def endless(peer: Peer, start: bytes, piece: bytes) -> bytes:
    """Send without an end; give up after far more than any server should take."""
    with peer.connect() as client:
        client.sendall(start)
        for _ in range(64 * MIB // len(piece)):
            if select.select([client], [], [], 0)[0]:
                break  # The server has said something.
            try:
                client.sendall(piece)
            except OSError:
                break
        else:
            raise AssertionError("the server takes everything")
        return read_all(client)


def test_what_has_no_end_is_refused_however_fast_it_comes(peer: Peer) -> None:
    block = b"y" * 65_536
    chunk = b"10000\r\n" + block + b"\r\n"

    header = endless(peer, b"GET / HTTP/1.1\r\nX: ", block)
    headers = endless(peer, b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 10_000)
    body = endless(peer, post(CHUNKED), chunk)
    extension = endless(peer, post(CHUNKED) + b"3;", block)
    trailers = endless(peer, post(CHUNKED) + b"0\r\n", b"X: y\r\n" * 10_000)

    assert [status(answer) for answer in (header, headers, body)] == [431, 431, 413]
    assert status(extension) in (400, 413, 431) and status(trailers) in (400, 413, 431)


def test_a_body_nobody_wants_is_not_taken_forever(peer: Peer) -> None:
    chunk = b"10000\r\n" + b"y" * 65_536 + b"\r\n"

    answer = endless(peer, post(CHUNKED, target=b"/early"), chunk)

    assert (status(answer), answer.count(b"HTTP/1.1 ")) == (200, 1)


def test_requests_that_do_not_wait_are_answered_in_order_and_only_so_many(peer: Peer) -> None:
    paths = [b"/%d" % number for number in range(10)]
    few = b"".join(post(target=path) for path in paths) + post(b"Connection: close", target=b"/last")

    answer = peer.say(few)

    assert [answer.index(b'"%s"' % path) for path in paths] == sorted(
        answer.index(b'"%s"' % path) for path in paths
    )
    assert b'"/last"' in answer


def test_a_flood_of_requests_is_cut_short(peer: Peer) -> None:
    answer = peer.say(post() * 5_000)

    assert answer.count(b"HTTP/1.1 200") == 17
    assert peer.endings()["pipelined"] >= 1


def test_a_bad_request_does_not_spoil_the_answers_before_it(peer: Peer) -> None:
    answer = peer.say(post(target=b"/one") + b"garbage\r\n\r\n")
    late = peer.say(post(target=b"/stream") + post() + b"garbage\r\n\r\n")
    half = peer.say(post(target=b"/one") + post(CHUNKED, body=b"zz\r\n"))

    assert status(answer) == 200 and answer.count(b'"/one"') == 1
    assert b"end\n" in late and b"400" not in late.partition(b"end\n")[0]
    assert status(half) == 200 and half.count(b"HTTP/1.1 ") == 2 and b"HTTP/1.1 400" in half


def test_a_stream_may_be_silent_for_longer_than_any_limit(peer: Peer) -> None:
    answer = peer.say(b"GET /stream HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")

    assert [b"event\n" in answer, b"end\n" in answer] == [True, True]


def test_a_slow_reader_that_goes_on_reading_gets_everything(peer: Peer) -> None:
    with peer.connect(receive_bytes=64 * 1024) as client:
        client.sendall(b"GET /big HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        got = 0
        while piece := client.recv(256 * 1024, socket.MSG_WAITALL):
            got += len(piece)
            time.sleep(0.05)

    assert got > 10 * MIB


def test_readers_that_do_not_read_hold_little_and_not_for_long(tmp_path: Path) -> None:
    limits = {"waiting_bytes": 64 * MIB, "crowded_seconds": 0.2, "unread_seconds": 2.0, "idle_seconds": 9.0}
    with serving(tmp_path, limits) as peer, ExitStack() as stack:
        before = peer.get("/counts")["resident"]

        for _ in range(50):
            client = stack.enter_context(peer.connect(receive_bytes=4096))
            client.sendall(b"GET /big HTTP/1.1\r\nHost: here\r\n\r\n")
            assert client.recv(9) == b"HTTP/1.1 "
        slowest = peer.slowest_answer(30)
        during = peer.get("/counts")["resident"]
        state = peer.wait_for(lambda state: state["open"] == 1)

        assert slowest < 2
        assert during - before < 200 * MIB
        assert state["endings"]["crowded"] + state["endings"]["unread"] == 50
        assert peer.log.read_text().count("slow readers") == 1


HOLDING = """
import resource, select, socket, sys
port, count = map(int, sys.argv[1:])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 64) if hard > 0 else count + 64, hard))
held = []
for number in range(count):
    client = socket.create_connection(("127.0.0.1", port), timeout=15)
    if number % 2:
        client.sendall(b"GET / HTTP/1.1\\r\\nX: ")
    held.append(client)
print(len(held), flush=True)
poll = select.poll()
for client in held:
    poll.register(client, select.POLLIN)
left = len(held)
while left:
    for number, _ in poll.poll(15_000) or sys.exit(f"{left} connections stay"):
        poll.unregister(number)
        left -= 1
print("all ended", flush=True)
sys.stdin.read()
"""


def most_connections() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 5_000 if hard == resource.RLIM_INFINITY else min(5_000, hard - 600)


def test_five_thousand_idle_connections_go_away_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    count = most_connections()
    limits = {"silent_seconds": 60.0, "head_seconds": 60.0, "body_seconds": 2.0, "idle_seconds": 2.0}
    with serving(tmp_path, {**limits, "unread_seconds": 8.0}) as peer:
        before = peer.get("/counts")["resident"]
        command = [sys.executable, "-c", HOLDING, str(peer.port), str(count)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            try:
                assert holder.stdin is not None and holder.stdout is not None
                assert holder.stdout.readline() == f"{count}\n"
                state = peer.wait_for(lambda state: state["open"] > count)
                slowest = peer.slowest_answer(30)
                peer.get("/hurry")
                assert holder.stdout.readline() == "all ended\n"
                after = peer.wait_for(lambda state: state["open"] == 1)
                holder.stdin.close()
            finally:
                holder.kill()

    assert slowest < 2
    assert state["resident"] - before < 100 * MIB
    assert after["endings"] == {"silent": count // 2, "slow-head": count // 2}


def test_a_full_house_makes_room_for_who_has_something_to_ask(tmp_path: Path) -> None:
    limits = {"connections": 40, "silent_seconds": 300.0, "head_seconds": 300.0, "body_seconds": 300.0}
    with serving(tmp_path, limits) as peer, ExitStack() as stack:
        for number in range(120):
            client = stack.enter_context(peer.connect())
            client.sendall((b"", b"GET / HT", post(b"Content-Length: 9"))[number % 3])
        peer.wait_for(lambda state: state["open"] <= 41 and state["endings"].get("evicted", 0) >= 80)

        streams: list[socket.socket] = []
        for _ in range(40):  # Each has its answer before the next comes, so none of them is idle.
            streams.append(stream := stack.enter_context(peer.connect()))
            stream.sendall(b"GET /until-full HTTP/1.1\r\nHost: here\r\n\r\n")
            assert status(stream.recv(MIB)) == 200
        refused = peer.say(GET)
        ended = [read_until(stream, b"end\n") for stream in streams]

        assert (status(refused), b"connection: close" in refused) == (503, True)
        assert all(b"end\n" in answer for answer in ended)
        assert peer.get("/")["path"] == "/"
        words = peer.log.read_text()
        assert words.count("too many)") == 0
        assert 1 <= words.count("to make room") < 10  # Once a minute, however many were evicted.


def read_until(client: socket.socket, end: bytes) -> bytes:
    found = b""
    while end not in found and (piece := client.recv(MIB)):
        found += piece
    return found


def test_connections_that_are_reset_leave_nothing_behind(peer: Peer) -> None:
    reset = struct.pack("ii", 1, 0)
    for number in range(300):
        with peer.connect() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            client.sendall((b"", GET, b"GET / HT", post(b"Content-Length: 9"), GET + GET)[number % 5])

    assert peer.slowest_answer(5) < 2
    peer.wait_for(lambda state: state["open"] == 1)


def test_trouble_is_logged_now_and_then_however_often_it_happens(peer: Peer) -> None:
    for _ in range(5):
        peer.say(b"garbage\r\n\r\n")

    words = peer.log.read_text()
    kinds = re.findall(r"^WARNING:skillwire\.server\.limits:.*\((.*): \d+ so far\)$", words, re.M)
    assert "malformed" in kinds and set(kinds) <= set(CloseReason)
    assert len(kinds) == len(words.splitlines()) < 2 * len(CloseReason), words
