"""`skillwire token`: manage a server's token file, which holds only the digests of tokens."""

import os
import stat
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from skillwire.cli.command import (
    STYLES,
    Json,
    MisuseError,
    Output,
    OutputError,
    Part,
    Verbose,
    command_output,
    new_app,
    print_rows,
)
from skillwire.host.state.vault import locked, replace
from skillwire.server.access.settings import read_owner_writable
from skillwire.server.access.tokens import (
    MAX_SIZE,
    Token,
    digest_of,
    format_time,
    new_secret,
    parse_tokens,
    require_values,
    with_token,
    without_token,
)

MOST_DAYS = 36_500

app = new_app()


class TokenAction(StrEnum):
    NEW = "new"
    LIST = "list"
    REVOKE = "revoke"


@app.command()
def token(
    action: Annotated[
        TokenAction, typer.Argument(metavar="ACTION", help="new, list or revoke.", show_default=False)
    ],
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="With new and revoke: the token's name.", show_default=False),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The token file of the server.", show_default=False),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="With new: a group of its holder. Can be repeated."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help="With new: a scope of the token. Can be repeated."),
    ] = None,
    expires: Annotated[
        int | None,
        typer.Option(
            metavar="DAYS", min=1, max=MOST_DAYS, help="With new: the number of days until it expires."
        ),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Create, list or revoke tokens for a server.

    new prints a token, which is shown only once, and adds a line with its
    name and digest to the file. list shows the tokens in the file. revoke
    removes a line. A server that was started with --token-file FILE applies
    the change within two seconds.

    Rules (`access` in serve.toml) can name tokens, groups and scopes.
    """
    with command_output("token", json=json, verbose=verbose) as output:
        if file is None:
            raise MisuseError("no token file is named", fix="add --file tokens.txt")
        if action is not TokenAction.NEW and (group or scope or expires):
            raise MisuseError(f"{action} takes no --group, --scope or --expires", fix="leave them out")
        if bool(name) is (action is TokenAction.LIST):
            fix = "leave it out" if name else f"skillwire token {action} NAME --file {file}"
            raise MisuseError(f"{action} takes {'no' if name else 'a'} name", fix=fix)
        if action is TokenAction.LIST:
            _list(output, file)
        elif action is TokenAction.NEW:
            end = None if expires is None else datetime.now(UTC) + timedelta(days=expires)
            _new(output, file, name, group or [], scope or [], end)
        else:
            _revoke(output, file, name)


def _new(
    output: Output, file: Path, name: str, groups: list[str], scopes: list[str], expires: datetime | None
) -> None:
    secret = new_secret(name)
    made = Token(
        name, digest_of(secret), require_values("group", groups), require_values("scope", scopes), expires
    )
    _warn(output, change_file(file, lambda before: with_token(before, made), may_be_new=True))
    if output.json:
        output.document({"action": "new", "file": str(file), "token": secret, **_to_json(made)})
        return
    output.line(secret, wrap=False)
    output.message(f"added {name} to {file}; the token is shown only now, so keep it safe")


def _revoke(output: Output, file: Path, name: str) -> None:
    _warn(output, change_file(file, lambda before: without_token(before, name)))
    if output.json:
        output.document({"action": "revoke", "file": str(file), "name": name})
    else:
        output.line(f"revoked {name}")


def _list(output: Output, file: Path) -> None:
    tokens = parse_tokens(_content(file)).by_name.values()
    if output.json:
        output.document({"action": "list", "file": str(file), "tokens": [_to_json(one) for one in tokens]})
        return
    rows: list[list[Part]] = [
        [(one.name, "bold"), _listed("group", one.groups), _listed("scope", one.scopes), _expiry_words(one)]
        for one in tokens
    ]
    print_rows(output, rows)
    if not tokens:
        output.message(f"there are no tokens in {file}")


def change_file(file: Path, change: Callable[[bytes], bytes], *, may_be_new: bool = False) -> str:
    """Change a token file atomically, under a lock, and return a warning or an empty text.

    An existing file keeps its owner, group and mode: otherwise a server that
    runs as another user could no longer read it, and would keep using what it
    read before.

    Raises:
        AccessError: It cannot be read, or the change is not possible.
        OutputError: It belongs to another user.
        OSError: It cannot be written; the old content is still there.
    """
    place = file.resolve()
    with locked(place.with_name(f".{place.name}.lock")):
        if may_be_new and not place.exists():
            replace(place, change(b""))
            return ""
        content = change(_content(place))
        before = place.stat()
        if hasattr(os, "geteuid") and os.geteuid() not in (0, before.st_uid):
            raise OutputError(f"{file} belongs to another user", fix="run this as that user, or as root")
        replace(place, content, mode=stat.S_IMODE(before.st_mode) & 0o755)
        if hasattr(os, "chown"):
            try:
                os.chown(place, before.st_uid, before.st_gid)
            except OSError:
                return f"the group of {file} has changed"
    return ""


def _warn(output: Output, remark: str) -> None:
    if remark:
        output.message(("warning:", STYLES["warning"]), f" {remark}")


def _content(file: Path) -> bytes:
    return read_owner_writable(file, most=MAX_SIZE, what="token file", is_private=True)


def _listed(kind: str, values: Sequence[str]) -> str:
    return f"{kind}s {', '.join(values)}" if values else f"no {kind}s"


def _expiry_words(one: Token) -> str:
    if one.expires is None:
        return "does not expire"
    return f"{'expired' if _is_expired(one) else 'expires'} {format_time(one.expires)}"


def _is_expired(one: Token) -> bool:
    return one.expires is not None and datetime.now(UTC) >= one.expires


def _to_json(one: Token) -> dict[str, object]:
    return {
        "name": one.name,
        "groups": list(one.groups),
        "scopes": list(one.scopes),
        "expires": None if one.expires is None else format_time(one.expires),
        "expired": _is_expired(one),
    }
