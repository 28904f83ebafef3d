"""The honest life of a host: servers of ours in processes of their own, local folders, and a user."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from folders import skill_md, write_files, write_skill
from hostile.hosting import DEADLINE, REFUNDS, User, config, hosting, refused, storage_in, visiting
from hostile.running import free_port, hostile
from integration import hosting_dynamic
from integration.hosting_serve import (
    BILLING,
    DESK,
    LOGO,
    PARAGRAPH,
    POLICY,
    SCRIPT,
    at,
    audit,
    cached,
    over_stdio,
    reads,
    serving,
    written,
)
from integration.hosting_shop import INNER as INNER_URI
from integration.hosting_shop import LABEL, REFERENCES, Catalogue, Read, Sent, Shop
from integration.hosting_shop import REFUNDS as REFUNDS_URI
from integration.hosting_shop import skill_md as numbered
from programs import script_command, words_of
from serving import HttpServer, environment
from skillwire.core.manifest import digest_of
from skillwire.core.refusals import REFUSALS
from skillwire.host import HostLimits, HostPolicy
from skillwire.host.adapters.mount import Mount
from skillwire.host.approval.consent import PromptLimits
from skillwire.host.host import Host
from skillwire.host.model.approval import Grant, Occasion, Question, Reply
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.model.errors import AmbiguousReferenceError, ConfigError, Refusal, RefusedError
from skillwire.host.registry.local import LocalRoot
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict

ROOT = "skill://refunds"
BASH = ToolCall("Bash", ToolKind.EXECUTE)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home-of-servers")


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[HttpServer]:
    """One server for all tests that change nothing on it."""
    folder = written(tmp_path_factory.mktemp("billing"), BILLING)
    with serving(folder, environment(home)) as server:
        yield server


@pytest.fixture
def desk(tmp_path: Path, env: dict[str, str]) -> ServerConfig:
    return over_stdio(written(tmp_path / "desk", DESK), env)


def catalogue(number: int = 0) -> Catalogue:
    """Return what a shop publishes, in one of its versions."""
    return {
        REFUNDS_URI: {
            "SKILL.md": numbered(REFUNDS_URI, number),
            "references/policy.md": b"Policy.\n",
            "references/rules.md": b"Rules.\n",
        },
        INNER_URI: {"SKILL.md": numbered(INNER_URI, 0), "notes.md": b"Notes.\n"},
    }


# Names


@pytest.mark.requirement("HOST-01")
@pytest.mark.requirement("HOST-02")
@pytest.mark.requirement("NAME-01")
@pytest.mark.requirement("NAME-04")
@pytest.mark.requirement("NAME-06")
@pytest.mark.requirement("NAME-07")
@pytest.mark.requirement("URI-08")
async def test_one_name_on_two_servers_and_in_a_folder_is_three_skills(
    billing: HttpServer, desk: ServerConfig, tmp_path: Path
) -> None:
    """Attacks 28, 29 and 31."""
    roots = [LocalRoot(written(tmp_path / "local", {"refunds/SKILL.md": skill_md("refunds")}), "user")]
    servers = [at(billing), desk]
    seen: list[list[tuple[str, str, str]]] = []
    texts: list[dict[str, str]] = []
    for order in (servers, servers[::-1]):
        async with hosting(tmp_path, order, user=User(), roots=roots) as host:
            seen.append([(skill.reference, skill.id.uri, skill.dialect) for skill in host.view.skills])
            texts.append({name: (await host.load(name)).text for name in FAMILY})
            [collision] = [found for found in host.view.collisions if found.name == "refunds"]
            notices = [found.code for found in host.view.notices]

            assert collision.references == FAMILY
            assert "name-collision" in notices

    assert seen[0] == seen[1]
    assert ("desk/refunds", f"{ROOT}/SKILL.md", "core") in seen[0]
    assert ("billing/refunds", f"{ROOT}/SKILL.md", "core") in seen[0]
    assert ("refunds", "local://user/refunds/SKILL.md", "local") in seen[0]
    for found in texts:
        assert "Ask the desk." in found["desk/refunds"] and "MCP server desk" in found["desk/refunds"]
        assert "the policy" in found["billing/refunds"] and "MCP server billing" in found["billing/refunds"]
        assert "Do it." in found["refunds"] and "MCP server" not in found["refunds"]


FAMILY = ("billing/refunds", "desk/refunds", "refunds")


@pytest.mark.requirement("NAME-03")
@pytest.mark.requirement("NAME-08")
async def test_skills_of_one_server_that_share_a_name_are_both_known_by_their_path(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attack 30."""
    async with hosting(tmp_path, [at(billing)], user=User()) as host:
        with pytest.raises(AmbiguousReferenceError) as caught:
            await host.load("billing/report")
        bare = await refused(host.load("report"))
        east, west = await host.load("billing/east/report"), await host.load("billing/west/report")

        assert caught.value.candidates == ("billing/east/report", "billing/west/report")
        assert bare.refusal == "unknown-reference"
        assert "East." in east.text and "West." in west.text
        assert "renamed" in [found.code for found in host.view.notices]


@pytest.mark.requirement("HOST-11")
@pytest.mark.requirement("LIST-02")
@pytest.mark.requirement("URI-07")
async def test_a_skill_that_is_not_listed_is_loaded_by_its_uri_under_the_same_rules(tmp_path: Path) -> None:
    """Attack 69."""
    user = User(Reply.DENY, Reply.ALWAYS)
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        shop.unlisted = {REFUNDS_URI, INNER_URI}
        async with hosting(tmp_path, [shop.config], user=user) as host:
            reference = f"{LABEL}/{REFUNDS_URI}"
            no_skill = await refused(host.load(f"{LABEL}/skill://acme/nothing/SKILL.md"))
            no_reference = await refused(host.load(f"{LABEL}/refunds"))
            denied = await refused(host.load(reference))
            before = shop.reads()
            loaded = await host.load(reference, actor="user")
            known = await host.find(reference)

            assert (no_skill.refusal, no_reference.refusal) == ("not-found", "unknown-reference")
            assert (denied.refusal, before) == ("approval-denied", [])
            assert "Step 000000." in loaded.text
            assert not known.is_listed and known.reference == f"{LABEL}/skill://acme/refunds"
            assert user.occasions == [Occasion.FIRST, Occasion.FIRST]


# Loading and reading


@pytest.mark.requirement("INT-08")
@pytest.mark.requirement("LIST-17")
@pytest.mark.requirement("APPR-07")
async def test_nothing_is_read_and_no_entry_is_asked_for_until_a_skill_is_loaded(tmp_path: Path) -> None:
    """Attack 85."""
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        async with hosting(tmp_path, [shop.config], user=User()) as host:
            await host.refresh(force=True)
            await host.explain(REFERENCES[REFUNDS_URI])
            await host.approve(await host.find(REFERENCES[REFUNDS_URI]))
            before = list(shop.trace)
            await host.load(REFERENCES[REFUNDS_URI])
            after = shop.trace[len(before) :]

    listing = [event.uri for event in before if isinstance(event, Sent)]
    assert sorted(listing) == sorted([*REFERENCES] * 2)
    assert not [event for event in before if isinstance(event, Read)]
    assert after == [Read(REFUNDS_URI)]


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.requirement("HOST-06")
@pytest.mark.requirement("HOST-07")
@pytest.mark.requirement("HOST-16")
@pytest.mark.requirement("HOST-17")
async def test_a_skill_is_loaded_once_and_its_files_are_fetched_one_by_one(
    transport: str, billing: HttpServer, tmp_path: Path, env: dict[str, str]
) -> None:
    server = at(billing)
    if transport == "stdio":
        server = over_stdio(written(tmp_path / "skills", BILLING), env, "billing")
    async with hosting(tmp_path, [server], user=User()) as host:
        first = await host.load("billing/refunds")
        again = await host.load("billing/refunds", actor="user")
        by_uri = await host.load(f"billing/{ROOT}/SKILL.md")
        listed = host.list_skill_files("billing/refunds")
        policy = await host.read_skill_file("billing/refunds", "references/policy.md")
        twice = await host.read_skill_file("billing/refunds", "./references/policy.md")
        picture = await refused(host.read_skill_file("billing/refunds", "assets/logo.png"))
        logo = await host.read_skill_bytes("billing/refunds", "assets/logo.png")
        windows = [window.skill.reference for window in host.loaded]

    assert [loaded.is_again for loaded in (first, again, by_uri)] == [False, True, True]
    assert first.boundary == again.boundary == by_uri.boundary
    assert windows == ["billing/refunds"]
    assert [file.path for file in listed] == ["assets/logo.png", "references/policy.md", "scripts/check.sh"]
    assert listed == first.files
    assert POLICY.decode().strip() in policy.text and policy.text == twice.text
    assert (picture.refusal, logo) == ("not-text", LOGO)
    paths = ("SKILL.md", "references/policy.md", "assets/logo.png")
    assert reads(tmp_path) == [f"{ROOT}/{path}" for path in paths]


async def test_a_long_skill_comes_in_pages_that_add_up_to_it(billing: HttpServer, tmp_path: Path) -> None:
    """Attack 62."""
    async with hosting(tmp_path, [at(billing)], user=User(), limits=HostLimits(page_length=1000)) as host:
        first = await host.load("billing/stock")
        pages = [first, *[await host.load("billing/stock", page=n) for n in range(2, first.pages + 1)]]
        beyond = await refused(host.load("billing/stock", page=first.pages + 1))

    assert first.pages > 3
    assert [page.page for page in pages] == list(range(1, first.pages + 1))
    assert sum(page.text.count(PARAGRAPH.strip()) for page in pages) == 100
    assert beyond.refusal == "no-such-page"
    assert reads(tmp_path) == ["skill://stock/SKILL.md"]


@pytest.mark.requirement("READ-06")
@pytest.mark.requirement("NEST-02")
async def test_a_reference_is_relative_to_the_skill_file_it_stands_in(
    billing: HttpServer, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [at(billing)], user=User()) as host:
        await host.load("billing/outer")
        outer = await host.read_skill_file("billing/outer", "notes.md")
        inner = await host.read_skill_file("billing/outer", "notes.md", relative_to="inner/SKILL.md")
        nested = await host.read_skill_file("billing/outer", "inner/SKILL.md")
        inside = [window.skill.reference for window in host.loaded]

        assert "Notes of the outer skill." in outer.text
        assert "Notes of the inner skill." in inner.text
        assert inner.uri == "skill://outer/inner/notes.md"
        assert "read as a plain file" in nested.text and "allowed-tools: Bash" in nested.text
        assert inside == ["billing/outer"]
        assert host.gate(BASH).verdict is Verdict.ASK


@pytest.mark.parametrize(
    ("path", "relative_to"),
    [
        ("../stock/SKILL.md", "SKILL.md"),
        ("/etc/hostname", "SKILL.md"),
        ("skill://stock/SKILL.md", "SKILL.md"),
        ("file:///etc/hostname", "SKILL.md"),
        ("missing.md", "SKILL.md"),
        ("../notes.md", "inner/SKILL.md"),
        ("../../refunds/SKILL.md", "inner/SKILL.md"),
        ("notes.md", "inner/notes.md"),
        ("notes.md", "../SKILL.md"),
        ("", "SKILL.md"),
    ],
)
@pytest.mark.requirement("READ-07")
@pytest.mark.requirement("INT-04")
async def test_a_reference_that_means_no_file_of_the_skill_is_refused_and_not_sent(
    path: str, relative_to: str, billing: HttpServer, tmp_path: Path
) -> None:
    """Attacks 6 and 42."""
    async with hosting(tmp_path, [at(billing)], user=User()) as host:
        await host.load("billing/outer")
        before = reads(tmp_path)
        error = await refused(host.read_skill_file("billing/outer", path, relative_to=relative_to))

    assert error.refusal == "unlisted-file"
    assert reads(tmp_path) == before == ["skill://outer/SKILL.md"]


@pytest.mark.requirement("READ-03")
@pytest.mark.requirement("READ-05")
async def test_reading_and_looking_open_no_window_and_give_no_standing(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attack 40."""
    user = User(Reply.DENY)
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        resource = await host.read_resource("billing", f"{ROOT}/SKILL.md")
        preview = await host.preview("billing/refunds")
        script = await host.preview("billing/refunds", "scripts/check.sh")
        picture = await host.preview("billing/refunds", "assets/logo.png")
        unlisted = await refused(host.preview("billing/refunds", "../stock/SKILL.md"))
        file = await refused(host.read_skill_file("billing/refunds", "references/policy.md"))
        windows = host.loaded
        verdict = host.gate(BASH).verdict

    assert resource.text.startswith("Resource: ") and "no skill" in resource.text
    assert preview.text is not None and "the policy" in preview.text
    assert (script.content, picture.content, picture.text) == (SCRIPT, LOGO, None)
    assert (unlisted.refusal, file.refusal) == ("unlisted-file", "not-loaded")
    assert (windows, user.questions, verdict) == ((), [], Verdict.ALLOW)


@pytest.mark.requirement("APPR-07")
async def test_a_review_opens_one_file_after_another_as_they_are_asked_for_and_loads_nothing(
    billing: HttpServer, tmp_path: Path
) -> None:
    user = User(Reply.DENY)
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        skill = await host.find("billing/refunds")
        review = host.review(skill)
        before = reads(tmp_path)
        first = await anext(review)
        after = reads(tmp_path)
        rest = [preview async for preview in review]
        again = [preview.uri async for preview in host.review(skill)]
        windows = host.loaded

    uris = [f"{ROOT}/{path}" for path in ("SKILL.md", "scripts/check.sh", "assets/logo.png")]
    uris.append(f"{ROOT}/references/policy.md")
    assert (before, after) == ([], uris[:1])
    assert [preview.uri for preview in (first, *rest)] == uris == again == reads(tmp_path)
    assert [preview.content for preview in rest] == [SCRIPT, LOGO, POLICY]
    assert (windows, user.questions) == ((), [])


async def test_a_review_is_of_exactly_the_entry_that_was_found(tmp_path: Path, env: dict[str, str]) -> None:
    folder = written(tmp_path / "skills", {"odd/SKILL.md": skill_md("odd"), "odd/notes.md": "old"})
    async with hosting(tmp_path, [over_stdio(folder, env)], user=None) as host:
        skill = await host.find("desk/odd")
        review = host.review(skill)
        await anext(review)
        (folder / "odd" / "notes.md").write_text("new")
        error = await refused(anext(review))

    assert error.refusal in ("digest-mismatch", "server-error")


@pytest.mark.requirement("SEC-12")
async def test_a_preview_shows_what_hides_in_a_text(tmp_path: Path, env: dict[str, str]) -> None:
    """Attack 65."""
    body = "Do it.\u200b\n"
    folder = written(tmp_path / "skills", {"odd/SKILL.md": skill_md("odd", body=body)})
    async with hosting(tmp_path, [over_stdio(folder, env)], user=None) as host:
        preview = await host.preview("desk/odd")

        assert preview.text is not None and "<U+200B>" in preview.text and "\u200b" not in preview.text
        assert len(preview.hidden) == 1
        assert preview.content == skill_md("odd", body=body)
        assert preview.skill.id.origin.label == "desk"


@pytest.mark.requirement("META-07")
async def test_a_skill_file_may_be_called_any_kind_of_file(tmp_path: Path) -> None:
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        shop.media_type = "application/x-nonsense"
        async with hosting(tmp_path, [shop.config], user=User()) as host:
            loaded = await host.load(REFERENCES[REFUNDS_URI])
            policy = await host.read_skill_file(REFERENCES[REFUNDS_URI], "references/policy.md")

    assert "Step 000000." in loaded.text and "Policy." in policy.text


@pytest.mark.requirement("FMT-07")
@pytest.mark.requirement("SEC-05")
@pytest.mark.requirement("SEC-11")
async def test_nothing_in_the_frontmatter_gives_a_skill_more_standing(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attacks 43 and 44. The skill claims `io.modelcontextprotocol/trusted`, which means nothing."""
    user = User()
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        loaded = await host.load("billing/refunds")
        verdicts = [host.gate(call).verdict for call in (BASH, ToolCall("Write", ToolKind.WRITE))]

    assert user.occasions == [Occasion.FIRST]
    assert verdicts == [Verdict.ASK, Verdict.ASK]
    assert "no more authority than a web page" in loaded.text


@pytest.mark.requirement("DIR-08")
@pytest.mark.requirement("DIR-09")
@pytest.mark.requirement("DIR-10")
@pytest.mark.requirement("DIR-11")
@pytest.mark.requirement("INT-07")
async def test_a_directory_that_differs_from_the_manifest_means_that_the_skill_changed(
    tmp_path: Path,
) -> None:
    """Attacks 14 and 16."""
    reference = REFERENCES[REFUNDS_URI]
    user = User(Reply.ALWAYS, Reply.ONCE)
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        async with hosting(tmp_path, [shop.config], user=user) as host:
            await host.load(reference)
            same = await host.read_skill_directory(reference, "references")
            more = {path: data for path, data in catalogue()[REFUNDS_URI].items() if "policy" not in path}
            await shop.publish({REFUNDS_URI: {**more, "references/new.md": b"New.\n"}})
            extra = await refused(host.read_skill_directory(reference, "references"))
            new = await refused(host.read_skill_file(reference, "references/new.md"))
            gone = await refused(host.read_skill_file(reference, "references/policy.md"))
            held = [file.path for file in host.list_skill_files(reference)]
            await host.load(reference)
            renewed = [file.path for file in host.list_skill_files(reference)]

    assert [file.path for file in same] == ["references/policy.md", "references/rules.md"]
    assert [error.refusal for error in (extra, new, gone)] == ["skill-changed"] * 3
    assert "references/new.md" not in held and "references/policy.md" in held
    assert "references/new.md" in renewed and "references/policy.md" not in renewed
    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED]


# Servers that are misconfigured, away, or change


async def test_a_configuration_with_a_broken_entry_costs_only_that_entry(
    billing: HttpServer, tmp_path: Path, env: dict[str, str]
) -> None:
    command, *args = words_of(written(tmp_path / "desk", DESK), "--stdio", "--no-watch")
    servers = {
        "billing": {"type": "http", "url": billing.url},
        "desk": {"command": command, "args": args, "env": env},
        "broken": {"type": "carrier-pigeon"},
        "resting": {"command": "true", "disabled": True},
    }
    path = tmp_path / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}), "utf-8")

    with anyio.fail_after(DEADLINE):
        async with Host.from_config(
            path, approve=User(), storage=storage_in(tmp_path), roots=(), limits=HostLimits(wait_seconds=30)
        ) as host:
            codes = [(found.code, found.subject) for found in host.problems]
            labels = [status.origin.label for status in host.view.servers]
            loaded = [await host.load("billing/refunds"), await host.load("desk/letters")]

    assert codes == [("invalid-config", "broken")]
    assert labels == ["billing", "desk"]
    assert "Write letters." in loaded[1].text
    with pytest.raises(ConfigError):
        Host.from_config(tmp_path / "missing.json")


@pytest.mark.requirement("HOST-01")
async def test_a_server_that_is_down_from_the_start_costs_the_others_nothing(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attack 56."""
    down = ServerConfig("down", HttpEndpoint(f"http://127.0.0.1:{free_port()}/mcp"), seconds=5)
    never = ServerConfig("never", StdioEndpoint(str(tmp_path / "no-such-program")), seconds=5)
    async with hosting(tmp_path, [down, at(billing), never], user=User()) as host:
        await host.refresh()
        states = {status.origin.label: status.state for status in host.view.servers}
        loaded = await host.load("billing/refunds")
        error = await refused(host.load("down/refunds"))
        chain = await host.explain("down/refunds")

    assert states == {"down": "failed", "billing": "listed", "never": "failed"}
    assert "the policy" in loaded.text
    assert error.refusal == "unknown-reference" and "cannot be reached" in str(error)
    assert not chain.can_be_loaded
    assert [step.refusal.code for step in chain.steps if step.refusal] == [
        "server-unavailable",
        "unknown-reference",
        "unknown-reference",  # The load above, as the audit log remembers it.
    ]


@pytest.mark.requirement("HOST-19")
@pytest.mark.requirement("APPR-02")
async def test_a_change_that_is_announced_makes_the_listing_stale_and_the_next_load_asks(
    tmp_path: Path, env: dict[str, str]
) -> None:
    user = User()
    folder = written(tmp_path / "skills", BILLING)
    with serving(folder, env, watch=True) as server:
        async with hosting(tmp_path, [at(server)], user=user) as host:
            await host.load("billing/refunds")
            approvals = host.approvals
            await anyio.to_thread.run_sync(
                lambda: (folder / "refunds/references/policy.md").write_bytes(b"Never.\n")
            )
            with anyio.fail_after(30):
                while host.view.servers[0].state != "stale":  # noqa: ASYNC110 - another process tells us
                    await anyio.sleep(0.02)
            still = host.approvals
            loaded = await host.load("billing/refunds")
            policy = await host.read_skill_file("billing/refunds", "references/policy.md")

    assert still == approvals
    assert not loaded.is_again and "Never." in policy.text
    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED]
    assert user.questions[1].change is not None
    assert user.questions[1].change.modified == (f"{ROOT}/references/policy.md",)


@pytest.mark.requirement("LIST-15")
@pytest.mark.requirement("HOST-13")
async def test_a_fresh_listing_is_not_asked_for_again_and_only_the_server_meant_is_asked(
    tmp_path: Path,
) -> None:
    async with Shop().running() as one, Shop().running() as two:
        await one.publish(catalogue())
        await two.publish(catalogue())
        other = ServerConfig("other", two.config.endpoint)
        async with hosting(tmp_path, [one.config, other], user=User()) as host:
            one.trace.clear()
            two.trace.clear()
            await host.refresh()
            await host.load(f"{LABEL}/refunds")
            await refused(host.load(f"{LABEL}/skill://acme/nothing/SKILL.md"))

            assert one.trace == [Read(REFUNDS_URI)]
            assert two.trace == []


# Cache and offline use


@pytest.mark.requirement("CACHE-05")
@pytest.mark.requirement("CACHE-01")
async def test_what_was_approved_and_cached_is_used_while_its_server_is_away(
    tmp_path: Path, env: dict[str, str]
) -> None:
    """Attack 76."""
    folder = written(tmp_path / "skills", BILLING)
    with serving(folder, env) as server:
        async with hosting(tmp_path, [at(server)], user=User()) as host:
            await host.load("billing/refunds")
            await host.read_skill_file("billing/refunds", "references/policy.md")
            await host.preview("billing/stock")
        approved = host_date(tmp_path)
    later = User(Reply.DENY)
    async with hosting(tmp_path, [at(server)], user=later) as host:
        references = [skill.reference for skill in host.view.skills]
        loaded = await host.load("billing/refunds")
        policy = await host.read_skill_file("billing/refunds", "references/policy.md")
        uncached = await refused(host.read_skill_file("billing/refunds", "scripts/check.sh"))
        unknown = await refused(host.load("billing/stock"))
        known = host.view.skills[0]
        chain = await host.explain("billing/refunds")
        verdict = host.gate(BASH).verdict

    assert references == ["billing/refunds"]
    assert known.is_remote and known.offline_since == approved
    assert f"cached copy approved on {approved}" in loaded.text
    assert loaded.origin.is_remote and "MCP server billing" in loaded.text
    assert "Refund within 30 days." in policy.text
    assert (uncached.refusal, unknown.refusal) == ("server-unavailable", "unknown-reference")
    assert later.questions == []
    assert "offline" in [step.what for step in chain.steps]
    assert verdict is Verdict.ASK


def host_date(folder: Path) -> str:
    """Return the day on which the only approval was given."""
    [line] = audit(folder, "approval")
    return line["time"][:10]


@pytest.mark.requirement("CACHE-05")
async def test_a_server_that_comes_back_is_asked_again_and_its_copy_is_no_longer_called_old(
    tmp_path: Path, env: dict[str, str]
) -> None:
    folder = written(tmp_path / "skills", BILLING)
    with serving(folder, env) as server:
        async with hosting(tmp_path, [at(server)], user=User()) as host:
            await host.load("billing/refunds")
    user = User(Reply.DENY)
    async with hosting(tmp_path, [at(server)], user=user) as host:
        offline = await host.load("billing/refunds")
        host.close("billing/refunds")
        write_files(folder, {"refunds/scripts/check.sh": b"echo other\n"})
        with serving(folder, env, port=server.port):
            await host.refresh(by_user=True)
            error = await refused(host.load("billing/refunds"))
            listed = [skill.reference for skill in host.view.skills]

    assert "Offline:" in offline.text
    assert error.refusal == "approval-denied"
    assert user.occasions == [Occasion.CHANGED]
    assert "billing/stock" in listed


@pytest.mark.requirement("CACHE-01")
async def test_a_second_load_after_a_restart_reads_nothing(billing: HttpServer, tmp_path: Path) -> None:
    for _ in range(2):
        async with hosting(tmp_path, [at(billing)], user=User()) as host:
            await host.load("billing/refunds")

    assert reads(tmp_path) == [f"{ROOT}/SKILL.md"]
    assert [line["again"] for line in audit(tmp_path, "load")] == [False, False]


@pytest.mark.requirement("CACHE-07")
async def test_a_cached_file_that_was_changed_is_fetched_anew_and_reported(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attacks 71 and 72."""
    async with hosting(tmp_path, [at(billing)], user=User()) as host:
        first = await host.load("billing/refunds")
    for path in cached(tmp_path):
        content, stamp = path.read_bytes(), path.stat()
        path.write_bytes(content.replace(b"policy", b"poison"))
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    async with hosting(tmp_path, [at(billing)], user=User(Reply.DENY)) as host:
        second = await host.load("billing/refunds")

    assert "poison" not in second.text
    assert first.text.replace(first.boundary, "") == second.text.replace(second.boundary, "")
    assert [(line["uri"], line["code"]) for line in audit(tmp_path, "cache-mismatch")] == [
        (f"{ROOT}/SKILL.md", "digest-mismatch")
    ]
    assert reads(tmp_path) == [f"{ROOT}/SKILL.md"] * 2


@pytest.mark.requirement("CACHE-06")
async def test_a_server_that_is_forgotten_leaves_nothing_behind(
    billing: HttpServer, desk: ServerConfig, tmp_path: Path
) -> None:
    """Attack 76."""
    async with hosting(tmp_path, [at(billing), desk], user=User()) as host:
        await host.load("billing/refunds")
        await host.load("desk/refunds")
        await host.forget_server("billing")
        approvals = [approval.skill.origin.label for approval in host.approvals]
        error = await refused(host.read_skill_file("billing/refunds", "references/policy.md"))
    left = [path.read_bytes() for path in cached(tmp_path)]
    later = User(Reply.DENY)
    async with hosting(tmp_path, [at(billing), desk], user=later) as host:
        denied = await refused(host.load("billing/refunds"))
        kept = await host.load("desk/refunds")

    assert approvals == ["desk"]
    assert left == [DESK["refunds/SKILL.md"]]
    assert (error.refusal, denied.refusal) == ("not-approved", "approval-denied")
    assert later.occasions == [Occasion.FIRST]
    assert "Ask the desk." in kept.text


# Folders


async def test_a_projects_own_skills_count_once_its_folder_is_trusted(tmp_path: Path) -> None:
    """Attack 81."""
    project = tmp_path / "project"
    write_skill(project / ".agents" / "skills" / "deploy")
    roots = [LocalRoot(project / ".agents" / "skills", "project", project)]
    async with hosting(tmp_path, [], user=User(), roots=roots) as host:
        before = await refused(host.load("deploy"))
        hidden = [found.code for found in host.view.hidden]
        chain = await host.explain("deploy")
        view = await host.trust_folder(project)
        loaded = await host.load("deploy")
        verdict = host.gate(BASH).verdict
    async with hosting(tmp_path, [], user=None, roots=roots) as host:
        again = await host.load("deploy")

    assert (before.refusal, hidden) == ("unknown-reference", ["untrusted-folder"])
    assert not chain.can_be_loaded
    assert [skill.reference for skill in view.skills] == ["deploy"]
    assert "Do it." in loaded.text and "local folder project" in loaded.text
    assert verdict is Verdict.ALLOW
    assert "Do it." in again.text


# What a loaded skill may cause


@pytest.mark.requirement("SEC-08")
@pytest.mark.requirement("SEC-09")
async def test_a_read_on_another_server_is_asked_about_every_time_with_both_names(
    billing: HttpServer, desk: ServerConfig, tmp_path: Path
) -> None:
    """Attack 38."""
    user = User(Reply.ALWAYS)
    uri = f"{ROOT}/SKILL.md"
    async with hosting(tmp_path, [at(billing), desk], user=user) as host:
        await host.load("billing/stock")
        own = await host.read_resource("billing", uri)
        first = await host.read_resource("desk", uri)
        await host.read_resource("desk", uri)
        user.will(Reply.DENY)
        third = await refused(host.read_resource("desk", uri))
        unknown = await refused(host.read_resource("nobody", uri))
        windows = [window.skill.reference for window in host.loaded]

    crossing = [question for question in user.questions if question.occasion is Occasion.CROSS_ORIGIN]
    assert [(question.servers, question.uri) for question in crossing] == [(("billing", "desk"), uri)] * 3
    assert not any(question.may_be_remembered for question in crossing)
    assert user.occasions[1:] == [Occasion.CROSS_ORIGIN] * 3
    assert "the policy" in own.text and "Ask the desk." in first.text
    assert (third.refusal, unknown.refusal) == ("cross-origin", "unknown-reference")
    assert windows == ["billing/stock"]


@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("SEC-16")
async def test_a_call_while_a_skill_is_loaded_is_asked_about_and_answered_for_itself_alone(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attack 46."""
    user = User(Reply.ALWAYS)
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        before = await host.authorise(BASH)
        await host.load("billing/refunds")
        yes = await host.authorise(BASH)
        user.will(Reply.DENY)
        no = await host.authorise(BASH)
        inside = ToolCall("Write", ToolKind.WRITE, path=str(storage_in(tmp_path).state / "approvals.json"))
        protected = await host.authorise(inside)
        asked = user.occasions
        host.close("billing/refunds")
        after = await host.authorise(BASH)
    async with hosting(tmp_path, [at(billing)], user=None) as host:
        await host.load("billing/refunds")
        nobody = await host.authorise(BASH)

    verdicts = [decision.verdict for decision in (before, yes, no, protected, after, nobody)]
    allow, deny = Verdict.ALLOW, Verdict.DENY
    assert verdicts == [allow, allow, deny, deny, allow, deny]
    assert (no.code, protected.code) == ("execution", "protected-place")
    assert asked == [Occasion.FIRST, Occasion.CALL, Occasion.CALL]
    assert no.refusal is not None and no.refusal.code in REFUSALS


@pytest.mark.requirement("SEC-03")
async def test_where_nothing_is_set_a_servers_tool_may_be_called_and_its_skill_not_loaded(
    billing: HttpServer, tmp_path: Path
) -> None:
    call = ToolCall("lookup", ToolKind.NETWORK, server="billing")
    user = User()
    async with hosting(tmp_path, [at(billing)], user=None) as host:
        tool = host.gate(call).verdict
        skill = await refused(host.load("billing/refunds"))
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        await host.load("billing/refunds")
        meanwhile = host.gate(call).verdict

    assert (tool, skill.refusal) == (Verdict.ALLOW, "approval-required")
    assert (user.occasions, meanwhile) == ([Occasion.FIRST], Verdict.ASK)


@pytest.mark.requirement("SEC-07")
@pytest.mark.requirement("APPR-05")
async def test_running_a_script_is_a_grant_of_its_own_that_shows_the_bytes(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attack 45."""
    user = User(Reply.ALWAYS, Reply.DENY)
    run = ToolCall(
        "run",
        ToolKind.EXECUTE,
        skill="billing/refunds",
        script="scripts/check.sh",
        script_digest=digest_of(SCRIPT),
    )
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        not_loaded = await refused(host.request_scripts("billing/refunds", "scripts/check.sh"))
        await host.load("billing/refunds")
        denied = await refused(host.request_scripts("billing/refunds", "scripts/check.sh"))
        before = host.gate(run).verdict
        user.will(Reply.ALWAYS)
        still_denied = await refused(host.request_scripts("billing/refunds", "scripts/check.sh"))
        await host.refresh(by_user=True)
        content = await host.request_scripts("billing/refunds", "scripts/check.sh")
        after = [host.gate(call).verdict for call in (run, BASH)]
        [approval] = host.approvals
    question = user.questions[-1]
    async with hosting(tmp_path, [at(billing)], user=None) as host:
        await host.load("billing/refunds")
        remembered = await host.request_scripts("billing/refunds", "scripts/check.sh")
        later = host.gate(run).verdict

    assert not_loaded.refusal == "not-loaded"
    assert (denied.refusal, still_denied.refusal) == ("approval-denied", "approval-denied")
    assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS, Occasion.SCRIPTS]
    assert (question.script, question.script_content) == ("scripts/check.sh", SCRIPT)
    assert question.script_digest == digest_of(SCRIPT)
    assert "scripts/check.sh" in question.call and "on this machine" in question.call
    assert (before, after) == (Verdict.ASK, [Verdict.ALLOW, Verdict.ASK])
    assert approval.grants == {Grant.LOAD, Grant.SCRIPTS}
    assert content == remembered == SCRIPT
    assert later is Verdict.ALLOW


@pytest.mark.requirement("SEC-10")
@pytest.mark.requirement("APPR-05")
async def test_the_tools_a_skill_names_are_a_grant_of_their_own(billing: HttpServer, tmp_path: Path) -> None:
    """Attack 43."""
    user = User(Reply.ALWAYS, Reply.ONCE)
    write = ToolCall("Write", ToolKind.WRITE)
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        await host.load("billing/refunds")
        before = host.gate(write).verdict
        tools = await host.request_allowed_tools("billing/refunds")
        after = [host.gate(call).verdict for call in (write, BASH)]
        await host.load("billing/stock")
        beside = host.gate(write).verdict
        none = await host.request_allowed_tools("billing/stock")

    assert (before, after, beside) == (Verdict.ASK, [Verdict.ALLOW, Verdict.ASK], Verdict.ASK)
    assert (tools, none) == (("Write",), ())
    assert user.questions[1].tools == ("Write",)
    assert user.occasions == [Occasion.FIRST, Occasion.ALLOWED_TOOLS, Occasion.FIRST]


@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("SEC-10")
@pytest.mark.requirement("APPR-05")
async def test_a_load_allowed_once_allows_no_script_and_no_tool(billing: HttpServer, tmp_path: Path) -> None:
    user = User(Reply.ONCE, Reply.DENY)
    write = ToolCall("Write", ToolKind.WRITE)
    run = ToolCall(
        "run",
        ToolKind.EXECUTE,
        skill="billing/refunds",
        script="scripts/check.sh",
        script_digest=digest_of(SCRIPT),
    )
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        await host.load("billing/refunds")
        verdicts = [host.gate(call).verdict for call in (write, run)]
        script = await refused(host.request_scripts("billing/refunds", "scripts/check.sh"))
        tools = await refused(host.request_allowed_tools("billing/refunds"))

    assert verdicts == [Verdict.ASK, Verdict.ASK]
    assert (script.refusal, tools.refusal) == ("approval-denied", "approval-denied")
    assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS, Occasion.ALLOWED_TOOLS]


@pytest.mark.requirement("INT-06")
@pytest.mark.requirement("HOST-15")
async def test_windows_reach_sub_agents_survive_summaries_and_close_when_the_text_is_gone(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attacks 47 and 48."""
    async with hosting(tmp_path, [at(billing)], user=User()) as host:
        await host.load("billing/refunds")
        child = host.child()
        inherited = child.gate(BASH).verdict
        await child.load("billing/stock")
        apart = [window.skill.reference for window in host.loaded]
        policy = await child.read_skill_file("billing/refunds", "references/policy.md")
        child.close("billing/refunds")
        host.adopt(child)
        adopted = [window.skill.reference for window in host.loaded]
        kept = host.on_compaction()
        gone = host.on_compaction(removed=["billing/refunds", "billing/unknown"])
        file = await refused(host.read_skill_file("billing/refunds", "references/policy.md"))
        closed = [host.close("billing/stock"), host.close("billing/stock")]

        assert inherited is Verdict.ASK
        assert apart == ["billing/refunds"]
        assert "Refund within" in policy.text
        assert adopted == ["billing/refunds", "billing/stock"]
        assert [window.skill.reference for window in kept] == adopted
        assert [window.skill.reference for window in gone] == ["billing/stock"]
        assert file.refusal == "not-loaded"
        assert closed == [True, False]
        assert host.gate(BASH).verdict is Verdict.ALLOW


@pytest.mark.requirement("NEST-04")
@pytest.mark.requirement("NEST-05")
@pytest.mark.requirement("NEST-06")
@pytest.mark.requirement("APPR-06")
async def test_a_skill_inside_another_is_an_ordinary_skill_with_an_approval_of_its_own(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attacks 51 and 52."""
    user = User(Reply.ALWAYS, Reply.DENY, Reply.ALWAYS)
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        await host.load("billing/outer")
        denied = await refused(host.load("billing/inner"))
        inner = await host.load("billing/inner", actor="user")
        notes = await host.read_skill_file("billing/inner", "notes.md")
        outside = await refused(host.read_skill_file("billing/inner", "../notes.md"))
        through = await host.read_resource("billing", "skill://outer/inner/notes.md")
        approved = [approval.skill.uri for approval in host.approvals]

    assert denied.refusal == "approval-denied"
    assert "Inner." in inner.text and "Notes of the inner skill." in notes.text
    assert outside.refusal == "unlisted-file"
    assert through.text.startswith("File: notes.md of the skill billing/inner")
    assert approved == ["skill://outer/SKILL.md", "skill://outer/inner/SKILL.md"]
    assert user.occasions == [Occasion.FIRST] * 3


@pytest.mark.requirement("NEST-03")
@pytest.mark.requirement("APPR-02")
async def test_a_change_of_the_inner_skill_ends_the_approval_of_the_outer_one(tmp_path: Path) -> None:
    """Attack 52."""
    user = User(Reply.ALWAYS, Reply.DENY)
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        async with hosting(tmp_path, [shop.config], user=user) as host:
            await host.load(REFERENCES[REFUNDS_URI])
            await shop.publish({**catalogue(), INNER_URI: {"SKILL.md": numbered(INNER_URI, 7)}})
            await host.refresh(force=True)
            error = await refused(host.load(REFERENCES[REFUNDS_URI]))
            file = await refused(host.read_skill_file(REFERENCES[REFUNDS_URI], "references/policy.md"))
            approvals = host.approvals

    assert (error.refusal, file.refusal, approvals) == ("approval-denied", "skill-changed", ())
    change = user.questions[1].change
    assert change is not None
    assert (change.modified, change.removed) == ((INNER_URI,), ("skill://acme/refunds/inner/notes.md",))


def live(env: dict[str, str]) -> ServerConfig:
    """Say how a host starts the server of a skill that has no digests."""
    program, *words = script_command(Path(hosting_dynamic.__file__))
    return ServerConfig("live", StdioEndpoint(program, tuple(words), env), seconds=30)


@pytest.mark.requirement("APPR-04")
async def test_a_skill_without_digests_is_declined_unless_the_user_wants_to_be_asked_each_time(
    tmp_path: Path, env: dict[str, str]
) -> None:
    """Attack 12."""
    user = User(Reply.ALWAYS)
    async with hosting(tmp_path, [live(env)], user=user) as host:
        declined = await refused(host.load("live/status"))
        approved = await host.approve(await host.find("live/status"))
        still = await refused(host.load("live/status"))
        asked = list(user.questions)

    assert (declined.refusal, still.refusal) == ("dynamic-declined", "dynamic-declined")
    assert (approved, asked, reads(tmp_path)) == (None, [], [])


@pytest.mark.requirement("APPR-04")
@pytest.mark.requirement("CACHE-09")
@pytest.mark.requirement("DIR-12")
async def test_a_yes_to_a_skill_without_digests_is_for_one_load_and_nothing_of_it_is_kept(
    tmp_path: Path, env: dict[str, str]
) -> None:
    """Attack 12."""
    user = User(Reply.ALWAYS)
    async with hosting(tmp_path, [live(env)], user=user, policy=HostPolicy(dynamic="ask")) as host:
        first = await host.load("live/status")
        again = await host.load("live/status")
        folder = await host.read_skill_directory("live/status", "logs")
        log = [await host.read_skill_file("live/status", "logs/today.md") for _ in range(2)]
        outside = await refused(host.read_skill_file("live/status", "../other.md"))
        host.close("live/status")
        second = await host.load("live/status")
        other = await host.read_skill_file("live/status", "logs/today.md")
        user.will(Reply.DENY)
        host.close("live/status")
        denied = await refused(host.load("live/status", actor="user"))
        approvals = host.approvals
    content = [path.read_bytes() for path in cached(tmp_path)]
    async with hosting(tmp_path, [live(env)], user=None, policy=HostPolicy(dynamic="ask")) as host:
        nobody = await refused(host.load("live/status"))

    assert again.is_again and "Status 1." in first.text and "Status 1." in again.text
    assert "matches the server's listing" not in first.text
    assert [file.path for file in folder] == ["logs/today.md"]
    assert log[0].text == log[1].text and "Log 2." in log[0].text
    assert outside.refusal == "unlisted-file"
    assert "Status 3." in second.text and "Log 4." in other.text
    assert user.occasions == [Occasion.DYNAMIC] * 3
    assert (denied.refusal, nobody.refusal) == ("approval-denied", "approval-required")
    assert (approvals, content) == ((), [])


# Asking


@pytest.mark.requirement("APPR-10")
async def test_where_nobody_can_be_asked_what_is_not_approved_is_refused_for_machines_to_read(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attack 27."""
    async with hosting(tmp_path, [at(billing)], user=User()) as host:
        await host.load("billing/refunds")
    async with hosting(tmp_path, [at(billing)], user=None) as host:
        loaded = await host.load("billing/refunds")
        error = await refused(host.load("billing/stock"))
        scripts = await refused(host.request_scripts("billing/refunds", "scripts/check.sh"))
        chain = (await host.explain("billing/stock")).to_json()

    assert "the policy" in loaded.text
    found = Refusal.of(error).to_json()
    assert {key: found[key] for key in ("code", "subject", "requirement")} == {
        "code": "approval-required",
        "subject": "billing/stock",
        "requirement": "APPR-10",
    }
    assert scripts.refusal == "approval-required"
    assert chain["loadable"] is False
    assert json.loads(json.dumps(chain)) == chain


@pytest.mark.requirement("HOST-17")
async def test_a_no_holds_for_the_model_and_not_for_a_person_who_asks_again(
    billing: HttpServer, tmp_path: Path
) -> None:
    user = User(Reply.DENY)
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        codes = [(await refused(host.load("billing/refunds"))).refusal for _ in range(3)]
        by_model = len(user.questions)
        await refused(host.load("billing/refunds", actor="user"))
        by_person = len(user.questions)
        await host.refresh(by_user=True)
        await refused(host.load("billing/refunds"))
        after_refresh = len(user.questions)
        user.will(Reply.ONCE)
        loaded = await host.load("billing/refunds", actor="user")
        host.close("billing/refunds")
        await host.load("billing/refunds")
        in_all = len(user.questions)
    user.will(Reply.DENY)
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        forgotten = await refused(host.load("billing/refunds"))

    assert codes == ["approval-denied"] * 3
    assert (by_model, by_person, after_refresh, in_all) == (1, 2, 3, 4)
    assert "the policy" in loaded.text
    assert forgotten.refusal == "approval-denied"
    assert user.occasions == [Occasion.FIRST] * 5


@pytest.mark.requirement("APPR-02")
async def test_a_skill_that_changes_with_every_question_is_not_asked_about_without_end(
    tmp_path: Path,
) -> None:
    """Attack 15."""
    reference = REFERENCES[REFUNDS_URI]
    user = User(Reply.DENY)
    limits = PromptLimits(contents_per_skill=3)
    codes: list[str] = []
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        async with hosting(tmp_path, [shop.config], user=user, limits=HostLimits(prompts=limits)) as host:
            for number in range(1, 6):
                codes.append((await refused(host.load(reference))).refusal)
                await shop.publish(catalogue(number))
                await host.refresh(force=True)
            asked = len(user.questions)
            inner = await refused(host.load(REFERENCES[INNER_URI]))
            person = await refused(host.load(reference, actor="user"))
            await host.refresh(by_user=True)
            calmed = await refused(host.load(reference))

    assert codes == ["approval-denied"] * 3 + ["keeps-changing"] * 2
    assert asked == 3
    assert (inner.refusal, person.refusal, calmed.refusal) == ("approval-denied",) * 3
    assert len(user.questions) == 6


@pytest.mark.requirement("SEC-12")
async def test_one_server_causes_only_so_many_questions_in_a_while(
    billing: HttpServer, tmp_path: Path
) -> None:
    """Attack 26."""
    user = User(Reply.DENY)
    limits = PromptLimits(questions_per_server=2)
    async with hosting(tmp_path, [at(billing)], user=user, limits=HostLimits(prompts=limits)) as host:
        codes = [
            (await refused(host.load(f"billing/{name}"))).refusal for name in ("refunds", "stock", "outer")
        ]

    assert codes == ["approval-denied", "approval-denied", "too-many-prompts"]


async def test_silence_and_answers_that_are_none_mean_no(billing: HttpServer, tmp_path: Path) -> None:
    async def silent(question: Question) -> Reply:
        await anyio.sleep_forever()
        raise AssertionError(question)

    async def confused(question: Question) -> Reply:
        return True  # type: ignore[return-value]

    limits = PromptLimits(answer_seconds=0.2)
    codes: list[str] = []
    for answer in (silent, confused):
        with anyio.fail_after(DEADLINE):
            async with Host(
                [at(billing)],
                approve=answer,
                storage=storage_in(tmp_path),
                roots=(),
                limits=HostLimits(prompts=limits),
            ) as host:
                codes.append((await refused(host.load("billing/refunds"))).refusal)

    assert codes == ["approval-denied", "approval-denied"]


@pytest.mark.requirement("APPR-03")
async def test_nothing_is_asked_of_a_server_by_a_timer(tmp_path: Path) -> None:
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        async with hosting(tmp_path, [shop.config], user=User()) as host:
            await host.load(REFERENCES[REFUNDS_URI])
            before = list(shop.trace)
            await anyio.sleep(1.5)

            assert shop.trace == before


@pytest.mark.parametrize("is_offline", [False, True])
async def test_an_approval_can_be_taken_back_when_its_skill_cannot_be_seen(
    is_offline: bool, tmp_path: Path
) -> None:
    """What the user agreed to would count again as soon as the skill, or its server, is back."""
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        async with hosting(tmp_path, [shop.config], user=User()) as host:
            await host.approve(await host.find(REFERENCES[INNER_URI]))
        shop.is_offline = is_offline
        await shop.publish({REFUNDS_URI: catalogue()[REFUNDS_URI]})
        async with hosting(tmp_path, [shop.config], user=None) as host:
            taken_back = await host.revoke(f"{LABEL}/{INNER_URI}")

            assert taken_back
            assert host.approvals == ()


# Mounts, several hosts, and the end


@pytest.mark.requirement("HOST-10")
async def test_a_mount_shows_the_files_of_loaded_skills_and_fetches_each_when_it_is_read(
    billing: HttpServer, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [at(billing)], user=User()) as host:
        mount = Mount(host)
        empty = mount.list()
        await host.load("billing/refunds")
        listed = mount.list()
        before = reads(tmp_path)
        policy = await mount.read("billing/skill/refunds/references/policy.md")
        logo = await mount.read("/billing/skill/refunds/assets/logo.png")
        after = reads(tmp_path)
        elsewhere = await refused(mount.read("billing/skill/stock/SKILL.md"))
        stranger = await refused(mount.read("desk/skill/refunds/SKILL.md"))
        unlisted = await refused(mount.read("billing/skill/refunds/secret.md"))

    assert empty == ()
    assert listed == tuple(
        f"billing/skill/refunds/{path}"
        for path in ("SKILL.md", "assets/logo.png", "references/policy.md", "scripts/check.sh")
    )
    assert (policy, logo) == (POLICY, LOGO)
    assert before == [f"{ROOT}/SKILL.md"]
    assert after[1:] == [f"{ROOT}/references/policy.md", f"{ROOT}/assets/logo.png"]
    assert [error.refusal for error in (elsewhere, stranger, unlisted)] == [
        "not-loaded",
        "not-loaded",
        "unlisted-file",
    ]


async def test_two_hosts_share_one_memory(billing: HttpServer, tmp_path: Path) -> None:
    user = User(Reply.DENY)
    async with (
        hosting(tmp_path, [at(billing)], user=User()) as one,
        hosting(tmp_path, [at(billing)], user=user) as two,
    ):
        await one.load("billing/refunds")
        seen = await two.load("billing/refunds")
        await two.approve(await two.find("billing/stock"))
        both = [[approval.skill.uri for approval in host.approvals] for host in (one, two)]
        taken_back = await two.revoke("billing/refunds")
        ended = await refused(one.read_skill_file("billing/refunds", "references/policy.md"))
        twice = await two.revoke("billing/refunds")

    assert "the policy" in seen.text
    assert user.questions == []
    assert both == [[f"{ROOT}/SKILL.md", "skill://stock/SKILL.md"]] * 2
    assert (taken_back, twice) == (True, False)
    assert ended.refusal == "not-approved"


async def test_many_approvals_at_once_are_all_remembered(billing: HttpServer, tmp_path: Path) -> None:
    names = ("refunds", "stock", "outer", "inner", "east/report", "west/report")
    async with (
        hosting(tmp_path, [at(billing)], user=User()) as one,
        hosting(tmp_path, [at(billing)], user=User()) as two,
    ):
        async with anyio.create_task_group() as group:
            for host, name in zip((one, two) * 3, names, strict=True):
                group.start_soon(host.load, f"billing/{name}")
        remembered = [len(host.approvals) for host in (one, two)]

    assert remembered == [6, 6]


async def test_one_skill_loaded_by_many_at_once_is_asked_about_and_read_once(
    billing: HttpServer, tmp_path: Path
) -> None:
    user = User()
    async with hosting(tmp_path, [at(billing)], user=user) as host:
        children = [host.child() for _ in range(5)]
        async with anyio.create_task_group() as group:
            for child in children:
                group.start_soon(child.load, "billing/refunds")

    assert len(user.questions) == 1
    assert set(reads(tmp_path)) == {f"{ROOT}/SKILL.md"}


def test_a_host_leaves_no_process_and_no_task_behind(
    desk: ServerConfig, billing: HttpServer, tmp_path: Path
) -> None:
    before = _children()

    async def life() -> list[str]:
        async with hosting(tmp_path, [desk, at(billing)], user=User()) as host:
            await host.load("desk/letters")
            await host.load("billing/refunds")
            during = _children()
        own = anyio.get_current_task().id
        left = [task.name or "" for task in anyio.get_running_tasks() if task.id != own]
        assert len(during) == len(before) + 1
        assert _children() == before
        return left

    assert anyio.run(life) == []


def _children() -> list[int]:
    """Return the processes this one has started, where the system tells."""
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if not path.exists():
        pytest.skip("this system does not list the children of a process in /proc")
    return [int(word) for word in path.read_text().split()]


async def test_a_host_that_is_not_open_says_so(billing: HttpServer, tmp_path: Path) -> None:
    host = Host([at(billing)], storage=storage_in(tmp_path), roots=())
    before = await refused(host.load("billing/refunds"))
    with pytest.raises(RefusedError):
        _ = host.view
    with pytest.raises(RefusedError):
        _ = host.approvals
    with pytest.raises(RefusedError):
        host.gate(BASH)
    async with host:
        with pytest.raises(RefusedError):
            await host.__aenter__()
        still = [skill.reference for skill in host.view.skills]
        child = host.child()
    after = await refused(host.load("billing/refunds"))
    orphan = await refused(child.load("billing/refunds"))

    assert "billing/refunds" in still
    assert [error.refusal for error in (before, after, orphan)] == ["refused"] * 3
    assert "async with" in str(before)


async def test_two_servers_of_one_label_are_one_clear_error(billing: HttpServer, tmp_path: Path) -> None:
    host = Host([at(billing), at(billing, "Billing")], storage=storage_in(tmp_path), roots=())

    with pytest.raises(ConfigError):
        async with host:
            pass


@pytest.mark.requirement("HOST-18")
async def test_the_audit_log_tells_what_was_done_and_never_what_skills_say(
    billing: HttpServer, desk: ServerConfig, tmp_path: Path
) -> None:
    user = User(Reply.ALWAYS)
    async with hosting(tmp_path, [at(billing), desk], user=user) as host:
        await host.load("billing/refunds")
        await host.read_skill_file("billing/refunds", "references/policy.md")
        await host.read_resource("desk", f"{ROOT}/SKILL.md")
        host.gate(BASH)
        user.will(Reply.DENY)
        await refused(host.load("billing/stock"))
        await host.preview("billing/stock")
        await host.revoke("billing/refunds")
        host.close("billing/refunds")
    lines = audit(tmp_path)
    text = storage_in(tmp_path).audit.read_text("utf-8")

    events = [line["event"] for line in lines]
    assert set(events) >= {
        "listing",
        "question",
        "approval",
        "approval-revoked",
        "read",
        "load",
        "gate",
        "refusal",
        "preview",
        "close",
    }
    assert all({"time", "session", "event"} <= line.keys() for line in lines)
    [refusal] = audit(tmp_path, "refusal")
    assert (refusal["during"], refusal["reference"], refusal["code"]) == (
        "load",
        "billing/stock",
        "approval-denied",
    )
    for content in ("Refund within", "Read [the policy]", "Count the boxes", "Use when testing"):
        assert content not in text


async def test_a_peer_of_another_make_is_treated_the_same(tmp_path: Path) -> None:
    """The honest scenario of the hostile peers is written without any code of ours."""
    async with visiting("honest", tmp_path, transport="http", era="legacy") as visit:
        loaded = await visit.host.load(REFUNDS)
        policy = await visit.host.read_skill_file(REFUNDS, "references/policy.md")

        assert len(visit.peer.reads()) == 2
        assert "Read [the policy]" in loaded.text and "30 days" in policy.text


async def test_a_server_is_asked_again_under_the_same_label_after_it_went_and_came(tmp_path: Path) -> None:
    """Attack 57."""
    async with (
        hostile("honest", transport="http") as peer,
        hosting(tmp_path, [config(peer)], user=User()) as host,
    ):
        await host.load(REFUNDS)
        await peer.stop()
        policy = await refused(host.read_skill_file(REFUNDS, "references/policy.md"))
        again = await host.load(REFUNDS)
        await peer.restart()
        await host.refresh(by_user=True)
        read = await host.read_skill_file(REFUNDS, "references/policy.md")

    assert policy.refusal == "server-unavailable"
    assert again.is_again
    assert "30 days" in read.text
