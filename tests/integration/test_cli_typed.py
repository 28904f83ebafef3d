"""Targets that were typed: the references that one command prints work in the next, as they were printed."""

from collections.abc import Generator
from pathlib import Path

import pytest

from integration.cli_world import World
from programs import http_server
from serving import HttpServer


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.write("skills", {"refunds": "Refunds. Use when asked."})
    return world


@pytest.fixture
def server(world: World) -> Generator[HttpServer]:
    with http_server(world.root / "skills", env=world.env) as server:
        yield server


def references(world: World, *target: str | Path) -> list[str]:
    ended = world.run("list", *target)
    return [line.split("  ")[0] for line in ended.lines]


def test_the_references_of_a_url_work_without_it_afterwards(world: World, server: HttpServer) -> None:
    reference = f"127.0.0.1-{server.port}/refunds"

    unknown = world.run("show", reference, "--json")
    printed = references(world, server.url)
    shown = world.run("show", reference, "--json")
    explained = world.run("why", reference, "--json")
    loaded = world.run("load", reference)

    assert unknown.json["error"]["code"] == "unknown-reference"
    assert f"skillwire add 127.0.0.1-{server.port} URL" in unknown.err
    assert printed == [reference]
    assert (shown.code, shown.json["reference"]) == (0, reference)
    assert server.url in shown.err
    assert explained.json["commands"] == [f"skillwire show {reference}", f"skillwire approve {reference}"]
    assert f"skillwire approve {reference}" in loaded.err
    assert "a name you gave it" not in world.run("show", reference).out


def test_a_label_of_the_configuration_means_the_configured_server(world: World, server: HttpServer) -> None:
    label = f"127.0.0.1-{server.port}"
    references(world, server.url)
    world.configure(**{label: {"url": "http://127.0.0.1:9/mcp"}})

    shown = world.run("show", f"{label}/refunds", "--json")

    assert shown.code == 1 and server.url not in shown.err


def test_a_url_that_does_not_answer_does_not_take_the_place_of_one_that_did(
    world: World, server: HttpServer
) -> None:
    references(world, server.url)

    world.run("list", f"{server.url}/typo")

    assert world.run("show", f"127.0.0.1-{server.port}/refunds").code == 0


def test_the_skills_of_a_folder_and_of_a_command_are_found_again_where_they_were_typed(world: World) -> None:
    program = str(world.server("team", world.root / "skills")["command"])

    assert references(world, world.root / "skills") == ["refunds"]
    assert references(world, "--", program) == ["team.sh/refunds"]
    here = [world.run("show", reference, "--json") for reference in ("refunds", "team.sh/refunds")]
    elsewhere = world.at("elsewhere")
    there = [elsewhere.run("show", reference, "--json") for reference in ("refunds", "team.sh/refunds")]

    assert [ended.code for ended in here] == [0, 0]
    assert program in here[1].err
    assert [ended.json["error"]["code"] for ended in there] == ["unknown-reference"] * 2
    assert f"team.sh is a command that was typed in {world.project}" in there[1].err
    assert "--at" not in there[1].err


def test_an_address_in_the_place_of_a_reference_is_to_be_listed_first(world: World) -> None:
    url = "http://127.0.0.1:9/mcp"

    shown, explained = world.run("show", url), world.run("why", url, "--json")

    assert f"run `skillwire list {url}`, and use a reference that it prints" in shown.err
    assert "skillwire add" not in shown.err
    assert explained.json["commands"] == [f"skillwire list {url}"]


def test_a_bare_name_is_understood_as_the_skill_of_a_target_typed_before(
    world: World, server: HttpServer
) -> None:
    [reference] = references(world, server.url)

    shown, explained = world.run("show", "refunds"), world.run("why", "refunds", "--json")

    assert f"fix: did you mean {reference}?" in shown.err
    assert explained.json["commands"][0] == f"skillwire why {reference}"


def test_the_references_of_a_target_are_added_to_those_of_the_configuration(
    world: World, server: HttpServer
) -> None:
    world.configure(team=world.server("team", world.root / "skills"))
    world.run("list")
    [reference] = references(world, server.url)

    assert world.run("completion", "--references=").lines == [reference, "team/refunds"]


@pytest.mark.requirement("SEC-16")
def test_a_reference_to_a_typed_target_starts_nothing_of_the_folder(world: World, server: HttpServer) -> None:
    references(world, server.url)
    trace = world.root / "started"
    (world.project / ".mcp.json").write_text(
        f'{{"mcpServers": {{"evil": {{"command": "touch", "args": ["{trace}"]}}}}}}'
    )

    shown = world.run("show", f"127.0.0.1-{server.port}/refunds")

    assert (shown.code, trace.exists()) == (0, False)


def test_suggested_commands_have_the_options_with_which_they_find_the_same(
    world: World, server: HttpServer
) -> None:
    config = world.root / "other config.json"
    config.write_text(f'{{"mcpServers": {{"team": {{"url": "{server.url}"}}}}}}')

    configured = world.run("why", "team/refunds", "--config", config, "--json")
    reached = world.run("why", f"127.0.0.1-{server.port}/refunds", "--at", server.url, "--json")
    mistyped = world.run("show", "team/nothing", "--config", config)
    unasked = world.run("approve", "team/refunds", "--config", config)
    other = world.run(
        "approve", "team/refunds", "--config", config, "--yes", "--digest", f"sha256:{'0' * 64}"
    )
    asked = world.show("approve", "team/refunds", "--config", config, columns=200, answers=[("Approve", "n")])

    assert configured.json["commands"][1] == f"skillwire approve team/refunds --config '{config}'"
    assert reached.json["commands"][1].endswith(f"/refunds --at {server.url}")
    assert f"skillwire list team --config '{config}'" in mistyped.err
    digest = world.run("show", "team/refunds", "--config", config, "--json").json["binding"]
    again = f"skillwire approve team/refunds --yes --digest {digest} --config '{config}'"
    assert f"`skillwire show team/refunds --config '{config}'`, then run `{again}`" in unasked.err
    assert f"`skillwire show team/refunds --config '{config}'`" in other.err
    assert f"skillwire approve team/refunds --review --config '{config}'" in asked.text
