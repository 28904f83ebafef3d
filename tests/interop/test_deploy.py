"""The files in `deploy/`, judged by the tools of those they are written for, and run as far as a test can."""

import http.client
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import documents
from configs import configured
from deployed import (
    DEPLOY,
    LISTINGS,
    PROMPTLY,
    RULES,
    SITE,
    UNIT,
    WITHIN,
    Site,
    collecting,
    command_of_the_unit,
    found,
    listed_uris,
    run,
    running_site,
    traced_server,
    wait_until,
)
from folders import write_skill
from interop.tools import HERE, Node
from skillwire.cli.serve import app as serve_app
from skillwire.server.access.rules import parse_rules
from skillwire.server.access.settings import ANONYMOUS, Caller

CONTAINERFILE = DEPLOY / "Containerfile"
COMPOSE = DEPLOY / "compose.yaml"
DCLINT = HERE / "node_modules" / "dclint" / "bin" / "dclint.cjs"

# Tenths: how much of a machine a service could touch, as systemd sees it. Without hardening it is 96.
MOST_EXPOSED = 20


def commands() -> dict[str, list[str]]:
    """Return the arguments of `skillwire` in every file that has some."""
    cmd = re.search(r"(?m)^CMD (\[.*\])$", CONTAINERFILE.read_text())
    assert cmd is not None
    return {
        "unit": command_of_the_unit()[1:],
        "image": json.loads(cmd[1]),
        "compose": yaml.safe_load(COMPOSE.read_text())["services"]["skillwire"]["command"],
    }


@pytest.mark.parametrize("place", ["unit", "image", "compose"])
def test_every_option_that_a_file_uses_is_one_of_the_command(place: str) -> None:
    known = {name for parameter in typer.main.get_command(serve_app).params for name in parameter.opts}
    words = commands()[place]

    assert words[0] == "serve"
    used = {word for word in words if word.startswith("--")}
    assert used - known == set()


def test_all_files_and_the_page_about_them_mean_the_same_ports() -> None:
    site = SITE.read_text()
    compose = yaml.safe_load(COMPOSE.read_text())["services"]["skillwire"]
    page = documents.text_of("operations/start.md", "operations/proxy.md")

    at = {place: words[words.index("--http") + 1].rpartition(":")[2] for place, words in commands().items()}
    texts = "".join([site, page, CONTAINERFILE.read_text(), COMPOSE.read_text(), UNIT.read_text()])
    behind = set(re.findall(r"127\.0\.0\.1:(\d+)", texts)) | set(re.findall(r"EXPOSE (\d+)", texts))
    before = re.findall(r"(?m)^ +listen (?:\[::\]:)?(\d+)", site)

    assert {*at.values(), *behind} == {"8000"}
    assert before == ["80", "80", "443", "443"]
    assert compose["ports"] == ["0.0.0.0:80:80", "0.0.0.0:443:443"]
    assert set(re.findall(r"https://skills\.example\.com[^/\s]*", page)) == {"https://skills.example.com"}


@pytest.mark.parametrize("has_scripts", [False, True], ids=["plain", "scripts"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, has_scripts: bool) -> None:
    analyze = found("systemd-analyze")
    unit = tmp_path / UNIT.name
    # It looks for the programs, and ours is not installed.
    unit.write_text(UNIT.read_text().replace("/opt/skillwire/bin/skillwire", shutil.which("true") or ""))
    if has_scripts:
        hint = re.search(r"(?m)^#   (\[Service\]\n(?:#   .*\n)+)", UNIT.read_text())
        assert hint is not None
        (tmp_path / f"{UNIT.name}.d").mkdir()
        (tmp_path / f"{UNIT.name}.d" / "scripts.conf").write_text(hint[1].replace("#   ", ""))

    done = run(analyze, "verify", "--man=no", "--recursive-errors=no", unit)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_mistake_in_a_unit_would_be_found(tmp_path: Path) -> None:
    analyze = found("systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("ProtectClock=yes", "ProtectClocks=yes"))

    done = run(analyze, "verify", "--man=no", "--recursive-errors=no", unit)

    assert "ProtectClocks" in done.stderr


def test_the_service_can_touch_little_of_the_machine() -> None:
    analyze = found("systemd-analyze")

    done = run(analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", UNIT)

    assert done.returncode == 0, done.stdout[-3000:]


def test_hadolint_finds_nothing_wrong_with_the_containerfile(tmp_path: Path) -> None:
    hadolint = found("hadolint")
    worse = tmp_path / "Containerfile"
    worse.write_text(f"{CONTAINERFILE.read_text()}USER root\nRUN pip install requests\n")

    done = run(hadolint, "--failure-threshold", "style", CONTAINERFILE)
    objecting = run(hadolint, "--failure-threshold", "style", worse)

    assert (done.returncode, done.stdout) == (0, "")
    assert objecting.returncode == 1


def test_what_goes_into_the_image_is_there_and_runs_as_nobody_special() -> None:
    text = CONTAINERFILE.read_text()

    copied = [
        line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--" not in line
    ]

    names = [name for names in copied for name in names]
    assert names
    assert [name for name in names if not (DEPLOY.parent / name).exists()] == []
    assert re.findall(r"(?m)^USER (.*)$", text) == ["10001:10001"]


def test_the_compose_file_follows_the_schema_and_the_habits_of_its_kind(node: Node, tmp_path: Path) -> None:
    worse = tmp_path / COMPOSE.name
    worse.write_text(COMPOSE.read_text().replace("read_only:", "readonly:", 1))

    done = node.run(DCLINT, "--max-warnings", "0", COMPOSE)
    objecting = node.run(DCLINT, "--max-warnings", "0", worse)

    assert done.returncode == 0, done.stdout
    assert objecting.returncode == 1
    assert "invalid-schema" in objecting.stdout


def test_no_service_of_the_compose_file_may_write_or_rise() -> None:
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]

    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        for volume in service["volumes"]:
            assert volume["read_only"] is True, (name, volume)


def test_the_rules_allow_what_their_remarks_say() -> None:
    rules = parse_rules(RULES.read_bytes())

    someone = rules.visibility_of(Caller("a", token="a"))
    member = rules.visibility_of(Caller("a", token="a", groups=frozenset({"billing"})))
    prometheus = rules.visibility_of(Caller("prometheus", token="prometheus"))
    operator = rules.visibility_of(Caller("operator", token="operator"))

    assert (someone.prefixes, someone.runnable, someone.can_operate) == (("skill://shared",), (), False)
    assert member.prefixes == ("skill://acme/billing", "skill://shared")
    assert member.runnable == ("skill://acme/billing",)
    assert prometheus.can_operate and not operator.prefixes == prometheus.prefixes
    assert operator.is_unrestricted and operator.can_operate
    assert rules.visibility_of(ANONYMOUS).prefixes == ()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def test_both_generations_are_served_over_tls_and_see_what_the_rules_allow(site: Site) -> None:
    assert site.listed("modern") == site.listed("legacy") == ["skill://shared/hello/SKILL.md"]


def test_who_has_no_token_is_turned_away(site: Site) -> None:
    with site.connection() as connection:
        response = site.post(connection, LISTINGS["modern"], Authorization="Bearer wrong")
        body = response.read()

    assert response.status == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer ")
    assert b"shared" not in body


def test_a_stream_is_not_held_back_by_the_proxy(site: Site) -> None:
    start = time.monotonic()
    with site.listening() as next_event:
        heard = next_event()
        write_skill(site.folder / "shared" / "later")
        told = next_event()
        took = time.monotonic() - start

    assert heard is not None and heard["method"] == "notifications/subscriptions/acknowledged"
    assert told is not None and told["method"] == "notifications/resources/list_changed"
    assert took < PROMPTLY
    shutil.rmtree(site.folder / "shared" / "later")
    wait_until(lambda: len(site.listed()) == 1, WITHIN, "it is gone again")


def test_the_proxy_gives_each_request_an_id_that_the_log_and_the_answer_carry(site: Site) -> None:
    with site.connection() as connection:
        response = site.post(connection, LISTINGS["modern"], **{"X-Request-Id": "mine"})
        response.read()
    name = response.headers["X-Request-Id"]

    assert re.fullmatch(r"[0-9a-f]{32}", name)
    wait_until(lambda: name in site.words(), WITHIN, "the line of the request")
    line = json.loads(next(line for line in site.words().splitlines() if name in line))
    assert (line["mcp"], line["status"], line["caller"]) == ("skills/list", 200, "reader")
    assert site.token not in site.words()


def test_strangers_are_told_apart_behind_the_proxy_so_that_none_uses_up_what_others_may(site: Site) -> None:
    with site.connection("127.0.0.2") as connection:
        statuses = list[int]()
        while 429 not in statuses and len(statuses) < 2000:
            response = site.post(
                connection,
                LISTINGS["modern"],
                Authorization="Bearer wrong",
                **{"X-Forwarded-For": "127.0.0.3"},
            )
            response.read()
            statuses.append(response.status)
    with site.connection("127.0.0.3") as connection:
        other = site.post(connection, LISTINGS["modern"], Authorization="Bearer wrong")
        other.read()

    assert set(statuses) == {401, 429}
    assert other.status == 401


def test_how_the_server_does_and_what_is_too_large_stop_at_the_proxy(site: Site) -> None:
    with site.connection() as connection:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {site.token}"})
        metrics = connection.getresponse()
        metrics.read()
        connection.request("POST", "/mcp", headers={"Content-Length": str(5 * 1024 * 1024)})
        large = connection.getresponse()
        large.read()
    with site.connection() as connection:
        connection.request("GET", "/readyz")
        ready = connection.getresponse()
        ready.read()

    assert (metrics.status, large.status, ready.status) == (404, 413, 200)
    assert metrics.headers["Server"] == "nginx"
    assert metrics.headers["Strict-Transport-Security"] == "max-age=31536000"


def test_who_comes_without_tls_is_sent_where_it_is(site: Site) -> None:
    connection = http.client.HTTPConnection("localhost", site.plain_port, timeout=WITHIN)
    try:
        connection.request("GET", "/skills")
        response = connection.getresponse()
        response.read()
    finally:
        connection.close()

    assert (response.status, response.headers["Location"]) == (301, "https://localhost/skills")


def test_opentelemetry_instrument_sends_spans_of_all_workers_to_a_collector(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "hello")
    words = (tmp_path / "skills", "--workers", "2", *configured(tmp_path, access_log=True))

    with collecting() as collector, traced_server(collector, tmp_path, *words) as server:
        listed = [listed_uris(server.call(LISTINGS["modern"])) for _ in range(6)]
        # An exporter sends in its own time; at its end the server sends what is left.
        assert server.stop() == 0

    assert listed == [["skill://hello/SKILL.md"]] * 6
    sent = b"".join(collector.bodies)
    assert b"skills-of-a-test" in sent
    # The names of the SDK's span and of ours: also of requests that have a ready answer otherwise.
    assert sent.count(b"\x2a\x0bskills/list") == 6
    assert sent.count(b"\x2a\x04/mcp") == 6
    lines = [json.loads(line) for line in server.words.splitlines() if line.startswith('{"time"')]
    traces = {bytes.fromhex(line["trace_id"]) for line in lines}
    assert len(traces) == 6
    assert all(trace in sent for trace in traces)
