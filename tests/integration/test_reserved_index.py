"""`skill://index.json` belongs to the index wherever a dialect with one is spoken, whoever wants it."""

import json
import logging
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.server.lowlevel import Server

from folders import skill_md, write_files
from programs import skillwire_command
from serving import environment
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import INVALID_PARAMS, InvalidSkillError, NotFoundError
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.server import add_skills
from talking import ask, eventually, read_item, refused

INDEX = "skill://index.json"
INSIDE = "skill://index.json/tea/SKILL.md"
TEA = Skill("tea", path="index.json/tea", description="Use when brewing.", body="Boil.\n")

both = pytest.mark.parametrize("dialect", ["index-june", "index-april"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(
        tmp_path / "skills",
        {"index.json/tea/SKILL.md": skill_md("tea"), "good/SKILL.md": skill_md("good")},
    )
    return tmp_path / "skills"


def connect(server: Server[Any]) -> Client:
    return Client(server, mode="auto", cache=None)


async def check_index(client: Client) -> None:
    """Check that the index, and not the skill, is what the reserved URI means."""
    index = json.loads((await read_item(client, INDEX))["text"])
    listed = (await ask(client, "skills/list"))["skills"]

    # An index may also have a template for what is not listed.
    urls = [entry["url"] for entry in index["skills"] if "{" not in entry["url"]]
    assert urls == ["skill://good/SKILL.md"]
    assert [entry["uri"] for entry in listed] == ["skill://good/SKILL.md"]
    for method, parameter in (("skills/get", INSIDE), ("resources/read", INSIDE)):
        assert (await refused(client, method, uri=parameter)).code == INVALID_PARAMS
    assert (await refused(client, "resources/directory/read", uri=INDEX)).code == INVALID_PARAMS


@both
@pytest.mark.requirement("URI-13")
async def test_a_folder_at_the_place_of_the_index_is_not_served_and_reported(
    dialect: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server: Server[Any] = Server("demo")
    skills = add_skills(server, folder, dialects=[dialect], watch=False)

    with caplog.at_level(logging.WARNING, logger="skillwire"):
        async with connect(server) as client:
            await check_index(client)
            reports = [
                (report.uri, [(finding.code, finding.rule) for finding in report.findings])
                for report in skills.reports
                if "index.json" in report.place
            ]

    assert reports == [(None, [("uri-reserved", "URI-13")])]
    [logged] = [record.getMessage() for record in caplog.records if "index.json" in record.getMessage()]
    assert f"{INSIDE} is not served" in logged


@both
@pytest.mark.requirement("URI-13")
async def test_a_folder_that_comes_to_the_place_of_the_index_later_is_not_served_either(
    dialect: str, folder: Path, tmp_path: Path
) -> None:
    shutil.move(folder / "index.json", tmp_path / "away")
    server: Server[Any] = Server("demo")
    skills = add_skills(server, folder, dialects=[dialect])

    async def codes() -> list[str]:
        return [finding.code for report in skills.reports for finding in report.findings]

    async with connect(server) as client:
        await check_index(client)
        shutil.move(tmp_path / "away", folder / "index.json")
        await eventually(codes, lambda found: "uri-reserved" in found)
        await check_index(client)


@both
@pytest.mark.requirement("URI-13")
def test_a_skill_built_in_code_or_a_directory_is_refused_at_once(dialect: str, tmp_path: Path) -> None:
    skills = add_skills(Server[Any]("demo"), dialects=[dialect])

    with pytest.raises(InvalidSkillError):
        add_skills(Server[Any]("demo"), TEA, dialects=[dialect])
    with pytest.raises(InvalidSkillError):
        skills.add(TEA)
    with pytest.raises(InvalidSkillError):
        skills.add(TEA, prompt="tea")
    with pytest.raises(InvalidSkillError):
        skills.skill("index.json/tea")
    with pytest.raises(InvalidSkillError):
        skills.add_directory(INDEX, tmp_path)
    with pytest.raises(InvalidSkillError):
        skills.add_directory("skill://index%2Ejson/inner", tmp_path)


class Pushy:
    """A source that answers for the place of the index without listing anything there."""

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        yield Skill("good", description="Use it.", body="Good.\n").entry()

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        if uri.text == INSIDE:
            return TEA.entry()
        raise NotFoundError("no such skill", uri=uri.text)

    async def read_file(self, uri: str) -> bytes:
        if uri == "skill://good/SKILL.md":
            return Skill("good", description="Use it.", body="Good.\n").skill_md
        return b"mine" if uri.startswith(INDEX) else TEA.skill_md


@both
@pytest.mark.requirement("URI-13")
async def test_a_source_that_answers_for_more_than_it_lists_cannot_have_the_place_either(
    dialect: str,
) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, Pushy(), dialects=[dialect])

    async with connect(server) as client:
        await check_index(client)


@both
@pytest.mark.requirement("URI-13")
def test_serve_says_why_a_skill_is_not_there_and_goes_on(dialect: str, folder: Path, tmp_path: Path) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    ended = subprocess.run(
        skillwire_command("serve", folder, "--stdio", "--no-watch", "--dialect", dialect),
        env=environment(tmp_path),
        input=json.dumps(request).encode() + b"\n",
        capture_output=True,
        timeout=120,
    )

    assert f"{INSIDE} is not served" in ended.stderr.decode()
    assert ended.returncode == 0


@pytest.mark.requirement("URI-13")
async def test_without_an_index_the_place_is_nothing_special() -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, TEA)

    async with connect(server) as client:
        [entry] = (await ask(client, "skills/list"))["skills"]
        read = await read_item(client, INSIDE)

    assert entry["uri"] == INSIDE and read["text"].endswith("Boil.\n")
