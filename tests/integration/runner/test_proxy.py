"""The proxy of a run, with real sockets: what gets through, what does not, and that all of it ends."""

import hashlib
import http.client
import socket
import ssl
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

import pytest

from integration.web_sites import Certificate, endless, web_site
from integration.web_sites import Page as WebPage
from skillwire.core.addresses import Address
from skillwire.runner.proxy import AllowListProxy, ProxyLimits, Resolve, is_refused_address

HOST = "api.example.org"
SECONDS = 10.0
PRIVATE = ip_network("10.0.0.0/8")


def nothing(address: Address) -> bool:
    """Refuse no address, because the servers of these tests are on loopback."""
    return False


@dataclass
class Names:
    """A resolver that knows only what it is told; several answers are given one after the other."""

    answers: list[Sequence[str]] = field(default_factory=lambda: [["127.0.0.1"]])
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass
class Running:
    proxy: AllowListProxy
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def ask(self, *lines: str) -> bytes:
        """Send the head of a request, and return everything that comes back."""
        with self.connect() as client:
            client.sendall("\r\n".join([*lines, "", ""]).encode())
            return everything(client)

    def tunnel(self, port: int, host: str = HOST) -> socket.socket:
        client = self.connect()
        client.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        opened = b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert client.recv(len(opened), socket.MSG_WAITALL) == opened
        return client


@contextmanager
def proxied(
    *allowed: str,
    resolve: Resolve | None = None,
    limits: ProxyLimits | None = None,
    is_refused: Callable[[Address], bool] = nothing,
) -> Generator[Running]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]
    proxy = AllowListProxy(
        allowed, resolve=resolve or Names(), limits=limits or ProxyLimits(), is_refused=is_refused
    )
    proxy.start(listener)
    try:
        yield Running(proxy, port)
    finally:
        proxy.close()
    assert listener.fileno() == -1
    assert not [thread for thread in threading.enumerate() if thread.name == "skillwire-proxy"]


class Peer:
    """A server on loopback that keeps what it gets, and answers as it is told."""

    def __init__(self, serve: Callable[["Peer", socket.socket], None]) -> None:
        self.received = bytearray()
        self.accepted = 0
        self.most_at_once = 0
        self._at_once = 0
        self._serve = serve
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._threads.append(threading.Thread(target=self._accept))
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.accepted += 1
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
            thread = threading.Thread(target=self._run, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _run(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        with connection:
            try:
                self._serve(self, connection)
            except OSError:
                pass
            with self._lock:  # Before it closes: the next connection may come as soon as it does.
                self._at_once -= 1


def echo(peer: Peer, connection: socket.socket) -> None:
    while data := connection.recv(65536):
        peer.received += data
        connection.sendall(data)
    connection.sendall(b"<end>")


def flood(peer: Peer, connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 65536)


def listen(peer: Peer, connection: socket.socket) -> None:
    while data := connection.recv(65536):
        peer.received += data


def answer(peer: Peer, connection: socket.socket) -> None:
    """Answer one request of HTTP a little late, so that whatever else is sent would arrive."""
    peer.received += connection.recv(65536)
    connection.settimeout(0.3)
    try:
        while data := connection.recv(65536):
            peer.received += data
    except TimeoutError:
        pass
    connection.settimeout(SECONDS)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")


@contextmanager
def peer(serve: Callable[[Peer, socket.socket], None] = echo) -> Generator[Peer]:
    server = Peer(serve)
    try:
        yield server
    finally:
        server.close()


def everything(client: socket.socket) -> bytes:
    """Read until the other side hangs up, in whatever way."""
    received = bytearray()
    try:
        while data := client.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return bytes(received)


def status(response: bytes) -> int:
    assert response.startswith(b"HTTP/1.1 "), response[:80]
    return int(response[9:12])


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# What gets through


@pytest.mark.requirement("EXEC-12")
def test_a_script_speaks_tls_with_an_allowed_host(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path, HOST)
    with web_site(certificate.server) as site, proxied(f"{HOST}:{site.port}") as running:
        site.put("/hello", b"over TLS")
        client = http.client.HTTPSConnection(
            "127.0.0.1", running.port, context=certificate.client, timeout=SECONDS
        )
        client.set_tunnel(HOST, site.port)

        client.request("GET", "/hello")
        response = client.getresponse()
        body = response.read()
        client.close()

        assert (response.status, body) == (200, b"over TLS")
        assert site.asked[0].headers["host"] == f"{HOST}:{site.port}"
        assert running.proxy.traffic.reached == (f"{HOST}:{site.port}",)
        assert running.proxy.traffic.up_bytes > 100
        assert running.proxy.traffic.down_bytes > 100
        assert running.proxy.traffic.refusals == {}


@pytest.mark.requirement("EXEC-12")
def test_the_certificate_is_checked_by_the_script_and_not_by_the_proxy(tmp_path: Path) -> None:
    other = Certificate.make(tmp_path, "other.example.org")
    with web_site(other.server) as site, proxied(f"{HOST}:{site.port}") as running:
        with running.tunnel(site.port) as client, pytest.raises(ssl.SSLCertVerificationError):
            other.client.wrap_socket(client, server_hostname=HOST)


@pytest.mark.requirement("EXEC-12")
def test_a_script_gets_a_plain_page_as_ordinary_programs_do() -> None:
    with web_site() as site, proxied(f"{HOST}:{site.port}") as running:
        site.put("/page?q=1", b"plain")
        proxies = urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{running.port}"})
        opener = urllib.request.build_opener(proxies)

        with opener.open(f"http://{HOST}:{site.port}/page?q=1", timeout=SECONDS) as response:
            assert response.read() == b"plain"
        with pytest.raises(urllib.error.HTTPError) as caught:
            opener.open(f"http://{HOST}:{site.port}/gone", timeout=SECONDS)
        caught.value.close()

        assert caught.value.code == 404
        headers = site.asked[0].headers
        assert headers["host"] == f"{HOST}:{site.port}"
        assert headers["connection"] == "close"
        assert not [name for name in headers if name.startswith("proxy-")]


def test_megabytes_go_both_ways_unchanged() -> None:
    data = hashlib.shake_256(b"seed").digest(5 * 1024 * 1024)
    with peer() as server, proxied(f"{HOST}:{server.port}") as running, running.tunnel(server.port) as client:

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = everything(client)
        sender.join(SECONDS)

        assert hashlib.sha256(received).digest() == hashlib.sha256(data + b"<end>").digest()
        assert running.proxy.traffic.up_bytes == len(data)
        assert running.proxy.traffic.down_bytes == len(data) + 5


def test_what_a_client_sends_along_with_its_request_for_a_tunnel_is_passed_on() -> None:
    with peer() as server, proxied(f"{HOST}:{server.port}") as running, running.connect() as client:
        client.sendall(f"CONNECT {HOST}:{server.port} HTTP/1.1\r\n\r\nearly".encode())
        client.shutdown(socket.SHUT_WR)

        assert everything(client).partition(b"\r\n\r\n")[2] == b"early<end>"


def test_a_host_is_reached_at_the_next_address_when_the_first_does_not_answer() -> None:
    with (
        peer() as server,
        proxied(f"{HOST}:{server.port}", resolve=Names([["127.0.0.9", "127.0.0.1"]])) as running,
    ):
        with running.tunnel(server.port) as client:
            client.sendall(b"hi")
            assert client.recv(2) == b"hi"


# What does not


@pytest.mark.requirement("EXEC-12")
def test_a_host_that_is_not_listed_is_refused_by_name_and_never_looked_up() -> None:
    names = Names()
    with peer() as server, proxied(f"{HOST}:{server.port}", resolve=names) as running:
        for target in (f"evil.example:{server.port}", f"{HOST}:{unused_port()}", f"x.{HOST}:{server.port}"):
            response = running.ask(f"CONNECT {target} HTTP/1.1")
            assert status(response) == 403
            assert f"'{target}'".encode() in response
        assert status(running.ask(f"GET http://evil.example:{server.port}/ HTTP/1.1")) == 403

        assert names.asked == []
        assert server.accepted == 0
        assert running.proxy.traffic.refusals == {"not-allowed": 4}
        assert running.proxy.traffic.reached == ()


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "0x7f.1", "2130706433", "127.1"])
def test_an_address_is_refused_in_any_spelling(address: str) -> None:
    with peer() as server, proxied(f"{HOST}:{server.port}") as running:
        assert status(running.ask(f"CONNECT {address}:{server.port} HTTP/1.1")) == 403
        assert status(running.ask(f"GET http://{address}:{server.port}/ HTTP/1.1")) == 403
        assert server.accepted == 0


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["::1"],
        ["8.8.8.8", "127.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["169.254.169.254"],
        ["fe80::1%lo"],
    ],
)
def test_a_name_that_stands_for_a_private_address_is_refused(answer: list[str]) -> None:
    with peer() as server:
        allowed = f"{HOST}:{server.port}"
        with proxied(allowed, resolve=Names([answer]), is_refused=is_refused_address) as running:
            response = running.ask(f"CONNECT {HOST}:{server.port} HTTP/1.1")

            assert status(response) == 502
            assert answer[-1].encode() not in response
            assert server.accepted == 0
            assert running.proxy.traffic.refusals == {"address": 1}


@pytest.mark.requirement("EXEC-12")
def test_one_private_address_among_several_is_one_too_many() -> None:
    with peer() as server:
        names = Names([["127.0.0.1", "10.1.2.3"]])
        with proxied(
            f"{HOST}:{server.port}", resolve=names, is_refused=lambda address: address in PRIVATE
        ) as running:
            assert status(running.ask(f"CONNECT {HOST}:{server.port} HTTP/1.1")) == 502
            assert server.accepted == 0


@pytest.mark.requirement("EXEC-12")
def test_a_name_is_looked_up_once_so_a_second_answer_cannot_be_another() -> None:
    with peer() as server:
        names = Names([["127.0.0.1"], ["10.1.2.3"]])
        with proxied(
            f"{HOST}:{server.port}", resolve=names, is_refused=lambda address: address in PRIVATE
        ) as running:
            with running.tunnel(server.port) as client:
                client.sendall(b"hi")
                assert client.recv(2) == b"hi"

            assert names.asked == [(HOST, server.port)]
            assert status(running.ask(f"CONNECT {HOST}:{server.port} HTTP/1.1")) == 502


def test_a_host_without_an_address_or_a_listener_is_a_bad_gateway() -> None:
    def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such host")

    port = unused_port()
    for resolve in (unknown, Names([[]]), Names([["not an address"]]), Names([["127.0.0.1", "127.0.0.2"]])):
        with proxied(f"{HOST}:{port}", resolve=resolve) as running:
            response = running.ask(f"CONNECT {HOST}:{port} HTTP/1.1")
            assert status(response) == 502
            assert running.proxy.traffic.refusals == {"unreachable": 1}


@pytest.mark.requirement("EXEC-12")
def test_what_follows_a_plain_request_does_not_reach_the_server() -> None:
    with peer(answer) as server, proxied(f"{HOST}:{server.port}") as running:
        response = running.ask(
            f"POST http://{HOST}:{server.port}/ HTTP/1.1",
            "Content-Length: 5",
            "",
            "hello" + "GET http://internal.example/ HTTP/1.1",
            "Host: internal.example",
        )

        assert response.endswith(b"ok")
        assert server.accepted == 1
        assert bytes(server.received).endswith(b"\r\n\r\nhello")
        assert server.received.count(b"HTTP/1.1") == 1


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: api.example.org\r\n\r\n",
        b"GET http://api.example.org/ HTTP/1.1\n\n",
        b"GET http://api.example.org/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"\x05\x01\x00" + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_for_a_proxy_is_answered_and_ended(sent: bytes) -> None:
    with proxied(f"{HOST}:80") as running, running.connect() as client:
        client.sendall(sent)
        response = everything(client)

        assert status(response) == 400
        assert response.endswith(b"\n")
        assert running.proxy.traffic.refusals == {"malformed": 1}


# Limits


@pytest.mark.requirement("EXEC-12")
def test_a_head_without_end_is_refused() -> None:
    with proxied(HOST) as running, running.connect() as client:
        client.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\nX: ".encode() + b"a" * 16_400)

        assert status(everything(client)) == 431


@pytest.mark.requirement("EXEC-12")
def test_a_head_of_exactly_the_limit_is_read() -> None:
    with peer() as server, proxied(f"{HOST}:{server.port}", limits=ProxyLimits(head_bytes=1000)) as running:
        first = f"CONNECT {HOST}:{server.port} HTTP/1.1\r\nX: "

        for size, expected in ((1000, 200), (1001, 431)):
            with running.connect() as client:
                client.sendall(first.encode() + b"a" * (size - len(first) - 4) + b"\r\n\r\n")
                assert status(client.recv(12)) == expected


@pytest.mark.requirement("EXEC-12")
def test_a_client_that_never_finishes_its_request_is_told_so() -> None:
    with proxied(HOST, limits=ProxyLimits(head_seconds=0.3)) as running:
        with running.connect() as slow, running.connect() as silent:
            slow.sendall(b"CONNECT ")
            stop = threading.Event()

            def trickle() -> None:
                while not stop.wait(0.05):
                    try:
                        slow.send(b"x")
                    except OSError:
                        return

            thread = threading.Thread(target=trickle)
            thread.start()
            begun = time.monotonic()
            response = everything(slow)
            stop.set()
            thread.join(SECONDS)

            assert status(response) == 408
            assert everything(silent) == b""
            assert time.monotonic() - begun < SECONDS


@pytest.mark.requirement("EXEC-12")
def test_a_tunnel_in_which_nothing_happens_ends() -> None:
    with peer() as server, proxied(f"{HOST}:{server.port}", limits=ProxyLimits(idle_seconds=0.3)) as running:
        with running.tunnel(server.port) as client:
            begun = time.monotonic()

            assert everything(client) == b""
            assert 0.2 < time.monotonic() - begun < SECONDS


@pytest.mark.requirement("EXEC-12")
def test_a_name_that_takes_too_long_is_given_up() -> None:
    release = threading.Event()

    def slow(host: str, port: int) -> Sequence[str]:
        release.wait(SECONDS)
        return ["127.0.0.1"]

    with proxied(HOST, resolve=slow, limits=ProxyLimits(resolve_seconds=0.2)) as running:
        try:
            assert status(running.ask(f"CONNECT {HOST}:443 HTTP/1.1")) == 504
        finally:
            release.set()


def test_a_host_that_takes_no_connection_in_time_is_given_up() -> None:
    # A listener whose queue is full lets connections wait.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting: list[socket.socket] = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(address)
            waiting.append(client)

        with proxied(f"{HOST}:{address[1]}", limits=ProxyLimits(connect_seconds=0.4)) as running:
            response = running.ask(f"CONNECT {HOST}:{address[1]} HTTP/1.1")

        for client in waiting:
            client.close()
        assert status(response) == 504


@pytest.mark.requirement("EXEC-12")
def test_a_run_receives_no_more_than_its_bytes() -> None:
    limits = ProxyLimits(down_bytes=300_000)
    with peer(flood) as server, proxied(f"{HOST}:{server.port}", limits=limits) as running:
        with running.tunnel(server.port) as client:
            assert len(everything(client)) <= limits.down_bytes

        assert running.proxy.traffic.down_bytes == limits.down_bytes
        assert status(running.ask(f"CONNECT {HOST}:{server.port} HTTP/1.1")) == 429
        assert running.proxy.traffic.refusals == {"limit": 2}


@pytest.mark.requirement("EXEC-12")
def test_a_run_receives_no_more_than_its_bytes_of_a_plain_page() -> None:
    limits = ProxyLimits(down_bytes=300_000)
    with web_site() as site, proxied(f"{HOST}:{site.port}", limits=limits) as running:
        site.pages["/"] = WebPage(write=endless)

        assert len(running.ask(f"GET http://{HOST}:{site.port}/ HTTP/1.1")) <= limits.down_bytes


@pytest.mark.requirement("EXEC-12")
def test_a_run_sends_no_more_than_its_bytes() -> None:
    limits = ProxyLimits(up_bytes=300_000)
    with peer(listen) as server, proxied(f"{HOST}:{server.port}", limits=limits) as running:
        with running.tunnel(server.port) as client, pytest.raises(OSError):
            for _ in range(1000):
                client.sendall(b"x" * 65536)

        assert len(server.received) <= limits.up_bytes
        assert running.proxy.traffic.up_bytes == limits.up_bytes


@pytest.mark.requirement("EXEC-12")
def test_only_so_many_connections_are_open_at_once_and_the_others_wait() -> None:
    limits = ProxyLimits(connections=3)
    results: list[bytes] = []

    def use(running: Running, port: int) -> None:
        with running.tunnel(port) as client:
            client.sendall(b"hi")
            client.shutdown(socket.SHUT_WR)
            results.append(everything(client))

    with peer() as server, proxied(f"{HOST}:{server.port}", limits=limits) as running:
        threads = [threading.Thread(target=use, args=(running, server.port)) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)

        assert results == [b"hi<end>"] * 30
        assert server.most_at_once <= limits.connections
        assert running.proxy.traffic.connections == 30


@pytest.mark.requirement("EXEC-12")
def test_a_flood_of_connections_is_told_so_and_then_no_longer_heard() -> None:
    limits = ProxyLimits(total_connections=10)
    answers: list[int] = []
    with peer() as server, proxied(f"{HOST}:{server.port}", limits=limits) as running:
        for _ in range(200):
            try:
                with running.connect() as client:
                    client.settimeout(2)
                    client.sendall(f"CONNECT {HOST}:{server.port} HTTP/1.1\r\n\r\n".encode())
                    received = client.recv(12)
                    if not received:
                        break
                    answers.append(status(received))
                    if answers[-1] == 200:
                        # What comes back shows that the peer has accepted the connection, and counted it.
                        client.sendall(b"!")
                        while not received.endswith(b"!"):
                            more = client.recv(64)
                            assert more, received
                            received += more
            except OSError:
                break

        assert answers[:11] == [200] * 10 + [429]
        assert set(answers[10:]) == {429}
        assert len(answers) < 100
        assert server.accepted == 10
        assert running.proxy.traffic.connections < 100


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="there is no list of open files")
def test_connections_that_come_and_go_leave_nothing_behind() -> None:
    before = open_files()

    with peer() as server, proxied(f"{HOST}:{server.port}") as running:
        for number in range(100):
            with running.connect() as client:
                if number % 2:  # It is reset, not closed.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with running.tunnel(server.port) as client:
            client.sendall(b"still there")
            assert client.recv(11) == b"still there"

    assert open_files() == before


# The end


@pytest.mark.requirement("EXEC-12")
def test_closing_ends_every_connection_at_once() -> None:
    release = threading.Event()

    def hang(host: str, port: int) -> Sequence[str]:
        if host == "hangs.example":
            release.wait(SECONDS)
        return ["127.0.0.1"]

    with peer() as server:
        with proxied(f"{HOST}:{server.port}", "hangs.example", resolve=hang) as running:
            clients = [running.tunnel(server.port) for _ in range(8)]
            looking = running.connect()
            looking.sendall(b"CONNECT hangs.example:443 HTTP/1.1\r\n\r\n")
            asking = running.connect()
            asking.sendall(b"CONN")
            clients[0].sendall(b"x" * 1000)

            begun = time.monotonic()
            running.proxy.close()
            taken = time.monotonic() - begun

            assert taken < SECONDS
            for client in (*clients, looking, asking):
                everything(client)
                client.close()
            with pytest.raises(OSError):
                running.connect().close()
        release.set()


def test_closing_does_not_wait_for_a_flood() -> None:
    with peer(flood) as server, proxied(f"{HOST}:{server.port}") as running:
        with running.tunnel(server.port) as client:
            client.recv(100)
            begun = time.monotonic()
            running.proxy.close()

            assert time.monotonic() - begun < SECONDS


def test_a_proxy_can_be_closed_twice_or_before_it_began() -> None:
    proxy = AllowListProxy([HOST])

    proxy.close()
    proxy.close()

    with proxied(HOST) as running:
        running.proxy.close()
        running.proxy.close()
