"""`validate`: all findings about a skill.

It covers the Agent Skills format, and what makes other clients refuse a skill
or a whole listing. It never raises, whatever the bytes are.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import TypeAlias

from skillwire.core.characters import HiddenCharacter, hidden_characters
from skillwire.core.errors import FrontmatterError
from skillwire.core.fields import LineOf, annotations_in, field_findings, is_name, needs_in
from skillwire.core.finding import SKILL_FILE, Finding, Line
from skillwire.core.frontmatter import (
    BYTE_ORDER_MARK,
    SkillDocument,
    frontmatter_text,
    parse_skill_md,
    walk_strings,
)
from skillwire.core.manifest import MAX_FILES, size_findings
from skillwire.core.media import media_type_of
from skillwire.core.ts_yaml import TypeScriptYamlCheck
from skillwire.core.uri import SkillUri, as_text, folders_of, path_findings
from skillwire.core.yaml12 import Frontmatter

# The links in a Markdown text, as far as skills need them.


# At any depth and directly after a list marker, since steps often contain code.
# Compiled on first use: most programs never inspect a text.
_FENCE = r"(?P<indent>[ \t]*(?:(?:[-*+]|[0-9]{1,9}[.)])[ \t]+)?)(?P<mark>`{3,}(?=[^`]*$)|~{3,})"
_TICKS = r"`+"
_TITLE = r"(?:[ \t]+(?:\"[^\"\n]{0,500}\"|'[^'\n]{0,500}'|\([^()\n]{0,500}\)))?"
_INLINE = (
    r"(?<!\\)\]\([ \t]*(?:<(?P<angled>[^<>`\n]{1,2000})>"
    r"|(?P<plain>[^\s()<>`]{1,2000}(?:\([^\s()<>`]{0,200}\)[^\s()<>`]{0,200}){0,8}))" + _TITLE + r"[ \t]*\)"
)
# A label that starts with ^ belongs to a footnote, whose text is not a target.
_DEFINITION = (
    r" {0,3}\[(?!\^)[^\[\]\n]{1,200}\]:[ \t]*(?:<(?P<angled>[^<>`\n]{1,2000})>"
    r"|(?P<plain>[^\s<`][^\s`]{0,1999}))" + _TITLE + r"\s*$"
)


@dataclass(frozen=True, slots=True)
class MarkdownLink:
    """A link's target as written, and its line, counted from 1."""

    target: str
    line: int


def links_in(markdown: str, *, first_line: int = 1) -> list[MarkdownLink]:
    """Find the links, images and reference definitions in `markdown`, outside of code."""
    fence_line, definition_line, inline = map(re.compile, (_FENCE, _DEFINITION, _INLINE))
    found: list[MarkdownLink] = []
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
            found += [MarkdownLink(match["angled"] or match["plain"], number) for match in matches]
    return found


def _closes(fence: re.Match[str], marker: re.Match[str]) -> bool:
    """Return whether `marker` closes `fence`: at least as long, alone, and barely more indented."""
    return (
        marker["mark"].startswith(fence["mark"])
        and not (marker["indent"] + marker.string[marker.end() :]).strip()
        and len(marker["indent"]) <= len(fence["indent"]) + 3
    )


def _without_code(line: str) -> str:
    """Replace each code span, which ends at the next run of as many backticks, by one backtick."""
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


# Findings about the text of a skill's files.


Content: TypeAlias = bytes | int
"""A file's bytes, or only its size when its content is not inspected."""

ADVISED_LINES = 500
ADVISED_TOKENS = 5_000
MAX_INSPECTED = 1024 * 1024
MAX_REMARKS = 100

_BYTES_PER_TOKEN = 4
_MAX_HIDDEN = 10_000
_MAX_FOLLOWED = 4 * MAX_INSPECTED
_NEEDS_NO_LINK = r"(?i:(?:license|notice|readme|changelog)(?:\..*)?|manifest\.json)"
_NO_PATH = r"(?s:[A-Za-z][A-Za-z0-9+.\-]*:|[#/?]|.*[{}<>$*])"
# A placeholder for the skill's own URI, to resolve links against.
_HERE = SkillUri.build("skill")


def text_of(content: Content) -> str | None:
    """Return a file's text, or None when it is binary or too large to inspect."""
    if isinstance(content, int) or len(content) > MAX_INSPECTED or b"\0" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def text_findings(path: str, content: Content) -> list[Finding]:
    """Check the text of a supporting file; one that is binary or too large has no findings."""
    text = text_of(content)
    if text is not None:
        return hidden_findings(as_text(path), text)
    is_text = media_type_of(path).startswith("text/")
    if not is_text or not isinstance(content, bytes) or len(content) > MAX_INSPECTED:
        return []
    message = "the file is not UTF-8 text, so clients receive it as binary content"
    return [Finding("text-not-utf8", message, file=as_text(path), fix="save it as UTF-8")]


def hidden_findings(path: str, text: str) -> list[Finding]:
    """Find characters in a file that are invisible or control a terminal, each kind once."""
    found = hidden_characters(text[:MAX_INSPECTED], most=_MAX_HIDDEN)
    return [_hidden(path, group, group[0].line) for group in _by_kind(found)]


def escaped_findings(frontmatter: Frontmatter, text: str, line_of: LineOf) -> list[Finding]:
    """Find such characters in frontmatter values that are written as escapes in `text`, the file's text."""
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
    """Check the instructions: their length, comments, and links to files."""
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
    message = "an HTML comment: models read it, but it is not visible on a rendered page"
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
            message = f"the link to {link.target!r} points outside the skill, where no client can follow it"
            yield Finding("link-outside", message, line=link.line, fix="copy the file into the skill")
            continue
        path = _HERE.relative_path(resolved)
        if path not in files and path not in folders:
            message = f"the link to {link.target!r} points to a file the skill does not have"
            yield Finding("broken-link", message, line=link.line, fix=_link_fix(path, files))


def _link_fix(path: str, files: Mapping[str, Content]) -> str:
    name = path.rpartition("/")[2].casefold()
    for candidate in sorted(files):
        if candidate.rpartition("/")[2].casefold() == name:
            return f"did you mean {candidate!r}?"
    return f"add {path!r}, or remove the link"


def _unlinked_findings(body: str, files: Mapping[str, Content]) -> list[Finding]:
    """Report files that neither SKILL.md nor a file reachable from it mentions, or only the latter."""
    if len(files) > MAX_FILES:
        return []
    unseen = {
        path
        for path in files
        if path != SKILL_FILE and not re.fullmatch(_NEEDS_NO_LINK, path.rpartition("/")[2])
    }
    texts, room = [(SKILL_FILE, body)], _MAX_FOLLOWED
    deep: list[Finding] = []
    while texts and unseen and room > 0:
        where, text = texts.pop()
        room -= len(text)
        for path in sorted(unseen):
            if _mentions(text, path):
                unseen.discard(path)
                if where != SKILL_FILE and where.endswith(".md"):
                    deep.append(_deep_reference(path, where))
                if (more := text_of(files[path])) is not None:
                    texts.append((path, more))
    if room <= 0:
        return []
    return sorted(deep, key=attrgetter("file"))[:MAX_REMARKS] + [
        Finding(
            "unlinked-file",
            f"nothing in {SKILL_FILE} or the files it mentions names this file",
            file=as_text(path),
            fix=f"link to it from {SKILL_FILE}, or remove it",
        )
        for path in sorted(unseen)
    ]


def _deep_reference(path: str, where: str) -> Finding:
    return Finding(
        "deep-reference",
        f"{SKILL_FILE} does not mention this file, only {as_text(where)!r} does",
        file=as_text(path),
        fix=f"mention it in {SKILL_FILE} too, so that an agent finds it in one step",
    )


def _mentions(text: str, path: str) -> bool:
    """Return whether a text mentions a file: by path, by file name, or by a folder that contains it."""
    return path.rpartition("/")[2] in text or any(f"{folder}/" in text for folder in folders_of([path]))


_PLAIN_YAML = "write plain indented `key: value` lines, each value on one line or after | or >"


def validate(folder: str | None, files: Mapping[str, Content]) -> list[Finding]:
    """Check a skill given as the files in its folder, by path relative to it.

    `folder` is the folder's own name, which the frontmatter's `name` must
    equal; None when the skill has no folder. The findings come sorted by
    file and line.
    """
    findings = [*path_findings(files), *size_findings(len(files), sum(map(_size, files.values())))]
    skill_md = files.get(SKILL_FILE)
    if skill_md is None:
        findings.append(_missing_skill_file(files))
    elif isinstance(skill_md, bytes):
        findings += _skill_file_findings(folder, skill_md, files)
    for path, content in files.items():
        if path != SKILL_FILE:
            findings += text_findings(path, content)
    return sorted(findings, key=lambda found: (found.file != SKILL_FILE, found.file, found.line or 0))


def _size(content: Content) -> int:
    return content if isinstance(content, int) else len(content)


def _missing_skill_file(files: Mapping[str, Content]) -> Finding:
    for path in sorted(files):
        if path.casefold() == SKILL_FILE.casefold():
            message = f"the file is named {path!r}; its name must be exactly {SKILL_FILE}"
            return Finding("skill-file-case", message, file=path, fix=f"rename it to {SKILL_FILE}")
    return Finding(
        "skill-file-missing", f"there is no {SKILL_FILE}", fix=f"add {SKILL_FILE} at the folder's root"
    )


def _skill_file_findings(folder: str | None, data: bytes, files: Mapping[str, Content]) -> list[Finding]:
    try:
        notes = TypeScriptYamlCheck.of(data, *frontmatter_text(data))
        document = parse_skill_md(data, notes)
    except FrontmatterError as error:
        findings = [Finding(error.reason, str(error), line=error.line, fix=error.fix)]
        if error.reason != "not-utf8":
            findings += hidden_findings(SKILL_FILE, data.decode("utf-8", "replace"))
        return findings
    findings = field_findings(document.frontmatter, notes.line_of)
    findings += _folder_findings(folder, document, notes)
    findings += needs_in(document.frontmatter, line=notes.line_of("metadata")).findings
    findings += annotations_in(document.frontmatter, line=notes.line_of("metadata")).findings
    findings += [
        Finding(
            "yaml-subset",
            f"the frontmatter has {what}, which the official TypeScript SDK refuses",
            line=line,
            fix=_PLAIN_YAML,
        )
        for line, what in notes.outside
    ]
    if notes.has_opening_blanks:
        message = "there are blanks after the opening ---, which the official TypeScript SDK refuses"
        findings.append(Finding("opening-blanks", message, line=1, fix="delete them"))
    if data.startswith(BYTE_ORDER_MARK):
        message = "the file starts with a byte order mark; some readers then do not find its frontmatter"
        findings.append(Finding("byte-order-mark", message, line=1, fix="save it as UTF-8 without one"))
    text = data.decode("utf-8")
    findings += hidden_findings(SKILL_FILE, text)
    findings += escaped_findings(document.frontmatter, text, notes.line_of)
    return findings + body_findings(document, data, files)


def _folder_findings(
    folder: str | None, document: SkillDocument, notes: TypeScriptYamlCheck
) -> list[Finding]:
    name = document.frontmatter.name
    if folder is None or not name or name == folder:
        return []
    fixes: list[str] = []
    if is_name(name):
        fixes.append(f"rename the folder to `{name}`")
    if is_name(folder):
        fixes.append(f"set `name: {folder}`")
    message = f"the folder is named {folder!r} and the skill {name!r}; the two must be equal"
    fix = ", or ".join(fixes) or "choose one name of a-z, 0-9 and hyphens for both"
    return [Finding("name-differs-from-folder", message, line=notes.line_of("name"), fix=fix)]
