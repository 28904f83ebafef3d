"""Web sites for tests: a scripted one on loopback, with or without encryption, and what to put on it."""

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from folders import skill_md
from skillwire.core.archive import pack
from skillwire.core.media import ArchiveFormat

INDEX = "/.well-known/agent-skills/index.json"
OLD_INDEX = "/.well-known/skills/index.json"
SCHEMA = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
TEA = skill_md("tea", body="Brew it.\n")

Json: TypeAlias = dict[str, Any]
Write: TypeAlias = Callable[[Callable[[bytes], object]], None]


@dataclass(frozen=True)
class Page:
    """What is at one path: a status, headers, and a body, or something that writes one without end."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    write: Write | None = None


@dataclass(frozen=True)
class Asked:
    """A request as it arrived."""

    path: str
    headers: Mapping[str, str]
    server: str


class WebSite:
    """What a scripted server shows; tests change `pages` and look at what was `asked`."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.port = 0
        self.pages: dict[str, Page] = {}
        self.asked: list[Asked] = []

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def put(self, path: str, body: bytes | Json, **headers: str) -> None:
        """Put a page at a path; what is an object becomes JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.pages[path] = Page(content, headers=named)

    def redirect(self, path: str, target: str, status: int = 302) -> None:
        self.pages[path] = Page(status=status, headers={"Location": target})

    def index(self, *entries: Json, **headers: str) -> None:
        self.put(INDEX, {"$schema": SCHEMA, "skills": list(entries)}, **headers)


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def single(content: bytes = TEA, name: str = "tea", url: str = "tea/SKILL.md", **more: Any) -> Json:
    """Return an index's entry of a skill of one file."""
    return {
        "name": name,
        "type": "skill-md",
        "description": f"Use when testing {name}.",
        "url": url,
        "digest": digest(content),
        **more,
    }


def packed(content: bytes, name: str = "bag", url: str = "bag.tar.gz") -> Json:
    """Return an index's entry of a skill in an archive."""
    return {**single(content, name, url), "type": "archive"}


def archive(name: str = "bag", files: Mapping[str, bytes] | None = None, *, as_zip: bool = False) -> bytes:
    content = {"SKILL.md": skill_md(name, body="Unpack.\n"), **(files or {"references/a.md": b"things\n"})}
    return pack(content, ArchiveFormat.ZIP if as_zip else ArchiveFormat.TAR_GZ)


@contextmanager
def web_site(tls: ssl.SSLContext | None = None) -> Generator[WebSite]:
    """Run a scripted site on loopback."""
    site = WebSite("http" if tls is None else "https")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server = self.connection.getsockname()[0]
            site.asked.append(Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, server))
            page = site.pages.get(self.path, Page(b"nothing here", 404))
            tag = page.headers.get("ETag")
            if tag is not None and self.headers.get("If-None-Match") == tag:
                page = Page(status=304, headers=page.headers)
            self.send_response(page.status)
            for name, value in page.headers.items():
                self.send_header(name, value)
            if page.write is None and page.status != 304:
                self.send_header("Content-Length", str(len(page.body)))
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                if page.write is not None:
                    page.write(self.wfile.write)
                else:
                    self.wfile.write(page.body)
            except OSError:
                pass
            self.close_connection = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def endless(write: Callable[[bytes], object]) -> None:
    while True:
        write(b"x" * 65536)


def slowly(write: Callable[[bytes], object]) -> None:
    for _ in range(600):
        write(b" ")
        time.sleep(0.1)


@dataclass(frozen=True)
class Certificate:
    """A certificate that signs itself, for a server, and what a client needs to believe it."""

    file: Path

    @classmethod
    def make(cls, folder: Path, *names: str) -> "Certificate":
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        now = datetime.now(UTC)
        alternatives = [_general_name(name) for name in names]
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        file = folder / f"{names[0].replace(':', '_')}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        file.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
        return cls(file)

    @property
    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file)
        return context

    @property
    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.file))


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Names:
    """A resolver that knows only what it is told; several answers are given one after the other."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(found) for name, found in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._answers.get(host)
        if not answers:
            raise OSError(f"no such name: {host}")
        return answers.pop(0) if len(answers) > 1 else answers[0]
