"""`PackageSource`: skills that are shipped inside a Python package, unpacked or in an archive."""

import logging
import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import TracebackType
from typing import IO, TYPE_CHECKING, TypeAlias, cast

import anyio.to_thread

from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_TOTAL_SIZE, digest_of
from skillwire.core.uri import DEFAULT_SCHEME, SKILL_FILE, SkillUri
from skillwire.errors import SourceError
from skillwire.sources.directory import DirectorySource
from skillwire.sources.live import SnapshotSource
from skillwire.sources.publish import Mount, Published, combine, publish, require_root
from skillwire.sources.scan import SkillRecord, judge, listing_findings, set_aside
from skillwire.sources.snapshot import Snapshot
from skillwire.sources.walk import (
    LINKED_FOLDER,
    MAX_DEPTH,
    REPLACE_LINK,
    SKIPPED_FOLDERS,
    SPECIAL_FILE,
    TOO_DEEP,
    FoundSkill,
    inside,
    near_miss,
    remark,
)

if TYPE_CHECKING:  # Slow to import, and most programs serve no package.
    import zipfile
    from importlib.resources.abc import Traversable

# What the skills of one package may take in memory, all together.
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
            self._source = _PackedSource(place, Mount.make(scheme, prefix, at))

    async def __aenter__(self) -> "PackageSource":
        """Read or scan the skills.

        Raises:
            SourceError: There is no such folder, it cannot be read, or it holds too much.
            InvalidSkillError: With `at`, the folder is no skill, or one of another name.
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
        """Say where a published skill comes from, for people who run the server."""
        return self._source.place_of(uri)

    def modified_at(self, uri: SkillUri) -> float | None:
        """Return when a published skill's `SKILL.md` was last modified; None for one in an archive."""
        return self._source.modified_at(uri)


class _PackedSource(SnapshotSource):
    """Skills of which nothing is known but that they can be walked through and read."""

    def __init__(self, place: "Traversable", mount: Mount) -> None:
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
        reading = _Reading()
        reading.run(self._place)
        records = [_record(found, reading.contents) for found in reading.skills]
        publications = publish(records, self._mount, self._place.name, {})
        published = combine(publications.values(), reading.loose, self._mount, 1, reading.empty)
        if self._mount.at:
            require_root(published, self._mount)
        self._contents = {
            path: reading.contents[path]
            for publication in published.publications.values()
            for path in (_join(publication.record.directory, inner) for inner in publication.record.paths)
        }
        return published


class _Reading:
    """One pass over a package: what a walk of a folder would find, and the bytes."""

    def __init__(self) -> None:
        self.skills: list[FoundSkill] = []
        self.loose: list[tuple[str, Finding]] = []
        self.empty: list[str] = []
        self.contents: dict[str, bytes] = {}
        self._left = MAX_PACKAGE_BYTES
        self._pending: list[tuple[Item, str, tuple[FoundSkill, ...]]] = []

    def run(self, place: "Traversable") -> None:
        """Read everything below `place`.

        Raises:
            SourceError: It is no folder, cannot be read, or holds too much.
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
            with self._noting_trouble(directory, enclosing):
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
            with self._noting_trouble(path, enclosing):
                self._take(member, path, enclosing)

    def _take(self, member: "Item", path: str, enclosing: tuple[FoundSkill, ...]) -> None:
        if _is_link(member):
            if enclosing:
                remark(path, enclosing, "link", "links in a package are not followed", REPLACE_LINK)
            elif member.is_dir():
                self.loose += remark(path, (), "linked-folder", LINKED_FOLDER, REPLACE_LINK)
        elif member.is_dir():
            if path.count("/") >= MAX_DEPTH:
                self.loose += remark(path, enclosing, "unreadable", TOO_DEEP, "move it up")
            elif enclosing or member.name not in SKIPPED_FOLDERS:
                self._pending.append((member, path, enclosing))
        elif enclosing and not member.is_file():
            remark(path, enclosing, "special-file", SPECIAL_FILE, "delete it")
        elif enclosing:
            self._read(member, path, enclosing)
        elif member.name.lower() == SKILL_FILE.lower():
            self.loose.append((path.rpartition("/")[0], near_miss(member.name)))

    def _read(self, member: "Item", path: str, enclosing: tuple[FoundSkill, ...]) -> None:
        with member.open("rb") as file:
            content = file.read(MAX_TOTAL_SIZE + 1)
        if len(content) > MAX_TOTAL_SIZE:
            message = f"the file has more than {MAX_TOTAL_SIZE} bytes; hosts need not accept such a skill"
            remark(path, enclosing, "too-large", message, "keep large data outside the skill")
            return
        self._left -= len(content)
        if self._left < 0:
            raise SourceError(f"the skills of the package have more than {MAX_PACKAGE_BYTES} bytes")
        self.contents[path] = content
        for skill in enclosing:
            skill.files.append((inside(path, skill), len(content), 0, 0, 0))

    @contextmanager
    def _noting_trouble(self, path: str, enclosing: tuple[FoundSkill, ...]) -> Generator[None]:
        """Go on after one bad file or folder: packages are of many kinds, and fail in many ways."""
        try:
            yield
        except SourceError:
            raise
        except Exception as error:
            logger.info("%s in the package cannot be read: %s", path, error)
            self.loose += remark(path, enclosing, "unreadable", "it cannot be read", "pack it again")


class _Member:
    """A file or folder of an archive, with what is asked of a `Traversable` here.

    A `zipfile.Path` goes through all names of its archive for every folder it
    lists; these are made for all of them in one go.
    """

    def __init__(self, name: str, archive: "zipfile.ZipFile", info: "zipfile.ZipInfo | None" = None) -> None:
        self.name = name
        self.members: dict[str, _Member] = {}
        self._archive = archive
        self._info = info

    def folder(self, name: str) -> "_Member":
        """Return the folder `name` inside this one, made if need be; a file may have the same name."""
        return self.members.setdefault(f"{name}/", _Member(name, self._archive))

    def iterdir(self) -> "Iterable[_Member]":
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


Item: TypeAlias = "Traversable | _Member"


def _archived(place: "Traversable") -> "Item":
    """Return the folder to walk: what `place` is in its archive, or itself."""
    import zipfile

    if not isinstance(place, zipfile.Path):
        return place
    top = _Member(place.name, place.root)
    for info in place.root.infolist():
        if info.filename.startswith(place.at):
            *folders, name = info.filename[len(place.at) :].split("/")
            folder = top
            for part in filter(None, folders):
                folder = folder.folder(part)
            if name:
                folder.members[name] = _Member(name, place.root, info)
    return top


def _is_folder(member: "Item") -> bool:
    return member.is_dir() and not _is_link(member)


def _is_link(member: "Item") -> bool:
    """Tell whether a file or folder is a symbolic link, where such a thing can be."""
    is_symlink = getattr(member, "is_symlink", None)
    return bool(is_symlink and is_symlink())


def _record(found: FoundSkill, contents: dict[str, bytes]) -> SkillRecord:
    stamp = found.stamp()
    paths = [file[0] for file in found.files]
    findings = listing_findings(found, paths)
    if any(finding.is_error for finding in findings):
        return set_aside(found, stamp, findings, lasting=True)
    files = {path: contents[_join(found.directory, path)] for path in paths}
    digests = [digest_of(content) for content in files.values()]
    return judge(found, stamp, findings, digests, files[SKILL_FILE], lasting=True)


def _join(directory: str, path: str) -> str:
    return f"{directory}/{path}" if directory else path
