"""Skills in local folders: discovered, parsed leniently, and bound to the bytes that were read.

A local skill is the user's own, so errors that would hide a server's skill are
only reported as findings. Links that lead out of a skill are still not
followed.
"""

import errno
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal, TypeAlias

from skillwire.core import (
    MAX_FILES,
    SKILL_FILE,
    Dialect,
    Finding,
    FrontmatterError,
    InvalidSkillError,
    InvalidUriError,
    LimitError,
    Manifest,
    ManifestFile,
    NotFoundError,
    SkillDocument,
    SkillEntry,
    SkillError,
    SkillUri,
    SourceError,
    as_text,
    canonical_uri,
    frontmatter_text,
    parse_skill_md,
    size_findings,
    visible,
)
from skillwire.host.approval.synced import SyncedFolders
from skillwire.host.model import KnownSkill, Origin, OriginKind, Refusal, SkillId, local_reference
from skillwire.host.state.trust import FOLDERS, FolderTrust
from skillwire.sources.directory.scan import RACY_NS
from skillwire.sources.directory.walk import (
    SKIPPED_FOLDERS,
    FileMovedError,
    FolderReader,
    FoundSkill,
    Stamp,
    Walk,
    near_miss,
)
from skillwire.sources.review import ReadSkill, read_skill

# Discovery of the folders below a root that contain a `SKILL.md`: bounded, and without opening a file.


MAX_DEPTH: Final = 6
MAX_FOLDERS: Final = 2_000
MAX_NAMES: Final = 10_000
"""The maximum number of names read in one folder."""


@dataclass(slots=True)
class Discovery:
    """One search below `root`.

    A folder is a skill when it contains a file of exactly that name; its
    subfolders are then part of the skill and not searched. The root itself is
    not a skill. Links to folders are followed, each real folder once and by
    its own name first. `skills` are paths relative to the root, sorted.
    `remarks` are problems of folders, by path, and `is_cut` is set when the
    search stopped at a limit.
    """

    root: Path
    skills: list[str] = field(default_factory=list[str])
    remarks: list[tuple[str, Finding]] = field(default_factory=list[tuple[str, Finding]])
    is_cut: bool = False
    _pending: list[str] = field(default_factory=list[str])
    _links: list[str] = field(default_factory=list[str])
    _entered: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    _steps: int = 0

    def run(self) -> "Discovery":
        self._pending.append("")
        while self._pending or self._links:
            if self._steps == MAX_FOLDERS:
                self.is_cut = True
                break
            self._steps += 1
            # Links come last and by name, so that a folder is found by its own path rather than through one.
            queue = self._pending or self._links
            queue.sort(reverse=True)
            directory = queue.pop()
            try:
                self._enter(directory)
            except FileNotFoundError:
                continue  # It was moved or deleted meanwhile, or is a broken link.
            except OSError as error:
                message = (
                    f"it cannot be read: {os.strerror(error.errno) if error.errno else 'unknown reason'}"
                )
                self.remarks.append((directory, Finding("unreadable", message, file="")))
        self.skills.sort()
        return self

    def _enter(self, directory: str) -> None:
        path = self.root / directory
        found = path.stat()
        if (found.st_dev, found.st_ino) in self._entered:
            return
        self._entered.add((found.st_dev, found.st_ino))
        with os.scandir(path) as listing:
            entries = list(islice(listing, MAX_NAMES + 1))
        self.is_cut = self.is_cut or len(entries) > MAX_NAMES
        files = {entry.name for entry in entries if not _is_folder(entry)}
        if SKILL_FILE in files and directory:
            self.skills.append(directory)
            return
        self._note_near_misses(directory, files)
        if directory.count("/") + bool(directory) < MAX_DEPTH:
            self._descend(f"{directory}/" if directory else "", entries)

    def _note_near_misses(self, directory: str, files: set[str]) -> None:
        if SKILL_FILE in files:
            message = "it is directly in the folder of skills, where it does not define a skill"
            fix = "move it into a folder of its own"
            self.remarks.append((directory, Finding("skill-file-missing", message, file=SKILL_FILE, fix=fix)))
        for name in sorted(files):
            if name != SKILL_FILE and name.lower() == SKILL_FILE.lower():
                self.remarks.append((directory, near_miss(name)))

    def _descend(self, base: str, entries: list[os.DirEntry[str]]) -> None:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in SKIPPED_FOLDERS or not _is_folder(entry):
                continue
            if len(self._pending) + len(self._links) >= MAX_NAMES:
                self.is_cut = True
                return
            (self._links if entry.is_symlink() else self._pending).append(base + entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # For example a circular link.


# Lenient parsing of a local `SKILL.md`: one common mistake is accepted and reported, never rewritten.


_MOST_REPAIRS = 16
_KEY = re.compile(r" *(?:- +)?[A-Za-z][\w.-]*: +")
# Characters that start something other than a plain scalar.
_SPECIAL = frozenset("'\"|>[]{}#&*!%@`,?-")
_COMMENT = re.compile(r"[ \t]#")
_ENDS_A_KEY = re.compile(r":(?:\s|\Z)")


@dataclass(frozen=True, slots=True)
class LenientDocument:
    """A document, the mistakes that were accepted, and the file with these mistakes repaired.

    `repaired` is the file itself when there were no mistakes.
    """

    document: SkillDocument
    findings: tuple[Finding, ...]
    repaired: bytes


def parse_leniently(data: bytes) -> LenientDocument:
    """Parse a local `SKILL.md`; an unquoted value with a colon is parsed as if it were quoted.

    Raises:
        FrontmatterError: It is still invalid; this is the error of the original file.
    """
    text = data
    findings: list[Finding] = []
    failure: FrontmatterError | None = None
    for _ in range(_MOST_REPAIRS + 1):
        try:
            return LenientDocument(parse_skill_md(text), tuple(findings), text)
        except FrontmatterError as error:
            failure = failure or error
            repair = _repaired(text, error)
            if repair is None:
                break
            text, line = repair
            message = f"the value in line {line} is read as if it were quoted: {error}"
            findings.append(Finding(error.reason, message, line=line, fix=error.fix))
    assert failure is not None
    raise failure


def _repaired(data: bytes, error: FrontmatterError) -> tuple[bytes, int] | None:
    """Return the file with one more value quoted, and its line; None when that does not fix the error."""
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
    """Return `key: value` with the value quoted; None when it has no colon or is not a plain scalar."""
    key = _KEY.match(row)
    if key is None:
        return None
    rest = row[key.end() :]
    comment = _COMMENT.search(rest)
    value = rest[: comment.start() if comment else len(rest)].rstrip()
    if not value or value[0] in _SPECIAL or not _ENDS_A_KEY.search(value):
        return None
    return key.group() + "'" + value.replace("'", "''") + "'" + rest[len(value) :]


logger = logging.getLogger(__name__)

Scope: TypeAlias = Literal["project", "user"]

SCHEME: Final = "local"
_RANKS: dict[Scope, int] = {"project": 0, "user": 1}
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO})


@dataclass(frozen=True, slots=True)
class LocalRoot:
    """A folder of skills. A project's is used only if `folder`, or else the root itself, is trusted."""

    path: Path
    scope: Scope
    folder: Path | None = None


def default_roots(project: Path | None = None, *, home: Path | None = None) -> tuple[LocalRoot, ...]:
    """Return the default roots of a project and of a user; they need not exist."""
    above = home or Path(os.path.expanduser("~"))  # noqa: PTH111 - the method of Path raises without a home
    roots = [LocalRoot(project / folder, "project", project) for folder in FOLDERS] if project else []
    return (*roots, *(LocalRoot(above / folder, "user") for folder in FOLDERS))


@dataclass(frozen=True, slots=True)
class LocalScan:
    """The result of a scan: the skills, sorted by reference, and what is hidden and why."""

    skills: tuple[KnownSkill, ...] = ()
    hidden: tuple[Refusal, ...] = ()


class LocalSkills:
    """The skills below some roots; only one thread at a time may scan.

    Files are read and hashed when they are new or may have changed, so that
    entries are bound to the bytes that were read. Folders in `synced` are
    skills of servers, written for other agents, and are left out: as local
    skills they would need no approval.
    """

    def __init__(
        self,
        roots: Sequence[LocalRoot],
        trust: FolderTrust | None = None,
        synced: SyncedFolders | None = None,
    ) -> None:
        self.roots = tuple(roots)
        self._trust = trust
        self._synced = synced
        self._known: dict[str, tuple[Stamp, KnownSkill]] = {}

    def scan(self) -> LocalScan:
        """Scan all roots; never raises."""
        found: list[KnownSkill] = []
        hidden: list[Refusal] = []
        before, self._known = self._known, {}
        synced = frozenset[str]() if self._synced is None else self._synced.places()
        for root in _distinct(self.roots):
            if self._is_untrusted(root):
                hidden.append(Refusal("untrusted-folder", _shown(root.folder or root.path)))
                continue
            discovery = Discovery(root.path).run()
            hidden += _remarks(root, discovery)
            for directory in discovery.skills:
                if synced and os.path.realpath(root.path / directory) in synced:
                    hidden.append(Refusal("synced-folder", _shown(root.path / directory)))
                    continue
                outcome = self._known_skill(root, directory, before)
                if isinstance(outcome, KnownSkill):
                    found.append(outcome)
                elif outcome is not None:
                    hidden.append(outcome)
        kept, shadowed = _by_precedence(found)
        return LocalScan(kept, (*hidden, *shadowed))

    def _is_untrusted(self, root: LocalRoot) -> bool:
        if root.scope == "user":
            return False
        return self._trust is None or not self._trust.is_trusted(root.folder or root.path)

    def _known_skill(
        self, root: LocalRoot, directory: str, before: dict[str, tuple[Stamp, KnownSkill]]
    ) -> KnownSkill | Refusal | None:
        """Return the skill in a folder, or why it is not usable; None when the folder was removed."""
        place = root.path / directory
        key = os.fspath(place)
        try:
            found = _walked(os.path.realpath(place))
            if found is None:
                return None
            stamp = found.stamp()
            known = before.get(key)
            if known is None or known[0] != stamp or found.problems:
                known = (stamp, _read(root, directory, found))
            if _is_stable(found):
                self._known[key] = known
            return known[1]
        except SkillError as error:
            return Refusal.of(error, subject=_shown(place))


def read_local_file(skill: KnownSkill, uri: str) -> bytes:
    """Return the bytes of a file of a local skill, verified against its entry.

    The file is opened relative to the skill's folder, and links out of it are refused.

    Raises:
        InvalidUriError: The URI is malformed.
        UnlistedFileError: The skill does not list the file.
        VerificationError: The file has changed.
        NotFoundError: It is no longer a file of the skill.
        SourceError: It cannot be read.
    """
    manifest, directory = skill.entry.manifest, skill.directory
    assert manifest is not None and directory is not None, "local skills have files in a folder"
    file = manifest.require(canonical_uri(uri))
    base = os.path.realpath(directory)
    target = os.path.realpath(f"{base}/{skill.entry.uri.relative_path(file.uri)}")
    if not target.startswith(base + os.sep):
        raise _gone(file.uri)
    folder, _, name = target[len(base) + 1 :].replace(os.sep, "/").rpartition("/")
    try:
        with FolderReader(base) as reader:
            content, _ = reader.read(folder, name, file.size)
    except OSError as error:
        if isinstance(error, FileMovedError) or error.errno in _GONE:
            raise _gone(file.uri) from error
        raise SourceError(f"{file.uri} cannot be read", fix="check the permissions of the file") from error
    file.verify(content)
    return content


def _gone(uri: str) -> NotFoundError:
    return NotFoundError(f"{uri} is no longer a file of the skill", uri=uri)


def _distinct(roots: Iterable[LocalRoot]) -> list[LocalRoot]:
    """Return each existing root once, by its absolute path; the user scope wins over the project scope."""
    by_place: dict[str, LocalRoot] = {}
    for root in sorted(roots, key=lambda root: _RANKS[root.scope], reverse=True):
        path = root.path.absolute()
        if os.path.isdir(path):  # noqa: PTH112 - the method of Path raises where this returns False
            by_place.setdefault(os.path.realpath(path), replace(root, path=path))
    return list(by_place.values())


def _walked(folder: str) -> FoundSkill | None:
    """List the files of the skill at a real path.

    Raises:
        LimitError: It has too many files or folders, or their total size is too large.
    """
    walk = Walk(folder)
    for directories in walk.steps():
        if not walk.skills:
            return None
        if directories > MAX_FOLDERS:
            raise LimitError(f"the skill has more than {MAX_FOLDERS} folders")
        if len(walk.skills[0].files) > MAX_FILES:
            break
    found = walk.skills[0]
    for finding in size_findings(len(found.files), sum(file[1] for file in found.files)):
        raise LimitError(finding.message, fix=finding.fix)
    return found


def _is_stable(found: FoundSkill) -> bool:
    """Return whether an equal stamp means equal files: no problems, and nothing written just now."""
    newest = max((max(file[2], file[3]) for file in found.files), default=0)
    return not found.problems and newest <= time.time_ns() - RACY_NS


def _read(root: LocalRoot, directory: str, found: FoundSkill) -> KnownSkill:
    """Read a skill's files and return its record.

    Raises:
        SkillError: It has no description, or cannot be read.
    """
    place = root.path / directory
    reading = read_skill(os.path.realpath(place), found)
    skill_md = reading.files.get(SKILL_FILE)
    if not isinstance(skill_md, bytes):
        problems = "; ".join(problem.message for problem in reading.problems if problem.file == SKILL_FILE)
        raise InvalidSkillError(f"{SKILL_FILE} cannot be read: {problems or 'it is gone'}")
    lenient = parse_leniently(skill_md)
    frontmatter = lenient.document.frontmatter
    if not frontmatter.description.strip():
        raise InvalidSkillError(
            "`description` is missing or empty", fix="describe what the skill does and when to use it"
        )
    uri = SkillUri.build(f"{root.scope}/{directory}", scheme=SCHEME)
    fingerprint = hashlib.sha256(os.fsencode(os.path.realpath(root.path))).hexdigest()
    return KnownSkill(
        SkillId(Origin(OriginKind.LOCAL, root.scope, f"sha256:{fingerprint}"), uri.text),
        local_reference(frontmatter.name or place.name, uri.text),
        SkillEntry(uri, frontmatter, _manifest(uri, reading)),
        dialect=Dialect.LOCAL,
        directory=place,
        findings=_findings(place.name, reading, lenient),
    )


def _manifest(uri: SkillUri, reading: ReadSkill) -> Manifest:
    """Return the manifest of the files that were read and whose paths can be part of a URI."""
    files: list[ManifestFile] = []
    for path, content in reading.files.items():
        if isinstance(content, bytes):
            try:
                files.append(ManifestFile.of(uri.join(path), content))
            except InvalidUriError:
                continue  # Reported as a finding.
    return Manifest.of(files)


def _findings(folder: str, reading: ReadSkill, lenient: LenientDocument) -> tuple[Finding, ...]:
    repaired = replace(reading, folder=folder, files={**reading.files, SKILL_FILE: lenient.repaired})
    return (*lenient.findings, *repaired.findings())


def _by_precedence(found: Iterable[KnownSkill]) -> tuple[tuple[KnownSkill, ...], list[Refusal]]:
    """Return one skill per reference, a project's before a user's, then by path; and the shadowed ones."""
    kept: dict[str, KnownSkill] = {}
    shadowed: list[Refusal] = []
    for skill in sorted(found, key=_precedence):
        winner = kept.setdefault(skill.reference, skill)
        if winner is not skill:
            detail = f"{_shown(skill.directory)} is shadowed by {_shown(winner.directory)}"
            shadowed.append(Refusal("shadowed", skill.reference, detail))
            logger.info("local skill %s: %s", skill.reference, detail)
    return tuple(kept[reference] for reference in sorted(kept)), shadowed


def _precedence(skill: KnownSkill) -> tuple[bool, str]:
    return skill.id.origin.label != "project", os.fspath(skill.directory or "")


def _remarks(root: LocalRoot, discovery: Discovery) -> list[Refusal]:
    """Return what the search below a root skipped, and why."""
    refusals = [
        Refusal(
            "source-unreadable" if finding.code == "unreadable" else "invalid-skill",
            _shown(root.path / directory),
            f"{visible(finding.file)}: {finding.message}" if finding.file else finding.message,
            finding.rule,
            finding.fix,
        )
        for directory, finding in discovery.remarks
    ]
    if discovery.is_cut:
        detail = f"it has more than {MAX_FOLDERS} folders, or too many names in one; the rest was skipped"
        refusals.append(
            Refusal("over-limit", _shown(root.path), detail, "FS-01", "move other files elsewhere")
        )
    return refusals


def _shown(path: Path | None) -> str:
    """Return a path for display: on one line and escaped."""
    return visible(as_text(os.fspath(path or "")))
