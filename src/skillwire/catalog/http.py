"""`CatalogApi`: publishing over HTTP. A server passes requests of callers here, with what they may do.

Drafts that arrive are not trusted: entries are parsed as strictly as those of
other servers, and compared with the bytes that they describe. The bytes of a
digest are never sent, and a caller can only publish those that they uploaded, or
that the skill to be replaced has already.
"""

import hmac
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Final, Protocol, TypeAlias, cast

import anyio
import anyio.to_thread

from skillwire.catalog.blobs import BlobMissingError
from skillwire.catalog.catalog import MAX_LIMIT, Catalog, open_catalog
from skillwire.catalog.changes import current_rows
from skillwire.catalog.drafts import is_version, namespace_of, version_in, version_uri
from skillwire.catalog.model import (
    CatalogConflictError,
    CatalogError,
    Draft,
    Publication,
    PublishPlan,
    SkillChange,
    SkillVersion,
)
from skillwire.core import (
    MAX_FILES,
    CredentialError,
    Finding,
    JsonDict,
    ManifestFile,
    NotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    TokenBucket,
    canonical_uri,
    check_entries,
    digest_of,
    encode,
    is_digest,
    parse_entry,
    parse_skill_md,
    parse_strictly,
    path_findings,
    quoted,
    require_listed_frontmatter,
)
from skillwire.core.toml import Table, TableError

logger = logging.getLogger(__name__)

RECEIPT_SECONDS: Final = 3600
"""How long an uploaded file can be published, which is less than unused files are kept."""
EVERYTHING: Final = "*"

_AT_ONCE = 2
_MAX_NUMBER = 10**15
_MAX_MODIFIED = 253_402_300_799.0  # The end of the year 9999.
_MAX_MEDIA_TYPE = 127
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}(?:; ?{_TOKEN}={_TOKEN})*")
_NUMBER = re.compile(r"[0-9]{1,15}")
_RECEIPT = re.compile(rf"({_NUMBER.pattern})\.({_NUMBER.pattern})\.([0-9a-f]{{64}})")
# Denials in the audit log: at once and per second, of one caller and of all together.
_OF_CALLER = (10, 1 / 60)
_OF_ALL = (200, 1 / 6)
_MAX_CALLERS = 1000

Sizes: TypeAlias = Mapping[str, int]
"""The sizes of files by their digests."""


class CallerRights(Protocol):
    """What a caller may do. `publishable` and `manageable` are the directories that it may change, or `*`."""

    @property
    def publishable(self) -> tuple[str, ...]: ...
    @property
    def manageable(self) -> tuple[str, ...]: ...

    def includes(self, uri: SkillUri) -> bool: ...
    def may_publish(self, uri: SkillUri) -> bool: ...
    def may_manage(self, uri: SkillUri) -> bool: ...


class ApiRequest(Protocol):
    """A request of an authenticated caller. `route` is the path below that of the catalog.

    The `rights` are those of this moment: they may change while `read` waits
    for the body, which has a maximum size.
    """

    @property
    def method(self) -> str: ...
    @property
    def route(self) -> str: ...
    @property
    def query(self) -> Mapping[str, str]: ...
    @property
    def caller(self) -> str: ...
    @property
    def rights(self) -> CallerRights: ...

    async def read(self) -> bytes: ...


class RefusedCallError(Exception):
    """A request that is refused with a status and a document."""

    def __init__(self, status: int, message: str, *, fix: str = "", **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.document: JsonDict = {"error": message, "fix": fix, **more}


@asynccontextmanager
async def open_publishing(url: str) -> AsyncGenerator["CatalogApi"]:
    """Open the catalog at a URL for callers of a server.

    Raises:
        CatalogError: There is no such catalog, or it cannot be reached.
    """
    async with open_catalog(url) as catalog:
        yield CatalogApi(catalog)


class CatalogApi:
    """The catalog of a server, for callers who may publish to it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._receipts: Receipts | None = None
        self._all_denials = TokenBucket(*_OF_ALL)
        self._denials: dict[str, TokenBucket] = {}
        self._busy = anyio.CapacityLimiter(_AT_ONCE)
        self._routes: Mapping[str, tuple[str, Callable[[ApiRequest], Awaitable[JsonDict]]]] = {
            "plan": ("POST", self._plan),
            "publish": ("POST", self._publish),
            "unpublish": ("POST", self._unpublish),
            "rollback": ("POST", self._rollback),
            "history": ("GET", self._history),
            "audit": ("GET", self._audit),
        }

    async def answer(self, request: ApiRequest) -> tuple[int, JsonDict]:
        """Return the status and the document of the response.

        Raises:
            CredentialError: The credential became invalid while the body arrived.
        """
        try:
            start, _, digest = request.route.partition("/")
            if start == "blobs" and is_digest(digest):
                method, act = "PUT", partial(self._store, digest=digest)
            elif request.route in self._routes:
                method, act = self._routes[request.route]
            else:
                return 404, {"error": "nothing exists at this path", "fix": ""}
            await self._require_role(request)
            if request.method != method:
                return 405, {"error": f"only {method} is allowed", "fix": "", "allow": method}
            return 200, await act(request)
        except CredentialError:
            raise
        except RefusedCallError as error:
            return error.status, error.document
        except CatalogConflictError as error:
            return 409, _conflict(error, request.rights)
        except BlobMissingError as error:
            return 409, _missing([error.digest]).document
        except NotFoundError as error:
            return 404, {"error": str(error), "fix": error.fix}
        except CatalogError as error:
            logger.warning("the catalog refused a request: %s", error)
            return 503, {"error": "the catalog cannot be used at the moment", "fix": "try again later"}
        except (TableError, SkillError) as error:
            return 400, {"error": str(error), "fix": error.fix}

    # The routes

    async def _plan(self, request: ApiRequest) -> JsonDict:
        """Return what the drafts would change, and which files have to be uploaded."""
        body = await request.read()
        async with self._busy:
            value = await anyio.to_thread.run_sync(_table, body)
            drafts = await self._drafts(request, value)
            value.finish()
            plan = await self._catalog.plan(drafts)
            known = await self._known_sizes(drafts)
        return {
            "revision": await self._catalog.revision(),
            "changes": [change_json(change) for change in plan.changes],
            "missing": sorted(plan.files.keys() - known.keys()),
            "seen": dict(plan.seen),
        }

    async def _store(self, request: ApiRequest, digest: str) -> JsonDict:
        """Store a file, and return a receipt with which this caller can publish it."""
        content = await request.read()
        await self._require_role(request)
        if await anyio.to_thread.run_sync(digest_of, content) != digest:
            raise RefusedCallError(400, "the bytes do not match the digest")
        receipts = await self._open_receipts()
        await self._catalog.store.put(digest, content)
        return {"receipt": receipts.issue(request.caller, digest, len(content))}

    async def _publish(self, request: ApiRequest) -> JsonDict:
        """Write the drafts as one revision."""
        body = await request.read()
        async with self._busy:
            value = await anyio.to_thread.run_sync(_table, body)
            drafts = await self._drafts(request, value)
            seen, uploads, note = value.table("seen"), value.table("uploads"), value.text("note", "")
            value.finish()
            uploaded = (await self._open_receipts()).sizes(request.caller, uploads.rest())
            known = {**uploaded, **await self._known_sizes(drafts)}
            plan = await self._catalog.plan(drafts)
            await self._check_files(plan, drafts, known)
            plan = replace(plan, seen=_seen(plan, seen))
            return _done(await self._catalog.publish(plan, actor=request.caller, note=note))

    async def _unpublish(self, request: ApiRequest) -> JsonDict:
        value = await anyio.to_thread.run_sync(_table, await request.read())
        uris = [SkillUri.parse(text) for text in value.texts("uris")]
        value.finish()
        await self._require_managed(request, "unpublish", uris)
        return _done(await self._catalog.unpublish(uris, actor=request.caller))

    async def _rollback(self, request: ApiRequest) -> JsonDict:
        value = await anyio.to_thread.run_sync(_table, await request.read())
        uri = SkillUri.parse(value.text("uri"))
        revision = value.whole("revision", 0, least=1, most=_MAX_NUMBER)
        value.finish()
        await self._require_managed(request, "rollback", [uri])
        return _done(await self._catalog.rollback(uri, revision, actor=request.caller))

    async def _history(self, request: ApiRequest) -> JsonDict:
        uri = SkillUri.parse(request.query.get("uri", ""))
        if not request.rights.may_publish(uri):
            raise await self._denied(request, "history", uri)
        limit, before = _page(request.query)
        versions = await self._catalog.history(uri, limit=limit, before=before)
        revision = await self._catalog.revision()
        return {"revision": revision, "versions": [version_json(version) for version in versions]}

    async def _audit(self, request: ApiRequest) -> JsonDict:
        places = request.rights.manageable
        if not places:
            raise await self._denied(request, "audit")
        limit, before = _page(request.query)
        below = None if EVERYTHING in places else places
        events = await self._catalog.audit_log(limit=limit, before=before, below=below)
        return {"events": [asdict(event) for event in events]}

    async def _open_receipts(self) -> "Receipts":
        # Only when they are needed: a server without publishers may have no right to write.
        if self._receipts is None:
            self._receipts = Receipts(await _read_secret(self._catalog))
        return self._receipts

    # Rights

    async def _require_role(self, request: ApiRequest) -> None:
        if not request.rights.publishable:
            raise await self._denied(request, request.route.partition("/")[0])

    async def _require_managed(self, request: ApiRequest, action: str, uris: Sequence[SkillUri]) -> None:
        for uri in uris:
            if not request.rights.may_manage(uri):
                raise await self._denied(request, action, uri)

    async def _denied(
        self, request: ApiRequest, action: str, uri: SkillUri | None = None
    ) -> RefusedCallError:
        """Record a denial in the audit log, unless there are too many, and return the refusal."""
        caller, place = request.caller, "" if uri is None else uri.text
        if len(self._denials) >= _MAX_CALLERS:
            self._denials.clear()
        own = self._denials.setdefault(caller, TokenBucket(*_OF_CALLER))
        if not own.take() and not self._all_denials.take():
            namespace = "" if uri is None else namespace_of(uri)
            with suppress(CatalogError):
                await self._catalog.record(
                    "denied", actor=caller, namespace=namespace, uri=place, detail=action
                )
        what = f"{action} of {quoted(place)}" if place else action
        return RefusedCallError(
            403, f"this caller has no role for: {what}", fix="ask the operator of this server for a rule"
        )

    # Drafts

    async def _drafts(self, request: ApiRequest, value: Table) -> list[Draft]:
        """Parse the drafts of a request, which the caller may publish."""
        drafts = await anyio.to_thread.run_sync(parse_drafts, value.tables("drafts"))
        for draft in drafts:
            uri = draft.entry.uri
            for place in (uri, version_uri(uri, draft.version)) if draft.version else (uri,):
                if not request.rights.may_publish(place):
                    raise await self._denied(request, "publish", place)
        return drafts

    async def _known_sizes(self, drafts: Sequence[Draft]) -> Sizes:
        """Return the files of the skills that would be replaced, which the caller may read already."""
        async with self._catalog.database.transaction(write=False) as transaction:
            rows = await current_rows(transaction, [draft.entry.uri.text for draft in drafts])
        return await anyio.to_thread.run_sync(_sizes_in, [bytes(row.entry) for row in rows.values()])

    async def _check_files(self, plan: PublishPlan, drafts: Sequence[Draft], known: Sizes) -> None:
        """Check that all files were uploaded, and that entries describe them truly.

        Raises:
            RefusedCallError: Files are missing, or have another size.
            InvalidSkillError: The `SKILL.md` is not valid.
            VerificationError: Its frontmatter is not the listed one.
        """
        missing = (plan.files.keys() - known.keys()) | plan.missing
        if missing:
            raise _missing(missing)
        changed = {row.uri for row in plan.rows}
        for draft in drafts:
            entry = draft.entry
            for line in _lines_of(entry):
                if known.get(line.digest, line.size) != line.size:
                    raise RefusedCallError(400, f"{quoted(line.uri)} has another size than the entry says")
                if line.uri == entry.uri.text and line.uri in changed:
                    content = await self._catalog.read_blob(line.digest)
                    document = await anyio.to_thread.run_sync(parse_skill_md, content)
                    require_listed_frontmatter(entry, document.frontmatter)


# Parsing of what callers send


def _table(body: bytes) -> Table:
    try:
        value = parse_strictly(body)
    except ValueError as error:
        raise TableError(f"the body {error}") from error
    if not isinstance(value, dict):
        raise TableError("the body is not an object")
    return Table("", cast("dict[str, object]", value))


def parse_drafts(tables: Sequence[Table]) -> list[Draft]:
    """Parse the drafts of a request. Their files cannot be read: they are uploaded before.

    Raises:
        TableError: A draft is malformed, or its entry breaks a rule.
    """
    checked = check_entries([table.value("entry") for table in tables])
    return [_draft(table, *one) for table, one in zip(tables, checked, strict=True)]


def _draft(table: Table, entry: SkillEntry | None, findings: Sequence[Finding]) -> Draft:
    _require_no_errors(table, findings)
    if entry is None or entry.manifest is None or entry.extra or any(entry.manifest.extras):
        raise TableError(f"{table.key('entry')} has no list of files, or unknown members")
    uri, files = entry.uri, entry.manifest.digests_by_uri
    paths = {uri.relative_path(file) for file in files}
    _require_no_errors(table, path_findings(paths))
    version, modified = table.text("version", ""), table.number("modified", -1, least=0, most=_MAX_MODIFIED)
    if version and not (is_version(version) and version_in(entry.frontmatter) in ("", version)):
        raise TableError(f"{table.key('version')} is not a version, or not the one in the frontmatter")
    details = table.table("details")
    types = details.table("mediaTypes").rest()
    folders, order = details.texts("folders"), details.texts("order")
    details.finish()
    table.finish()
    if not types.keys() <= files.keys() or not all(map(_is_media_type, types.values())):
        raise TableError(f"{details.key('mediaTypes')} has an invalid type, or one of no file")
    if max(len(order), len(folders)) > MAX_FILES or not paths.issuperset(order):
        raise TableError(f"{details.key('order')} has a path of no file, or a list is too long")
    if not all(canonical_uri(one) == one and uri.contains(one) and one not in files for one in folders):
        raise TableError(f"{details.key('folders')} has what is not a folder of the skill")
    media_types = cast("Mapping[str, str]", types)
    return Draft(entry, _not_here, media_types, folders, order, None if modified < 0 else modified, version)


def _require_no_errors(table: Table, findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.is_error:
            raise TableError(f"{table.key('entry')} is not valid: {finding.message}", fix=finding.fix)


def _is_media_type(value: object) -> bool:
    return (
        isinstance(value, str) and len(value) <= _MAX_MEDIA_TYPE and _MEDIA_TYPE.fullmatch(value) is not None
    )


async def _not_here(line: ManifestFile) -> bytes:
    raise _missing([line.digest])


def _missing(digests: Collection[str]) -> RefusedCallError:
    words = "files have to be uploaded first"
    return RefusedCallError(409, words, fix="upload them, and publish again", missing=sorted(digests))


def _lines_of(entry: SkillEntry) -> Sequence[ManifestFile]:
    return entry.manifest.files if entry.manifest else ()


def _sizes_in(entries: Sequence[bytes]) -> Sizes:
    parsed = (parse_entry(parse_strictly(entry)) for entry in entries)
    return {line.digest: line.size for entry in parsed for line in _lines_of(entry)}


def _seen(plan: PublishPlan, seen: Table) -> Mapping[str, int]:
    """Return the states that the caller's plan was based on; skills that do not change are as planned."""
    found = dict(plan.seen)
    for row in plan.rows:
        if not row.is_pin:
            found[row.uri] = seen.whole(row.uri, -1, least=0, most=_MAX_NUMBER)
            if found[row.uri] < 0:
                raise TableError(f"{seen.key(row.uri)} is missing")
    return found


def _page(query: Mapping[str, str]) -> tuple[int, int]:
    """Return the limit and the number before which a page begins."""
    limit, before = query.get("limit", "100"), query.get("before", "9" * 15)
    if not (_NUMBER.fullmatch(limit) and _NUMBER.fullmatch(before)):
        raise TableError("limit or before is not a number")
    return min(int(limit), MAX_LIMIT), int(before)


# Answers


def _done(publication: Publication) -> JsonDict:
    changes = [change_json(change) for change in publication.changes]
    return {"revision": publication.revision, "changes": changes}


def change_json(change: SkillChange) -> JsonDict:
    return {
        "uri": change.uri.text,
        "change": change.kind.value,
        "before": change.before,
        "after": change.after,
        "files": list(change.files),
        "isVersion": change.is_pin,
    }


def version_json(version: SkillVersion) -> JsonDict:
    row = version.row
    return {
        **asdict(version.made),
        "until": None if row.is_current else row.until,
        "digest": row.digest,
        "version": row.version,
        "isVersion": bool(row.is_pin),
    }


def _conflict(error: CatalogConflictError, rights: CallerRights) -> JsonDict:
    """Return a conflict; one with a skill that the caller may not see does not tell which."""
    own = [uri for uri in error.uris if rights.includes(SkillUri(uri))]
    if len(own) == len(error.uris):
        return {"error": str(error), "fix": error.fix, "uris": own}
    words = "the name or the path of a skill cannot be used in this namespace"
    return {"error": words, "fix": "choose another name or path, or ask an administrator", "uris": own}


# Receipts of uploads: statements of a server, so that any replica knows who uploaded what.


class Receipts:
    """Issues and checks receipts. A receipt is good for one caller and one digest."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock

    def issue(self, caller: str, digest: str, size: int) -> str:
        """Return a receipt, which has the size of the file."""
        expires = int(self._clock()) + RECEIPT_SECONDS
        return f"{expires}.{size}.{self._code(caller, digest, size, expires)}"

    def sizes(self, caller: str, receipts: Mapping[str, object]) -> Sizes:
        """Return the sizes of the files, by digest, whose receipts are this caller's and have not expired."""
        found: dict[str, int] = {}
        for digest, receipt in receipts.items():
            parts = _RECEIPT.fullmatch(receipt) if isinstance(receipt, str) else None
            if parts is not None:
                expires, size = int(parts[1]), int(parts[2])
                code = self._code(caller, digest, size, expires)
                if hmac.compare_digest(code, parts[3]) and expires > self._clock():
                    found[digest] = size
        return found

    def _code(self, caller: str, digest: str, size: int, expires: int) -> str:
        return hmac.digest(self._secret, encode([caller, digest, size, expires]), "sha256").hex()


async def _read_secret(catalog: Catalog) -> bytes:
    """Return the secret that the servers of a catalog share, which the first of them creates."""
    async with catalog.database.transaction(write=True) as transaction:
        await transaction.execute(
            "INSERT INTO meta (key, value) VALUES ('receipts', ?) ON CONFLICT (key) DO NOTHING",
            (secrets.token_hex(32),),
        )
        rows = await transaction.fetch("SELECT value FROM meta WHERE key = 'receipts'")
    return bytes.fromhex(rows[0][0])
