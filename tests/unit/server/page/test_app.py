"""The page without a browser: what is where, what every answer carries, and what is never told."""

import html
import json
import re
import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.responses import Response

from folders import skill_md, write_files
from skillwire.core.entry import SkillEntry
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.server.answers import ResultSettings
from skillwire.server.page import PageApp
from skillwire.server.skills import Origin, Skills
from skillwire.sources import DynamicSkill
from skillwire.sources.snapshot import MAX_ENCLOSING
from talking import Json, PlainSource, skill

HOSTILE = '</title><script>alert(1)</script>" onclick="x'


class Browser:
    """Asks a page for paths, as a server would on behalf of a browser."""

    def __init__(self, skills: Skills) -> None:
        self.page = PageApp()
        self.skills = skills

    async def ask(
        self,
        path: str,
        query: str = "",
        *,
        method: str = "GET",
        host: str = "skills.example",
        known: str = "",
        public_url: str = "",
        caller: str = "",
        is_private: bool = False,
    ) -> Response:
        every = {"host": host, "if-none-match": known}
        scope = {
            "type": "http",
            "method": method,
            "scheme": "https",
            "path": path,
            "raw_path": quote(path).encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in every.items()],
        }
        return await self.page.respond(
            Request(scope), self.skills, public_url=public_url, caller=caller, is_private=is_private
        )

    async def text(self, path: str, query: str = "") -> str:
        response = await self.ask(path, query)
        assert response.status_code == 200, path
        return bytes(response.body).decode()


@asynccontextmanager
async def browsing(*origins: Origin, ttl_ms: int = 60_000) -> AsyncGenerator[Browser]:
    skills = Skills(origins, result_settings=ResultSettings(ttl_ms=ttl_ms), watch=False)
    async with skills.open():
        yield Browser(skills)


REFUNDS = (
    Skill(
        "refunds", path="acme/billing/refunds", description="Use when money goes back.", body="# Go\n\nDo.\n"
    )
    .with_reference("references/policy.md", "The policy.")
    .with_reference("data/odd name é%.bin", b"\0\1")
)


@pytest.mark.parametrize(
    ("path", "is_its_own"),
    [
        ("/", True),
        ("/connect", True),
        ("/robots.txt", True),
        ("/skills/acme", True),
        ("/files/a/SKILL.md", True),
        ("/static/page.css", True),
        ("/mcp", False),
        ("/skillset", False),
        ("/.well-known/agent-skills/index.json", False),
        ("/healthz", False),
    ],
)
def test_the_page_owns_its_paths_and_no_others(path: str, is_its_own: bool) -> None:
    assert PageApp().owns(path) is is_its_own


async def test_the_catalog_shows_every_skill_and_the_folders_they_lie_in() -> None:
    async with browsing(REFUNDS, skill("acme/support/triage"), skill("hello")) as browser:
        home = await browser.text("/")
        folder = await browser.text("/skills/acme")

    assert all(f'href="./skills/{path}"' in home for path in ("acme/billing/refunds", "acme/support/triage"))
    assert 'href="./skills/acme"' in home and "3 skills" in home
    assert 'href="../skills/acme/billing"' in folder and "hello" not in folder and "2 skills" in folder


async def test_a_long_catalog_comes_in_pages_of_fifty() -> None:
    async with browsing(*(skill(f"s{number:03}") for number in range(120))) as browser:
        pages = [await browser.text("/", f"page={number}") for number in (1, 2, 3)]
        beyond = [
            (await browser.ask("/", f"page={text}")).status_code for text in ("4", "0", "-1", "x", "9" * 9)
        ]

    assert [page.count('class="row"') for page in pages] == [50, 50, 20]
    assert "51 to 100 of 120 skills" in pages[1]
    assert 'href="?page=1"' in pages[1] and 'href="?page=3"' in pages[1]
    assert beyond == [404] * 5


async def test_searching_needs_no_script_and_keeps_the_words_in_the_form() -> None:
    async with browsing(REFUNDS, *(skill(f"tea-{number}") for number in range(60))) as browser:
        found = await browser.text("/", "q=money+back")
        many = await browser.text("/", "q=tea&page=2")
        nothing = await browser.text("/", "q=zebra")
        odd = await browser.text("/", "q=%22%3E%3Cscript%3E" + "x" * 600)

    assert found.count('class="row"') == 1 and 'value="money back"' in found
    assert many.count('class="row"') == 10 and 'href="?q=tea&amp;page=1"' in many
    assert "No matching skills." in nothing
    assert "<script>" not in odd


async def test_the_page_of_a_skill_shows_its_instructions_files_digests_and_fields() -> None:
    async with browsing(REFUNDS) as browser:
        page = await browser.text("/skills/acme/billing/refunds")
        manifest = browser.skills.source.snapshot.entries[0].manifest

    assert manifest is not None
    assert "<h1><bdi>refunds</bdi></h1>" in page and "Use when money goes back." in page
    assert '<h3 id="body-go">Go</h3><p>Do.</p>' in page
    assert all(digest in page for digest in manifest.digests)
    assert 'href="../../../files/acme/billing/refunds/data/odd%20name%20%C3%A9%25.bin"' in page
    assert "skill://acme/billing/refunds/SKILL.md" in page


async def test_scripts_and_tools_that_are_asked_for_show_in_the_list_and_on_the_skill(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "busy/SKILL.md": skill_md("busy", extra=f"allowed-tools: 'Bash(rm:*) {HOSTILE}'\n"),
            "busy/scripts/one.py": "print(1)\n",
            "busy/scripts/two.sh": "echo\n",
            "quiet/SKILL.md": skill_md("quiet"),
        },
    )
    async with browsing(tmp_path) as browser:
        home = await browser.text("/")
        found = await browser.text("/", "q=busy")
        busy, quiet = await browser.text("/skills/busy"), await browser.text("/skills/quiet")

    for page in (home, found, busy):
        assert page.count("2 scripts</span>") == page.count("asks for tools</span>") == 1
    assert "Bash(rm:*) &lt;/title&gt;&lt;script&gt;" in busy
    assert "<script>alert" not in home + busy
    assert "badge scripts" not in quiet and "badge tools" not in quiet


@pytest.mark.parametrize("is_private", [False, True])
async def test_the_page_of_a_skill_has_lines_to_copy_that_use_it(is_private: bool) -> None:
    async with browsing(REFUNDS, skill("handbook/tea", scheme="docs")) as browser:
        browser.page = PageApp(name="Acme & Söhne: Support")
        pages = [
            bytes((await browser.ask(path, is_private=is_private)).body).decode()
            for path in ("/skills/acme/billing/refunds", "/skills/docs:/handbook/tea")
        ]

    first, second = (
        [html.unescape(text) for text in re.findall(r'<code class="once" id="[a-z-]+">(.*?)</code>', page)]
        for page in pages
    )
    server = json.loads(first[0])["mcpServers"]["acme-s-hne-support"]
    assert server["url"] == "https://skills.example/mcp"
    assert ("headers" in server) is is_private
    added = ["skillwire", "add", "acme-s-hne-support", "https://skills.example/mcp", "&&"]
    reference = "acme-s-hne-support/skill://acme/billing/refunds"
    if is_private:  # What needs a token is used as the first line configures it.
        assert shlex.split(first[1]) == ["skillwire", "load", "--config", ".mcp.json", reference]
    else:
        assert shlex.split(first[1]) == [*added, "skillwire", "load", reference]
    assert shlex.split(second[1])[-1] == "acme-s-hne-support/docs://handbook/tea"


async def test_every_page_says_which_server_it_is_of() -> None:
    async with browsing(REFUNDS) as browser:
        browser.page = PageApp(name=HOSTILE)
        pages = [
            await browser.text(path)
            for path in ("/", "/connect", "/skills/acme", "/skills/acme/billing/refunds")
        ]
        unnamed = await PageApp().respond(
            Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}),
            browser.skills,
        )

    for page in pages:
        assert page.count("&lt;/title&gt;&lt;script&gt;alert(1)") >= 2 and "<script>alert" not in page
    assert "<h1><bdi>&lt;/title&gt;" in pages[0]
    assert b"<title>Agent Skills</title>" in unnamed.body


@pytest.mark.requirement("INT-09")
async def test_no_page_calls_a_skill_verified_or_safe() -> None:
    async with browsing(REFUNDS) as browser:
        for path in ("/", "/connect", "/skills/acme/billing/refunds", "/files/acme/billing/refunds/SKILL.md"):
            page = await browser.text(path)
            assert "verified" not in page.lower()
            assert "They do not say that a skill is safe" in page


async def test_a_file_is_shown_line_by_line_and_can_be_downloaded_as_it_is() -> None:
    async with browsing(REFUNDS) as browser:
        page = await browser.text("/files/acme/billing/refunds/SKILL.md")
        binary = await browser.text("/files/acme/billing/refunds/data/odd name é%.bin")
        download = await browser.ask("/files/acme/billing/refunds/data/odd name é%.bin", "download=1")

    assert '<span class="line" id="L2">name: refunds\n</span>' in page
    assert "This is a binary file" in binary
    assert download.body == b"\0\1"
    assert download.headers["content-type"] == "application/octet-stream"
    assert download.headers["content-disposition"] == (
        "attachment; filename=\"odd name __.bin\"; filename*=UTF-8''odd%20name%20%C3%A9%25.bin"
    )
    assert "sandbox" in download.headers["content-security-policy"]


async def test_a_huge_file_is_cut_and_says_so() -> None:
    large = skill("large", body="x" * 3_000_000).with_reference("lines.txt", "a\n" * 50_000)
    async with browsing(large) as browser:
        one_line = await browser.text("/files/large/SKILL.md")
        lines = await browser.text("/files/large/lines.txt")
        page = await browser.text("/skills/large")

    assert "The file is too long to be shown completely." in one_line and len(one_line) < 400_000
    assert lines.count('class="line"') == 5_000 and "The file is too long" in lines
    assert "The instructions are too long to be shown completely." in page and len(page) < 200_000


async def test_every_answer_forbids_what_a_page_never_needs() -> None:
    async with browsing(REFUNDS) as browser:
        style = (await browser.text("/")).partition("static/page.")[2].partition(".css")[0]
        for path in ("/", "/connect", "/nothing", f"/static/page.{style}.css", "/robots.txt"):
            headers = (await browser.ask(path)).headers
            policy = headers["content-security-policy"].split("; ")
            assert policy[:5] == [
                "default-src 'none'",
                "style-src 'self'",
                "script-src 'self'",
                "img-src 'self'",
                "form-action 'self'",
            ]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-frame-options"] == "DENY"
            assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_page_that_is_known_is_not_sent_again_until_it_changes() -> None:
    async with browsing(skill("one")) as browser:
        first = await browser.ask("/")
        known = first.headers["etag"]
        again = await browser.ask("/", known=known)
        browser.skills.add(skill("two"))
        await browser.skills.source.refresh()
        changed = await browser.ask("/", known=known)

    assert first.headers["cache-control"] == "public, max-age=10"
    assert (again.status_code, again.body) == (304, b"")
    assert changed.status_code == 200 and changed.headers["etag"] != first.headers["etag"]


@pytest.mark.requirement("SEC-14")
async def test_what_is_for_one_caller_is_kept_by_nobody() -> None:
    async with browsing(REFUNDS) as browser:
        for path in ("/", "/skills/acme/billing/refunds", "/files/acme/billing/refunds/SKILL.md", "/connect"):
            response = await browser.ask(path, caller=f"ada {HOSTILE}", is_private=True)
            assert response.headers["cache-control"] == "private, no-store"
            assert "etag" not in response.headers
            assert b"Signed in as" in response.body and b"<script>" not in response.body


async def test_a_skill_that_is_made_when_it_is_read_is_shown_and_not_kept() -> None:
    count = iter(range(100))
    live = DynamicSkill("live", description="Use when testing.", body=lambda: f"Number {next(count)}.\n")
    async with browsing(live) as browser:
        first, second = [await browser.ask("/skills/live") for _ in range(2)]

    assert b"dynamic content without digests" in first.body
    assert first.body != second.body
    assert first.headers["cache-control"] == "private, no-store"


async def test_a_skill_that_is_served_and_not_listed_has_a_page() -> None:
    async with browsing(PlainSource(skill("seen"), unlisted=[skill("unseen")])) as browser:
        home = await browser.text("/")
        assert "Do it." in await browser.text("/skills/unseen")
        assert "Do it." in await browser.text("/files/unseen/SKILL.md")

    assert "skills/unseen" not in home


class CountingSource(PlainSource):
    """A source that has a file at every URI, and counts how often it is asked for a skill."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        self.calls += 1
        return await super().get_skill(uri)

    async def read_file(self, uri: str) -> bytes:
        return b"text"


@pytest.mark.requirement("SEC-14")
async def test_the_skill_of_a_deep_file_is_searched_in_a_bounded_number_of_folders() -> None:
    source = CountingSource()
    async with browsing(source) as browser:
        response = await browser.ask("/files/" + "a/" * 2_000 + "b")

    assert response.status_code == 404
    assert source.calls == MAX_ENCLOSING


async def test_another_scheme_has_addresses_of_its_own() -> None:
    async with browsing(skill("handbook/tea", scheme="docs"), skill("handbook/tea")) as browser:
        home = await browser.text("/")
        page = await browser.text("/skills/docs:/handbook/tea")
        folder = await browser.text("/skills/docs:/handbook")

    assert 'href="./skills/docs:/handbook/tea"' in home
    assert "docs://handbook/tea/SKILL.md" in page
    assert 'href="../../../files/docs:/handbook/tea/SKILL.md"' in page
    assert "1 skill<" in folder


@pytest.mark.parametrize(
    "path",
    [
        "/skills/nobody",
        "/skills/",
        "/skills//acme",
        "/skills/acme/../acme",
        "/skills/acme/billing/refunds/references",
        "/skills/ACME",
        "/skills/file:/etc/passwd",
        "/skills/javascript:/x",
        "/skills/a\x00b",
        "/skills/" + "a/" * 9_000 + "b",
        "/files/acme/billing/refunds",
        "/files/acme/billing/refunds/references",
        "/files/acme/billing/refunds/../../x",
        "/files/etc/passwd",
        "/static/page.css",
        "/static/../app.py",
        "/static/templates/base.html",
    ],
)
async def test_where_nothing_is_one_plain_page_says_so(path: str) -> None:
    async with browsing(REFUNDS) as browser:
        response = await browser.ask(path)

    assert response.status_code == 404
    assert b"<h1>Page not found</h1>" in response.body
    assert response.headers["cache-control"] == "no-store"


async def test_an_encoded_slash_leads_nowhere() -> None:
    async with browsing(REFUNDS) as browser:
        scope: Json = {
            "type": "http",
            "method": "GET",
            "path": "/skills/acme/billing/refunds",
            "raw_path": b"/skills/acme%2Fbilling/refunds",
            "query_string": b"",
            "headers": [],
        }
        response = await browser.page.respond(Request(scope), browser.skills)

    assert response.status_code == 404


async def test_only_get_and_head_are_answered() -> None:
    async with browsing(REFUNDS) as browser:
        refused = await browser.ask("/", method="POST")
        whole = await browser.ask("/skills/acme/billing/refunds")
        head = await browser.ask("/skills/acme/billing/refunds", method="HEAD")

    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    assert head.body == b""
    assert dict(head.headers) == dict(whole.headers)


async def test_a_skill_that_cannot_be_read_now_is_no_more_than_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> str:
        raise OSError("/srv/secret/place is gone")

    async with browsing(DynamicSkill("broken", description="Use when testing.", body=fail)) as browser:
        response = await browser.ask("/skills/broken")

    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert b"secret" not in response.body
    assert any("the page" in record.message for record in caplog.records)


@pytest.mark.requirement("SEC-13")
async def test_findings_are_told_in_words_and_local_paths_never(tmp_path: Path) -> None:
    root = tmp_path / "secret-place"
    write_files(
        root,
        {
            "tea/SKILL.md": skill_md("tea", body="Hidden\u202e text. [gone](missing.md) <!-- x -->\n"),
            "broken/SKILL.md": "no frontmatter",
        },
    )
    async with browsing(root) as browser:
        home = await browser.text("/")
        page = await browser.text("/skills/tea")
        private = await browser.ask("/", is_private=True)

    assert all(code in page for code in ("hidden-characters", "broken-link", "html-comment"))
    assert 'href="../files/tea/SKILL.md#L6"' in page
    assert "1 folder with an invalid skill is" in home
    assert b"with an invalid skill" not in private.body
    assert not any(name in page + home for name in ("secret-place", str(tmp_path), "broken/"))


async def test_what_strangers_write_anywhere_never_becomes_markup() -> None:
    fields: Json = {
        "license": HOSTILE,
        "metadata": {HOSTILE: HOSTILE},
        "hooks": {"deep": [HOSTILE]},
        "x\u202ey": "\u200b",
    }
    evil = Skill(
        "evil", description=f"Use when {HOSTILE} \u202e \U000e0041", body=HOSTILE, frontmatter=fields
    )
    async with browsing(evil) as browser:
        for path, query in (
            ("/", ""),
            ("/", f"q={quote(HOSTILE)}"),
            ("/skills/evil", ""),
            ("/files/evil/SKILL.md", ""),
        ):
            page = await browser.text(path, query)
            assert page.count("<script") == 1 and "<title>" in page and page.count("</title>") == 1
            assert not any(hidden in page for hidden in "\u202e\u200b\U000e0041")
    assert "&lt;U+202E&gt;" in page


async def test_relations_and_skills_inside_are_led_to() -> None:
    fields: Json = {"metadata": {"skillwire/requires": "ledger"}}
    refunds = Skill("refunds", description="Use when x.", body="Do.", frontmatter=fields)
    async with browsing(refunds, skill("ledger"), skill("big"), skill("big/small")) as browser:
        one, other = await browser.text("/skills/refunds"), await browser.text("/skills/ledger")
        outer = await browser.text("/skills/big")

    assert "<h3>Requires</h3>" in one and 'href="../skills/ledger"' in one
    assert "<h3>Required by</h3>" in other and 'href="../skills/refunds"' in other
    assert "<h3>Skills inside this one</h3>" in outer and 'href="../skills/big/small"' in outer


@pytest.mark.parametrize(
    ("host", "public_url", "shown"),
    [
        ("skills.example", "", "https://skills.example/mcp"),
        ("127.0.0.1:8000", "", "https://127.0.0.1:8000/mcp"),
        ("[::1]:8000", "", "https://[::1]:8000/mcp"),
        ("x", "https://public.example/base/", "https://public.example/base/mcp"),
        ("x", "https://public.example/mcp", "https://public.example/mcp"),
        ("evil$(id).example", "", "https://this-server.invalid/mcp"),
        ("a b", "", "https://this-server.invalid/mcp"),
        ('"><script>', "", "https://this-server.invalid/mcp"),
        ("user@evil.example", "", "https://this-server.invalid/mcp"),
        ("evil.example/path", "", "https://this-server.invalid/mcp"),
        ("x:99999", "", "https://this-server.invalid/mcp"),
        ("", "", "https://this-server.invalid/mcp"),
    ],
)
async def test_snippets_name_the_server_as_far_as_its_name_can_be_one(
    host: str, public_url: str, shown: str
) -> None:
    async with browsing(REFUNDS) as browser:
        response = await browser.ask("/connect", host=host, public_url=public_url)

    page = bytes(response.body).decode()
    assert f'<code id="page-url">{shown}</code>' in page
    assert "SKILLS_TOKEN" not in page
