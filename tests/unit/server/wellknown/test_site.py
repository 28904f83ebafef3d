"""The web site of a catalog: what is on it, what is not, and what its answers say."""

import hashlib
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from skillwire.core import INDEX_PATH, SITE_PATH
from skillwire.core.archive import unpack
from skillwire.core.errors import NotFoundError, SourceError
from skillwire.core.media import ArchiveFormat
from skillwire.core.uri import SkillUri
from skillwire.server.answers import Answers, ResultSettings
from skillwire.server.wellknown.app import SiteApp, site_endpoint
from skillwire.server.wellknown.site import Artifact, Publisher
from skillwire.sources import CombinedSource, DynamicSkill, MemorySource
from talking import eventually, skill


class ServedSite:
    """The skills of a server, as far as a site needs them."""

    def __init__(self, source: MemorySource, catalog: CombinedSource, *, ttl_ms: int = 30_000) -> None:
        self.source = source
        self.catalog = catalog
        self.answers = Answers(catalog, ResultSettings(ttl_ms=ttl_ms))
        self.app = SiteApp(self)

    async def ask(self, path: str, method: str = "GET", **headers: str) -> Response:
        return await self.app.respond(request(path, method, **headers))

    async def replace(self, path: str, body: str) -> None:
        self.source.remove(SkillUri.build(path))
        self.source.add(skill(path, body=body))

        async def look() -> int:
            return self.catalog.snapshot.revision

        before = self.catalog.snapshot.revision
        await eventually(look, lambda seen: seen > before or self.holds(path, body))

    def holds(self, path: str, body: str) -> bool:
        wanted = skill(path, body=body).entry()
        return self.catalog.snapshot.by_uri.get(wanted.uri.text) == wanted


def request(path: str, method: str = "GET", *, server: str = "192.0.2.7", **headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs, "server": (server, 80)}
    return Request({**scope, "query_string": b""})


def index_of(response: Response) -> dict[str, Any]:
    return json.loads(bytes(response.body))


@pytest.fixture
async def served() -> AsyncGenerator[ServedSite]:
    packed = skill("acme/bag").with_reference("references/a.md", b"things\n")
    source = MemorySource([skill("tea"), packed])
    async with CombinedSource([source]) as catalog:
        yield ServedSite(source, catalog)


@pytest.mark.requirement("DISC-05")
async def test_a_skill_of_one_file_is_that_file_and_any_other_an_archive(served: ServedSite) -> None:
    index = index_of(await served.ask(INDEX_PATH))

    bag, tea = index["skills"]
    assert (bag["name"], bag["type"], bag["description"]) == ("bag", "archive", "Use when testing bag.")
    assert (tea["name"], tea["type"], tea["description"]) == ("tea", "skill-md", "Use when testing tea.")
    for entry in (bag, tea):
        data = bytes((await served.ask(SITE_PATH + entry["url"])).body)
        assert entry["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert entry["url"].startswith(f"{hashlib.sha256(data).hexdigest()}/")
    archive = bytes((await served.ask(SITE_PATH + bag["url"])).body)
    assert {file.path: file.content for file in unpack(archive, ArchiveFormat.TAR_GZ)}.keys() == {
        "SKILL.md",
        "references/a.md",
    }


@pytest.mark.requirement("DISC-14")
async def test_what_has_no_form_here_is_left_out_with_a_warning_that_comes_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    live = DynamicSkill("live", path="ops/live", description="Use when asked.", body=lambda: "now")
    source = MemorySource([skill("a/tea"), skill("b/tea"), skill("outer"), skill("outer/inner"), live])
    async with CombinedSource([source]) as catalog:
        publisher = Publisher()
        with caplog.at_level(logging.WARNING):
            site = await publisher.site(catalog)
            source.add(skill("water"))
            while catalog.snapshot is site.snapshot:
                await catalog.refresh()
            later = await publisher.site(catalog)

    assert [entry.entry.name for entry in site.artifacts.values()] == ["outer"]
    assert {report.place: report.findings[0].code for report in site.left_out} == {
        "skill://a/tea/SKILL.md": "name-not-unique",
        "skill://b/tea/SKILL.md": "name-not-unique",
        "skill://outer/inner/SKILL.md": "site-left-out",
        "skill://ops/live/SKILL.md": "site-left-out",
    }
    assert [entry.entry.name for entry in later.artifacts.values()] == ["outer", "water"]
    assert len(caplog.records) == 4
    [outer] = site.artifacts.values()
    assert outer.type == "archive"


@pytest.mark.requirement("DISC-01")
@pytest.mark.requirement("DISC-06")
@pytest.mark.requirement("DISC-08")
async def test_answers_say_what_they_are_and_how_long_they_hold(served: ServedSite) -> None:
    index = await served.ask(INDEX_PATH)
    bag, tea = index_of(index)["skills"]

    assert index.headers["content-type"] == "application/json"
    assert index.headers["cache-control"] == "public, max-age=30"
    archive, file = await served.ask(SITE_PATH + bag["url"]), await served.ask(SITE_PATH + tea["url"])
    assert archive.headers["content-type"] == "application/gzip"
    assert file.headers["content-type"] == "text/markdown; charset=utf-8"
    for response in (archive, file):
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    for response in (index, archive, file):
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-length"] == str(len(response.body))


@pytest.mark.requirement("DISC-01")
@pytest.mark.parametrize("which", ["index", "artifact"])
async def test_head_says_the_same_without_the_bytes_and_a_known_tag_gets_304(
    served: ServedSite, which: str
) -> None:
    first = index_of(await served.ask(INDEX_PATH))["skills"][0]
    path = INDEX_PATH if which == "index" else SITE_PATH + first["url"]

    got, head = await served.ask(path), await served.ask(path, "HEAD")

    assert (head.status_code, head.body) == (200, b"")
    assert dict(head.headers) == dict(got.headers)
    tag = got.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = await served.ask(path, if_none_match=known)
        assert (again.status_code, again.body, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["cache-control"] == got.headers["cache-control"]
    for other in ('"other"', tag.strip('"'), ""):
        assert (await served.ask(path, if_none_match=other)).status_code == 200


@pytest.mark.requirement("DISC-01")
@pytest.mark.parametrize(
    "path", ["", "index.jsonl", "tea/SKILL.md", "0" * 64 + "/SKILL.md", "../skills/index.json", "index.json/"]
)
async def test_what_is_not_there_is_404(served: ServedSite, path: str) -> None:
    response = await served.ask(SITE_PATH + path)

    assert response.status_code == 404
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.requirement("DISC-01")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_other_methods_are_405(served: ServedSite, method: str) -> None:
    response = await served.ask(INDEX_PATH, method)

    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


async def test_a_change_gives_the_skill_another_artifact_and_the_rest_keep_theirs(served: ServedSite) -> None:
    before = await served.ask(INDEX_PATH)
    bag, tea = index_of(before)["skills"]

    await served.replace("tea", "Do it better.\n")

    after = await served.ask(INDEX_PATH, if_none_match=before.headers["etag"])
    assert after.status_code == 200
    bag_now, tea_now = index_of(after)["skills"]
    assert bag_now == bag
    assert tea_now["url"] != tea["url"]
    assert (await served.ask(SITE_PATH + tea["url"])).status_code == 404
    assert b"better" in bytes((await served.ask(SITE_PATH + tea_now["url"])).body)
    await served.replace("tea", "Do it.\n")
    assert (await served.ask(INDEX_PATH)).headers["etag"] == before.headers["etag"]


async def test_an_artifact_whose_skill_moved_on_is_never_given_other_bytes(served: ServedSite) -> None:
    publisher = Publisher()
    site = await publisher.site(served.catalog)
    [tea] = [found for found in site.artifacts.values() if found.entry.name == "tea"]

    await served.replace("tea", "Do it better.\n")

    with pytest.raises(NotFoundError):
        await publisher.read(tea, served.catalog)


async def test_an_artifact_that_goes_while_it_is_asked_for_is_a_plain_404(served: ServedSite) -> None:
    class Late(Publisher):
        async def read(self, artifact: Artifact, catalog: CombinedSource) -> bytes:
            await served.replace("tea", "Do it better.\n")
            return await super().read(artifact, catalog)

    tea = index_of(await served.ask(INDEX_PATH))["skills"][1]
    response = await SiteApp(served, publisher=Late()).respond(request(SITE_PATH + tea["url"]))

    assert response.status_code == 404
    assert response.headers["content-length"] == str(len(response.body))
    assert response.headers["cache-control"] == "no-store"
    assert "etag" not in response.headers


async def test_skills_that_are_closed_are_answered_for_with_a_request_to_come_again() -> None:
    class Closed:
        @property
        def answers(self) -> Answers:
            raise SourceError("the skills are not open")

    response = await SiteApp(Closed()).respond(request(INDEX_PATH))

    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


@pytest.mark.requirement("DISC-08")
async def test_pages_of_others_may_read_an_embedded_site_unless_it_is_on_loopback(served: ServedSite) -> None:
    endpoint = site_endpoint(served)

    for server, is_open in (
        ("192.0.2.7", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("/run/x.sock", False),
    ):
        response = await endpoint(request(INDEX_PATH, server=server))
        assert response.status_code == 200
        assert ("access-control-allow-origin" in response.headers) is is_open


async def test_a_site_that_must_not_be_taken_for_current_says_so(served: ServedSite) -> None:
    at_once = ServedSite(served.source, served.catalog, ttl_ms=0)

    assert (await at_once.ask(INDEX_PATH)).headers["cache-control"] == "public, no-cache"
