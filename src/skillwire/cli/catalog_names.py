"""Catalogs and their skills as they are named on a command line, and changes as they are printed."""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias
from urllib.parse import quote

import platformdirs
import typer

from skillwire.catalog import Publication, SkillChange, SkillChangeKind, open_catalog, open_remote
from skillwire.cli.command import MisuseError, Output, plural
from skillwire.core import SKILL_FILE, InvalidUriError, NotFoundError, SkillError, SkillUri, quoted

if TYPE_CHECKING:
    from skillwire.catalog import Catalog, RemoteCatalog

DEFAULT: Final = "default"
"""The word for the user's own catalog, where a URL is expected."""
VARIABLE: Final = "SKILLWIRE_CATALOG"
"""The variable that has the URL of another default."""

CatalogUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--catalog",
        metavar="URL",
        help="The catalog: sqlite:///FILE or postgresql://USER@HOST/DATABASE. By default it is the one of "
        f"{VARIABLE}, or else a file of this user. A password belongs in PGPASSWORD or ~/.pgpass.",
        show_default=False,
    ),
]
Actor: TypeAlias = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Who does this, for the history; your user name by default.",
        show_default=False,
    ),
]

TOKEN_VARIABLE: Final = "SKILLWIRE_TOKEN"
"""The variable that has the token for the catalog of a server."""

RemoteUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--catalog",
        metavar="URL",
        help="The catalog: sqlite:///FILE, postgresql://USER@HOST/DATABASE, or https://HOST of a server of "
        f"one. By default it is the one of {VARIABLE}, or else a file of this user. A password belongs in "
        "PGPASSWORD or ~/.pgpass.",
        show_default=False,
    ),
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"A file with the token for the server of a catalog; by default the token in {TOKEN_VARIABLE}.",
        show_default=False,
    ),
]

_REMOTE = ("https://", "http://")
_MAX_TOKEN_FILE = 16 * 1024
_SCHEMES = ("sqlite:///", "postgresql://", "postgres://")
_MOST_NAMED = 10
_STYLES = {SkillChangeKind.ADDED: "green", SkillChangeKind.CHANGED: "yellow", SkillChangeKind.REMOVED: "red"}


class AmbiguousNameError(SkillError):
    """Several skills of a catalog have the name."""

    refusal = "ambiguous-reference"


# Catalogs


def catalog_url(typed: str, *, may_be_remote: bool = False) -> str:
    """Return the URL of a catalog; without one, or with `default`, that of the user's own.

    With `may_be_remote`, it may be that of a server.

    Raises:
        MisuseError: It is not the URL of a catalog.
    """
    names = (typed, os.environ.get(VARIABLE, ""), _own_url())
    url = next(name for name in names if name not in ("", DEFAULT))
    if not url.startswith((*_SCHEMES, *_REMOTE) if may_be_remote else _SCHEMES):
        # It may have a password.
        raise MisuseError(
            "this is not the URL of a catalog",
            fix=f"write sqlite:///folder/skills.db for a file, postgresql://user@host/database, or {DEFAULT}",
        )
    return url


@asynccontextmanager
async def open_any_catalog(
    url: str, token_file: Path | None, *, actor: str = "", create: bool = False, blobs: str = ""
) -> AsyncGenerator[Catalog | RemoteCatalog]:
    """Open a catalog, or use that of a server.

    Raises:
        MisuseError: An option is for the other kind of catalog, or there is no token.
        CatalogError: It cannot be opened.
    """
    if not url.startswith(_REMOTE):
        if token_file is not None:
            raise MisuseError("--token-file is for catalogs at https://…", fix="leave it out")
        async with open_catalog(url, create=create, blobs=blobs) as catalog:
            yield catalog
        return
    for option, value in (("--as", actor), ("--blobs", blobs)):
        if value:
            raise MisuseError(f"{option} is decided by the server of the catalog", fix="leave it out")
    async with open_remote(url, token=_token(token_file)) as remote:
        yield remote


def _token(file: Path | None) -> str:
    """Return the token for a server."""
    text = os.environ.get(TOKEN_VARIABLE, "")
    if file is not None:
        try:
            with file.open("rb") as opened:
                text = opened.read(_MAX_TOKEN_FILE).decode("ascii", "replace")
        except OSError as error:
            raise MisuseError(
                f"the token file cannot be read: {error.strerror}", fix="check its path"
            ) from error
    if not text.strip():
        raise MisuseError(
            "a catalog of a server needs a token", fix=f"add --token-file FILE, or set {TOKEN_VARIABLE}"
        )
    return text.strip()


def make_room(url: str) -> None:
    """Create the folder of the user's own catalog, if the URL is that."""
    if url == _own_url():
        _own_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def shown_url(url: str) -> str:
    """Return a URL as it may be shown: without a password, and without parameters that may have one."""
    scheme, separator, rest = url.partition("://")
    if not scheme.startswith("postgres"):
        return url
    user, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{place.partition('?')[0]}"


def _own_file() -> Path:
    return platformdirs.user_data_path("skillwire") / "catalog.db"


def _own_url() -> str:
    return f"sqlite:///{quote(str(_own_file()), errors='surrogateescape')}"


def actor_name(typed: str) -> str:
    """Return who changes a catalog: the name that was typed, or that of the user."""
    if typed:
        return typed
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


# Skills


async def skill_named(catalog: Catalog | RemoteCatalog, name: str) -> SkillUri:
    """Return the skill at a path or URI, or the only one with a name; it may be removed by now.

    Raises:
        MisuseError: Nothing can have this name.
        NotFoundError: There never was such a skill.
        AmbiguousNameError: Several have the name.
    """
    try:
        if "://" in name:
            whole = name if name.endswith(f"/{SKILL_FILE}") else f"{name.rstrip('/')}/{SKILL_FILE}"
            uri = SkillUri.parse(whole)
        else:
            uri = SkillUri.build(name)
    except InvalidUriError as error:
        raise MisuseError(
            f"{quoted(name)} is not the name of a skill: {error}", fix="write it like acme/billing/refunds"
        ) from error
    if await catalog.history(uri, limit=1):
        return uri
    found = [] if "/" in name else await catalog.named(name)
    if not found:
        raise NotFoundError(
            f"the catalog has no skill {quoted(name)}",
            uri=uri.text,
            fix="find its path with `skillwire search WORDS --catalog URL`",
        )
    if len(found) > 1:
        paths = ", ".join(one.path if one.scheme == "skill" else one.text for one in found[:_MOST_NAMED])
        more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
        raise AmbiguousNameError(
            f"{plural(len(found), 'skill')} of the catalog have the name {quoted(name)}",
            fix=f"name one of them: {paths}{more}",
        )
    return found[0]


# Changes


def print_changes(output: Output, changes: Iterable[SkillChange]) -> None:
    """Print a line for each change with the digests of the entry, and a line for each file that differs."""
    for change in changes:
        digests = " -> ".join(dict.fromkeys(filter(None, (change.before, change.after))))
        kind = (change.kind.value, _STYLES[change.kind])
        output.line(kind, f"  {change.uri}  {digests}", "  immutable" if change.is_pin else "", wrap=False)
        for file in change.files:
            output.line(file, indent=4, wrap=False)


def publication_json(publication: Publication) -> dict[str, object]:
    """Return the members of a document about what was published."""
    changes = [change_json(change) for change in publication.changes]
    return {"revision": publication.revision, "changes": changes}


def change_json(change: SkillChange) -> dict[str, object]:
    return {
        "uri": change.uri.text,
        "change": change.kind.value,
        "before": change.before or None,
        "after": change.after or None,
        "files": list(change.files),
        "isVersion": change.is_pin,
    }


def time_text(seconds: float) -> str:
    """Return a time like 2026-11-19T23:29:35Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
