"""`skillwire serve` for others: several processes, TLS, tokens and rules, read again while it serves."""

import http.client
import json
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Generator
from pathlib import Path
from signal import SIGHUP

import pytest

from configs import configured
from folders import write_skill
from integration.access_world import token_line, token_of
from programs import http_server
from serving import MODERN, HttpServer, environment, modern, wait_until

pytestmark = pytest.mark.requirement("SEC-14")

RULES = (
    '[[rule]]\ntokens = ["few"]\nsee = ["acme"]\n\n[[rule]]\ntokens = ["many"]\nsee = ["*"]\noperate = true\n'
)


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate for this machine, and its key."""
    chain, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-out", chain, "-keyout", key], check=True, capture_output=True, timeout=60)
    return chain, key


class Site:
    """A running server with two workers, and everything it was started with."""

    def __init__(self, server: HttpServer, folder: Path) -> None:
        self.server = server
        self.tokens = folder / "tokens"
        self.rules = folder / "access.toml"
        self.chain, self.key = folder / "live.pem", folder / "live.key"
        self._trust = ssl.create_default_context()
        self._trust.check_hostname = False
        self._trust.verify_mode = ssl.CERT_NONE

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.server.port, context=self._trust, timeout=30)

    def ask(self, method: str, token: str) -> tuple[int, bytes]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "mcp-protocol-version": MODERN,
            "mcp-method": method,
            "authorization": f"Bearer {token}",
        }
        return self.request("POST", "/mcp", json.dumps(modern(method)), headers)

    def get(self, path: str, token: str) -> tuple[int, bytes]:
        return self.request("GET", path, None, {"authorization": f"Bearer {token}"})

    def request(self, verb: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = self.connection()
        try:
            connection.request(verb, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def seen_by(self, name: str) -> set[str]:
        status, body = self.ask("skills/list", token_of(name))
        assert status == 200, body
        return {entry["uri"] for entry in json.loads(body)["result"]["skills"]}

    def certificate(self) -> bytes:
        connection = self.connection()
        try:
            connection.connect()
            found = connection.sock.getpeercert(binary_form=True)
            assert found is not None
            return found
        finally:
            connection.close()

    def reload(self) -> None:
        self.server.send_signal(SIGHUP)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    folder = tmp_path_factory.mktemp("site")
    write_skill(folder / "skills" / "acme" / "open")
    write_skill(folder / "skills" / "secret" / "plan")
    tokens = folder / "tokens"
    tokens.write_text("".join(token_line(name, token_of(name)) for name in ("few", "many", "old")))
    tokens.chmod(0o600)
    (folder / "access.toml").write_text(RULES)
    for path, name in zip(certificate(folder, "first"), ("live.pem", "live.key"), strict=True):
        path.rename(folder / name)
    config = configured(
        folder, access="access.toml", access_log=True, tls_cert="live.pem", tls_key="live.key"
    )
    options = ["--token-file", tokens, "--workers", "2", *config]
    with http_server(folder / "skills", *options, env=environment(folder), bind="127.0.0.1:0") as server:
        found = Site(server, folder)
        wait_until(lambda: workers_up(found) == 2, 60, "both workers answer")
        yield found


def workers_up(site: Site) -> int:
    try:
        _, body = site.get("/metrics", token_of("many"))
    except OSError:
        return 0
    return len(re.findall(rb'^skillwire_worker_up\{worker="\d"\} 1$', body, re.MULTILINE))


def test_it_speaks_tls_and_says_so(site: Site) -> None:
    assert site.server.url.startswith("https://")


def test_each_caller_sees_what_the_rules_say_whichever_worker_answers(site: Site) -> None:
    for _ in range(8):
        assert site.seen_by("few") == {"skill://acme/open/SKILL.md"}
        assert len(site.seen_by("many")) == 2
    assert site.seen_by("old") == set()
    assert site.ask("skills/list", "")[0] == 401


def test_metrics_are_for_those_who_operate_and_count_for_all_workers(site: Site) -> None:
    both = b'skillwire_worker_up{worker="1"} 1'
    wait_until(lambda: both in site.get("/metrics", token_of("many"))[1], 60, "both workers are up")
    for _ in range(10):
        site.seen_by("many")

    status, body = site.get("/metrics", token_of("many"))
    other, _ = site.get("/metrics", token_of("few"))

    assert status == 200
    assert other == 404
    [line] = [
        line
        for line in body.decode().splitlines()
        if line.startswith('skillwire_requests_total{method="skills/list",outcome="ok"}')
    ]
    assert float(line.rpartition(" ")[2]) >= 10
    assert both in body


def test_a_hangup_reads_tokens_rules_and_certificate_again_in_every_worker(site: Site) -> None:
    before = site.certificate()
    kept = [line for line in site.tokens.read_text().splitlines() if not line.startswith("old")]
    site.tokens.write_text("\n".join(kept) + "\n")
    site.rules.write_text(RULES.replace('"acme"', '"secret"'))
    for path, place in zip(certificate(site.tokens.parent, "second"), (site.chain, site.key), strict=True):
        path.replace(place)

    site.reload()

    wait_until(
        lambda: {site.ask("skills/list", token_of("old"))[0] for _ in range(6)} == {401}, 15, "revoked"
    )
    wait_until(lambda: site.seen_by("few") == {"skill://secret/plan/SKILL.md"}, 15, "other rules")
    wait_until(lambda: before not in {site.certificate() for _ in range(6)}, 15, "another certificate")


def test_no_request_is_dropped_while_the_configuration_is_read_again(site: Site) -> None:
    statuses: list[int] = []

    def ask_on_one_connection() -> None:
        connection = site.connection()
        body = json.dumps(modern("skills/list"))
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "mcp-protocol-version": MODERN,
            "mcp-method": "skills/list",
            "authorization": f"Bearer {token_of('many')}",
        }
        for _ in range(100):
            connection.request("POST", "/mcp", body, headers)
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()

    askers = [threading.Thread(target=ask_on_one_connection) for _ in range(4)]
    for asker in askers:
        asker.start()
    while any(asker.is_alive() for asker in askers):
        site.reload()
        time.sleep(0.05)

    assert statuses == [200] * 400


@pytest.mark.parametrize("what", ["only the chain is new", "only the key is new", "the key is none"])
def test_a_certificate_that_cannot_be_used_leaves_the_old_one(site: Site, tmp_path: Path, what: str) -> None:
    before, told = site.certificate(), "the previous one stays in use"
    said = site.server.words.count(told)
    new_chain, new_key = certificate(tmp_path, "new")
    live, content = {
        "only the chain is new": (site.chain, new_chain.read_bytes()),
        "only the key is new": (site.key, new_key.read_bytes()),
        "the key is none": (site.key, b"nonsense\n"),
    }[what]
    whole = live.read_bytes()
    live.write_bytes(content)

    site.reload()

    wait_until(lambda: site.server.words.count(told) == said + 2, 15, "a word of each worker")
    assert {site.certificate() for _ in range(6)} == {before}
    live.write_bytes(whole)


def test_the_log_tells_who_asked_and_never_with_what(site: Site) -> None:
    site.seen_by("many")

    wait_until(lambda: '"caller":"many"' in site.server.words, 10, "a line of the log")
    assert token_of("many") not in site.server.words
    assert "skw_" not in site.server.words
