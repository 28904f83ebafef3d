"""`skillwire add`: add a server to the configuration, under a label of the user's choice."""

import json as jsonlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from skillwire.cli.command import (
    AlreadyExistsError,
    Json,
    MisuseError,
    Output,
    TargetCommand,
    Verbose,
    command_in,
    command_output,
    new_app,
)
from skillwire.cli.hosting import SITE_PREFIX, Config, with_scheme
from skillwire.core import digest_of
from skillwire.host import (
    CONFIG_PATHS,
    ConfigError,
    FileTrust,
    ServerConfig,
    Storage,
    find_config,
    project_of,
    servers_of,
)
from skillwire.host.connect.config_edit import ConfigEdit, table_for
from skillwire.host.connect.config_file import folded, label_of, parse_json

app = new_app()


@app.command(cls=TargetCommand)
def add(
    context: typer.Context,
    label: Annotated[
        str,
        typer.Argument(metavar="LABEL", help="Label of the server; its skills are LABEL/NAME."),
    ],
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help="The server's URL, or well-known: followed by the URL of a web site. "
            "Give the command of a server to start after -- instead.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the server that has this label now.")
    ] = False,
    config: Config = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Add a server to the configuration.

    Writes it into .mcp.json, or into the configuration that this folder has
    already, keeps everything else there, and shows what was written. Nothing
    is started or contacted. Servers that were in the file before are not
    trusted by this: `skillwire trust` shows them and asks.
    """
    with command_output("add", json=json, verbose=verbose) as output:
        entry = _entry(label, url, command_in(context))
        path = config or find_config(Path.cwd()) or Path.cwd() / CONFIG_PATHS[0]
        _add(output, path, label, entry, is_forced=force)


def _entry(label: str, url: str | None, command: Sequence[str]) -> dict[str, object]:
    """Return the configuration entry for a server.

    Raises:
        MisuseError: The label or the target cannot be used, or there is none, or two.
    """
    _check_label(label)
    if (url is None) == (not command):
        raise MisuseError(
            "add needs either a URL or a command after --",
            fix=f"use `skillwire add {label} URL` or `skillwire add {label} -- COMMAND ARG...`",
        )
    if url is None:
        program, *arguments = command
        return {"command": program, "args": list(arguments)} if arguments else {"command": program}
    if url.startswith(SITE_PREFIX):
        return {"type": "well-known", "url": url.removeprefix(SITE_PREFIX)}
    if not re.match(r"https?://|\$\{", url):
        raise _no_url(label, url)
    return {"type": "http", "url": url}


def _check_label(label: str) -> None:
    try:
        usable = label_of(label)
    except ConfigError as error:
        raise MisuseError(
            f"{label} cannot be a label: {error}", fix="use a word of letters, digits, . _ and -"
        ) from error
    if usable != label:
        raise MisuseError(
            f"{label} cannot be a label: only letters, digits, . _ and - are allowed",
            fix=f"try {usable}",
        )


def _no_url(label: str, target: str) -> MisuseError:
    words = ("skillwire", "add", label)
    if Path(target).is_dir():
        fix = f"serve the folder: `{shlex.join((*words, '--', 'skillwire', 'serve', target))}`"
        return MisuseError(f"{target} is a folder, not the URL of a server", fix=fix)
    if address := with_scheme(target):
        fix = f"did you mean `{shlex.join((*words, address))}`?"
        return MisuseError(f"{target} does not start with http:// or https://", fix=fix)
    fix = f"use http://HOST/PATH or https://HOST/PATH; for a command: `{shlex.join((*words, '--', target))}`"
    return MisuseError(f"{target} is not the URL of a server", fix=fix)


def _add(output: Output, path: Path, label: str, entry: Mapping[str, object], *, is_forced: bool) -> None:
    edit = ConfigEdit.for_server(path, label, entry)
    before = _keys(edit.before, path)
    _check_free(path, label, entry, before, is_forced=is_forced)
    server = _usable(edit, label)
    others = [key for key in before if key != label]
    is_trusted = _is_trusted(path, edit.before, others)
    content = edit.before
    if content is None or before.get(label) != entry:
        edit.write()
        content = edit.after
    if is_trusted:
        FileTrust(Storage().state).trust(path, digest_of(content))
    _report(output, path, server, entry, is_new=label not in before, others=[] if is_trusted else others)


def _keys(content: bytes | None, path: Path) -> dict[str, object]:
    """Return the servers of a configuration, as they are written there."""
    if content is None:
        return {}
    document = cast(dict[str, object], parse_json(content, path.name))
    return cast(dict[str, object], document.get(table_for(document), {}))


def _check_free(
    path: Path, label: str, entry: Mapping[str, object], before: Mapping[str, object], *, is_forced: bool
) -> None:
    if label in before:
        if is_forced or before[label] == entry:
            return
        raise AlreadyExistsError(
            f"{_relative(path)} already has a server {label}: {jsonlib.dumps(before[label])}",
            fix="choose another label, or replace it with --force",
        )
    twin = next((key for key in before if folded(key) == folded(label)), None)
    if twin is not None:
        raise AlreadyExistsError(
            f"{_relative(path)} has a server {twin}, which is the same label", fix="choose another label"
        )


def _usable(edit: ConfigEdit, label: str) -> ServerConfig:
    """Return the server as the host will read it.

    Raises:
        ConfigError: The server cannot be used; nothing was written.
    """
    document = parse_json(edit.after, edit.path.name)
    found = servers_of(document, base=project_of(edit.path), environ=os.environ)
    for refusal in found.refused:
        if refusal.subject == label:
            raise ConfigError(refusal.detail, reference=label, fix=refusal.remedy)
    return next(server for server in found.servers if server.label == label)


def _is_trusted(path: Path, before: bytes | None, others: Sequence[str]) -> bool:
    """Return whether the user trusts everything else in the file; the server being added is trusted.

    A file with servers that the user has not agreed to stays untrusted as a whole.
    """
    if before is None or not others:
        return True
    return FileTrust(Storage().state).is_trusted(path, digest_of(before))


def _report(
    output: Output,
    path: Path,
    server: ServerConfig,
    entry: Mapping[str, object],
    *,
    is_new: bool,
    others: Sequence[str],
) -> None:
    shown = _relative(path)
    is_found = find_config(Path.cwd()) == path.absolute()
    if output.json:
        output.document(
            {
                "file": str(path.absolute()),
                "label": server.label,
                "entry": dict(entry),
                "replaced": not is_new,
                "trusted": not others,
            }
        )
        return
    output.line(("added" if is_new else "set", "bold green"), f"  {server.label} in {shown}", wrap=False)
    output.line(f'"{server.label}": {jsonlib.dumps(dict(entry), ensure_ascii=False)}', indent=2, wrap=False)
    options = () if is_found else ("--config", shown)
    if others and is_found:
        names = ", ".join(others[:5]) + (", …" if len(others) > 5 else "")
        output.message(
            ("note:", "yellow"),
            f" {shown} also has servers that you have not agreed to ({names}), so nothing in it is used yet",
        )
        output.message(("next:", "bold"), " skillwire trust", wrap=False)
    output.message(
        ("next:", "bold"), f" {shlex.join(('skillwire', 'list', server.label, *options))}", wrap=False
    )


def _relative(path: Path) -> str:
    return os.path.relpath(path)
