"""The links and mentions in a Markdown text, as far as a skill needs them.

This is no Markdown renderer. It finds inline links, images and reference
definitions outside code, in time linear in the text, because the text is a
stranger's.
"""

import re
from dataclasses import dataclass

# At any depth and right after a list marker, since steps often carry their code along.
# Compiled when first used: most programs never look into a text.
_FENCE = r"(?P<indent>[ \t]*(?:(?:[-*+]|[0-9]{1,9}[.)])[ \t]+)?)(?P<mark>`{3,}(?=[^`]*$)|~{3,})"
_TICKS = r"`+"
_TITLE = r"(?:[ \t]+(?:\"[^\"\n]{0,500}\"|'[^'\n]{0,500}'|\([^()\n]{0,500}\)))?"
_INLINE = (
    r"(?<!\\)\]\([ \t]*(?:<(?P<angled>[^<>`\n]{1,2000})>"
    r"|(?P<plain>[^\s()<>`]{1,2000}(?:\([^\s()<>`]{0,200}\)[^\s()<>`]{0,200}){0,8}))" + _TITLE + r"[ \t]*\)"
)
# A label that starts with ^ belongs to a footnote, whose text is no target.
_DEFINITION = (
    r" {0,3}\[(?!\^)[^\[\]\n]{1,200}\]:[ \t]*(?:<(?P<angled>[^<>`\n]{1,2000})>"
    r"|(?P<plain>[^\s<`][^\s`]{0,1999}))" + _TITLE + r"\s*$"
)


@dataclass(frozen=True, slots=True)
class Link:
    """A link's target as written, and the line it stands on, counted from 1."""

    target: str
    line: int


def links_in(markdown: str, *, first_line: int = 1) -> list[Link]:
    """Find the links, images and reference definitions in `markdown`, outside of code."""
    fence_line, definition_line, inline = map(re.compile, (_FENCE, _DEFINITION, _INLINE))
    found: list[Link] = []
    fence: re.Match[str] | None = None
    for number, line in enumerate(markdown.split("\n"), first_line):
        marker = fence_line.match(line)
        if fence:
            if marker and _closes(fence, marker):
                fence = None
        elif marker:
            fence = marker
        elif "](" in line or "]:" in line:
            text = _without_code(line)
            definition = definition_line.match(text)
            matches = [definition] if definition else inline.finditer(text)
            found += [Link(match["angled"] or match["plain"], number) for match in matches]
    return found


def _closes(fence: re.Match[str], marker: re.Match[str]) -> bool:
    """Tell whether `marker` ends the code that `fence` opened: as long, alone, and hardly deeper."""
    return (
        marker["mark"].startswith(fence["mark"])
        and not (marker["indent"] + marker.string[marker.end() :]).strip()
        and len(marker["indent"]) <= len(fence["indent"]) + 3
    )


def _without_code(line: str) -> str:
    """Shrink each code span, which ends at the next run of as many backticks, to one backtick."""
    runs = list(re.finditer(_TICKS, line))
    ahead: dict[int, list[re.Match[str]]] = {}
    for run in reversed(runs):
        ahead.setdefault(len(run[0]), []).append(run)
    kept: list[str] = []
    done = 0
    for run in runs:
        same = ahead[len(run[0])]
        same.pop()
        if same and run.start() >= done and line[run.start() - 1 : run.start()] != "\\":
            kept += (line[done : run.start()], "`")
            done = same[-1].end()
    return "".join([*kept, line[done:]])
