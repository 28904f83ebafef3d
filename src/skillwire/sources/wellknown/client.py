"""`SiteClient`: one web site, seen as an index and the artifacts it names."""

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import anyio.to_thread

from skillwire.core.archive import ArchiveFormat
from skillwire.core.characters import quoted
from skillwire.core.finding import Finding
from skillwire.core.manifest import UNKNOWN_SIZE, ManifestFile
from skillwire.core.strictjson import StrictJsonError, parse_strictly
from skillwire.errors import NotFoundError
from skillwire.sources.garbage import collector_paused
from skillwire.sources.wellknown.entries import archive_uri, name_in, path_in
from skillwire.sources.wellknown.failures import SiteAnswerError, SiteUnavailableError
from skillwire.sources.wellknown.freshness import fresh_seconds, validators
from skillwire.sources.wellknown.hosts import SiteAddress
from skillwire.sources.wellknown.web import DEFAULT_SECONDS, Answer, Resolve, Web, resolve_host
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
    """An index that was read: from where in the end, what it says, and for how long that is good.

    `findings` say what of it is not used; `fresh_seconds` is None where the
    site does not say.
    """

    url: str
    site: Site
    findings: tuple[Finding, ...]
    by_name: Mapping[str, AnyEntry]
    fresh_seconds: float | None


class SiteClient:
    """Fetches the index of a site, and the artifacts it names.

    The index is asked for anew each time, with what is needed for the site to
    say that it has not changed. Artifacts are for the caller to keep: a digest
    that is known needs no second download.

    Raises:
        SourceError: `url` is no address of a site, or one of `hosts` is no host.
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
        self._web = Web(self.address, seconds=seconds, resolve=resolve, tls=tls)
        self._held: SiteIndex | None = None
        self._asked = ""
        self._validators: dict[str, str] = {}

    async def index(self) -> SiteIndex:
        """Return the index as the site has it now; where there is none, the one at the old place.

        Raises:
            SiteAnswerError: There is none at either place, or it is no JSON.
            LimitError: It is too large.
            SourceError: The site cannot be asked, or leads elsewhere.
        """
        for url in (self.address.index_url, self.address.old_index_url):
            known = self._validators if self._asked == url else {}
            headers = {"Accept": "application/json", **known}
            answer = await self._web.get(url, max_bytes=MAX_INDEX_BYTES, headers=headers)
            if answer.status == 304 and known and self._held is not None:
                # What the headers leave out, they leave as it was.
                fresh = fresh_seconds(answer.headers)
                if fresh is not None:
                    self._held = replace(self._held, fresh_seconds=fresh)
                return self._held
            if answer.status in _GONE or (answer.status == 200 and answer.media_type in _HTML):
                continue
            _require_good(answer)
            index = await anyio.to_thread.run_sync(_read, answer)
            self._held, self._asked, self._validators = index, url, validators(answer.headers)
            return index
        raise SiteAnswerError(
            f"the site has no index of skills at {quoted(self.address.index_url[:300])}",
            violates="DISC-01",
            fix="check the address; the index lies below the host's /.well-known/agent-skills/",
        )

    async def read(self, index: SiteIndex, uri: str, *, max_bytes: int) -> bytes:
        """Return the bytes of a file, or of an archive, by its URI, checked where the index has a digest.

        Raises:
            NotFoundError: The index, or the site, has no such file.
            VerificationError: It is not the one that the index promises.
            SiteAnswerError: It is an archive of a kind nobody knows.
            LimitError: It is larger than `max_bytes`.
            SourceError: The site cannot be asked, or leads elsewhere.
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
        # Some servers say of a .tar.gz that it is compressed, which it is; its bytes are still the file's.
        answer = await self._web.get(url, max_bytes=max_bytes, raw=is_archive)
        _require_good(answer, uri)
        await _verify(answer.body, entry.digest, uri)
        if is_archive:
            _require_packed(answer, url)
        return answer.body

    async def _file(self, index: SiteIndex, entry: FilesEntry, uri: str, max_bytes: int) -> bytes:
        path = path_in(uri)
        file = next((file for file in entry.files if file.path == path), None)
        if file is None:
            raise NotFoundError(f"the site has nothing at {quoted(uri[:300])}", uri=uri)
        answer = await self._web.get(file_url(index.url, entry.name, path), max_bytes=max_bytes)
        if answer.media_type in _HTML and not file.digest and not path.lower().endswith((".html", ".htm")):
            # A page instead of an error, as sites do that are one page for everything.
            raise NotFoundError(f"the site has a page instead of {quoted(uri[:300])}", uri=uri)
        _require_good(answer, uri)
        if file.digest:
            await _verify(answer.body, file.digest, uri)
        return answer.body


def _resolved(index: SiteIndex, entry: SiteEntry) -> str:
    try:
        return artifact_url(index.url, entry.url)
    except ValueError:
        raise SiteAnswerError(
            f"the site refers to {quoted(entry.url[:200])}, which is no web address", violates="DISC-04"
        ) from None


def _read(answer: Answer) -> SiteIndex:
    with collector_paused():
        try:
            site, findings = parse_site(parse_strictly(answer.body))
        except StrictJsonError as error:
            raise SiteAnswerError(f"the site's index {error}", violates="DISC-02") from error
        by_name = {entry.name: entry for entry in site.entries}
        return SiteIndex(answer.url, site, tuple(findings), by_name, fresh_seconds(answer.headers))


def _require_good(answer: Answer, uri: str = "") -> None:
    """Check that an answer is what was asked for."""
    if answer.status == 200:
        return
    if answer.status in _GONE and uri:
        raise NotFoundError(f"the site has nothing at {quoted(uri[:300])} any more", uri=uri)
    if answer.status in (401, 403, 429) or answer.status >= 500:
        raise SiteUnavailableError(f"the site answers with HTTP status {answer.status}")
    raise SiteAnswerError(f"the site answers with HTTP status {answer.status}", violates="DISC-01")


async def _verify(content: bytes, digest: str, uri: str) -> None:
    await anyio.to_thread.run_sync(ManifestFile(uri, digest, UNKNOWN_SIZE).verify, content)


def _require_packed(answer: Answer, url: str) -> None:
    """Check that an archive is packed as the site says: by media type, else by how its URL ends (DISC-06)."""
    format = ArchiveFormat.of_media_type(answer.media_type) or _ALIASES.get(answer.media_type)
    for place in (answer.url, url):
        format = format or ArchiveFormat.of_path(urlsplit(place).path)
    if format is None:
        raise SiteAnswerError(
            f"the site does not say how {quoted(url[:200])} is packed",
            violates="DISC-06",
            fix=f"ask its author for {' or '.join(known.media_type for known in ArchiveFormat)}",
        )
    if ArchiveFormat.of_content(answer.body) is not format:
        raise SiteAnswerError(
            f"{quoted(url[:200])} is no {format}, though the site says so", violates="DISC-06"
        )
