"""`deploy/catalog/` put to work: two servers of one catalog on a real PostgreSQL, behind a real nginx."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import psycopg
import yaml

import serving
from deployed import (
    DEPLOY,
    RULES,
    UPSTREAM,
    WITHIN,
    Site,
    certificate,
    configuration,
    free_ports,
    running_nginx,
    token_file,
    with_replaced,
)
from integration.catalog.catalog_world import start_postgres
from programs import skillwire_command
from serving import HttpServer, environment, wait_until

CATALOG = DEPLOY / "catalog"
SERVICES: dict[str, Any] = yaml.safe_load((CATALOG / "compose.yaml").read_text())["services"]
REPLICAS = ("skillwire-1", "skillwire-2")
PASSWORD = "correct-horse"


@contextmanager
def database(folder: Path) -> Generator[str]:
    """Run a PostgreSQL whose user `skillwire` needs a password; yield the URL without it."""
    server = start_postgres(folder / "data")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE skillwire LOGIN PASSWORD '{PASSWORD}'".encode())
            connection.execute("CREATE DATABASE skillwire OWNER skillwire")
            rules = folder / "data" / "pg_hba.conf"
            rules.write_text(f"local all skillwire scram-sha-256\n{rules.read_text()}")
            connection.execute("SELECT pg_reload_conf()")
            [[place]] = connection.execute("SHOW unix_socket_directories").fetchall()
        url = f"postgresql://skillwire@/skillwire?host={quote(place, safe='')}"
        wait_until(lambda: needs_password(url), WITHIN, "the server has read the rules")
        yield url
    finally:
        server.cleanup()


def needs_password(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return True
    return False


@dataclass
class Deployment:
    """What compose.yaml runs: two servers behind nginx, and a command that publishes."""

    folder: Path
    url: str
    ports: list[int]
    words: list[str]
    operator: str
    stack: ExitStack
    servers: list[HttpServer] = field(default_factory=list[HttpServer])

    def environment(self, service: str) -> dict[str, str]:
        """Return the variables of a service, with other values."""
        variables = SERVICES[service]["environment"]
        replaced = {
            "postgresql://skillwire@db/skillwire": self.url,
            "/run/secrets/pgpass": str(self.folder / "pgpass"),
        }
        assert set(variables.values()) == set(replaced)
        changed = {name: replaced[value] for name, value in variables.items()}
        return environment(self.folder / service, **changed)

    def start(self, number: int) -> HttpServer:
        """Start a server; it is the last of `servers`."""
        env = self.environment(REPLICAS[number])
        server = serving.http_server(*self.words, env=env, bind=f"127.0.0.1:{self.ports[2 + number]}")
        return self.stack.enter_context(server)

    def answers(self, server: HttpServer) -> int:
        """Return how many listings a server has answered, by its metrics."""
        request = Request(f"http://127.0.0.1:{server.port}/metrics")
        request.add_header("Authorization", f"Bearer {self.operator}")
        with urlopen(request, timeout=WITHIN) as response:
            text = response.read().decode()
        counts = re.findall(r'(?m)^skillwire_requests_total\{[^}]*"skills/list"[^}]*\} (\d+)', text)
        return sum(map(int, counts))

    def publish(self) -> None:
        """Publish as `docker compose run publish` does."""
        words = SERVICES["publish"]["command"]
        assert words == ["publish", "/srv/skills"]
        command = skillwire_command("publish", self.folder / "skills")
        env = self.environment("publish")
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WITHIN, check=False)
        assert done.returncode == 0, done.stderr


@contextmanager
def running_catalog(folder: Path) -> Generator[tuple[Deployment, Site]]:
    """Publish the folder `skills`, and run the servers of compose.yaml and the proxy in front of them."""
    with tempfile.TemporaryDirectory(prefix="pg") as short, ExitStack() as stack:
        url = stack.enter_context(database(Path(short)))
        ports = free_ports(4)
        tokens, [secret, operator] = token_file(folder, "reader", "prometheus")
        replaced = {
            "https://skills.example.com/mcp": f"https://localhost:{ports[1]}/mcp",
            "/run/secrets/tokens": str(tokens),
            "/etc/skillwire/serve.toml": str(options(folder)),
        }
        assert SERVICES[REPLICAS[0]]["command"] == SERVICES[REPLICAS[1]]["command"]
        words = with_replaced(SERVICES[REPLICAS[0]]["command"][1:], replaced)
        (folder / "pgpass").touch(mode=0o600)
        (folder / "pgpass").write_text(f"*:5432:skillwire:skillwire:{PASSWORD}\n")
        deployed = Deployment(folder, url, ports, words, operator, stack)
        deployed.publish()
        deployed.servers += [deployed.start(0), deployed.start(1)]
        yield deployed, stack.enter_context(balancer(folder, ports, secret))


@contextmanager
def balancer(folder: Path, ports: list[int], token: str) -> Generator[Site]:
    """Run the proxy of compose.yaml for two servers, which have the last two ports."""
    trusted = certificate(folder / "tls")
    addresses = {f"10.200.200.1{one}:8000": f"127.0.0.1:{ports[1 + one]}" for one in (1, 2)}
    config = configuration(folder, ports, CATALOG / UPSTREAM.name, addresses)
    with running_nginx(config, ports[1]):
        yield Site(ports[1], ports[0], ports[2], folder / "skills", token, trusted, lambda: "")


def options(folder: Path) -> Path:
    """Write the options of the servers, with more requests than people make."""
    text = (CATALOG / "serve.toml").read_text()
    for old, new in (("10.200.200.10", "127.0.0.1"), ("50/200", "9999/9999")):
        assert old in text
        text = text.replace(old, new)
    shutil.copy(RULES, folder / "access.toml")
    (folder / "serve.toml").write_text(text)
    return folder / "serve.toml"
