"""The page as `skillwire serve` serves it, asked over a socket."""

import html
import http.client
import json
import re
import shlex
import subprocess
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import pytest

from programs import http_server, skillwire_command
from serving import ANSWERED_WITHIN, HttpServer, environment

EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[HttpServer]:
    with http_server(EXAMPLES, env=environment(tmp_path_factory.mktemp("home"))) as server:
        yield server


def request(
    server: HttpServer, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=ANSWERED_WITHIN)
    try:
        every = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, every)
        response = connection.getresponse()
        return response, response.read().decode("utf-8", "replace")
    finally:
        connection.close()


def test_every_link_of_the_page_leads_somewhere_on_this_server(server: HttpServer) -> None:
    waiting, seen = ["/"], {"/"}
    while waiting:
        path = waiting.pop()
        response, page = request(server, "GET", path)
        assert response.status == 200, path
        if response.headers.get_content_type() != "text/html" or "download" in path:
            continue
        for href in map(html.unescape, re.findall(r'(?:href|src)="([^"#]+)', page)):
            # Rendered instructions of the examples may lead to other sites; nothing else does.
            if re.match(r"https?://|mailto:", href):
                continue
            target = resolved(path, href)
            if target not in seen:
                seen.add(target)
                waiting.append(target)

    assert {"/connect", "/skills/acme", "/skills/acme/billing/refunds", "/files/hello-world/SKILL.md"} <= seen


def resolved(path: str, href: str) -> str:
    """Follow a relative link as a browser would."""
    if href.startswith("?"):
        return path.partition("?")[0] + href
    steps = path.partition("?")[0].split("/")[1:-1]
    parts = href.split("/")
    while parts[0] in ("..", "."):
        if parts.pop(0) == "..":
            steps.pop()
    return "/" + "/".join([*steps, *parts])


def test_the_command_for_curl_lists_the_skills(server: HttpServer) -> None:
    _, page = request(server, "GET", "/connect")
    found = re.search(r'<code id="way-curl">(.*?)</code>', page, re.DOTALL)
    assert found
    words = shlex.split(html.unescape(found[1]).replace("\\\n", " "))

    headers = dict(word.split(": ", 1) for flag, word in pairwise(words) if flag == "-H")
    response, answer = request(server, "POST", "/mcp", words[-1], **headers)

    assert words[1] == server.url
    assert response.status == 200
    assert len(json.loads(answer)["result"]["skills"]) == 12


@pytest.mark.parametrize("path", ["/skills/sql-review", "/skills/acme/billing/refunds"])
def test_the_lines_to_copy_work_as_they_are(server: HttpServer, path: str, tmp_path: Path) -> None:
    _, page = request(server, "GET", path)
    lines = [
        html.unescape(text) for text in re.findall(r'<code class="once" id="[a-z-]+">(.*?)</code>', page)
    ]
    added, loaded = (shlex.split(line) for line in lines[1].split(" && "))

    # Loading asks a person first; showing finds the skill in the same way.
    results = [
        subprocess.run(
            skillwire_command(*words),
            cwd=tmp_path,
            env=environment(tmp_path / "home"),
            capture_output=True,
            text=True,
            timeout=120,
        )
        for words in (added[1:], ["show", *loaded[2:]], loaded[1:])
    ]

    assert [added[:2], loaded[:2]] == [["skillwire", "add"], ["skillwire", "load"]]
    assert json.loads((tmp_path / ".mcp.json").read_text()) == json.loads(lines[0])
    assert [result.returncode for result in results] == [0, 0, 1], [result.stderr for result in results]
    assert path.removeprefix("/skills/") in results[1].stdout
    assert "no skill is called" not in results[2].stderr


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def test_a_browser_at_the_address_for_clients_is_told_what_it_is(server: HttpServer) -> None:
    shown, page = request(server, "GET", "/mcp", Accept=BROWSER)
    head, nothing = request(server, "HEAD", "/mcp", Accept=BROWSER)

    assert (shown.status, shown.headers.get_content_type()) == (406, "text/html")
    assert "This URL is for MCP clients" in page and server.url in page
    assert 'href="./connect"' in page and 'href="./"' in page
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    assert (shown.headers["cache-control"], shown.headers["vary"]) == ("no-store", "accept")
    assert (head.status, nothing) == (406, "")
    slash, _ = request(server, "GET", "/mcp/", Accept=BROWSER)
    assert (slash.status, slash.headers["location"]) == (307, "../mcp")
    assert head.headers["content-length"] == str(len(page.encode()))


@pytest.mark.parametrize(
    ("accept", "session"),
    [(f"{BROWSER}, text/event-stream", ""), ("text/event-stream", ""), ("*/*", ""), (BROWSER, "0" * 32)],
)
def test_clients_at_their_address_get_no_page(server: HttpServer, accept: str, session: str) -> None:
    headers = {"Mcp_Session_Id": session} if session else {}
    response, _ = request(server, "GET", "/mcp", Accept=accept, **headers)

    assert response.headers.get_content_type() == "application/json"


def test_a_browser_is_told_so_too_where_there_are_no_sessions_or_a_token_is_needed(tmp_path: Path) -> None:
    env = environment(tmp_path / "home")
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    private = ("--token-file", tokens, "--name", "Secret plans")
    with (
        http_server(EXAMPLES, "--workers", "2", env=env) as several,
        http_server(EXAMPLES, *private, env=env) as guarded,
    ):
        one, page = request(several, "GET", "/mcp", Accept=BROWSER)
        other, hidden = request(guarded, "GET", "/mcp", Accept=BROWSER)
        home, _ = request(guarded, "GET", "/", Accept=BROWSER)

    assert (one.status, one.headers["allow"]) == (405, "POST")
    assert (other.status, home.status) == (406, 401)
    assert all("This URL is for MCP clients" in text for text in (page, hidden))
    assert "Secret plans" not in hidden


def test_head_and_other_methods_are_answered_as_http_asks(server: HttpServer) -> None:
    whole, page = request(server, "GET", "/skills/sql-review")
    head, nothing = request(server, "HEAD", "/skills/sql-review")
    posted, _ = request(server, "POST", "/skills/sql-review", "x=1")
    known, _ = request(server, "GET", "/skills/sql-review", If_None_Match=whole.headers["etag"])

    assert nothing == "" and head.headers["content-length"] == str(len(page.encode()))
    assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")
    assert known.status == 304
