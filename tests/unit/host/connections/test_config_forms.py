"""The files people have for Claude Code, Claude Desktop, Cursor and VS Code, read as those mean them."""

import os
from pathlib import Path

import pytest

from skillwire.host.connect.config import Servers, read_servers, servers_of
from skillwire.host.connect.config_file import find_config
from skillwire.host.model.endpoints import (
    DEFAULT_SECONDS,
    HttpEndpoint,
    ServerConfig,
    ShowRule,
    SkillSettings,
    StdioEndpoint,
    Trust,
)
from skillwire.host.model.errors import ConfigError

CLAUDE_CODE = """\
{
  "mcpServers": {
    "filesystem": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "${PROJECT_DIR:-.}"],
      "env": {"DEBUG": "${DEBUG:-false}"}
    },
    "api": {
      "type": "http",
      "url": "${API_BASE:-https://api.example}/mcp",
      "headers": {"Authorization": "Bearer ${API_TOKEN}"},
      "timeout": 600000,
      "alwaysLoad": true
    },
    "legacy": {"type": "sse", "url": "https://old.example/sse"}
  }
}
"""

CLAUDE_JSON = """\
{
  "numStartups": 12,
  "mcpServers": {"memory": {"type": "stdio", "command": "npx", "args": ["-y", "memory"], "env": {}}},
  "projects": {"/home/me/shop": {"mcpServers": {"private": {"command": "other"}}, "history": []}}
}
"""

CLAUDE_DESKTOP = """\
{
  "globalShortcut": "",
  "mcpServers": {"sqlite": {"command": "uvx", "args": ["mcp-server-sqlite", "--db-path", "/data/test.db"]}}
}
"""

CURSOR = """\
{
  "mcpServers": {
    "local": {"command": "never"},
    "notes": {
      "command": "python",
      "args": [
        "${workspaceFolder}/tools/notes.py", "${workspaceFolderBasename}", "${userHome}${/}x${pathSeparator}"
      ],
      "env": {"API_KEY": "${env:API_TOKEN}", "KEPT": "file"},
      "envFile": "${workspaceFolder}/.env"
    },
    "remote": {
      "url": "https://api.example/mcp", "headers": {"X-Key": "${env:API_TOKEN}"}, "auth": {"CLIENT_ID": "x"}
    }
  }
}
"""

VS_CODE = """\
{
  // Asked for once, and kept by the editor.
  "inputs": [
    {"type": "promptString", "id": "perplexity-key", "description": "API key", "password": true},
    {"type": "pickString", "id": "region", "options": ["eu", "us"], "default": "eu"},
    {"type": "command", "id": "branch", "command": "git.branch"},
  ],
  "servers": {
    /* "unused": {"command": "never"}, */
    "perplexity": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "server-perplexity-ask", "--region=${input:region}"],
      "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}", "PORT": 3000, "NOTHING": null},
      "cwd": "tools",
      "envFile": ".env",
      "sandboxEnabled": true,
      "sandbox": {"network": {"allowedDomains": ["example.org"]}},
      "dev": {"watch": "build/**/*.js"},
    },
    "github": {"type": "http", "url": "https://api.example/mcp"}, // remote
    "needy": {"command": "x", "args": ["${input:branch}"]},
  },
}
"""

CLINE = """\
{
  "mcpServers": {
    "tools": {
      "command": "node",
      "args": ["server.js"],
      "disabled": false,
      "alwaysAllow": ["load_skill", "*"],
      "autoApprove": ["*"],
      "trust": true,
      "timeout": 60
    },
    "off": {"type": "streamableHttp", "url": "https://off.example/mcp", "disabled": true}
  }
}
"""

ENVIRON = {"HOME": "/home/me", "API_TOKEN": "s3cret"}


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def named(found: Servers) -> dict[str, ServerConfig]:
    return {server.label: server for server in found.servers}


def test_the_file_of_claude_code_is_read(tmp_path: Path) -> None:
    found = read_servers(written(tmp_path / ".mcp.json", CLAUDE_CODE), environ=ENVIRON)

    program = StdioEndpoint("npx", ("-y", "@modelcontextprotocol/server-filesystem", "."), {"DEBUG": "false"})
    site = HttpEndpoint("https://api.example/mcp", {"Authorization": "Bearer s3cret"})
    assert found.servers == (
        ServerConfig("filesystem", program, title="filesystem"),
        ServerConfig("api", site, title="api", seconds=300.0),
    )
    assert [refused.subject for refused in found.refused] == ["legacy"]


def test_the_user_s_file_of_claude_code_is_read_without_its_projects(tmp_path: Path) -> None:
    found = read_servers(written(tmp_path / ".claude.json", CLAUDE_JSON), environ={})

    assert [server.endpoint for server in found.servers] == [StdioEndpoint("npx", ("-y", "memory"))]


def test_a_file_with_servers_for_projects_alone_says_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        servers_of({"projects": {"/p": {"mcpServers": {}}}}, base=Path("/p"), environ={})

    assert ".mcp.json" in caught.value.fix


@pytest.mark.parametrize("document", [{"mcp": {"servers": {}}}, {"mcp.servers": {}}])
def test_an_editor_s_settings_say_what_to_do(document: object) -> None:
    with pytest.raises(ConfigError) as caught:
        servers_of(document, base=Path("/p"), environ={})

    assert ".vscode/mcp.json" in caught.value.fix


def test_the_file_of_claude_desktop_is_read(tmp_path: Path) -> None:
    found = read_servers(written(tmp_path / "claude_desktop_config.json", CLAUDE_DESKTOP), environ={})

    endpoint = StdioEndpoint("uvx", ("mcp-server-sqlite", "--db-path", "/data/test.db"))
    assert found == Servers((ServerConfig("sqlite", endpoint, title="sqlite"),))


def test_the_file_of_cursor_is_read(tmp_path: Path) -> None:
    written(tmp_path / ".env", "KEPT=from file\nMORE=too\n")
    found = read_servers(written(tmp_path / ".cursor" / "mcp.json", CURSOR), environ=ENVIRON)

    program = StdioEndpoint(
        "python",
        (f"{tmp_path}/tools/notes.py", tmp_path.name, f"/home/me{os.sep}x{os.sep}"),
        {"API_KEY": "s3cret", "KEPT": "file", "MORE": "too"},
    )
    site = HttpEndpoint("https://api.example/mcp", {"X-Key": "s3cret"})
    assert [server.endpoint for server in found.servers] == [program, site]
    assert [refused.subject for refused in found.refused] == ["local"]


def test_the_file_of_vs_code_is_read(tmp_path: Path) -> None:
    written(tmp_path / ".env", "FROM_FILE=1\n")
    path = written(tmp_path / ".vscode" / "mcp.json", VS_CODE)

    found = read_servers(path, environ={"SKILLWIRE_INPUT_PERPLEXITY_KEY": "s3cret"})

    program = named(found)["perplexity"].endpoint
    assert isinstance(program, StdioEndpoint)
    assert program.args == ("-y", "server-perplexity-ask", "--region=eu")
    assert program.env == {"PERPLEXITY_API_KEY": "s3cret", "PORT": "3000", "FROM_FILE": "1"}
    assert program.cwd == str(tmp_path / "tools")
    assert named(found)["github"].endpoint == HttpEndpoint("https://api.example/mcp")
    (needy,) = found.refused
    assert needy.subject == "needy"
    assert "'branch'" in str(needy) and "SKILLWIRE_INPUT_BRANCH" in str(needy)


def test_an_input_that_is_not_given_costs_only_its_server(tmp_path: Path) -> None:
    written(tmp_path / ".env", "")
    found = read_servers(written(tmp_path / ".vscode" / "mcp.json", VS_CODE), environ={})

    assert set(named(found)) == {"github"}
    assert "SKILLWIRE_INPUT_PERPLEXITY_KEY" in str(found.refused[0])


@pytest.mark.requirement("SEC-12")
def test_what_lets_tools_run_elsewhere_approves_nothing_here(tmp_path: Path) -> None:
    found = named(read_servers(written(tmp_path / "cline_mcp_settings.json", CLINE), environ={}))

    assert found["tools"] == ServerConfig("tools", StdioEndpoint("node", ("server.js",)), title="tools")
    assert found["tools"].skills == SkillSettings(trust=Trust.ASK)
    assert not found["off"].is_enabled


def test_a_file_with_both_tables_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        servers_of({"mcpServers": {}, "servers": {"a": {"command": "x"}}}, base=Path("/p"), environ={})

    assert "both" in str(caught.value)


@pytest.mark.parametrize(
    "document", [None, [], "x", {}, {"servers": []}, {"servers": None}, {"mcpServers": 1}]
)
def test_a_document_without_servers_is_refused(document: object) -> None:
    with pytest.raises(ConfigError):
        servers_of(document, base=Path("/p"), environ={})


# Single keys


def only(entry: object, environ: dict[str, str] | None = None, base: Path = Path("/project")) -> ServerConfig:
    found = servers_of({"servers": {"a": entry}}, base=base, environ=environ or {})
    assert found.refused == ()
    return found.servers[0]


def refusal(entry: object, environ: dict[str, str] | None = None, base: Path = Path("/project")) -> str:
    found = servers_of({"servers": {"a": entry}}, base=base, environ=environ or {})
    assert found.servers == ()
    return str(found.refused[0])


@pytest.mark.parametrize(
    ("flags", "is_enabled"),
    [
        ({}, True),
        ({"enabled": True}, True),
        ({"enabled": False}, False),
        ({"enabled": True, "disabled": True}, False),
        ({"enabled": False, "disabled": False}, False),
    ],
)
def test_a_server_is_used_when_nothing_turns_it_off(flags: dict[str, bool], is_enabled: bool) -> None:
    assert only({"command": "x", **flags}).is_enabled is is_enabled


@pytest.mark.parametrize("entry", [{"enabled": "no"}, {"enabled": 0}, {"enabled": None}, {"disabled": 1}])
def test_a_flag_that_is_none_refuses_the_server(entry: dict[str, object]) -> None:
    assert "neither true nor false" in refusal({"command": "x", **entry})


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (None, DEFAULT_SECONDS),
        (60, DEFAULT_SECONDS),
        (0, DEFAULT_SECONDS),
        (-5000, DEFAULT_SECONDS),
        (999, DEFAULT_SECONDS),
        (1000, 1.0),
        (2500.5, 2.5005),
        (20_000, 20.0),
        (300_001, 300.0),
        (10**400, 300.0),
        (float("inf"), 300.0),
    ],
)
def test_a_timeout_is_in_milliseconds_and_has_bounds(timeout: float | None, seconds: float) -> None:
    assert only({"command": "x", "timeout": timeout}).seconds == seconds


@pytest.mark.parametrize("timeout", ["30s", "1000", True, [], {}])
def test_a_timeout_that_is_no_number_refuses_the_server(timeout: object) -> None:
    assert "milliseconds" in refusal({"command": "x", "timeout": timeout})


def test_local_is_another_word_for_a_program() -> None:
    assert only({"type": "local", "command": "x"}).endpoint == StdioEndpoint("x")


def test_the_settings_for_skills_come_with_the_server() -> None:
    entry = {"command": "x", "skills": {"trust": "never", "budget": 7, "show": {"a": "pin"}}}

    server = only(entry)

    assert server.skills == SkillSettings(trust=Trust.NEVER, budget=7, show={"a": ShowRule.PIN})
    assert server.origin == only({"command": "x"}).origin


def test_a_fault_in_the_settings_costs_only_the_server() -> None:
    assert "'trsut'" in refusal({"command": "x", "skills": {"trsut": "never"}})


def test_half_a_character_is_refused() -> None:
    assert "incomplete character" in refusal({"command": "x", "args": ["\ud800"]})


def test_what_could_not_be_decoded_in_the_environment_is_passed_on() -> None:
    endpoint = only({"command": "x", "args": ["${A}"]}, {"A": "\udcff"}).endpoint

    assert isinstance(endpoint, StdioEndpoint)
    assert endpoint.args == ("\udcff",)


# Files of variables


def test_a_file_of_variables_that_cannot_be_used_is_named_without_its_folder(tmp_path: Path) -> None:
    written(tmp_path / "bad.env", "API_KEY: s3cret")
    os.mkfifo(tmp_path / "pipe.env")

    for name in ("gone.env", "bad.env", "pipe.env"):
        words = refusal({"command": "x", "envFile": name}, base=tmp_path)
        assert name in words and "envFile" in words
        assert str(tmp_path) not in words and "s3cret" not in words


def test_a_site_has_no_file_of_variables(tmp_path: Path) -> None:
    assert only({"url": "https://example.org", "envFile": "gone"}).endpoint == HttpEndpoint(
        "https://example.org"
    )


def test_many_servers_with_one_large_file_of_variables_have_an_end(tmp_path: Path) -> None:
    written(tmp_path / "large.env", "A=" + "x" * 1_000_000)
    table = {f"s{number}": {"command": "x", "envFile": "large.env"} for number in range(8)}

    found = servers_of({"servers": table}, base=tmp_path, environ={})

    assert (len(found.servers), len(found.refused)) == (4, 4)


def test_many_keys_of_one_label_are_refused_in_short_messages() -> None:
    keys = {f"a{'!' * number}": {"command": "x"} for number in range(1000)}

    found = servers_of({"servers": keys}, base=Path("/p"), environ={})

    assert len(found.refused) == 1000
    assert max(len(str(refused)) for refused in found.refused) < 1000


# Places


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ((), None),
        ((".mcp.json",), ".mcp.json"),
        ((".cursor/mcp.json",), ".cursor/mcp.json"),
        ((".vscode/mcp.json",), ".vscode/mcp.json"),
        ((".vscode/mcp.json", ".cursor/mcp.json"), ".cursor/mcp.json"),
        ((".vscode/mcp.json", ".cursor/mcp.json", ".mcp.json"), ".mcp.json"),
        (("mcp.json", "claude_desktop_config.json", ".claude.json", ".vscode/settings.json"), None),
    ],
)
def test_the_first_of_the_usual_places_counts(
    tmp_path: Path, present: tuple[str, ...], expected: str | None
) -> None:
    for name in present:
        written(tmp_path / name, "{}")

    assert find_config(tmp_path) == (None if expected is None else tmp_path / expected)


def test_folders_above_are_not_looked_at(tmp_path: Path) -> None:
    written(tmp_path / ".mcp.json", "{}")
    below = tmp_path / "below"
    below.mkdir()

    assert find_config(below) is None


def test_what_lies_in_the_first_place_is_not_passed_over_because_it_is_broken(tmp_path: Path) -> None:
    written(tmp_path / ".cursor" / "mcp.json", "{}")
    (tmp_path / ".mcp.json").symlink_to(tmp_path / "gone")

    assert find_config(tmp_path) == tmp_path / ".mcp.json"


@pytest.mark.parametrize("start", ["gone", "a\0b"])
def test_a_folder_that_is_none_has_no_configuration(tmp_path: Path, start: str) -> None:
    assert find_config(tmp_path / start) is None


def test_a_file_named_from_inside_its_folder_has_the_same_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(
        tmp_path / ".vscode" / "mcp.json",
        '{"servers": {"a": {"command": "${workspaceFolder}/x", "cwd": "y"}}}',
    )
    monkeypatch.chdir(tmp_path / ".vscode")

    (server,) = read_servers(Path("mcp.json")).servers

    assert server.endpoint == StdioEndpoint(f"{tmp_path}/x", (), {}, str(tmp_path / "y"))
