"""How each coding agent is started without a person: its configuration, its command line, its API.

Each gets a home of its own, a made-up key, no telemetry and no updates, and
leave to use the tools of the MCP server with the name `skillwire`. That server
comes with the configuration, or is added to it by `skillwire setup`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from coding_agents.scripted_model import ChatApi, GeminiApi, ModelApi, ResponsesApi

PACKAGES = Path(__file__).parent / "node_modules"
KEY = "made-up-key"
SERVER = "skillwire"
TOOLS = ("load_skill", "read_skill_file", "list_skill_files", "search_skills")
PROMPT = "A customer wants money back. Do what the skill team/refunds says."

Finding: TypeAlias = Literal["listed", "searched", "coded"]
"""How a model finds a server's tools: they are listed, or searched with a tool, or functions in code."""
Configure: TypeAlias = Callable[[Path, str, "Sequence[str]"], None]
"""Writes an agent's configuration into a home: where the model is, and the server's command, if any."""


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """A coding agent, and all that is needed to run it against a scripted model."""

    name: str
    program: Path
    words: tuple[str, ...]
    api: type[ModelApi]
    configure: Configure
    env: Mapping[str, str]
    """Its environment besides a home and a path; `{url}` stands for the model's address."""
    finding: Finding = "listed"
    prompting: tuple[str, ...] = ()
    """The words with which a person uses the server's prompt `team--refunds`, if the agent has prompts."""

    @property
    def client(self) -> str:
        """What `skillwire setup` calls it."""
        return self.name.partition("-")[0]

    def command(self, node: str, prompt: Sequence[str] = (PROMPT,)) -> list[str]:
        """Return the command line that runs it on one prompt."""
        start = [node] if self.program.suffix == ".js" else []
        return [*start, str(self.program), *self.words, *prompt]

    def environment(self, url: str) -> dict[str, str]:
        """Return what it needs in its environment to use the model at a URL."""
        return {name: value.format(url=url) for name, value in self.env.items()}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    _write(path, json.dumps(value, indent=2))


def _configure_codex(home: Path, url: str, server: Sequence[str]) -> None:
    # What JSON calls a string or a list of them is the same in TOML.
    entry = [f"[mcp_servers.{SERVER}]", *(f"command = {json.dumps(word)}" for word in server[:1])]
    entry.append(f"args = {json.dumps(server[1:])}")
    _write(
        home / ".codex" / "config.toml",
        f"""
        model_provider = "scripted"
        approval_policy = "never"
        check_for_update_on_startup = false
        [analytics]
        enabled = false
        [features]
        plugins = false
        [model_providers.scripted]
        name = "scripted"
        base_url = "{url}/v1"
        wire_api = "responses"
        env_key = "SCRIPTED_KEY"
        request_max_retries = 0
        stream_max_retries = 0
        """
        + "\n".join(entry if server else ()),
    )


def _configure_gemini(home: Path, url: str, server: Sequence[str]) -> None:
    settings = {
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "telemetry": {"enabled": False},
        "mcpServers": {SERVER: {"command": server[0], "args": server[1:]}} if server else {},
    }
    _write_json(home / ".gemini" / "settings.json", settings)


def _configure_opencode(home: Path, url: str, server: Sequence[str]) -> None:
    provider: Mapping[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {"scripted": {}},
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": "scripted/scripted",
        "provider": {"scripted": provider},
        "mcp": {SERVER: {"type": "local", "command": server, "enabled": True}} if server else {},
    }
    _write_json(home / ".config" / "opencode" / "opencode.json", settings)


def _codex(model: str, finding: Finding) -> CodingAgent:
    own = {
        "required": "true",
        "startup_timeout_sec": "100",
        "tool_timeout_sec": "100",
        "default_tools_approval_mode": '"approve"',
    }
    options = (f"--config=mcp_servers.{SERVER}.{key}={value}" for key, value in own.items())
    return CodingAgent(
        f"codex-{finding}",
        PACKAGES / "codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
        ("exec", "--skip-git-repo-check", "--model", model, *options),
        ResponsesApi,
        _configure_codex,
        {"SCRIPTED_KEY": KEY},
        finding,
    )


# What Codex shows of a server depends on the model's name; one that it does not know gets every tool listed.
CODEX = _codex("scripted", "listed")
CODEX_SEARCHED = _codex("gpt-5.5", "searched")
CODEX_CODED = _codex("gpt-5.6-sol", "coded")
GEMINI = CodingAgent(
    "gemini",
    PACKAGES / "@google/gemini-cli/bundle/gemini.js",
    (
        *("--model", "gemini-2.5-flash"),
        *(f"--allowed-tools=mcp_{SERVER}_{tool}" for tool in TOOLS),
        "--prompt",
    ),
    GeminiApi,
    _configure_gemini,
    {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
    prompting=("/team--refunds",),
)
OPENCODE = CodingAgent(
    "opencode",
    PACKAGES / "opencode-linux-x64/bin/opencode",
    ("run",),
    ChatApi,
    _configure_opencode,
    {
        "OPENCODE_DISABLE_AUTOUPDATE": "true",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "true",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "true",
        "OPENCODE_DISABLE_MODELS_FETCH": "true",
    },
    prompting=("--command", f"{SERVER}:team--refunds", "Order 7."),
)
AGENTS = (CODEX, CODEX_SEARCHED, CODEX_CODED, GEMINI, OPENCODE)
