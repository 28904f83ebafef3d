"""Parsing of `SKILL.md`: verbatim frontmatter, and the body after it.

The digest covers the file's bytes, so nothing here changes them. A byte order
mark and CRLF line ends are accepted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from skillwire.core.errors import FrontmatterError
from skillwire.core.yaml12 import Frontmatter, JsonValue, Observer, YamlRefusedError, parse_yaml

MAX_FRONTMATTER_BYTES = 65_536

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_OPENING = re.compile(rb"(?:\xef\xbb\xbf)?---[ \t]*\r?\n")
_CLOSING = re.compile(rb"^---[ \t]*\r?$", re.MULTILINE)
_UNQUOTED_COLON = re.compile(r"[ -]*(?P<key>[A-Za-z][\w-]*): +[^\s'\"|>\[{#&*!].*:(?:\s.*)?")
_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class SkillDocument:
    """A parsed `SKILL.md`. `body_line` is the line, counted from 1, on which the body starts."""

    frontmatter: Frontmatter
    body: str
    body_line: int


def parse_skill_md(data: bytes, observer: Observer | None = None) -> SkillDocument:
    """Parse a whole `SKILL.md`.

    Raises:
        FrontmatterError: There is no readable frontmatter, or the file is not UTF-8 text.
    """
    start, end, after = _block(data)
    if end - start > MAX_FRONTMATTER_BYTES:
        raise FrontmatterError(
            f"the frontmatter is larger than {MAX_FRONTMATTER_BYTES} bytes",
            reason="frontmatter-too-large",
            line=1,
            fix="move long text into the body",
        )
    try:
        text = data[start:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(data, start + error.start) from None
    first_line = data.count(b"\n", 0, start) + 1
    try:
        value = parse_yaml(text, observer)
    except YamlRefusedError as error:
        line = first_line if error.line is None else first_line + error.line
        raise FrontmatterError(
            f"the frontmatter cannot be read: {error}",
            reason=f"yaml-{error.reason}",
            line=line,
            fix=_yaml_fix(text, error),
        ) from error
    if not isinstance(value, dict):
        raise FrontmatterError(
            "the frontmatter is not a mapping of fields",
            reason="frontmatter-not-a-mapping",
            line=first_line,
            fix="write fields as `name: …` and `description: …`",
        )
    try:
        body = data[after:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(data, after + error.start) from None
    return SkillDocument(Frontmatter(value), body, data.count(b"\n", 0, after) + 1)


def frontmatter_text(data: bytes) -> tuple[str, int]:
    """Return the text between the `---` lines, and the file's line on which it starts.

    Raises:
        FrontmatterError: There is no such block.
    """
    start, end, _ = _block(data)
    return data[start:end].decode("utf-8", "replace"), data.count(b"\n", 0, start) + 1


def body_text(data: bytes) -> str:
    """Return the text after the frontmatter, without parsing that.

    Raises:
        FrontmatterError: There is no such block.
    """
    return data[_block(data)[2] :].decode("utf-8", "replace")


def _block(data: bytes) -> tuple[int, int, int]:
    """Locate the frontmatter: where it starts, where it ends, where the body starts."""
    opening = _OPENING.match(data)
    if opening is None:
        raise _missing_block(data)
    start = opening.end()
    closing = _CLOSING.search(data, start, start + MAX_FRONTMATTER_BYTES + 8)
    # The search limit may have cut the line off, so match all of it.
    closing = closing and _CLOSING.match(data, closing.start())
    if closing is None:
        if len(data) - start > MAX_FRONTMATTER_BYTES:
            raise FrontmatterError(
                f"no line with --- closes the frontmatter within {MAX_FRONTMATTER_BYTES} bytes",
                reason="frontmatter-too-large",
                line=1,
                fix="close the frontmatter with a line --- and move long text into the body",
            )
        raise FrontmatterError(
            "the frontmatter is never closed",
            reason="frontmatter-unclosed",
            line=1,
            fix="add a line --- after the last field",
        )
    return start, closing.start(), min(closing.end() + 1, len(data))


def _missing_block(data: bytes) -> FrontmatterError:
    if (position := _first_non_text(data)) is not None:
        return _not_utf8(data, position)
    later = re.search(rb"^---[ \t]*\r?$", data[:MAX_FRONTMATTER_BYTES], re.MULTILINE)
    if not data.strip():
        message, fix = "the file is empty", "start it with frontmatter that holds `name` and `description`"
    elif later and re.match(rb"\s*---", data.removeprefix(BYTE_ORDER_MARK)):
        message, fix = (
            "there is text before the opening --- line",
            "make --- the very first line of the file",
        )
    else:
        message = "the file does not start with frontmatter"
        fix = "start it with a line ---, then `name: …` and `description: …`, then a line ---"
    return FrontmatterError(message, reason="frontmatter-missing", line=1, fix=fix)


def _first_non_text(data: bytes) -> int | None:
    """Return the first position that is not UTF-8 text, or None; null bytes indicate UTF-16."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    position = data.find(b"\0")
    return None if position < 0 else position


def _not_utf8(data: bytes, position: int) -> FrontmatterError:
    return FrontmatterError(
        "the file is not UTF-8 text",
        reason="not-utf8",
        line=data.count(b"\n", 0, position) + 1,
        fix="save it as UTF-8",
    )


def _yaml_fix(text: str, error: YamlRefusedError) -> str:
    """Return a fix for the most common mistakes."""
    if error.reason != "syntax":
        return _YAML_FIXES[error.reason]
    rows = text.split("\n")
    last = len(rows) - 1 if error.line is None else error.line
    # libyaml reports the line of the mistake or the one after it.
    for row in rows[max(last - 1, 0) : last + 1]:
        if match := _UNQUOTED_COLON.fullmatch(row):
            return f"put the value of `{match['key']}` in quotes: it contains a colon followed by a space"
        if _HALF_ESCAPE.search(row):
            return "write the character itself instead of two \\u escapes"
        if "\t" in row:
            return "use spaces: YAML does not allow tabs there"
    return "check the quotes, colons and indentation on that line"


_YAML_FIXES = {
    "quote": "close the quote at the end of the value",
    "alias": "write the value out instead of using & and *",
    "tag": "remove the ! tag; use quotes to make a value a string",
    "directive": "remove the line that starts with %",
    "duplicate-key": "keep one of the two",
    "non-string-key": "put the key in quotes",
    "number": "put the value in quotes",
    "too-deep": "flatten the structure",
    "too-large": "move the data into a file of the skill",
    "documents": "keep a single mapping between the --- lines",
    "line-break": "replace the character by a space or an ordinary line end",
}


def walk_strings(value: JsonValue) -> Iterator[str]:
    """Yield every string in a frontmatter value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from walk_strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from walk_strings(cast(JsonValue, item))
