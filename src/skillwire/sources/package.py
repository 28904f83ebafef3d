"""`PackageSource`: skills in a Python package, unpacked or in an archive."""

import logging
import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import TracebackType
from typing import IO, TYPE_CHECKING, TypeAlias, cast

import anyio.to_thread

from skillwire.core import (
    DEFAULT_SCHEME,
    MAX_TOTAL_SIZE,
    SKILL_FILE,
    Finding,
    SkillUri,
    SourceError,
    digest_of,
)
from skillwire.sources.directory.publish import MountPoint, Published, combine, publish, require_root
from skillwire.sources.directory.scan import SkillRecord, listing_findings, make_record, unpublished_record
from skillwire.sources.directory.source import DirectorySource
from skillwire.sources.directory.walk import (
    LINKED_FOLDER,
    MAX_DEPTH,
    REPLACE_LINK,
    SKIPPED_FOLDERS,
    SPECIAL_FILE,
    TOO_DEEP,
    FoundSkill,
    add_problem,
    near_miss,
    path_in_skill,
)
from skillwire.sources.snapshot import Snapshot, SnapshotSource

if TYPE_CHECKING:  # Slow to import, and most programs serve no package.
    import zipfile
    from importlib.resources.abc import Traversable

# The maximum size of all skills of one package in memory.
MAX_PACKAGE_BYTES = 256 * 1024 * 1024

logger = logging.getLogger(__name__)


class PackageSource(SnapshotSource):
    """The skills in a folder of a Python package, as `importlib.resources` finds it.

        async with PackageSource(files("my_package") / "skills") as source: ...

    An unpacked package is served as `DirectorySource` serves a folder it does
    not watch. From an archive everything is read into memory, once, when the
    source is first entered; the rules are the same, but no link is followed.
    `prefix`, `at` and `scheme` mean what they mean for `DirectorySource`.

    Raises:
        InvalidUriError: `prefix`, `at` or `scheme` cannot be part of a URI.
    """

    def __init__(
        self, place: "Traversable", *, prefix: str = "", at: str | None = None, scheme: str = DEFAULT_SCHEME
    ) -> None:
        super().__init__()
        self._source: DirectorySource | _PackedSource
        if isinstance(place, os.PathLike):
            folder = os.fspath(cast("os.PathLike[str]", place))
            self._source = DirectorySource(folder, prefix=prefix, at=at, scheme=scheme, watch=False)
        else:
            self._source = _PackedSource(place, MountPoint.make(scheme, prefix, at))

    async def __aenter__(self) -> "PackageSource":
        """Read or scan the skills.

        Raises:
            SourceError: There is no such folder, it cannot be read, or it is too large.
            InvalidSkillError: With `at`, the folder is not a skill, or has another name.
        """
        await self._source.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._source.__aexit__(kind, error, trace)

    @property
    def snapshot(self) -> Snapshot:
        return self._source.snapshot

    async def wait_for_change(self, revision: int) -> Snapshot:
        return await self._source.wait_for_change(revision)

    async def read_file(self, uri: str) -> bytes:
        return await self._source.read_file(uri)

    def place_of(self, uri: SkillUri) -> str:
        """Return where a published skill comes from, for the operator of the server."""
        return self._source.place_of(uri)

    def modified_at(self, uri: SkillUri) -> float | None:
        """Return when a published skill's `SKILL.md` was last modified; None for one in an archive."""
        return self._source.modified_at(uri)


class _PackedSource(SnapshotSource):
    """The skills of a package that is not a folder on disk."""

    def __init__(self, place: "Traversable", mount: MountPoint) -> None:
        super().__init__()
        self._place = place
        self._mount = mount
        self._published: Published | None = None
        self._contents: dict[str, bytes] = {}

    async def __aenter__(self) -> "_PackedSource":
        if self._published is None:
            self._published = await anyio.to_thread.run_sync(self._load)
            self._replace_snapshot(self._published.snapshot)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None

    async def read_file(self, uri: str) -> bytes:
        entry, file = self.snapshot.locate(uri)
        assert file is not None, "a package has no dynamic skills"
        return self._contents[_join(self._folder_of(entry.uri), entry.uri.relative_path(file.uri))]

    def place_of(self, uri: SkillUri) -> str:
        return _join(str(self._place).rstrip("/"), self._folder_of(uri)).rstrip("/")

    def modified_at(self, uri: SkillUri) -> float | None:
        return None

    def _folder_of(self, uri: SkillUri) -> str:
        publication = self._published.publications.get(uri.text) if self._published else None
        return publication.record.directory if publication else ""

    def _load(self) -> Published:
        reading = _PackageReader()
        reading.run(self._place)
        records = [_record(found, reading.contents) for found in reading.skills]
        publications = publish(records, self._mount, self._place.name, {})
        published = combine(publications.values(), reading.loose, self._mount, 1, reading.empty)
        if self._mount.at:
            require_root(published, self._mount)
        self._contents = {
            path: reading.contents[path]
            for publication in published.publications.values()
            for path in (
                _join(publication.record.directory, inner) for inner in publication.record.stamp.paths
            )
        }
        return published


class _PackageReader:
    """One pass over a package: the same results as a walk of a folder, and the bytes."""

    def __init__(self) -> None:
        self.skills: list[FoundSkill] = []
        self.loose: list[tuple[str, Finding]] = []
        self.empty: list[str] = []
        self.contents: dict[str, bytes] = {}
        self._remaining = MAX_PACKAGE_BYTES
        self._pending: list[tuple[Item, str, tuple[FoundSkill, ...]]] = []

    def run(self, place: "Traversable") -> None:
        """Read everything below `place`.

        Raises:
            SourceError: It is not a folder, cannot be read, or is too large.
        """
        try:
            if not place.is_dir():
                raise SourceError(f"{place.name!r} is not a folder")
            self._enter(_archived(place), "", ())
        except SourceError:
            raise
        except Exception as error:
            raise SourceError("the skills of the package cannot be read") from error
        while self._pending:
            folder, directory, enclosing = self._pending.pop()
            with self._recording_errors(directory, enclosing):
                self._enter(folder, directory, enclosing)

    def _enter(self, folder: "Item", directory: str, enclosing: tuple[FoundSkill, ...]) -> None:
        visible = [member for member in folder.iterdir() if not member.name.startswith(".")]
        members = sorted(visible, key=lambda member: member.name)
        if any(member.name == SKILL_FILE and not _is_folder(member) for member in members):
            enclosing = (*enclosing, FoundSkill(directory))
            self.skills.append(enclosing[-1])
        elif enclosing and not members:
            self.empty.append(directory)
        for member in members:
            path = _join(directory, member.name)
            with self._recording_errors(path, enclosing):
                self._add(member, path, enclosing)

    def _add(self, member: "Item", path: str, enclosing: tuple[FoundSkill, ...]) -> None:
        if _is_link(member):
            if enclosing:
                add_problem(path, enclosing, "link", "links in a package are not followed", REPLACE_LINK)
            elif member.is_dir():
                self.loose += add_problem(path, (), "linked-folder", LINKED_FOLDER, REPLACE_LINK)
        elif member.is_dir():
            if path.count("/") >= MAX_DEPTH:
                self.loose += add_problem(path, enclosing, "unreadable", TOO_DEEP, "move it up")
            elif enclosing or member.name not in SKIPPED_FOLDERS:
                self._pending.append((member, path, enclosing))
        elif enclosing and not member.is_file():
            add_problem(path, enclosing, "special-file", SPECIAL_FILE, "delete it")
        elif enclosing:
            self._read(member, path, enclosing)
        elif member.name.lower() == SKILL_FILE.lower():
            self.loose.append((path.rpartition("/")[0], near_miss(member.name)))

    def _read(self, member: "Item", path: str, enclosing: tuple[FoundSkill, ...]) -> None:
        with member.open("rb") as file:
            content = file.read(MAX_TOTAL_SIZE + 1)
        if len(content) > MAX_TOTAL_SIZE:
            message = f"the file has more than {MAX_TOTAL_SIZE} bytes; hosts need not accept such a skill"
            add_problem(path, enclosing, "too-large", message, "keep large data outside the skill")
            return
        self._remaining -= len(content)
        if self._remaining < 0:
            raise SourceError(f"the skills of the package have more than {MAX_PACKAGE_BYTES} bytes")
        self.contents[path] = content
        for skill in enclosing:
            skill.files.append((path_in_skill(path, skill), len(content), 0, 0, 0))

    @contextmanager
    def _recording_errors(self, path: str, enclosing: tuple[FoundSkill, ...]) -> Generator[None]:
        """Turn an error about one file or folder into a finding: loaders raise many kinds of errors."""
        try:
            yield
        except SourceError:
            raise
        except Exception as error:
            logger.info("%s in the package cannot be read: %s", path, error)
            self.loose += add_problem(path, enclosing, "unreadable", "it cannot be read", "pack it again")


class _ArchiveMember:
    """A file or folder of an archive, with the methods of `Traversable` that are used here.

    A `zipfile.Path` iterates over all names of its archive for every folder it
    lists; these members are built in a single pass.
    """

    def __init__(self, name: str, archive: "zipfile.ZipFile", info: "zipfile.ZipInfo | None" = None) -> None:
        self.name = name
        self.members: dict[str, _ArchiveMember] = {}
        self._archive = archive
        self._info = info

    def folder(self, name: str) -> "_ArchiveMember":
        """Return the folder `name` inside this one, created if necessary; a file may have the same name."""
        return self.members.setdefault(f"{name}/", _ArchiveMember(name, self._archive))

    def iterdir(self) -> "Iterable[_ArchiveMember]":
        return self.members.values()

    def is_dir(self) -> bool:
        return self._info is None

    def is_file(self) -> bool:
        return self._info is not None

    def is_symlink(self) -> bool:
        return self._info is not None and stat.S_ISLNK(self._info.external_attr >> 16)

    def open(self, _mode: str) -> IO[bytes]:
        assert self._info is not None, "only files are opened"
        return self._archive.open(self._info)


Item: TypeAlias = "Traversable | _ArchiveMember"


def _archived(place: "Traversable") -> "Item":
    """Return the folder to walk: the archive member of `place`, or itself."""
    import zipfile

    if not isinstance(place, zipfile.Path):
        return place
    top = _ArchiveMember(place.name, place.root)
    for info in place.root.infolist():
        if info.filename.startswith(place.at):
            *folders, name = info.filename[len(place.at) :].split("/")
            folder = top
            for part in filter(None, folders):
                folder = folder.folder(part)
            if name:
                folder.members[name] = _ArchiveMember(name, place.root, info)
    return top


def _is_folder(member: "Item") -> bool:
    return member.is_dir() and not _is_link(member)


def _is_link(member: "Item") -> bool:
    """Return whether a file or folder is a symbolic link, if the package supports links."""
    is_symlink = getattr(member, "is_symlink", None)
    return bool(is_symlink and is_symlink())


def _record(found: FoundSkill, contents: dict[str, bytes]) -> SkillRecord:
    stamp = found.stamp()
    findings = listing_findings(found, stamp.paths)
    if any(finding.is_error for finding in findings):
        return unpublished_record(found, stamp, findings, lasting=True)
    files = {path: contents[_join(found.directory, path)] for path in stamp.paths}
    digests = tuple(digest_of(content) for content in files.values())
    return make_record(found, stamp, findings, digests, files[SKILL_FILE], lasting=True)


def _join(directory: str, path: str) -> str:
    return f"{directory}/{path}" if directory else path
