"""Finding skills of a catalog over HTTP: one index on the disk, in which each caller finds its own."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from folders import skill_md, write_files
from integration.access_world import OPEN, SECRET, Asker, token_of, write_access
from skillwire.catalog import CatalogSource, open_catalog, open_drafts
from skillwire.catalog.blobs import FolderBlobs
from skillwire.server.access.settings import AccessSettings
from skillwire.server.http.app import HttpApp
from skillwire.server.options import ServeOptions

pytestmark = pytest.mark.requirement("SEC-14")

WORDS = ("vault", "fountain", "plan zebra", "open", "one two tools", "zebr", "vualt")


async def publish(url: str, folder: Path, files: Mapping[str, str | bytes]) -> None:
    write_files(folder, files)
    async with open_catalog(url, create=True) as catalog, open_drafts([folder]) as found:
        await catalog.publish(await catalog.plan(found.drafts), actor="test")


@asynccontextmanager
async def serving_catalog(url: str, access: AccessSettings) -> AsyncGenerator[HttpApp]:
    options = ServeOptions((), find=True, more_sources=lambda: [CatalogSource(url)])
    app = HttpApp(options, host="127.0.0.1", access=access)
    async with app.open():
        yield app


async def found_by(caller: Asker, query: str, **arguments: Any) -> dict[str, Any]:
    answer = await caller.ask("tools/call", name="find_skills", arguments={"query": query, **arguments})
    assert answer.status == 200, answer
    return orjson.loads(answer.raw)["result"]["structuredContent"]


def names(answer: Mapping[str, Any]) -> list[str]:
    return sorted(skill["path"] for skill in answer["skills"])


def indexes(cache: Path) -> list[Path]:
    return [*cache.rglob("search/*.sqlite")]


@pytest.fixture(params=["bodies at hand", "bodies elsewhere"])
def bodies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files from the folder at once, or like those of another machine."""
    if request.param == "bodies elsewhere":
        monkeypatch.delattr(FolderBlobs, "get_now")


@pytest.mark.usefixtures("bodies")
async def test_callers_find_their_own_in_one_index_that_follows_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url, folder = f"sqlite:///{tmp_path}/skills.db", tmp_path / "skills"
    await publish(url, folder, {**OPEN, **SECRET})
    async with serving_catalog(url, write_access(tmp_path / "access")) as app:
        few, many = Asker(app, token_of("few")), Asker(app, token_of("many"))

        assert names(await found_by(many, "fountain")) == ["secret/plan"]
        assert await found_by(few, "fountain") == {"skills": [], "total": 0}
        assert names(await found_by(few, "open")) == ["acme/open"]
        assert len(indexes(tmp_path / "cache")) == 1

        await publish(url, folder, {"acme/new/SKILL.md": skill_md("new", body="Knows xylophones.\n")})
        for caller in (few, many):
            assert names(await found_by(caller, "xylophones")) == ["acme/new"]


async def test_nobody_can_tell_that_there_are_more_skills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    answers: list[list[dict[str, Any]]] = []
    for name, files in (("without", OPEN), ("with", {**OPEN, **SECRET})):
        url = f"sqlite:///{tmp_path}/{name}.db"
        await publish(url, tmp_path / name, files)
        async with serving_catalog(url, write_access(tmp_path / "access")) as app:
            few = Asker(app, token_of("few"))
            answers.append(
                [
                    await found_by(few, query, limit=1, **filters)
                    for query in WORDS
                    for filters in ({}, {"below": "secret"}, {"below": "acme"}, {"has_scripts": True})
                ]
            )

    assert answers[0] == answers[1]
    assert any(answer["skills"] for answer in answers[0])


async def test_immutable_versions_do_not_repeat_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"sqlite:///{tmp_path / 'skills.db'}"
    for version in ("1.0.0", "1.1.0"):
        text = skill_md(
            "fountain", extra=f'metadata: {{version: "{version}"}}\n', body=f"Edition {version}.\n"
        )
        await publish(url, tmp_path / "skills", {"acme/fountain/SKILL.md": text})
    async with serving_catalog(url, write_access(tmp_path / "etc")) as app:
        many = Asker(app, token_of("many"))

        assert names(await found_by(many, "fountain")) == ["acme/fountain"]
        assert names(await found_by(many, "edition")) == ["acme/fountain"]
