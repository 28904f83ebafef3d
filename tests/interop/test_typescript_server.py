"""The official TypeScript SDK's skills server, visited by our host: both generations, both transports."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from folders import write_files, write_skill
from hostile.hosting import User, hosting, refused
from interop.observing import LABEL, WIRES, Official, becomes_stale, official, status_of
from interop.tools import Node
from interop.truth import AWKWARD, truth_of
from skillwire.host.model.approval import Occasion
from skillwire.host.model.errors import UnavailableError
from skillwire.wire.core import EXTENSION

AWKWARD_ROOT = "skill://awkward"
AWKWARD_SKILL = f"{LABEL}/awkward"
REFUNDS = f"{LABEL}/refunds"
REFUNDS_ROOT = "skill://acme/billing/refunds"
POLICY = f"{REFUNDS_ROOT}/references/policy.md"
META = "io.modelcontextprotocol/clientCapabilities"


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """A folder of five skills, which make three pages at this server."""
    folder = tmp_path / "skills"
    write_files(folder / "awkward", AWKWARD)
    write_skill(
        folder / "acme/billing/refunds",
        {"references/policy.md": "Within 30 days.\n", "references/eu/law.md": "Within 14 days.\n"},
    )
    for name in ("one", "two", "three"):
        write_skill(folder / name, {"references/a.md": f"{name}\n"})
    return folder


@pytest.fixture
def peer(node: Node, skills: Path, tmp_path: Path, transport: str, era: str) -> Iterator[Official]:
    with official(node, skills, tmp_path, transport=transport, era=era) as peer:
        yield peer


@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-17")
@pytest.mark.requirement("NEG-20")
@pytest.mark.requirement("LIST-17")
@pytest.mark.requirement("INT-08")
@pytest.mark.parametrize(("transport", "era"), WIRES)
async def test_the_official_server_is_listed_page_by_page_and_nothing_else_is_asked_of_it(
    peer: Official, era: str, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [peer.server], user=User()) as host:
        await host.refresh()
        references = [skill.reference for skill in host.view.skills]
        state = status_of(host).state

    assert references == [f"{LABEL}/{name}" for name in ("awkward", "one", "refunds", "three", "two")]
    assert state == "listed"
    assert peer.methods().count("skills/list") == 3
    assert ("initialize" in peer.methods()) == (era != "modern")
    requests = {message["method"] for message in peer.asked() if "id" in message}
    assert requests - {"initialize", "server/discover", "subscriptions/listen"} == {"skills/list"}


@pytest.mark.requirement("NEG-07")
@pytest.mark.parametrize(("transport", "era"), WIRES)
async def test_the_official_server_is_told_that_the_host_knows_the_extension(
    peer: Official, era: str, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [peer.server], user=User()):
        pass

    if era == "modern":
        told = [message["params"]["_meta"][META] for message in peer.asked() if "id" in message]
    else:
        told = [message["params"]["capabilities"] for message in peer.asked("initialize")]
    assert told
    assert all(EXTENSION in capabilities["extensions"] for capabilities in told)


@pytest.mark.requirement("INT-02")
@pytest.mark.requirement("INT-05")
@pytest.mark.requirement("READ-01")
@pytest.mark.parametrize(("transport", "era"), WIRES)
async def test_a_skill_of_the_official_server_is_loaded_and_all_its_files_are_what_they_are_on_disk(
    peer: Official, skills: Path, tmp_path: Path
) -> None:
    user, truth = User(), truth_of(skills)
    wanted = [uri for uri in truth.files if uri.startswith(f"{AWKWARD_ROOT}/")]
    async with hosting(tmp_path, [peer.server], user=user) as host:
        loaded = await host.load(AWKWARD_SKILL)
        before = peer.read()
        files = {uri: await host.read_skill_bytes(AWKWARD_SKILL, uri) for uri in wanted}
        spaced = await host.read_skill_file(AWKWARD_SKILL, "references/Q&A notes.md")
        foreign = await host.read_skill_file(AWKWARD_SKILL, "references/caf\u00e9 \u65e5\u672c.md")
        binary = await refused(host.read_skill_file(AWKWARD_SKILL, "assets/large.bin"))

    assert "Carriage returns." in loaded.text
    assert "A name with a space." in spaced.text
    assert "Caf\u00e9." in foreign.text
    assert binary.refusal == "not-text"
    assert files == {uri: truth.files[uri].read_bytes() for uri in wanted}
    assert user.occasions == [Occasion.FIRST]
    # Each was asked for once, the way this server spells it, which knows no other spelling.
    assert before == [f"{AWKWARD_ROOT}/SKILL.md"]
    assert sorted(peer.read()) == sorted(wanted)


@pytest.mark.requirement("READ-05")
async def test_every_file_of_the_official_server_is_read_by_the_path_it_is_listed_under(
    node: Node, skills: Path, tmp_path: Path
) -> None:
    with official(node, skills, tmp_path, transport="stdio", era="modern") as peer:
        async with hosting(tmp_path, [peer.server], user=User()) as host:
            listed = (await host.load(AWKWARD_SKILL)).files
            read = {file.path: await host.read_skill_bytes(AWKWARD_SKILL, file.path) for file in listed}

    assert read == {path: content for path, content in AWKWARD.items() if path != "SKILL.md"}


@pytest.mark.requirement("DIR-05")
@pytest.mark.parametrize(("transport", "era"), WIRES)
async def test_directories_of_the_official_server_are_read_over_several_pages(
    peer: Official, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [peer.server], user=User()) as host:
        await host.load(AWKWARD_SKILL)
        references = await host.read_skill_directory(AWKWARD_SKILL, "references")
        top = await host.read_skill_directory(AWKWARD_SKILL)

    inside = [path for path in AWKWARD if path.startswith("references/")]
    assert sorted(file.path for file in references) == sorted(inside)
    assert [file.path for file in top] == ["assets", "references"]
    pages = [message["params"] for message in peer.asked("resources/directory/read")]
    assert sum(page["uri"] == f"{AWKWARD_ROOT}/references" for page in pages) == 3
    assert len([page for page in pages if "cursor" in page]) >= 2


@pytest.mark.requirement("DIR-07")
async def test_files_are_listed_from_the_entry_without_asking_the_official_server(
    node: Node, skills: Path, tmp_path: Path
) -> None:
    with official(node, skills, tmp_path, transport="stdio", era="modern") as peer:
        async with hosting(tmp_path, [peer.server], user=User()) as host:
            await host.load(AWKWARD_SKILL)
            listed = [file.path for file in host.list_skill_files(AWKWARD_SKILL)]

    assert sorted(listed) == sorted(path for path in AWKWARD if path != "SKILL.md")
    assert peer.asked("resources/directory/read") == []
    assert peer.read() == [f"{AWKWARD_ROOT}/SKILL.md"]


@pytest.mark.requirement("DIR-04")
@pytest.mark.parametrize(("transport", "era"), [("stdio", "modern")])
async def test_an_empty_directory_of_the_official_server_is_no_change_of_the_skill(
    peer: Official, skills: Path, tmp_path: Path
) -> None:
    (skills / "one/templates").mkdir()
    async with hosting(tmp_path, [peer.server], user=User()) as host:
        await host.load(f"{LABEL}/one")
        everything = await host.read_skill_directory(f"{LABEL}/one")
        empty = await host.read_skill_directory(f"{LABEL}/one", "templates")

    assert "references" in [file.path for file in everything]
    assert empty == ()


@pytest.mark.requirement("DIR-05")
@pytest.mark.requirement("READ-01")
@pytest.mark.parametrize(("transport", "era"), [("stdio", "modern")])
async def test_names_the_official_server_spells_in_its_own_way_are_asked_for_in_that_way(
    peer: Official, skills: Path, tmp_path: Path
) -> None:
    # This server leaves brackets and bars as they are, which RFC 3986 would have escaped.
    write_files(skills / "one", {"drafts [old]/a|b.md": "Drafted.\n"})
    async with hosting(tmp_path, [peer.server], user=User()) as host:
        await host.load(f"{LABEL}/one")
        file = await host.read_skill_file(f"{LABEL}/one", "drafts [old]/a|b.md")
        inside = await host.read_skill_directory(f"{LABEL}/one", "drafts [old]")

    assert "Drafted." in file.text
    assert [child.path for child in inside] == ["drafts [old]/a|b.md"]
    assert peer.read() == ["skill://one/SKILL.md", "skill://one/drafts%20[old]/a|b.md"]


@pytest.mark.requirement("LIST-02")
@pytest.mark.requirement("HOST-11")
@pytest.mark.requirement("META-07")
@pytest.mark.requirement("URI-06")
@pytest.mark.parametrize("base", ["skill://", "repo://"])
@pytest.mark.parametrize(("transport", "era"), WIRES)
async def test_a_skill_the_official_server_does_not_list_is_loaded_by_its_uri_under_any_scheme(
    node: Node, skills: Path, tmp_path: Path, transport: str, era: str, base: str
) -> None:
    user, hidden = User(), "acme/billing/refunds"
    reference = f"{LABEL}/{base}{hidden}"
    options = {"transport": transport, "era": era, "base": base}
    with official(node, skills, tmp_path, unlisted=[hidden, "awkward"], **options) as peer:
        async with hosting(tmp_path, [peer.server], user=user) as host:
            listed = [skill.reference for skill in host.view.skills]
            loaded = await host.load(f"{reference}/SKILL.md")
            policy = await host.read_skill_file(reference, "references/policy.md")
            other = await host.load(f"{LABEL}/two")
            found = [skill for skill in host.view.skills if not skill.is_listed]
            gone = await refused(host.load(f"{LABEL}/{base}nobody/has/this/SKILL.md"))

    assert listed == [f"{LABEL}/{name}" for name in ("one", "three", "two")]
    assert [skill.reference for skill in found] == [reference]
    assert "Do it." in loaded.text
    assert "Within 30 days." in policy.text
    assert "Do it." in other.text
    assert user.occasions == [Occasion.FIRST] * 2
    assert gone.refusal == "not-found"
    assert [message["params"]["uri"] for message in peer.asked("skills/get")] == [
        f"{base}{hidden}/SKILL.md",
        f"{base}nobody/has/this/SKILL.md",
    ]


@pytest.mark.requirement("HOST-19")
@pytest.mark.parametrize(("transport", "era"), [wire for wire in WIRES if wire[1] != "stateless"])
async def test_a_new_skill_of_the_official_server_makes_the_listing_stale_and_comes_with_a_refresh(
    peer: Official, skills: Path, tmp_path: Path
) -> None:
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.load(REFUNDS)
        write_skill(skills / "new")
        await host.refresh(force=True)
        before = [skill.reference for skill in host.view.skills]
        await peer.reload()
        status = await becomes_stale(host)
        was_told = status.fresh_until is not None and time.monotonic() < status.fresh_until
        asked = len(peer.asked("skills/list"))
        await host.refresh()
        after = [skill.reference for skill in host.view.skills]
        again = await host.load(REFUNDS)

    assert f"{LABEL}/new" not in before
    assert was_told, "the listing became stale by its age, not by the server's word"
    assert sorted(after) == sorted([*before, f"{LABEL}/new"])
    assert len(peer.asked("skills/list")) == asked + 3
    # What was loaded and approved still is.
    assert again.is_again
    assert len(user.questions) == 1


@pytest.mark.requirement("INT-07")
@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("GET-04")
@pytest.mark.parametrize(("transport", "era"), WIRES)
async def test_a_changed_file_of_the_official_server_is_a_changed_skill_and_a_new_question(
    peer: Official, skills: Path, tmp_path: Path
) -> None:
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.load(REFUNDS)
        await change(peer, skills)
        error = await refused(host.read_skill_file(REFUNDS, "references/policy.md"))
        asked = len(user.questions)
        await host.load(REFUNDS)
        policy = await host.read_skill_file(REFUNDS, "references/policy.md")

    assert error.refusal == "skill-changed"
    assert asked == 1
    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED]
    assert user.questions[1].change is not None
    assert user.questions[1].change.modified == (POLICY,)
    assert "Within 60 days." in policy.text
    # Asked about once for the mismatch, and perhaps once more because the listing has grown old meanwhile.
    got = [message["params"]["uri"] for message in peer.asked("skills/get")]
    assert got in ([f"{REFUNDS_ROOT}/SKILL.md"], [f"{REFUNDS_ROOT}/SKILL.md"] * 2)


@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("INT-07")
@pytest.mark.parametrize(("transport", "era"), WIRES)
async def test_a_skill_the_official_server_changed_after_listing_it_is_asked_about_as_it_is_now(
    peer: Official, skills: Path, tmp_path: Path
) -> None:
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        listed = await host.find(REFUNDS)
        write_files(skills / "acme/billing/refunds", {"SKILL.md": CHANGED_SKILL})
        await peer.reload()
        await host.approve(listed)
        loaded = await host.load(REFUNDS)

    assert "Do it better." in loaded.text
    assert user.occasions == [Occasion.CHANGED]
    assert user.questions[0].change is not None
    assert user.questions[0].change.modified == (f"{REFUNDS_ROOT}/SKILL.md",)


@pytest.mark.requirement("NEG-20")
@pytest.mark.parametrize(("transport", "era"), [("http", "legacy")])
async def test_a_session_the_official_server_has_forgotten_is_begun_anew(
    peer: Official, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [peer.server], user=User()) as host:
        await host.refresh()
        await peer.forget_sessions()
        with suppress(UnavailableError):  # Whoever finds out may have to hear of it.
            await host.read_resource(LABEL, POLICY)
        loaded = await host.load(REFUNDS)

    assert "Do it." in loaded.text
    assert len(peer.asked("initialize")) == 2


CHANGED_SKILL = "---\nname: refunds\ndescription: Use when testing refunds.\n---\n\nDo it better.\n"


async def change(peer: Official, skills: Path) -> None:
    """Change a file of a skill, which nobody is told of."""
    write_files(skills / "acme/billing/refunds", {"references/policy.md": "Within 60 days.\n"})
    await peer.reload()
