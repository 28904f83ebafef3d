"""The first answer over standard input and output, written before the MCP SDK is imported.

Some clients send their first request to a model without a server that takes a
second to answer `initialize`. So a thread answers the first message of the
client, `initialize` or `server/discover`, while the main thread imports the SDK
and opens the skills. Only a message of the usual form is answered here, for
options whose answer is known at the start; the SDK answers everything else. It
is also given the message that was answered, and its own answer is not sent.
"""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from skillwire.core import Dialect, JsonDict, SkillError, __version__, encode
from skillwire.server.config import OptionLayers
from skillwire.server.early import (
    EarlyAnswers,
    are_usual_capabilities,
    is_usual_handshake,
    is_usual_info,
    start_answering,
    usual_request,
)
from skillwire.server.options import (
    OPTIONS,
    HttpOptions,
    ServeOptions,
    ValueKind,
    implied_name,
    is_server_name,
)
from skillwire.server.visibility import EVERYTHING_LISTED, general_summary, summary_of
from skillwire.sources.combined import merge, reserved_entries
from skillwire.sources.directory.tree import exceeds, preview_tree
from skillwire.wire.core import EXTENSION, SETTINGS
from skillwire.wire.execute import CAPABILITY, SCRIPTS
from skillwire.wire.index import INDEX_URI

MOST_SKILLS: Final = 200
MOST_FOLDERS: Final = 2_000
"""With more skills or folders than these, a client over stdio is answered before they are scanned."""

_MODERN_VERSION: Final = "2026-07-28"
_META: Final = "io.modelcontextprotocol/"
_INDEXES: Final = frozenset({Dialect.INDEX_JUNE, Dialect.INDEX_APRIL})
_DIALECTS: Final = _INDEXES | {Dialect.LIST_MARCH, Dialect.PRIMITIVE, Dialect.EXEC, Dialect.PROMPT}
# Options of the command that do not change the answer.
_SWITCHES: Final = frozenset({"-v", "--verbose", "--json"})


class EarlyHandshake:
    """Answers the first message of a client, if that can be done without the SDK."""

    def __init__(self, options: ServeOptions, summary: str) -> None:
        self._options = options
        self._info = {"name": options.server_name, "version": __version__}
        self._instructions = {"instructions": summary} if summary else {}

    def answer(self, line: bytes) -> bytes | None:
        """Return the answer to the first message of a client; None if the SDK must answer it."""
        request = usual_request(line)
        result = None if request is None else self._result(request["method"], request["params"])
        if request is None or result is None:
            return None
        return encode({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def _result(self, method: object, params: JsonDict) -> JsonDict | None:
        if method == "initialize" and is_usual_handshake(params):
            return {
                "capabilities": _capabilities(self._options, is_modern=False),
                "protocolVersion": params["protocolVersion"],
                "serverInfo": self._info,
                **self._instructions,
            }
        if method == "server/discover" and _is_usual_envelope(params):
            return {
                "cacheScope": "private",
                "capabilities": _capabilities(self._options, is_modern=True),
                "resultType": "complete",
                "supportedVersions": [_MODERN_VERSION],
                "ttlMs": 0,
                "_meta": {f"{_META}serverInfo": self._info},
                **self._instructions,
            }
        return None


def answer_early(args: Sequence[str]) -> None:
    """Answer the first message on standard input, if `skillwire serve` with `args` would serve it.

    Nothing is reported: the command finds again what is wrong with the options, and reports it.
    """
    if sys.platform == "win32" or os.environ.get("SKILLWIRE_FAST") == "0":
        return
    # Until the command sets up logging, warnings would be printed as they are.
    logging.getLogger("skillwire").addHandler(logging.NullHandler())
    with suppress(SkillError, OSError, ValueError):
        early = early_handshake(args)
        if early is not None:
            start_answering(EarlyAnswers(early.answer, only_first=True))


def early_handshake(args: Sequence[str]) -> EarlyHandshake | None:
    """Return the first answers of `skillwire serve` with `args`; None if they are not known at its start.

    Raises:
        SkillError: The options cannot be used, or the skills cannot be scanned.
    """
    options = typed_options(args)
    if options is None or not _is_known_at_start(options):
        return None
    options = with_fixed_summary(replace(options, default_name=implied_name(options)))
    summary = options.summary or _scanned_summary(options)
    return EarlyHandshake(options, summary) if summary is not None and options.server_name else None


def with_fixed_summary(options: ServeOptions) -> ServeOptions:
    """Return options whose instructions name no skills if there are too many to scan before an answer.

    Those of a catalog are not named either: they change while it is served.
    """
    if not options.instructions:
        return options
    if not options.catalog:
        is_scanned = options.upstream is not None or options.listing != EVERYTHING_LISTED
        folders, links = options.folders, options.follow_links
        if is_scanned or not exceeds(folders, MOST_SKILLS, MOST_FOLDERS, follow_links=links):
            return options
    return replace(options, summary=general_summary(has_find_tool=options.find))


def _scanned_summary(options: ServeOptions) -> str | None:
    """Return the summary of few skills; None if not all of them are served as they are found.

    Raises:
        SkillError: They cannot be scanned.
    """
    if not options.instructions:
        return ""
    trees = [
        preview_tree(folder, prefix=options.prefix, follow_links=options.follow_links)
        for folder in options.folders
    ]
    parts = [tree.scan().snapshot for tree in trees]
    found = merge(parts)
    is_reserved = any(reserved_entries(part, [INDEX_URI]) for part in parts)
    if found.refused or is_reserved or any(tree.unsettled for tree in trees):
        return None
    return summary_of(options.listing.of(found.entries), has_find_tool=options.find)


_FLAGS: Final = {
    spelled: (option.name, value)
    for option in OPTIONS.values()
    if option.on_command_line and option.kind is ValueKind.FLAG
    for spelled, value in ((f"--{option.name}", True), (option.flag, not option.default))
}
"""The flags of the command line, each with its option and value."""


def typed_options(args: Sequence[str]) -> ServeOptions | None:
    """Return the options of a command line of the usual form; None for any other.

    Raises:
        SkillError: The configuration file cannot be used.
    """
    typed: dict[str, Any] = {}
    config: Path | None = None
    words = iter(args)
    for word in words:
        spelled, equals, value = word.partition("=")
        if word and not word.startswith("-"):
            typed["folders"] = (*typed.get("folders", ()), Path(word))
        elif word in _FLAGS:
            name, typed_value = _FLAGS[word]
            typed[name] = typed_value
        elif word not in _SWITCHES:
            value = value if equals else next(words, "")
            if not value or value.startswith("-"):
                return None
            if spelled == "--config":
                config = Path(value)
            elif spelled in ("--name", "--catalog"):
                typed[spelled.removeprefix("--")] = value
            elif spelled == "--dialect":
                typed["dialect"] = (*typed.get("dialect", ()), value)
            else:
                return None
    return OptionLayers(typed, config).read()


def _is_known_at_start(options: ServeOptions) -> bool:
    """Return whether the options can be served over stdio, with an answer that depends on no more."""
    dialects = frozenset(options.dialect)
    return (
        bool(options.folders) != bool(options.catalog)
        and all(map(os.path.isdir, options.folders))
        and options.upstream is None
        and not options.strict
        and not options.scripts
        and options.script_policy is None
        and options.endpoint == HttpOptions()
        and dialects <= _DIALECTS
        and not dialects >= _INDEXES
        and is_server_name(options.name)
        and sys.stdin is not None
        and (options.stdio or not sys.stdin.isatty())
    )


def _capabilities(options: ServeOptions, *, is_modern: bool) -> JsonDict:
    """Return the capabilities that the SDK and the dialects declare, in the same order."""
    extensions = {"extensions": {EXTENSION: dict(SETTINGS)}}
    found: JsonDict = {"completions": {}}
    if is_modern:
        found |= extensions
    if Dialect.PROMPT in options.dialect:
        found["prompts"] = {"listChanged": True}
    found["resources"] = {"listChanged": True, "subscribe": True}
    if options.find:
        found["tools"] = {"listChanged": is_modern}
    if not is_modern:
        found |= extensions
    if Dialect.PRIMITIVE in options.dialect or Dialect.EXEC in options.dialect:
        found[CAPABILITY] = {"listChanged": not is_modern}
    if Dialect.EXEC in options.dialect:
        found[CAPABILITY][SCRIPTS] = False
    return found


def _is_usual_envelope(params: JsonDict) -> bool:
    meta = params.get("_meta")
    if len(params) != 1 or not isinstance(meta, dict):
        return False
    members = dict(cast(JsonDict, meta))
    return (
        members.pop(f"{_META}protocolVersion", None) == _MODERN_VERSION
        and are_usual_capabilities(members.pop(f"{_META}clientCapabilities", None))
        and (not members or is_usual_info(members.pop(f"{_META}clientInfo", None)))
        and not members
    )
