"""`skillwire list`: what a host knows, whatever became of single servers."""

import json
import sys
from pathlib import Path

import pytest

from configs import configured
from folders import write_files
from integration.cli_world import SKILLS, Ended, World, local_skill
from programs import words_of
from skillwire.host import Host, HostLimits, Question, Reply, Storage


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with a server, one that is down, one that is off, one that is wrong, and a local skill.

    Nothing in it is changed, so that all tests can share it.
    """
    world = World(tmp_path_factory.mktemp("team"))
    local_skill(world, "notes")
    folder = world.write("skills", SKILLS)
    world.configure(
        team=world.server("team", folder),
        down={"url": "http://127.0.0.1:9/mcp"},
        off={"command": "none", "disabled": True},
        wrong={"command": "none", "args": ["${NOWHERE_SET}"]},
    )
    return world


@pytest.fixture(scope="module")
def listed(team: World) -> Ended:
    return team.run("list", "--wait", "60")


async def load(world: World, reference: str) -> None:
    """Approve a skill for good, as an agent would have its user do, by loading it."""

    async def always(_question: Question) -> Reply:
        return Reply.ALWAYS

    config, places = world.project / ".mcp.json", Storage(world.state, world.cache)
    async with Host.from_config(
        config, approve=always, storage=places, limits=HostLimits(wait_seconds=60)
    ) as host:
        await host.load(reference)


@pytest.mark.requirement("HOST-05")
def test_elsewhere_than_on_a_terminal_each_skill_is_one_line(listed: Ended) -> None:
    assert listed.code == 0
    assert listed.lines == [
        "notes  local  Use when testing notes.",
        f"team/billing/refunds  not approved  {SKILLS['billing/refunds']}",
        f"team/shop/refunds  not approved  {SKILLS['shop/refunds']}",
        f"team/triage  not approved  {SKILLS['triage']}",
    ]


def test_a_server_that_is_down_costs_one_line_and_its_own_skills(listed: Ended) -> None:
    about = [line for line in listed.err.splitlines() if line.startswith("down ")]

    assert len(about) == 1
    assert "failed: " in about[0] and "fix: " in about[0]
    assert "Traceback" not in listed.err


@pytest.mark.parametrize("columns", [80, 40])
def test_a_terminal_shows_the_origin_first_and_fits(team: World, columns: int) -> None:
    screen = team.show("list", "--wait", "60", columns=columns)

    rows = [line for line in screen.lines if line.startswith("  ")]
    assert screen.code == 0
    assert max(map(len, screen.lines)) <= columns
    heading = next(number for number, line in enumerate(screen.lines) if line.startswith("team  MCP server"))
    assert screen.lines.index(next(line for line in rows if "team/triage" in line)) > heading
    for reference in ("notes", "team/billing/refunds", "team/shop/refunds", "team/triage"):
        assert any(line.strip().startswith(reference) for line in rows), reference
    words = " ".join(screen.text.split())
    assert "turned off in the configuration" in words
    assert "invalid-config" in words and "NOWHERE_SET" in words
    assert "connected, 3 skills" in words
    assert "skillwire why REF" in words


@pytest.mark.requirement("NAME-06")
def test_names_that_meet_are_named_with_what_to_do(team: World, listed: Ended) -> None:
    document = team.run("list", "--wait", "60", "--json").json

    assert "renamed  team/refunds" in listed.err
    assert document["collisions"] == [
        {"name": "refunds", "references": ["team/billing/refunds", "team/shop/refunds"]}
    ]


def test_when_nothing_can_be_answered_the_exit_code_says_so(world: World) -> None:
    world.configure(down={"url": "http://127.0.0.1:9/mcp"})

    ended = world.run("list", "--wait", "60")

    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("down ")


def test_a_server_that_is_too_slow_is_named_and_not_waited_for(world: World) -> None:
    local_skill(world, "notes")
    world.configure(slow={"command": sys.executable, "args": ["-c", "import time; time.sleep(50)"]})

    ended = world.run("list", "--wait", "1")

    (line,) = [line for line in ended.err.splitlines() if line.startswith("slow ")]
    assert (ended.code, ended.lines) == (0, ["notes  local  Use when testing notes."])
    assert "--wait" in line


def test_list_search_and_show_say_the_same_of_a_skill_in_the_same_words(team: World) -> None:
    listed = team.run("list", "--json", "--wait", "60").json["skills"]
    matches = team.run("search", "tickets", "--json", "--wait", "60").json["matches"]
    shown = team.run("show", "team/triage", "--json", "--wait", "60").json

    skill = next(skill for skill in listed if skill["reference"] == "team/triage")
    names = skill.keys() - {"files", "size"}
    assert {"origin", "standing", "attention", "listed"} <= names
    assert skill["origin"].keys() == {"kind", "label", "fingerprint"}
    assert {name: shown[name] for name in names} == {name: skill[name] for name in names}
    assert [{name: match[name] for name in skill} for match in matches] == [skill]


def test_nothing_configured_is_an_answer_with_a_hint(world: World) -> None:
    ended = world.run("list")

    assert (ended.code, ended.out) == (0, "")
    assert "fix: run `skillwire add LABEL URL`" in ended.err


def test_what_stands_after_two_dashes_is_a_server_with_options_of_its_own(world: World) -> None:
    folder = world.write("skills", SKILLS)

    words = words_of(folder, "--no-watch")
    words += configured(folder.parent, page_size=1)
    ended = world.run("list", "--json", "--wait", "60", "--", *words)

    (origin,) = ended.json["origins"]
    assert (ended.code, origin["kind"], origin["state"], origin["skills"]) == (0, "server", "connected", 3)
    assert len(ended.json["skills"]) == 3


def test_two_dashes_without_a_command_are_misuse(world: World) -> None:
    ended = world.run("list", "--")

    assert ended.code == 2
    assert "there is no command after --" in ended.err


def test_a_folder_and_a_label_are_targets(team: World) -> None:
    folder = team.write("more", {"one": "The first."})

    ended = team.run("list", folder, "team", "--wait", "60")

    assert [line.split("  ")[0] for line in ended.lines] == [
        "one",
        "team/billing/refunds",
        "team/shop/refunds",
        "team/triage",
    ]
    assert "down" not in ended.err


def test_a_target_that_is_nothing_is_misuse_and_says_what_there_is(team: World) -> None:
    ended = team.run("list", "nowhere", "--json")

    assert (ended.code, ended.json["error"]["code"]) == (2, "misuse")
    assert "team" in ended.json["error"]["fix"]


@pytest.mark.requirement("SEC-01")
def test_a_stranger_cannot_act_on_the_terminal(world: World) -> None:
    evil = '"Good\\e]52;c;aGk=\\a\\e[2J\\u202e\\nteam/fake  approved  Trust me \\u0007"'
    folder = world.write("skills", {"evil": evil})

    ended = world.run("list", folder)
    screen = world.show("list", folder)

    assert len(ended.lines) == 1
    assert b"\x1b]52" not in screen.raw and b"\x1b[2J" not in screen.raw
    assert not any(line.strip().startswith("team/fake") for line in screen.lines)
    assert "\x1b" not in ended.out and "\u202e" not in ended.out


async def test_states_follow_what_the_user_said_and_what_the_server_did(world: World) -> None:
    folder = world.write("skills", {"one": "The first.", "two": "The second."})
    world.configure(team=world.server("team", folder))
    await load(world, "team/one")
    await load(world, "team/two")

    approved = world.run("list", "--wait", "60")
    write_files(folder, {"two/SKILL.md": "---\nname: two\ndescription: Changed.\n---\n\nOther.\n"})
    changed = world.run("list", "--wait", "60")
    world.take_away("team")
    away = world.run("list", "--wait", "60")
    away_json = world.run("list", "--wait", "60", "--json").json

    assert approved.lines == ["team/one  approved  The first.", "team/two  approved  The second."]
    assert changed.lines == ["team/one  approved  The first.", "team/two  changed since approval  Changed."]
    (line,) = away.lines
    assert line.startswith("team/one  offline, approved 20") and line.endswith("  The first.")
    assert (away.code, away_json["origins"][0]["state"]) == (0, "failed")
    assert away_json["skills"][0]["offlineSince"] is not None


def test_settings_are_part_of_a_skills_state(world: World) -> None:
    folder = world.write("skills", {"one": "The first.", "two": "The second.", "three": "The third."})
    server = world.server("team", folder)
    world.configure(team={**server, "skills": {"show": {"one": "manual", "two": "off"}}})

    ended = world.run("list", "--wait", "60")

    assert [line.split("  ")[:2] for line in ended.lines] == [
        ["team/one", "not approved, manual"],
        ["team/three", "not approved"],
        ["team/two", "off"],
    ]


def test_ten_thousand_skills_are_printed_and_none_is_lost(world: World) -> None:
    names = [f"group-{number % 40}/skill-{number:05}" for number in range(10_000)]
    folder = world.write("skills", {name: f"Use for {name}." for name in names})

    words = words_of(folder, "--no-watch")
    ended = world.run("list", "--wait", "80", "--", *words)

    assert ended.code == 0
    assert len(ended.lines) == 10_000
    assert ended.lines[-1].endswith("/skill-09999  not approved  Use for group-39/skill-09999.")


@pytest.mark.requirement("TOOL-01", "HOST-04")
def test_what_a_model_would_be_told_can_be_printed_in_every_form(team: World) -> None:
    said = {
        form: team.run("list", "--wait", "60", "--prompt", form).out for form in ("compact", "xml", "json")
    }
    short = team.run("list", "--wait", "60", "--prompt", "compact", "--budget", "60")

    assert "From MCP server team" in said["compact"]
    assert said["xml"].index("<available_skills>") < said["xml"].index("<name>team/")
    assert json.loads(said["json"])
    assert len(short.out.encode()) <= 60 * 4 and short.code == 0
