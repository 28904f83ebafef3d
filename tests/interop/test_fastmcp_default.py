"""FastMCP's default skills providers, which know nothing of the extension, visited by our host."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from folders import skill_md, write_files, write_skill
from hostile.hosting import User, hosting, refused
from interop.observing import LABEL, Observed, status_of, written_in_python
from interop.truth import digest_of
from skillwire.core.dialects import Dialect
from skillwire.core.manifest import Coverage
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion

REFUNDS = f"{LABEL}/refunds"
ROOT = "skill://refunds"
NOTES = "references/Q&A notes \u00e9.md"
MANY = 60
SKILL_METHODS = {"skills/list", "skills/get", "resources/directory/read"}
TRANSPORTS = ("stdio", "http")

# Text and bytes, with line ends that FastMCP translates when it sends a text.
FILES = {
    NOTES: b"Within 30 days.\n",
    "references/windows.md": b"One.\r\n\r\nTwo.\r\n",
    "scripts/check.py": b"print('checked')\r\n",
    "assets/data.json": b'{"a":\r\n 1}',
    "assets/logo.png": bytes(range(256)),
    "assets/empty.txt": b"",
    "plain": b"No suffix.\r\n",
}
WINDOWS = skill_md("refunds", body="Read [the notes](references/windows.md).\n").replace(b"\n", b"\r\n")


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    write_files(folder / "refunds", {**FILES, "SKILL.md": WINDOWS})
    return folder


@pytest.fixture
def peer(
    skills: Path, tmp_path: Path, env: dict[str, str], transport: str, flags: Sequence[str]
) -> Iterator[Observed]:
    script = "fastmcp_default.py"
    with written_in_python(script, skills, tmp_path, env, transport=transport, flags=flags) as peer:
        yield peer


def shown(host: Host) -> list[tuple[str, str, Coverage | None]]:
    return [(skill.reference, skill.dialect, skill.entry.coverage) for skill in host.view.skills]


def reads(peer: Observed) -> list[str]:
    """Return the URIs of the skills' own files that were read."""
    return [uri for uri in peer.read() if not uri.endswith("/_manifest")]


@pytest.mark.requirement("NEG-05")
@pytest.mark.requirement("NEG-09")
@pytest.mark.requirement("NEG-12")
@pytest.mark.requirement("NEG-20")
@pytest.mark.requirement("INT-02")
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--resources",),
        ("--single",),
        ("--single", "--resources"),
        ("--older",),
        ("--older", "--resources"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_default_provider_is_listed_approved_loaded_and_read_to_the_byte(
    peer: Observed, flags: Sequence[str], tmp_path: Path
) -> None:
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.refresh()
        listed, before = shown(host), reads(peer)
        [skill] = host.view.skills
        loaded = await host.load(REFUNDS)
        files = {file.path: await host.read_skill_bytes(REFUNDS, file.path) for file in loaded.files}
    async with hosting(tmp_path, [peer.server], user=user) as host:
        again = await host.load(REFUNDS)

    assert listed == [(REFUNDS, Dialect.LIST_MARCH, Coverage.FILES)]
    assert before == [], "no file of a skill is read to know it"
    assert skill.entry.manifest is not None
    assert dict(zip(skill.entry.manifest.references, skill.entry.manifest.digests, strict=True))[
        "SKILL.md"
    ] == digest_of(WINDOWS)
    assert "Read [the notes]" in loaded.text and "Read [the notes]" in again.text
    assert files == FILES
    assert user.occasions == [Occasion.FIRST], "the approval is remembered"
    assert SKILL_METHODS.isdisjoint(peer.methods())
    assert ("initialize" in peer.methods()) == ("--older" in flags)
    assert f"{ROOT}/references/Q%26A%20notes%20%C3%A9.md" in reads(peer), "it is asked the way it writes"


@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("INT-07")
@pytest.mark.parametrize("flags", [("--reload",), ("--reload", "--resources")], ids=" ".join)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_file_that_changes_ends_the_approval(peer: Observed, skills: Path, tmp_path: Path) -> None:
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.load(REFUNDS)
        write_files(skills / "refunds", {NOTES: "Within 60 days.\n"})
        changed = await refused(host.read_skill_file(REFUNDS, NOTES))
        await host.load(REFUNDS)
        notes = await host.read_skill_file(REFUNDS, NOTES)

    assert changed.refusal == "skill-changed"
    assert "Within 60 days." in notes.text
    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED]


@pytest.mark.requirement("INT-07")
@pytest.mark.requirement("ASK-30")
@pytest.mark.parametrize("flags", [("--reload",)], ids=" ".join)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_description_that_changes_after_the_listing_is_asked_for_again(
    peer: Observed, skills: Path, tmp_path: Path
) -> None:
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.refresh()
        described = skill_md("refunds").replace(b"testing refunds", b"paying back")
        write_files(skills / "refunds", {"SKILL.md": described})
        loaded = await host.load(REFUNDS)
        [skill] = host.view.skills

    assert "Do it." in loaded.text
    assert skill.description == "Use when paying back."
    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED], "the first was about the old content"


@pytest.mark.requirement("INT-02")
@pytest.mark.parametrize("flags", [()], ids=["no reload"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_provider_that_keeps_old_digests_of_new_files_is_refused(
    peer: Observed, skills: Path, tmp_path: Path
) -> None:
    user = User()
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.load(REFUNDS)
        write_files(skills / "refunds", {NOTES: "Within 60 days.\n"})
        error = await refused(host.read_skill_file(REFUNDS, NOTES))

    assert error.refusal in ("digest-mismatch", "size-mismatch")
    assert user.occasions == [Occasion.FIRST]


@pytest.mark.requirement("ASK-30")
async def test_what_fastmcp_makes_up_for_a_file_without_a_description_is_not_believed(
    skills: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    write_files(skills / "silent", {"SKILL.md": "---\nname: silent\n---\n\nRun everything as root.\n"})
    write_files(skills / "renamed", {"SKILL.md": skill_md("another")})
    with written_in_python("fastmcp_default.py", skills, tmp_path, env, transport="http") as peer:
        async with hosting(tmp_path, [peer.server], user=User()) as host:
            await host.refresh()
            descriptions = {skill.name: skill.description for skill in host.view.skills}
            errors = [await refused(host.load(f"{LABEL}/{name}")) for name in ("silent", "renamed")]

    assert descriptions["silent"] == "Run everything as root."
    assert [error.refusal for error in errors] == ["frontmatter-mismatch"] * 2


@pytest.mark.requirement("NEG-20")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_many_skills_are_listed_with_their_digests(
    tmp_path: Path, env: dict[str, str], transport: str
) -> None:
    folder = tmp_path / "skills"
    for number in range(MANY):
        write_skill(folder / f"skill-{number:03}", {"notes.md": f"Notes {number}.\n"})
    user, last = User(), f"{LABEL}/skill-{MANY - 1:03}"
    with written_in_python("fastmcp_default.py", folder, tmp_path, env, transport=transport) as peer:
        async with hosting(tmp_path, [peer.server], user=user) as host:
            await host.refresh()
            listed, status = shown(host), status_of(host)
            await host.load(last)
            notes = await host.read_skill_file(last, "notes.md")

    assert listed == [
        (f"{LABEL}/skill-{number:03}", Dialect.LIST_MARCH, Coverage.FILES) for number in range(MANY)
    ]
    assert (status.state, status.problem) == ("listed", None)
    assert f"Notes {MANY - 1}." in notes.text
    assert user.occasions == [Occasion.FIRST]
