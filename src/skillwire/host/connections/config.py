"""Reading the configuration people already have: Claude Code, Claude Desktop, Cursor, VS Code.

A file that is none raises; a server that cannot be used costs only itself.
"""

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from skillwire.core.characters import visible
from skillwire.core.manifest import digest_of
from skillwire.host.connections.configfile import parse_json, read_bytes
from skillwire.host.connections.endpoints import ServerConfig
from skillwire.host.connections.entries import LONGEST_TITLE, Entry
from skillwire.host.connections.labels import folded, label_of
from skillwire.host.connections.variables import Variables
from skillwire.host.failures import ConfigError
from skillwire.host.refusals import Refusal

USUAL_PLACES: Final = (Path(".mcp.json"), Path(".cursor", "mcp.json"), Path(".vscode", "mcp.json"))
"""Where the configuration of a project lies, in the order in which it is looked for."""

_EDITOR_FOLDERS = frozenset({".cursor", ".vscode"})
_TABLES = ("mcpServers", "servers")


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a configuration that can be used, and why the others cannot.

    `digest` is that of the file's bytes, where they came from one.
    """

    servers: tuple[ServerConfig, ...] = ()
    refused: tuple[Refusal, ...] = ()
    digest: str = field(default="", compare=False)


def find_config(start: Path) -> Path | None:
    """Return the configuration that counts in a folder when none is named: the first of the usual places.

    Folders above are not looked at, so that nothing outside the folder
    decides what is started in it.
    """
    return next((start / place for place in USUAL_PLACES if os.path.lexists(start / place)), None)


def read_servers(path: Path, *, environ: Mapping[str, str] | None = None) -> Servers:
    """Read a configuration file such as `.mcp.json`.

    Raises:
        ConfigError: It cannot be read, is larger than 1 MiB, or is not such a file.
    """
    content = read_bytes(path)
    document = parse_json(content, path.name)
    found = servers_of(document, base=_folder_of(path), environ=os.environ if environ is None else environ)
    return replace(found, digest=digest_of(content))


def servers_of(document: object, *, base: Path, environ: Mapping[str, str]) -> Servers:
    """Take the servers from a parsed configuration; `base` is the folder of its project.

    A relative `cwd` or `envFile` starts at `base`, and `${workspaceFolder}` is `base`.

    Raises:
        ConfigError: The document has no object `mcpServers` or `servers`.
    """
    if not isinstance(document, dict):
        raise ConfigError("the configuration is no object")
    whole = cast(dict[str, object], document)
    keys = _table_of(whole)
    variables = Variables(base.absolute(), environ, whole.get("inputs"))
    rivals = _rivals(keys)
    found: list[ServerConfig] = []
    refused: list[Refusal] = []
    for key, value in keys.items():
        try:
            found.append(Entry(key, value, base, variables).server(rivals))
        except ConfigError as error:
            refused.append(Refusal.of(error, visible(key)[:LONGEST_TITLE]))
    return Servers(tuple(found), tuple(refused))


def _folder_of(path: Path) -> Path:
    """Return the folder of the project: editors keep their file in a folder of their own below it."""
    folder = path.absolute().parent
    return folder.parent if folder.name in _EDITOR_FOLDERS else folder


def _table_of(document: Mapping[str, object]) -> dict[str, object]:
    """Return the servers of a configuration, whatever it calls them."""
    tables = [name for name in _TABLES if name in document]
    if len(tables) > 1:
        raise ConfigError("the configuration has both `mcpServers` and `servers`", fix="keep one of them")
    if tables:
        table = document[tables[0]]
        if not isinstance(table, dict):
            raise ConfigError(f"the configuration has a `{tables[0]}` that is no object")
        return cast(dict[str, object], table)
    if "projects" in document:
        raise ConfigError(
            "the configuration has servers for single projects only, and those are not read",
            fix="put them into the project's `.mcp.json`, or into a `mcpServers` for all projects",
        )
    if "mcp" in document or "mcp.servers" in document:
        raise ConfigError(
            "the configuration has its servers among an editor's settings, where they are not read",
            fix="move them to `.vscode/mcp.json`, into an object `servers`",
        )
    raise ConfigError("the configuration has no object `mcpServers` or `servers`")


def _rivals(keys: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the keys that give each label; where there are several, none of them has it."""
    rivals: defaultdict[str, list[str]] = defaultdict(list)
    for key in keys:
        try:
            rivals[folded(label_of(key))].append(key)
        except ConfigError:
            continue
    return rivals
