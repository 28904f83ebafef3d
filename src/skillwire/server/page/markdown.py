"""Rendering of untrusted Markdown as safe HTML that hides nothing.

The parser only returns tokens. All HTML is written here, with tags from fixed
tables only. What Markdown would hide (HTML, comments, link definitions, excess
table cells, words after a code block's language) is shown as text, because a
model reads all of it.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from skillwire.core import revealed

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_RENDERED: Final = 64 * 1024
"""The maximum number of characters that are rendered."""
MAX_PIECE: Final = 16 * 1024
"""The maximum length of a paragraph or cell; longer ones are shown as source text."""
MAX_NESTING: Final = 12
"""The maximum nesting of lists and quotes; deeper ones are shown as source text."""
MAX_ADDRESS: Final = 2_000
SECONDS: Final = 1.0
"""The CPU time for parsing a text, after which the rest is shown as source text."""

Resolve: TypeAlias = Callable[[str], str | None]
"""Returns the path on the page for the target of a link; None when it is no file of the skill."""

_TAGS = {
    "paragraph": "p",
    "bullet_list": "ul",
    "list_item": "li",
    "blockquote": "blockquote",
    "thead": "thead",
    "tbody": "tbody",
    "em": "em",
    "strong": "strong",
    "s": "s",
}
# The page itself uses the first two levels.
_HEADINGS = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}
_ALIGNED = {"text-align:right": ' class="right"', "text-align:center": ' class="center"'}
_REMOTE = ("http", "https", "mailto")
_LINE_END = re.compile("\r\n?")
_MARGIN = re.compile(r"[\s>]*\|?")
_CELL_END = re.compile(r"(?<!\\)\|")
_NO_SLUG = re.compile(r"[^\w\- ]+")
_MAX_SLUG = 80
_ID_PREFIX = "body-"


@dataclass(frozen=True, slots=True)
class Rendered:
    """HTML of a text; `is_cut` when it is truncated, `reveals` when it has hidden characters."""

    html: str
    is_cut: bool = False
    reveals: bool = False


def render(text: str, resolve: Resolve) -> Rendered:
    """Return the HTML of a Markdown text. Thread-safe."""
    text = _LINE_END.sub("\n", text)
    shown = _beginning(text)
    parser = _parser()
    tokens = parser.parse(shown, {"deadline": time.thread_time() + SECONDS})
    writer = _HtmlWriter(resolve, shown.split("\n"), _slugs_of(tokens))
    writer.write(tokens)
    return Rendered("".join(writer.parts), is_cut=len(shown) < len(text), reveals=writer.reveals)


def _beginning(text: str) -> str:
    """Return the lines that are rendered; part of a line if the first one is too long."""
    if len(text) <= MAX_RENDERED:
        return text
    return text[: text.rfind("\n", 0, MAX_RENDERED) + 1 or MAX_RENDERED]


@cache
def _parser() -> "MarkdownIt":
    # Imported on the first request: most servers never serve a page.
    from markdown_it import MarkdownIt

    # The parser drops content nested deeper than its limit, so `MAX_NESTING` has to be lower.
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 2 * MAX_NESTING})
    parser.enable(["table", "strikethrough"])
    parser.core.ruler.at("inline", _parse_pieces)
    parser.block.ruler.before("code", "plain", _parse_plain_lines)
    rules = parser.block.ruler.getRules("")
    reference = next(rule for rule in rules if rule.__name__ == "reference")
    parser.block.ruler.at("reference", _showing_definitions(reference), {"alt": []})
    return parser


def _parse_pieces(state: Any) -> None:
    """Parse emphasis and links in each text that is not too long, until the deadline."""
    for token in state.tokens:
        if token.type == "inline" and len(token.content) <= MAX_PIECE:
            if _is_before_deadline(state):
                state.md.inline.parse(token.content, state.md, state.env, token.children)


def _parse_plain_lines(state: Any, start: int, end: int, silent: bool) -> bool:
    """Parse lines as source text that are nested too deeply, or come after the deadline."""
    if state.level < MAX_NESTING and _is_before_deadline(state):
        return False
    if not silent:
        line = start
        while line < end and (state.isEmpty(line) or state.sCount[line] >= state.blkIndent):
            line += 1
        state.push("code_block", "", 0).content = state.getLines(start, line, 0, False)
        state.line = line
    return True


def _is_before_deadline(state: Any) -> bool:
    return time.thread_time() < state.env["deadline"]


def _showing_definitions(reference: Callable[..., bool]) -> Callable[..., bool]:
    """Return the rule for link definitions, extended to also show them."""

    def rule(state: Any, start: int, end: int, silent: bool) -> bool:
        found = reference(state, start, end, silent)
        if found and not silent:
            state.push("definition", "", 0).content = state.getLines(
                start, state.line, state.blkIndent, False
            )
        return found

    return rule


def _slugs_of(tokens: "Sequence[Token]") -> list[str]:
    """Return the unique IDs of the headings, in order."""
    seen: dict[str, int] = {}
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(child.content for child in inline.children or ()) or inline.content
            slug = _NO_SLUG.sub("", text.strip().lower()).replace(" ", "-")[:_MAX_SLUG]
            while slug in seen:
                seen[slug] += 1
                slug = f"{slug}-{seen[slug]}"
            seen[slug] = 0
    return list(seen)


@dataclass(slots=True)
class _HtmlWriter:
    """A writer of tokens as HTML."""

    resolve: Resolve
    lines: Sequence[str]
    slugs: Sequence[str]
    parts: list[str] = field(default_factory=list[str])
    reveals: bool = False
    _headings: int = 0
    _columns: int = 0
    _cells: int = 0
    _row: int = 0
    _targets: frozenset[str] = frozenset()
    _links: list[str] = field(default_factory=list[str])
    """The HTML after each open link; links are never nested."""

    def __post_init__(self) -> None:
        self._targets = frozenset(self.slugs)

    def write(self, tokens: "Sequence[Token]") -> None:
        for token in tokens:
            kind, _, end = token.type.rpartition("_")
            if kind in _TAGS and end in ("open", "close"):
                if not token.hidden:
                    self.parts.append(f"<{'/' if end == 'close' else ''}{_TAGS[kind]}>")
            elif (method := _METHODS.get(token.type)) is not None:
                method(self, token)
            else:
                self.parts.append(self.text(token.content))

    def text(self, text: str) -> str:
        """Return text as HTML, with hidden characters spelled out."""
        shown = revealed(text)
        self.reveals = self.reveals or shown != text
        return escape(shown)

    def inline(self, token: "Token") -> None:
        if token.children:
            self.write(token.children)
        else:
            self.parts.append(self.text(token.content))

    def heading_open(self, token: "Token") -> None:
        slug = self.slugs[self._headings]
        self._headings += 1
        self.parts.append(f'<{_HEADINGS[token.tag]} id="{_ID_PREFIX}{escape(slug)}">')

    def heading_close(self, token: "Token") -> None:
        self.parts.append(f"</{_HEADINGS[token.tag]}>")

    def list_open(self, token: "Token") -> None:
        start = token.attrs.get("start", 1)
        self.parts.append("<ol>" if start == 1 else f'<ol start="{int(start)}">')

    def code(self, token: "Token") -> None:
        language = token.info.strip()
        if language:
            self.parts.append(f'<p class="language">{self.text(language)}</p>')
        self.parts.append(
            f'<pre tabindex="0" role="group" aria-label="Code"><code>{self.text(token.content)}</code></pre>'
        )

    def code_inline(self, token: "Token") -> None:
        self.parts.append(f"<code>{self.text(token.content)}</code>")

    def definition(self, token: "Token") -> None:
        self.parts.append(f'<p class="definition"><code>{self.text(token.content)}</code></p>')

    def table_open(self, token: "Token") -> None:
        self._columns = 0
        self.parts.append('<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>')

    def row_open(self, token: "Token") -> None:
        self._cells = 0
        self._row = token.map[0] if token.map else -1
        self.parts.append("<tr>")

    def row_close(self, token: "Token") -> None:
        """End a row; excess cells follow as source text."""
        if self._columns and 0 <= self._row < len(self.lines):
            for cell in _cells_in(self.lines[self._row])[self._columns :]:
                self.parts.append(f'<td class="extra">{self.text(cell)}</td>')
        self._columns = self._columns or self._cells
        self.parts.append("</tr>")

    def cell_open(self, token: "Token") -> None:
        self._cells += 1
        tag = "th" if token.type == "th_open" else "td"
        self.parts.append(f"<{tag}{_ALIGNED.get(str(token.attrs.get('style')), '')}>")

    def link_open(self, token: "Token") -> None:
        self._link(str(token.attrs.get("href", "")), str(token.attrs.get("title", "")))

    def link_close(self, token: "Token") -> None:
        self.parts.append(self._links.pop())

    def image(self, token: "Token") -> None:
        """Write the alternative text of an image with a link, so that browsers do not load it."""
        source, title = str(token.attrs.get("src", "")), str(token.attrs.get("title", ""))
        if self._links:
            self._links.append(f" ({self.text(source[:MAX_ADDRESS])}){self._title(title)}")
        else:
            self._link(source, title)
        self.parts.append(f'<span class="image">image: {self.text(token.content)}</span>')
        self.parts.append(self._links.pop())

    def _link(self, target: str, title: str) -> None:
        """Begin a link, and store the HTML after its text; an invalid link is followed by its target."""
        after = self._title(title)
        address = self._address(target)
        if address is None:
            self.parts.append('<span class="unlinked">')
            self._links.append(f" <code>{self.text(target[:MAX_ADDRESS])}</code></span>{after}")
            return
        href, host = address
        rel = ' rel="noopener noreferrer nofollow"' if host else ""
        self.parts.append(f'<a href="{escape(href)}"{rel}>')
        shown = f' <span class="host">({self.text(host)})</span>' if host else ""
        self._links.append(f"</a>{shown}{after}")

    def _address(self, target: str) -> tuple[str, str] | None:
        """Return the URL of a link, and its host if external; None when the link is invalid."""
        if not target or len(target) > MAX_ADDRESS or revealed(target) != target:
            return None
        if target.startswith("#"):
            return (f"#{_ID_PREFIX}{target[1:]}", "") if target[1:] in self._targets else None
        scheme, colon, rest = target.partition(":")
        if colon and scheme.lower() in _REMOTE:
            if scheme.lower() == "mailto":
                return target, rest.partition("?")[0] or "mail"
            try:
                host = urlsplit(target).hostname
            except ValueError:
                return None
            return (target, host) if host else None
        local = self.resolve(target)
        return None if local is None else (local, "")

    def _title(self, title: str) -> str:
        return f' <span class="title">“{self.text(title)}”</span>' if title else ""


def _cells_in(line: str) -> list[str]:
    """Return the source text of the cells of a row."""
    cells = [cell.strip() for cell in _CELL_END.split(_MARGIN.sub("", line.strip(), count=1))]
    return cells if cells[-1] else cells[:-1]


_METHODS: dict[str, Callable[[_HtmlWriter, Any], None]] = {
    "inline": _HtmlWriter.inline,
    "heading_open": _HtmlWriter.heading_open,
    "heading_close": _HtmlWriter.heading_close,
    "ordered_list_open": _HtmlWriter.list_open,
    "ordered_list_close": lambda writer, _: writer.parts.append("</ol>"),
    "fence": _HtmlWriter.code,
    "code_block": _HtmlWriter.code,
    "code_inline": _HtmlWriter.code_inline,
    "definition": _HtmlWriter.definition,
    "table_open": _HtmlWriter.table_open,
    "table_close": lambda writer, _: writer.parts.append("</table></div>"),
    "tr_open": _HtmlWriter.row_open,
    "tr_close": _HtmlWriter.row_close,
    "th_open": _HtmlWriter.cell_open,
    "td_open": _HtmlWriter.cell_open,
    "th_close": lambda writer, _: writer.parts.append("</th>"),
    "td_close": lambda writer, _: writer.parts.append("</td>"),
    "link_open": _HtmlWriter.link_open,
    "link_close": _HtmlWriter.link_close,
    "image": _HtmlWriter.image,
    "hr": lambda writer, _: writer.parts.append("<hr>"),
    "softbreak": lambda writer, _: writer.parts.append("\n"),
    "hardbreak": lambda writer, _: writer.parts.append("<br>"),
}
