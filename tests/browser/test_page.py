"""The page in a real browser: on a phone, with a keyboard, without script, and under attack by a skill."""

import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from folders import skill_md, write_files
from programs import http_server
from serving import HttpServer, environment

EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"
PHONE = (360, 740)
DESKTOP = (1280, 800)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAGES = (
    "/",
    "/?q=sql",
    "/connect",
    "/skills/acme",
    "/skills/sql-review",
    "/files/sql-review/scripts/lint_sql.py",
)
EVIL = "</p><script>window.hacked=1</script><img src=https://evil.example/x onerror=window.hacked=1>"
BODY = f"""# {EVIL}

{EVIL} <style>body{{display:none}}</style> <iframe src="https://evil.example/"></iframe>

![beacon](https://evil.example/beacon.png) [click](javascript:window.hacked=1) [away](https://evil.example/)
<svg onload=window.hacked=1> [notes](references/notes.md)
<form action="https://evil.example/"><input autofocus>

<meta http-equiv="refresh" content="0;url=https://evil.example/"> <base href="https://evil.example/">

# page-search

# page-status

Hidden\u202e and \U000e0041 text.

| {"wide | " * 30}
| {"--- | " * 30}
| {"cells | " * 30}

{"long" * 100}

```html
{"<b>code</b> " * 40}
```
"""
CONTRAST = """() => {
  const channel = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) =>
    0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const paper = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!isText || !element.checkVisibility()) continue;
    const [one, other] = [light(parse(getComputedStyle(element).color)), light(paper(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push([element.tagName, element.className, element.textContent.slice(0, 40), ratio]);
  }
  return poor;
}"""


@dataclass
class Tab:
    """A page in the browser, with everything it complained about and asked for."""

    page: Any
    origin: str
    complaints: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])

    def complain(self, about: Any) -> None:
        """Note a message on the console, an error of a script, or a dialog."""
        self.complaints.append(str(getattr(about, "text", None) or getattr(about, "message", about)))

    def note(self, request: Any) -> None:
        self.requests.append(request.url)

    def go(self, path: str) -> None:
        self.page.goto(self.origin + path)

    def is_too_wide(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth > innerWidth")

    @property
    def focused(self) -> str:
        return self.page.evaluate("(document.activeElement.innerText || document.activeElement.id).trim()")


Open = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[HttpServer]:
    hostile = tmp_path_factory.mktemp("hostile")
    write_files(
        hostile,
        {
            "evil/SKILL.md": skill_md(
                "evil", body=BODY, extra=f"license: '{EVIL}'\nallowed-tools: '{EVIL}'\n"
            ),
            "evil/references/notes.md": f"{EVIL}\n" + "x" * 500_000,
            "evil/references/page.html": f"<!doctype html>{EVIL}",
            "evil/references/code.js": "window.hacked = 1",
        },
    )
    with http_server(EXAMPLES, hostile, env=environment(tmp_path_factory.mktemp("home"))) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    missing = "" if path else "there is no Chromium on the PATH"
    if find_spec("playwright") is None:
        missing = "playwright is not installed"
    if missing and (os.environ.get("CI") or os.environ.get("SKILLWIRE_REQUIRE_ALL")):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    with import_module("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any, server: HttpServer) -> Open:
    """Return what opens a tab; at its end nothing may have gone wrong in it."""

    @contextmanager
    def open_tab(size: tuple[int, int] = DESKTOP, **options: Any) -> Generator[Tab]:
        width, height = size
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(15_000)
        tab = Tab(context.new_page(), server.url.removesuffix("/mcp"))
        tab.page.on("console", tab.complain)
        tab.page.on("pageerror", tab.complain)
        tab.page.on("dialog", tab.complain)
        context.on("request", tab.note)
        try:
            yield tab
            assert tab.complaints == []
            assert [url for url in tab.requests if not url.startswith(tab.origin + "/")] == []
        finally:
            context.close()

    return open_tab


@pytest.mark.parametrize(
    ("size", "scheme"),
    [((320, 700), "dark"), (PHONE, "light"), (DESKTOP, "dark")],
    ids=["narrow", "phone", "desktop"],
)
def test_every_page_fits_and_can_be_read(visit: Open, size: tuple[int, int], scheme: str) -> None:
    with visit(size, color_scheme=scheme) as tab:
        for path in (*PAGES, "/skills/evil", "/files/evil/references/notes.md"):
            tab.go(path)
            assert not tab.is_too_wide(), path
            assert tab.page.evaluate(CONTRAST) == [], path


def test_a_skill_that_attacks_the_page_achieves_nothing(visit: Open) -> None:
    with visit() as tab:
        for path in (
            "/",
            "/skills/evil",
            "/files/evil/references/notes.md",
            "/files/evil/references/page.html",
        ):
            tab.go(path)
            tab.page.wait_for_timeout(200)
            assert tab.page.evaluate("window.hacked") is None
            assert tab.page.url == tab.origin + path
            assert (
                tab.page.locator("main :is(script, img, iframe, form, input, svg, style, meta, base)").count()
                == 0
            )
        tab.go("/skills/evil")
        assert tab.page.locator("#page-search").count() == 1
        assert "<U+202E>" in tab.page.inner_text("main")
        assert tab.page.locator("article a").all_inner_texts() == ["image: beacon", "away", "notes"]
        assert set(tab.page.eval_on_selector_all("article a[href^=http]", "all => all.map(a => a.rel)")) == {
            "noopener noreferrer nofollow"
        }


def test_a_file_of_a_skill_is_saved_and_never_run_by_the_page(visit: Open) -> None:
    with visit() as tab:
        tab.go("/files/evil/references/page.html")
        with tab.page.expect_download() as saving:
            tab.page.click("text=Download")
        assert saving.value.suggested_filename == "page.html"
        # Even if someone found a way to put an element into the page, its policy would keep it from running.
        tab.page.evaluate(
            """() => new Promise((done) => {
                const script = document.createElement("script");
                script.onload = script.onerror = done;
                try { script.src = "code.js?download=1"; } catch { return done(); }
                document.head.append(script);
            })"""
        )
        assert tab.page.evaluate("window.hacked") is None
        assert any("TrustedScriptURL" in complaint for complaint in tab.complaints)
        tab.complaints.clear()


def test_the_way_from_the_catalog_to_a_file_needs_only_a_keyboard(visit: Open) -> None:
    with visit() as tab:
        tab.go("/")
        tab.page.keyboard.press("Tab")
        assert tab.focused == "Skip to the content"
        tab.page.keyboard.press("Enter")
        tab.page.keyboard.press("/")
        assert tab.focused == "page-search"
        tab.page.keyboard.type("sql/ review")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_url("**/?q=*")
        assert tab.page.input_value("#page-search") == "sql/ review"
        press_until(tab, "sql-review")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_url("**/skills/sql-review")
        press_until(tab, "lint_sql.py")
        outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_url("**/files/sql-review/scripts/lint_sql.py")

        assert outline == "solid"
        assert tab.page.inner_text("h1") == "scripts/lint_sql.py"


def press_until(tab: Tab, text: str) -> None:
    for _ in range(80):
        tab.page.keyboard.press("Tab")
        if tab.focused == text:
            return
    raise AssertionError(f"the key Tab does not lead to {text!r}")


def test_without_script_everything_but_copying_is_there(visit: Open) -> None:
    with visit(PHONE, java_script_enabled=False) as tab:
        tab.go("/")
        tab.page.fill("#page-search", "refund")
        tab.page.click("text=Search >> nth=-1")
        assert tab.page.locator(".row").count() == 2, "one is about refunds, one mentions them"
        tab.page.click(".row a >> nth=0")
        tab.page.click("text=policy.md")
        assert tab.page.locator(".line").count() > 10
        assert tab.page.locator("button.copy:visible").count() == 0
        tab.page.click("text=Back to refunds")
        tab.page.click("summary >> nth=0")
        assert tab.page.locator("details code").first.inner_text().startswith("sha256:")


def test_what_is_copied_is_what_is_shown(visit: Open) -> None:
    with visit(permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.go("/connect")
        tab.page.click("button[data-copies=way-codex]")
        tab.page.wait_for_selector("text=Copied")
        copied = tab.page.evaluate("navigator.clipboard.readText()")
        assert (
            copied == tab.page.inner_text("#way-codex") == f'[mcp_servers.skills]\nurl = "{tab.origin}/mcp"'
        )
        tab.go("/skills/acme/billing/refunds")
        tab.page.click("button[data-copies=use-skill]")
        tab.page.wait_for_selector("text=Copied")
        reference = "skills/skill://acme/billing/refunds"
        line = f"skillwire add skills {tab.origin}/mcp && skillwire load {reference}"
        assert tab.page.evaluate("navigator.clipboard.readText()") == line
    with visit() as tab:
        tab.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        tab.go("/connect")
        tab.page.click("button[data-copies=page-url]")
        assert tab.page.evaluate("getSelection().toString()") == f"{tab.origin}/mcp"


def test_a_screen_reader_finds_its_way(visit: Open) -> None:
    with visit() as tab:
        for path in PAGES:
            tab.go(path)
            page = tab.page
            assert page.get_by_role("main").count() == 1
            assert page.get_by_role("banner").count() == 1
            assert page.get_by_role("contentinfo").count() == 1
            assert page.get_by_role("search").count() == 1
            assert page.get_by_role("searchbox", name="Search skills").count() == 1
            assert page.get_by_role("heading", level=1).count() == 1
            ranks = page.eval_on_selector_all("h1,h2,h3,h4,h5,h6", "all => all.map(h => +h.tagName[1])")
            assert all(later - earlier <= 1 for earlier, later in pairwise(ranks)), (
                path,
                ranks,
            )
            unnamed = "all => all.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label'))).length"
            assert page.eval_on_selector_all("a, button, [role=group]", unnamed) == 0


def test_the_address_for_clients_says_so_and_leads_to_the_page(visit: Open) -> None:
    with visit(PHONE) as tab:
        tab.go("/mcp")
        assert len(tab.complaints) == 1 and "406" in tab.complaints.pop()
        assert tab.page.inner_text("h1") == "This URL is for MCP clients"
        assert tab.page.inner_text("#page-url") == f"{tab.origin}/mcp"
        assert not tab.is_too_wide()
        tab.page.click("text=Read the skills in this browser")
        assert tab.page.url == tab.origin + "/"
        assert tab.page.inner_text("h1") == "skills"
        assert tab.page.locator(".row", has_text="sql-review").locator(".badge.scripts").count() == 1


def test_a_page_that_is_not_there_leads_back(visit: Open) -> None:
    with visit(PHONE) as tab:
        tab.go("/skills/nobody/here")
        assert len(tab.complaints) == 1 and "404" in tab.complaints.pop()
        tab.page.click("text=Go to the catalog")
        assert tab.page.url == tab.origin + "/"
