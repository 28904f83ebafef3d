"""Servers that list their skills in `skill://index.json`: whole journeys of a host, in either form."""

from base64 import b64encode
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client

from folders import skill_md
from hostile.hosting import DEADLINE, User, hosting, refused
from integration.hosting_serve import written
from integration.indexed_world import LABEL, WIRES, World, digest, june, skill_text, told, world
from integration.peers import BRISK
from programs import http_server, words_of
from serving import environment
from skillwire.core.archive import pack
from skillwire.core.dialects import Dialect
from skillwire.core.manifest import Coverage, digest_of
from skillwire.core.media import ArchiveFormat
from skillwire.host import HostPolicy
from skillwire.host.calls.exchange import complete
from skillwire.host.calls.listing import Listing
from skillwire.host.calls.session import ConnectionLimits
from skillwire.host.connect.connection import Connection
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion, Reply
from skillwire.host.model.endpoints import Endpoint, HttpEndpoint, ServerConfig, SkillSettings, StdioEndpoint
from skillwire.host.model.errors import MessageTooLargeError
from skillwire.host.use.fetch import ArchivePolicy
from skillwire.wire.index import INDEX_URI, SCHEMA

TEA = f"{LABEL}/tea"
TEA_URI = "skill://tea/SKILL.md"
GUIDE_URI = "skill://tea/references/guide.md"
CUSTOM_URI = "github://acme/tools/skills/menu/SKILL.md"
PRODUCT_URI = "skill://docs/kettle/SKILL.md"
TEMPLATE = "skill://docs/{product}/SKILL.md"
TEXT = skill_text("tea", "Read [the guide](references/guide.md).")
CHANGED = skill_text("tea", "Pour it away.")
JUNE = {"skills": [june(TEA_URI, TEXT)]}
APRIL = {
    "$schema": SCHEMA,
    "skills": [{**told("tea"), "type": "skill-md", "url": TEA_URI, "digest": digest(TEXT)}],
}


@pytest.fixture(scope="module", params=WIRES, ids=["-".join(wire) for wire in WIRES])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    transport, era = request.param
    home = tmp_path_factory.mktemp("home")
    folder = tmp_path_factory.mktemp("world")
    with world(folder, transport, era, env=environment(home)) as made:
        yield made


@pytest.fixture
def shop(running: World) -> World:
    """The server, in the state in which most tests want it."""
    running.resources.clear()
    running.resources.update({TEA_URI: TEXT, GUIDE_URI: "Boil water.\n"})
    running.publish(JUNE)
    running.forget()
    return running


@asynccontextmanager
async def visiting(folder: Path, server: ServerConfig, *, user: User, **options: Any) -> AsyncGenerator[Host]:
    """Run a host that has heard the server, however long that took."""
    async with hosting(folder, [server], user=user, **options) as host:
        await host.refresh()
        yield host


def one(host: Host) -> tuple[str, str, Coverage | None]:
    """Return the reference, the dialect and the coverage of the only skill."""
    [skill] = host.view.skills
    return skill.reference, skill.dialect, skill.entry.coverage


def problem(host: Host) -> str:
    [status] = host.view.servers
    return "" if status.problem is None else status.problem.code


def hidden(host: Host) -> list[str]:
    return [refusal.detail for refusal in host.view.hidden]


async def listed(server: ServerConfig, limits: ConnectionLimits = BRISK) -> Listing:
    with anyio.fail_after(DEADLINE):
        async with Connection(server, limits=limits) as connection:
            return await connection.list_skills()


# Skills that are not in the index

COFFEE_URI = "skill://coffee/SKILL.md"
COFFEE = f"{LABEL}/{COFFEE_URI}"
NAMELESS = "---\nname: coffee\n---\n\nGrind.\n"


@pytest.mark.parametrize("index", [JUNE, APRIL, None], ids=["june", "april", "none"])
async def test_a_skill_outside_the_index_is_read_only_after_the_user_agreed(
    index: object, shop: World, tmp_path: Path
) -> None:
    shop.resources[COFFEE_URI] = skill_text("coffee", "Grind.")
    shop.publish(index)
    user = User(Reply.DENY)
    before: list[str] = []
    user.meanwhile = lambda _question: before.extend(shop.asked())
    async with visiting(tmp_path, shop.server(), user=user, policy=HostPolicy(dynamic="ask")) as host:
        denied = await refused(host.load(COFFEE))
        unread = shop.asked()
        user.will(Reply.ONCE)
        await host.refresh(by_user=True)
        loaded = await host.load(COFFEE)

    assert denied.refusal == "approval-denied"
    assert COFFEE_URI not in [*before, *unread]
    assert COFFEE_URI in shop.asked()
    assert "Grind." in loaded.text
    assert user.occasions == [Occasion.DYNAMIC, Occasion.DYNAMIC]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "not-found"),
        ("# no frontmatter", "invalid-frontmatter"),
        (NAMELESS, "invalid-entry"),
        (skill_text("tea", "Not coffee."), "frontmatter-mismatch"),
    ],
)
async def test_a_file_outside_the_index_that_is_no_skill_is_refused(
    content: str | None, code: str, shop: World, tmp_path: Path
) -> None:
    if content is not None:
        shop.resources[COFFEE_URI] = content
    shop.publish(JUNE)
    async with visiting(
        tmp_path, shop.server(), user=User(Reply.ONCE), policy=HostPolicy(dynamic="ask")
    ) as host:
        failure = await refused(host.load(COFFEE))

    assert failure.refusal == code


# `index-june`


@pytest.mark.requirement("IDX-01")
@pytest.mark.requirement("IDX-03")
@pytest.mark.requirement("NEG-12")
@pytest.mark.requirement("NEG-05")
async def test_the_index_alone_makes_the_registry_and_loading_reads_one_verified_file(
    shop: World, tmp_path: Path
) -> None:
    user = User()
    async with visiting(tmp_path, shop.server(), user=user) as host:
        assert one(host) == (TEA, Dialect.INDEX_JUNE, Coverage.SKILL_FILE)
        assert shop.asked() == [INDEX_URI]

        loaded = await host.load(TEA)

    assert "Read [the guide]" in loaded.text
    assert user.occasions == [Occasion.FIRST]
    assert set(shop.asked()) == {INDEX_URI, TEA_URI}
    assert {"skills/list"} == {method for method in shop.methods() if method.startswith("skills/")}
    assert ("initialize" in shop.methods()) == (shop.era == "legacy")


@pytest.mark.requirement("IDX-10")
@pytest.mark.requirement("APPR-08")
async def test_an_approval_of_the_skill_file_survives_until_that_file_changes(
    shop: World, tmp_path: Path
) -> None:
    user = User()
    for _ in range(2):
        async with visiting(tmp_path, shop.server(), user=user) as host:
            await host.load(TEA)
    assert user.occasions == [Occasion.FIRST]

    shop.resources[TEA_URI] = CHANGED
    shop.publish({"skills": [june(TEA_URI, CHANGED)]})
    async with visiting(tmp_path, shop.server(), user=user) as host:
        loaded = await host.load(TEA)

    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED]
    assert "Pour it away" in loaded.text


@pytest.mark.requirement("IDX-03")
@pytest.mark.requirement("INT-02")
async def test_a_skill_file_that_is_not_the_listed_one_is_refused(shop: World, tmp_path: Path) -> None:
    shop.resources[TEA_URI] = CHANGED
    shop.publish(JUNE)
    async with visiting(tmp_path, shop.server(), user=User()) as host:
        error = await refused(host.load(TEA))

    assert error.refusal == "digest-mismatch"


@pytest.mark.requirement("IDX-05")
async def test_an_index_that_lies_about_the_frontmatter_is_caught_when_the_file_is_there(
    shop: World, tmp_path: Path
) -> None:
    lie = {"name": "tea", "description": "Something harmless. Use when asked."}
    shop.publish({"skills": [june(TEA_URI, TEXT, frontmatter=lie)]})
    async with visiting(tmp_path, shop.server(), user=User()) as host:
        error = await refused(host.load(TEA))

    assert error.refusal == "frontmatter-mismatch"


@pytest.mark.requirement("IDX-10")
async def test_a_file_without_a_digest_is_read_only_if_the_user_agrees_each_time(
    shop: World, tmp_path: Path
) -> None:
    user = User()
    async with visiting(tmp_path, shop.server(), user=user) as host:
        await host.load(TEA)
        error = await refused(host.read_skill_file(TEA, "references/guide.md"))
        assert error.refusal == "unverified-file"
    assert GUIDE_URI not in shop.asked()

    for content in ("Boil water.\n", "Buy gold.\n"):
        shop.resources[GUIDE_URI] = content
        shop.publish(JUNE)
        async with visiting(tmp_path, shop.server(), user=user, policy=HostPolicy(dynamic="ask")) as host:
            await host.load(TEA)
            assert content.strip() in (await host.read_skill_file(TEA, "references/guide.md")).text

    assert user.occasions == [Occasion.FIRST, Occasion.UNVERIFIED, Occasion.UNVERIFIED]


@pytest.mark.requirement("IDX-12")
async def test_lines_of_the_released_extension_make_every_file_verified(shop: World, tmp_path: Path) -> None:
    lines = [
        {"uri": TEA_URI, "digest": digest(TEXT), "size": len(TEXT)},
        {"uri": GUIDE_URI, "digest": digest("Boil water.\n"), "size": 12},
    ]
    shop.publish({"skills": [june(TEA_URI, TEXT, resources=lines, size=len(TEXT))]})
    async with visiting(tmp_path, shop.server(), user=User()) as host:
        assert one(host) == (TEA, Dialect.INDEX_JUNE, Coverage.FILES)
        await host.load(TEA)
        assert "Boil water." in (await host.read_skill_file(TEA, "references/guide.md")).text

    shop.resources[GUIDE_URI] = "Buy gold.\n!\n"
    shop.publish({"skills": [june(TEA_URI, TEXT, resources=lines)]})
    async with visiting(tmp_path / "other", shop.server(), user=User()) as host:
        await host.load(TEA)
        error = await refused(host.read_skill_file(TEA, "references/guide.md"))

    assert error.refusal == "digest-mismatch"


@pytest.mark.requirement("IDX-02")
@pytest.mark.requirement("IDX-06")
@pytest.mark.requirement("IDX-09")
@pytest.mark.requirement("ARC-18")
@pytest.mark.requirement("CONF-07")
@pytest.mark.requirement("URI-07")
async def test_what_is_listed_is_a_skill_and_what_is_only_there_is_none(shop: World, tmp_path: Path) -> None:
    menu = skill_text("menu")
    packed = {"url": "skill://packed.zip", "mimeType": "application/zip", "digest": digest("zip")}
    shop.resources.update({CUSTOM_URI: menu, "github://acme/hidden/SKILL.md": skill_text("hidden")})
    index = {
        "skills": [
            june(TEA_URI, TEXT, color="green"),
            june(CUSTOM_URI, menu),
            {"frontmatter": told("nowhere")},
            {"frontmatter": told("packed"), "archives": [packed]},
        ],
        "more": {"unknown": True},
    }
    shop.publish(index, listed=["skill://other/SKILL.md", "github://acme/hidden/SKILL.md"])
    async with visiting(tmp_path, shop.server(), user=User()) as host:
        assert [skill.reference for skill in host.view.skills] == [f"{LABEL}/menu", TEA]
        assert len(hidden(host)) == 2
        assert "neither `url` nor `archives`" in hidden(host)[0]
        assert "[archives-off]" in hidden(host)[1]
        assert "Do it." in (await host.load(f"{LABEL}/menu")).text
        error = await refused(host.load(f"{LABEL}/skill://packed"))

    assert error.refusal == "archives-off"
    assert shop.asked().count("skill://packed.zip") == 0


@pytest.mark.requirement("ARC-01")
@pytest.mark.requirement("ARC-02")
@pytest.mark.requirement("ARC-14")
async def test_where_archives_are_allowed_the_first_supported_one_is_unpacked(
    shop: World, tmp_path: Path
) -> None:
    files = {"SKILL.md": TEXT.encode(), "references/guide.md": b"From the archive.\n"}
    data = pack(files, ArchiveFormat.ZIP)
    archives = [
        {"url": "skill://tea.7z", "mimeType": "application/x-7z-compressed", "digest": digest("7z")},
        {"url": "skill://tea.zip", "mimeType": "application/zip", "digest": digest_of(data)},
    ]
    shop.resources["skill://tea.zip"] = {"blob": b64encode(data).decode()}
    del shop.resources[TEA_URI]
    user = User()
    for index in (
        {"skills": [{"frontmatter": told("tea"), "archives": archives}]},
        {"$schema": SCHEMA, "skills": [{**told("tea"), "type": "archive", **archives[1]}]},
    ):
        shop.publish(index)
        async with visiting(
            tmp_path, shop.server(), user=user, policy=HostPolicy(archives=ArchivePolicy())
        ) as host:
            assert one(host)[::2] == (TEA, Coverage.ARCHIVE)
            assert "the guide" in (await host.load(TEA)).text
            text = (await host.read_skill_file(TEA, "references/guide.md")).text

        assert "From the archive." in text
    assert user.occasions == [Occasion.FIRST]
    assert {TEA_URI, GUIDE_URI, "skill://tea.7z"}.isdisjoint(shop.asked())


# Without a usable index


@pytest.mark.requirement("IDX-07")
@pytest.mark.requirement("ASK-36")
@pytest.mark.parametrize("index", [None, {"skills": []}], ids=["absent", "empty"])
async def test_without_entries_skills_load_by_uri_and_every_load_is_asked_about(
    shop: World, tmp_path: Path, index: object
) -> None:
    user = User()
    shop.resources[CUSTOM_URI] = skill_text("menu")
    shop.publish(index)
    async with visiting(tmp_path, shop.server(), user=user, policy=HostPolicy(dynamic="ask")) as host:
        assert host.view.skills == () and problem(host) == ""
        for _ in range(2):
            assert "the guide" in (await host.load(f"{LABEL}/{TEA_URI}")).text
        assert "Do it." in (await host.load(f"{LABEL}/{CUSTOM_URI}")).text
        error = await refused(host.load(f"{LABEL}/skill://gone/SKILL.md"))

    assert error.refusal == "not-found"
    assert set(user.occasions) == {Occasion.DYNAMIC} and len(user.occasions) >= 2


@pytest.mark.requirement("NEG-13")
@pytest.mark.requirement("IDX-07")
@pytest.mark.parametrize(
    ("index", "code"),
    [
        ({"skills": [{"name": "tea"}]}, "invalid-answer"),
        ("{", "invalid-answer"),
        ('{"skills":[],"skills":[]}', "invalid-answer"),
        (
            {"$schema": "https://example.com/9", "skills": [{**told("tea"), "type": "skill-md"}]},
            "invalid-answer",
        ),
    ],
    ids=["form", "no JSON", "twice", "schema"],
)
async def test_an_index_that_cannot_be_used_is_told_to_the_user(
    shop: World, tmp_path: Path, index: object, code: str
) -> None:
    shop.publish(index)
    async with visiting(tmp_path, shop.server(), user=User(), policy=HostPolicy(dynamic="ask")) as host:
        assert (host.view.skills, problem(host)) == ((), code)
        assert "the guide" in (await host.load(f"{LABEL}/{TEA_URI}")).text


@pytest.mark.requirement("IDX-07")
async def test_what_was_listed_stays_known_while_the_index_cannot_be_read(
    shop: World, tmp_path: Path
) -> None:
    async with visiting(tmp_path, shop.server(), user=User()) as host:
        shop.resources[INDEX_URI] = {"error": -32603}
        shop.publish()
        await host.refresh(force=True)
        del shop.resources[INDEX_URI]

        assert one(host)[0] == TEA
        assert problem(host) == "server-error"


@pytest.mark.requirement("IDX-07")
async def test_a_server_whose_other_listings_fail_still_serves_skills_by_uri(
    shop: World, tmp_path: Path
) -> None:
    shop.publish(None, listed={})
    async with visiting(tmp_path, shop.server(), user=User(), policy=HostPolicy(dynamic="ask")) as host:
        assert "the guide" in (await host.load(f"{LABEL}/{TEA_URI}")).text


@pytest.mark.requirement("NEG-12")
async def test_skills_among_the_resources_are_preferred_to_an_index_that_cannot_be_used(
    shop: World, tmp_path: Path
) -> None:
    shop.publish({"skills": {}}, listed=[TEA_URI])
    async with visiting(tmp_path, shop.server(), user=User()) as host:
        assert [(skill.reference, skill.dialect) for skill in host.view.skills] == [(TEA, Dialect.LIST_MARCH)]


@pytest.mark.requirement("IDX-01")
@pytest.mark.parametrize(("transport", "era"), WIRES)
async def test_a_server_that_declares_nothing_is_heard_if_it_lists_its_index(
    tmp_path: Path, transport: str, era: str, env: dict[str, str]
) -> None:
    with world(tmp_path / "world", transport, era, env=env, declares=False) as shop:
        shop.resources[TEA_URI] = TEXT
        for listed_uris, expected in (([], ()), ([INDEX_URI], (TEA,))):
            shop.publish(JUNE, listed=listed_uris, declares=False)
            async with visiting(tmp_path / "host", shop.server(), user=User()) as host:
                assert tuple(skill.reference for skill in host.view.skills) == expected
                if expected:
                    assert one(host) == (TEA, Dialect.INDEX_JUNE, Coverage.SKILL_FILE)
                    assert "the guide" in (await host.load(TEA)).text
        assert not [method for method in shop.methods() if method.startswith("skills/")]


# Size


@pytest.mark.requirement("ASK-38")
async def test_an_index_that_is_too_large_costs_the_listing_and_a_flood_the_connection(shop: World) -> None:
    shop.publish({**JUNE, "filling": "x" * 200_000})
    few = ConnectionLimits(max_listing_bytes=100_000)
    flooded = ConnectionLimits(max_listing_bytes=1_000, message_bytes=1_000)

    listing = await listed(shop.server(), few)
    error = await refused(listed(shop.server(), flooded))

    assert (listing.entries, listing.problem is not None and listing.problem.refusal) == (
        (),
        "endless-listing",
    )
    assert isinstance(error, MessageTooLargeError)


# `index-april`


@pytest.mark.requirement("DRAFT-03")
@pytest.mark.requirement("DRAFT-04")
@pytest.mark.requirement("NEG-12")
async def test_a_summary_is_compared_with_the_file_as_far_as_it_goes(shop: World, tmp_path: Path) -> None:
    text = skill_text("tea", "More.", extra="license: MIT\nmetadata:\n  version: '2'\n")
    shop.resources[TEA_URI] = text
    entry = {**told("tea"), "type": "skill-md", "url": TEA_URI, "digest": digest(text)}
    user = User()
    for _ in range(2):
        shop.publish({"$schema": SCHEMA, "skills": [entry]})
        async with visiting(tmp_path, shop.server(), user=user) as host:
            assert one(host) == (TEA, Dialect.INDEX_APRIL, Coverage.SKILL_FILE)
            assert "More." in (await host.load(TEA)).text
    assert user.occasions == [Occasion.FIRST]

    shop.publish({"$schema": SCHEMA, "skills": [{**entry, "description": "Harmless. Use when asked."}]})
    async with visiting(tmp_path, shop.server(), user=user) as host:
        error = await refused(host.load(TEA))

    assert error.refusal == "frontmatter-mismatch"


@pytest.mark.requirement("DRAFT-04")
@pytest.mark.requirement("CONF-20")
async def test_a_skill_without_a_digest_is_asked_about_at_every_load(shop: World, tmp_path: Path) -> None:
    entry = {**told("tea"), "type": "skill-md", "url": TEA_URI}
    shop.publish({"$schema": SCHEMA, "skills": [entry]})
    async with visiting(tmp_path, shop.server(), user=User()) as host:
        assert (await refused(host.load(TEA))).refusal == "dynamic-declined"

    user = User()
    for content in (TEXT, CHANGED):
        shop.resources[TEA_URI] = content
        shop.publish({"$schema": SCHEMA, "skills": [entry]})
        async with visiting(tmp_path, shop.server(), user=user, policy=HostPolicy(dynamic="ask")) as host:
            assert one(host) == (TEA, Dialect.INDEX_APRIL, None)
            await host.load(TEA)
    assert user.occasions == [Occasion.DYNAMIC, Occasion.DYNAMIC]


@pytest.mark.requirement("DRAFT-01")
@pytest.mark.requirement("DRAFT-02")
async def test_entries_of_an_unknown_type_are_skipped_and_named(shop: World, tmp_path: Path) -> None:
    strange = {**told("tea"), "type": "x", "url": "skill://x/tea/SKILL.md"}
    shop.publish({**APRIL, "skills": [strange, *APRIL["skills"]]})
    async with visiting(tmp_path, shop.server(), user=User()) as host:
        assert one(host) == (TEA, Dialect.INDEX_APRIL, Coverage.SKILL_FILE)
        [detail] = hidden(host)

    assert "[index-type-unknown]" in detail


@pytest.mark.requirement("DRAFT-05")
@pytest.mark.requirement("DRAFT-06")
async def test_a_template_is_filled_in_by_a_person_and_loads_as_any_skill(
    shop: World, tmp_path: Path
) -> None:
    templates = [
        {"type": "mcp-resource-template", "description": "By product.", "url": TEMPLATE},
        {"type": "skill-md", "description": "Both.", "url": TEA_URI, "urlTemplate": TEMPLATE},
    ]
    shop.resources[PRODUCT_URI] = skill_text("kettle")
    shop.publish(
        {"$schema": SCHEMA, "skills": templates},
        templates=[TEMPLATE],
        completions={"product": ["kettle", "ketchup", "pot"]},
    )
    user = User()

    listing = await listed(shop.server())
    [template] = listing.templates
    if isinstance(shop.endpoint, HttpEndpoint):
        async with Client(shop.endpoint.url) as client:
            assert await complete(client, template, "product", "ket") == ("kettle", "ketchup")
    uri = template.template.expand({"product": "kettle"})
    async with visiting(tmp_path, shop.server(), user=user, policy=HostPolicy(dynamic="ask")) as host:
        loaded = await host.load(f"{LABEL}/{uri.text}")

    assert (template.description, uri.text) == ("By product.", PRODUCT_URI)
    assert (listing.entries, len(listing.refused)) == ((), 1)
    assert "Do it." in loaded.text and user.occasions == [Occasion.DYNAMIC]


@pytest.mark.requirement("DRAFT-09")
async def test_a_path_without_the_name_is_accepted_only_from_a_server_the_user_called_old(
    shop: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = "skill://acme/drinks/SKILL.md"
    shop.resources[uri] = TEXT
    entry = {**told("tea"), "type": "skill-md", "url": uri, "digest": digest(TEXT)}
    shop.publish({"$schema": SCHEMA, "skills": [entry]})
    async with visiting(tmp_path, shop.server(), user=User()) as host:
        assert host.view.skills == ()
        assert "[uri-name-mismatch]" in hidden(host)[0]
    assert not caplog.records

    old = shop.server(dialect=Dialect.INDEX_APRIL)
    async with visiting(tmp_path, old, user=User()) as host:
        [skill] = host.view.skills
        assert (skill.reference, skill.entry.name) == (f"{LABEL}/drinks", "tea")
        assert "the guide" in (await host.load(skill.reference)).text
    assert any("is used despite a mismatch" in record.message for record in caplog.records)


async def test_the_form_that_a_user_chose_is_the_only_one_taken(shop: World, tmp_path: Path) -> None:
    shop.publish(APRIL)
    async with visiting(tmp_path, shop.server(dialect=Dialect.INDEX_JUNE), user=User()) as host:
        assert (host.view.skills, problem(host)) == ((), "invalid-answer")
    async with visiting(tmp_path, shop.server(dialect=Dialect.INDEX_APRIL), user=User()) as host:
        assert one(host) == (TEA, Dialect.INDEX_APRIL, Coverage.SKILL_FILE)


# Our own servers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(
        tmp_path_factory.mktemp("skills"),
        {
            "acme/refunds/SKILL.md": skill_md("refunds", body="Read [it](references/policy.md).\n"),
            "acme/refunds/references/policy.md": "Within 30 days.\n",
            "acme/refunds/inner/SKILL.md": skill_md("inner"),
        },
    )


@pytest.fixture(scope="module", params=["stdio", "http"])
def own(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Endpoint]:
    """`skillwire serve` with both forms of the index, each on a server of its own, as they share one URI."""
    env = environment(tmp_path_factory.mktemp("home"))
    yield from _serve(request.param, folder, env, Dialect.INDEX_JUNE)


@pytest.fixture(scope="module", params=["stdio", "http"])
def own_april(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Endpoint]:
    env = environment(tmp_path_factory.mktemp("home"))
    yield from _serve(request.param, folder, env, Dialect.INDEX_APRIL)


def _serve(transport: str, folder: Path, env: dict[str, str], dialect: Dialect) -> Generator[Endpoint]:
    words = (str(folder), "--no-watch", "--dialect", dialect.value)
    if transport == "stdio":
        program, *args = words_of(*words, "--stdio")
        yield StdioEndpoint(program, tuple(args), env)
        return
    with http_server(*words, env=env) as server:
        yield HttpEndpoint(server.url)


def chosen(endpoint: Endpoint, dialect: Dialect | None) -> ServerConfig:
    return ServerConfig(LABEL, endpoint, seconds=30, skills=SkillSettings(dialect=dialect))


@pytest.mark.requirement("IDX-12")
@pytest.mark.requirement("CONF-06")
@pytest.mark.requirement("OPEN-15")
async def test_our_own_june_index_loses_nothing_but_nested_skills(own: Endpoint, tmp_path: Path) -> None:
    user = User()
    async with visiting(tmp_path, chosen(own, Dialect.INDEX_JUNE), user=user) as host:
        assert one(host) == (f"{LABEL}/refunds", Dialect.INDEX_JUNE, Coverage.FILES)
        await host.load(f"{LABEL}/refunds")
        text = (await host.read_skill_file(f"{LABEL}/refunds", "references/policy.md")).text
    async with visiting(tmp_path, chosen(own, None), user=user) as host:
        await host.load(f"{LABEL}/refunds")
        spoken = {skill.id.uri: skill.dialect for skill in host.view.skills}

    assert "Within 30 days." in text
    assert user.occasions == [Occasion.FIRST], "one skill, whichever dialect it is reached through"
    assert spoken == {
        "skill://acme/refunds/SKILL.md": Dialect.CORE,
        "skill://acme/refunds/inner/SKILL.md": Dialect.CORE,
    }


@pytest.mark.requirement("DRAFT-03")
@pytest.mark.requirement("DRAFT-04")
@pytest.mark.requirement("CONF-06")
async def test_our_own_april_index_promises_the_skill_file(own_april: Endpoint, tmp_path: Path) -> None:
    user = User()
    server = chosen(own_april, Dialect.INDEX_APRIL)
    for _ in range(2):
        async with visiting(tmp_path, server, user=user, policy=HostPolicy(dynamic="ask")) as host:
            assert one(host) == (f"{LABEL}/refunds", Dialect.INDEX_APRIL, Coverage.SKILL_FILE)
            await host.load(f"{LABEL}/refunds")
            await host.read_skill_file(f"{LABEL}/refunds", "references/policy.md")

    assert user.occasions == [Occasion.FIRST, Occasion.UNVERIFIED, Occasion.UNVERIFIED]
