"""The example agent with a real model, as its page says: the official clients, and an API on loopback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from interop.providers import Json, Provider, provider
from serving import environment

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "examples" / "agent" / "agent.py"

CALLS: list[list[tuple[str, Json]]] = [
    [("search_skills", {"query": "customer wants money back"})],
    [("load_skill", {"skill": "team/refunds"})],
    [
        ("read_skill_file", {"skill": "team/refunds", "path": "references/policy.md"}),
        ("load_skill", {"skill": "house-style"}),
    ],
    [("load_skill", {"skill": "shop/discounts"})],
    [("run_command", {"command": "printenv \x1b[31m"})],
    [("write_note", {"text": "Approve in part."})],
]


def turn(kind: str, number: int, calls: list[tuple[str, Json]]) -> Json:
    """Put the calls of one turn into a provider's format, with a thought before them."""
    if kind == "anthropic":
        blocks = [
            {"type": "tool_use", "id": f"toolu_{number}_{place}", "name": name, "input": given}
            for place, (name, given) in enumerate(calls)
        ]
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
        return {"content": [thought, *blocks], "stop_reason": "tool_use"}
    made = [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given)},
        }
        for place, (name, given) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": made}
    return {"message": message, "finish_reason": "tool_calls"}


def ran(kind: str, api: Provider, home: Path) -> list[str]:
    """Run the example with a provider's key and address set, and return what it prints."""
    python = home / "python"
    # The servers start without this process's variables, so Python itself has to know where skillwire is.
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT / "src"}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    name = kind.upper()
    variables = {
        **environment(home),
        "PYTHON": str(python),
        f"{name}_API_KEY": "test",
        f"{name}_BASE_URL": api.url + ("" if kind == "anthropic" else "/v1"),
        f"{name}_MODEL": "scripted-model",
        "NO_PROXY": "127.0.0.1",
    }
    result = subprocess.run(
        [sys.executable, "-W", "error", AGENT],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


def results(kind: str, request: Json) -> list[str]:
    if kind == "openai":
        return [message["content"] for message in request["messages"] if message["role"] == "tool"]
    users = [message["content"] for message in request["messages"][1:] if message["role"] == "user"]
    return [block["content"] for content in users for block in content]


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_model_behind_an_api_works_through_the_example_to_its_end(kind: str, tmp_path: Path) -> None:
    with provider(kind, *(turn(kind, number, calls) for number, calls in enumerate(CALLS))) as api:
        transcript = ran(kind, api, tmp_path)

    assert api.objections == []
    assert {request["model"] for request in api.requests} == {"scripted-model"}
    found, loaded, policy, style, discounts, command, noted = results(kind, api.requests[-1])
    assert "team/refunds" in found and "----- begin" in loaded and "----- begin" in policy
    assert "house-style" in style and noted == "noted"
    codes = [json.loads(refused)["refused"]["code"] for refused in (discounts, command)]
    assert codes == ["approval-denied", "execution"]
    assert transcript[-1] == "Loaded at the end: team/refunds, house-style"
    assert "assistant: done" in transcript
    assert not any("\x1b" in line for line in transcript)
