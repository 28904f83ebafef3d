"""Importing folders that were dumped from servers with a `_manifest` for each skill.

Such a file lists a skill's files with their digests. It is not part of the
format, so folders that have one are read only here (DRAFT-11): files that match
the list are imported, differences are reported, and all other files are left
out.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skillwire.core import (
    MAX_TOTAL_SIZE,
    SKILL_FILE,
    Finding,
    FrontmatterError,
    ManifestFile,
    Skill,
    SkillEntry,
    SkillError,
    SkillUri,
    SourceError,
    as_text,
    folders_of,
    parse_entry,
    parse_skill_md,
    path_findings,
    quoted,
)
from skillwire.sources.directory.walk import MAX_DEPTH, SKIPPED_FOLDERS, FolderReader
from skillwire.wire.resources import FILE_LIST, MAX_FILE_LIST, parse_file_list, restore_line_ends

MAX_FOLDERS: Final = 10_000

_MAX_UNLISTED = 20


@dataclass(frozen=True, slots=True)
class ImportedSkill:
    """The result for one folder: the skill, byte for byte as listed, or None with findings.

    `directory` is the folder's path below the tree's root, and empty for the root.
    """

    directory: str
    skill: Skill | None
    findings: tuple[Finding, ...] = ()


def import_skills(root: Path) -> Iterator[ImportedSkill]:
    """Read every folder below `root` that has a `_manifest`, one after the other and in order.

    The path of a skill is the path of its folder. No link is followed, and a
    folder that cannot be used does not affect others.

    Raises:
        SourceError: `root` is not a readable folder, or contains too many.
    """
    place = root.resolve().name
    try:
        reader = FolderReader(os.fspath(root))
    except OSError as error:
        raise SourceError(f"{quoted(place)} is not a readable folder") from error
    with reader:
        for directory, names in _folders(root, place):
            yield _imported(reader, place, directory, names)


def _folders(root: Path, place: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders with a file list, by path, each with the paths of all files in it."""
    files: dict[str, list[str]] = {}
    for count, (path, folders, names) in enumerate(os.walk(root)):
        if count >= MAX_FOLDERS:
            raise SourceError(f"{quoted(place)} contains more than {MAX_FOLDERS} folders")
        directory = "" if path == os.fspath(root) else os.path.relpath(path, root).replace(os.sep, "/")
        is_deep = directory.count("/") >= MAX_DEPTH
        folders[:] = [name for name in folders if not is_deep and _is_entered(name)]
        for above in {"", *folders_of([f"{directory}/"])} & files.keys():
            files[above] += [_join(directory, name)[len(above) + bool(above) :] for name in names]
        if FILE_LIST in names:
            files[directory] = list(names)
    yield from sorted(files.items())


def _is_entered(name: str) -> bool:
    return not name.startswith(".") and name not in SKIPPED_FOLDERS


def _imported(reader: FolderReader, place: str, directory: str, names: list[str]) -> ImportedSkill:
    try:
        entry = _entry(reader, SkillUri.build(directory or place), directory)
    except SkillError as error:
        return ImportedSkill(directory, None, (_finding_of(error),))
    contents: dict[str, bytes] = {}
    findings: list[Finding] = []
    for line in entry.manifest.files if entry.manifest is not None else ():
        path = entry.uri.relative_path(line.uri)
        try:
            contents[path] = _read_verified(reader, directory, path, line)
        except SkillError as error:
            findings.append(Finding("file-list-mismatch", str(error), file=path, fix="dump the skill again"))
    findings += path_findings(contents)
    if any(finding.is_error for finding in findings):
        return ImportedSkill(directory, None, tuple(findings))
    try:
        skill = Skill(entry.name, body=contents.pop(SKILL_FILE), path=entry.uri.path)
        for path, content in sorted(contents.items()):
            skill = skill.with_reference(path, content)
    except SkillError as error:
        return ImportedSkill(directory, None, (*findings, _finding_of(error)))
    return ImportedSkill(directory, skill, (*findings, *_unlisted_files(skill, names)))


def _entry(reader: FolderReader, uri: SkillUri, directory: str) -> SkillEntry:
    """Build the entry from a folder's file list and `SKILL.md`.

    Raises:
        InvalidEntryError: The list is invalid, or the two break a rule.
        FrontmatterError: `SKILL.md` has no readable frontmatter.
        SourceError: One of the two cannot be read.
    """
    lines = parse_file_list(uri, _read(reader, directory, FILE_LIST, MAX_FILE_LIST))
    document = parse_skill_md(_read(reader, directory, SKILL_FILE, MAX_TOTAL_SIZE))
    frontmatter = dict(document.frontmatter.fields)
    entry = parse_entry({"uri": uri.text, "frontmatter": frontmatter, "resources": lines})
    entry.check_limits()
    return entry


def _read_verified(reader: FolderReader, directory: str, path: str, line: ManifestFile) -> bytes:
    """Read a file and compare it with its digest.

    Raises:
        VerificationError: It has changed.
        SourceError: It is missing, or cannot be read.
    """
    content = restore_line_ends(_read(reader, directory, path, line.size), line)
    line.verify(content)
    return content


def _read(reader: FolderReader, directory: str, path: str, most: int) -> bytes:
    folder, _, name = _join(directory, path).rpartition("/")
    try:
        content, _ = reader.read(folder, name, most)
    except OSError as error:
        raise SourceError(f"{quoted(path)} is missing, or is not a readable file") from error
    return content


def _unlisted_files(skill: Skill, names: list[str]) -> list[Finding]:
    """Return a finding for each file of the folder that the list does not have."""
    known = {SKILL_FILE, FILE_LIST, *(file.path for file in skill.files)}
    return [
        Finding("file-list-unlisted", "the file list does not have it, so it is left out", file=as_text(name))
        for name in sorted(set(names) - known)[:_MAX_UNLISTED]
    ]


def _finding_of(error: SkillError) -> Finding:
    if isinstance(error, FrontmatterError):
        return Finding(error.reason, str(error), line=error.line, fix=error.fix)
    return Finding("file-list-invalid", str(error), file=FILE_LIST, fix=error.fix)


def _join(directory: str, path: str) -> str:
    return f"{directory}/{path}" if directory else path
