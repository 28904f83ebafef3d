"""The files in `deploy/` put to work: a server behind nginx, and one whose spans go to a collector."""

import http.client
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import cast

import orjson
import pytest

import serving
from folders import write_skill
from programs import http_server
from serving import Json, environment, legacy, listed_uris, modern, next_event, wait_until
from skillwire.server.access.tokens import Token, digest_of, new_secret

DEPLOY = Path(__file__).parents[1] / "deploy"
UNIT = DEPLOY / "skillwire.service"
SITE = DEPLOY / "nginx.conf"
UPSTREAM = DEPLOY / "upstream.conf"
RULES = DEPLOY / "access.toml"
OPTIONS = DEPLOY / "serve.toml"

LISTINGS = {"modern": modern("skills/list"), "legacy": legacy("skills/list")}
"""A request for the skills, of each generation."""

EAR = modern("subscriptions/listen", "ear", notifications={"resourcesListChanged": True})
"""A request for a stream that tells of changes."""

WITHIN = 60.0
# A stream that is held back would be held back until its client leaves.
PROMPTLY = 10.0


def found(program: str) -> str:
    """Return where a program is, or skip the test; where all must run, fail it."""
    beside = Path(sys.executable).parent
    path = shutil.which(program, path=os.pathsep.join([str(beside), os.environ.get("PATH", ""), "/usr/sbin"]))
    if path is None and (os.environ.get("CI") or os.environ.get("SKILLWIRE_REQUIRE_ALL")):
        pytest.fail(f"{program} is not installed")
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def run(*words: str | Path, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end; the outcome is the caller's to judge."""
    command = list(map(str, words))
    return subprocess.run(
        command, env=env, capture_output=True, encoding="utf-8", timeout=WITHIN, check=False, cwd=DEPLOY
    )


def command_of_the_unit() -> list[str]:
    """Return the words that the unit starts."""
    match = re.search(r"(?m)^ExecStart=((?:.*\\\n)*.*)$", UNIT.read_text())
    assert match is not None
    return shlex.split(match[1].replace("\\\n", " "))


@dataclass(frozen=True, slots=True)
class Site:
    """A server behind nginx, and what its clients need."""

    port: int
    plain_port: int
    upstream_port: int
    folder: Path
    token: str
    certificate: Path
    words: Callable[[], str]

    @contextmanager
    def connection(self, source: str = "") -> Generator[http.client.HTTPSConnection]:
        """Connect over TLS, from a certain address if one is given."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        connection = http.client.HTTPSConnection(
            "localhost",
            self.port,
            context=context,
            timeout=PROMPTLY,
            source_address=(source, 0) if source else None,
        )
        try:
            yield connection
        finally:
            connection.close()

    def post(
        self, connection: http.client.HTTPSConnection, message: Json, **more: str
    ) -> http.client.HTTPResponse:
        """Post a message as the holder of the token."""
        headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self.token}",
        }
        if "_meta" in message["params"]:
            headers |= {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": message["method"]}
        if "uri" in message["params"]:
            headers["Mcp-Name"] = message["params"]["uri"]
        connection.request("POST", "/mcp", orjson.dumps(message), headers | more)
        return connection.getresponse()

    @contextmanager
    def listening(self) -> Generator[Callable[[], Json | None]]:
        """Open a stream that tells of changes, and give what waits for the next event."""
        with self.connection() as connection:
            stream = self.post(connection, EAR)
            assert stream.headers.get_content_type() == "text/event-stream"
            yield partial(next_event, stream)

    def listed(self, generation: str = "modern") -> list[str]:
        """Return the skills that the holder of the token sees."""
        with self.connection() as connection:
            return listed_uris(orjson.loads(self.post(connection, LISTINGS[generation]).read()))


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def certificate(folder: Path) -> Path:
    """Make a key and a certificate for localhost where the configuration looks for them."""
    folder.mkdir()
    files = ("-keyout", folder / "privkey.pem", "-out", folder / "fullchain.pem", "-days", "2", "-nodes")
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    done = run(found("openssl"), "req", "-x509", *kind, *files, *name)
    assert done.returncode == 0, done.stderr
    return folder / "fullchain.pem"


def configuration(folder: Path, ports: list[int], upstream: Path, addresses: Mapping[str, str]) -> Path:
    """Write the configuration of an nginx with our site, other ports and another certificate.

    `ports` are for requests without TLS and with it. `addresses` are those of the
    servers, by the ones that the file `upstream` has.
    """
    site = re.sub(r"(?m)^ *listen \[::\].*\n", "", SITE.read_text() + upstream.read_text())
    for old, new in (
        ("listen 80;", f"listen 127.0.0.1:{ports[0]};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{ports[1]} ssl;"),
        ("/etc/ssl/skillwire", str(folder / "tls")),
        ("skills.example.com", "localhost"),
        *addresses.items(),
    ):
        assert old in site
        site = site.replace(old, new)
    (folder / "site.conf").write_text(site)
    (folder / "temp").mkdir()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"    {kind}_temp_path {folder}/temp/{kind};\n" for kind in kinds)
    path = folder / "nginx.conf"
    path.write_text(
        f"{'user root;' if os.geteuid() == 0 else ''}\n"
        f"daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log warn;\n"
        "events { worker_connections 256; }\n"
        f"http {{\n{temporary}    access_log off;\n    include {folder}/site.conf;\n}}\n"
    )
    return path


@contextmanager
def running_nginx(config: Path, port: int) -> Generator[None]:
    """Run an nginx that listens on a port."""
    nginx = found("nginx")
    checked = run(nginx, "-t", "-c", config)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
    log = config.parent / "error.log"
    process = subprocess.Popen([nginx, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_answered(port) or process.poll() is not None, WITHIN, "nginx answers")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(WITHIN)
    said = log.read_text()
    assert "[crit]" not in said and "[emerg]" not in said, said


def token_file(folder: Path, *names: str) -> tuple[Path, list[str]]:
    """Write a file with tokens of these names; return it, and the tokens."""
    secrets = [new_secret(name) for name in names]
    tokens = folder / "tokens"
    tokens.touch(mode=0o600)
    pairs = zip(names, secrets, strict=True)
    tokens.write_text("".join(Token(name, digest_of(secret)).line + "\n" for name, secret in pairs))
    return tokens, secrets


def with_replaced(words: list[str], replaced: Mapping[str, str]) -> list[str]:
    """Return the arguments of a server with other values, all of which must occur, and without `--http`."""
    assert set(replaced) <= set(words)
    at = words.index("--http")
    return [replaced.get(word, word) for word in words[:at] + words[at + 2 :]]


@contextmanager
def running_site(folder: Path) -> Generator[Site]:
    """Run the command of the unit behind the nginx of the site, with tokens and rules."""
    skills = folder / "skills"
    write_skill(skills / "shared" / "hello")
    write_skill(skills / "acme" / "billing" / "refunds")
    tokens, [secret] = token_file(folder, "reader")
    trusted = certificate(folder / "tls")
    ports = free_ports(3)
    address = f"127.0.0.1:{ports[2]}"
    config = configuration(folder, ports, UPSTREAM, {"127.0.0.1:8000": address})
    replaced = {
        "/srv/skills": str(skills),
        "https://skills.example.com/mcp": f"https://localhost:{ports[1]}/mcp",
        "${CREDENTIALS_DIRECTORY}/tokens": str(tokens),
        "/etc/skillwire/serve.toml": str(OPTIONS),
    }
    words = with_replaced(command_of_the_unit()[2:], replaced)
    env = environment(folder / "home")
    with http_server(*words, env=env, bind=address, ready=False) as server:
        server.wait_for_words(r"serving .* at ")
        wait_until(lambda: is_ready(ports[2]), WITHIN, "a worker is ready")
        with running_nginx(config, ports[1]):
            yield Site(ports[1], ports[0], ports[2], skills, secret, trusted, lambda: server.words)


def is_ready(port: int) -> bool:
    """Ask a server whether it takes requests; waits as long as its workers need to start."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def is_answered(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Collector(ThreadingHTTPServer):
    """What spans are sent to: keeps the bodies of all that is posted."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Collecting)
        self.bodies: list[bytes] = []


class _Collecting(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            cast(Collector, self.server).bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def collecting() -> Generator[Collector]:
    with Collector() as collector:
        thread = Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join(WITHIN)


@contextmanager
def traced_server(collector: Collector, home: Path, *words: str | Path) -> Generator[serving.HttpServer]:
    """Serve under `opentelemetry-instrument`, with spans for a collector."""
    instrument = found("opentelemetry-instrument")
    env = environment(
        home,
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_address[1]}",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_TRACES_EXPORTER="otlp",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
        OTEL_SERVICE_NAME="skills-of-a-test",
        OTEL_BSP_SCHEDULE_DELAY="200",
    )

    def command(*args: str | Path) -> list[str]:
        # Without the two hyphens it would take options of the command, such as --config, for its own.
        return [instrument, "--", *serving.words_of(*args)]

    with serving.http_server(*words, env=env, command=command) as server:
        yield server
