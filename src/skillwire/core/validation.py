"""`validate`: everything there is to say about a skill, as findings.

It covers the Agent Skills format, and what makes other clients refuse a skill
or a whole listing. It never raises, whatever the bytes are.
"""

from collections.abc import Mapping

from skillwire.core.content import Content, body_findings, escaped_findings, hidden_findings, text_of
from skillwire.core.dialect import FrontmatterNotes
from skillwire.core.entry import size_findings
from skillwire.core.fields import field_findings, is_name
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import SkillDocument, parse_skill_md
from skillwire.core.needs import needs_in
from skillwire.core.paths import as_text, path_findings
from skillwire.core.uri import SKILL_FILE
from skillwire.errors import FrontmatterError


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
        if path != SKILL_FILE and (text := text_of(content)) is not None:
            findings += hidden_findings(as_text(path), text)
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
        notes = FrontmatterNotes.of(data)
        document = parse_skill_md(data, notes)
    except FrontmatterError as error:
        findings = [Finding(error.reason, str(error), line=error.line, fix=error.fix)]
        if error.reason != "not-utf8":
            findings += hidden_findings(SKILL_FILE, data.decode("utf-8", "replace"))
        return findings
    findings = field_findings(document.frontmatter, notes.line_of)
    findings += _folder_findings(folder, document, notes)
    findings += needs_in(document.frontmatter, line=notes.line_of("metadata")).findings
    findings += [
        Finding(
            "yaml-subset",
            f"the frontmatter has {what}, which the official TypeScript SDK refuses",
            line=line,
            fix="write plain indented `key: value` lines, each value on one line or after | or >",
        )
        for line, what in notes.outside
    ]
    text = data.decode("utf-8")
    findings += hidden_findings(SKILL_FILE, text)
    findings += escaped_findings(document.frontmatter, text, notes.line_of)
    return findings + body_findings(document, data, files)


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
