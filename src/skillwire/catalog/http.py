"""`CatalogApi`: publishing over HTTP. A server passes requests of callers here, with what they may do.

Drafts that arrive are not trusted: entries are parsed as strictly as those of
other servers, and compared with the bytes that they describe. The bytes of a
digest are never sent, and a caller can only publish those that they uploaded, or
that the skill to be replaced has already.
"""

import hmac
import logging
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, cast

import anyio
import anyio.to_thread

from skillwire.catalog.blobs import BlobMissingError
from skillwire.catalog.catalog import MAX_LIMIT, Catalog, open_catalog
from skillwire.catalog.changes import current_rows
from skillwire.catalog.drafts import is_version, namespace_of, version_in, version_uri
from skillwire.catalog.model import (
    AuditEvent,
    CatalogConflictError,
    CatalogError,
    Draft,
    PublishPlan,
    SkillChange,
    SkillVersion,
)
from skillwire.core import (
    MAX_FILES,
    Coverage,
    CredentialError,
    InvalidSkillError,
    InvalidUriError,
    JsonDict,
    ManifestFile,
    NotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    StrictJsonError,
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

logger = logging.getLogger(__name__)

RECEIPT_SECONDS: Final = 3600
"""How long an uploaded file can be published, which is less than unused files are kept."""
EVERYTHING: Final = "*"

_AT_ONCE = 2
_MAX_DIGITS = 18
_MAX_MODIFIED = 253_402_300_800.0  # The year 10000.
_MAX_MEDIA_TYPE = 127
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}(?:; ?{_TOKEN}={_TOKEN})*")
_DRAFT = frozenset({"entry", "version", "details", "modified"})
_DETAILS = frozenset({"mediaTypes", "folders", "order"})
# Denials in the audit log: at once and per second, of one caller and of all together.
_OF_CALLER = (10, 1 / 60)
_OF_ALL = (200, 1 / 6)
_MAX_CALLERS = 1000

Sizes: TypeAlias = Mapping[str, int]
"""The sizes of files by their digests."""


class CallerRights(Protocol):
    """What a caller may see and do. `manageable` are the directories that it may manage, or `*`."""

    @property
    def publishable(self) -> tuple[str, ...]: ...
    @property
    def manageable(self) -> tuple[str, ...]: ...

    def includes(self, uri: SkillUri) -> bool: ...
    def may_publish(self, uri: SkillUri) -> bool: ...
    def may_manage(self, uri: SkillUri) -> bool: ...


class ApiRequest(Protocol):
    """A request of an authenticated caller. `route` is the path below that of the catalog."""

    @property
    def method(self) -> str: ...
    @property
    def route(self) -> str: ...
    @property
    def query(self) -> Mapping[str, str]: ...
    @property
    def caller(self) -> str: ...
    @property
    def rights(self) -> CallerRights:
        """The rights at this moment: they may change while the body arrives."""
        ...

    async def read(self) -> bytes:
        """Return the body, which has a maximum size."""
        ...


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
        yield CatalogApi(catalog, await _read_secret(catalog))


class CatalogApi:
    """The catalog of a server, for callers who may publish to it."""

    def __init__(self, catalog: Catalog, secret: bytes) -> None:
        self._catalog = catalog
        self._receipts = Receipts(secret)
        self._denials = _DenialLimits()
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
            else:
                method, act = self._routes.get(request.route, ("", self._audit))
            if not method:
                raise RefusedCallError(404, "nothing exists at this path")
            await self._require_role(request)
            if request.method != method:
                raise RefusedCallError(405, f"only {method} is allowed", allow=method)
            return 200, await act(request)
        except CredentialError:
            raise
        except RefusedCallError as error:
            return error.status, error.document
        except CatalogConflictError as error:
            return 409, _conflict(error, request.rights)
        except NotFoundError as error:
            return 404, _document(error)
        except BlobMissingError as error:
            return 409, _document(error) | {"missing": [error.digest]}
        except CatalogError as error:
            logger.warning("the catalog refused a request: %s", error)
            words = "the catalog cannot be used at the moment"
            return 503, {"error": words, "fix": "try again later"}
        except SkillError as error:
            return 400, _document(error)

    # The routes

    async def _plan(self, request: ApiRequest) -> JsonDict:
        """Return what the drafts would change, and which files have to be uploaded."""
        body = await request.read()
        async with self._busy:
            drafts, _ = await self._drafts(request, body)
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
        await self._catalog.store.put(digest, content)
        return {"receipt": self._receipts.issue(request.caller, digest, len(content))}

    async def _publish(self, request: ApiRequest) -> JsonDict:
        """Write the drafts as one revision."""
        body = await request.read()
        async with self._busy:
            drafts, value = await self._drafts(request, body, "seen", "uploads", "note")
            uploaded = self._receipts.sizes(request.caller, _texts_in(value, "uploads"))
            known = {**uploaded, **await self._known_sizes(drafts)}
            plan = await self._catalog.plan(drafts)
            await self._check_files(plan, drafts, known)
            plan = replace(plan, seen=_seen(plan, value))
            note = value.get("note", "")
            if not isinstance(note, str):
                raise _malformed("`note` is not a text")
            done = await self._catalog.publish(plan, actor=request.caller, note=note)
        return {"revision": done.revision, "changes": [change_json(change) for change in done.changes]}

    async def _unpublish(self, request: ApiRequest) -> JsonDict:
        value = await _object(await request.read(), {"uris"})
        uris = [_uri(text) for text in _list_of_texts(value, "uris")]
        await self._require_managed(request, "unpublish", uris)
        done = await self._catalog.unpublish(uris, actor=request.caller)
        return {"revision": done.revision, "changes": [change_json(change) for change in done.changes]}

    async def _rollback(self, request: ApiRequest) -> JsonDict:
        value = await _object(await request.read(), {"uri", "revision"})
        uri, revision = _uri(value.get("uri")), value.get("revision")
        if type(revision) is not int or not 0 <= revision < 10**_MAX_DIGITS:
            raise _malformed("`revision` is not the number of a revision")
        await self._require_managed(request, "rollback", [uri])
        done = await self._catalog.rollback(uri, revision, actor=request.caller)
        return {"revision": done.revision, "changes": [change_json(change) for change in done.changes]}

    async def _history(self, request: ApiRequest) -> JsonDict:
        uri = _uri(request.query.get("uri"))
        if not request.rights.may_publish(uri):
            raise await self._denied(request, "history", uri)
        limit, before = _page(request.query)
        versions = await self._catalog.history(uri, limit=limit, before=before)
        return {
            "revision": await self._catalog.revision(),
            "versions": [version_json(version) for version in versions],
        }

    async def _audit(self, request: ApiRequest) -> JsonDict:
        places = request.rights.manageable
        if not places:
            raise await self._denied(request, "audit")
        limit, before = _page(request.query)
        below = None if EVERYTHING in places else places
        events = await self._catalog.audit_log(limit=limit, before=before, below=below)
        return {"events": [event_json(event) for event in events]}

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
        """Record a denial in the audit log, and return the refusal."""
        caller, place = request.caller, "" if uri is None else uri.text
        if self._denials.admits(caller):
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

    async def _drafts(
        self, request: ApiRequest, body: bytes, *more: str
    ) -> tuple[list[Draft], Mapping[str, Any]]:
        """Parse drafts that the caller may publish; `more` are the other members that there may be."""
        value = await _object(body, {"drafts", *more})
        drafts = await anyio.to_thread.run_sync(parse_drafts, value.get("drafts"))
        for draft in drafts:
            uri = draft.entry.uri
            for place in (uri, version_uri(uri, draft.version)) if draft.version else (uri,):
                if not request.rights.may_publish(place):
                    raise await self._denied(request, "publish", place)
        return drafts, value

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
        for draft in drafts:
            for line in _lines(draft):
                if known.get(line.digest, line.size) != line.size:
                    raise RefusedCallError(400, f"the size of {quoted(line.uri)} is another one")
        changed = {row.uri for row in plan.rows}
        for draft in drafts:
            entry = draft.entry
            if entry.uri.text in changed and entry.manifest is not None:
                content = await self._catalog.read_blob(entry.manifest.require(entry.uri.text).digest)
                document = await anyio.to_thread.run_sync(parse_skill_md, content)
                require_listed_frontmatter(entry, document.frontmatter)


def _sizes_in(entries: Sequence[bytes]) -> Sizes:
    return {line.digest: line.size for entry in entries for line in _lines_of(parse_entry(_parsed(entry)))}


def _seen(plan: PublishPlan, value: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the states that the caller's plan was based on; skills that do not change are as planned."""
    seen = value.get("seen")
    states: dict[str, Any] = cast("dict[str, Any]", seen) if isinstance(seen, dict) else {}
    found = dict(plan.seen)
    for row in plan.rows:
        if not row.is_pin:
            state = states.get(row.uri)
            if type(state) is not int:
                raise _malformed(f"`seen` does not have {quoted(row.uri)}")
            found[row.uri] = state
    return found


# Parsing of what callers send


def parse_drafts(value: object) -> list[Draft]:
    """Parse the drafts of a request. Their files cannot be read: they are uploaded before.

    Raises:
        RefusedCallError: They are malformed.
        SkillError: An entry breaks a rule.
    """
    if not isinstance(value, list):
        raise _malformed("`drafts` is not a list")
    items = cast("list[object]", value)
    if not all(isinstance(item, dict) and _DRAFT.issuperset(cast("JsonDict", item)) for item in items):
        raise _malformed("a draft is not an object, or has unknown members")
    drafts = cast("list[JsonDict]", items)
    checked = check_entries([draft.get("entry") for draft in drafts])
    found: list[Draft] = []
    for draft, (entry, findings) in zip(drafts, checked, strict=True):
        errors = [finding for finding in findings if finding.is_error]
        if entry is None or errors:
            raise RefusedCallError(400, f"an entry is not valid: {errors[0].message}")
        found.append(_draft(entry, draft))
    return found


def _draft(entry: SkillEntry, value: JsonDict) -> Draft:
    uri, manifest = entry.uri, entry.manifest
    if manifest is None or manifest.coverage is not Coverage.FILES or entry.extra or any(manifest.extras):
        raise RefusedCallError(400, f"the entry of {quoted(uri.text)} has no files, or unknown members")
    entry.check_limits()
    paths = [uri.relative_path(file) for file in manifest.uris]
    for finding in path_findings(paths):
        if finding.is_error:
            raise InvalidSkillError(f"{uri} has an unusable path: {finding.message}", fix=finding.fix)
    version, modified = value.get("version", ""), value.get("modified")
    if version != "" and not (isinstance(version, str) and is_version(version)):
        raise _malformed("`version` is not a semantic version")
    if version and version_in(entry.frontmatter) not in ("", version):
        raise RefusedCallError(400, f"the version of {quoted(uri.text)} is not the one in its frontmatter")
    if modified is not None and not (
        type(modified) in (int, float) and math.isfinite(modified) and 0 <= modified < _MAX_MODIFIED
    ):
        raise _malformed("`modified` is not a time in POSIX seconds")
    details = value.get("details", {})
    if not isinstance(details, dict) or not _DETAILS.issuperset(cast("JsonDict", details)):
        raise _malformed("`details` is not an object, or has unknown members")
    types = _texts_in(cast("JsonDict", details), "mediaTypes")
    folders, order = (_list_of_texts(cast("JsonDict", details), key) for key in ("folders", "order"))
    if not types.keys() <= set(manifest.uris) or not all(map(_is_media_type, types.values())):
        raise _malformed("`mediaTypes` has a file that the skill does not have, or an invalid type")
    if not set(order) <= set(paths) or len(folders) > MAX_FILES or len(order) > MAX_FILES:
        raise _malformed("`order` has files that the skill does not have, or a list is too long")
    for folder in folders:
        if canonical_uri(folder) != folder or not uri.contains(folder) or manifest.find(folder):
            raise _malformed("`folders` has what is not a folder of the skill")
    return Draft(entry, _not_here, types, tuple(folders), tuple(order), modified, version)


def _is_media_type(text: str) -> bool:
    return len(text) <= _MAX_MEDIA_TYPE and _MEDIA_TYPE.fullmatch(text) is not None


async def _not_here(line: ManifestFile) -> bytes:
    raise _missing([line.digest])


def _missing(digests: Collection[str]) -> RefusedCallError:
    words = "files have to be uploaded first"
    return RefusedCallError(409, words, fix="upload them, and publish again", missing=sorted(digests))


def _lines(draft: Draft) -> Sequence[ManifestFile]:
    return _lines_of(draft.entry)


def _lines_of(entry: SkillEntry) -> Sequence[ManifestFile]:
    return entry.manifest.files if entry.manifest else ()


async def _object(body: bytes, members: Collection[str]) -> Mapping[str, Any]:
    value = await anyio.to_thread.run_sync(_parsed, body)
    if not isinstance(value, dict) or not cast("JsonDict", value).keys() <= set(members):
        raise _malformed(f"the body is not an object with {', '.join(sorted(members))}")
    return cast("JsonDict", value)


def _parsed(body: bytes) -> object:
    try:
        return parse_strictly(body)
    except StrictJsonError as error:
        raise _malformed(f"the body {error}") from error


def _texts_in(value: Mapping[str, Any], key: str) -> dict[str, str]:
    found = value.get(key, {})
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        raise _malformed(f"`{key}` is not an object of texts")
    return cast("dict[str, str]", found)


def _list_of_texts(value: Mapping[str, Any], key: str) -> list[str]:
    found = value.get(key, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in cast("list[object]", found)):
        raise _malformed(f"`{key}` is not a list of texts")
    return cast("list[str]", found)


def _uri(text: object) -> SkillUri:
    if not isinstance(text, str):
        raise InvalidUriError("no skill is named", fix="give its URI")
    return SkillUri(SkillUri.parse(text).text)


def _page(query: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the limit and the number before which a page begins."""
    for key in ("limit", "before"):
        text = query.get(key, "1")
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            raise _malformed(f"`{key}` is not a number")
    before = query.get("before")
    return min(int(query.get("limit", "100")), MAX_LIMIT), None if before is None else int(before)


def _malformed(message: str) -> RefusedCallError:
    return RefusedCallError(400, message)


# Answers


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
    row, made = version.row, version.made
    return {
        "revision": made.number,
        "at": made.at,
        "actor": made.actor,
        "action": made.action,
        "note": made.note,
        "until": None if row.is_current else row.until,
        "digest": row.digest,
        "version": row.version,
        "isVersion": bool(row.is_pin),
    }


def event_json(event: AuditEvent) -> JsonDict:
    names = ("number", "at", "actor", "action", "namespace", "uri", "revision", "detail")
    return {name: getattr(event, name) for name in names}


def _document(error: SkillError) -> JsonDict:
    return {"error": str(error), "fix": error.fix}


def _conflict(error: CatalogConflictError, rights: CallerRights) -> JsonDict:
    """Return a conflict; one with a skill that the caller may not see does not tell which."""
    own = [uri for uri in error.uris if rights.includes(SkillUri(uri))]
    if len(own) == len(error.uris):
        return _document(error) | {"uris": own}
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

    def sizes(self, caller: str, receipts: Mapping[str, str]) -> Sizes:
        """Return the sizes of the files, by digest, whose receipts are this caller's and have not expired."""
        found: dict[str, int] = {}
        for digest, receipt in receipts.items():
            expires, _, rest = receipt.partition(".")
            size, _, code = rest.partition(".")
            if not all(
                text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS for text in (expires, size)
            ):
                continue
            expected = self._code(caller, digest, int(size), int(expires))
            if hmac.compare_digest(expected.encode(), code.encode()) and int(expires) > self._clock():
                found[digest] = int(size)
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


class _DenialLimits:
    """Limits how many denials are recorded, of each caller and of all."""

    def __init__(self) -> None:
        self._all = TokenBucket(*_OF_ALL)
        self._callers: OrderedDict[str, TokenBucket] = OrderedDict()

    def admits(self, caller: str) -> bool:
        """Count a denial, and return whether it is to be recorded."""
        bucket = self._callers.setdefault(caller, TokenBucket(*_OF_CALLER))
        self._callers.move_to_end(caller)
        if len(self._callers) > _MAX_CALLERS:
            self._callers.popitem(last=False)
        return not bucket.take() and not self._all.take()
