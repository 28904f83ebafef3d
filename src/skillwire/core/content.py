"""What the text of a skill's files gives reason to remark.

The text is a stranger's and may be large: no more than `MAX_INSPECTED` of each
is looked into, and a remark that repeats itself is made a limited number of times.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from operator import attrgetter
from typing import TypeAlias

from skillwire.core.characters import HiddenCharacter, hidden_characters
from skillwire.core.fields import LineOf
from skillwire.core.finding import Finding, Line
from skillwire.core.frontmatter import Frontmatter, SkillDocument, walk_strings
from skillwire.core.links import links_in
from skillwire.core.manifest import MAX_FILES
from skillwire.core.paths import as_text, folders_of
from skillwire.core.uri import SKILL_FILE, SkillUri

Content: TypeAlias = bytes | int
"""A file's bytes, or only its size when nobody wants to look inside."""

ADVISED_LINES = 500
ADVISED_TOKENS = 5_000
MAX_INSPECTED = 1024 * 1024
MAX_REMARKS = 100

_BYTES_PER_TOKEN = 4
_MAX_HIDDEN = 10_000
_MAX_FOLLOWED = 4 * MAX_INSPECTED
_NEEDS_NO_LINK = r"(?i:(?:license|notice|readme|changelog)(?:\..*)?|manifest\.json)"
_NO_PATH = r"(?s:[A-Za-z][A-Za-z0-9+.\-]*:|[#/?]|.*[{}<>$*])"
# A stand-in for the skill's own URI, to resolve links against.
_HERE = SkillUri.build("skill")


def text_of(content: Content) -> str | None:
    """Return a file's text, or None when it is binary or too large to look into."""
    if isinstance(content, int) or len(content) > MAX_INSPECTED or b"\0" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def hidden_findings(path: str, text: str) -> list[Finding]:
    """Find characters in a file that a reader cannot see or a terminal would obey, each kind once."""
    found = hidden_characters(text[:MAX_INSPECTED], most=_MAX_HIDDEN)
    return [_hidden(path, group, group[0].line) for group in _by_kind(found)]


def escaped_findings(frontmatter: Frontmatter, text: str, line_of: LineOf) -> list[Finding]:
    """Find such characters in values of the frontmatter, where `text`, the file's, does not show them."""
    findings: list[Finding] = []
    for key, value in frontmatter.fields.items():
        escaped = [item for item in walk_strings({key: value}) if item not in text]
        found = [hidden for item in escaped for hidden in hidden_characters(item, most=_MAX_HIDDEN)]
        findings += [_hidden(SKILL_FILE, group, line_of(key)) for group in _by_kind(found)]
    return findings


def _by_kind(found: Iterable[HiddenCharacter]) -> list[list[HiddenCharacter]]:
    kind = attrgetter("kind")
    return [list(group) for _, group in groupby(sorted(found, key=kind), key=kind)]


def _hidden(path: str, characters: list[HiddenCharacter], line: Line) -> Finding:
    code = "terminal-escape" if characters[0].kind == "control" else "hidden-characters"
    more = f" and {len(characters) - 1} more like it" if len(characters) > 1 else ""
    message = f"the text holds {characters[0].label}{more}, which a reader cannot see"
    return Finding(code, message, file=path, line=line, fix="delete it")


def body_findings(document: SkillDocument, data: bytes, files: Mapping[str, Content]) -> list[Finding]:
    """Check the instructions: their length, their comments, and which files they lead to."""
    findings: list[Finding] = []
    lines, tokens = data.count(b"\n") + 1, len(data) // _BYTES_PER_TOKEN
    if not document.body.strip():
        message = "there are no instructions after the frontmatter"
        fix = "write what an agent should do"
        findings.append(Finding("empty-body", message, line=document.body_line, fix=fix))
    if lines > ADVISED_LINES or tokens > ADVISED_TOKENS:
        message = f"the file has {lines} lines, about {tokens} tokens; all of it is loaded at once"
        findings.append(Finding("long-skill-file", message, fix="move detail into files under references/"))
    body = document.body[:MAX_INSPECTED]
    findings += islice(_comment_findings(body, document.body_line), MAX_REMARKS)
    findings += islice(_link_findings(body, document.body_line, files), MAX_REMARKS)
    return findings + _unlinked_findings(body, files)


def _comment_findings(body: str, first_line: int) -> Iterator[Finding]:
    message = "an HTML comment: a model reads it, a person looking at the rendered page does not"
    for number, line in enumerate(body.split("\n"), first_line):
        if "<!--" in line:
            yield Finding("html-comment", message, line=number, fix="make it visible text, or delete it")


def _link_findings(body: str, first_line: int, files: Mapping[str, Content]) -> Iterator[Finding]:
    folders = folders_of(files)
    for link in links_in(body, first_line=first_line):
        if re.match(_NO_PATH, link.target):
            continue
        resolved = _HERE.resolve(link.target)
        if resolved is None:
            message = f"the link to {link.target!r} leads out of the skill, where no client can follow it"
            yield Finding("link-outside", message, line=link.line, fix="copy the file into the skill")
            continue
        path = _HERE.relative_path(resolved)
        if path not in files and path not in folders:
            message = f"the link to {link.target!r} leads to a file the skill does not have"
            yield Finding("broken-link", message, line=link.line, fix=_link_fix(path, files))


def _link_fix(path: str, files: Mapping[str, Content]) -> str:
    name = path.rpartition("/")[2].casefold()
    for candidate in sorted(files):
        if candidate.rpartition("/")[2].casefold() == name:
            return f"did you mean {candidate!r}?"
    return f"add {path!r}, or remove the link"


def _unlinked_findings(body: str, files: Mapping[str, Content]) -> list[Finding]:
    """Report files that neither SKILL.md nor a text reachable from it mentions."""
    if len(files) > MAX_FILES:
        return []
    unseen = {
        path
        for path in files
        if path != SKILL_FILE and not re.fullmatch(_NEEDS_NO_LINK, path.rpartition("/")[2])
    }
    texts, room = [body], _MAX_FOLLOWED
    while texts and unseen and room > 0:
        text = texts.pop()
        room -= len(text)
        for path in sorted(unseen):
            if _mentions(text, path):
                unseen.discard(path)
                if (more := text_of(files[path])) is not None:
                    texts.append(more)
    if room <= 0:
        return []
    return [
        Finding(
            "unlinked-file",
            f"nothing in {SKILL_FILE} or the files it mentions names this file",
            file=as_text(path),
            fix=f"link to it from {SKILL_FILE}, or remove it",
        )
        for path in sorted(unseen)
    ]


def _mentions(text: str, path: str) -> bool:
    """Tell whether a text names a file: by path, by file name, or by a folder it lies in."""
    return path.rpartition("/")[2] in text or any(f"{folder}/" in text for folder in folders_of([path]))
