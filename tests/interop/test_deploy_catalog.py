"""The files in `deploy/catalog/` at work: a killed replica, and the requests that nginx sends twice."""

import signal
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import orjson
import pytest

from deployed import LISTINGS, WITHIN, Json, Site, free_ports, listed_uris, modern, wait_until
from deployed_catalog import balancer, running_catalog
from folders import write_skill
from skillwire.core import digest_of

CLIENTS = 4
SKILL = "skill://shared/hello/SKILL.md"
NOTE = "skill://shared/hello/note.md"


def digests(answer: Json) -> dict[str, str]:
    return {file["uri"]: file["digest"] for file in answer["result"]["skill"]["resources"]}


@dataclass
class Reader:
    """Lists, gets and reads through nginx until it shall stop, and notes what fails."""

    site: Site
    stop: threading.Event
    answers: int = 0
    faults: list[str] = field(default_factory=list[str])

    def run(self) -> None:
        requests = [
            LISTINGS["modern"],
            modern("skills/get", uri=SKILL),
            modern("resources/read", uri=SKILL),
        ]
        try:
            with self.site.connection() as connection:
                while not self.stop.is_set():
                    for request in requests:
                        response = self.site.post(connection, request)
                        body = response.read()
                        if response.status != 200 or "result" not in orjson.loads(body):
                            self.faults.append(f"{request['method']}: {response.status} {body[:200]!r}")
                        self.answers += 1
        except Exception as error:
            self.faults.append(repr(error))


@contextmanager
def reading(site: Site) -> Generator[Sequence[Reader]]:
    """Let clients read all the time."""
    stop = threading.Event()
    readers = [Reader(site, stop) for _ in range(CLIENTS)]
    threads = [threading.Thread(target=reader.run) for reader in readers]
    for thread in threads:
        thread.start()
    try:
        yield readers
    finally:
        stop.set()
        for thread in threads:
            thread.join(WITHIN)


def test_no_read_fails_while_a_replica_is_killed_and_both_serve_what_is_published(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "shared" / "hello")
    with running_catalog(tmp_path) as (deployed, site), reading(site) as readers:
        # Both are asked, and both have what is published next.
        wait_until(lambda: min(map(deployed.answers, deployed.servers)) > 20, WITHIN, "both servers answer")
        write_skill(site.folder / "shared" / "hello", {"note.md": "To everyone.\n"})
        write_skill(site.folder / "shared" / "later")
        deployed.publish()
        with site.connection() as connection:
            for _ in range(4):
                listed = listed_uris(orjson.loads(site.post(connection, LISTINGS["modern"]).read()))
                entry = orjson.loads(site.post(connection, modern("skills/get", uri=SKILL)).read())
                content = orjson.loads(site.post(connection, modern("resources/read", uri=NOTE)).read())
                text = content["result"]["contents"][0]["text"]
                assert listed == [SKILL, "skill://shared/later/SKILL.md"]
                assert text == "To everyone.\n" and digest_of(text.encode()) == digests(entry)[NOTE]

        # Now one dies in the middle of its answers.
        killed, other = deployed.servers
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        before = deployed.answers(other)
        wait_until(lambda: deployed.answers(other) > before + 100, WITHIN, "the other one answers")

        # It comes back, with the same files, and is asked again when nginx gives it another try.
        deployed.servers[0] = deployed.start(0)
        wait_until(
            lambda: min(map(deployed.answers, deployed.servers)) > 20, WITHIN, "both servers answer again"
        )

    assert [reader.faults for reader in readers] == [[]] * CLIENTS
    # What the test is about has happened: requests failed on one server.
    assert "upstream" in (tmp_path / "error.log").read_text()


class Answering(ThreadingHTTPServer):
    """A server that answers everything with the same, and counts."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), AnsweringHandler)
        self.requests = 0


class AnsweringHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Answering)
        self.server.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def fail_after_reading(listener: socket.socket, taken: list[bytes]) -> None:
    """Take requests, and close every connection instead of answering."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(WITHIN)
            received = b""
            while b"\r\n\r\n" not in received or not received.rstrip().endswith(b"}"):
                received += connection.recv(64 * 1024)
            taken.append(received)


@pytest.mark.parametrize(
    ("method", "is_repeated"),
    [("resources/read", True), ("skills/list", True), ("tools/call", False), ("skills/execute", False)],
)
def test_a_request_that_fails_in_the_middle_is_sent_to_the_other_server_if_it_only_reads(
    tmp_path: Path, method: str, is_repeated: bool
) -> None:
    ports = free_ports(4)
    taken: list[bytes] = []
    statuses: list[int] = []
    with (
        closing(socket.create_server(("127.0.0.1", ports[2]))) as failing,
        Answering(ports[3]) as answering,
        balancer(tmp_path, ports, "none") as site,
    ):
        threads = [
            threading.Thread(target=fail_after_reading, args=(failing, taken), daemon=True),
            threading.Thread(target=answering.serve_forever, daemon=True),
        ]
        for thread in threads:
            thread.start()
        for _ in range(4):
            with site.connection() as connection:
                response = site.post(connection, modern(method))
                response.read()
                statuses.append(response.status)
        answering.shutdown()
        failing.shutdown(socket.SHUT_RDWR)
        threads[0].join(WITHIN)

    # After its failure a server is left out for ten seconds.
    assert len(taken) == 1
    assert sorted(statuses) == ([200] * 4 if is_repeated else [200] * 3 + [502])
    assert answering.requests == statuses.count(200)
