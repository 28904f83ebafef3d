"""Markdown of strangers: whatever is written, only harmless HTML comes out, and no word is lost."""

import re
import time
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.server.page.markdown import MAX_PIECE, MAX_RENDERED, render

ALLOWED: dict[str, set[str]] = {
    "a": {"href", "rel"},
    "ol": {"start"},
    "p": {"class"},
    "pre": {"tabindex", "role", "aria-label"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "span": {"class"},
    "td": {"class"},
    "th": {"class"},
    **{tag: {"id"} for tag in ("h3", "h4", "h5", "h6")},
    **{tag: set() for tag in ("blockquote br code em hr li s strong table tbody thead tr ul").split()},
}
CLASSES = {
    "center",
    "definition",
    "extra",
    "host",
    "image",
    "language",
    "right",
    "scroll",
    "title",
    "unlinked",
}
VOID = {"br", "hr"}


class Looker(HTMLParser):
    """Reads HTML as a browser would, and insists that every part of it is allowed and in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        values = dict(attrs)
        assert len(values) == len(attrs) and values.keys() <= ALLOWED[tag], (tag, attrs)
        assert values.get("class") in {None, *CLASSES}
        assert not (tag == "a" and "a" in self._open), "a link lies in a link"
        self.tags.append(tag)
        if "href" in values:
            self._check_link(values["href"] or "", values.get("rel"))
        if "id" in values:
            self.ids.append(values["id"] or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)

    def _check_link(self, href: str, rel: str | None) -> None:
        self.links.append(href)
        is_remote = re.match(r"(?i)(https?://[^/]|mailto:.)", href) is not None
        assert is_remote or href.startswith(("#body-", "../files/")), href
        assert rel == ("noopener noreferrer nofollow" if is_remote else None)

    def close(self) -> None:
        super().close()
        assert self._open == []
        assert len(set(self.ids)) == len(self.ids)
        assert all(name.startswith("body-") for name in self.ids)


def resolve(target: str) -> str | None:
    return f"../files/s/{target}" if target in ("a.md", "b/c.md") else None


def look_at(text: str) -> Looker:
    looker = Looker()
    looker.feed(render(text, resolve).html)
    looker.close()
    return looker


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    "<style>*{display:none}</style><form action=//evil><input name=q>",
    "<!-- comment --><!DOCTYPE x><?php x ?><![CDATA[x]]>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#115;cript:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](&#1;javascript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:x) [x](file:///etc/passwd) [x](blob:x) [x](//evil.example/x) [x](\\\\evil.example)",
    "[x](../../skills/other) [x](/connect) [x](?q=1) [x](skill://other/SKILL.md)",
    "![x](https://evil.example/beacon.png) ![x](data:image/svg+xml,<svg onload=alert(1)>)",
    "[![x](https://evil.example/a.png)](https://evil.example/ 'onmouseover=alert(1)')",
    "[a [b](https://x.example) ![c [d](e)](f)](g)",
    '[x](https://e.example "\\" onmouseover=\\"alert(1)")',
    '<https://e.example/"onclick=alert(1)> <javascript:alert(1)> <x@e.example>',
    '# <img src=x> " onclick=x id=\n\n# page-main\n\n# page-main\n\n[x](#page-main)',
    '```"><script>alert(1)</script>\n</code></pre><script>\n```',
    "~~~ html onload='x'\n<b>\n~~~",
    "|<script>|b|\n|:-:|-:|\n|`</table>`|<td>|",
    "1) a\n   > - # x\n\n      ~~~\n",
    "\x00 \x1b[2J \x7f \ufeff \u202e \U000e0041 &#x202e; &zwnj; &lt;b&gt; &#x3c;script&#x3e;",
    "[a]: javascript:alert(1)\n[a]\n\n[//]: # (words)\n",
    "[x](http://[::1) [x](http://) [x](https:evil) [x](http:///evil)",
    "\ud800 lone",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_becomes_nothing_but_harmless_html(text: str) -> None:
    look_at(text)


def test_all_hostile_texts_together_become_nothing_but_harmless_html() -> None:
    for glue in ("\n\n", "\n", " ", "\n> ", "\n- ", "|"):
        look_at(glue.join(HOSTILE))


@settings(max_examples=60)
@given(st.text(max_size=200))
def test_any_text_becomes_nothing_but_harmless_html(text: str) -> None:
    look_at(text)


MARKS = (
    "* ** _ ` ``` ~~~ ~~ [ ] ( ) ]( ![ < > <!-- --> | --- # : ]: \\ & ' \" |-|-| = // "
    "http://e.example/ javascript: a.md \u202e \u200b"
)
FRAGMENTS = st.sampled_from(
    [*MARKS.split(" "), " ", "\n", "\n\n", "    ", "\t", "- ", "1. ", "> ", "# ", "\r", "\r\n"]
)


@settings(max_examples=150)
@given(st.lists(st.one_of(FRAGMENTS, st.integers(100, 999).map(lambda n: f"w{n}x")), max_size=60))
def test_no_word_is_lost_however_markdown_is_put_together(parts: list[str]) -> None:
    text = "".join(parts)

    seen = look_at(text)

    shown = seen.text + " ".join(map(unquote, seen.links))
    for word in re.findall(r"w\d{3}x", text):
        assert word in shown, text


def test_ordinary_markdown_looks_as_it_is_meant() -> None:
    html = render("# Title\n\nSome *words* and [a file](a.md).\n\n3. three\n4. four\n", resolve).html

    assert html == (
        '<h3 id="body-title">Title</h3>'
        '<p>Some <em>words</em> and <a href="../files/s/a.md">a file</a>.</p>'
        '<ol start="3"><li>three</li><li>four</li></ol>'
    )


@pytest.mark.requirement("SEC-15")
def test_an_image_is_a_link_that_says_where_it_leads_and_is_never_fetched() -> None:
    seen = look_at("![a cat](https://e.example/cat.png)")

    assert seen.tags == ["p", "a", "span", "span"]
    assert seen.text == "image: a cat (e.example)"


@pytest.mark.parametrize("rank", range(1, 7))
def test_headings_never_outrank_those_of_the_page(rank: int) -> None:
    assert look_at("#" * rank + " x").tags == [f"h{min(rank + 2, 6)}"]


def test_a_heading_can_be_led_to_and_a_missing_one_cannot() -> None:
    seen = look_at("[there](#two-words) [nowhere](#files)\n\n## Two words\n\n## Two words\n")

    assert seen.links == ["#body-two-words"]
    assert seen.ids == ["body-two-words", "body-two-words-1"]


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "a<U+202E>b"),
        ("a&#x202e;b", "a<U+202E>b"),
        ("`a\u200bb`", "a<U+200B>b"),
        ("<!-- secret -->", "<!-- secret -->"),
        ("[//]: # (secret)", "[//]: # (secret)"),
        ("```sh secret\nx\n```", "sh secretx\n"),
        ("|a|\n|-|\n|b|secret|", "absecret"),
        ("[a](a.md 'secret')", "a “secret”"),
    ],
)
def test_what_markdown_would_hide_is_shown(text: str, shown: str) -> None:
    assert look_at(text).text == shown


def test_only_characters_that_hide_are_told_of() -> None:
    assert render("a\u202eb", resolve).reveals
    assert not render("Ünïcödé, 日本語, 👩‍👩‍👧 and\ttabs", resolve).reveals


BOMBS = {
    "quotes of every depth": "".join(">" * (n % 40) + " a\n" for n in range(3_000)),
    "rows": "|a|b|\n|-|-|\n" + "|a|b|c|\n" * 10_000,
    "columns": "|" + "a|" * 500 + "\n|" + "-|" * 500 + "\n" + "|a\n" * 20_000,
    "one line": "word " * 200_000,
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_takes_no_more_than_seconds_and_is_cut(text: str) -> None:
    start = time.thread_time()
    rendered = render(text, resolve)
    taken = time.thread_time() - start

    assert taken < 5
    assert rendered.is_cut == (len(text) > MAX_RENDERED)
    assert len(rendered.html) < 16 * MAX_RENDERED


def test_what_lies_too_deep_is_still_there() -> None:
    assert "deep" in look_at(">" * 500 + " deep").text
    assert "deep" in look_at("- " * 500 + "deep").text


def test_a_text_is_cut_at_the_end_of_a_line() -> None:
    line = "x" * 99 + "\n"

    text = look_at(line * 1_000).text

    assert len(text) <= MAX_RENDERED
    assert set(text.split()) == {"x" * 99}


def test_a_paragraph_that_is_too_long_is_shown_as_it_is_written() -> None:
    text = "*a* " * (MAX_PIECE // 4 + 1)

    assert look_at(text).text == text.strip()
