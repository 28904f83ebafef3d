"""`SiteClient`: fetches the index of one web site and the artifacts it lists."""

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import anyio.to_thread

from skillwire.core import (
    DEFAULT_SCHEME,
    MAX_TOTAL_SIZE,
    SKILL_FILE,
    UNKNOWN_SIZE,
    ArchiveFormat,
    Coverage,
    Finding,
    Frontmatter,
    FrontmatterMismatchError,
    InvalidEntryError,
    InvalidUriError,
    Manifest,
    ManifestFile,
    NotFoundError,
    SkillEntry,
    SkillUri,
    StrictJsonError,
    entry_findings,
    gc_paused,
    parse_skill_md,
    parse_strictly,
    quoted,
)
from skillwire.core.archive import unpack
from skillwire.core.archive_tree import DEFAULT_LIMITS, UnpackBudget
from skillwire.sources.wellknown.web import (
    DEFAULT_SECONDS,
    Resolve,
    SiteAddress,
    SiteAnswerError,
    SiteUnavailableError,
    WebClient,
    WebResponse,
    fresh_seconds,
    resolve_host,
    validators,
)
from skillwire.wire.wellknown import (
    AnyEntry,
    ArtifactType,
    FilesEntry,
    Site,
    SiteEntry,
    artifact_url,
    file_url,
    parse_site,
)

# Entries for the skills of a site, with generated URIs and the digests that the index has.


_PREFIX: Final = f"{DEFAULT_SCHEME}://"
_ARCHIVE: Final = ".archive"


def skill_entry(entry: AnyEntry) -> SkillEntry:
    """Build the entry of a skill from its index entry: name, description and digests.

    A single `SKILL.md`, and files with digests, are the complete skill. An
    archive covers everything in it. Files without digests make the skill
    dynamic (CONF-20).

    Raises:
        InvalidUriError: One of its files cannot have a URI.
    """
    uri = SkillUri.build(entry.name)
    frontmatter = Frontmatter({"name": entry.name, "description": entry.description})
    if not isinstance(entry, FilesEntry):
        is_archive = entry.type is ArtifactType.ARCHIVE
        line = ManifestFile(archive_uri(entry.name) if is_archive else uri.text, entry.digest, UNKNOWN_SIZE)
        manifest = Manifest.of([line], Coverage.ARCHIVE if is_archive else Coverage.FILES)
        return SkillEntry(uri, frontmatter, manifest, is_summary=True)
    files = {uri.join(file.path): file.digest for file in entry.files}
    if all(files.values()):
        lines = [ManifestFile(file, digest, UNKNOWN_SIZE) for file, digest in files.items()]
        return SkillEntry(uri, frontmatter, Manifest.of(lines), is_summary=True)
    others = tuple(file for file in files if file != uri.text)
    return SkillEntry(uri, frontmatter, None, dynamic_files=others, is_summary=True)


def archive_uri(name: str) -> str:
    """Return the URI of a skill's archive. No skill can have this name: names have no dots."""
    return f"{_PREFIX}{name}{_ARCHIVE}"


def name_in(uri: str) -> str:
    """Return the skill name in a generated URI; for any other URI, a text that is no skill's name."""
    return uri.removeprefix(_PREFIX).partition("/")[0].removesuffix(_ARCHIVE)


def path_in(uri: str) -> str:
    """Return the path of a skill's file from its URI.

    Raises:
        InvalidUriError: It is not the URI of a file.
    """
    name = name_in(uri)
    try:
        return SkillUri.build(name).relative_path(uri)
    except InvalidUriError:
        raise InvalidUriError(
            f"a site has no files at this URI; a skill's file is at skill://NAME/{SKILL_FILE}"
        ) from None


MAX_INDEX_BYTES: Final = 32 * 1024 * 1024

_GONE = frozenset({404, 410})
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_ALIASES = {
    "application/x-gzip": ArchiveFormat.TAR_GZ,
    "application/x-tgz": ArchiveFormat.TAR_GZ,
    "application/x-gtar": ArchiveFormat.TAR_GZ,
    "application/x-compressed-tar": ArchiveFormat.TAR_GZ,
    "application/x-zip-compressed": ArchiveFormat.ZIP,
}


@dataclass(frozen=True, slots=True)
class SiteIndex:
    """A fetched index: its final URL, its content, and how long it is fresh.

    `findings` are about the entries that are not used; `fresh_seconds` is None
    where the site does not state it.
    """

    url: str
    site: Site
    findings: tuple[Finding, ...]
    by_name: Mapping[str, AnyEntry]
    fresh_seconds: float | None


class SiteClient:
    """Fetches the index of a site, and the artifacts it lists.

    The index is requested each time, with validators so that the site can
    answer that it has not changed. The caller caches artifacts: one with a
    known digest needs no second download.

    Raises:
        SourceError: `url` is not a valid site address, or one of `hosts` is not a host.
    """

    def __init__(
        self,
        url: str,
        *,
        hosts: Iterable[str] = (),
        seconds: float = DEFAULT_SECONDS,
        resolve: Resolve = resolve_host,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = SiteAddress.parse(url, hosts)
        self._web = WebClient(self.address, seconds=seconds, resolve=resolve, tls=tls)
        self._cached: SiteIndex | None = None
        self._cached_url = ""
        self._validators: dict[str, str] = {}

    async def index(self) -> SiteIndex:
        """Return the current index of the site, from the old path if there is none at the current one.

        Raises:
            SiteAnswerError: There is none at either path, or it is not JSON.
            LimitError: It is too large.
            SourceError: The site cannot be reached, or refers to another host.
        """
        for url in (self.address.index_url, self.address.old_index_url):
            known = self._validators if self._cached_url == url else {}
            headers = {"Accept": "application/json", **known}
            response = await self._web.get(url, max_bytes=MAX_INDEX_BYTES, headers=headers)
            if response.status == 304 and known and self._cached is not None:
                # Headers that a 304 response leaves out are unchanged.
                fresh = fresh_seconds(response.headers)
                if fresh is not None:
                    self._cached = replace(self._cached, fresh_seconds=fresh)
                return self._cached
            if response.status in _GONE or (response.status == 200 and response.media_type in _HTML):
                continue
            _check_status(response)
            index = await anyio.to_thread.run_sync(_read, response)
            self._cached, self._cached_url, self._validators = index, url, validators(response.headers)
            return index
        raise SiteAnswerError(
            f"the site has no index of skills at {quoted(self.address.index_url[:300])}",
            violates="DISC-01",
            fix="check the address; the index is below the host's /.well-known/agent-skills/",
        )

    async def read(self, index: SiteIndex, uri: str, *, max_bytes: int) -> bytes:
        """Return the bytes of a file, or of an archive, by its URI, verified where the index has a digest.

        Raises:
            NotFoundError: The index, or the site, has no such file.
            VerificationError: It does not match the digest in the index.
            SiteAnswerError: It is an archive of an unknown format.
            LimitError: It is larger than `max_bytes`.
            SourceError: The site cannot be reached, or refers to another host.
        """
        entry = index.by_name.get(name_in(uri))
        if isinstance(entry, FilesEntry):
            return await self._file(index, entry, uri, max_bytes)
        if entry is not None and (uri == archive_uri(entry.name)) == (entry.type is ArtifactType.ARCHIVE):
            return await self._artifact(index, entry, uri, max_bytes)
        raise NotFoundError(f"the site has nothing at {quoted(uri[:300])}", uri=uri)

    async def _artifact(self, index: SiteIndex, entry: SiteEntry, uri: str, max_bytes: int) -> bytes:
        is_archive = entry.type is ArtifactType.ARCHIVE
        url = _resolved(index, entry)
        # Some servers send a .tar.gz with a Content-Encoding; the body is still the file itself.
        response = await self._web.get(url, max_bytes=max_bytes, raw=is_archive)
        _check_status(response, uri)
        await _verify(response.body, entry.digest, uri)
        if is_archive:
            _check_archive_format(response, url)
        return response.body

    async def _file(self, index: SiteIndex, entry: FilesEntry, uri: str, max_bytes: int) -> bytes:
        path = path_in(uri)
        file = next((file for file in entry.files if file.path == path), None)
        if file is None:
            raise NotFoundError(f"the site has nothing at {quoted(uri[:300])}", uri=uri)
        response = await self._web.get(file_url(index.url, entry.name, path), max_bytes=max_bytes)
        if response.media_type in _HTML and not file.digest and not path.lower().endswith((".html", ".htm")):
            # A page instead of a 404, as single-page applications send.
            raise NotFoundError(f"the site has a page instead of {quoted(uri[:300])}", uri=uri)
        _check_status(response, uri)
        if file.digest:
            await _verify(response.body, file.digest, uri)
        return response.body


def _resolved(index: SiteIndex, entry: SiteEntry) -> str:
    try:
        return artifact_url(index.url, entry.url)
    except ValueError:
        raise SiteAnswerError(
            f"the site refers to {quoted(entry.url[:200])}, which is not a web address", violates="DISC-04"
        ) from None


def _read(response: WebResponse) -> SiteIndex:
    with gc_paused():
        try:
            site, findings = parse_site(parse_strictly(response.body))
        except StrictJsonError as error:
            raise SiteAnswerError(f"the site's index {error}", violates="DISC-02") from error
        by_name = {entry.name: entry for entry in site.entries}
        return SiteIndex(response.url, site, tuple(findings), by_name, fresh_seconds(response.headers))


def _check_status(response: WebResponse, uri: str = "") -> None:
    """Raise if the status of a response is not 200."""
    if response.status == 200:
        return
    if response.status in _GONE and uri:
        raise NotFoundError(f"the site no longer has anything at {quoted(uri[:300])}", uri=uri)
    if response.status in (401, 403, 429) or response.status >= 500:
        raise SiteUnavailableError(f"the site answers with HTTP status {response.status}")
    raise SiteAnswerError(f"the site answers with HTTP status {response.status}", violates="DISC-01")


async def _verify(content: bytes, digest: str, uri: str) -> None:
    await anyio.to_thread.run_sync(ManifestFile(uri, digest, UNKNOWN_SIZE).verify, content)


def _check_archive_format(response: WebResponse, url: str) -> None:
    """Check that an archive has the format the site states: by media type, else by URL suffix (DISC-06)."""
    format = ArchiveFormat.of_media_type(response.media_type) or _ALIASES.get(response.media_type)
    for place in (response.url, url):
        format = format or ArchiveFormat.of_path(urlsplit(place).path)
    if format is None:
        raise SiteAnswerError(
            f"the site does not state the archive format of {quoted(url[:200])}",
            violates="DISC-06",
            fix=f"ask its author for {' or '.join(known.media_type for known in ArchiveFormat)}",
        )
    if ArchiveFormat.of_content(response.body) is not format:
        raise SiteAnswerError(
            f"{quoted(url[:200])} is not a {format} archive, which the site declares it to be",
            violates="DISC-06",
        )


# Completing the entries of a site's index: all frontmatter, and a digest for every file.


@dataclass(frozen=True, slots=True)
class SkillCopy:
    """A fetched skill of a site: its index entry, the entry that is served, and the bytes by URI."""

    index_entry: AnyEntry
    entry: SkillEntry
    contents: Mapping[str, bytes]
    size: int

    def matches(self, item: AnyEntry) -> bool:
        """Return whether the index entry is unchanged; one without a digest never is (DISC-09)."""
        known = self.index_entry
        return (
            type(known) is type(item)
            and bool(item.digest)
            and (known.digest, known.description) == (item.digest, item.description)
        )


async def complete(
    client: SiteClient, index: SiteIndex, item: AnyEntry, uri: SkillUri, budget: UnpackBudget
) -> SkillCopy:
    """Fetch a complete skill, to be served at `uri`.

    Raises:
        VerificationError: It does not match the index.
        InvalidSkillError: It is not a valid skill, or must not be served.
        LimitError: It is too large.
        SkillError: It cannot be fetched.
    """
    known = skill_entry(item)
    if known.coverage is Coverage.ARCHIVE:
        files = await _unpacked(client, index, item, budget)
    else:
        files = await _fetched(client, index, known)
    return await anyio.to_thread.run_sync(_checked_copy, item, uri, files)


async def _unpacked(
    client: SiteClient, index: SiteIndex, item: AnyEntry, budget: UnpackBudget
) -> dict[str, bytes]:
    data = await client.read(index, archive_uri(item.name), max_bytes=DEFAULT_LIMITS.max_stream_size)
    format = ArchiveFormat.of_content(data)
    assert format is not None, "the client has checked the format"

    def work() -> dict[str, bytes]:
        return {file.path: file.content for file in unpack(data, format, budget=budget)}

    return await anyio.to_thread.run_sync(work)


async def _fetched(client: SiteClient, index: SiteIndex, known: SkillEntry) -> dict[str, bytes]:
    """Fetch the files of a skill one by one, within the size limit of one skill."""
    uris = known.manifest.uris if known.manifest is not None else (known.uri.text, *known.dynamic_files)
    files: dict[str, bytes] = {}
    left = MAX_TOTAL_SIZE
    for uri in uris:
        content = await client.read(index, uri, max_bytes=left)
        left -= len(content)
        files[known.uri.relative_path(uri)] = content
    return files


def _checked_copy(item: AnyEntry, uri: SkillUri, files: Mapping[str, bytes]) -> SkillCopy:
    own = parse_skill_md(files[SKILL_FILE]).frontmatter
    listed = {"name": item.name, "description": item.description}
    differences = [name for name, value in listed.items() if own.fields.get(name) != value]
    if differences:
        raise FrontmatterMismatchError(
            f"{uri} differs from the site's index in {' and '.join(differences)}",
            uri=uri.text,
            differences=differences,
        )
    contents = {uri.join(path): content for path, content in files.items()}
    manifest = Manifest.of(ManifestFile.of(file, content) for file, content in contents.items())
    entry = SkillEntry(uri, own, manifest)
    entry.check_limits()
    for finding in entry_findings(entry):
        if finding.is_error:
            raise InvalidEntryError(f"{uri} cannot be served: {finding.message}", fix=finding.fix)
    return SkillCopy(item, entry, contents, sum(map(len, contents.values())))
