"""`skillwire cache`: show or clear the cached files of servers' skills, without contacting a server."""

import json
import sys
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from skillwire.cli.command import (
    Json,
    MisuseError,
    Output,
    Part,
    Verbose,
    command_output,
    new_app,
    plural,
    print_rows,
)
from skillwire.cli.hosting import LOCK_NAME, Config, HostRequest, Lock, resolve_targets
from skillwire.core import SkillError
from skillwire.host import (
    APPROVALS_FILE,
    MAX_CACHE_BYTES,
    UNPACKED_FOLDER,
    ApprovalRecords,
    CacheUsage,
    ConfigError,
    ContentCache,
    LockTrust,
    Origin,
    OriginKind,
    OriginUsage,
    SkillId,
    Storage,
    UnpackedArchives,
)
from skillwire.host.state.vault import SealedFolder

# Find the servers whose cached files are still needed: those with approved or pinned skills.


def needed_origins(output: Output, places: Storage, lock: Path | None) -> frozenset[tuple[str, str]] | None:
    """Return the label and fingerprint of every server with an approved or pinned skill.

    None when the state cannot be read: then nothing may be removed.
    """
    try:
        skills = [*_approved(places.state), *_pinned(places.state, lock)]
    except SkillError as error:
        output.message(("warning:", "yellow"), f" {error}, so the files of unused servers are kept")
        return None
    return frozenset((skill.origin.label, skill.origin.fingerprint) for skill in skills)


def _approved(state: Path) -> list[SkillId]:
    folder = SealedFolder(state)
    ledger = folder.load(APPROVALS_FILE, ApprovalRecords.parse) or ApprovalRecords()
    _require_untampered(folder)
    return [*ledger.approvals, *ledger.previous]


def _pinned(state: Path, lock: Path | None) -> list[SkillId]:
    """Return what is pinned by the current lock and by all locks that were ever trusted here."""
    folder = SealedFolder(state)
    locks = {(lock or Path(LOCK_NAME)).absolute()}
    for record in sorted(state.glob("lock-*.json")) if state.is_dir() else ():
        locks.add(Path(folder.load(record.name, _path_in) or record))
        _require_untampered(folder)
    trust = LockTrust(state)
    reviews = [trust.review(path) for path in locks]
    known = [found for review in reviews for found in (review.lock, review.trusted) if found is not None]
    return [approval.skill for found in known for approval in found.approvals]


def _path_in(record: bytes) -> str:
    return str(cast(dict[str, Any], json.loads(record))["path"])


def _require_untampered(folder: SealedFolder) -> None:
    if folder.tampering is not None:
        raise SkillError(folder.tampering.sentence.rstrip("."))


app = new_app()

Key = tuple[str, str]
"""A label and the fingerprint of its endpoint."""


class NothingCachedError(SkillError):
    """Nothing is cached for the server that was named."""

    refusal = "not-found"


class CacheAction(StrEnum):
    LIST = "list"
    CLEAR = "clear"
    GC = "gc"


class CachedContent:
    """Everything cached of servers' skills: files by digest, and unpacked archives."""

    def __init__(self, place: Path) -> None:
        self._all = (ContentCache(place), UnpackedArchives(place / UNPACKED_FOLDER))

    def usage(self) -> CacheUsage:
        found = [store.usage() for store in self._all]
        sums: dict[Key, OriginUsage] = {}
        for origin in (origin for usage in found for origin in usage.origins):
            key = (origin.label, origin.fingerprint)
            held = sums.get(key, OriginUsage(*key, 0, 0))
            sums[key] = OriginUsage(*key, held.files + origin.files, held.size + origin.size)
        return CacheUsage(
            sum(usage.files for usage in found),
            sum(usage.size for usage in found),
            tuple(sums[key] for key in sorted(sums)),
        )

    def forget(self, origin: Origin) -> None:
        for store in self._all:
            store.forget(origin)

    def forget_label(self, label: str) -> None:
        for store in self._all:
            store.forget_label(label)

    def clear(self) -> None:
        for store in self._all:
            store.clear()

    def gc(self) -> int:
        return sum(store.gc() for store in self._all)


@app.command()
def cache(
    action: Annotated[
        CacheAction,
        typer.Argument(metavar="ACTION", help="list, clear or gc.", show_default=False),
    ],
    label: Annotated[
        str,
        typer.Argument(
            metavar="LABEL", help="With clear: only the cache of this server.", show_default=False
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With clear: do not ask.")] = False,
    config: Config = None,
    lock: Lock = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show or clear the cached files of servers' skills.

    list shows how much is cached for each server. clear removes everything,
    or one server's files. gc removes what crashed programs left behind, what
    exceeds the quota, and the files of servers that are not configured here
    unless one of their skills is approved on this machine or pinned in a
    trusted lock.

    Removed files are fetched again when needed. Approvals stay, but without
    its files an approved skill cannot be used while its server is
    unreachable.
    """
    with command_output("cache", json=json, verbose=verbose) as output:
        if label and action is not CacheAction.CLEAR:
            raise MisuseError(f"{action} takes no label", fix="leave it out")
        content = CachedContent(Storage().cache)
        before = content.usage()
        if action is CacheAction.LIST:
            _list(output, before, _configured(output, config) or ())
        elif action is CacheAction.CLEAR:
            _clear(output, content, before, label, yes=yes)
        else:
            _gc(output, content, before, _configured(output, config), lock)


def _configured(output: Output, config: Path | None) -> frozenset[Key] | None:
    """Return the servers that are configured here; None when the configuration cannot be read."""
    try:
        servers = resolve_targets(HostRequest(config=config)).servers
    except ConfigError as error:
        output.message(("warning:", "yellow"), f" {error}")
        return None
    return frozenset((server.label, server.origin.fingerprint) for server in servers)


def _list(output: Output, usage: CacheUsage, configured: Collection[Key]) -> None:
    if output.json:
        output.document({"action": "list", **_usage_json(usage, configured)})
        return
    print_rows(output, [_row(origin, configured) for origin in usage.origins], right=(1, 2))
    output.message(
        f"{plural(usage.files, 'file')}, {size_words(usage.size)} of at most {size_words(MAX_CACHE_BYTES)}, "
        f"in {Storage().cache}",
        wrap=False,
    )


def _row(origin: OriginUsage, configured: Collection[Key]) -> tuple[Part, Part, Part, Part]:
    here = (origin.label, origin.fingerprint) in configured
    words: Part = ("configured here", "green") if here else ("not configured here", "dim")
    name: Part = (origin.label, "bold") if origin.label else ("(unreferenced; removed by gc)", "yellow")
    return name, plural(origin.files, "file"), size_words(origin.size), words


def _clear(output: Output, content: CachedContent, before: CacheUsage, label: str, *, yes: bool) -> None:
    meant = [origin for origin in before.origins if not label or origin.label == label]
    if label and not meant:
        labels = ", ".join(sorted({origin.label for origin in before.origins if origin.label}))
        raise NothingCachedError(
            f"nothing is cached for a server {label}",
            fix=f"use one of the labels {labels}" if labels else "the cache is empty",
        )
    files, size = sum(origin.files for origin in meant), sum(origin.size for origin in meant)
    what = f"{plural(files, 'file')}, {size_words(size)}, of {label or 'all servers'}"
    if files and not yes and not _confirm(output, what):
        output.message("nothing was removed")
        _done(output, "clear", 0, content.usage(), before)
        return
    if label:
        content.forget_label(label)
    else:
        content.clear()
    after = content.usage()
    _done(output, "clear", before.files - after.files, after, before)


def _confirm(output: Output, what: str) -> bool:
    """Ask for confirmation on the terminal.

    Raises:
        MisuseError: There is no terminal.
    """
    if output.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise MisuseError("clear asks for confirmation, and this is not a terminal", fix="pass --yes")
    output.message(f"This removes {what}.")
    output.message("Approvals stay. Approved skills cannot be used while their server is unreachable.")
    output.message("Remove it? [y/N] ")
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def _gc(
    output: Output,
    content: CachedContent,
    before: CacheUsage,
    configured: Collection[Key] | None,
    lock: Path | None,
) -> None:
    removed = content.gc()
    needed = needed_origins(output, Storage(), lock)
    if needed is not None and configured is not None:
        for origin in content.usage().origins:
            key = (origin.label, origin.fingerprint)
            if origin.label and key not in configured and key not in needed:
                content.forget(Origin(OriginKind.SERVER, *key))
                removed += origin.files
    _done(output, "gc", removed, content.usage(), before)


def _done(output: Output, action: str, removed: int, after: CacheUsage, before: CacheUsage) -> None:
    freed = max(0, before.size - after.size)
    if output.json:
        output.document({"action": action, "removed": removed, "freed": freed, **_totals(after)})
        return
    output.line(f"removed {plural(removed, 'file')}, {size_words(freed)}")


def _totals(usage: CacheUsage) -> dict[str, object]:
    return {
        "place": str(Storage().cache),
        "files": usage.files,
        "size": usage.size,
        "quota": MAX_CACHE_BYTES,
    }


def _usage_json(usage: CacheUsage, configured: Collection[Key]) -> dict[str, object]:
    origins = [
        {
            "label": origin.label,
            "fingerprint": origin.fingerprint,
            "files": origin.files,
            "size": origin.size,
            "configured": (origin.label, origin.fingerprint) in configured,
        }
        for origin in usage.origins
    ]
    return {**_totals(usage), "origins": origins}


def size_words(size: int) -> str:
    """Return `12 bytes`, `3.4 KiB`, `5.6 MiB`."""
    if size < 1024:
        return plural(size, "byte")
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024 or unit == "GiB":
            return f"{amount:.1f} {unit}"
    raise AssertionError("the loop returns")
