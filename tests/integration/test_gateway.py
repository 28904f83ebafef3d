"""`skillwire serve --upstream`: many servers as one, read in plain JSON-RPC, with real processes behind."""

import base64
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from folders import skill_md, write_files
from programs import http_server, stdio_server, words_of
from serving import (
    INITIALIZED,
    Json,
    StdioServer,
    environment,
    handshake,
    legacy,
    listed_uris,
    modern,
    wait_until,
)
from skillwire.gateway.gateway import FIRST_LISTING_SECONDS
from skillwire.server.skills import MCP_DIALECTS
from skillwire.sources.snapshot import MAX_ENCLOSING

LOGO = b"\x89PNG\r\n\x1a\n\xff\x00logo"
SHOP: Mapping[str, str | bytes] = {
    "refunds/SKILL.md": skill_md("refunds", body="Read [the policy](references/policy.md).\n"),
    "refunds/references/policy.md": "Within 30 days.\n",
    "refunds/assets/logo.png": LOGO,
    "acme/stock/SKILL.md": skill_md("stock"),
}
DESK: Mapping[str, str | bytes] = {
    "refunds/SKILL.md": skill_md("refunds", body="Ask the desk.\n"),
    "outer/SKILL.md": skill_md("outer"),
    "outer/inner/SKILL.md": skill_md("inner"),
}
REFUNDS = "skill://shop/refunds/SKILL.md"
PATIENCE = 60.0
HOSTILE = Path(__file__).with_name("hostile_peer.py")
LISTS = ("skills/list", "resources/list", "resources/templates/list", "prompts/list", "tools/list")


@pytest.fixture
def env(empty_home: Path) -> dict[str, str]:
    return environment(empty_home)


def upstream(*args: str | Path, env: Mapping[str, str], **more: Any) -> Json:
    """Return a server of a configuration: `skillwire serve` with these arguments."""
    command, *words = words_of(*args)
    return {"command": command, "args": words, "env": dict(env), **more}


def config(folder: Path, **servers: Json) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}), "utf-8")
    return path


def entries(server: StdioServer) -> dict[str, Json]:
    answer = server.call(modern("skills/list"))
    return {entry["uri"]: entry for entry in answer["result"]["skills"]}


def content(server: StdioServer, uri: str) -> bytes:
    answer = server.call(modern("resources/read", uri=uri))
    item = answer["result"]["contents"][0]
    return item["text"].encode() if "text" in item else base64.b64decode(item["blob"])


def until(server: StdioServer, is_true: Callable[[], bool], what: str) -> None:
    wait_until(is_true, PATIENCE, f"{what}:\n{server.words}")


@pytest.mark.requirement("SDK-08")
def test_every_skill_of_every_server_is_served_below_the_servers_name(
    tmp_path: Path, env: dict[str, str]
) -> None:
    write_files(tmp_path / "shop", SHOP)
    write_files(tmp_path / "desk", DESK)
    servers = config(
        tmp_path,
        Shop=upstream(tmp_path / "shop", env=env),
        desk=upstream(tmp_path / "desk", env=env),
    )

    with stdio_server("--upstream", servers, env=env) as gateway:
        listed = listed_uris(gateway.call(modern("skills/list")))

    assert listed == [
        "skill://desk/outer/SKILL.md",
        "skill://desk/outer/inner/SKILL.md",
        "skill://desk/refunds/SKILL.md",
        "skill://shop/acme/stock/SKILL.md",
        "skill://shop/refunds/SKILL.md",
    ]


@pytest.mark.requirement("SDK-08")
@pytest.mark.requirement("INT-02")
def test_bytes_and_digests_are_the_upstreams_and_the_entry_says_where_it_comes_from(
    tmp_path: Path, env: dict[str, str]
) -> None:
    write_files(tmp_path / "shop", SHOP)
    servers = config(tmp_path, shop=upstream(tmp_path / "shop", env=env))
    with stdio_server(tmp_path / "shop", env=env) as direct:
        original = entries(direct)["skill://refunds/SKILL.md"]

    with stdio_server("--upstream", servers, env=env) as gateway:
        entry = entries(gateway)["skill://shop/refunds/SKILL.md"]
        files = {line["uri"]: content(gateway, line["uri"]) for line in entry["resources"]}

    assert entry["frontmatter"] == original["frontmatter"]
    assert entry["resources"] == [
        {**line, "uri": line["uri"].replace("skill://", "skill://shop/", 1)} for line in original["resources"]
    ]
    assert files["skill://shop/refunds/assets/logo.png"] == LOGO
    assert all(
        line["digest"] == f"sha256:{hashlib.sha256(files[line['uri']]).hexdigest()}"
        for line in entry["resources"]
    )
    assert entry["_meta"]["skillwire/upstream"] == {
        "server": "shop",
        "uri": "skill://refunds/SKILL.md",
        "dialect": "core",
        "digests": "upstream",
    }


MADE = {
    "index-june": "upstream",
    "index-april": "computed",
    "list-march": "computed",
    "primitive": "computed",
    "exec": "computed",
    "prompt": "computed",
}
"""Who made the digests of a skill that came in an older dialect; our own June index carries all of them."""


@pytest.mark.requirement("SDK-08")
@pytest.mark.parametrize("dialect", [str(dialect) for dialect in MCP_DIALECTS])
def test_a_server_of_any_dialect_is_served_with_a_digest_for_every_file(
    dialect: str, tmp_path: Path, env: dict[str, str]
) -> None:
    write_files(tmp_path / "shop", SHOP)
    spoken = upstream(tmp_path / "shop", "--dialect", dialect, env=env, skills={"dialect": dialect})
    servers = config(tmp_path, shop=spoken)

    with stdio_server("--upstream", servers, env=env) as gateway:
        found = entries(gateway)
        entry = found["skill://shop/refunds/SKILL.md"]
        files = {line["uri"]: content(gateway, line["uri"]) for line in entry["resources"]}

    assert entry["_meta"]["skillwire/upstream"]["dialect"] == dialect
    assert entry["_meta"]["skillwire/upstream"]["digests"] == MADE[dialect]
    assert all(
        line["digest"] == f"sha256:{hashlib.sha256(files[line['uri']]).hexdigest()}"
        for line in entry["resources"]
    )
    assert files["skill://shop/refunds/references/policy.md"] == b"Within 30 days.\n"
    assert entry["frontmatter"]["name"] == "refunds"
    assert "skill://shop/acme/stock/SKILL.md" in found or "skill://shop/stock/SKILL.md" in found


def test_a_server_that_is_away_costs_only_its_own_skills(tmp_path: Path, env: dict[str, str]) -> None:
    write_files(tmp_path / "shop", SHOP)
    servers = config(
        tmp_path,
        shop=upstream(tmp_path / "shop", env=env),
        gone={"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]},
        nowhere={"url": "http://127.0.0.1:9/mcp"},
        wrong={"command": ""},
    )

    with stdio_server("--upstream", servers, env=env) as gateway:
        listed = listed_uris(gateway.call(modern("skills/list")))

    assert listed == ["skill://shop/acme/stock/SKILL.md", "skill://shop/refunds/SKILL.md"]
    assert "gone: cannot list skills" in gateway.words
    assert "nowhere: cannot list skills" in gateway.words
    assert "wrong is not served" in gateway.words.replace("'", "")


def test_a_server_that_goes_away_later_keeps_its_place_and_what_was_read_of_it(
    tmp_path: Path, env: dict[str, str]
) -> None:
    write_files(tmp_path / "shop", SHOP)
    with http_server(tmp_path / "shop", env=env) as shop:
        servers = config(tmp_path, shop={"url": shop.url})
        with stdio_server("--upstream", servers, env=env) as gateway:
            policy = "skill://shop/refunds/references/policy.md"
            before = content(gateway, policy)
            shop.stop()

            after = content(gateway, policy)
            unread = gateway.call(modern("resources/read", uri="skill://shop/acme/stock/SKILL.md"))
            listed = listed_uris(gateway.call(modern("skills/list")))

    assert before == after == b"Within 30 days.\n"
    assert unread["error"]["code"] == -32603
    assert listed == ["skill://shop/acme/stock/SKILL.md", "skill://shop/refunds/SKILL.md"]


def test_a_change_upstream_is_served_and_announced(tmp_path: Path, env: dict[str, str]) -> None:
    write_files(tmp_path / "shop", SHOP)
    servers = config(tmp_path, shop=upstream(tmp_path / "shop", env=env))
    with stdio_server("--upstream", servers, env=env) as gateway:
        gateway.call(handshake())
        gateway.send(INITIALIZED)
        uri = "skill://shop/refunds/SKILL.md"
        before = gateway.call(legacy("skills/get", 1, uri=uri))["result"]["skill"]["resources"]

        write_files(tmp_path / "shop", {"refunds/references/policy.md": "Within 14 days.\n"})
        told = gateway.receive(PATIENCE)
        after = gateway.call(legacy("skills/get", 2, uri=uri))["result"]["skill"]["resources"]
        read = gateway.call(legacy("resources/read", 3, uri="skill://shop/refunds/references/policy.md"))

    assert told["method"] == "notifications/resources/list_changed"
    assert [line["uri"] for line in after if line not in before] == [
        "skill://shop/refunds/references/policy.md"
    ]
    assert read["result"]["contents"][0]["text"] == "Within 14 days.\n"


@pytest.mark.parametrize("dialect", ["index-april", "list-march", "exec"])
def test_a_change_of_a_file_that_nobody_promised_anything_about_is_served_with_a_new_digest(
    dialect: str, tmp_path: Path, env: dict[str, str]
) -> None:
    write_files(tmp_path / "shop", SHOP)
    spoken = upstream(tmp_path / "shop", "--dialect", dialect, env=env, skills={"dialect": dialect})
    policy = "skill://shop/refunds/references/policy.md"
    with stdio_server("--upstream", config(tmp_path, shop=spoken), env=env) as gateway:
        before = {line["uri"]: line["digest"] for line in entries(gateway)[REFUNDS]["resources"]}
        write_files(tmp_path / "shop", {"refunds/references/policy.md": "Within 14 days.\n"})

        def digests() -> dict[str, str]:
            return {line["uri"]: line["digest"] for line in entries(gateway)[REFUNDS]["resources"]}

        until(gateway, lambda: digests() != before, "the change is served")
        after, read = digests(), content(gateway, policy)

    assert {uri for uri in after if after[uri] != before[uri]} == {policy}
    assert read == b"Within 14 days.\n"


def test_each_upstream_shows_only_what_its_settings_let_through(tmp_path: Path, env: dict[str, str]) -> None:
    write_files(tmp_path / "shop", SHOP)
    write_files(tmp_path / "desk", DESK)
    servers = config(
        tmp_path,
        shop=upstream(tmp_path / "shop", env=env, skills={"show": {"*": "off", "refunds": "normal"}}),
        desk=upstream(tmp_path / "desk", env=env, skills={"show": {"refunds": "off"}}),
        never=upstream(tmp_path / "desk", env=env, skills=False),
    )

    with stdio_server("--upstream", servers, env=env) as gateway:
        listed = listed_uris(gateway.call(modern("skills/list")))
        hidden = [
            gateway.call(modern(method, uri=uri))["error"]
            for method in ("skills/get", "resources/read")
            for uri in ("skill://shop/acme/stock/SKILL.md", "skill://shop/acme/never/SKILL.md")
        ]

    assert listed == [
        "skill://desk/outer/SKILL.md",
        "skill://desk/outer/inner/SKILL.md",
        "skill://shop/refunds/SKILL.md",
    ]
    assert {error["code"] for error in hidden} == {-32602}
    words = [error["message"].replace("stock", "never") for error in hidden]
    assert words[0] == words[1]
    assert words[2] == words[3]


def test_a_gateway_may_serve_folders_too_and_stand_behind_another(
    tmp_path: Path, env: dict[str, str]
) -> None:
    write_files(tmp_path / "shop", SHOP)
    write_files(tmp_path / "own", {"letters/SKILL.md": skill_md("letters")})
    inner = config(tmp_path, shop=upstream(tmp_path / "shop", env=env))
    (tmp_path / "second").mkdir()
    outer = config(tmp_path / "second", hub=upstream(tmp_path / "own", "--upstream", inner, env=env))

    with stdio_server("--upstream", outer, env=env) as gateway:
        found = entries(gateway)

    assert [*found] == [
        "skill://hub/letters/SKILL.md",
        "skill://hub/shop/acme/stock/SKILL.md",
        "skill://hub/shop/refunds/SKILL.md",
    ]
    # The nearest gateway speaks of the server it asked; what that one said itself is one step further.
    assert found["skill://hub/shop/refunds/SKILL.md"]["_meta"]["skillwire/upstream"]["server"] == "hub"


def test_workers_share_a_gateway_over_http(tmp_path: Path, env: dict[str, str]) -> None:
    write_files(tmp_path / "shop", SHOP)
    servers = config(tmp_path, shop=upstream(tmp_path / "shop", env=env))

    with http_server("--upstream", servers, "--workers", "2", env=env) as gateway:
        answers = [listed_uris(gateway.call(modern("skills/list"))) for _ in range(6)]

    assert answers == [["skill://shop/acme/stock/SKILL.md", "skill://shop/refunds/SKILL.md"]] * 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "no object `mcpServers`"),
        ('{"mcpServers": {}}', "no upstream server that can be used"),
        ('{"mcpServers": {"a": {"command": "x", "disabled": true}}}', "no upstream server that can be used"),
    ],
)
def test_a_configuration_without_servers_is_refused_before_anything_starts(
    text: str, words: str, tmp_path: Path, env: dict[str, str]
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text, "utf-8")

    with stdio_server("--upstream", path, env=env, ready=False) as gateway:
        code = gateway.wait()

    assert code == 1
    assert words in gateway.words.replace("\n", " ")


def peer(folder: Path, behaviour: str, log: str) -> Json:
    """Return a server of a configuration: one that misbehaves."""
    return {
        "command": sys.executable,
        "args": [str(HOSTILE), behaviour, "modern", str(folder / log)],
        "skills": {"dialect": "core"},
    }


def test_silent_servers_delay_neither_the_start_nor_one_another_and_are_added_when_they_answer(
    tmp_path: Path, env: dict[str, str]
) -> None:
    write_files(tmp_path / "shop", SHOP)
    names = ("one", "two", "three", "four", "five", "six")
    silent = {name: peer(tmp_path, "late", f"{name}.log") for name in names}
    servers = config(tmp_path, **silent, shop=upstream(tmp_path / "shop", env=env))
    started = time.monotonic()

    with stdio_server("--upstream", servers, env=env) as gateway:
        listed = listed_uris(gateway.call(modern("skills/list")))
        first_answer = time.monotonic() - started
        (tmp_path / "two.log.go").touch()
        until(
            gateway, lambda: "skill://two/refunds/SKILL.md" in entries(gateway), "the late server is served"
        )
        later = [*entries(gateway)]

    shop = ["skill://shop/acme/stock/SKILL.md", "skill://shop/refunds/SKILL.md"]
    assert listed == shop
    assert first_answer < len(silent) * FIRST_LISTING_SECONDS / 2
    assert later == [*shop, "skill://two/refunds/SKILL.md"]


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize("method", ["resources/read", "resources/directory/read"])
def test_a_deep_uri_of_nothing_costs_an_upstream_a_bounded_number_of_requests(
    method: str, tmp_path: Path, env: dict[str, str]
) -> None:
    servers = config(tmp_path, shop=peer(tmp_path, "lists-all", "shop.log"))

    with stdio_server("--upstream", servers, env=env) as gateway:
        listed = listed_uris(gateway.call(modern("skills/list")))
        answer = gateway.call(modern(method, uri="skill://shop/" + "a/" * 8_000 + "b"))

    lines = (tmp_path / "shop.log").read_text("utf-8").splitlines()
    requests = [json.loads(line).get("method") for line in lines]
    assert listed == [REFUNDS]
    assert answer["error"]["code"] == -32602
    assert 0 < requests.count("skills/get") <= MAX_ENCLOSING


@pytest.mark.parametrize("dialect", [str(dialect) for dialect in MCP_DIALECTS])
def test_clients_get_label_uri_and_code_of_an_upstreams_failure_and_the_log_gets_its_text(
    dialect: str, tmp_path: Path, env: dict[str, str]
) -> None:
    servers = config(tmp_path, shop=peer(tmp_path, "poisoned", "shop.log"))
    broken, unlisted = "skill://shop/broken/SKILL.md", "skill://shop/other/SKILL.md"
    prompt = {"type": "ref/prompt", "name": "refunds"}
    template = {"type": "ref/resource", "uri": "skill://{+path}"}
    asked: list[Json] = [
        *(modern(method) for method in LISTS),
        *(
            modern(method, uri=uri)
            for method in ("skills/get", "resources/read", "resources/directory/read", "skills/execute")
            for uri in (REFUNDS, broken, unlisted, "skill://shop", f"{unlisted[:-8]}a/b.md")
        ),
        *(
            modern("completion/complete", ref=ref, argument={"name": "path", "value": "shop/"})
            for ref in (prompt, template)
        ),
        *(modern("prompts/get", name=name) for name in ("refunds", "shop/refunds", "other")),
        *(
            modern("tools/call", name=tool, arguments=arguments)
            for tool in ("find_skills", "read_skill", "load_skill")
            for arguments in ({"query": "refunds"}, {"uri": REFUNDS}, {"name": "refunds"})
        ),
    ]

    with stdio_server("--upstream", servers, "--dialect", dialect, env=env) as gateway:
        answers = [json.dumps(gateway.call(request)) for request in asked]
        read = gateway.call(modern("resources/read", uri=REFUNDS))["error"]
        until(gateway, lambda: "POISON" in gateway.words, "the log has the text")

    assert [answer for answer in answers if "POISON" in answer or "secret" in answer] == []
    assert read == {
        "code": -32603,
        "message": f"the upstream server shop could not serve {REFUNDS} (server-error -32050)",
    }
    assert "\x1b" not in gateway.words
