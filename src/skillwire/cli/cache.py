"""`skillwire cache`: what is kept of servers' skills. No server is asked for any of it."""

import sys
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from skillwire.cli.answer import Answer, Part, answering, plural
from skillwire.cli.failures import MisuseError
from skillwire.cli.hosting import Config, Lock, Wanted, places_of
from skillwire.cli.keeping import needed_origins
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.tables import print_rows
from skillwire.errors import SkillError
from skillwire.host import ConfigError, Origin, OriginKind, Places
from skillwire.host.state.cache import MAX_BYTES, CacheUsage, ContentCache, OriginUsage
from skillwire.host.state.trees import FOLDER as TREES
from skillwire.host.state.trees import Trees

app = new_app()

Key = tuple[str, str]
"""A label and the fingerprint of what it stood for."""


class NothingKeptError(SkillError):
    """Nothing is kept of the server that was named."""

    refusal = "not-found"


class Action(StrEnum):
    LIST = "list"
    CLEAR = "clear"
    GC = "gc"


class Kept:
    """Everything kept of servers' skills: files by their digests, and unpacked archives."""

    def __init__(self, place: Path) -> None:
        self._all = (ContentCache(place), Trees(place / TREES))

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
        Action,
        typer.Argument(metavar="ACTION", help="list, clear or gc.", show_default=False),
    ],
    label: Annotated[
        str,
        typer.Argument(
            metavar="LABEL", help="With clear: only what is kept of this server.", show_default=False
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With clear: do not ask.")] = False,
    config: Config = None,
    lock: Lock = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show or clear what is kept of servers' skills.

    list shows how much is kept of which server. clear removes it, all or one
    server's. gc removes what crashed programs left behind, what is over the
    quota, and everything of servers that are not configured here if nothing
    of them is approved on this machine or pinned in a trusted lock.

    What is removed is fetched again when it is needed. Approvals stay, but
    without its files an approved skill cannot be used while its server is
    away.
    """
    with answering("cache", json=json, verbose=verbose) as answer:
        if label and action is not Action.CLEAR:
            raise MisuseError(f"{action} takes no label", fix="leave it out")
        content = Kept(Places.default().cache)
        before = content.usage()
        if action is Action.LIST:
            _list(answer, before, _configured(answer, config) or ())
        elif action is Action.CLEAR:
            _clear(answer, content, before, label, yes=yes)
        else:
            _gc(answer, content, before, _configured(answer, config), lock)


def _configured(answer: Answer, config: Path | None) -> frozenset[Key] | None:
    """Return the servers that are configured here; None when that cannot be read."""
    try:
        servers = places_of(Wanted(config=config)).servers
    except ConfigError as error:
        answer.word(("warning:", "yellow"), f" {error}")
        return None
    return frozenset((server.label, server.origin.fingerprint) for server in servers)


def _list(answer: Answer, usage: CacheUsage, configured: Collection[Key]) -> None:
    if answer.json:
        answer.document({"action": "list", **_usage_json(usage, configured)})
        return
    print_rows(answer, [_row(origin, configured) for origin in usage.origins], right=(1, 2))
    answer.word(
        f"{plural(usage.files, 'file')}, {size_words(usage.size)} of at most {size_words(MAX_BYTES)}, "
        f"in {Places.default().cache}",
        wrap=False,
    )


def _row(origin: OriginUsage, configured: Collection[Key]) -> tuple[Part, Part, Part, Part]:
    here = (origin.label, origin.fingerprint) in configured
    words: Part = ("configured here", "green") if here else ("not configured here", "dim")
    name: Part = (origin.label, "bold") if origin.label else ("(of nobody: gc removes it)", "yellow")
    return name, plural(origin.files, "file"), size_words(origin.size), words


def _clear(answer: Answer, content: Kept, before: CacheUsage, label: str, *, yes: bool) -> None:
    meant = [origin for origin in before.origins if not label or origin.label == label]
    if label and not meant:
        labels = ", ".join(sorted({origin.label for origin in before.origins if origin.label}))
        raise NothingKeptError(
            f"nothing is kept of a server {label}",
            fix=f"use one of the labels {labels}" if labels else "nothing is kept at all",
        )
    files, size = sum(origin.files for origin in meant), sum(origin.size for origin in meant)
    what = f"{plural(files, 'file')}, {size_words(size)}, of {label or 'all servers'}"
    if files and not yes and not _agreed(answer, what):
        answer.word("nothing was removed")
        _done(answer, "clear", 0, content.usage(), before)
        return
    if label:
        content.forget_label(label)
    else:
        content.clear()
    after = content.usage()
    _done(answer, "clear", before.files - after.files, after, before)


def _agreed(answer: Answer, what: str) -> bool:
    """Ask on the terminal; where there is none, nobody agrees."""
    if answer.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise MisuseError("clear asks before it removes anything, and cannot ask here", fix="say --yes")
    answer.word(f"This removes {what}.")
    answer.word("Approvals stay. Approved skills cannot be used while their server is away.")
    answer.word("Remove it? [y/N] ")
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def _gc(
    answer: Answer,
    content: Kept,
    before: CacheUsage,
    configured: Collection[Key] | None,
    lock: Path | None,
) -> None:
    removed = content.gc()
    needed = needed_origins(answer, Places.default(), lock)
    if needed is not None and configured is not None:
        for origin in content.usage().origins:
            key = (origin.label, origin.fingerprint)
            if origin.label and key not in configured and key not in needed:
                content.forget(Origin(OriginKind.SERVER, *key))
                removed += origin.files
    _done(answer, "gc", removed, content.usage(), before)


def _done(answer: Answer, action: str, removed: int, after: CacheUsage, before: CacheUsage) -> None:
    freed = max(0, before.size - after.size)
    if answer.json:
        answer.document({"action": action, "removed": removed, "freed": freed, **_totals(after)})
        return
    answer.line(f"removed {plural(removed, 'file')}, {size_words(freed)}")


def _totals(usage: CacheUsage) -> dict[str, object]:
    return {
        "place": str(Places.default().cache),
        "files": usage.files,
        "size": usage.size,
        "quota": MAX_BYTES,
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
