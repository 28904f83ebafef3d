"""`validate`: everything there is to say about a skill, as findings.

It covers the Agent Skills format, and what makes other clients refuse a skill
or a whole listing. It never raises, whatever the bytes are.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TypeAlias

from skillwire.core.characters import hidden_characters
from skillwire.core.dialect import FrontmatterNotes
from skillwire.core.entry import size_findings
from skillwire.core.fields import field_findings, is_name
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import SkillDocument, parse_skill_md
from skillwire.core.links import links_in
from skillwire.core.paths import as_text, folders_of, path_findings
from skillwire.core.uri import SKILL_FILE, SkillUri
from skillwire.errors import FrontmatterError

Content: TypeAlias = bytes | int
"""A file's bytes, or only its size when nobody wants to look inside."""

ADVISED_LINES = 500
ADVISED_TOKENS = 5_000
MAX_INSPECTED_BYTES = 1024 * 1024

_BYTES_PER_TOKEN = 4
_NEEDS_NO_LINK = re.compile(r"(?:license|notice|readme|changelog)(?:\..*)?|manifest\.json", re.IGNORECASE)
_COMMENT = re.compile(r"<!--")
# A stand-in for the skill's own URI, to resolve links against.
_HERE = SkillUri.build("skill")


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
        if path != SKILL_FILE and isinstance(content, bytes) and (text := _text(content)) is not None:
            findings += _hidden_findings(as_text(path), text)
    return sorted(findings, key=lambda found: (found.file != SKILL_FILE, found.file, found.line or 0))


def _size(content: Content) -> int:
    return content if isinstance(content, int) else len(content)


def _text(content: bytes) -> str | None:
    """Return a file's text, or None when it is binary or too large to look into."""
    if len(content) > MAX_INSPECTED_BYTES or b"\0" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


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
        notes = FrontmatterNotes.of(data)
        document = parse_skill_md(data, notes)
    except FrontmatterError as error:
        findings = [Finding(error.reason, str(error), line=error.line, fix=error.fix)]
        if error.reason != "not-utf8":
            findings += _hidden_findings(SKILL_FILE, data.decode("utf-8", "replace"))
        return findings
    findings = field_findings(document.frontmatter, notes.line_of)
    findings += _folder_findings(folder, document, notes)
    findings += [
        Finding(
            "yaml-subset",
            f"the frontmatter has {what}, which the official TypeScript SDK refuses",
            line=line,
            fix="write plain indented `key: value` lines, each value on one line or after | or >",
        )
        for line, what in notes.outside
    ]
    findings += _hidden_findings(SKILL_FILE, data.decode("utf-8"))
    return findings + _body_findings(document, data, files)


def _folder_findings(folder: str | None, document: SkillDocument, notes: FrontmatterNotes) -> list[Finding]:
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


def _hidden_findings(path: str, text: str) -> list[Finding]:
    found = sorted(hidden_characters(text), key=lambda hidden: hidden.kind)
    findings: list[Finding] = []
    for kind, group in groupby(found, key=lambda hidden: hidden.kind):
        characters = list(group)
        first = characters[0]
        code = "terminal-escape" if kind == "control" else "hidden-characters"
        more = f" and {len(characters) - 1} more like it" if len(characters) > 1 else ""
        message = f"the text holds {first.label}{more}, which a reader cannot see"
        findings.append(Finding(code, message, file=path, line=first.line, fix="delete it"))
    return findings


def _body_findings(document: SkillDocument, data: bytes, files: Mapping[str, Content]) -> list[Finding]:
    findings: list[Finding] = []
    lines, tokens = data.count(b"\n") + 1, len(data) // _BYTES_PER_TOKEN
    if not document.body.strip():
        message = "there are no instructions after the frontmatter"
        findings.append(
            Finding("empty-body", message, line=document.body_line, fix="write what an agent should do")
        )
    if lines > ADVISED_LINES or tokens > ADVISED_TOKENS:
        message = f"the file has {lines} lines, about {tokens} tokens; all of it is loaded at once"
        findings.append(Finding("long-skill-file", message, fix="move detail into files under references/"))
    for number, line in enumerate(document.body.split("\n"), document.body_line):
        if _COMMENT.search(line):
            message = "an HTML comment: a model reads it, a person looking at the rendered page does not"
            findings.append(
                Finding("html-comment", message, line=number, fix="make it visible text, or delete it")
            )
    return findings + _link_findings(document, files)


def _link_findings(document: SkillDocument, files: Mapping[str, Content]) -> list[Finding]:
    folders = folders_of(files)
    findings: list[Finding] = []
    for link in links_in(document.body, first_line=document.body_line):
        if re.match(r"[A-Za-z][A-Za-z0-9+.\-]*:|[#/?]|//", link.target) or re.search(
            r"[{}<>$*]", link.target
        ):
            continue
        resolved = _HERE.resolve(link.target)
        if resolved is None:
            message = f"the link to {link.target!r} leads out of the skill, where no client can follow it"
            findings.append(
                Finding("link-outside", message, line=link.line, fix="copy the file into the skill")
            )
            continue
        path = _HERE.relative_path(resolved)
        if path not in files and path not in folders:
            message = f"the link to {link.target!r} leads to a file the skill does not have"
            findings.append(Finding("broken-link", message, line=link.line, fix=_link_fix(path, files)))
    return findings + _unlinked_findings(document, files)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _link_fix(path: str, files: Mapping[str, Content]) -> str:
    name = path.rpartition("/")[2].casefold()
    for candidate in sorted(files):
        if candidate.rpartition("/")[2].casefold() == name:
            return f"did you mean {candidate!r}?"
    return f"add {path!r}, or remove the link"


def _unlinked_findings(document: SkillDocument, files: Mapping[str, Content]) -> list[Finding]:
    """Report files that neither SKILL.md nor a text reachable from it mentions."""
    unseen = {
        path for path in files if path != SKILL_FILE and not _NEEDS_NO_LINK.fullmatch(path.rpartition("/")[2])
    }
    texts = [document.body]
    while texts and unseen:
        text = texts.pop()
        for path in sorted(unseen):
            if _mentions(text, path):
                unseen.discard(path)
                content = files[path]
                if isinstance(content, bytes) and (more := _text(content)) is not None:
                    texts.append(more)
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
    if path.rpartition("/")[2] in text:
        return True
    return any(f"{parent}/" in text for parent in _parents(path))
