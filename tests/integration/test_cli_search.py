"""`skillwire search`: what is found, in pages that add up, of whoever could be asked."""

from pathlib import Path

import pytest

from integration.cli_world import Ended, World, local_skill

NAMES = [f"report-{number:02}" for number in range(45)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A server with many reports, one of them for people only, and one server that is down."""
    world = World(tmp_path_factory.mktemp("world"))
    local_skill(world, "notes")
    skills = {name: f"Write the monthly report {name}." for name in NAMES}
    folder = world.write("skills", {**skills, "tickets": "Sort incoming tickets. <b>Now</b> & here."})
    server = {**world.server("team", folder), "skills": {"show": {"tickets": "manual"}}}
    world.configure(team=server, down={"url": "http://127.0.0.1:9/mcp"})
    return world


@pytest.fixture(scope="module")
def first(world: World) -> Ended:
    return world.run("search", "monthly report", "--wait", "60", "--json")


def references(ended: Ended) -> list[str]:
    return [match["reference"] for match in ended.json["matches"]]


@pytest.mark.requirement("HOST-05")
def test_people_also_find_what_the_model_may_not_load(world: World) -> None:
    ended = world.run("search", "tickets", "team", "--wait", "60")

    (line,) = ended.lines
    assert ended.code == 0
    state = "not approved, manual  name, path, description"
    assert line.startswith(f"team/tickets  {state}  Sort incoming tickets.")


def test_the_first_twenty_come_with_a_way_to_the_rest(world: World, first: Ended) -> None:
    assert (first.code, len(references(first)), first.json["total"]) == (0, 20, len(NAMES))

    second = world.run("search", "monthly report", "--cursor", first.json["cursor"], "--wait", "60")
    whole = world.run("search", "monthly report", "--all", "--wait", "60", "--json")

    assert "--cursor " in second.err
    shown = references(first) + [line.split("  ")[0] for line in second.lines]
    assert shown == references(whole)[:40]
    assert sorted(references(whole)) == [f"team/{name}" for name in NAMES]
    assert whole.json["cursor"] is None


def test_a_server_that_could_not_be_looked_through_is_named(first: Ended) -> None:
    assert first.json["notSearched"] == ["down"]
    assert [line.split(":")[0] for line in first.err.splitlines()] == ["down"]


def test_with_nothing_configured_it_is_said_how_to_add_a_server(tmp_path: Path) -> None:
    ended = World(tmp_path).run("search", "report")

    assert ended.code == 1
    assert "no servers are configured here" in ended.err and "skillwire add LABEL URL" in ended.err


def test_nothing_found_is_a_no(world: World) -> None:
    ended = world.run("search", "zeppelin", "team", "--wait", "60")

    assert (ended.code, ended.out) == (1, "")
    assert "no skill matches zeppelin" in ended.err


def test_a_cursor_of_another_search_is_refused(world: World, first: Ended) -> None:
    ended = world.run("search", "tickets", "--cursor", first.json["cursor"], "--wait", "60", "--json")

    assert (ended.code, ended.json["error"]["code"]) == (1, "invalid-cursor")


def test_results_fit_a_narrow_terminal(world: World) -> None:
    screen = world.show("search", "monthly", "--limit", "3", "--wait", "60", columns=40)

    assert screen.code == 0
    assert max(map(len, screen.lines)) <= 40
    assert sum(line.startswith("team/report-") for line in screen.lines) == 3


def test_a_search_in_a_folder_starts_no_server(tmp_path: Path) -> None:
    world = World(tmp_path)
    folder = world.write("skills", {"one": "The first."})
    marker = world.root / "started"
    world.configure(team={"command": "touch", "args": [str(marker)]})

    ended = world.run("search", "first", folder)

    assert (ended.code, ended.lines) == (0, ["one  local  description  The first."])
    assert not marker.exists()
