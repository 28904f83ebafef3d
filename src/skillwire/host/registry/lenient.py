"""Reading a local `SKILL.md` kindly: one common slip is understood and reported, never rewritten.

This is for folders on this machine alone. What arrives over MCP is parsed to
the letter, because both sides must read the same bytes the same way.
"""

import re
from dataclasses import dataclass

from skillwire.core.finding import Finding
from skillwire.core.frontmatter import SkillDocument, frontmatter_text, parse_skill_md
from skillwire.errors import FrontmatterError

_MOST_REPAIRS = 16
_KEY = re.compile(r" *(?:- +)?[A-Za-z][\w.-]*: +")
# What makes a value something else than plain text.
_SPECIAL = frozenset("'\"|>[]{}#&*!%@`,?-")
_COMMENT = re.compile(r"[ \t]#")
_ENDS_A_KEY = re.compile(r":(?:\s|\Z)")


@dataclass(frozen=True, slots=True)
class LenientDocument:
    """A document, what had to be overlooked to read it, and the bytes its author probably meant.

    `meant` is the file itself when nothing was overlooked.
    """

    document: SkillDocument
    findings: tuple[Finding, ...]
    meant: bytes


def parse_leniently(data: bytes) -> LenientDocument:
    """Read a local `SKILL.md`; a value with a colon in it is read as if it stood in quotes.

    Raises:
        FrontmatterError: It cannot be read even so; this is the error of the file as it is.
    """
    meant = data
    findings: list[Finding] = []
    failure: FrontmatterError | None = None
    for _ in range(_MOST_REPAIRS + 1):
        try:
            return LenientDocument(parse_skill_md(meant), tuple(findings), meant)
        except FrontmatterError as error:
            failure = failure or error
            repaired = _repaired(meant, error)
            if repaired is None:
                break
            meant, line = repaired
            message = f"it is read as if the value in line {line} were quoted: {error}"
            findings.append(Finding(error.reason, message, line=line, fix=error.fix))
    assert failure is not None
    raise failure


def _repaired(data: bytes, error: FrontmatterError) -> tuple[bytes, int] | None:
    """Return the file with one more value in quotes, and its line; None when that is not what is wrong."""
    if error.reason != "yaml-syntax" or error.line is None:
        return None
    text, first_line = frontmatter_text(data)
    start = data.index(b"\n") + 1
    rows = text.split("\n")
    # libyaml reports the line of the mistake or the one after it.
    for number in (error.line - first_line, error.line - first_line - 1):
        if 0 <= number < len(rows) and (row := _quoted_row(rows[number])) is not None:
            rows[number] = row
            rest = data[start + len(text.encode("utf-8")) :]
            return data[:start] + "\n".join(rows).encode("utf-8") + rest, first_line + number
    return None


def _quoted_row(row: str) -> str | None:
    """Return `key: value` with the value in quotes; None when it has no colon, or is not plain text."""
    key = _KEY.match(row)
    if key is None:
        return None
    rest = row[key.end() :]
    comment = _COMMENT.search(rest)
    value = rest[: comment.start() if comment else len(rest)].rstrip()
    if not value or value[0] in _SPECIAL or not _ENDS_A_KEY.search(value):
        return None
    return key.group() + "'" + value.replace("'", "''") + "'" + rest[len(value) :]
