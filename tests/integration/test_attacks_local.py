"""Folders that are as hostile as any server. The numbers are those of the threat model."""

import os
import socket
from pathlib import Path

import anyio
import pytest

from folders import skill_md, write_files, write_skill
from hostile.hosting import User, config, hosting, refused
from hostile.integrity import MARK
from hostile.running import hostile
from skillwire.host.model.approval import Reply
from skillwire.host.registry.local import LocalRoot
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict

SHOP = "shop/refunds"


@pytest.mark.requirement("FS-01")
@pytest.mark.requirement("READ-10")
async def test_a_link_out_of_a_local_skill_is_not_followed(tmp_path: Path) -> None:
    """Attack 80."""
    folder = write_skill(tmp_path / "skills" / "helper", {"references/own.md": "Own.\n"})
    write_files(tmp_path, {"secret.txt": MARK, "outside/more.txt": MARK})
    (folder / "references" / "key.md").symlink_to(tmp_path / "secret.txt")
    (folder / "outside").symlink_to(tmp_path / "outside")

    async with hosting(tmp_path, [], user=None, roots=[LocalRoot(tmp_path / "skills", "user")]) as host:
        loaded = await host.load("helper")
        own = await host.read_skill_file("helper", "references/own.md")
        errors = [
            await refused(host.read_skill_file("helper", path))
            for path in ("references/key.md", "outside/more.txt", "../../secret.txt")
        ]

    assert [file.path for file in loaded.files] == ["references/own.md"]
    assert "Own." in own.text
    assert [error.refusal for error in errors] == ["unlisted-file"] * 3
    assert MARK not in loaded.text + "".join(map(str, errors))


@pytest.mark.requirement("FS-01")
async def test_a_folder_of_skills_that_the_user_has_linked_is_followed(tmp_path: Path) -> None:
    """Attack 80."""
    write_skill(tmp_path / "elsewhere" / "helper")
    (tmp_path / "skills").symlink_to(tmp_path / "elsewhere")

    async with hosting(tmp_path, [], user=None, roots=[LocalRoot(tmp_path / "skills", "user")]) as host:
        loaded = await host.load("helper")

    assert "Do it." in loaded.text


@pytest.mark.requirement("FS-04")
async def test_skills_that_come_with_a_project_wait_until_its_folder_is_trusted(tmp_path: Path) -> None:
    """Attack 81."""
    project = tmp_path / "project"
    write_skill(project / ".agents" / "skills" / "build")
    roots = [LocalRoot(project / ".agents" / "skills", "project", project)]

    async with hosting(tmp_path, [], user=None, roots=roots) as host:
        before, hidden = host.view.skills, [refusal.code for refusal in host.view.hidden]
        error = await refused(host.load("build"))
        await host.trust_folder(project)
        loaded = await host.load("build")

    assert before == () and hidden == ["untrusted-folder"]
    assert error.refusal == "unknown-reference"
    assert "Do it." in loaded.text


@pytest.mark.requirement("FS-04")
@pytest.mark.requirement("FS-05")
async def test_taking_trust_back_hides_the_projects_skills_and_closes_their_folders(tmp_path: Path) -> None:
    """Attack 81."""
    project = tmp_path / "project"
    folder = write_skill(project / ".agents" / "skills" / "build")
    roots = [LocalRoot(project / ".agents" / "skills", "project", project)]

    async with hosting(tmp_path, [], user=None, roots=roots) as host:
        await host.trust_folder(project)
        open_to_tools = host.readable_folders
        view = await host.distrust_folder(project)

        assert open_to_tools == (folder,)
        assert view.skills == () and host.readable_folders == ()
        assert (await refused(host.load("build"))).refusal == "unknown-reference"


@pytest.mark.requirement("FS-04")
async def test_a_project_cannot_vouch_for_itself_through_a_link(tmp_path: Path) -> None:
    """Attack 81."""
    trusted, foreign = tmp_path / "trusted", tmp_path / "foreign"
    trusted.mkdir()
    write_skill(foreign / ".agents" / "skills" / "build")
    (trusted / "borrowed").symlink_to(foreign)
    borrowed = trusted / "borrowed"
    roots = [LocalRoot(borrowed / ".agents" / "skills", "project", borrowed)]

    async with hosting(tmp_path, [], user=None, roots=roots) as host:
        await host.trust_folder(trusted)
        skills = (await host.refresh(force=True)).skills

    assert skills == ()


@pytest.mark.requirement("FS-01")
async def test_what_lies_inside_a_local_skill_is_no_skill_of_its_own(tmp_path: Path) -> None:
    """Attack 82."""
    outer = write_skill(tmp_path / "skills" / "outer")
    write_skill(outer / "vendored" / "inner")
    write_skill(tmp_path / "skills" / "node_modules" / "package")
    write_skill(tmp_path / "skills" / ".hidden" / "secret")

    async with hosting(tmp_path, [], user=None, roots=[LocalRoot(tmp_path / "skills", "user")]) as host:
        references = [skill.reference for skill in host.view.skills]
        loaded = await host.load("outer")

    assert references == ["outer"]
    assert [file.path for file in loaded.files] == ["vendored/inner/SKILL.md"]


@pytest.mark.requirement("INT-02")
async def test_a_local_file_replaced_after_the_look_is_not_passed_off_as_the_one_that_was_seen(
    tmp_path: Path,
) -> None:
    """Attack 83."""
    folder = write_skill(tmp_path / "skills" / "helper", {"references/own.md": "Own.\n"})

    async with hosting(tmp_path, [], user=None, roots=[LocalRoot(tmp_path / "skills", "user")]) as host:
        await host.load("helper")
        write_files(folder, {"references/own.md": MARK})
        error = await refused(host.read_skill_file("helper", "references/own.md"))

    assert error.refusal in ("size-mismatch", "digest-mismatch", "skill-changed")
    assert MARK not in str(error)


@pytest.mark.requirement("FS-01")
@pytest.mark.requirement("FS-03")
async def test_pipes_sockets_huge_files_and_rubbish_named_like_a_skill_block_nothing(tmp_path: Path) -> None:
    """Attack 84."""
    skills = tmp_path / "skills"
    for name in ("pipe", "folder", "sparse", "rubbish", "linked"):
        (skills / name).mkdir(parents=True)
    os.mkfifo(skills / "pipe" / "SKILL.md")
    (skills / "folder" / "SKILL.md").mkdir()
    with (skills / "sparse" / "SKILL.md").open("wb") as sparse:
        sparse.truncate(2**40)
    (skills / "rubbish" / "SKILL.md").write_bytes(bytes(range(256)) * 40)
    (skills / "linked" / "SKILL.md").symlink_to("/dev/zero")
    good = write_skill(skills / "good")
    os.mkfifo(good / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(good)  # The path of a socket may not be long.
        try:
            listener.bind("socket.txt")
        finally:
            os.chdir(here)
        with anyio.fail_after(20):
            async with hosting(tmp_path, [], user=None, roots=[LocalRoot(skills, "user")]) as host:
                references = [skill.reference for skill in host.view.skills]
                loaded = await host.load("good")

    assert references == ["good"]
    assert loaded.files == ()


@pytest.mark.requirement("FS-02")
@pytest.mark.requirement("FS-03")
async def test_leniency_ends_where_the_users_own_folders_do(tmp_path: Path) -> None:
    write_files(
        tmp_path / "skills" / "Odd_Name",
        {"SKILL.md": "---\ndescription: Use when: always\nname: Odd_Name\n---\n\nLocal.\n"},
    )
    write_files(tmp_path / "skills" / "other", {"SKILL.md": skill_md("renamed")})
    user = User(Reply.DENY)
    async with (
        hostile("odd_names", form="name:upper") as peer,
        hosting(tmp_path, [config(peer)], user=user, roots=[LocalRoot(tmp_path / "skills", "user")]) as host,
    ):
        references = [skill.reference for skill in host.view.skills]
        loaded = await host.load("Odd_Name")

    assert references == ["Odd_Name", "renamed", "shop/reports"]
    assert "Local." in loaded.text


@pytest.mark.requirement("SEC-03")
@pytest.mark.requirement("FS-05")
async def test_a_local_skill_restricts_nothing_and_frees_a_servers_skill_of_nothing(tmp_path: Path) -> None:
    """Attack 28."""
    write_skill(tmp_path / "skills" / "refunds", {"scripts/run.sh": "echo\n"})
    call = ToolCall("bash", ToolKind.EXECUTE)
    async with (
        hostile("honest", era="modern") as peer,
        hosting(
            tmp_path, [config(peer)], user=User(), roots=[LocalRoot(tmp_path / "skills", "user")]
        ) as host,
    ):
        await host.load("refunds")
        local = host.gate(call)
        await host.load(SHOP)
        both = host.gate(call)

    assert local.verdict is Verdict.ALLOW
    assert (both.verdict, both.skills) == (Verdict.ASK, (SHOP,))
