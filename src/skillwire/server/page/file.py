"""The page of one file: its text as it is written, line by line."""

from html import escape
from typing import Any, Final

from skillwire.core.characters import revealed
from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import digest_of
from skillwire.server.answers import FileContent
from skillwire.server.page.addresses import place_of
from skillwire.server.page.catalog import crumbs_to
from skillwire.server.page.rendering import safe

MAX_SHOWN: Final = 256 * 1024
"""How many characters of a file are shown."""
MAX_LINES: Final = 5_000


def shown_file(entry: SkillEntry, uri: str, file: FileContent) -> dict[str, Any]:
    """Return what the page shows of a file."""
    text = _text_of(file.content)
    lines, is_cut = ([], False) if text is None else _lines_of(text)
    shown = [revealed(line) for line in lines]
    return {
        "name": entry.uri.relative_path(uri),
        "skill": entry.name or entry.uri.name,
        "place": place_of(uri),
        "skill_place": place_of(entry.uri.root),
        "crumbs": crumbs_to(entry.uri.root),
        "uri": uri,
        "media_type": file.media_type,
        "size": len(file.content),
        "digest": file.digest or digest_of(file.content),
        "is_promised": bool(file.digest),
        "is_binary": text is None,
        "is_cut": is_cut,
        "lines": safe(_numbered(shown)),
        "reveals": shown != lines,
    }


def _text_of(content: bytes) -> str | None:
    """Return the beginning of a file as text; None when the file is none."""
    beginning = content[: 4 * MAX_SHOWN + 4]
    if b"\0" in beginning:
        return None
    try:
        return beginning.decode("utf-8")
    except UnicodeDecodeError as error:
        # The cut may go through a character.
        is_end = len(content) > len(beginning) and len(beginning) - error.start < 4
        return beginning[: error.start].decode("utf-8") if is_end else None


def _lines_of(text: str) -> tuple[list[str], bool]:
    """Return the lines that are shown, and whether there are more."""
    shown = text[:MAX_SHOWN]
    lines = shown.replace("\r\n", "\n").split("\n")
    if lines[-1] == "" and len(lines) > 1:
        lines.pop()
    return lines[:MAX_LINES], len(shown) < len(text) or len(lines) > MAX_LINES


def _numbered(lines: list[str]) -> str:
    """Return lines as HTML. Each can be led to by its number."""
    return "".join(f'<span class="line" id="L{n}">{escape(line)}\n</span>' for n, line in enumerate(lines, 1))
