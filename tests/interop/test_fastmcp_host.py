"""FastMCP's own skills, visited by our host: with its extension, without, and on the older protocol."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from folders import write_files, write_skill
from hostile.hosting import User, hosting, refused
from interop.observing import LABEL, Observed, written_in_python
from skillwire.core.dialects import Dialect
from skillwire.host.model.approval import Occasion

REFUNDS = f"{LABEL}/refunds"
ROOT = "skill://refunds"
NOTES = "references/Q&A notes \u00e9.md"
SKILL_METHODS = {"skills/list", "skills/get", "resources/directory/read"}
TRANSPORTS = ("stdio", "http")


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """Two skills only: this server goes through all of them for every answer."""
    folder = tmp_path / "skills"
    write_skill(folder / "refunds", {NOTES: "Within 30 days.\n"})
    write_skill(folder / "billing")
    return folder


@pytest.fixture
def peer(
    skills: Path, tmp_path: Path, env: dict[str, str], transport: str, flags: Sequence[str]
) -> Iterator[Observed]:
    script = "fastmcp_skills.py"
    with written_in_python(script, skills, tmp_path, env, transport=transport, flags=flags) as peer:
        yield peer


@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-17")
@pytest.mark.requirement("LIST-17")
@pytest.mark.requirement("INT-02")
@pytest.mark.requirement("INT-08")
@pytest.mark.parametrize("flags", [()], ids=["extension"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_skills_of_fastmcp_are_listed_loaded_and_read(peer: Observed, tmp_path: Path) -> None:
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.refresh()
        listed = [skill.reference for skill in host.view.skills]
        before = peer.methods()
        loaded = await host.load(REFUNDS)
        notes = await host.read_skill_file(REFUNDS, NOTES)

    assert listed == [f"{LABEL}/billing", REFUNDS]
    assert set(before) <= {"server/discover", "subscriptions/listen", "skills/list"}
    assert "Do it." in loaded.text
    assert "Within 30 days." in notes.text
    assert user.occasions == [Occasion.FIRST]
    # This server writes `&` as `%26`, and is asked the way it writes.
    assert peer.read() == [f"{ROOT}/SKILL.md", f"{ROOT}/references/Q%26A%20notes%20%C3%A9.md"]


@pytest.mark.requirement("NEG-05")
@pytest.mark.parametrize("flags", [()], ids=["extension"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_fastmcp_is_not_asked_for_directories_which_it_does_not_offer(
    peer: Observed, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [peer.server], user=User()) as host:
        await host.load(REFUNDS)
        error = await refused(host.read_skill_directory(REFUNDS))
        files = [file.path for file in host.list_skill_files(REFUNDS)]

    assert error.refusal == "not-declared"
    assert files == [NOTES]
    assert peer.asked("resources/directory/read") == []


@pytest.mark.requirement("INT-07")
@pytest.mark.requirement("APPR-02")
@pytest.mark.parametrize("flags", [()], ids=["extension"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_file_that_changes_at_fastmcp_is_a_changed_skill_and_a_new_question(
    peer: Observed, skills: Path, tmp_path: Path
) -> None:
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.load(REFUNDS)
        write_files(skills / "refunds", {NOTES: "Within 60 days.\n"})
        error = await refused(host.read_skill_file(REFUNDS, NOTES))
        await host.load(REFUNDS)
        notes = await host.read_skill_file(REFUNDS, NOTES)

    assert error.refusal == "skill-changed"
    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED]
    assert "Within 60 days." in notes.text


@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-05")
@pytest.mark.requirement("NEG-09")
@pytest.mark.requirement("READ-03")
@pytest.mark.parametrize(
    "flags",
    [("--older",), ("--plain",), ("--plain", "--older")],
    ids=["extension-older", "plain", "plain-older"],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_fastmcp_without_the_extension_is_heard_by_its_resources_and_never_asked_for_skills(
    peer: Observed, flags: Sequence[str], tmp_path: Path
) -> None:
    # The extension of FastMCP is silent on the older protocol, where its resources have made-up descriptions.
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.refresh()
        listed = {skill.reference: (skill.dialect, skill.description) for skill in host.view.skills}
        resource = await host.read_resource(LABEL, f"{ROOT}/SKILL.md")
        asked_by_reading = list(user.questions)
        loaded = await host.load(REFUNDS)
        notes = await host.read_skill_file(REFUNDS, NOTES)

    description = "Use when testing {}." if "--plain" in flags else ""
    assert listed == {
        f"{LABEL}/{name}": (Dialect.LIST_MARCH, description.format(name)) for name in ("billing", "refunds")
    }
    assert "Do it." in resource.text
    assert asked_by_reading == []
    assert "Do it." in loaded.text
    assert "Within 30 days." in notes.text
    assert user.occasions == [Occasion.FIRST]
    assert SKILL_METHODS.isdisjoint(peer.methods())
    assert ("initialize" in peer.methods()) == ("--older" in flags)
