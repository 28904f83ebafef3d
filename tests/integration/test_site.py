"""The documentation as a site, built with `mkdocs.yml`: complete, without remote assets and broken links."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
import yaml

import documents

CONFIG = documents.ROOT / "mkdocs.yml"
IMAGES = documents.DOCS / "images"
SVG = "{http://www.w3.org/2000/svg}"
BUILT_WITHIN = 120.0

ASSETS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""The elements that a browser fetches by itself, and the attribute that names what."""


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if ASSETS.get(tag) in values and values.get("rel") != "canonical":
            self.assets.append(values[ASSETS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. The build is strict: any warning, such as a wrong link or anchor, fails it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        [*command, "--config-file", str(CONFIG)], capture_output=True, text=True, timeout=BUILT_WITHIN
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@cache
def page(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


def named_in(nav: Any) -> Iterator[str]:
    """Yield the files that a navigation names, at any depth."""
    if isinstance(nav, str):
        yield nav
        return
    items: list[Any] = [*cast("dict[str, Any]", nav).values()] if isinstance(nav, dict) else nav
    for item in items:
        yield from named_in(item)


def test_every_page_is_in_the_navigation_once_and_is_built(site: Path) -> None:
    named = sorted(named_in(yaml.safe_load(CONFIG.read_text("utf-8"))["nav"]))

    assert named == sorted(str(path.relative_to(documents.DOCS)) for path in documents.pages())
    assert [name for name in named if not (site / name).with_suffix(".html").is_file()] == []


def test_no_page_fetches_anything_from_another_host(site: Path) -> None:
    remote = {
        (path.name, asset)
        for path in site.rglob("*.html")
        for asset in page(path).assets
        if urlsplit(asset).netloc or urlsplit(asset).scheme not in ("", "data")
    }
    imports = [path.name for path in site.rglob("*.css") if "@import" in path.read_text("utf-8")]

    assert remote == set()
    assert imports == []


def test_every_internal_link_leads_to_a_file_and_an_anchor_of_the_site(site: Path) -> None:
    wrong: list[tuple[str, str]] = []
    for path in site.rglob("*.html"):
        for link in page(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            is_known = target.is_file() and (
                not parts.fragment or target.suffix != ".html" or parts.fragment in page(target).anchors
            )
            if not is_known:
                wrong.append((str(path.relative_to(site)), link))

    assert wrong == []


@pytest.mark.parametrize("image", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.stem)
def test_a_diagram_has_a_title_and_text_and_follows_dark_mode(image: Path) -> None:
    text = image.read_text("utf-8")
    root = ElementTree.fromstring(text)

    assert all((root.findtext(f"{SVG}{name}") or "").strip() for name in ("title", "desc"))
    assert list(root.iter(f"{SVG}text"))
    assert "prefers-color-scheme: dark" in text and "currentColor" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert any(f"images/{image.name}" in path.read_text("utf-8") for path in documents.pages())
