"""Every command's JSON, held against its published schema: answers and failures alike."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from integration.cli_world import SKILLS, World, local_skill
from programs import http_server
from skillwire.cli.app import COMMANDS

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas" / "cli"


def validator(command: str) -> Any:
    """Return the validator of a command's schema, which is itself a valid one."""
    schema: Any = json.loads((SCHEMAS / f"{command}.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("world"))
    local_skill(world, "notes")
    world.write("skills", SKILLS)
    (world.root / "skills" / "bad").mkdir()
    (world.root / "skills" / "bad" / "SKILL.md").write_text("no frontmatter\n")
    world.configure(
        team=world.server("team", world.root / "skills"),
        down={"url": "http://127.0.0.1:9/mcp"},
        wrong={"command": "none", "args": ["${NOWHERE_SET}"]},
        off={"command": "none", "disabled": True},
    )
    return world


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_schema_in_which_each_field_is_described(command: str) -> None:
    validator(command)

    def check(node: Any, path: str) -> None:
        if isinstance(node, list):
            for item in node:  # pyright: ignore[reportUnknownVariableType]  # JSON, as it is
                check(item, path)
        if not isinstance(node, dict):
            return
        for name, schema in node.get("properties", {}).items():  # pyright: ignore
            assert "description" in schema or "$ref" in schema, f"{path}.{name}"
        if "properties" in node:
            assert node["additionalProperties"] is False, path
        for name, value in node.items():  # pyright: ignore
            check(value, f"{path}.{name}")

    check(json.loads((SCHEMAS / f"{command}.json").read_text("utf-8")), command)


ANSWERS = [
    ("list", "--wait", "60"),
    ("list", "--wait", "60", "--prompt", "xml", "--budget", "200"),
    ("search", "refunds", "--wait", "60"),
    ("search", "zeppelin", "--wait", "60"),
    ("cache", "list"),
    ("cache", "gc"),
    ("cache", "clear", "--yes"),
    ("doctor", "--wait", "60"),
    ("completion", "bash"),
    ("sync", "--to", "claude", "--dry-run"),
    ("add", "more", "http://127.0.0.1:9/mcp", "--config", "other.json"),
    ("setup",),
    ("setup", "other"),
    ("setup", "codex", "--yes"),
    ("setup", "codex", "--remove", "--yes"),
    ("trust", "../skills", "--yes"),
    ("trust", "../skills", "--forget"),
    ("validate", "../skills"),
    ("manifest", "../skills"),
    ("new", "acme/refunds", "--with", "scripts"),
    ("pack", "../skills/triage"),
    ("serve", "../skills", "--print-config"),
    ("publish", "../skills/triage", "--static", "site"),
    ("publish", "../skills/triage"),
    ("publish", "../skills/triage", "--dry-run"),
    ("history",),
    ("history", "triage"),
    ("rollback", "triage@1"),
    ("catalog", "stats"),
    ("catalog", "verify"),
    ("catalog", "gc"),
    ("catalog", "backup", "catalog.tar"),
    ("catalog", "sync"),
    ("catalog", "sync", "--add", "team", "--from", "../skills", "--prefix", "team"),
    ("catalog", "sync", "--run"),
    ("catalog", "restore", "catalog.tar", "--catalog", "sqlite:///restored.db"),
    ("search", "triage", "--catalog", "default"),
    ("unpublish", "triage"),
]
FAILURES = [
    (["list", "nowhere"], 2),
    (["list", "--nonsense"], 2),
    (["search"], 2),
    (["cache", "melt"], 2),
    (["doctor", "--wait", "soon"], 2),
    (["completion"], 2),
    (["sync"], 2),
    (["sync", "--to", "../skills/triage/SKILL.md"], 1),
    (["add", "more"], 2),
    (["setup", "codex"], 1),
    (["setup", "codex", "nowhere"], 2),
    (["trust"], 1),
    (["trust", "nowhere"], 2),
    (["validate", "nowhere"], 2),
    (["manifest", "nowhere"], 2),
    (["new", "Not A Name"], 2),
    (["pack", "../skills/bad"], 1),
    (["serve", "nowhere"], 2),
    (["serve", "--catalog", "sqlite:///nowhere.db"], 1),
    (["serve", "../skills", "--catalog", "default"], 2),
    (["publish", "../skills/bad"], 1),
    (["publish", "../skills", "--catalog", "skills.db"], 2),
    (["history", "nothing", "--catalog", "sqlite:///nowhere.db"], 1),
    (["rollback", "triage"], 2),
    (["unpublish"], 2),
    (["catalog", "melt"], 2),
    (["catalog", "restore", "nowhere.tar"], 1),
    (["search", "triage", "--catalog", "skills.db"], 2),
    (["serve", "../skills", "--rate", "5"], 2),
    (["serve", "--config", "nowhere.toml"], 1),
]


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_an_answer_fits_the_schema_of_its_command(world: World, words: tuple[str, ...]) -> None:
    ended = world.run(*words, "--json")

    assert "error" not in ended.json
    assert ended.json["schema"] == f"skillwire/{words[0]}/1"
    validator(words[0]).validate(ended.json)


@pytest.mark.parametrize(("words", "code"), FAILURES, ids=lambda value: str(value))
def test_a_failure_fits_the_schema_of_its_command(world: World, words: list[str], code: int) -> None:
    ended = world.run(*words, "--json")

    assert (ended.code, "error" in ended.json) == (code, True)
    validator(words[0]).validate(ended.json)


def test_what_a_server_says_when_it_listens_fits_its_schema(world: World) -> None:
    with http_server(world.root / "skills", "--json", env=world.env) as server:
        process = server.process
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] != b"}\n":
            lines.append(process.stdout.readline())
            assert lines[-1], "the document is complete"

    validator("serve").validate(json.loads(b"".join(lines)))


def test_a_schema_refuses_what_is_no_answer() -> None:
    assert not validator("list").is_valid({"schema": "skillwire/list/1"})
    assert not validator("doctor").is_valid({"schema": "skillwire/doctor/1", "ok": True, "checks": [{}]})
