"""What to paste into which client so that it uses this server."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from skillwire.server.hot import MODERN_VERSION
from skillwire.wire.core import LIST_SKILLS

LABEL: Final = "skills"
"""What the snippets call the server."""
VARIABLE: Final = "SKILLS_TOKEN"
"""The environment variable that holds the token in the snippets."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A text for one client, and the file it goes into; without one it is a command.

    `key` is a name for it within the page.
    """

    key: str
    client: str
    text: str
    file: str = ""
    is_in_project: bool = True


def snippets(url: str, *, has_token: bool) -> list[Snippet]:
    """Return what to paste to reach `url`, with a token from the environment if one is needed."""
    return [
        Snippet("mcp-json", "Claude Code and others", _mcp_json(url, has_token), ".mcp.json"),
        Snippet("claude", "Claude Code", _claude(url, has_token)),
        Snippet("vscode", "VS Code", _vscode(url, has_token), ".vscode/mcp.json"),
        Snippet("cursor", "Cursor", _cursor(url, has_token), ".cursor/mcp.json"),
        Snippet("codex", "Codex", _codex(url, has_token), "~/.codex/config.toml", is_in_project=False),
        Snippet("curl", "curl", _curl(url, has_token)),
    ]


def _mcp_json(url: str, has_token: bool) -> str:
    server = {"type": "http", "url": url, **_headers(has_token, f"${{{VARIABLE}}}")}
    return _json({"mcpServers": {LABEL: server}})


def _claude(url: str, has_token: bool) -> str:
    words = f"claude mcp add --transport http {LABEL} {shlex.quote(url)}"
    return words + (f' \\\n  --header "Authorization: Bearer ${VARIABLE}"' if has_token else "")


def _vscode(url: str, has_token: bool) -> str:
    server = {"type": "http", "url": url, **_headers(has_token, f"${{input:{LABEL}-token}}")}
    asked = {"type": "promptString", "id": f"{LABEL}-token", "description": "Token", "password": True}
    return _json({**({"inputs": [asked]} if has_token else {}), "servers": {LABEL: server}})


def _cursor(url: str, has_token: bool) -> str:
    return _json({"mcpServers": {LABEL: {"url": url, **_headers(has_token, f"${{env:{VARIABLE}}}")}}})


def _codex(url: str, has_token: bool) -> str:
    # What JSON makes of a plain URL is also TOML.
    lines = [f"[mcp_servers.{LABEL}]", f"url = {json.dumps(url)}"]
    return "\n".join([*lines, f'bearer_token_env_var = "{VARIABLE}"'] if has_token else lines)


def _curl(url: str, has_token: bool) -> str:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": LIST_SKILLS, "params": {"_meta": meta}}
    headers = [
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"MCP-Protocol-Version: {MODERN_VERSION}",
        f"Mcp-Method: {LIST_SKILLS}",
    ]
    lines = [f"curl {shlex.quote(url)}"]
    if has_token:
        lines.append(f'-H "Authorization: Bearer ${VARIABLE}"')
    lines += [f"-H {shlex.quote(header)}" for header in headers]
    return " \\\n  ".join([*lines, f"--data {shlex.quote(json.dumps(request))}"])


def _headers(has_token: bool, token: str) -> Mapping[str, Any]:
    return {"headers": {"Authorization": f"Bearer {token}"}} if has_token else {}


def _json(value: object) -> str:
    return json.dumps(value, indent=2)
