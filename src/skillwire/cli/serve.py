"""`skillwire serve`: publish folders of skills over MCP."""

import logging
import os
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
from skillwire.cli.doors import DoorOptions, parsed_address
from skillwire.cli.failures import MisuseError, OutputError
from skillwire.cli.folders import Folder
from skillwire.cli.options import FollowLinks, Json, Verbose, new_app
from skillwire.errors import DuplicateSkillError, InvalidUriError, SourceError
from skillwire.runner import Policy, RunRecord
from skillwire.runner.policyfile import load_policy
from skillwire.server.app import HttpApp
from skillwire.server.dialects.speaking import chosen
from skillwire.server.http import Door, listen_on, run_http, serve_http, url_of
from skillwire.server.listing import Listing
from skillwire.server.pages import DEFAULT_PAGE_SIZE
from skillwire.server.skills import Skills
from skillwire.server.standalone import Offer
from skillwire.server.stdio import serve_stdio
from skillwire.server.workers import serve_with_workers
from skillwire.sources import Source
from skillwire.wire.dialect import Dialect

_MAX_WORKERS = 64

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
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ask for tokens: those of `skillwire token`.", show_default=False),
    ] = None,
    oidc: Annotated[
        str, typer.Option(metavar="ISSUER", help="Ask for signed tokens of this issuer.", show_default=False)
    ] = "",
    audience: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For whom signed tokens must be; --public-url by default.",
            show_default=False,
        ),
    ] = "",
    access: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Which callers see which skills (TOML).", show_default=False),
    ] = None,
    public_url: Annotated[
        str,
        typer.Option(metavar="URL", help="Where clients find the endpoint, if not here.", show_default=False),
    ] = "",
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Let in who shows no credential.")
    ] = False,
    rate: Annotated[
        str,
        typer.Option(
            metavar="N[/BURST]", help="Requests a second that each caller may make.", show_default=False
        ),
    ] = "",
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve HTTPS with this certificate chain.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's key.", show_default=False)
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="A proxy that tells truly where requests come from; may be repeated.",
            show_default=False,
        ),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Write a line of JSON for each request to standard error.")
    ] = False,
    pin: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="List what is below, however much there is.", show_default=False),
    ] = None,
    unlisted: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Serve what is below without listing it.", show_default=False),
    ] = None,
    list_most: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Above so many skills, list only pinned ones.", show_default=False
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

    Over HTTP there is a page for people at /. On an address that others can
    reach, callers must show a token, or --allow-anonymous says that they need
    not. SIGHUP reads tokens, rules and the certificate again.
    """
    options = DoorOptions(
        token_file,
        oidc,
        audience,
        access,
        public_url,
        allow_anonymous,
        rate,
        tls_cert,
        tls_key,
        tuple(proxy or ()),
        access_log,
    )
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
            listing=_listing(pin or (), unlisted or (), list_most),
            # For measurements only: shows what the plain path of the SDK would cost.
            is_fast=os.environ.get("SKILLWIRE_FAST") != "0",
        )
        _set_up_audit(is_wanted=scripts)
        try:
            if http:
                _over_http(answer, offer, http, options, workers=workers, stdio=stdio)
            else:
                _over_stdio(answer, offer, options, workers=workers, stdio=stdio)
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


def _listing(pins: Sequence[str], unlisted: Sequence[str], most: int | None) -> Listing:
    try:
        return Listing(tuple(pins), tuple(unlisted), most)
    except InvalidUriError as error:
        raise MisuseError(
            f"--pin or --unlisted cannot be used: {error}", fix="write it like acme/billing"
        ) from error


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


def _over_stdio(answer: Answer, offer: Offer, options: DoorOptions, *, workers: int, stdio: bool) -> None:
    if options.given:
        raise MisuseError(
            f"{options.given} is about HTTP, and who started this program is not asked who they are",
            fix="serve with --http 127.0.0.1:8000, or leave it out",
        )
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
        partial(
            serve_stdio, offer, on_ready=lambda ready: _announce(answer, _count(ready.skills), "over stdio")
        )
    )


def _over_http(
    answer: Answer, offer: Offer, address: str, options: DoorOptions, *, workers: int, stdio: bool
) -> None:
    if stdio:
        raise MisuseError("--stdio and --http exclude each other", fix="leave out one of them")
    host, port = parsed_address(address)
    door = options.door(host)
    with _listening(address, host, port) as listener:
        announce = partial(_announce_url, answer, url=url_of(listener, door), workers=workers)
        if workers == 1:
            run_http(
                partial(serve_http, offer, listener, door, on_ready=lambda skills: announce(_count(skills)))
            )
            return
        ready = partial(announce, anyio.run(_prepare, offer, door))
        prepare = partial(_set_up_worker, verbose=answer.verbose, scripts=offer.scripts is not None)
        if not serve_with_workers(offer, listener, door, count=workers, on_ready=ready, prepare=prepare):
            raise SourceError("the workers keep failing", fix="run with one worker to see why")


async def _prepare(offer: Offer, door: Door) -> int:
    """Open everything once, so that mistakes show before any worker starts, and their scans are short."""
    async with HttpApp(offer, host=door.host, access=door.access).open() as app:
        return _count(app.skills)


def _count(skills: Skills) -> int:
    return len(skills.catalog.snapshot.entries)


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


def _explain(answer: Answer, error: DuplicateSkillError) -> None:
    for uri, places in error.claims.items():
        answer.word(f"{uri} comes from:")
        _print_places(answer, places)


def _print_places(answer: Answer, places: Sequence[str]) -> None:
    for place in places:
        answer.word(place, indent=2, wrap=False)
