"""The links and mentions in a Markdown text, as far as a skill needs them.

This is no Markdown renderer. It finds inline links, images and reference
definitions outside code, in time linear in the text, because the text is a
stranger's.
"""

import re
from dataclasses import dataclass

_FENCE = re.compile(r" {0,3}(?P<mark>`{3,}|~{3,})")
_CODE_SPAN = re.compile(r"(?<!`)(?P<ticks>`{1,3})(?!`)[^`\n]{0,1000}(?P=ticks)(?!`)")
_INLINE = re.compile(
    r"\]\([ \t]*(?:<(?P<angled>[^<>\n]{1,2000})>"
    r"|(?P<plain>[^\s()<>]{1,2000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200})?))"
    r"(?:[ \t]+(?:\"[^\"\n]{0,500}\"|'[^'\n]{0,500}'))?[ \t]*\)"
)
_DEFINITION = re.compile(
    r" {0,3}\[[^\[\]\n]{1,200}\]:[ \t]*(?:<(?P<angled>[^<>\n]{1,2000})>|(?P<plain>\S{1,2000}))"
)


@dataclass(frozen=True, slots=True)
class Link:
    """A link's target as written, and the line it stands on, counted from 1."""

    target: str
    line: int


def links_in(markdown: str, *, first_line: int = 1) -> list[Link]:
    """Find the links, images and reference definitions in `markdown`, outside of code."""
    found: list[Link] = []
    fence = ""
    for number, line in enumerate(markdown.splitlines(), first_line):
        marker = _FENCE.match(line)
        if fence:
            if marker and marker["mark"].startswith(fence) and not line[marker.end() :].strip():
                fence = ""
            continue
        if marker:
            fence = marker["mark"]
            continue
        if "](" not in line and "]:" not in line:
            continue
        text = _CODE_SPAN.sub("", line)
        definition = _DEFINITION.match(text)
        for match in [definition] if definition else _INLINE.finditer(text):
            found.append(Link(match["angled"] or match["plain"], number))
    return found
