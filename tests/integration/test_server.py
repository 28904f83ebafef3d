"""A server with skills, as a client sees it on the wire: every method, both protocol generations."""

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

from folders import manifest_of, skill_md, write_files, write_skill
from skillwire.core.characters import visible
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import INTERNAL_ERROR, INVALID_PARAMS
from skillwire.core.uri import SkillUri
from skillwire.server import DynamicSkill, add_skills
from skillwire.server.messages import MAX_ECHO
from skillwire.sources import DirectorySource
from talking import (
    EXTENSION,
    AnyServer,
    EntriesOnly,
    Json,
    PlainSource,
    ask,
    connect,
    content_of,
    directory,
    entry_with_files,
    get,
    is_as_promised,
    listing,
    pages,
    read,
    read_item,
    refused,
    skill,
    skills_of,
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"
LARGEST_MESSAGE = 1024 * 1024
SECRET = "hunter2"


@asynccontextmanager
async def serving(*origins: Any, mode: str = "auto", **options: Any) -> AsyncGenerator[Client]:
    """Serve skills from a plain lowlevel server, and connect to it."""
    server: Server[Any] = Server("demo")
    add_skills(server, *origins, **options)
    async with connect(server, mode) as client:
        yield client


# Declaration


@pytest.mark.requirement("NEG-01", "NEG-02", "NEG-03", "NEG-10")
async def test_the_extension_and_resources_are_declared_in_both_generations(
    server: AnyServer, mode: str
) -> None:
    add_skills(server, skill("acme/hello"))

    async with connect(server, mode) as client:
        declared = client.server_capabilities

    assert declared.extensions == {EXTENSION: {"directoryRead": True}}
    assert declared.resources is not None
    assert declared.resources.list_changed is True
    assert declared.resources.subscribe is True


@pytest.mark.requirement("NEG-02", "NEG-10")
async def test_the_modern_declaration_is_in_the_raw_result_of_discovery(server: AnyServer) -> None:
    add_skills(server)

    async with connect(server) as client:
        told = await ask(client, "server/discover")

    assert told["capabilities"]["extensions"] == {EXTENSION: {"directoryRead": True}}
    assert "resources" in told["capabilities"]


@pytest.mark.requirement("NEG-02")
async def test_one_server_serves_both_generations_at_once(server: AnyServer) -> None:
    add_skills(server, skill("acme/hello"))

    async with connect(server, "legacy") as old, connect(server, "auto") as new:
        listed = [await skills_of(old), await skills_of(new)]

        assert (old.protocol_version, new.protocol_version) == ("2025-11-25", "2026-07-28")
    assert listed[0] == listed[1] != {}


@pytest.mark.requirement("NEG-08")
async def test_a_server_nobody_added_skills_to_declares_and_answers_nothing(
    server: AnyServer, mode: str
) -> None:
    async with connect(server, mode) as client:
        declared = client.server_capabilities.extensions or {}
        errors = [await refused(client, method) for method in ("skills/list", "skills/get")]

    assert EXTENSION not in declared
    assert [error.code for error in errors] == [types.METHOD_NOT_FOUND] * 2


@pytest.mark.requirement("NEG-04", "LIST-01", "GET-02")
@pytest.mark.parametrize("origin", ["nothing", "an empty folder"])
async def test_a_server_without_skills_answers_both_methods(
    server: AnyServer, mode: str, origin: str, root: Path
) -> None:
    add_skills(server, *([] if origin == "nothing" else [root]))

    async with connect(server, mode) as client:
        listed = await ask(client, "skills/list")
        error = await refused(client, "skills/get", uri="skill://acme/hello/SKILL.md")
        resources = await listing(client, "resources/list")

    assert listed["skills"] == []
    assert "nextCursor" not in listed
    assert error.code == INVALID_PARAMS
    assert resources == []


@pytest.mark.requirement("NEG-09", "READ-01")
async def test_a_client_that_knows_no_extension_finds_and_reads_skills_as_resources(
    server: AnyServer, mode: str
) -> None:
    built = skill("acme/hello").with_reference("references/a.md", "# A\n")
    add_skills(server, built)

    async with connect(server, mode) as client:
        found = (await client.list_resources()).resources
        contents = (await client.read_resource(found[0].uri)).contents
        reference = (await client.read_resource("skill://acme/hello/references/a.md")).contents

    assert [resource.uri for resource in found] == ["skill://acme/hello/SKILL.md"]
    assert [item.model_dump(exclude_none=True) for item in contents] == [
        {"uri": found[0].uri, "mime_type": "text/markdown", "text": built.skill_md.decode()}
    ]
    assert isinstance(reference[0], types.TextResourceContents)
    assert reference[0].text == "# A\n"


TERMS = {"legacy": {}, "auto": {"resultType": "complete", "ttlMs": 5000, "cacheScope": "public"}}


@pytest.mark.requirement("NEG-17", "LIST-14", "GET-07")
async def test_results_carry_the_terms_of_2026_and_none_of_them_at_2025(server: AnyServer, mode: str) -> None:
    add_skills(server, skill("acme/hello"), ttl=5)

    async with connect(server, mode) as client:
        results = [
            await ask(client, "skills/list"),
            await ask(client, "skills/get", uri="skill://acme/hello/SKILL.md"),
            await ask(client, "resources/directory/read", uri="skill://acme/hello"),
            await ask(client, "resources/read", uri="skill://acme/hello/SKILL.md"),
        ]

    terms = [
        {key: value for key, value in result.items() if key in ("resultType", "ttlMs", "cacheScope")}
        for result in results
    ]
    assert terms == [TERMS[mode]] * 4
    assert [sorted(result.keys() - TERMS["auto"].keys() - {"_meta"}) for result in results] == [
        ["skills"],
        ["skill"],
        ["resources"],
        ["contents"],
    ]


@pytest.mark.requirement("LIST-14")
async def test_every_page_has_the_same_scope_and_a_ttl_of_zero_or_more(mode: str) -> None:
    skills = [skill(f"acme/s{number}") for number in range(5)]

    async with serving(*skills, mode="auto", page_size=2, ttl=0, cache_scope="private") as client:
        found = await pages(client, "skills/list")

    assert [(page["cacheScope"], page["ttlMs"]) for page in found] == [("private", 0)] * 3


@pytest.mark.requirement("NEG-20")
async def test_a_modern_listing_needs_no_request_before_it(server: AnyServer) -> None:
    add_skills(server, skill("acme/hello"))

    async with connect(server, "2026-07-28") as client:
        listed = await skills_of(client)

    assert list(listed) == ["skill://acme/hello/SKILL.md"]


@pytest.mark.requirement("NEG-20")
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_single_http_request_without_handshake_lists_the_skills(
    server: AnyServer, version: str
) -> None:
    add_skills(server, skill("acme/hello"))
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    meta: Json = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    modern = version == "2026-07-28"
    body: Json = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "skills/list",
        "params": {"_meta": meta} if modern else {},
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": version,
        "mcp-method": "skills/list",
    }

    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:8000"
        ) as client,
    ):
        response = await client.post("/mcp", json=body, headers=headers)

    result = response.json()["result"]
    assert [entry["uri"] for entry in result["skills"]] == ["skill://acme/hello/SKILL.md"]
    assert ("resultType" in result) == ("ttlMs" in result) == ("cacheScope" in result) == modern


# skills/list and skills/get


AUTHORED = """\
---
name: titration
description: "Run a titration. Use when measuring acidity."
license: Apache-2.0
compatibility: Needs a burette
allowed-tools: Read Bash(git:*)
metadata:
  version: "3"
  author: Ünïcode ☃
x-numbers: [1, 2.5, -3, 9223372036854775807]
x-words: {on: yes, when: 2026-01-02, none: null, sure: true}
x-text: |
  two
  lines
---

# Titration
"""
PH = b"pH\n"
AUTHORED_AS_JSON = {
    "name": "titration",
    "description": "Run a titration. Use when measuring acidity.",
    "license": "Apache-2.0",
    "compatibility": "Needs a burette",
    "allowed-tools": "Read Bash(git:*)",
    "metadata": {"version": "3", "author": "Ünïcode ☃"},
    "x-numbers": [1, 2.5, -3, 9223372036854775807],
    "x-words": {"on": "yes", "when": "2026-01-02", "none": None, "sure": True},
    "x-text": "two\nlines\n",
}


@pytest.mark.requirement("LIST-03", "LIST-04", "LIST-06", "LIST-08", "GET-01")
async def test_an_entry_is_the_authored_frontmatter_and_every_file(
    server: AnyServer, mode: str, root: Path
) -> None:
    write_files(root / "lab/titration", {"SKILL.md": AUTHORED, "references/ph.md": PH})
    add_skills(server, root)

    async with connect(server, mode) as client:
        listed = await ask(client, "skills/list")
        got = await ask(client, "skills/get", uri="skill://lab/titration/SKILL.md")

    entry = {
        "uri": "skill://lab/titration/SKILL.md",
        "frontmatter": AUTHORED_AS_JSON,
        "resources": [
            {
                "uri": "skill://lab/titration/SKILL.md",
                "digest": f"sha256:{hashlib.sha256(AUTHORED.encode()).hexdigest()}",
                "size": len(AUTHORED.encode()),
            },
            {
                "uri": "skill://lab/titration/references/ph.md",
                "digest": f"sha256:{hashlib.sha256(PH).hexdigest()}",
                "size": 3,
            },
        ],
    }
    assert listed["skills"] == [entry]
    assert got["skill"] == entry
    assert list(entry["frontmatter"]) == list(listed["skills"][0]["frontmatter"])


@pytest.mark.requirement("LIST-05", "LIST-06", "LIST-07", "LIST-08", "URI-01", "URI-02")
async def test_the_listing_of_a_folder_equals_a_walk_of_it(server: AnyServer, mode: str) -> None:
    add_skills(server, EXAMPLES)
    folders = sorted(path.parent for path in EXAMPLES.rglob("SKILL.md"))

    async with connect(server, mode) as client:
        listed = await skills_of(client)

    assert len(folders) == 12
    for folder in folders:
        uri = f"skill://{folder.relative_to(EXAMPLES).as_posix()}/SKILL.md"
        entry = listed.pop(uri)
        expected = manifest_of(folder, uri).files
        assert entry["frontmatter"]["name"] == folder.name == uri.split("/")[-2]
        assert entry["resources"] == [
            {"uri": file.uri, "digest": file.digest, "size": file.size} for file in expected
        ]
        assert all(line["uri"].startswith(uri.removesuffix("SKILL.md")) for line in entry["resources"])
    assert listed == {}


@pytest.mark.requirement("LIST-17", "READ-01", "URI-01")
async def test_with_the_listing_alone_every_file_can_be_read_and_verified(mode: str) -> None:
    methods: list[str] = []

    async with serving(EXAMPLES, mode=mode, page_size=5) as client:
        for entry in (await skills_of(client)).values():
            for line in entry["resources"]:
                methods.append(line["uri"])
                assert is_as_promised(await read(client, line["uri"]), line)

    assert len(methods) > 30


@pytest.mark.requirement("LIST-09", "GET-05")
async def test_a_dynamic_skill_has_the_marker_in_the_listing_and_by_itself(
    server: AnyServer, mode: str
) -> None:
    counter = iter(range(100))
    live = DynamicSkill(
        "live", path="ops/live", description="Use when asked.", body=lambda: f"It is {next(counter)}.\n"
    ).with_file("references/now.md", lambda: b"now\n")
    add_skills(server, live)

    async with connect(server, mode) as client:
        [entry] = (await skills_of(client)).values()
        got = await get(client, "skill://ops/live/SKILL.md")
        reads = [await read(client, "skill://ops/live/SKILL.md") for _ in range(2)]
        result = await ask(client, "resources/read", uri="skill://ops/live/references/now.md")

    assert entry == got
    assert entry["resources"] == "dynamic"
    assert [text.partition(b"\n\n")[2] for text in reads] == [b"It is 0.\n", b"It is 1.\n"]
    assert content_of(result["contents"][0]) == b"now\n"
    assert result.get("ttlMs") == (None if mode == "legacy" else 0)


@pytest.mark.requirement("LIST-12", "LIST-14")
async def test_pages_of_one_entry_equal_the_whole_listing(server: AnyServer, mode: str) -> None:
    add_skills(server, EXAMPLES, page_size=1)

    async with connect(server, mode) as client, serving(EXAMPLES, mode=mode) as other:
        small = await pages(client, "skills/list")
        [large] = await pages(other, "skills/list")

    assert [len(page["skills"]) for page in small] == [1] * 12
    assert [page["skills"][0] for page in small] == large["skills"]
    assert len({page.get("nextCursor") for page in small}) == 12


@pytest.mark.requirement("LIST-12")
async def test_a_listing_goes_on_where_it_was_when_skills_come_and_go_under_way(mode: str) -> None:
    server: Server[Any] = Server("demo")
    skills = add_skills(server, *(skill(f"acme/{letter}") for letter in "bdfh"), page_size=2)

    async with connect(server, mode) as client:
        first = await ask(client, "skills/list")
        skills.remove(SkillUri("skill://acme/d/SKILL.md"))
        skills.add(skill("acme/a"), skill("acme/e"))
        rest: list[str] = []
        cursor = first["nextCursor"]

        async def go_on() -> None:
            nonlocal cursor
            page = await ask(client, "skills/list", cursor=cursor)
            rest.extend(entry["frontmatter"]["name"] for entry in page["skills"])
            cursor = page.get("nextCursor")

        while cursor:
            await go_on()

    assert [entry["frontmatter"]["name"] for entry in first["skills"]] == ["b", "d"]
    assert [name for name in rest if name != "e"] == ["f", "h"]


BAD_CURSORS = ["", "x", "p2", "=", "c2tpbGxz", "🙂", "../..", "a" * 100_000, 4, True, ["p2"], {"after": 1}]


@pytest.mark.requirement("LIST-13", "DIR-05")
async def test_a_cursor_nobody_gave_is_refused(mode: str) -> None:
    async with serving(EXAMPLES, mode=mode) as client:
        errors = [
            await refused(client, method, **params, cursor=cursor)
            for cursor in BAD_CURSORS
            for method, params in (
                ("skills/list", {}),
                ("resources/directory/read", {"uri": "skill://acme"}),
                ("resources/list", {}),
            )
        ]

    assert {error.code for error in errors} == {INVALID_PARAMS}


@pytest.mark.requirement("LIST-13")
async def test_a_cursor_of_one_listing_is_refused_by_another(mode: str) -> None:
    async with serving(EXAMPLES, mode=mode, page_size=1) as client:
        skills = (await ask(client, "skills/list"))["nextCursor"]
        resources = (await ask(client, "resources/list"))["nextCursor"]
        children = (await ask(client, "resources/directory/read", uri="skill://acme"))["nextCursor"]
        errors = [
            await refused(client, "skills/list", cursor=resources),
            await refused(client, "skills/list", cursor=children),
            await refused(client, "resources/list", cursor=skills),
            await refused(client, "resources/directory/read", uri="skill://acme", cursor=skills),
        ]

    assert [error.code for error in errors] == [INVALID_PARAMS] * 4


@pytest.mark.requirement("LIST-12")
async def test_a_cursor_is_good_at_any_replica(mode: str) -> None:
    async with serving(EXAMPLES, mode=mode, page_size=3) as client:
        cursor = (await ask(client, "skills/list"))["nextCursor"]
        expected = (await ask(client, "skills/list", cursor=cursor))["skills"]
    async with serving(EXAMPLES, mode=mode, page_size=3) as replica:
        found = (await ask(replica, "skills/list", cursor=cursor))["skills"]

    assert found == expected


@pytest.mark.requirement("LIST-12")
async def test_a_page_stays_under_a_mebibyte_however_large_its_entries(mode: str) -> None:
    names = [f"references/{'long-name-' * 12}{number:03}.md" for number in range(511)]
    entries = [entry_with_files(f"acme/large-{number:02}", names) for number in range(24)]

    async with serving(EntriesOnly(entries), mode=mode, page_size=1000) as client:
        found = await pages(client, "skills/list")

    sizes = [len(json.dumps(page, ensure_ascii=False)) for page in found]
    assert sum(sizes) > 2 * LARGEST_MESSAGE
    assert max(sizes) < LARGEST_MESSAGE
    assert [entry for page in found for entry in page["skills"]] == [entry.to_json() for entry in entries]
    assert max(len(page["skills"]) for page in found) > 1


@pytest.mark.requirement("DIR-05")
async def test_a_page_of_a_directory_stays_under_a_mebibyte_too(mode: str) -> None:
    names = [f"references/{number:03}-{'x' * 4000}.md" for number in range(300)]

    async with serving(
        EntriesOnly([entry_with_files("acme/wide", names)]), mode=mode, page_size=1000
    ) as client:
        found = await pages(client, "resources/directory/read", uri="skill://acme/wide/references")

    assert max(len(json.dumps(page)) for page in found) < LARGEST_MESSAGE
    assert sum(len(page["resources"]) for page in found) == 300
    assert len(found) > 1


@pytest.mark.requirement("LIST-12", "LIST-16")
async def test_thousands_of_skills_are_listed_each_once() -> None:
    entries = [entry_with_files(f"acme/team-{number % 7}/skill-{number}", []) for number in range(4000)]

    async with serving(EntriesOnly(entries), page_size=500) as client:
        found = await pages(client, "skills/list")

    uris = [entry["uri"] for page in found for entry in page["skills"]]
    assert len(found) == 8
    assert uris == sorted(entry.uri.text for entry in entries)


@pytest.mark.requirement("LIST-16", "URI-06")
async def test_schemes_are_mixed_freely_and_nested_skills_are_flat_entries(
    server: AnyServer, mode: str, root: Path
) -> None:
    write_skill(root / "outer", {"references/a.md": "a"})
    write_skill(root / "outer/inner", {"references/b.md": "b"})
    add_skills(server, DirectorySource(root, scheme="github", prefix="o/r", watch=False), skill("acme/hello"))

    async with connect(server, mode) as client:
        listed = await skills_of(client)
        for entry in listed.values():
            assert entry == await get(client, entry["uri"])
            for line in entry["resources"]:
                assert is_as_promised(await read(client, line["uri"]), line)
        children = await directory(client, "github://o/r/outer/inner")
        templates = (await ask(client, "resources/templates/list"))["resourceTemplates"]

    assert list(listed) == [
        "github://o/r/outer/SKILL.md",
        "github://o/r/outer/inner/SKILL.md",
        "skill://acme/hello/SKILL.md",
    ]
    assert [line["uri"] for line in listed["github://o/r/outer/SKILL.md"]["resources"]] == [
        "github://o/r/outer/SKILL.md",
        "github://o/r/outer/inner/SKILL.md",
        "github://o/r/outer/inner/references/b.md",
        "github://o/r/outer/references/a.md",
    ]
    assert list(children) == ["github://o/r/outer/inner/SKILL.md", "github://o/r/outer/inner/references"]
    assert [template["uriTemplate"] for template in templates] == ["github://{+path}", "skill://{+path}"]


@pytest.mark.requirement("URI-11")
async def test_the_first_segment_is_no_host_name_and_keeps_its_case(mode: str) -> None:
    async with serving(skill("acme/x"), skill("Acme/y"), mode=mode) as client:
        errors = [
            await refused(client, "skills/get", uri="skill://Acme/x/SKILL.md"),
            await refused(client, "skills/get", uri="skill://acme/y/SKILL.md"),
            await refused(client, "resources/read", uri="skill://ACME/x/SKILL.md"),
        ]
        listed = await skills_of(client)

    assert [error.code for error in errors] == [INVALID_PARAMS] * 3
    assert list(listed) == ["skill://Acme/y/SKILL.md", "skill://acme/x/SKILL.md"]


@pytest.mark.requirement("URI-13")
async def test_the_index_resource_of_older_dialects_is_nothing_special(mode: str) -> None:
    async with serving(EXAMPLES, skill("index.json/tea"), mode=mode) as client:
        error = await refused(client, "resources/read", uri="skill://index.json")
        listed = await listing(client, "resources/list")
        children = await directory(client, "skill://index.json")
        got = await get(client, "skill://index.json/tea/SKILL.md")

    assert (error.code, error.data["uri"]) == (INVALID_PARAMS, "skill://index.json")
    assert all(resource["name"] != "index.json" for resource in listed)
    # Without an index dialect it is a folder like any other.
    assert children == {"skill://index.json/tea": "inode/directory"}
    assert got["frontmatter"]["name"] == "tea"


@pytest.mark.requirement("GET-03", "READ-02", "LIST-01")
async def test_skills_that_nobody_lists_can_be_got_and_read(server: AnyServer, mode: str) -> None:
    hidden = skill("acme/hidden").with_reference("references/a.graphql", "{ a }")
    add_skills(server, PlainSource(unlisted=[hidden]))

    async with connect(server, mode) as client:
        listed = await ask(client, "skills/list")
        resources = await listing(client, "resources/list")
        entry = await get(client, "skill://acme/hidden/SKILL.md")
        contents = [await read(client, line["uri"]) for line in entry["resources"]]
        item = await read_item(client, "skill://acme/hidden/references/a.graphql")

    assert listed["skills"] == resources == []
    assert entry == hidden.entry().to_json()
    assert all(map(is_as_promised, contents, entry["resources"]))
    assert item["mimeType"] == "application/graphql"


NO_SKILLS = [
    "skill://acme/refunds",
    "skill://acme/refunds/",
    "skill://acme/refunds/references/policy.md",
    "skill://acme/SKILL.md",
    "skill://nope/SKILL.md",
    "skill://acme/refunds/SKILL.md/",
    "skill://acme/refunds/skill.md",
    "skill://SKILL.md",
    "skill://acme/../acme/refunds/SKILL.md",
    "skill://acme/refunds/SKILL.md?x=1",
    "skill://acme/refunds/SKILL.md#top",
    "other://acme/refunds/SKILL.md",
    "file:///acme/refunds/SKILL.md",
    "SKILL.md",
    "",
    "skill://" + "a/" * 20_000 + "SKILL.md",
]


@pytest.mark.requirement("GET-02")
async def test_getting_what_is_no_skill_is_an_invalid_params_error(root: Path, mode: str) -> None:
    write_skill(root / "acme/refunds", {"references/policy.md": "p"})

    async with serving(root, mode=mode) as client:
        errors = {uri: await refused(client, "skills/get", uri=uri) for uri in NO_SKILLS}

    assert {uri: (error.code, error.data) for uri, error in errors.items()} == {
        uri: (INVALID_PARAMS, {"uri": visible(uri, most=MAX_ECHO)}) for uri in NO_SKILLS
    }
    for error in errors.values():
        assert_says_nothing_private(error, root)


NO_URIS: list[Json] = [{}, {"uri": 5}, {"uri": ["skill://acme/x/SKILL.md"]}, {"name": "x"}, {"uri": True}]


@pytest.mark.requirement("GET-02")
async def test_asking_without_a_uri_is_an_invalid_params_error(mode: str) -> None:
    async with serving(skill("acme/x"), mode=mode) as client:
        errors = [
            await refused(client, method, **params)
            for params in NO_URIS
            for method in ("skills/get", "resources/directory/read", "resources/read")
        ]

    assert {error.code for error in errors} == {INVALID_PARAMS}
    assert all("`uri`" in error.message for error in errors[0::3] + errors[1::3])


# resources/read


CONTENTS = {
    "plain.md": b"# Plain\n",
    "empty.txt": b"",
    "bom.md": b"\xef\xbb\xbf# With a mark\n",
    "crlf.md": b"one\r\ntwo\r\n\r",
    "nul.txt": b"a\x00b\x01\x7f",
    "emoji.txt": "🙂 \u2028 \u0085 \ufffd \U0010ffff".encode(),
    "latin1.txt": b"caf\xe9",
    "surrogate.txt": b"\xed\xa0\x80",
    "overlong.txt": b"\xc0\xaf",
    "utf16.txt": "hello".encode("utf-16"),
    "cut.txt": "é".encode()[:1],
    "image.png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "image.svg": b"<svg/>",
    "unknown.xyz": b"text all the same",
}
AS_BLOB = {"latin1.txt", "surrogate.txt", "overlong.txt", "utf16.txt", "cut.txt", "image.png"}


@pytest.mark.requirement("READ-08")
async def test_bytes_travel_as_text_exactly_when_they_are_utf8(
    server: AnyServer, mode: str, root: Path
) -> None:
    write_skill(root / "kinds", {f"assets/{name}": content for name, content in CONTENTS.items()})
    add_skills(server, root)

    async with connect(server, mode) as client:
        items = {name: await read_item(client, f"skill://kinds/assets/{name}") for name in CONTENTS}

    assert {name: content_of(item) for name, item in items.items()} == CONTENTS
    assert {name for name, item in items.items() if "blob" in item} == AS_BLOB


NAMES = {
    "a b.md": "a%20b.md",
    "R&D=1+1;x.md": "R&D=1+1;x.md",
    "100%.md": "100%25.md",
    "what?.md": "what%3F.md",
    "#1.md": "%231.md",
    "größe.md": "gr%C3%B6%C3%9Fe.md",
    "日本/語.md": "%E6%97%A5%E6%9C%AC/%E8%AA%9E.md",
    "🙂.md": "%F0%9F%99%82.md",
    "[x](y)'\"`.md": "%5Bx%5D(y)'%22%60.md",
    "<b>.md": "%3Cb%3E.md",
    "a%2Eb.md": "a%252Eb.md",
}


@pytest.mark.requirement("URI-01", "META-02")
async def test_files_of_any_name_are_listed_browsed_and_read(root: Path, mode: str) -> None:
    write_skill(root / "odd", {name: name for name in NAMES})
    expected = {f"skill://odd/{NAMES[name]}": name for name in NAMES}

    async with serving(root, mode=mode) as client:
        [entry] = (await skills_of(client)).values()
        lines = {line["uri"]: line for line in entry["resources"] if line["uri"] != entry["uri"]}
        contents = {uri: await read(client, uri) for uri in lines}
        children = await listing(client, "resources/directory/read", uri="skill://odd")
        children += await listing(client, "resources/directory/read", uri="skill://odd/%E6%97%A5%E6%9C%AC")

    assert {uri: content.decode() for uri, content in contents.items()} == expected
    assert all(is_as_promised(contents[uri], line) for uri, line in lines.items())
    assert {child["uri"]: child["name"] for child in children if child["uri"] in expected} == {
        uri: name.rpartition("/")[2] for uri, name in expected.items()
    }


async def test_another_spelling_of_a_uri_means_the_same_file(root: Path, mode: str) -> None:
    write_skill(root / "odd", {"größe x.md": "groß"})

    async with serving(root, mode=mode) as client:
        spellings = [
            "skill://odd/gr%c3%b6%c3%9fe%20x.md",
            "SKILL://odd/größe x.md",
            "skill://%6fdd/größe%20x.md",
        ]
        contents = [await read(client, spelling) for spelling in spellings]
        entry = await get(client, "skill://%6Fdd/SKILL.md")
        children = await directory(client, "skill://%6Fdd")

    assert contents == ["groß".encode()] * 3
    assert entry["uri"] == "skill://odd/SKILL.md"
    assert list(children) == ["skill://odd/SKILL.md", "skill://odd/gr%C3%B6%C3%9Fe%20x.md"]


NO_FILES = [
    "skill://acme/refunds/nope.md",
    "skill://acme/refunds/references",
    "skill://acme/refunds",
    "skill://acme",
    "skill://",
    "skill://acme/refunds/../../../secret.txt",
    "skill://acme/refunds/..%2f..%2f..%2fsecret.txt",
    "skill://acme/refunds/%2e%2e/%2e%2e/secret.txt",
    "skill://acme/refunds/%252e%252e/secret.txt",
    "skill://acme/refunds/..\\..\\secret.txt",
    "skill://acme/refunds/%5c..%5csecret.txt",
    "skill://acme/refunds//SKILL.md",
    "skill://acme/refunds/./SKILL.md",
    "skill://acme/refunds/SKILL.md%00.txt",
    "skill://acme/refunds/SKILL.md?raw",
    "skill://acme/refunds/SKILL.md#x",
    "skill://acme/refunds/.hidden",
    "skill://acme/refunds/.git/config",
    "skill://secret.txt",
    "skill://user@acme/refunds/SKILL.md",
    "skill://acme:80/refunds/SKILL.md",
    "file:///etc/passwd",
    "file:/etc/passwd",
    "/etc/passwd",
    "",
]


@pytest.mark.requirement("READ-09", "READ-10")
async def test_reading_what_no_skill_has_is_an_invalid_params_error(
    server: AnyServer, root: Path, mode: str
) -> None:
    write_skill(
        root / "acme/refunds", {"references/policy.md": "p", ".hidden": SECRET, ".git/config": SECRET}
    )
    write_files(root, {"secret.txt": SECRET})
    write_files(root.parent, {"secret.txt": SECRET})
    add_skills(server, root)

    async with connect(server, mode) as client:
        errors = {uri: await refused(client, "resources/read", uri=uri) for uri in NO_FILES}

    assert {uri: (error.code, error.data) for uri, error in errors.items()} == {
        uri: (INVALID_PARAMS, {"uri": uri}) for uri in NO_FILES
    }
    for error in errors.values():
        assert_says_nothing_private(error, root)


@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize("watch", [True, False], ids=["watched", "not watched"])
async def test_a_file_that_becomes_a_link_out_of_the_skill_is_not_followed(
    root: Path, mode: str, watch: bool
) -> None:
    folder = write_skill(root / "refunds", {"references/policy.md": "p"})
    secret = root.parent / "secret.txt"
    secret.write_text(SECRET)

    async with serving(root, mode=mode, watch=watch) as client:
        assert await read(client, "skill://refunds/references/policy.md") == b"p"
        (folder / "references/policy.md").unlink()
        (folder / "references/policy.md").symlink_to(secret)
        error = await refused(client, "resources/read", uri="skill://refunds/references/policy.md")

    assert error.code in (INVALID_PARAMS, INTERNAL_ERROR)
    assert_says_nothing_private(error, root)


@pytest.mark.requirement("READ-10")
async def test_a_folder_that_becomes_a_link_out_of_the_skill_is_not_followed(root: Path, mode: str) -> None:
    folder = write_skill(root / "refunds", {"references/policy.md": "same"})
    write_files(root.parent / "elsewhere", {"policy.md": "same", "more.md": SECRET})

    async with serving(root, mode=mode, watch=False) as client:
        shutil.rmtree(folder / "references")
        (folder / "references").symlink_to(root.parent / "elsewhere")
        errors = [
            await refused(client, "resources/read", uri=f"skill://refunds/references/{name}")
            for name in ("policy.md", "more.md")
        ]

    assert {error.code for error in errors} <= {INVALID_PARAMS, INTERNAL_ERROR}
    for error in errors:
        assert_says_nothing_private(error, root)


@pytest.mark.requirement("READ-11")
async def test_a_skill_named_in_the_instructions_can_be_read(mode: str) -> None:
    server = MCPServer("demo", instructions="Start with skill://acme/hello/SKILL.md.")
    built = skill("acme/hello")
    add_skills(server, PlainSource(unlisted=[built]))

    async with connect(server, mode) as client:
        assert client.instructions is not None
        uri = client.instructions.removeprefix("Start with ").removesuffix(".")
        content = await read(client, uri)

    assert content == built.skill_md


async def test_reading_a_directory_says_which_method_to_use(mode: str) -> None:
    async with serving(EXAMPLES, mode=mode) as client:
        errors = [
            await refused(client, "resources/read", uri=uri)
            for uri in ("skill://acme", "skill://acme/billing/refunds", "skill://sql-review/scripts")
        ]

    assert {error.code for error in errors} == {INVALID_PARAMS}
    assert all("resources/directory/read" in error.message for error in errors)


# resources/directory/read


def children_on_disk(folder: Path, uri: str) -> dict[str, bool]:
    """Say what lies in a folder: the URI of each child, and whether it is a directory."""
    return {f"{uri}/{child.name}": child.is_dir() for child in sorted(folder.iterdir())}


@pytest.mark.requirement("DIR-01", "DIR-02", "DIR-04", "DIR-06")
async def test_every_directory_lists_what_is_in_it_on_disk(server: AnyServer, mode: str, root: Path) -> None:
    shutil.copytree(EXAMPLES, root, dirs_exist_ok=True)
    (root / "hello-world/empty/deeper").mkdir(parents=True)
    add_skills(server, root)
    seen: dict[str, dict[str, bool]] = {}

    async with connect(server, mode) as client:
        waiting = [f"skill://{name}" for name in os.listdir(root)]  # noqa: PTH208
        while waiting:
            uri = waiting.pop()
            children = await directory(client, uri)
            seen[uri] = {child: media_type == "inode/directory" for child, media_type in children.items()}
            waiting += [child for child, is_directory in seen[uri].items() if is_directory]

    folders = [Path(folder) for folder, _, _ in os.walk(root) if Path(folder) != root]
    expected = {
        uri: children_on_disk(folder, uri)
        for folder in folders
        if (uri := f"skill://{folder.relative_to(root).as_posix()}")
    }
    assert seen == expected
    assert seen["skill://hello-world/empty/deeper"] == {}


@pytest.mark.requirement("DIR-02", "META-02")
async def test_a_child_has_the_metadata_it_has_everywhere_else(mode: str, root: Path) -> None:
    write_skill(root / "api", {"schema.graphql": "{ a }", "notes/a.md": "a"})

    async with serving(root, mode=mode) as client:
        children = await listing(client, "resources/directory/read", uri="skill://api")
        [listed] = await listing(client, "resources/list")
        item = await read_item(client, "skill://api/schema.graphql")

    assert children == [
        listed,
        {"uri": "skill://api/notes", "name": "notes", "mimeType": "inode/directory"},
        {
            "uri": "skill://api/schema.graphql",
            "name": "schema.graphql",
            "mimeType": "application/graphql",
            "size": 5,
            "annotations": {"audience": ["assistant"], "priority": 0.3},
        },
    ]
    assert item["mimeType"] == "application/graphql"


NO_DIRECTORIES = [
    "skill://acme/refunds/SKILL.md",
    "skill://acme/refunds/references/policy.md",
    "skill://acme/refunds/nope",
    "skill://acme/ref",
    "skill://nope",
    "skill://acme/refunds/references/../references",
    "skill://acme/refunds/.hidden",
    "skill://",
    "skill:/",
    "skill:",
    "file:///",
    "",
]


@pytest.mark.requirement("DIR-03")
async def test_reading_what_is_no_directory_is_an_invalid_params_error(root: Path, mode: str) -> None:
    write_skill(root / "acme/refunds", {"references/policy.md": "p", ".hidden/x.md": "x"})

    async with serving(root, mode=mode) as client:
        errors = {uri: await refused(client, "resources/directory/read", uri=uri) for uri in NO_DIRECTORIES}

    assert {uri: (error.code, error.data) for uri, error in errors.items()} == {
        uri: (INVALID_PARAMS, {"uri": uri}) for uri in NO_DIRECTORIES
    }
    for error in errors.values():
        assert_says_nothing_private(error, root)


@pytest.mark.requirement("DIR-14")
async def test_a_trailing_slash_is_refused(root: Path, mode: str) -> None:
    write_skill(root / "acme/refunds", {"references/policy.md": "p"})

    async with serving(root, mode=mode) as client:
        for uri in ("skill://acme", "skill://acme/refunds", "skill://acme/refunds/references"):
            assert await directory(client, uri)
            error = await refused(client, "resources/directory/read", uri=f"{uri}/")
            assert (error.code, error.data) == (INVALID_PARAMS, {"uri": f"{uri}/"})


@pytest.mark.requirement("DIR-05")
async def test_a_directory_read_in_pages_of_one_is_the_same_directory(server: AnyServer, mode: str) -> None:
    built = skill("wide")
    for number in range(7):
        built = built.with_reference(f"references/{number}.md", str(number))
    add_skills(server, built, page_size=1)

    async with connect(server, mode) as client, serving(built, mode=mode) as other:
        small = await pages(client, "resources/directory/read", uri="skill://wide/references")
        [large] = await pages(other, "resources/directory/read", uri="skill://wide/references")

    assert [len(page["resources"]) for page in small] == [1] * 7
    assert [page["resources"][0] for page in small] == large["resources"]


@pytest.mark.requirement("DIR-06")
async def test_prefixes_of_several_sources_are_one_directory(mode: str, root: Path) -> None:
    write_skill(root / "billing/refunds")

    async with serving(root, skill("acme/hello"), prefix="acme", mode=mode) as client:
        children = await directory(client, "skill://acme")

    assert children == {"skill://acme/billing": "inode/directory", "skill://acme/hello": "inode/directory"}


@pytest.mark.requirement("DIR-06")
async def test_the_root_of_a_dynamic_skill_is_a_directory(mode: str) -> None:
    live = DynamicSkill("live", description="Use when asked.", body=lambda: "now")

    async with serving(live, mode=mode) as client:
        children = await directory(client, "skill://live")

    assert children == {"skill://live/SKILL.md": "text/markdown"}


@pytest.mark.requirement("DIR-06")
async def test_directories_of_a_dynamic_skill_list_the_files_it_makes(mode: str) -> None:
    live = DynamicSkill("live", description="Use when asked.", body=lambda: "now")
    live = live.with_file("references/a.md", lambda: "a").with_file("b.md", lambda: "b")

    async with serving(live, mode=mode) as client:
        children = await directory(client, "skill://live")
        assert list(children) == [
            "skill://live/SKILL.md",
            "skill://live/b.md",
            "skill://live/references",
        ]
        assert list(await directory(client, "skill://live/references")) == ["skill://live/references/a.md"]


@pytest.mark.requirement("DIR-06")
async def test_directories_of_a_skill_that_nobody_lists_can_be_read(mode: str) -> None:
    hidden = skill("acme/hidden").with_reference("references/a.md", "a")

    async with serving(PlainSource(unlisted=[hidden]), mode=mode) as client:
        children = await directory(client, "skill://acme/hidden")
        assert list(children) == ["skill://acme/hidden/SKILL.md", "skill://acme/hidden/references"]
        inner = await directory(client, "skill://acme/hidden/references")
        assert list(inner) == ["skill://acme/hidden/references/a.md"]


# Metadata


@pytest.mark.requirement("META-01", "META-04", "META-05", "META-06")
async def test_the_resources_are_the_skill_files_with_their_metadata(
    server: AnyServer, mode: str, root: Path
) -> None:
    folder = write_skill(root / "acme/refunds", {"references/policy.md": "p"})
    os.utime(folder / "SKILL.md", (1_700_000_000, 1_700_000_000))
    add_skills(server, root)

    async with connect(server, mode) as client:
        listed = await listing(client, "resources/list")

    assert listed == [
        {
            "uri": "skill://acme/refunds/SKILL.md",
            "name": "refunds",
            "description": "Use when testing refunds.",
            "mimeType": "text/markdown",
            "size": len(skill_md("refunds")),
            "annotations": {
                "audience": ["assistant"],
                "priority": 0.8,
                "lastModified": "2023-11-14T22:13:20Z",
            },
        }
    ]


@pytest.mark.requirement("META-04", "META-06")
async def test_nothing_the_server_says_has_metadata_under_the_reserved_prefix(mode: str) -> None:
    async with serving(EXAMPLES, mode=mode) as client:
        results = [
            await ask(client, "skills/list"),
            await ask(client, "resources/list"),
            await ask(client, "resources/directory/read", uri="skill://sql-review"),
            await ask(client, "resources/read", uri="skill://sql-review/SKILL.md"),
        ]

    for result in results:
        result.pop("_meta", None)  # The SDK's own, which names the server.
        result.pop("contents", None)
        assert "_meta" not in json.dumps(result)
        assert "io.modelcontextprotocol.skills/" not in json.dumps(result)


@pytest.mark.requirement("META-02")
async def test_a_media_type_given_in_code_is_the_same_everywhere(server: AnyServer, mode: str) -> None:
    built = (
        skill("acme/api")
        .with_reference("schema.txt", "{ a }", media_type="application/graphql")
        .with_reference("data", b"\xff", media_type="application/x-thing")
        .with_reference("plain.txt", "x")
    )
    add_skills(server, built)

    async with connect(server, mode) as client:
        children = await directory(client, "skill://acme/api")
        read_as = {
            uri: (await read_item(client, uri))["mimeType"]
            for uri in children
            if not uri.endswith("SKILL.md")
        }

    assert read_as == {
        "skill://acme/api/data": "application/x-thing",
        "skill://acme/api/plain.txt": "text/plain",
        "skill://acme/api/schema.txt": "application/graphql",
    }
    assert {uri: children[uri] for uri in read_as} == read_as


# Limits


@pytest.mark.requirement("LIM-03")
async def test_a_skill_beyond_the_limits_is_not_served_and_a_warning_says_so(
    root: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_skill(root / "many", {f"{number}.md": "x" for number in range(512)})
    write_skill(root / "just", {f"{number}.md": "x" for number in range(511)})
    large = skill("large").with_reference("a.bin", b"x" * (16 * 1024 * 1024))

    with caplog.at_level(logging.WARNING, "skillwire"):
        async with serving(root, large, mode=mode) as client:
            listed = await skills_of(client)
            errors = [
                await refused(client, "skills/get", uri="skill://many/SKILL.md"),
                await refused(client, "skills/get", uri="skill://large/SKILL.md"),
                await refused(client, "resources/read", uri="skill://large/a.bin"),
            ]

    assert list(listed) == ["skill://just/SKILL.md"]
    assert [error.code for error in errors] == [INVALID_PARAMS] * 3
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("many" in message and "512" in message for message in warnings)
    assert any("large" in message for message in warnings)


# Errors


# Words that only the log may hold: secrets, places, and the names of exceptions.
KINDS = ("OS", "Key", "Value", "Runtime", "FileNotFound", "Permission", "NotADirectory", "Timeout", "Source")
PRIVATE = (
    *(SECRET, "Errno", "Traceback", "/srv/private", "skillwire.", "/site-packages", "Exception", "Error("),
    *(f"{kind}Error" for kind in KINDS),
)


def assert_says_nothing_private(error: types.ErrorData, *places: Path) -> None:
    said = json.dumps(error.model_dump())
    for word in (*PRIVATE, *(str(place) for place in places), *(str(place.parent) for place in places)):
        assert word not in said, f"the client learns {word!r} from {said}"


class FailingSource(PlainSource):
    """A source that lists its skills, and fails at everything else, in words nobody else should read."""

    failure: Exception

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        raise self.failure

    async def read_file(self, uri: str) -> bytes:
        raise self.failure


FAILURES = [
    OSError(13, SECRET, "/srv/private/a"),
    FileNotFoundError(2, SECRET, "/srv/private/a"),
    KeyError(SECRET),
    ValueError(f"{SECRET} in /srv/private"),
    RuntimeError(SECRET),
    UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET),
    ExceptionGroup(SECRET, [ValueError(SECRET)]),
    TimeoutError(SECRET),
]


async def test_what_goes_wrong_in_a_source_stays_in_the_log(
    server: AnyServer, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = FailingSource(skill("acme/hello"))
    add_skills(server, source)

    async with connect(server, mode) as client:
        listed = await skills_of(client)
        for failure in FAILURES:
            source.failure = failure
            caplog.clear()
            errors = [
                await refused(client, "resources/read", uri="skill://acme/hello/SKILL.md"),
                await refused(client, "skills/get", uri="skill://acme/other/SKILL.md"),
                await refused(client, "resources/read", uri="skill://acme/other/SKILL.md"),
            ]
            assert [error.code for error in errors] == [INTERNAL_ERROR] * 3
            for error in errors:
                assert_says_nothing_private(error)
            assert SECRET in caplog.text

    assert list(listed) == ["skill://acme/hello/SKILL.md"]


@pytest.mark.parametrize("kind", ["function", "coroutine", "wrong type"])
async def test_what_goes_wrong_in_a_dynamic_skill_stays_in_the_log(
    server: AnyServer, mode: str, kind: str
) -> None:
    def fail() -> str:
        raise OSError(13, SECRET, "/srv/private/a")

    async def fail_later() -> str:
        raise ValueError(SECRET)

    produce: Any = {"function": fail, "coroutine": fail_later, "wrong type": lambda: 42}[kind]
    live = DynamicSkill("live", description="Use when asked.", body=produce).with_file("a.md", produce)
    add_skills(server, live)

    async with connect(server, mode) as client:
        errors = [
            await refused(client, "resources/read", uri=f"skill://live/{name}")
            for name in ("SKILL.md", "a.md")
        ]

    assert [error.code for error in errors] == [INTERNAL_ERROR] * 2
    assert ["skill://live/SKILL.md" in errors[0].message, "skill://live/a.md" in errors[1].message] == [
        True
    ] * 2
    for error in errors:
        assert_says_nothing_private(error)


class RestlessSource(PlainSource):
    """A source whose file is another one at every look."""

    looks = 0

    async def read_file(self, uri: str) -> bytes:
        self.looks += 1
        return f"{SECRET} {self.looks}".encode()


async def test_a_file_that_is_never_what_was_published_is_an_internal_error(
    server: AnyServer, mode: str
) -> None:
    add_skills(server, RestlessSource(skill("acme/hello")))

    async with connect(server, mode) as client:
        error = await refused(client, "resources/read", uri="skill://acme/hello/SKILL.md")

    assert error.code == INTERNAL_ERROR
    assert "skill://acme/hello/SKILL.md" in error.message
    assert_says_nothing_private(error)


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def replace_by_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text(SECRET)


@pytest.mark.parametrize("damage", [remove, replace_by_file])
@pytest.mark.parametrize("what", ["skills", "skills/refunds", "skills/refunds/references"])
async def test_a_folder_that_cannot_be_read_any_more_is_not_described(
    tmp_path: Path, mode: str, damage: Callable[[Path], None], what: str
) -> None:
    write_skill(tmp_path / "skills/refunds", {"references/policy.md": "p"})

    async with serving(tmp_path / "skills", mode=mode, watch=False) as client:
        damage(tmp_path / what)
        error = await refused(client, "resources/read", uri="skill://refunds/references/policy.md")

    assert error.code in (INVALID_PARAMS, INTERNAL_ERROR)
    assert_says_nothing_private(error, tmp_path / "skills")


async def test_a_file_that_is_rewritten_all_the_time_gives_bytes_or_an_error_and_no_details(
    root: Path, mode: str
) -> None:
    folder = write_skill(root / "busy", {"log.txt": "0\n"})
    stop = threading.Event()

    def rewrite() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            (folder / "log.txt").write_text(f"{number}\n" * 2000)

    writer = threading.Thread(target=rewrite)
    outcomes: list[bytes | types.ErrorData] = []
    async with serving(root, mode=mode) as client:
        writer.start()
        try:
            for _ in range(8):
                outcomes.append(await outcome_of_reading(client, "skill://busy/log.txt"))
        finally:
            stop.set()
            writer.join(10)

    for outcome in outcomes:
        if isinstance(outcome, types.ErrorData):
            assert outcome.code in (INVALID_PARAMS, INTERNAL_ERROR)
            assert_says_nothing_private(outcome, root)


async def outcome_of_reading(client: Client, uri: str) -> bytes | types.ErrorData:
    try:
        return await read(client, uri)
    except MCPError as error:
        return error.error
