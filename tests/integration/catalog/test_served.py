"""A server of a catalog answers like a server of the folder that was published into it."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from random import Random

import anyio
import anyio.from_thread
import orjson
import pytest

from folders import skill_md, write_files
from integration.both_paths import PAGE_SIZE, BothPaths, exchange, write_catalog
from integration.catalog.catalog_world import drop_database, new_database
from integration.odd_requests import HttpRequest, good_request, odd_request
from serving import Json, modern
from skillwire.catalog import CatalogSource, open_catalog, open_drafts
from skillwire.core import digest_of
from skillwire.server.http.app import HttpApp
from skillwire.server.options import ServeOptions
from skillwire.server.standalone import SkillServer

Portal = anyio.from_thread.BlockingPortal
SITE = "/.well-known/agent-skills/"
DIALECTS = ("index-june", "list-march", "primitive", "prompt")


@pytest.fixture(scope="module")
def portal() -> Generator[Portal]:
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    folder = tmp_path_factory.mktemp("skills")
    write_catalog(folder)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('catalog')}/skills.db"
        return
    server = request.getfixturevalue("postgres")
    url = new_database(server)
    yield url
    drop_database(server, url)


async def publish(folder: Path, url: str) -> None:
    async with open_catalog(url, create=True) as catalog, open_drafts([folder]) as found:
        assert not found.broken
        await catalog.publish(await catalog.plan(found.drafts), actor="tests")


Serve = Callable[..., BothPaths]


@pytest.fixture(scope="module")
def serve(portal: Portal, folder: Path, url: str) -> Serve:
    """Publish the folder; a call returns both servers with some options."""
    portal.call(publish, folder, url)

    def both(dialects: tuple[str, ...] = (), **options: object) -> BothPaths:
        def offer(is_catalog: bool) -> SkillServer:
            given = ServeOptions(
                folders=() if is_catalog else (folder,),
                more_sources=(lambda: [CatalogSource(url)]) if is_catalog else None,
                page_size=PAGE_SIZE,
                watch=False,
                dialect=dialects,
                find=True,
                **options,  # pyright: ignore[reportArgumentType]
            )
            return SkillServer(given)

        return BothPaths(offer, is_stateless=False)

    return both


async def ask_all(both: BothPaths, requests: Iterable[HttpRequest]) -> tuple[list[str], Counter[int]]:
    """Ask both for everything; return each difference, and how often each status came."""
    differences: list[str] = []
    statuses: Counter[int] = Counter()
    for request in requests:
        catalog, folder, _ = await both.ask(request)
        statuses[folder.status] += 1
        if catalog != folder:
            differences.append(f"{request}\n  catalog: {catalog}\n  folder: {folder}")
    return differences, statuses


@pytest.mark.requirement("LIST-12", "GET-01", "READ-01", "DIR-01")
def test_any_request_gets_the_same_answer_from_a_catalog_as_from_its_folder(
    portal: Portal, serve: Serve
) -> None:
    rng = Random(21)
    served = serve()
    with portal.wrap_async_context_manager(served.serving()):
        targets = served.targets
        requests = [good_request(rng, targets) for _ in range(600)]
        requests += [odd_request(rng, targets) for _ in range(600)]

        differences, statuses = portal.call(ask_all, served, requests)

    assert differences == []
    assert statuses[200] > 600 and statuses[400] > 100


def http(message: Json) -> HttpRequest:
    body = orjson.dumps(message)
    headers = [
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"host", b"127.0.0.1:8000"),
        (b"mcp-protocol-version", b"2026-07-28"),
        (b"mcp-method", message["method"].encode()),
        (b"content-length", b"%d" % len(body)),
    ]
    named = message["params"].get("uri") or message["params"].get("name")
    if message["method"] in ("resources/read", "tools/call", "prompts/get"):
        headers.append((b"mcp-name", str(named).encode()))
    return HttpRequest(tuple(headers), (body,), "POST", "/mcp", False)


def template(uri: str, typed: str) -> Json:
    return modern(
        "completion/complete",
        ref={"type": "ref/resource", "uri": uri},
        argument={"name": "path", "value": typed},
    )


REQUESTS: list[Json] = [
    modern("server/discover"),
    modern("resources/list"),
    modern("resources/list", uri="skill://acme"),
    modern("resources/list", uri="skill://tea"),
    modern("resources/list", uri="skill://"),
    modern("resources/templates/list"),
    modern("resources/read", uri="skill://index.json"),
    modern("resources/read", uri="skill://tea.zip"),
    modern("resources/read", uri="skill://acme/billing/refunds.tar.gz"),
    modern("resources/read", uri="skill://nope"),
    modern("prompts/list"),
    modern("prompts/get", name="tea"),
    modern("skills/list"),
    modern("skills/get", name="invoices"),
    modern("skills/get", name="nope"),
    modern("tools/list"),
    modern("tools/call", name="find_skills", arguments={"query": "refunds"}),
    modern("tools/call", name="find_skills", arguments={"query": "brüh tee sencha", "limit": 2}),
    template("skill://{+path}", ""),
    template("skill://{+path}", "acme/billing/refunds/"),
    template("skill://{+path}", "tea/ref"),
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"list_most": 4, "pin": ("acme",)},
        {"unlisted": ("acme/billing",)},
        {"instructions": True},
    ],
    ids=["all", "most", "unlisted", "summary"],
)
def test_older_dialects_search_and_listing_rules_are_the_same_on_a_catalog(
    portal: Portal, serve: Serve, options: dict[str, object]
) -> None:
    served = serve(DIALECTS, **options)
    with portal.wrap_async_context_manager(served.serving()):
        differences, statuses = portal.call(ask_all, served, map(http, REQUESTS))

    assert differences == []
    assert statuses[200] > len(REQUESTS) / 2


def site(path: str) -> HttpRequest:
    headers = ((b"host", b"127.0.0.1:8000"),)
    return HttpRequest(headers, (b"",), "GET", path, False)


async def ask_site(url: str) -> tuple[Json, dict[str, bytes]]:
    """Return `versions.json` of a server of the catalog, and the artifacts it names by version."""
    options = ServeOptions(more_sources=lambda: [CatalogSource(url)], dialect=("well-known",))
    app = HttpApp(options, host="127.0.0.1")
    async with app.open():
        found = await exchange(app, site(f"{SITE}versions.json"))
        document = orjson.loads(found.raw)
        artifacts = {
            line["version"]: (await exchange(app, site(SITE + line["url"]))).raw
            for line in document["versions"]
        }
        return document, artifacts


def test_the_site_of_a_catalog_names_every_immutable_version_and_serves_it(
    portal: Portal, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/skills.db"
    for version, body in (("1.0.0", "One.\n"), ("1.1.0", "Two.\n")):
        metadata = f'metadata: {{version: "{version}"}}\n'
        write_files(tmp_path, {"skills/acme/tea/SKILL.md": skill_md("tea", extra=metadata, body=body)})
        portal.call(publish, tmp_path / "skills", url)

    document, artifacts = portal.call(ask_site, url)

    assert [(line["name"], line["version"], line["uri"]) for line in document["versions"]] == [
        ("tea", "1.0.0", "skill://acme/v1.0.0/tea/SKILL.md"),
        ("tea", "1.1.0", "skill://acme/v1.1.0/tea/SKILL.md"),
    ]
    assert artifacts["1.0.0"].endswith(b"One.\n") and artifacts["1.1.0"].endswith(b"Two.\n")
    assert all(digest_of(artifacts[line["version"]]) == line["digest"] for line in document["versions"])
