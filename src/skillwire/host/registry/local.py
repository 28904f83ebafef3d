"""Skills in folders on this machine: found, read kindly, and known by the bytes they had.

A local skill is the user's own, so what a server would be refused for is only
remarked upon here. Nothing is followed out of a skill all the same: a link to
a file elsewhere is left out, whoever put it there.
"""

import errno
import hashlib
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from skillwire.core.characters import visible
from skillwire.core.entry import SkillEntry, size_findings
from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_FILES, Manifest, ManifestFile
from skillwire.core.paths import as_text
from skillwire.core.uri import SKILL_FILE, SkillUri, canonical_uri
from skillwire.errors import (
    InvalidSkillError,
    InvalidUriError,
    LimitError,
    NotFoundError,
    SkillError,
    SourceError,
)
from skillwire.host.origin import Origin, OriginKind, SkillId
from skillwire.host.refusals import Refusal
from skillwire.host.registry.discovery import MAX_FOLDERS, Discovery
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.lenient import LenientDocument, parse_leniently
from skillwire.host.registry.naming import local_reference
from skillwire.host.state.trust import FolderTrust
from skillwire.sources.opening import FileMovedError, FolderReader
from skillwire.sources.review import SkillReading, read_skill
from skillwire.sources.scan import RACY_NS
from skillwire.sources.walk import FoundSkill, Stamp, Walk
from skillwire.wire.dialect import Dialect

logger = logging.getLogger(__name__)

Scope: TypeAlias = Literal["project", "user"]

SCHEME: Final = "local"
FOLDERS: Final = (".agents/skills", ".skillwire/skills")
"""Where skills lie below a project, and below a user's home."""

_RANKS: dict[Scope, int] = {"project": 0, "user": 1}
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO})


@dataclass(frozen=True, slots=True)
class LocalRoot:
    """A folder of skills. A project's counts only when `folder`, else the root itself, is trusted."""

    path: Path
    scope: Scope
    folder: Path | None = None


def default_roots(project: Path | None = None, *, home: Path | None = None) -> tuple[LocalRoot, ...]:
    """Return the usual roots of a project and of a user; they need not exist."""
    above = home or Path(os.path.expanduser("~"))  # noqa: PTH111 - the method of Path raises without a home
    roots = [LocalRoot(project / folder, "project", project) for folder in FOLDERS] if project else []
    return (*roots, *(LocalRoot(above / folder, "user") for folder in FOLDERS))


@dataclass(frozen=True, slots=True)
class LocalScan:
    """What the roots hold: the skills, sorted by reference, and everything that is not used."""

    skills: tuple[KnownSkill, ...] = ()
    hidden: tuple[Refusal, ...] = ()


class LocalSkills:
    """The skills below some roots; one thread at a time may scan.

    Files are read and hashed when they are new or may have changed, so what
    is listed is bound to the bytes that were there.
    """

    def __init__(self, roots: Sequence[LocalRoot], trust: FolderTrust | None = None) -> None:
        self.roots = tuple(roots)
        self._trust = trust
        self._known: dict[str, tuple[Stamp, KnownSkill]] = {}

    def scan(self) -> LocalScan:
        """Look at all roots; it never raises, whatever lies there."""
        found: list[KnownSkill] = []
        hidden: list[Refusal] = []
        before, self._known = self._known, {}
        for root in _distinct(self.roots):
            if self._is_closed(root):
                hidden.append(Refusal("untrusted-folder", _shown(root.folder or root.path)))
                continue
            discovery = Discovery(root.path).run()
            hidden += _remarks(root, discovery)
            for directory in discovery.skills:
                outcome = self._take(root, directory, before)
                if isinstance(outcome, KnownSkill):
                    found.append(outcome)
                elif outcome is not None:
                    hidden.append(outcome)
        kept, shadowed = _by_precedence(found)
        return LocalScan(kept, (*hidden, *shadowed))

    def _is_closed(self, root: LocalRoot) -> bool:
        if root.scope == "user":
            return False
        return self._trust is None or not self._trust.is_trusted(root.folder or root.path)

    def _take(
        self, root: LocalRoot, directory: str, before: dict[str, tuple[Stamp, KnownSkill]]
    ) -> KnownSkill | Refusal | None:
        """Return the skill in a folder, or why it is none; None when the folder has gone meanwhile."""
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
            if _is_lasting(found):
                self._known[key] = known
            return known[1]
        except SkillError as error:
            return Refusal.of(error, subject=_shown(place))


def read_local_file(skill: KnownSkill, uri: str) -> bytes:
    """Return the bytes of a file of a local skill, which are those the skill was listed with.

    The file is opened below the skill's folder, and no link leads out of it.

    Raises:
        InvalidUriError: The URI is malformed.
        UnlistedFileError: The skill does not list the file.
        VerificationError: The file has other bytes now.
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
    """Return each existing root once, by its absolute path; one that is the user's own needs no trust."""
    by_place: dict[str, LocalRoot] = {}
    for root in sorted(roots, key=lambda root: _RANKS[root.scope], reverse=True):
        path = root.path.absolute()
        if os.path.isdir(path):  # noqa: PTH112 - the method of Path raises where this answers no
            by_place.setdefault(os.path.realpath(path), replace(root, path=path))
    return list(by_place.values())


def _walked(folder: str) -> FoundSkill | None:
    """List the files of the skill at a real path.

    Raises:
        LimitError: It has too many files or folders, or they are too large together.
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


def _is_lasting(found: FoundSkill) -> bool:
    """Tell whether the same stamp will mean the same files: nothing odd is there, nor written just now."""
    newest = max((max(file[2], file[3]) for file in found.files), default=0)
    return not found.problems and newest <= time.time_ns() - RACY_NS


def _read(root: LocalRoot, directory: str, found: FoundSkill) -> KnownSkill:
    """Read a skill's files and make its record.

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
            "`description` is missing or empty", fix="say what the skill does and when to use it"
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


def _manifest(uri: SkillUri, reading: SkillReading) -> Manifest:
    """Describe the files whose bytes were read and whose paths can be part of a URI."""
    files: list[ManifestFile] = []
    for path, content in reading.files.items():
        if isinstance(content, bytes):
            try:
                files.append(ManifestFile.of(uri.join(path), content))
            except InvalidUriError:
                continue  # There is a finding about the path.
    return Manifest.of(files)


def _findings(folder: str, reading: SkillReading, lenient: LenientDocument) -> tuple[Finding, ...]:
    meant = replace(reading, folder=folder, files={**reading.files, SKILL_FILE: lenient.meant})
    return (*lenient.findings, *meant.findings())


def _by_precedence(found: Iterable[KnownSkill]) -> tuple[tuple[KnownSkill, ...], list[Refusal]]:
    """Keep one skill of each reference: a project's before a user's, then the first by path."""
    kept: dict[str, KnownSkill] = {}
    shadowed: list[Refusal] = []
    for skill in sorted(found, key=_precedence):
        winner = kept.setdefault(skill.reference, skill)
        if winner is not skill:
            detail = f"{_shown(skill.directory)} comes after {_shown(winner.directory)}"
            shadowed.append(Refusal("shadowed", skill.reference, detail))
            logger.info("the local skill %s is shadowed: %s", skill.reference, detail)
    return tuple(kept[reference] for reference in sorted(kept)), shadowed


def _precedence(skill: KnownSkill) -> tuple[bool, str]:
    return skill.id.origin.label != "project", os.fspath(skill.directory or "")


def _remarks(root: LocalRoot, discovery: Discovery) -> list[Refusal]:
    """Say what the search below a root passed over."""
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
        detail = f"it holds more than {MAX_FOLDERS} folders, or too many names in one, and the rest was left"
        refusals.append(
            Refusal("over-limit", _shown(root.path), detail, "FS-01", "move other files elsewhere")
        )
    return refusals


def _shown(path: Path | None) -> str:
    """Return a path for people: on one line, and inert."""
    return visible(as_text(os.fspath(path or "")))
