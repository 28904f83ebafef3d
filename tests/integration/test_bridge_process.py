"""`skillwire bridge` as agents start it: a process on two pipes, or one port of this machine."""

import json
import os
import re
import shlex
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from folders import skill_md, write_files
from hostile.hosting import DEADLINE
from integration import bridge_world
from integration.bridge_world import PageReader, declare_urls_only
from integration.cli_world import World
from integration.hosting_serve import serving
from integration.test_first_answer import HELD
from programs import skillwire_command
from serving import COMMAND as SERVE
from serving import INITIALIZED, Json, StdioServer, cancelled, handshake, hook, legacy, stdio_server

BRIDGE = [*SERVE[: SERVE.index("serve")], "bridge"]
LISTS = ("tools/list", "prompts/list", "resources/list")
REFUNDS = "team/refunds"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    write_files(tmp_path / "skills", {"refunds/SKILL.md": skill_md("refunds", body="Pay back.\n")})
    return world


@contextmanager
def bridge(world: World, *words: str | Path, env: Mapping[str, str] | None = None) -> Generator[StdioServer]:
    """Start a bridge in the project; a real start, unless nothing depends on what it imports first."""

    def command(*args: str | Path) -> list[str]:
        return ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(world.project), *BRIDGE, *map(str, args)]

    with stdio_server(*words, env=env or world.env, ready=False, command=command) as server:
        yield server


def configured(world: World, name: str = "team") -> Path:
    """Return a configuration that is named, so that it needs no trust, with one server."""
    config = world.root / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {name: world.server(name, world.root / "skills")}}))
    config.chmod(0o600)
    return config


def text_in(answer: Json) -> str:
    return "".join(content["text"] for content in answer["result"]["content"])


def call(server: StdioServer, tool: str, identifier: int = 9, **arguments: Any) -> Json:
    return answer_to(server, legacy("tools/call", identifier, name=tool, arguments=arguments))


def answer_to(server: StdioServer, request: Json) -> Json:
    """Send a request, and return its answer; notifications before it are left out."""
    server.send(request)
    while (answer := server.receive()).get("id") != request["id"] or "method" in answer:
        pass
    return answer


def open_session(server: StdioServer, **capabilities: Any) -> Json:
    first = handshake(0)
    first["params"]["capabilities"] = capabilities
    answer = answer_to(server, first)
    server.send(INITIALIZED)
    return answer


def run_once(world: World, config: Path) -> None:
    """Run a bridge until it has listed and stored its skills."""
    with bridge(world, "--config", config) as server:
        open_session(server)
        while "- team/refunds" not in json.dumps(answer_to(server, legacy("tools/list", 1))):
            pass
        server.close_input()
        assert server.wait() == 0


def test_the_first_lists_come_before_the_sdk_and_later_requests_wait_for_it(world: World) -> None:
    held_by = world.root / "held"
    os.mkfifo(held_by)
    env = {**world.env, **hook(world.root / "hook", HELD), "HELD_BY": str(held_by)}
    config = configured(world)

    with bridge(world, "--config", config, env=env) as server:
        first = open_session(server, elicitation={}, roots={})
        lists = [server.call(legacy(method, number)) for number, method in enumerate(LISTS, start=1)]
        server.send(legacy("tools/call", 4, name="load_skill", arguments={"skill": REFUNDS}))
        with held_by.open("w"):
            pass
        asked = server.receive()
        while asked.get("method") != "elicitation/create":
            asked = server.receive()

    assert "search_skills" in first["result"]["instructions"]
    assert first["result"]["capabilities"]["tools"] == {"listChanged": True}
    assert [tool["name"] for tool in lists[0]["result"]["tools"]] == [
        "load_skill",
        "read_skill_file",
        "list_skill_files",
        "search_skills",
    ]
    assert lists[1]["result"] == {"prompts": []} and lists[2]["result"] == {"resources": []}
    assert "From: MCP server team" in asked["params"]["message"]


def test_the_next_start_lists_the_skills_at_once_and_as_the_sdk_does(world: World) -> None:
    config = configured(world)
    run_once(world, config)
    world.take_away("team")

    with bridge(world, "--config", config, "-v") as server:
        first = open_session(server)
        listed, prompts = (answer_to(server, legacy(method, 1)) for method in LISTS[:2])
        refused = call(server, "load_skill", skill=REFUNDS)
        again = answer_to(server, legacy("tools/list", 2))
        words = server.words

    assert "- team/refunds" in first["result"]["instructions"]
    assert "- team/refunds" in listed["result"]["tools"][0]["description"]
    assert [prompt["name"] for prompt in prompts["result"]["prompts"]] == ["team--refunds"]
    assert refused["result"]["isError"] and "team" in text_in(refused)
    assert again["result"]["tools"][0].keys() == listed["result"]["tools"][0].keys()
    assert "changed since the first answer" not in words


def test_the_first_start_in_another_folder_lists_what_the_same_servers_had_and_nothing_of_others(
    world: World,
) -> None:
    config, renamed = world.root / "mcp.json", world.root / "renamed.json"
    with serving(world.root / "skills", world.env) as server:
        config.write_text(json.dumps({"mcpServers": {"team": {"url": server.url}}}))
        renamed.write_text(json.dumps({"mcpServers": {"desk": {"url": server.url}}}))
        run_once(world, config)
    other, own = world.at("other"), world.at("own")
    write_files(own.project, {".agents/skills/mine/SKILL.md": skill_md("mine")})

    shown: list[str] = []
    for place, path in ((other, config), (other, renamed), (own, config)):
        with bridge(place, "--config", path) as started:
            shown.append(open_session(started)["result"]["instructions"])

    assert "- team/refunds" in shown[0]
    assert all("refunds" not in each and "not known yet" in each for each in shown[1:])


def test_a_stored_list_that_another_program_changed_is_not_shown(world: World) -> None:
    config = configured(world)
    run_once(world, config)
    [stored] = world.state.glob("bridge-*")
    stored.write_bytes(stored.read_bytes().replace(b"team/refunds", b"team/obeys! "))

    with bridge(world, "--config", config) as server:
        first = open_session(server)

    assert "obeys" not in first["result"]["instructions"]
    assert "not known yet" in first["result"]["instructions"]


def test_nothing_of_the_environment_reaches_a_server_that_did_not_get_it_by_configuration(
    world: World,
) -> None:
    config, seen = configured(world), world.root / "seen"
    program = world.root / "team.sh"
    program.write_text(program.read_text().replace("exec ", f"env > {seen}\nexec "))
    env = {**world.env, "MODEL_API_KEY": "s3cret", "CLAUDE_CODE": "s3cret", "LD_AUDIT_": "s3cret"}

    with bridge(world, "--config", config, env=env) as server:
        open_session(server)
        found = call(server, "search_skills", query="refunds")
        while "team/refunds" not in text_in(found):
            found = call(server, "search_skills", query="refunds")

    assert "PATH=" in seen.read_text() and "s3cret" not in seen.read_text()


@pytest.mark.parametrize("is_typed_again", [True, False])
def test_a_server_that_is_typed_as_a_command_gets_nothing_of_the_environment_either(
    world: World, is_typed_again: bool
) -> None:
    seen, program = world.root / "seen", world.root / "typed.sh"
    serve = shlex.join(skillwire_command("serve", world.root / "skills"))
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in world.env.items())
    program.write_text(f"#!/bin/sh\nenv > {seen}\nexec env {variables} {serve}\n")
    program.chmod(0o755)
    listed = world.run("list", "--", program)
    [label] = re.findall(r"([\w.-]+)/refunds", listed.out)
    env = {**world.env, "MODEL_API_KEY": "s3cret"}
    seen.unlink()

    with bridge(world, *(("--", program) if is_typed_again else (label,)), env=env) as server:
        open_session(server)
        while f"{label}/refunds" not in text_in(call(server, "search_skills", query="refunds")):
            pass
        refused = text_in(call(server, "load_skill", skill=f"{label}/refunds"))
    [command] = re.findall("`(skillwire approve [^`]+)`", refused)
    shown = world.run(*shlex.split(command.replace("approve", "show"))[1:], "--json")

    assert "PATH=" in seen.read_text() and "s3cret" not in seen.read_text()
    assert shown.code == 0 and shown.json["reference"] == f"{label}/refunds"


def test_cancelling_a_call_that_has_ended_changes_nothing(world: World) -> None:
    with bridge(world, "--config", configured(world)) as server:
        open_session(server)
        for number in range(1, 6):
            call(server, "search_skills", number, query="refunds")
            server.send(cancelled(number))
        server.send(cancelled(99), cancelled("never"))
        last = call(server, "search_skills", 6, query="refunds")
        server.close_input()
        code = server.wait()

    assert "result" in last and code == 0


@pytest.mark.requirement("APPR-01")
def test_a_client_that_only_opens_urls_shows_the_question_on_a_page_of_this_machine(world: World) -> None:
    markup = b"---\nname: refunds\ndescription: <b>hello\n---\n\nPay back.\n"
    write_files(world.root / "skills", {"refunds/SKILL.md": markup})
    with bridge(world, "--config", configured(world)) as server:
        open_session(server, elicitation={"url": {}})
        server.send(legacy("tools/call", 5, name="load_skill", arguments={"skill": REFUNDS}))
        while (asked := server.receive()).get("method") != "elicitation/create":
            pass
        url = asked["params"]["url"]
        page = httpx.get(url)
        elsewhere = httpx.get(f"{url[:-4]}AAAA")
        rebound = httpx.get(url, headers={"Host": "attacker.example"})
        forged = httpx.post(url, content=b"answer=always", headers={"Origin": "https://attacker.example"})
        other = httpx.post(url, content=b"answer=yes")
        long = httpx.post(url, content=b"answer=" + b"x" * 5_000)
        server.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}})
        taken = httpx.post(url, content=b"answer=always")
        told = [server.receive()]
        while told[-1].get("id") != 5:
            told.append(server.receive())
        gone = httpx.get(url)

    assert asked["params"]["mode"] == "url" and url.startswith("http://127.0.0.1:")
    assert page.status_code == 200 and "From: MCP server team" in page.text
    assert "<b>hello" not in page.text and "&lt;b&gt;hello" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    refused = [each.status_code for each in (elsewhere, rebound, forged, other, long, gone)]
    assert refused == [404, 404, 404, 400, 413, 404]
    assert taken.status_code == 200
    assert "notifications/elicitation/complete" in [message.get("method") for message in told]
    assert "Pay back." in text_in(told[-1])
    approved = world.run("approve", REFUNDS, "--config", world.root / "mcp.json")
    assert approved.out.startswith("already approved")


@pytest.mark.requirement("APPR-01")
async def test_the_sdk_of_revision_2026_07_28_opens_the_page_of_a_bridge_and_gets_the_skill(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_urls_only(monkeypatch)
    person, program = PageReader("always"), [*BRIDGE, "--config", str(configured(world))]
    start = StdioServerParameters(
        command=program[0], args=program[1:], env=dict(world.env), cwd=world.project
    )
    with anyio.fail_after(DEADLINE):
        async with Client(stdio_client(start), mode="2026-07-28", elicitation_callback=person) as client:
            loaded = await bridge_world.call(client, "load_skill", skill=REFUNDS)
            again = await bridge_world.call(client, "load_skill", skill=REFUNDS)

    assert "Pay back." in bridge_world.text_of(loaded) and "Pay back." in bridge_world.text_of(again)
    assert len(person.urls) == 1 and person.urls[0].startswith("http://127.0.0.1:")
    assert world.run("approve", REFUNDS, "--config", world.root / "mcp.json").out.startswith("already")


def test_the_configuration_of_a_folder_is_used_once_it_is_trusted(world: World) -> None:
    started = world.root / "started"
    program = world.root / "team.sh"
    world.configure(team=world.server("team", world.root / "skills"))
    program.write_text(program.read_text().replace("exec ", f"touch {started}\nexec "))
    path = world.project / ".mcp.json"
    path.write_text(path.read_text() + "\n")

    with bridge(world) as server:
        open_session(server)
        before = text_in(call(server, "search_skills", query="refunds"))
        answer_to(server, legacy("tools/list", 3))
        words = server.wait_for_words(r"is not trusted.*\n")[0]
        was_started = started.exists()
    world.show("trust", answers=[("Enter means no: ", "y")])
    with bridge(world) as server:
        open_session(server)
        while "team/refunds" not in text_in(call(server, "search_skills", query="refunds")):
            pass

    assert "No skill matches" in before and not was_started
    assert "skillwire trust" in words


def test_an_entry_that_starts_the_bridge_itself_is_left_out(world: World) -> None:
    config = configured(world)
    servers = json.loads(config.read_text())["mcpServers"]
    program, *words = BRIDGE
    servers["skillwire"] = {"command": program, "args": words, "env": dict(world.env)}
    config.write_text(json.dumps({"mcpServers": servers}))

    with bridge(world, "--config", config) as server:
        open_session(server)
        while "team/refunds" not in (found := text_in(call(server, "search_skills", query="refunds"))):
            pass

    assert "skillwire has not answered" not in found


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("0.0.0.0:0", "listens on this machine only"),
        ("example.com:80", "listens on this machine only"),
        ("nonsense", "is not HOST:PORT"),
    ],
)
def test_over_http_it_listens_on_this_machine_only(world: World, address: str, words: str) -> None:
    ended = world.run("bridge", "--http", address)

    assert ended.code == 2 and words in ended.err


def test_a_person_who_types_the_command_learns_that_agents_start_it(world: World) -> None:
    screen = world.show("bridge")

    assert screen.code == 2 and "skillwire setup CLIENT" in " ".join(screen.text.split())


def test_over_http_clients_of_this_machine_are_served_and_web_pages_are_not(world: World) -> None:
    run = partial(stdio_server, "--http", "127.0.0.1:0", "--config", configured(world))
    with run(env=world.env, ready=False, command=lambda *args: [*BRIDGE, *map(str, args)]) as server:
        url = server.wait_for_words(r"bridge at (\S+)\n")[1]
        headers = {"Accept": "application/json, text/event-stream"}
        answer = httpx.post(url, json=handshake(), headers=headers)
        rebound = httpx.post(url, json=handshake(), headers={**headers, "Host": "attacker.example"})
        foreign = httpx.post(url, json=handshake(), headers={**headers, "Origin": "https://attacker.example"})

    assert answer.status_code == 200 and "search_skills" in answer.text
    assert rebound.status_code == 421 and foreign.status_code == 403
