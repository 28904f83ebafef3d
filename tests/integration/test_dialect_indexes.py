"""The index dialects through real servers: `skillwire serve`, and the frameworks `add_skills` extends."""

import hashlib
import json
import os
import shutil
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp import FastMCP
from jsonschema import Draft202012Validator
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

from configs import configured
from folders import skill_md, write_files, write_skill
from integration import june_client
from integration.june_client import Json, Read
from programs import http_server, stdio_server
from serving import (
    INITIALIZED,
    LEGACY,
    Connection,
    environment,
    handshake,
    legacy,
    modern,
)
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import INVALID_PARAMS, NotFoundError
from skillwire.core.uri import SkillUri
from skillwire.server import DynamicSkill, Skill, add_skills
from skillwire.server.dialects.index import IndexApril
from skillwire.wire.index import SkillTemplate, Template
from talking import MODES, Inbox, ask, eventually, pages, read_item, refused
from talking import skill as built

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas" / "wire"
INDEX = "skill://index.json"
ARCHIVES = ("skill://tea.tar.gz", "skill://tea.zip")
BINARY = bytes(range(256))
LISTED = ["skill://acme/refunds/SKILL.md", "skill://plain/SKILL.md", "skill://tea/SKILL.md"]
NESTED = "skill://acme/refunds/inner/SKILL.md"

Call = Callable[..., Json]


def validated(name: str, value: object) -> Any:
    """Return a value that fits the published schema."""
    schema: Any = Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text("utf-8")))
    schema.validate(value)
    return value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    write_files(
        folder,
        {
            "tea/SKILL.md": skill_md(
                "tea", extra="license: MIT\nmetadata: {version: '3', 'é': 'ü'}\nnull-ish: null\n"
            ),
            "tea/references/green tea.md": "# Sencha\r\n",
            "tea/references/100%.md": "per cent\n",
            "tea/assets/leaf.png": BINARY,
            "tea/assets/empty.txt": "",
            "tea/scripts/brew.sh": "#!/bin/sh\n",
            "acme/refunds/SKILL.md": skill_md("refunds"),
            "acme/refunds/inner/SKILL.md": skill_md("inner"),
            "acme/refunds/inner/more.md": "More.\n",
            "plain/SKILL.md": skill_md("plain"),
        },
    )
    (folder / "tea/scripts/brew.sh").chmod(0o755)
    return folder


@contextmanager
def stdio(folder: Path, tmp_path: Path, *options: str, revision: str = LEGACY) -> Generator[Call]:
    with stdio_server(folder, *options, env=environment(tmp_path)) as server:
        make = modern
        if revision == LEGACY:
            make = legacy
            server.call(handshake())
            server.send(INITIALIZED)

        def call(method: str, **params: Any) -> Json:
            return server.call(make(method, **params))

        yield call


@contextmanager
def http(folder: Path, tmp_path: Path, *options: str, revision: str = LEGACY) -> Generator[Call]:
    with http_server(folder, *options, env=environment(tmp_path)) as server:
        with server.connection() as connection:
            if revision != LEGACY:
                yield partial(_call, connection, modern, {})
                return
            response = connection.post(handshake())
            session = response.headers["Mcp-Session-Id"]
            response.read()
            headers = {"Mcp_Session_Id": session, "Mcp_Protocol_Version": LEGACY}
            connection.post(INITIALIZED, **headers).read()
            yield partial(_call, connection, legacy, headers)


def _call(
    connection: Connection, make: Callable[..., Json], headers: dict[str, str], method: str, **params: Any
) -> Json:
    return connection.call(make(method, **params), **headers)


def reader(call: Call) -> Read:
    async def read(uri: str) -> Json:
        (item,) = call("resources/read", uri=uri)["result"]["contents"]
        return item

    return read


def reader_of(client: Client) -> Read:
    async def read(uri: str) -> Json:
        return await read_item(client, uri)

    return read


async def load_all(read: Read) -> dict[str, june_client.Loaded]:
    return {entry["url"]: await june_client.load(read, entry) for entry in await june_client.read_index(read)}


def files_below(folder: Path) -> dict[str, bytes]:
    """Return what must be served of a skill, by a walk of our own."""
    return {
        (Path(directory) / name).relative_to(folder).as_posix(): (Path(directory) / name).read_bytes()
        for directory, _, names in os.walk(folder)
        for name in names
    }


@pytest.mark.requirement("IDX-01")
@pytest.mark.requirement("IDX-02")
@pytest.mark.requirement("IDX-03")
@pytest.mark.requirement("IDX-04")
@pytest.mark.requirement("IDX-05")
@pytest.mark.requirement("IDX-08")
@pytest.mark.requirement("IDX-12")
@pytest.mark.requirement("ARC-01")
@pytest.mark.requirement("ARC-02")
@pytest.mark.requirement("ARC-04")
@pytest.mark.requirement("CONF-06")
@pytest.mark.requirement("ASK-01")
@pytest.mark.parametrize("revision", [LEGACY, "modern"])
@pytest.mark.parametrize("transport", [stdio, http])
async def test_a_client_written_from_the_june_document_gets_every_skill_in_every_way(
    folder: Path, tmp_path: Path, transport: Any, revision: str
) -> None:
    with transport(folder, tmp_path, "--dialect", "index-june", revision=revision) as call:
        found = await load_all(reader(call))
        index = json.loads((await reader(call)(INDEX))["text"])

    validated("index-june", index)
    assert list(found) == LISTED
    for uri, skill in found.items():
        expected = files_below(folder / uri.removeprefix("skill://").removesuffix("/SKILL.md"))
        assert skill.files == expected
        assert skill.archives == {"application/gzip": expected, "application/zip": expected}


@pytest.mark.requirement("IDX-01")
@pytest.mark.requirement("ARC-17")
def test_the_index_is_listed_among_the_resources_and_no_archive_is(folder: Path, tmp_path: Path) -> None:
    with stdio(folder, tmp_path, "--dialect", "index-june", *configured(tmp_path, page_size=2)) as call:
        resources = call("resources/list")["result"]
        last = call("resources/list", cursor=resources["nextCursor"])["result"]
        skills = call("skills/list")["result"]

    uris = [item["uri"] for item in [*resources["resources"], *last["resources"]]]
    assert uris == [INDEX, *sorted([*LISTED, NESTED])]
    assert not any(suffix in json.dumps(skills) for suffix in (".zip", ".tar.gz", "index.json"))


@pytest.mark.requirement("ARC-17")
def test_a_server_that_speaks_no_other_dialect_has_neither_index_nor_archives(
    folder: Path, tmp_path: Path
) -> None:
    with stdio(folder, tmp_path) as call:
        errors = [call("resources/read", uri=uri)["error"]["code"] for uri in (INDEX, *ARCHIVES)]
        listed = call("resources/list")["result"]["resources"]

    assert errors == [INVALID_PARAMS] * 3
    assert INDEX not in [item["uri"] for item in listed]


@pytest.mark.requirement("IDX-08")
def test_a_skill_inside_another_is_left_out_of_the_index_and_the_log_says_so_once(
    folder: Path, tmp_path: Path
) -> None:
    with stdio_server(folder, "--dialect", "index-june", env=environment(tmp_path)) as server:
        for identifier in range(2):
            server.call(modern("resources/read", identifier, uri=INDEX))
        write_skill(folder / "later")
        server.wait_for_words("inner")
        with anyio.from_thread.start_blocking_portal() as portal:
            portal.call(
                eventually_sync,
                lambda: "later" in json.dumps(server.call(modern("resources/read", 9, uri=INDEX))),
            )

        assert server.words.count(NESTED) == 1


async def eventually_sync(look: Callable[[], bool]) -> None:
    async def seen() -> bool:
        return look()

    await eventually(seen, bool, seconds=20)


@pytest.mark.requirement("ARC-01")
async def test_two_servers_of_the_same_files_promise_the_same_archives(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "copy"
    shutil.copytree(folder, other)
    promised: list[object] = []
    for place in (folder, other):
        with stdio(place, tmp_path, "--dialect", "index-june") as call:
            promised.append([entry["archives"] for entry in await june_client.read_index(reader(call))])

    assert promised[0] == promised[1]


@asynccontextmanager
async def mcp_server(
    *origins: Any, mode: str = "auto", dialect: str = "index-june"
) -> AsyncGenerator[Client]:
    server = MCPServer[Any]("demo")
    add_skills(server, *origins, dialects=[dialect])
    async with Client(server, mode=mode, cache=None) as client:
        yield client


@asynccontextmanager
async def lowlevel(*origins: Any, mode: str = "auto", dialect: str = "index-june") -> AsyncGenerator[Client]:
    server = Server[Any]("demo")
    add_skills(server, *origins, dialects=[dialect])
    async with Client(server, mode=mode, cache=None) as client:
        yield client


@asynccontextmanager
async def fastmcp(
    *origins: Any, mode: str = "auto", dialect: str = "index-june", server: "FastMCP[Any] | None" = None
) -> AsyncGenerator[Client]:
    server = server or FastMCP[Any]("demo")
    add_skills(server, *origins, dialects=[dialect])
    async with Client(server._mcp_server, mode=mode, cache=None) as client:  # pyright: ignore[reportPrivateUsage]
        yield client


FRAMEWORKS = [mcp_server, lowlevel, fastmcp]


@pytest.mark.requirement("IDX-01")
@pytest.mark.requirement("ARC-04")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_each_framework_serves_the_june_index_and_its_archives(
    folder: Path, framework: Any, mode: str
) -> None:
    async with framework(folder, mode=mode) as client:
        found = await load_all(reader_of(client))
        listed = (await ask(client, "resources/list"))["resources"]

    assert list(found) == LISTED
    assert all(tree == skill.files for skill in found.values() for tree in skill.archives.values())
    (index,) = [item for item in listed if item["uri"] == INDEX]
    assert index["mimeType"] == "application/json"
    assert "_meta" not in index


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_dynamic_skill_is_not_in_the_june_index_and_has_no_archive(framework: Any) -> None:
    live = DynamicSkill("live", description="Use when testing.", body=lambda: "Now.\n")
    async with framework(live, Skill("tea", description="Use when testing.", body="Tea.\n")) as client:
        entries = await june_client.read_index(reader_of(client))
        error = await refused(client, "resources/read", uri="skill://live.zip")

    assert [entry["url"] for entry in entries] == ["skill://tea/SKILL.md"]
    assert error.code == INVALID_PARAMS


@pytest.mark.requirement("IDX-11")
@pytest.mark.requirement("ASK-33")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dialect", ["index-june", "index-april"])
async def test_who_subscribes_to_the_index_hears_when_the_catalog_changes(
    folder: Path, framework: Any, dialect: str
) -> None:
    server = {mcp_server: MCPServer[Any], lowlevel: Server[Any], fastmcp: FastMCP[Any]}[framework]("demo")
    skills = add_skills(server, folder, dialects=[dialect])
    inbox = Inbox()
    inner: Any = server._mcp_server if isinstance(server, FastMCP) else server  # pyright: ignore[reportPrivateUsage]
    async with Client(inner, mode="legacy", cache=None, message_handler=inbox.put) as client:
        before = await read_item(client, INDEX)
        await ask(client, "resources/subscribe", uri=INDEX)

        skills.add(Skill("new", description="Use when testing.", body="New.\n"))

        await inbox.wait_for(lambda inbox: INDEX in inbox.updated)
        after = await read_item(client, INDEX)

    assert "skill://new/SKILL.md" in after["text"]
    assert "skill://new/SKILL.md" not in before["text"]


async def test_a_changed_file_changes_the_digests_of_its_skill_alone(folder: Path) -> None:
    async with lowlevel(folder) as client:
        before = {entry["url"]: entry for entry in await june_client.read_index(reader_of(client))}
        write_files(folder, {"tea/references/100%.md": "changed\n"})

        async def look() -> dict[str, Json]:
            return {entry["url"]: entry for entry in await june_client.read_index(reader_of(client))}

        after = await eventually(look, lambda index: index != before)
        loaded = await load_all(reader_of(client))

    assert {uri for uri in LISTED if before[uri] != after[uri]} == {"skill://tea/SKILL.md"}
    assert loaded["skill://tea/SKILL.md"].archives["application/zip"]["references/100%.md"] == b"changed\n"


@pytest.mark.requirement("ARC-17")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_no_archive_stands_in_for_a_file_or_a_folder_that_is_served(
    tmp_path: Path, framework: Any
) -> None:
    write_files(
        tmp_path / "skills",
        {
            "box/SKILL.md": skill_md("box"),
            "box/lid.zip": b"a real file",
            "box/lid/SKILL.md": skill_md("lid"),
            "pot/SKILL.md": skill_md("pot"),
            "pot.zip/tea/SKILL.md": skill_md("tea"),
        },
    )
    async with framework(tmp_path / "skills") as client:
        entries = {entry["url"]: entry for entry in await june_client.read_index(reader_of(client))}
        real = await read_item(client, "skill://box/lid.zip")
        folder = await refused(client, "resources/read", uri="skill://pot.zip")
        nested = await refused(client, "resources/read", uri="skill://box/lid.tar.gz")
        inner = await read_item(client, "skill://pot.zip/tea.zip")

    assert sorted(entries) == ["skill://box/SKILL.md", "skill://pot.zip/tea/SKILL.md", "skill://pot/SKILL.md"]
    assert [archive["url"] for archive in entries["skill://pot/SKILL.md"]["archives"]] == [
        "skill://pot.tar.gz"
    ]
    assert real["text"] == "a real file"
    assert "directory" in folder.message
    assert nested.code == INVALID_PARAMS
    assert "blob" in inner


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_any_spelling_of_an_archives_uri_will_do_and_comes_back_as_it_was(
    folder: Path, framework: Any
) -> None:
    async with framework(folder) as client:
        plain = await read_item(client, "skill://tea.zip")
        odd = await read_item(client, "skill://%74ea.zip")

    assert odd == {**plain, "uri": "skill://%74ea.zip"}


class Products:
    """A source of more skills than it lists: one for each product, if you know what it is called."""

    NAMES = ("teapot", "teacup", "kettle")

    def _skill(self, uri: str) -> Skill:
        name = uri.removeprefix("skill://docs/").partition("/")[0]
        if name not in self.NAMES or not uri.startswith("skill://docs/"):
            raise NotFoundError(f"no product {name!r}", uri=uri)
        return Skill(name, path=f"docs/{name}", description=f"Use when selling a {name}.", body="Sell it.\n")

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        for _ in ():
            yield _

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        return self._skill(uri.text).entry()

    async def read_file(self, uri: str) -> bytes:
        skill = self._skill(uri)
        if uri != skill.uri.text:
            raise NotFoundError("no such file", uri=uri)
        return skill.skill_md

    def skill_templates(self) -> list[SkillTemplate]:
        template = Template.parse("skill://docs/{product}/SKILL.md")
        return [SkillTemplate("Product", template, "One skill for each product.")]

    async def complete_template(self, template: str, variable: str, typed: str) -> list[str]:
        return [name for name in self.NAMES if name.startswith(typed)]


class Silent(Products):
    """The same, without a word about what else there is."""

    skill_templates: Any = None
    complete_template: Any = None


async def april_index(client: Client) -> Json:
    return validated("index-april", json.loads((await read_item(client, INDEX))["text"]))


@pytest.mark.requirement("DRAFT-01")
@pytest.mark.requirement("DRAFT-02")
@pytest.mark.requirement("DRAFT-03")
@pytest.mark.requirement("DRAFT-04")
@pytest.mark.requirement("CONF-06")
@pytest.mark.requirement("DUAL-09")
@pytest.mark.parametrize("transport", [stdio, http])
def test_the_april_index_names_and_describes_every_skill_as_its_frontmatter_does(
    folder: Path, tmp_path: Path, transport: Any
) -> None:
    with transport(folder, tmp_path, "--dialect", "index-april") as call:
        (item,) = call("resources/read", uri=INDEX)["result"]["contents"]
        skills = {skill["uri"]: skill for skill in call("skills/list")["result"]["skills"]}
        archive = call("resources/read", uri=ARCHIVES[1])

    index = validated("index-april", json.loads(item["text"]))
    assert index["$schema"] == "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
    assert [entry["url"] for entry in index["skills"]] == LISTED
    for entry in index["skills"]:
        skill = skills[entry["url"]]
        lines = {line["uri"]: line["digest"] for line in skill["resources"]}
        assert entry == {
            "name": skill["frontmatter"]["name"],
            "type": "skill-md",
            "description": skill["frontmatter"]["description"],
            "url": entry["url"],
            "digest": lines[entry["url"]],
        }
    assert archive["error"]["code"] == INVALID_PARAMS


@pytest.mark.requirement("DUAL-09")
async def test_the_april_index_is_written_once_and_again_only_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []
    write = IndexApril.document

    def counted(self: IndexApril, lines: Sequence[bytes]) -> bytes:
        written.append(len(lines))
        return write(self, lines)

    monkeypatch.setattr(IndexApril, "document", counted)
    server = MCPServer("demo")
    skills = add_skills(server, built("tea"), dialects=["index-april"])
    async with Client(server, cache=None) as client:
        indexes = [await april_index(client) for _ in range(3)]
        before = list(written)
        skills.add(built("coffee"))
        changed = await eventually(lambda: april_index(client), lambda index: len(index["skills"]) == 2)

    assert before == [1]
    assert indexes == [indexes[0]] * 3
    assert [entry["name"] for entry in changed["skills"]] == ["coffee", "tea"]
    assert written == [1, 2]


@pytest.mark.requirement("DRAFT-04")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_in_april_a_dynamic_skill_is_listed_without_a_digest(framework: Any) -> None:
    live = DynamicSkill("live", description="Use when testing.", body=lambda: "Now.\n")
    async with framework(live, dialect="index-april") as client:
        index = await april_index(client)

    assert index["skills"] == [
        {
            "name": "live",
            "type": "skill-md",
            "description": "Use when testing.",
            "url": "skill://live/SKILL.md",
        }
    ]


@pytest.mark.requirement("DRAFT-05")
@pytest.mark.requirement("ASK-11")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_template_is_in_the_index_and_completes_and_leads_to_a_skill(
    framework: Any, mode: str
) -> None:
    tea = Skill("tea", description="Use when testing.", body="Tea.\n")
    async with framework(tea, Products(), mode=mode, dialect="index-april") as client:
        index = await april_index(client)
        templates = (await ask(client, "resources/templates/list"))["resourceTemplates"]
        template = index["skills"][-1]["url"]
        reference = {"type": "ref/resource", "uri": template}
        completion = await ask(
            client, "completion/complete", ref=reference, argument={"name": "product", "value": "tea"}
        )
        uri = Template.parse(template).expand({"product": completion["completion"]["values"][1]})
        entry = (await ask(client, "skills/get", uri=uri.text))["skill"]
        content = (await read_item(client, uri.text))["text"]

    assert index["skills"][-1] == {
        "type": "mcp-resource-template",
        "description": "One skill for each product.",
        "url": "skill://docs/{product}/SKILL.md",
    }
    (registered,) = [item for item in templates if item["uriTemplate"] == template]
    assert (registered["name"], registered["mimeType"]) == ("Product", "text/markdown")
    assert completion["completion"]["values"] == ["teapot", "teacup"]
    assert entry["frontmatter"]["name"] == "teacup"
    assert "Sell it." in content


@pytest.mark.requirement("DRAFT-05")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_source_that_does_not_say_what_else_it_serves_has_a_template_for_any_path(
    framework: Any,
) -> None:
    tea = Skill("tea", path="acme/tea", description="Use when testing.", body="Tea.\n")
    async with framework(tea, Silent(), dialect="index-april") as client:
        index = await april_index(client)
        template = index["skills"][-1]["url"]
        reference = {"type": "ref/resource", "uri": template}
        completion = await ask(
            client, "completion/complete", ref=reference, argument={"name": "path", "value": "ac"}
        )

    assert template == "skill://{+path}/SKILL.md"
    assert completion["completion"]["values"] == ["acme/tea"]


async def test_a_template_that_cannot_be_completed_has_no_values_and_a_folder_has_no_template(
    folder: Path,
) -> None:
    class Broken(Products):
        async def complete_template(self, template: str, variable: str, typed: str) -> list[str]:
            raise OSError("the shop is closed")

    async with lowlevel(folder, Broken(), dialect="index-april") as client:
        reference = {"type": "ref/resource", "uri": "skill://docs/{product}/SKILL.md"}
        completion = await ask(
            client, "completion/complete", ref=reference, argument={"name": "product", "value": ""}
        )
    async with lowlevel(folder, dialect="index-april") as client:
        index = await april_index(client)

    assert completion["completion"]["values"] == []
    assert {entry["type"] for entry in index["skills"]} == {"skill-md"}


@pytest.mark.requirement("ARC-02")
@pytest.mark.requirement("DRAFT-02")
async def test_in_april_a_skill_may_be_published_as_an_archive(folder: Path) -> None:
    server = Server[Any]("demo")
    skills = add_skills(server, folder, dialects=["index-april"])
    (april,) = skills.dialect_servers
    assert isinstance(april, IndexApril)
    april.as_archive = lambda entry: entry.name == "tea"
    async with Client(server, cache=None) as client:
        index = await april_index(client)
        archive = await read_item(client, "skill://tea.zip")
        other = await refused(client, "resources/read", uri="skill://plain.zip")

    types = {entry["name"]: entry["type"] for entry in index["skills"]}
    (tea,) = [entry for entry in index["skills"] if entry["name"] == "tea"]
    assert types == {"refunds": "skill-md", "plain": "skill-md", "tea": "archive"}
    assert tea["url"] == "skill://tea.zip"
    assert tea["digest"] == f"sha256:{hashlib.sha256(b64decode(archive['blob'])).hexdigest()}"
    assert other.code == INVALID_PARAMS


@pytest.mark.requirement("DRAFT-07")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_scoped_listing_has_every_skill_and_nothing_else(
    folder: Path, framework: Any, mode: str
) -> None:
    async with framework(folder, mode=mode, dialect="list-march") as client:
        everything = validated("list-march", await ask(client, "resources/list", uri="skill://"))
        files = validated("list-march", await ask(client, "resources/list", uri="skill://tea"))
        inside = await ask(client, "resources/list", uri="skill://tea/references/")
        prefix = await ask(client, "resources/list", uri="skill://acme")
        nothing = await ask(client, "resources/list", uri="skill://nobody")
        unscoped = await ask(client, "resources/list", uri="other://x")
        plain = await ask(client, "resources/list")

    skills = sorted([*LISTED, NESTED])
    assert [item["uri"] for item in everything["resources"]] == skills
    assert everything["resources"] == plain["resources"]
    assert [item["uri"] for item in files["resources"]] == [
        "skill://tea/SKILL.md",
        "skill://tea/assets/empty.txt",
        "skill://tea/assets/leaf.png",
        "skill://tea/references/100%25.md",
        "skill://tea/references/green%20tea.md",
        "skill://tea/scripts/brew.sh",
    ]
    assert [item["size"] for item in files["resources"]][1:3] == [0, 256]
    assert [item["name"] for item in inside["resources"]] == ["100%.md", "green tea.md"]
    assert [item["uri"] for item in prefix["resources"]] == ["skill://acme/refunds/SKILL.md", NESTED]
    assert nothing["resources"] == []
    assert unscoped["resources"] == plain["resources"]
    assert ("ttlMs" in everything) == (mode != "legacy")


@pytest.mark.requirement("DRAFT-07")
async def test_a_scoped_listing_comes_in_pages_with_cursors_of_its_own(folder: Path) -> None:
    server = Server[Any]("demo")
    add_skills(server, folder, page_size=2, dialects=["list-march"])
    async with Client(server, cache=None) as client:
        found = await pages(client, "resources/list", uri="skill://tea")
        plain = await ask(client, "resources/list")
        strange = await refused(client, "resources/list", uri="skill://tea", cursor=plain["nextCursor"])

    assert [len(page["resources"]) for page in found] == [2, 2, 2]
    assert strange.code == INVALID_PARAMS


@pytest.mark.parametrize(
    ("dialect", "gone"),
    [("index-june", (INDEX, *ARCHIVES, "skill://acme/refunds.zip")), ("index-april", (INDEX,))],
)
async def test_while_fastmcp_may_hide_a_skill_there_is_neither_index_nor_archive(
    folder: Path, dialect: str, gone: tuple[str, ...]
) -> None:
    server = FastMCP[Any]("demo")
    async with fastmcp(folder, Products(), server=server, dialect=dialect) as client:
        assert [(await read_item(client, uri))["uri"] for uri in gone] == list(gone)
        server.disable(names={"refunds"})
        errors = [await refused(client, "resources/read", uri=uri) for uri in gone]
        unknown = await refused(client, "resources/read", uri="skill://nobody.zip")
        listed = (await ask(client, "resources/list"))["resources"]

    assert {
        (error.code, error.message.replace(uri, "it")) for error, uri in zip(errors, gone, strict=True)
    } == {(unknown.code, unknown.message.replace("skill://nobody.zip", "it"))}
    assert INDEX not in [item["uri"] for item in listed]
    assert "skill://tea/SKILL.md" in [item["uri"] for item in listed]


async def test_what_fastmcp_hides_is_not_in_a_scoped_listing_and_completes_to_nothing(folder: Path) -> None:
    server = FastMCP[Any]("demo")
    add_skills(server, folder, Products(), dialects=["index-april", "list-march"])
    server.disable(names={"refunds"})
    inner = server._mcp_server  # pyright: ignore[reportPrivateUsage]
    async with Client(inner, cache=None) as client:
        everything = await ask(client, "resources/list", uri="skill://")
        files = await ask(client, "resources/list", uri="skill://acme/refunds")
        reference = {"type": "ref/resource", "uri": "skill://docs/{product}/SKILL.md"}
        completion = await ask(
            client, "completion/complete", ref=reference, argument={"name": "product", "value": ""}
        )

    assert "skill://acme/refunds/SKILL.md" not in json.dumps([everything, files])
    assert "skill://tea/SKILL.md" in json.dumps(everything)
    assert completion["completion"]["values"] == []


async def test_an_index_on_a_mounted_server_is_hidden_by_what_its_parent_hides(folder: Path) -> None:
    parent, child = FastMCP[Any]("parent"), FastMCP[Any]("child")
    add_skills(child, folder, dialects=["index-june"])
    parent.mount(child)
    inner = parent._mcp_server  # pyright: ignore[reportPrivateUsage]
    async with Client(inner, cache=None) as client:
        seen = await june_client.read_index(reader_of(client))
        parent.disable(names={"refunds"})
        with pytest.raises(MCPError) as caught:
            await read_item(client, INDEX)
    async with Client(child._mcp_server, cache=None) as client:  # pyright: ignore[reportPrivateUsage]
        again = await june_client.read_index(reader_of(client))

    assert caught.value.code == INVALID_PARAMS
    assert seen == again
