"""`skillwire serve`: publish folders of skills, or a catalog, over MCP."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import anyio
import typer
from typer.core import TyperCommand

import skillwire.catalog
import skillwire.server
from skillwire.cli.catalog_names import catalog_url, shown_url
from skillwire.cli.command import (
    STYLES,
    Json,
    MisuseError,
    Output,
    OutputError,
    Verbose,
    command_output,
    new_app,
    plural,
    set_up_logging,
)
from skillwire.cli.folders import NamedFolder
from skillwire.core import (
    Dialect,
    DuplicateSkillError,
    InvalidUriError,
    SourceError,
    parse_dialects,
    quoted,
    visible,
)
from skillwire.runner import RunRecord
from skillwire.server.config import OptionLayers, config_text
from skillwire.server.options import (
    LONGEST_NAME,
    OPTIONS,
    HttpOptions,
    Option,
    OptionError,
    Publishing,
    ServeOptions,
    ValueKind,
    implied_name,
    is_server_name,
    label,
    values_of,
)
from skillwire.sources.snapshot import Source

if TYPE_CHECKING:
    from skillwire.server import Skills


# The command line of `skillwire serve`, made from the options of `server/options.py`.


KEYS: Final = tuple(name for name, option in OPTIONS.items() if not option.on_command_line)
"""The options that only a configuration file can set."""

EPILOG: Final = (
    f"Further keys of the configuration file: {', '.join(KEYS)}. "
    "The page docs/publishing/serve-config.md explains all of them."
)


def option(name: str) -> Any:
    """Return what Typer needs to know about an option that can be typed."""
    found = OPTIONS[name]
    assert found.on_command_line, "what is typed is marked in the model"
    if found.kind is ValueKind.PATHS:
        return typer.Argument(metavar=found.metavar, help=found.help, show_default=False)
    typed = f"--{name.replace('_', '-')}"
    if found.kind is ValueKind.FLAG:
        return typer.Option(f"{typed}/{found.flag}" if found.default else typed, help=found.help)
    is_bounded = found.kind is ValueKind.WHOLE
    return typer.Option(
        typed,
        metavar=found.metavar,
        help=found.help,
        min=found.least if is_bounded else None,
        max=found.most if is_bounded else None,
        show_default=False,
    )


def typed_values(parameters: Mapping[str, object]) -> dict[str, object]:
    """Return the options among the parameters of the command that were typed, by their names."""
    found: dict[str, object] = {}
    for name, value in parameters.items():
        if name in OPTIONS and value is not None and value != []:
            found[name] = tuple(cast("list[object]", value)) if isinstance(value, list) else value
    return found


class ServeCommand(TyperCommand):
    """The command, with an error message for options that only the configuration file can set."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            name = getattr(error, "option_name", None)
            configured = _config_only_option(name) if isinstance(name, str) else None
            if configured is None:
                raise
            line = (
                configured.line
                if name == configured.flag
                else f"{configured.name} = {str(configured.default).lower()}"
            )
            misuse: Any = error  # The class of usage errors is not public in Typer.
            misuse.message = f"{name} is set in the configuration file: {line} (serve with --config FILE)"
            misuse.possibilities = None
            raise


def _config_only_option(typed: str) -> Option | None:
    """Return the option of the configuration file that was typed, if it is one."""
    name = typed.removeprefix("--").removeprefix("no-").replace("-", "_")
    found = OPTIONS.get(name)
    return None if found is None or found.on_command_line else found


_MOST_SAME_NAMES = 5

app = new_app()


@app.command(cls=ServeCommand, epilog=EPILOG)
def serve(
    folders: Annotated[list[Path] | None, option("folders")] = None,
    catalog: Annotated[str | None, option("catalog")] = None,
    stdio: Annotated[bool | None, option("stdio")] = None,
    http: Annotated[str | None, option("http")] = None,
    workers: Annotated[int | None, option("workers")] = None,
    name: Annotated[str | None, option("name")] = None,
    watch: Annotated[bool | None, option("watch")] = None,
    dialect: Annotated[list[str] | None, option("dialect")] = None,
    upstream: Annotated[Path | None, option("upstream")] = None,
    scripts: Annotated[bool | None, option("scripts")] = None,
    token_file: Annotated[Path | None, option("token_file")] = None,
    public_url: Annotated[str | None, option("public_url")] = None,
    allow_anonymous: Annotated[bool | None, option("allow_anonymous")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read options from this file (TOML); the command line takes precedence.",
            show_default=False,
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all options as a configuration file, and exit.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Publish folders of skills, or a catalog, over MCP.

    Without --http it serves over standard input and output, as a program that
    an MCP client starts. Changes in the folders are published while it runs.

    With --catalog it serves what is published in a catalog. Any number of such
    servers may serve one catalog, and all of them answer alike.

    With --upstream it is a gateway: it serves the skills of every server in
    FILE below that server's name, whatever its dialect.

    With --scripts, clients may run the scripts of skills. Each run has its
    own sandbox, and is logged on standard error. Without a working sandbox,
    no script is run.

    To listen on an address that other machines can reach, it needs
    --token-file or --allow-anonymous. Over HTTP there is an HTML page of all
    skills at /, and SIGHUP reloads the configuration file, tokens, access
    rules and certificate.
    """
    typed = typed_values(locals())
    with command_output("serve", json=json, verbose=verbose) as output:
        layers = OptionLayers(typed, config)
        try:
            options = layers.read()
            _check(options, is_printed=print_config)
            if print_config:
                _print_config(output, options)
            else:
                _serve(output, options, layers)
        except OptionError as error:
            raise MisuseError(str(error), fix=error.fix) from error


def _check(options: ServeOptions, *, is_printed: bool) -> None:
    """Check the options together, before anything is opened.

    Raises:
        MisuseError: There is nothing to serve, or the transport cannot be used so.
        OptionError: Options contradict each other.
        SkillError: One of them cannot be used.
    """
    if options.catalog:
        _check_catalog(options)
    elif not options.folders and options.upstream is None and not is_printed:
        raise MisuseError(
            "there is nothing to serve",
            fix="name a folder of skills, a catalog with --catalog URL, or servers with --upstream mcp.json",
        )
    if not is_printed:
        for folder in options.folders:
            NamedFolder.named(folder)
    _check_name(options.name)
    parse_dialects(options.dialect)
    _ = options.listing, options.script_rules
    if options.endpoint.http:
        if options.stdio:
            raise MisuseError("--stdio and --http exclude each other", fix="leave out one of them")
        options.endpoint.check()
    elif not is_printed:
        _check_stdio(options)


def _check_catalog(options: ServeOptions) -> None:
    catalog_url(options.catalog)
    if options.folders or options.upstream is not None:
        raise MisuseError(
            "a catalog is served alone", fix="publish the folders into the catalog with `skillwire publish`"
        )
    if options.prefix:
        raise MisuseError(
            "prefix is for folders, and a catalog has its own paths", fix="leave it out, or publish with it"
        )


def _check_stdio(options: ServeOptions) -> None:
    endpoint = options.endpoint
    if endpoint.workers > 1:
        raise MisuseError(
            "several workers can share an HTTP port, not standard input", fix="leave out --workers"
        )
    defaults = values_of(HttpOptions())
    given = next((name for name, value in values_of(endpoint).items() if value != defaults[name]), "")
    if given:
        raise MisuseError(
            f"{label(given)} is for HTTP; over standard input and output there is one client",
            fix="serve with --http 127.0.0.1:8000, or leave it out",
        )
    if Dialect.WELL_KNOWN in options.dialect:
        raise MisuseError(
            "well-known is a web site, so it needs --http", fix="serve with --http 127.0.0.1:8000"
        )
    if sys.stdin is None:
        raise MisuseError(
            "standard input is closed, so no client can be served",
            fix="serve over HTTP with --http 127.0.0.1:8000",
        )
    if not options.stdio and sys.stdin.isatty():
        raise MisuseError(
            "standard input is a terminal, and no MCP client",
            fix="serve over HTTP with --http 127.0.0.1:8000, or let an MCP client start this command",
        )


def _print_config(output: Output, options: ServeOptions) -> None:
    options = replace(options, catalog=shown_url(options.catalog))
    if output.json:
        config = {name: _json_value(value) for name, value in values_of(options).items()}
        output.document({"config": config})
    else:
        typer.echo(config_text(options), nl=False)


def _json_value(value: object) -> object:
    if isinstance(value, tuple):
        return [str(item) for item in cast("tuple[object, ...]", value)]
    return str(value) if isinstance(value, Path) else value


def _serve(output: Output, options: ServeOptions, layers: OptionLayers) -> None:
    running = replace(
        options,
        default_name=implied_name(options),
        policy=options.script_rules,
        more_sources=_more_sources(options),
        publishing=_publishing(options),
        is_replicated=bool(options.catalog) and catalog_url(options.catalog).startswith("postgres"),
        # For measurements only: shows what the plain path of the SDK would cost.
        is_fast=os.environ.get("SKILLWIRE_FAST") != "0",
    )
    _set_up_audit(is_wanted=options.scripts)
    try:
        if options.endpoint.http:
            _over_http(output, running, layers)
        else:
            ready = partial(_announce, output, where="over stdio")
            anyio.run(
                partial(
                    skillwire.server.serve_stdio,
                    running,
                    on_ready=lambda server: ready(_served_counts(server.skills, running)),
                )
            )
    except DuplicateSkillError as error:
        _explain(output, error)
        raise
    except InvalidUriError as error:
        fix = "write it like acme/billing"
        raise MisuseError(f"the prefix {options.prefix} cannot be used: {error}", fix=fix) from error


def _check_name(name: str) -> None:
    if not is_server_name(name):
        raise MisuseError(
            f"{quoted(name)} cannot be the name of a server",
            fix=f"use up to {LONGEST_NAME} characters on one line, all of them visible",
        )


def _set_up_audit(*, is_wanted: bool) -> None:
    """Log a line per run, verbose or not: it is the audit trail of the operator."""
    if is_wanted:
        logging.getLogger(RunRecord.__module__).setLevel(logging.INFO)


def _set_up_worker(*, verbose: bool, scripts: bool) -> None:
    set_up_logging(verbose=verbose)
    _set_up_audit(is_wanted=scripts)


def _more_sources(options: ServeOptions) -> Callable[[], Sequence[Source]] | None:
    """Return what makes the source of a catalog, or those of a gateway."""
    if options.catalog:
        return partial(_catalog_sources, catalog_url(options.catalog))
    if options.upstream is None:
        return None
    # The host takes memory and time that a server of folders does not need.
    module = import_module("skillwire.gateway")
    gateway = module.Gateway(options.upstream.absolute(), archives=options.archives)
    gateway.servers()
    return gateway.sources


def _publishing(options: ServeOptions) -> Callable[[], AbstractAsyncContextManager[Publishing]] | None:
    """Return what opens the catalog for callers who may publish to it."""
    if not options.catalog:
        return None
    return partial(skillwire.catalog.open_publishing, catalog_url(options.catalog))


def _catalog_sources(url: str) -> Sequence[Source]:
    """Return the source of a catalog, in the process that serves it."""
    return (skillwire.catalog.CatalogSource(url),)


def _over_http(output: Output, options: ServeOptions, layers: OptionLayers) -> None:
    endpoint = options.endpoint
    reread = None if layers.file is None else layers.read
    with _listening(endpoint) as listener, skillwire.server.EarlyHealth(listener) as early:
        if endpoint.workers == 1 and endpoint.tls is None:
            early.start()
        announce = partial(
            _announce_url, output, url=skillwire.server.url_of(listener, endpoint), workers=endpoint.workers
        )
        if endpoint.workers == 1:
            skillwire.server.run_http(
                partial(
                    skillwire.server.serve_http,
                    options,
                    listener,
                    early=early,
                    reread=reread,
                    on_ready=lambda skills: announce(_served_counts(skills, options)),
                )
            )
            return
        ready = partial(announce, anyio.run(_prepare, options))
        prepare = partial(_set_up_worker, verbose=output.verbose, scripts=options.scripts)
        if not skillwire.server.serve_with_workers(
            options, listener, reread=reread, on_ready=ready, prepare=prepare
        ):
            raise SourceError("the workers keep failing", fix="run with one worker to see why")


async def _prepare(options: ServeOptions) -> _ServedCounts:
    """Open everything once, so that errors show before a worker starts, and the workers' scans are short."""
    endpoint = options.endpoint
    async with skillwire.server.HttpApp(options, host=endpoint.host, access=endpoint.access).open() as app:
        return _served_counts(app.skills, options)


@dataclass(frozen=True, slots=True)
class _ServedCounts:
    """What is served when a server starts: how many skills, and the URIs of those that share a name."""

    count: int
    same_names: Mapping[str, Sequence[str]]


def _served_counts(skills: Skills, options: ServeOptions) -> _ServedCounts:
    by_name: dict[str, list[str]] = {}
    entries = skills.source.snapshot.entries
    # In a catalog, names are unique in a namespace, and there are too many skills to compare.
    for entry in () if options.catalog else entries:
        by_name.setdefault(entry.name, []).append(entry.uri.published)
    return _ServedCounts(
        len(entries), {name: uris for name, uris in by_name.items() if name and len(uris) > 1}
    )


def _announce(output: Output, counts: _ServedCounts, where: str, page: str = "") -> None:
    output.message(f"serving {plural(counts.count, 'skill')} {where}", wrap=False)
    if page:
        output.message(f"open {page} in a browser to read them", wrap=False)
    for name, uris in list(counts.same_names.items())[:_MOST_SAME_NAMES]:
        output.message(
            ("warning:", STYLES["warning"]),
            f" {plural(len(uris), 'skill')} are called {quoted(name)}, and some clients distinguish "
            "skills by name alone; give each a name of its own:",
        )
        _print_places(output, [visible(uri) for uri in uris[:_MOST_SAME_NAMES]])
    more = len(counts.same_names) - _MOST_SAME_NAMES
    if more > 0:
        output.message(("warning:", STYLES["warning"]), f" {plural(more, 'other name')} are shared too")


def _announce_url(output: Output, counts: _ServedCounts, *, url: str, workers: int) -> None:
    page = url.removesuffix(skillwire.server.PATH) + "/"
    _announce(output, counts, f"at {url}", page)
    if output.json:
        output.document({"url": url, "page": page, "skills": counts.count, "workers": workers})
        sys.stdout.flush()


def _listening(endpoint: HttpOptions) -> socket.socket:
    try:
        return skillwire.server.listen_on(*endpoint.address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"cannot listen on {endpoint.http}: {reason}", fix="choose another port; 0 takes any that is free"
        ) from error


def _explain(output: Output, error: DuplicateSkillError) -> None:
    for uri, places in error.claims.items():
        output.message(f"{uri} comes from:")
        _print_places(output, places)


def _print_places(output: Output, places: Sequence[str]) -> None:
    for place in places:
        output.message(place, indent=2, wrap=False)
