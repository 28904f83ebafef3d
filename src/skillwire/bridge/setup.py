"""The configuration of MCP clients that starts `skillwire bridge`: where it is, and the entry that is added.

Only the file of the user is changed, never that of a project unless it is
named, and in it only one entry. Nothing that is written here lets a client use
a tool without asking.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

from skillwire.bridge.config_text import JSON, TOML, YAML, Entry, TextFormat, not_editable
from skillwire.core import quoted
from skillwire.host.connect.config_edit import BYTE_ORDER_MARK, ConfigEdit
from skillwire.host.connect.config_file import decoded, read_bytes
from skillwire.host.model import ConfigError

ENTRY_NAME: Final = "skillwire"
"""The name of the entry in every client; its tools are called after it there."""

NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})

_TITLE = "Skills from MCP servers and folders, once you have approved them"
_SECONDS = 300


@dataclass(frozen=True, slots=True)
class AgentClient:
    """An MCP client: its file, and where servers are in it.

    In `files`, a part in braces stands for a folder, see `_folders`; the first
    that exists is used, or else the last. `hint` is what a user must know to
    see the bridge there.
    """

    name: str
    title: str
    form: TextFormat
    table: str
    files: tuple[str, ...] = ()
    hint: str = ""

    @property
    def keys(self) -> tuple[str, str]:
        """The path of keys to the entry."""
        return self.table, ENTRY_NAME

    def file(self, environ: Mapping[str, str], home: Path, platform: str = sys.platform) -> Path:
        """Return the path of the user's configuration, which need not exist."""
        folders = _folders(environ, home, platform)
        paths = [Path(file.format_map(folders)) for file in self.files]
        return next((path for path in paths if os.path.lexists(path)), paths[-1])

    def entry(self, words: Sequence[str], environ: Mapping[str, str] = NO_VARIABLES) -> Entry:
        """Return the entry that starts a command; `environ` is that of the user."""
        program, *arguments = words
        if self.name == "opencode":
            return {"type": "local", "command": list(words), "enabled": True}
        if self.name == "goose":
            about = {"name": ENTRY_NAME, "description": _TITLE}
            start = {"cmd": program, "args": arguments, "timeout": _SECONDS}
            return {"enabled": True, "type": "stdio", **about, **start}
        kind = {"type": "stdio"} if self.name in _TYPED else {}
        # Codex hands over few variables, and the approvals are where these say.
        places = [name for name in _PLACES if self.name == "codex" and name in environ]
        return {**kind, "command": program, "args": arguments, **({"env_vars": places} if places else {})}

    def snippet(self, words: Sequence[str]) -> str:
        """Return the text of a configuration that has nothing but the entry."""
        return self.form.with_entry(self.form.blank, self.keys, self.entry(words))


_PLACES = ("XDG_STATE_HOME", "XDG_CACHE_HOME")
_TYPED = frozenset({"claude", "cursor", "vscode"})

_TRUST = "it starts servers only in folders that you trust there"
_OPENCODE = ("{config}/opencode/opencode.jsonc", "{config}/opencode/opencode.json")
_CLIENTS = (
    AgentClient("claude", "Claude Code", JSON, "mcpServers", ("{claude}/.claude.json",)),
    AgentClient("cursor", "Cursor", JSON, "mcpServers", ("{home}/.cursor/mcp.json",)),
    AgentClient("vscode", "VS Code", JSON, "servers", ("{apps}/Code/User/mcp.json",)),
    AgentClient("codex", "Codex", TOML, "mcp_servers", ("{codex}/config.toml",)),
    AgentClient("gemini", "Gemini CLI", JSON, "mcpServers", ("{gemini}/.gemini/settings.json",), _TRUST),
    AgentClient("opencode", "opencode", JSON, "mcp", _OPENCODE),
    AgentClient("goose", "goose", YAML, "extensions", ("{goose}/config.yaml",)),
    AgentClient("zed", "Zed", JSON, "context_servers", ("{zed}/settings.json",)),
)
CLIENTS: Final = {client.name: client for client in _CLIENTS}
"""Every client that can be set up, by the name of its command."""

OTHER: Final = AgentClient("other", "another client", JSON, "mcpServers")
"""The form that most other clients read; there is no file that would be edited."""


def _folders(environ: Mapping[str, str], home: Path, platform: str) -> dict[str, str]:
    """Return the folders in `AgentClient.files`; a variable counts only with an absolute path."""

    def named(variable: str, default: Path) -> str:
        found = environ.get(variable, "")
        return found if Path(found).is_absolute() else str(default)

    config = named("XDG_CONFIG_HOME", home / ".config")
    folders = {
        "home": str(home),
        "config": config,
        "apps": config,
        "claude": named("CLAUDE_CONFIG_DIR", home),
        "codex": named("CODEX_HOME", home / ".codex"),
        "gemini": named("GEMINI_CLI_HOME", home),
        "goose": f"{config}/goose",
        "zed": f"{config}/zed",
    }
    if platform == "darwin":
        folders |= {"apps": f"{home}/Library/Application Support", "zed": f"{home}/.config/zed"}
    elif platform == "win32":
        apps = named("APPDATA", home / "AppData" / "Roaming")
        folders |= {"apps": apps, "goose": f"{apps}/Block/goose/config", "zed": f"{apps}/Zed"}
    return folders


def bridge_command(arguments: Sequence[str], executable: str = sys.executable) -> tuple[str, ...]:
    """Return the command that starts the bridge of this installation, whatever the search path is.

    Raises:
        ConfigError: An argument cannot be written into a text file.
    """
    script = Path(executable).with_name("skillwire.exe" if os.name == "nt" else "skillwire")
    start = (str(script),) if script.is_file() else (executable, "-m", "skillwire")
    words = (*start, "bridge", *arguments)
    for word in words:
        if not word.isprintable():
            raise ConfigError(f"{quoted(word)} cannot be written into a configuration", fix="rename it")
    return words


def is_own(entry: object) -> bool:
    """Return whether an entry runs `skillwire bridge`, in any of the forms that clients have."""
    if not isinstance(entry, Mapping):
        return False
    members = cast(Mapping[str, object], entry)
    words: list[str] = []
    for value in (members.get("command", members.get("cmd")), members.get("args")):
        parts = cast(list[object], value) if isinstance(value, list) else [value]
        words += [part for part in parts if isinstance(part, str)]
    names = [re.split(r"[\\/]", word)[-1].removesuffix(".exe") for word in words]
    return any(pair == (ENTRY_NAME, "bridge") for pair in zip(names, words[1:], strict=False))


class ChangeKind(StrEnum):
    """What happens to the entry."""

    ADD = "added"
    REPLACE = "replaced"
    REMOVE = "removed"
    NONE = "unchanged"


@dataclass(frozen=True, slots=True)
class SetupChange:
    """A change of one client's configuration; nothing is written before `write`."""

    client: AgentClient
    kind: ChangeKind
    edit: ConfigEdit

    def write(self, *, is_private: bool) -> None:
        """Write the file atomically; what is created is for this user alone if it is private.

        Raises:
            ConfigError: Another program changed it meanwhile; nothing was written.
            OSError: It cannot be written.
        """
        _make_parents(self.edit.path.parent, 0o700 if is_private else 0o777)
        self.edit.write(mode=0o600 if is_private else None)

    @property
    def lines(self) -> list[str]:
        """The change as lines with `+` and `-`, and three lines around it."""
        before, after = (_text_of(content) for content in (self.edit.before or b"", self.edit.after))
        return changed_lines(before, after)


def setup_change(
    client: AgentClient,
    path: Path,
    words: Sequence[str],
    environ: Mapping[str, str] = NO_VARIABLES,
    *,
    is_removal: bool = False,
) -> SetupChange:
    """Return the change of a configuration that adds, updates or removes the entry.

    Raises:
        ConfigError: The file cannot be used, or has an entry of that name that runs something else.
    """
    real = Path(os.path.realpath(path))
    before = read_bytes(real) if os.path.lexists(real) else None
    text = "" if before is None else decoded(before, real.name)
    try:
        entry = None if is_removal else client.entry(words, environ)
        kind, after = _edited(client, text, entry)
    except ConfigError as error:
        fix = error.fix or _fix_by_hand(client, words, is_removal=is_removal)
        raise ConfigError(f"{real}: {error}; nothing was written", fix=fix) from error
    mark = BYTE_ORDER_MARK if before is not None and before.startswith(BYTE_ORDER_MARK) else b""
    content = before or b"" if kind is ChangeKind.NONE else mark + after.encode()
    return SetupChange(client, kind, ConfigEdit(real, before, content))


def _edited(client: AgentClient, text: str, entry: Entry | None) -> tuple[ChangeKind, str]:
    """Return the text with the entry, or without one."""
    form = client.form
    base = text if text.strip() else form.blank or text
    current = form.entry_in(base, client.keys)
    if current is not None and not is_own(current):
        raise ConfigError(
            f"it has another server with the name {ENTRY_NAME}, which does not run `skillwire bridge`",
            fix=f"rename or remove {'.'.join(client.keys)} there by hand",
        )
    try:
        if entry is None:
            removed = text if current is None else form.without_entry(base, client.keys)
            return (ChangeKind.NONE if current is None else ChangeKind.REMOVE), removed
        after = form.with_entry(base, client.keys, entry)
    except (KeyError, StopIteration, RecursionError) as error:
        raise not_editable() from error
    if current is None:
        return ChangeKind.ADD, after
    return (ChangeKind.NONE if after == base else ChangeKind.REPLACE), after


def _fix_by_hand(client: AgentClient, words: Sequence[str], *, is_removal: bool) -> str:
    if is_removal:
        return f"remove {'.'.join(client.keys)} there by hand"
    return f"correct the file, or add this by hand: {' '.join(client.snippet(words).split())}"


def _make_parents(folder: Path, mode: int) -> None:
    if not folder.is_dir():
        _make_parents(folder.parent, mode)
        folder.mkdir(mode=mode, exist_ok=True)


# What is shown of a change: a configuration also holds secrets, so only new lines are shown whole.


_AROUND = 3
_LONGEST = 400
_UP_TO_VALUE = re.compile(r"""\s*(?:-\s+)?(?:"[^"]*"|'[^']*'|[^\s:="'#\[\]{},]+)\s*[:=](?=\s|$)""")


def changed_lines(before: str, after: str) -> list[str]:
    """Return the lines that differ and three around them, with the values of all but new lines left out."""
    old, new = before.splitlines(), after.splitlines()
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    removed, added = old[start : len(old) - end], new[start : len(new) - end]
    shown = added if not removed else [_masked(line) for line in added]
    return [
        f"@@ line {start + 1} @@",
        *(f"  {_masked(line)}" for line in new[max(start - _AROUND, 0) : start]),
        *(f"- {_masked(line)}" for line in removed),
        *(f"+ {line if len(line) <= _LONGEST else line[:_LONGEST] + '…'}" for line in shown),
        *(f"  {_masked(line)}" for line in new[len(new) - end :][:_AROUND]),
    ]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many first lines are equal but for a comma at the end."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left.rstrip().removesuffix(",") != right.rstrip().removesuffix(","):
            return number
    return min(len(one), len(other))


def _masked(line: str) -> str:
    """Return a line up to its value; a line without a word stays as it is."""
    if re.fullmatch(r"\s*\[+[\w.-]+\]+\s*", line):
        return line
    key = _UP_TO_VALUE.match(line)
    kept = line[: len(line) - len(line.lstrip())] if key is None else f"{key.group()} "
    return f"{kept}…" if re.search(r"\w", line[len(kept.rstrip()) :]) else line


def _text_of(content: bytes) -> str:
    return content.decode("utf-8-sig")
