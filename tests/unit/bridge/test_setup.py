"""Where the configuration of each client is, what is put into it, and what is refused."""

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillwire.bridge.setup import (
    CLIENTS,
    OTHER,
    AgentClient,
    ChangeKind,
    SetupChange,
    bridge_command,
    changed_lines,
    is_own,
    setup_change,
)
from skillwire.host import ConfigError

WORDS = ("/opt/skillwire", "bridge", "--config", "/home/me/team.json")
PLAIN = {"command": "/opt/skillwire", "args": ["bridge", "--config", "/home/me/team.json"]}
TYPED = {"type": "stdio", **PLAIN}

FILES: dict[str, tuple[str, ...]] = {
    "claude": ("/h/.claude.json", "/h/.claude.json", "/h/.claude.json"),
    "cursor": ("/h/.cursor/mcp.json", "/h/.cursor/mcp.json", "/h/.cursor/mcp.json"),
    "vscode": (
        "/h/.config/Code/User/mcp.json",
        "/h/Library/Application Support/Code/User/mcp.json",
        "/h/AppData/Roaming/Code/User/mcp.json",
    ),
    "codex": ("/h/.codex/config.toml", "/h/.codex/config.toml", "/h/.codex/config.toml"),
    "gemini": ("/h/.gemini/settings.json", "/h/.gemini/settings.json", "/h/.gemini/settings.json"),
    "opencode": ("/h/.config/opencode/opencode.json",) * 3,
    "goose": (
        "/h/.config/goose/config.yaml",
        "/h/.config/goose/config.yaml",
        "/h/AppData/Roaming/Block/goose/config/config.yaml",
    ),
    "zed": (
        "/h/.config/zed/settings.json",
        "/h/.config/zed/settings.json",
        "/h/AppData/Roaming/Zed/settings.json",
    ),
}
ENTRIES: dict[str, Any] = {
    "claude": {"mcpServers": {"skillwire": TYPED}},
    "cursor": {"mcpServers": {"skillwire": TYPED}},
    "vscode": {"servers": {"skillwire": TYPED}},
    "codex": {"mcp_servers": {"skillwire": PLAIN}},
    "gemini": {"mcpServers": {"skillwire": PLAIN}},
    "opencode": {"mcp": {"skillwire": {"type": "local", "command": [*WORDS], "enabled": True}}},
    "goose": {
        "extensions": {
            "skillwire": {
                "enabled": True,
                "type": "stdio",
                "name": "skillwire",
                "description": "Skills from MCP servers and folders, once you have approved them",
                "cmd": "/opt/skillwire",
                "args": ["bridge", "--config", "/home/me/team.json"],
                "timeout": 300,
            }
        }
    },
    "zed": {"context_servers": {"skillwire": PLAIN}},
}
BEFORE = {
    "claude": '{"projects": {"/p": {"mcpServers": {"skillwire": {"command": "x"}}}}, "mcpServers": {}}',
    "cursor": '{\n\t"mcpServers": {\n\t\t"one": {"url": "https://example.com"},\n\t},\n}',
    "vscode": '{\r\n\t"servers": {},\r\n\t"inputs": []\r\n}\r\n',
    "codex": 'model = "o"\n\n[mcp_servers.one]\ncommand = "x"\n\n[mcp_servers.one.env]\nA = "b" # mine\n',
    "gemini": '{\n  "theme": "Default", // mine\n  "mcp": {"excluded": ["x"]}\n}',
    "opencode": '{\n  "$schema": "https://opencode.ai/config.json",\n  /* models */\n  "model": "m",\n}\n',
    "goose": "GOOSE_MODEL: m\nextensions:\n  developer:\n    type: builtin # mine\nGOOSE_MODE: auto\n",
    "zed": '// Zed settings\n//\n{\n  "theme": {\n    "mode": "system",\n  },\n  "vim_mode": true,\n}\n',
}


def parsed(path: Path) -> Any:
    """Parse a file without comments with the parser that its ending asks for."""
    text = path.read_text("utf-8")
    return {".toml": tomllib.loads, ".yaml": yaml.safe_load}.get(path.suffix, json.loads)(text)


def change_of(name: str, path: Path, *words: str, remove: bool = False) -> SetupChange:
    return setup_change(CLIENTS[name], path, words or WORDS, is_removal=remove)


@pytest.mark.parametrize("name", CLIENTS)
def test_the_file_of_a_client_is_the_one_that_it_reads_on_each_platform(name: str) -> None:
    found = tuple(
        CLIENTS[name].file({"APPDATA": "relative"}, Path("/h"), platform).as_posix()
        for platform in ("linux", "darwin", "win32")
    )

    assert found == FILES[name]


def test_variables_that_move_the_folder_of_a_client_are_followed(tmp_path: Path) -> None:
    environ = {
        name: f"/moved/{name}"
        for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "APPDATA")
    }

    found = {name: client.file(environ, tmp_path, "linux").as_posix() for name, client in CLIENTS.items()}

    assert {name: path for name, path in found.items() if path.startswith("/moved/")} == {
        "claude": "/moved/CLAUDE_CONFIG_DIR/.claude.json",
        "vscode": "/moved/XDG_CONFIG_HOME/Code/User/mcp.json",
        "codex": "/moved/CODEX_HOME/config.toml",
        "gemini": "/moved/GEMINI_CLI_HOME/.gemini/settings.json",
        "opencode": "/moved/XDG_CONFIG_HOME/opencode/opencode.json",
        "goose": "/moved/XDG_CONFIG_HOME/goose/config.yaml",
        "zed": "/moved/XDG_CONFIG_HOME/zed/settings.json",
    }
    assert CLIENTS["zed"].file(environ, tmp_path, "win32").as_posix() == "/moved/APPDATA/Zed/settings.json"
    assert CLIENTS["zed"].file(environ, tmp_path, "darwin") == tmp_path / ".config/zed/settings.json"


def test_of_two_files_that_a_client_reads_the_one_that_exists_is_used(tmp_path: Path) -> None:
    commented = tmp_path / ".config" / "opencode" / "opencode.jsonc"
    commented.parent.mkdir(parents=True)
    commented.touch()

    assert CLIENTS["opencode"].file({}, tmp_path, "linux") == commented


@pytest.mark.parametrize("name", CLIENTS)
def test_a_new_file_has_the_entry_as_the_client_reads_it_and_is_private(tmp_path: Path, name: str) -> None:
    path = CLIENTS[name].file({}, tmp_path / "home", "linux")

    change_of(name, path).write(is_private=True)

    assert parsed(path) == ENTRIES[name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    again = change_of(name, path)
    assert (again.kind, again.edit.after) == (ChangeKind.NONE, path.read_bytes())


@pytest.mark.parametrize("name", CLIENTS)
def test_an_entry_is_added_updated_and_removed_in_a_file_of_a_user(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(BEFORE[name].encode("utf-8-sig"))
    path.chmod(0o640)

    kinds: list[ChangeKind] = []
    for words, remove in ((WORDS, False), (("/new/skillwire", "bridge"), False), (WORDS, True)):
        change = change_of(name, path, *words, remove=remove)
        change.write(is_private=True)
        kinds.append(change.kind)

    assert kinds == [ChangeKind.ADD, ChangeKind.REPLACE, ChangeKind.REMOVE]
    assert path.read_bytes() == BEFORE[name].encode("utf-8-sig")
    assert path.stat().st_mode & 0o777 == 0o640
    assert change_of(name, path, remove=True).kind is ChangeKind.NONE


def test_nothing_that_is_written_lets_a_client_use_tools_without_asking() -> None:
    snippets = "".join(client.snippet(WORDS) for client in CLIENTS.values())

    assert not [
        word
        for word in ("trust", "approv", "allow", "always")
        if word in snippets.replace("have approved", "")
    ]
    assert json.loads(OTHER.snippet(WORDS)) == {"mcpServers": {"skillwire": PLAIN}}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (PLAIN, True),
        ({"command": "C:\\venv\\Scripts\\skillwire.exe", "args": ["bridge"]}, True),
        ({"command": "/usr/bin/python3", "args": ["-m", "skillwire", "bridge", "x"]}, True),
        ({"command": ["uvx", "skillwire", "bridge"], "enabled": False}, True),
        ({"cmd": "skillwire", "args": ["bridge"]}, True),
        ({"command": "skillwire", "args": ["serve", "bridge"]}, False),
        ({"command": "other", "args": ["bridge"]}, False),
        ({"command": {"path": "skillwire"}, "args": 7}, False),
        ({"url": "https://example.com/skillwire/bridge"}, False),
        ({}, False),
        ("skillwire bridge", False),
    ],
)
def test_an_entry_is_ours_if_it_runs_the_bridge(entry: object, expected: bool) -> None:
    assert is_own(entry) is expected


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("remove", [False, True])
def test_an_entry_of_that_name_that_somebody_else_made_is_left_alone(
    tmp_path: Path, name: str, remove: bool
) -> None:
    client, path = CLIENTS[name], tmp_path / "config"
    theirs = client.snippet(("other", "bridge"))
    path.write_text(theirs)

    with pytest.raises(ConfigError, match="another server with the name skillwire") as caught:
        change_of(name, path, remove=remove)

    assert path.read_text() == theirs
    assert f"{client.table}.skillwire" in caught.value.fix


@pytest.mark.parametrize("name", CLIENTS)
def test_a_file_that_cannot_be_parsed_stays_as_it_is_and_the_text_to_add_is_named(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "config"
    path.write_text('{"a": [\n')

    with pytest.raises(ConfigError, match="nothing was written") as caught:
        change_of(name, path)

    assert path.read_text() == '{"a": [\n'
    assert str(path) in str(caught.value) and "skillwire" in caught.value.fix


def test_what_is_no_regular_file_of_a_sensible_size_is_refused(tmp_path: Path) -> None:
    fifo, folder, large, binary = (tmp_path / name for name in ("fifo", "folder", "large", "binary"))
    os.mkfifo(fifo)
    folder.mkdir()
    large.write_bytes(b" " * (1024 * 1024 + 1))
    binary.write_bytes(b"\xff")

    for path in (fifo, folder, large, binary, Path("/dev/null")):
        with pytest.raises(ConfigError):
            change_of("zed", path)


def test_a_link_is_kept_and_its_target_replaced(tmp_path: Path) -> None:
    target, link, loop = tmp_path / "dotfiles" / "zed.json", tmp_path / "settings.json", tmp_path / "loop"
    link.symlink_to(target)
    loop.symlink_to(loop)

    change_of("zed", link).write(is_private=False)

    assert link.is_symlink() and parsed(target) == ENTRIES["zed"]
    with pytest.raises(ConfigError):
        change_of("zed", loop)


def test_a_file_that_changed_after_it_was_shown_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    change = change_of("zed", path)
    path.write_text('{"newer": 1}')

    with pytest.raises(ConfigError, match="changed by another program"):
        change.write(is_private=True)

    assert [*tmp_path.iterdir()] == [path] and path.read_text() == '{"newer": 1}'


def test_the_command_is_the_one_of_this_installation(tmp_path: Path) -> None:
    bare, whole = tmp_path / "bare" / "python", tmp_path / "whole" / "python"
    for folder in (bare.parent, whole.parent):
        folder.mkdir()
    script = whole.with_name("skillwire")
    script.touch()

    assert bridge_command(["x"], str(bare)) == (str(bare), "-m", "skillwire", "bridge", "x")
    assert bridge_command(["x"], str(whole)) == (str(script), "bridge", "x")
    assert Path(bridge_command([])[0]).parent == Path(sys.executable).parent
    for word in ("a\nb", "\x7f", "\udcff", "\u202e"):
        with pytest.raises(ConfigError):
            bridge_command([word])


SECRETS: dict[str, tuple[AgentClient, str]] = {
    "JSON": (
        CLIENTS["gemini"],
        '{\n  "mcpServers": {\n    "a": {\n      "env": {\n        "KEY": "s3cret"\n      }\n    }\n  }\n}',
    ),
    "JSON, args": (
        CLIENTS["gemini"],
        '{\n  "mcpServers": {\n    "a": {"args": [\n      "--key",\n      "s3cret"\n    ]}}}',
    ),
    "JSON, last member": (CLIENTS["gemini"], '{\n  "apiKey": "s3cret"\n}'),
    "JSON, one line": (CLIENTS["gemini"], '{"mcpServers": {"a": {"env": {"KEY": "s3cret"}}}}'),
    "TOML": (CLIENTS["codex"], "[mcp_servers.a.env]\nKEY = 's3cret'\nT = [\n  's3cret'\n]"),
    "TOML, a comment": (CLIENTS["codex"], "[a]\n# s3cret\n"),
    "YAML": (
        CLIENTS["goose"],
        "extensions:\n  a:\n    envs:\n      KEY: s3cret\n    args:\n    - s3cret\n    - k: s3cret",
    ),
    "YAML, a text": (CLIENTS["goose"], "extensions:\n  a:\n    about: |\n      s3cret\nb: 1\n"),
}


@pytest.mark.parametrize("case", SECRETS)
def test_values_that_are_there_already_are_not_shown_with_a_change(tmp_path: Path, case: str) -> None:
    client, text = SECRETS[case]
    path = tmp_path / "config"
    path.write_text(text)

    change = setup_change(client, path, WORDS)
    shown = "\n".join(change.lines)
    change.write(is_private=True)
    removed = "\n".join(setup_change(client, path, WORDS, is_removal=True).lines)

    assert "s3cret" not in shown + removed
    assert "}}}" in text or "/home/me/team.json" in shown


def test_a_change_is_shown_with_three_lines_around_it() -> None:
    before = '{\n  "1": 1,\n  "2": [\n    2\n  ],\n  "3": {\n  }\n}\n'
    after = '{\n  "1": 1,\n  "2": [\n    2\n  ],\n  "3": {\n  },\n  "4": 4\n}\n'

    assert changed_lines(before, after) == [
        "@@ line 8 @@",
        "    ],",
        '    "3": {',
        "    },",
        '+   "4": 4',
        "  }",
    ]
