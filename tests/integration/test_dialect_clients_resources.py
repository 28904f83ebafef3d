"""Servers whose skills are only found among their resources, and those of 4 August: journeys of a host."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hostile.hosting import User, hosting, refused
from integration.indexed_world import LABEL, WIRES, World, digest, june, skill_text, world
from integration.peers import BRISK
from serving import environment
from skillwire.core.dialects import Dialect
from skillwire.core.manifest import Coverage
from skillwire.host import HostPolicy
from skillwire.host.connect.connection import Connection
from skillwire.host.dialects.resources import MAX_FILE_LISTS
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion

PROGRAM = Path(__file__).with_name("resource_peer.py")
TEA = f"{LABEL}/tea"
TEA_URI = "skill://acme/tea/SKILL.md"
GUIDE_URI = "skill://acme/tea/references/my%26guide.md"
GUIDE = "references/my&guide.md"
TEXT = skill_text("tea", f"Read [the guide]({GUIDE}).", extra="license: MIT\n")
SKILL_METHODS = {"skills/list", "skills/get", "skills/read", "resources/directory/read"}


def item(
    uri: str, name: str = "x", description: str | None = "Does tea. Use when asked.", **more: Any
) -> Any:
    told = {} if description is None else {"description": description}
    return {"uri": uri, "name": name, **told, "mimeType": "text/markdown", **more}


TEA_ITEM = item(TEA_URI, "tea")
GUIDE_ITEM = item(GUIDE_URI, "my&guide.md", None)
README = item("docs://readme", "readme", "Everything about the shop.")


def file_list(name: str, **files: str) -> str:
    """Write the file list of a skill with these files beside its `SKILL.md`."""
    lines = [
        {"path": path, "size": len(text.encode()), "hash": digest(text)}
        for path, text in {"SKILL.md": skill_text(name), **files}.items()
    ]
    return json.dumps({"skill": name, "files": lines})


def surroundings(home: Path) -> dict[str, str]:
    """Return what the server's process needs to know; its program is made of another one of these tests."""
    env = environment(home)
    paths = [str(PROGRAM.parents[1]), *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module", params=WIRES, ids=["-".join(wire) for wire in WIRES])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server that declares the extension."""
    folder, home = tmp_path_factory.mktemp("world"), tmp_path_factory.mktemp("home")
    with world(folder, *request.param, env=surroundings(home), program=PROGRAM) as made:
        yield made


@pytest.fixture(scope="module", params=WIRES, ids=["-".join(wire) for wire in WIRES])
def silent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server that declares nothing but resources."""
    folder, home = tmp_path_factory.mktemp("world"), tmp_path_factory.mktemp("home")
    with world(folder, *request.param, env=surroundings(home), declares=False, program=PROGRAM) as made:
        yield made


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One wire, for what does not depend on it."""
    folder, home = tmp_path_factory.mktemp("world"), tmp_path_factory.mktemp("home")
    with world(folder, "stdio", "modern", env=surroundings(home), program=PROGRAM) as made:
        yield made


def publish(server: World, *listed: Any, declares: bool = True, **more: Any) -> None:
    """Serve the tea skill, and list what is said."""
    server.resources.clear()
    server.resources.update({TEA_URI: TEXT, GUIDE_URI: "Boil water.\n", "docs://readme": "Hello.\n"})
    server.resources.update(more.pop("resources", {}))
    server.publish(more.pop("index", None), listed=listed, declares=declares, **more)
    server.forget()


def shown(host: Host) -> list[tuple[str, str, Coverage | None]]:
    """Return each skill's reference, dialect and coverage."""
    return [(skill.reference, skill.dialect, skill.entry.coverage) for skill in host.view.skills]


def hidden(host: Host) -> list[str]:
    return [refusal.code for refusal in host.view.hidden]


def state(host: Host) -> tuple[str, str]:
    [status] = host.view.servers
    return status.state, status.problem.code if status.problem is not None else ""


@pytest.mark.requirement("DRAFT-07")
@pytest.mark.requirement("NEG-12")
@pytest.mark.requirement("NEG-20")
@pytest.mark.requirement("APPR-04")
@pytest.mark.parametrize(
    ("scope", "scopes"),
    [("knows", ["skill://"]), ("ignores", ["skill://"]), ("refuses", ["skill://", ""])],
)
async def test_a_declared_server_is_asked_for_its_skills_only_whether_it_knows_scopes_or_not(
    running: World, tmp_path: Path, scope: str, scopes: list[str]
) -> None:
    publish(running, README, TEA_ITEM, GUIDE_ITEM, scope=scope)
    user = User()
    async with hosting(tmp_path, [running.server()], user=user, policy=HostPolicy(dynamic="ask")) as host:
        await host.refresh()
        asked, reads = running.asked("resources/list"), running.asked("resources/read")
        listed = shown(host)
        loaded = await host.load(TEA)
        guide = await host.read_skill_file(TEA, GUIDE)

    assert asked == scopes
    assert reads == ["skill://index.json"]
    assert listed == [(TEA, Dialect.LIST_MARCH, None)]
    assert "Read [the guide]" in loaded.text
    assert "Boil water." in guide.text
    assert user.occasions == [Occasion.DYNAMIC]


@pytest.mark.requirement("NEG-05")
@pytest.mark.requirement("NEG-09")
@pytest.mark.requirement("NEG-12")
@pytest.mark.requirement("NEG-20")
async def test_a_server_that_declares_nothing_is_asked_for_resources_and_never_for_skills(
    silent: World, tmp_path: Path
) -> None:
    publish(silent, README, TEA_ITEM, GUIDE_ITEM, declares=False)
    user = User()
    async with hosting(tmp_path, [silent.server()], user=user, policy=HostPolicy(dynamic="ask")) as host:
        await host.refresh()
        listed, reads = shown(host), silent.asked("resources/read")
        loaded = await host.load(TEA)
        guide = await host.read_skill_bytes(TEA, GUIDE)
        resource = await host.read_resource(LABEL, "docs://readme")

    assert listed == [(TEA, Dialect.LIST_MARCH, None)]
    assert reads == []
    assert set(silent.asked("resources/list")) == {""}
    assert "Read [the guide]" in loaded.text
    assert guide == b"Boil water.\n"
    assert "Hello." in resource.text
    assert SKILL_METHODS.isdisjoint(silent.methods())


@pytest.mark.requirement("NEG-05")
@pytest.mark.requirement("CONF-07")
async def test_a_server_without_skills_among_its_resources_is_one_without_skills(
    silent: World, tmp_path: Path
) -> None:
    publish(silent, README, item("skill://tea/notes.md"), item("skill://SKILL.md"), declares=False)
    async with hosting(tmp_path, [silent.server()], user=User()) as host:
        await host.refresh()

        assert (state(host), shown(host), hidden(host)) == (("no-skills", ""), [], [])
    assert SKILL_METHODS.isdisjoint(silent.methods())


@pytest.mark.requirement("LIST-18")
async def test_little_is_looked_through_of_an_endless_listing_that_nobody_promised(
    silent: World, tmp_path: Path
) -> None:
    publish(silent, TEA_ITEM, *[README] * 200, declares=False, page=2, endless=True)
    async with hosting(tmp_path, [silent.server()], user=User()) as host:
        await host.refresh()

        assert shown(host) == [(TEA, Dialect.LIST_MARCH, None)]
        assert state(host) == ("listed", "endless-listing")
    assert len(silent.asked("resources/list")) == 32


@pytest.mark.requirement("NEG-12")
async def test_an_index_among_the_resources_is_preferred_to_them(silent: World, tmp_path: Path) -> None:
    listed = (item("skill://index.json"), TEA_ITEM)
    index = {"skills": [june(TEA_URI, TEXT)]}
    publish(silent, *listed, declares=False, index=index)
    async with hosting(tmp_path / "one", [silent.server()], user=User()) as host:
        await host.refresh()
        assert shown(host) == [(TEA, Dialect.INDEX_JUNE, Coverage.SKILL_FILE)]
    publish(silent, *listed, declares=False, index="no index at all")
    async with hosting(tmp_path / "two", [silent.server()], user=User()) as host:
        await host.refresh()
        assert shown(host) == [(TEA, Dialect.LIST_MARCH, None)]
    assert SKILL_METHODS.isdisjoint(silent.methods())


@pytest.mark.requirement("NEG-12")
async def test_an_early_server_names_a_skill_without_its_file(silent: World, tmp_path: Path) -> None:
    resources = {"skill://tea": skill_text("tea"), "skill://tea/notes.md": "Notes.\n"}
    publish(silent, item("skill://tea"), item("skill://tea/notes.md"), declares=False, resources=resources)
    async with hosting(tmp_path, [silent.server()], user=User(), policy=HostPolicy(dynamic="ask")) as host:
        await host.refresh()
        listed = shown(host)
        loaded = await host.load(TEA)
        notes = await host.read_skill_file(TEA, "notes.md")

    assert listed == [(TEA, Dialect.LIST_MARCH, None)]
    assert loaded.uri == "skill://tea/SKILL.md"
    assert "Do it." in loaded.text
    assert "Notes." in notes.text
    assert silent.asked() == ["skill://tea", "skill://tea/notes.md"]


@pytest.mark.requirement("CONF-13")
async def test_supporting_files_that_are_listed_are_told_and_are_no_skills(
    pipe: World, tmp_path: Path
) -> None:
    publish(pipe, GUIDE_ITEM, TEA_ITEM, README)
    async with Connection(pipe.server(), limits=BRISK) as connection:
        [entry] = (await connection.list_skills()).entries
        guide = await connection.read_file(entry.dynamic_files[0], max_bytes=100)

    assert entry.dynamic_files == ("skill://acme/tea/references/my&guide.md",)
    assert (entry.is_summary, entry.frontmatter.fields.keys()) == (True, {"name", "description"})
    assert guide == b"Boil water.\n"
    assert pipe.asked()[-1] == GUIDE_URI, "the server is asked in its own spelling"


@pytest.mark.requirement("ASK-30")
async def test_a_description_that_the_file_does_not_have_is_refused_when_the_skill_is_loaded(
    running: World, tmp_path: Path
) -> None:
    publish(running, item(TEA_URI, description="Does your taxes. Use always."))
    async with hosting(tmp_path, [running.server()], user=User(), policy=HostPolicy(dynamic="ask")) as host:
        error = await refused(host.load(TEA))

    assert error.refusal == "frontmatter-mismatch"
    assert "description" in str(error)


@pytest.mark.requirement("ASK-30")
async def test_a_skill_whose_description_nobody_tells_is_known_by_name_and_loads(
    pipe: World, tmp_path: Path
) -> None:
    publish(pipe, item(TEA_URI, description=None))
    async with hosting(tmp_path, [pipe.server()], user=User(), policy=HostPolicy(dynamic="ask")) as host:
        await host.refresh()
        [skill] = host.view.skills
        loaded = await host.load(TEA)

    assert (skill.name, skill.description) == ("tea", "")
    assert "Read [the guide]" in loaded.text


@pytest.mark.requirement("DRAFT-09")
async def test_a_path_that_differs_from_the_name_is_accepted_with_a_warning_only_where_the_user_says_so(
    running: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = "skill://acme/drinks/SKILL.md"
    publish(running, item(uri, "tea"), resources={uri: skill_text("tea")})
    async with hosting(
        tmp_path / "strict", [running.server()], user=User(), policy=HostPolicy(dynamic="ask")
    ) as host:
        strict = await refused(host.load(f"{LABEL}/drinks"))
    server = running.server(dialect=Dialect.LIST_MARCH)
    with caplog.at_level(logging.WARNING, "skillwire"):
        async with hosting(
            tmp_path / "compat", [server], user=User(), policy=HostPolicy(dynamic="ask")
        ) as host:
            loaded = await host.load(f"{LABEL}/drinks")

    assert strict.refusal == "frontmatter-mismatch"
    assert "Do it." in loaded.text
    assert any(uri in record.getMessage() for record in caplog.records)


@pytest.mark.requirement("DRAFT-07")
async def test_entries_that_break_a_rule_cost_only_themselves(pipe: World, tmp_path: Path) -> None:
    publish(
        pipe,
        item("skill://twice/SKILL.md"),
        item("skill://Not-A-Name/SKILL.md"),
        item("SKILL://twice/SKILL.md", description="Another one. Use when asked."),
        item("skill://long/SKILL.md", description="x" * 2000),
        TEA_ITEM,
        page=1,
    )
    async with hosting(tmp_path, [pipe.server()], user=User()) as host:
        await host.refresh()

        assert shown(host) == [(TEA, Dialect.LIST_MARCH, None)]
        assert hidden(host) == ["duplicate-uri", "invalid-entry", "duplicate-uri", "invalid-entry"]


@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("INT-02")
async def test_file_lists_make_approvals_last_until_something_changes(running: World, tmp_path: Path) -> None:
    root, notes = "skill://tea", "skill://tea/references/notes.md"
    listed = (item(f"{root}/SKILL.md"), item(f"{root}/_manifest", description=None))
    served = {f"{root}/SKILL.md": skill_text("tea"), notes: "One.\n"}
    content = file_list("tea", **{"references/notes.md": "One.\n"})
    publish(running, *listed, resources={**served, f"{root}/_manifest": content})
    user = User()
    async with hosting(tmp_path, [running.server()], user=user) as host:
        await host.refresh()
        before = shown(host)
        await host.load(TEA)
        one = await host.read_skill_file(TEA, "references/notes.md")
    async with hosting(tmp_path, [running.server()], user=user) as host:
        await host.load(TEA)
        again = list(user.occasions)
        content = file_list("tea", **{"references/notes.md": "Two.\n"})
        publish(running, *listed, resources={**served, notes: "Two.\n", f"{root}/_manifest": content})
        await host.refresh(force=True)
        changed = await refused(host.read_skill_file(TEA, "references/notes.md"))
        await host.load(TEA)
        two = await host.read_skill_file(TEA, "references/notes.md")

    assert before == [(TEA, Dialect.LIST_MARCH, Coverage.FILES)]
    assert "One." in one.text and "Two." in two.text
    assert again == [Occasion.FIRST]
    assert changed.refusal == "skill-changed"
    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED]


@pytest.mark.requirement("INT-02")
async def test_a_bad_file_list_costs_only_the_digests_of_its_own_skill(pipe: World) -> None:
    bad: dict[str, Any] = {
        "gone": {"error": -32602},
        "broken": {"error": -32603},
        "large": " " * 300_000,
        "other": file_list("tea"),
        "outside": file_list("outside", **{"../tea/x": "x"}),
        "headless": json.dumps({"skill": "headless", "files": []}),
        "binary": {"blob": "/w=="},
    }
    names = [*bad, "good"]
    listed = [
        entry
        for name in names
        for entry in (item(f"skill://{name}/SKILL.md"), item(f"skill://{name}/_manifest", description=None))
    ]
    lists = {f"skill://{name}/_manifest": content for name, content in bad.items()}
    publish(pipe, *listed, resources={**lists, "skill://good/_manifest": file_list("good")})
    async with Connection(pipe.server(), limits=BRISK) as connection:
        listing = await connection.list_skills()

    assert {entry.name: entry.coverage for entry in listing.entries} == {
        **dict.fromkeys(bad),
        "good": Coverage.FILES,
    }
    assert (listing.refused, listing.problem) == ((), None)


@pytest.mark.requirement("APPR-02")
async def test_of_many_file_lists_some_are_read_at_once_and_the_others_when_they_are_needed(
    pipe: World, tmp_path: Path
) -> None:
    names = [f"skill-{number:03}" for number in range(MAX_FILE_LISTS + 5)]
    listed = [
        entry
        for name in names
        for entry in (
            item(f"skill://{name}/SKILL.md", description=f"Does {name}. Use when asked."),
            item(f"skill://{name}/_manifest", description=None),
        )
    ]
    resources = {f"skill://{name}/_manifest": file_list(name) for name in names}
    resources |= {f"skill://{name}/SKILL.md": skill_text(name) for name in names}
    publish(pipe, *listed, resources=resources)
    user, last = User(), f"{LABEL}/{names[-1]}"
    async with hosting(tmp_path, [pipe.server()], user=user) as host:
        await host.load(last)
    async with hosting(tmp_path, [pipe.server()], user=user) as host:
        await host.refresh()
        coverages = [coverage for _, _, coverage in shown(host)]
        await host.load(last)

    assert (coverages.count(Coverage.FILES), coverages.count(None)) == (MAX_FILE_LISTS, 5)
    assert user.occasions == [Occasion.FIRST], (
        "the approval outlives a listing that does not tell its digests"
    )


async def test_a_skill_that_is_not_listed_is_made_of_its_file(pipe: World, tmp_path: Path) -> None:
    publish(pipe, README, TEA_ITEM, resources={"skill://menu/SKILL.md": skill_text("menu")})
    async with hosting(tmp_path, [pipe.server()], user=User(), policy=HostPolicy(dynamic="ask")) as host:
        await host.refresh()
        loaded = await host.load(f"{LABEL}/skill://menu/SKILL.md")
        gone = await refused(host.load(f"{LABEL}/skill://nobody/SKILL.md"))

    assert "Do it." in loaded.text
    assert gone.refusal == "not-found"


def older_entry(**resources: str) -> dict[str, Any]:
    """Return the entry of the tea skill as it was on 4 August."""
    lines = [{"uri": uri, "digest": digest(text)} for uri, text in resources.items()]
    frontmatter = {"name": "tea", "description": "Does tea. Use when asked.", "license": "MIT"}
    return {"uri": TEA_URI, "frontmatter": frontmatter, **({"resources": lines} if lines else {})}


@pytest.mark.requirement("DRAFT-10")
@pytest.mark.requirement("CONF-04")
@pytest.mark.requirement("CONF-05")
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["no sizes", "dynamic"])
async def test_a_server_of_4_august_is_heard_only_where_the_user_says_so(
    running: World, tmp_path: Path, is_dynamic: bool
) -> None:
    files = {} if is_dynamic else {TEA_URI: TEXT, GUIDE_URI: "Boil water.\n"}
    # Nobody tells how a file of a dynamic skill is spelled, so it is asked for in the canonical way.
    canonical = {GUIDE_URI.replace("%26", "&"): "Boil water.\n"} if is_dynamic else {}
    publish(running, entries=[older_entry(**files)], resources=canonical)
    user, server = User(), running.server(dialect=Dialect.CORE_0804)
    async with hosting(
        tmp_path / "off", [running.server()], user=user, policy=HostPolicy(dynamic="ask")
    ) as host:
        await host.refresh()
        off = (shown(host), hidden(host))
    async with hosting(tmp_path / "on", [server], user=user, policy=HostPolicy(dynamic="ask")) as host:
        await host.refresh()
        listed = shown(host)
        loaded = await host.load(TEA)
        guide = await host.read_skill_file(TEA, GUIDE)

    assert off == ([], ["invalid-entry"])
    assert listed == [(TEA, Dialect.CORE_0804, None if is_dynamic else Coverage.FILES)]
    assert "Read [the guide]" in loaded.text
    assert "Boil water." in guide.text
    assert user.occasions == [Occasion.DYNAMIC if is_dynamic else Occasion.FIRST]


@pytest.mark.requirement("DRAFT-10")
async def test_a_digest_without_a_size_is_checked_all_the_same(pipe: World, tmp_path: Path) -> None:
    publish(pipe, entries=[older_entry(**{TEA_URI: TEXT, GUIDE_URI: "Something else.\n"})])
    server = pipe.server(dialect=Dialect.CORE_0804)
    async with hosting(tmp_path, [server], user=User()) as host:
        await host.load(TEA)
        error = await refused(host.read_skill_file(TEA, GUIDE))

    assert error.refusal == "digest-mismatch"
