"""The page as `skillwire serve` serves it, asked over a socket."""

import html
import http.client
import json
import re
import shlex
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import pytest

from serving import ANSWERED_WITHIN, HttpServer, environment, http_server

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


def test_head_and_other_methods_are_answered_as_http_asks(server: HttpServer) -> None:
    whole, page = request(server, "GET", "/skills/sql-review")
    head, nothing = request(server, "HEAD", "/skills/sql-review")
    posted, _ = request(server, "POST", "/skills/sql-review", "x=1")
    known, _ = request(server, "GET", "/skills/sql-review", If_None_Match=whole.headers["etag"])

    assert nothing == "" and head.headers["content-length"] == str(len(page.encode()))
    assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")
    assert known.status == 304
