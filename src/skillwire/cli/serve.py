"""`skillwire serve`: publish folders of skills over MCP."""

import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import anyio
import typer

from skillwire.cli.answer import Answer, answering, plural, set_up_logging
from skillwire.cli.failures import MisuseError, OutputError
from skillwire.cli.folders import Folder
from skillwire.cli.options import FollowLinks, Json, Verbose, new_app
from skillwire.errors import DuplicateSkillError, InvalidUriError, SourceError
from skillwire.runner import Policy, RunRecord
from skillwire.runner.policyfile import load_policy
from skillwire.server.dialects.speaking import chosen
from skillwire.server.http import listen_on, run_http, serve_http, url_of
from skillwire.server.pages import DEFAULT_PAGE_SIZE
from skillwire.server.standalone import Offer, Standalone
from skillwire.server.stdio import serve_stdio
from skillwire.server.workers import serve_with_workers
from skillwire.sources import Source
from skillwire.wire.dialect import Dialect

_MAX_WORKERS = 64
_MAX_PORT = 65_535

app = new_app()


@app.command()
def serve(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", help="Folders of skills.", show_default=False)
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve the program that started this one; needs no terminal.")
    ] = False,
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve over HTTP, at /mcp.", show_default=False)
    ] = "",
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_WORKERS, help="Processes to serve HTTP with.")
    ] = 1,
    prefix: Annotated[
        str, typer.Option(metavar="PATH", help="Put this path before every skill's.", show_default=False)
    ] = "",
    page_size: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Skills to a page of a listing.")
    ] = DEFAULT_PAGE_SIZE,
    ttl: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, max=31_536_000, help="How long clients may take an answer for current."
        ),
    ] = 60,
    strict: Annotated[
        bool, typer.Option("--strict", help="Do not start when a skill cannot be published.")
    ] = False,
    no_watch: Annotated[bool, typer.Option("--no-watch", help="Do not look for changes.")] = False,
    follow_links: FollowLinks = False,
    dialect: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Speak an older dialect too; may be repeated.", show_default=False),
    ] = None,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Repeat frontmatter in the metadata of resources.")
    ] = False,
    find: Annotated[
        bool, typer.Option("--find", help="Offer a tool, find_skills, that finds skills by words.")
    ] = False,
    upstream: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Serve the skills of these MCP servers (mcp.json) too.", show_default=False
        ),
    ] = None,
    archives: Annotated[
        bool, typer.Option("--archives", help="Unpack what upstream servers serve as archives.")
    ] = False,
    scripts: Annotated[
        bool, typer.Option("--scripts", help="Run scripts for clients, in a sandbox; speaks exec too.")
    ] = False,
    script_policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What scripts may have: limits, and for single ones network and secrets.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Publish folders of skills over MCP.

    Without --http it speaks over standard input and output, as a program that
    an MCP client starts. Changes in the folders are published while it runs.

    With --upstream it is a gateway: the skills of every server in FILE are
    served below that server's name, whichever dialect it speaks.

    With --scripts, clients may run the scripts of skills here. Each run has a
    sandbox of its own, and leaves a line on standard error. Where no sandbox
    can be had, none is run.
    """
    with answering("serve", json=json, verbose=verbose) as answer:
        if not folders and upstream is None:
            raise MisuseError(
                "there is nothing to serve",
                fix="name a folder of skills, or servers with --upstream mcp.json",
            )
        policy = _policy(scripts, script_policy)
        offer = Offer(
            folders=tuple(Folder.named(folder).typed for folder in folders or ()),
            more=None if upstream is None else _upstreams(upstream, archives=archives),
            prefix=prefix,
            page_size=page_size,
            ttl=ttl,
            watch=not no_watch,
            strict=strict,
            follow_links=follow_links,
            dialects=tuple(chosen(dialect or ())),
            mirror=mirror,
            find_tool=find,
            scripts=policy,
            # For measurements only: shows what the plain path of the SDK would cost.
            is_fast=os.environ.get("SKILLWIRE_FAST") != "0",
        )
        _set_up_audit(is_wanted=scripts)
        try:
            if http:
                _over_http(answer, offer, http, workers=workers, stdio=stdio)
            else:
                _over_stdio(answer, offer, workers=workers, stdio=stdio)
        except DuplicateSkillError as error:
            _explain(answer, error)
            raise
        except InvalidUriError as error:
            fix = "write it like acme/billing"
            raise MisuseError(f"--prefix {prefix} cannot be used: {error}", fix=fix) from error


def _policy(scripts: bool, file: Path | None) -> Policy | None:
    if scripts:
        return Policy() if file is None else load_policy(file)
    if file is not None:
        raise MisuseError("--script-policy is for servers that run scripts", fix="add --scripts")
    return None


def _set_up_audit(*, is_wanted: bool) -> None:
    """Let the line about each run be seen, verbose or not: it is for who answers for this machine."""
    if is_wanted:
        logging.getLogger(RunRecord.__module__).setLevel(logging.INFO)


def _set_up_worker(*, verbose: bool, scripts: bool) -> None:
    set_up_logging(verbose=verbose)
    _set_up_audit(is_wanted=scripts)


def _upstreams(config: Path, *, archives: bool) -> Callable[[], Sequence[Source]]:
    """Return what makes the sources of a gateway."""
    # The host's half takes memory and time that a server of folders can do without.
    gateway = import_module("skillwire.gateway").Gateway(config.absolute(), archives=archives)
    gateway.servers()
    return gateway.sources


def _over_stdio(answer: Answer, offer: Offer, *, workers: int, stdio: bool) -> None:
    if Dialect.WELL_KNOWN in offer.dialects:
        raise MisuseError(
            "well-known is a web site, so it needs --http", fix="serve with --http 127.0.0.1:8000"
        )
    if sys.stdin is None:
        raise MisuseError(
            "standard input is closed, so no client can speak",
            fix="serve over HTTP with --http 127.0.0.1:8000",
        )
    if not stdio and sys.stdin.isatty():
        raise MisuseError(
            "standard input is a terminal, which speaks no MCP",
            fix="serve over HTTP with --http 127.0.0.1:8000, or let an MCP client start this command",
        )
    if workers > 1:
        raise MisuseError(
            "several workers can share an HTTP port, not standard input", fix="leave out --workers"
        )
    anyio.run(
        partial(serve_stdio, offer, on_ready=lambda ready: _announce(answer, _count(ready), "over stdio"))
    )


def _over_http(answer: Answer, offer: Offer, address: str, *, workers: int, stdio: bool) -> None:
    if stdio:
        raise MisuseError("--stdio and --http exclude each other", fix="leave out one of them")
    host, port = _parsed(address)
    with _listening(address, host, port) as listener:
        announce = partial(_announce_url, answer, url=url_of(listener, host), workers=workers)
        if workers == 1:
            run_http(
                partial(
                    serve_http, offer, listener, host=host, on_ready=lambda ready: announce(_count(ready))
                )
            )
            return
        ready = partial(announce, anyio.run(_prepare, offer))
        prepare = partial(_set_up_worker, verbose=answer.verbose, scripts=offer.scripts is not None)
        if not serve_with_workers(offer, listener, host=host, count=workers, on_ready=ready, prepare=prepare):
            raise SourceError("the workers keep failing", fix="run with one worker to see why")


async def _prepare(offer: Offer) -> int:
    """Open everything once, so that mistakes show before any worker starts, and their scans are short."""
    standalone = Standalone(offer)
    async with standalone.skills.open():
        return _count(standalone)


def _count(standalone: Standalone) -> int:
    return len(standalone.skills.catalog.snapshot.entries)


def _announce(answer: Answer, count: int, where: str) -> None:
    answer.word(f"serving {plural(count, 'skill')} {where}", wrap=False)


def _announce_url(answer: Answer, count: int, *, url: str, workers: int) -> None:
    _announce(answer, count, f"at {url}")
    if answer.json:
        answer.document({"url": url, "skills": count, "workers": workers})
        sys.stdout.flush()


def _listening(address: str, host: str, port: int) -> socket.socket:
    try:
        return listen_on(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"cannot listen on {address}: {reason}", fix="choose another port; 0 takes any that is free"
        ) from error


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _MAX_PORT:
        raise MisuseError(f"{address!r} is not HOST:PORT", fix="write it like 127.0.0.1:8000")
    return host, int(port)


def _explain(answer: Answer, error: DuplicateSkillError) -> None:
    for uri, places in error.claims.items():
        answer.word(f"{uri} comes from:")
        _print_places(answer, places)


def _print_places(answer: Answer, places: Sequence[str]) -> None:
    for place in places:
        answer.word(place, indent=2, wrap=False)
