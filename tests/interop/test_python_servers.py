"""Servers of the official Python SDK with `add_skills`, visited by our host: with sessions, and without."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from folders import write_files, write_skill
from hostile.hosting import User, hosting, refused
from interop.observing import LABEL, Observed, becomes_stale, written_in_python
from interop.truth import AWKWARD, truth_of
from skillwire.host.model.approval import Occasion

AWKWARD_SKILL = f"{LABEL}/awkward"
AWKWARD_ROOT = "skill://awkward"

FLAGS = [
    (kind, sessions, era)
    for kind in ("--mcpserver", "--lowlevel")
    for sessions in ("--stateful", "--stateless")
    for era in ("--newer", "--older")
]


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """Three skills, which make two pages at these servers."""
    folder = tmp_path / "skills"
    write_files(folder / "awkward", AWKWARD)
    for name in ("one", "two"):
        write_skill(folder / name, {"references/a.md": "Before.\n"})
    return folder


@pytest.fixture
def peer(skills: Path, tmp_path: Path, env: dict[str, str], flags: Sequence[str]) -> Iterator[Observed]:
    with written_in_python("sdk_skills.py", skills, tmp_path, env, transport="http", flags=flags) as peer:
        yield peer


@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-07")
@pytest.mark.requirement("NEG-20")
@pytest.mark.requirement("LIST-17")
@pytest.mark.requirement("INT-02")
@pytest.mark.requirement("INT-08")
@pytest.mark.requirement("DIR-05")
@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
async def test_skills_of_a_python_server_are_listed_loaded_read_and_walked(
    peer: Observed, flags: Sequence[str], skills: Path, tmp_path: Path
) -> None:
    user, truth = User(), truth_of(skills)
    wanted = [uri for uri in truth.files if uri.startswith(f"{AWKWARD_ROOT}/")]
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.refresh()
        listed = [skill.reference for skill in host.view.skills]
        before = (peer.read(), peer.asked("skills/get"), len(peer.asked("skills/list")))
        await host.load(AWKWARD_SKILL)
        files = {uri: await host.read_skill_bytes(AWKWARD_SKILL, uri) for uri in wanted}
        children = await host.read_skill_directory(AWKWARD_SKILL, "references")

    assert listed == [AWKWARD_SKILL, f"{LABEL}/one", f"{LABEL}/two"]
    assert before == ([], [], 2)
    assert files == {uri: truth.files[uri].read_bytes() for uri in wanted}
    assert sorted(file.path for file in children) == sorted(p for p in AWKWARD if p.startswith("references/"))
    assert user.occasions == [Occasion.FIRST]
    assert ("initialize" in peer.methods()) == ("--older" in flags)


@pytest.mark.requirement("HOST-19")
@pytest.mark.requirement("APPR-02")
@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
async def test_a_file_that_changes_at_a_python_server_is_a_changed_skill_and_a_new_question(
    peer: Observed, skills: Path, tmp_path: Path
) -> None:
    user, one = User(), f"{LABEL}/one"
    async with hosting(tmp_path, [peer.server], user=user) as host:
        await host.load(one)
        write_files(skills / "one", {"references/a.md": "After.\n"})
        # It is told of the change where it has a stream to be told on, and else finds out by the age of
        # what it knows.
        await becomes_stale(host)
        error = await refused(host.read_skill_file(one, "references/a.md"))
        await host.load(one)
        after = await host.read_skill_file(one, "references/a.md")

    assert error.refusal == "skill-changed"
    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED]
    assert "After." in after.text
