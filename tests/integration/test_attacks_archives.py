"""Archives and partial digests of hostile servers, through real processes over both transports."""

import os
import stat
from pathlib import Path

import pytest

from hostile.catalog import POLICY
from hostile.hosting import INDEX, LABEL, REFUNDS, User, config, hosting, refused, storage_in, visiting
from hostile.integrity import MARK
from hostile.packed import HOSTILE
from hostile.running import hostile
from skillwire.core.errors import SkillError
from skillwire.host import HostLimits, HostPolicy
from skillwire.host.approval.consent import PromptLimits
from skillwire.host.host import Host
from skillwire.host.model.approval import Grant, Occasion, Reply
from skillwire.host.use.fetch import ArchivePolicy
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict
from skillwire.host.use.present import SkillFileLine

TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "http"])
ARCHIVES = {"policy": HostPolicy(archives=ArchivePolicy())}
ARCHIVE = "skill://acme/refunds.tar.gz"
ROOT = "skill://acme/refunds"

REFUSED = {
    "tar-traversal": ("invalid-archive", "ARC-06"),
    "tar-absolute": ("invalid-archive", "ARC-06"),
    "tar-backslash": ("invalid-archive", "ARC-06"),
    "tar-drive": ("invalid-archive", "ARC-06"),
    "tar-link-out": ("invalid-archive", "ARC-07"),
    "tar-link-absolute": ("invalid-archive", "ARC-07"),
    "tar-hard-link-out": ("invalid-archive", "ARC-07"),
    "tar-device": ("invalid-archive", "ARC-08"),
    "tar-fifo": ("invalid-archive", "ARC-08"),
    "tar-case-twins": ("invalid-archive", "ARC-09"),
    "tar-unicode-twins": ("invalid-archive", "ARC-09"),
    "tar-bomb": ("over-limit", ""),
    "tar-deep": ("over-limit", ""),
    "tar-many": ("over-limit", ""),
    "tar-wrapper": ("invalid-archive", "ARC-03"),
    "tar-garbage": ("invalid-archive", "ARC-15"),
    "zip-traversal": ("invalid-archive", "ARC-06"),
    "zip-absolute": ("invalid-archive", "ARC-06"),
    "zip-link-out": ("invalid-archive", "ARC-07"),
    "zip-case-twins": ("invalid-archive", "ARC-09"),
    "zip-bomb": ("over-limit", ""),
    "zip-wrapper": ("invalid-archive", "ARC-03"),
    "wrong-digest": ("digest-mismatch", ""),
    "lying": ("frontmatter-mismatch", ""),
}


def kept(folder: Path) -> list[Path]:
    """Return every file of the cache, unpacked or not."""
    return [path for path in storage_in(folder).cache.rglob("*") if path.is_file()]


def escaped() -> bool:
    """Tell whether something was written where an archive said, outside of everything."""
    return os.path.lexists("/tmp/skillwire-evil.md")


async def outcome(host: Host, reference: str) -> tuple[str, str]:
    try:
        await host.load(reference)
    except SkillError as error:
        return error.refusal, getattr(error, "violates", "")
    return "", ""


@TRANSPORTS
@pytest.mark.requirement("ARC-03")
@pytest.mark.requirement("ARC-05")
@pytest.mark.requirement("ARC-06")
@pytest.mark.requirement("ARC-07")
@pytest.mark.requirement("ARC-08")
@pytest.mark.requirement("ARC-09")
@pytest.mark.requirement("ARC-10")
@pytest.mark.requirement("ARC-11")
@pytest.mark.requirement("ARC-15")
@pytest.mark.requirement("ARC-16")
async def test_each_dangerous_archive_is_refused_with_its_code_and_leaves_nothing(
    tmp_path: Path, transport: str
) -> None:
    options = {
        "policy": HostPolicy(archives=ArchivePolicy(budget=2**40)),
        "limits": HostLimits(prompts=PromptLimits(questions_per_server=100)),
    }
    async with visiting("hostile_archives", tmp_path, transport=transport, options=options) as visit:
        found = {name: await outcome(visit.host, f"{LABEL}/{name}") for name in REFUSED}

        assert set(REFUSED) == {*HOSTILE, "wrong-digest", "lying"}
        assert found == REFUSED
        assert kept(tmp_path) == []
        assert not escaped()

        await visit.host.load(f"{LABEL}/setuid")

        modes = {stat.S_IMODE(path.stat().st_mode) for path in kept(tmp_path) if path.name != "origin.json"}
        owners = {path.stat().st_uid for path in kept(tmp_path)}
        assert (modes, owners) == ({0o400}, {os.geteuid()})
        script = await visit.host.read_skill_bytes(f"{LABEL}/setuid", "scripts/check.sh")
        assert script == b"#!/bin/sh\necho checked\n"


@TRANSPORTS
@pytest.mark.requirement("ARC-13")
@pytest.mark.requirement("ASK-24")
@pytest.mark.requirement("ASK-25")
@pytest.mark.requirement("CONF-08")
@pytest.mark.requirement("CONF-19")
async def test_after_the_archive_the_server_is_asked_for_no_file_and_could_not_lie_about_one(
    tmp_path: Path, transport: str
) -> None:
    async with visiting("packed", tmp_path, transport=transport, options=ARCHIVES) as visit:
        assert visit.peer.reads() == [INDEX]
        loaded = await visit.host.load(REFUNDS)
        policy = await visit.host.read_skill_file(REFUNDS, "references/policy.md")
        resource = await visit.host.read_resource(LABEL, f"{ROOT}/references/policy.md")
        folder = await visit.host.read_skill_directory(REFUNDS, "references")

        assert POLICY.decode() in policy.text and MARK not in policy.text
        assert POLICY.decode() in resource.text and MARK not in resource.text
        assert folder == (SkillFileLine("references/policy.md", len(POLICY) + 2, "text/markdown"),)
        assert "unpacked from the archive" in loaded.text
        assert [uri for uri in visit.peer.reads() if uri != INDEX] == [ARCHIVE]
        assert visit.peer.requests("resources/directory/read") == []
        [window] = visit.host.loaded
        assert window.skill.entry.files is not None and len(window.skill.entry.files) == 3


@pytest.mark.requirement("ARC-18")
@pytest.mark.requirement("ASK-23")
async def test_a_host_that_was_told_nothing_unpacks_nothing(tmp_path: Path) -> None:
    async with visiting("packed", tmp_path, form="alone") as visit:
        [hidden] = visit.host.view.hidden

        assert (hidden.code, hidden.requirement) == ("archives-off", "ARC-18")
        assert visit.references() == []
        assert [uri for uri in visit.peer.reads() if uri != INDEX] == []
        steps = (await visit.host.explain(REFUNDS)).steps
        assert "archives-off" in [step.refusal.code for step in steps if step.refusal is not None]
        for reference in (REFUNDS, f"{LABEL}/{ROOT}", f"{LABEL}/{ROOT}/SKILL.md"):
            error = await refused(visit.host.load(reference))
            assert (error.refusal, "--archives" in error.fix) == ("archives-off", True)
        tool = next(tool for tool in visit.host.tools() if tool.name == "load_skill")
        answered = (await tool({"skill": REFUNDS})).refusal
        assert answered is not None and answered.code == "archives-off" and "--archives" in answered.remedy
        assert [uri for uri in visit.peer.reads() if uri != INDEX] == []


@pytest.mark.requirement("ARC-18")
async def test_an_allowlist_of_servers_holds_for_the_others_too(tmp_path: Path) -> None:
    policy = ArchivePolicy(servers=frozenset({"elsewhere"}))
    async with visiting("packed", tmp_path, options={"policy": HostPolicy(archives=policy)}) as visit:
        await visit.host.load(REFUNDS)

        assert [uri for uri in visit.peer.reads() if uri != INDEX] == [f"{ROOT}/SKILL.md"]


@pytest.mark.requirement("APPR-08")
@pytest.mark.requirement("APPR-07")
async def test_another_digest_of_the_archive_ends_the_approval_before_anything_is_fetched(
    tmp_path: Path,
) -> None:
    async with visiting("packed", tmp_path, options=ARCHIVES) as visit:
        await visit.host.load(REFUNDS)
        visit.peer.say(version=2)
        await visit.host.refresh(force=True)
        visit.peer.forget()
        visit.user.will(Reply.DENY)

        error = await refused(visit.host.load(REFUNDS))

        assert error.refusal == "approval-denied"
        assert visit.user.occasions == [Occasion.FIRST, Occasion.CHANGED]
        assert [uri for uri in visit.peer.reads() if uri != INDEX] == []


@pytest.mark.requirement("ARC-05")
@pytest.mark.requirement("ARC-16")
@pytest.mark.parametrize("form", ["swapped", "inside"])
async def test_an_archive_that_is_not_what_the_index_says_is_not_used(tmp_path: Path, form: str) -> None:
    async with visiting("packed", tmp_path, options=ARCHIVES, form=form) as visit:
        error = await refused(visit.host.load(REFUNDS))

        assert error.refusal == "digest-mismatch"
        assert kept(tmp_path) == []


@TRANSPORTS
@pytest.mark.requirement("ARC-11")
async def test_a_server_whose_budget_is_spent_gets_nothing_more_unpacked(
    tmp_path: Path, transport: str
) -> None:
    options = {"policy": HostPolicy(archives=ArchivePolicy(budget=200 * 1024))}
    async with visiting("big_archives", tmp_path, transport=transport, options=options) as visit:
        found = [await outcome(visit.host, f"{LABEL}/big-{number}") for number in range(6)]

        assert [code for code, _ in found] == ["", "", "", "", "archive-budget", "archive-budget"]
        await visit.host.load(f"{LABEL}/big-0")


@pytest.mark.requirement("ARC-12")
async def test_a_tree_that_others_changed_is_fetched_again_or_refused(tmp_path: Path) -> None:
    async with visiting("packed", tmp_path, transport="http", options=ARCHIVES) as visit:
        await visit.host.load(REFUNDS)
        for path in kept(tmp_path):
            if path.name != "origin.json":
                path.chmod(0o600)
                path.write_bytes(MARK.encode())

        text = (await visit.host.read_skill_file(REFUNDS, "references/policy.md")).text

        assert POLICY.decode() in text and MARK not in text
        assert [uri for uri in visit.peer.reads() if uri != INDEX] == [ARCHIVE, ARCHIVE]
        for path in kept(tmp_path):
            path.chmod(0o600)
            path.write_bytes(MARK.encode())
        await visit.peer.stop()
        assert isinstance(await refused(visit.host.read_skill_file(REFUNDS, "scripts/check.sh")), SkillError)


@pytest.mark.requirement("ARC-12")
async def test_no_tool_reaches_the_trees(tmp_path: Path) -> None:
    async with visiting("packed", tmp_path, options=ARCHIVES) as visit:
        await visit.host.load(REFUNDS)
        path = next(path for path in kept(tmp_path) if path.name == "archive")

        for kind in (ToolKind.READ, ToolKind.WRITE):
            decision = visit.host.gate(ToolCall("file", kind, path=str(path)))
            assert (decision.verdict, decision.code) == (Verdict.DENY, "protected-place")
        assert visit.host.readable_folders == ()


@pytest.mark.requirement("ARC-14")
async def test_two_servers_with_one_name_and_one_address_share_nothing(tmp_path: Path) -> None:
    async with hostile("packed") as one, hostile("packed", version=2) as other:
        servers = [config(one, "one"), config(other, "other")]
        async with hosting(tmp_path, servers, user=User(), **ARCHIVES) as host:
            await host.refresh()
            await host.load("one/refunds")
            await host.load("other/refunds")

            first = await host.read_skill_bytes("one/refunds", "references/policy.md")
            second = await host.read_skill_bytes("other/refunds", "references/policy.md")

            assert (first, second) == (POLICY + b"v1", POLICY + b"v2")
            assert len({path.parent.parent for path in kept(tmp_path) if path.name == "archive"}) == 2
            await host.forget_server("one")
            assert len([path for path in kept(tmp_path) if path.name == "archive"]) == 1


@pytest.mark.requirement("CACHE-05")
async def test_an_approved_archive_is_used_while_its_server_is_away(tmp_path: Path) -> None:
    async with hostile("packed", transport="http") as peer:
        server = config(peer)
        async with hosting(tmp_path, [server], user=User(), **ARCHIVES) as host:
            await host.refresh()
            await host.load(REFUNDS)
        await peer.stop()
        async with hosting(tmp_path, [server], user=User(Reply.DENY), **ARCHIVES) as host:
            await host.refresh()
            loaded = await host.load(REFUNDS)
            policy = await host.read_skill_file(REFUNDS, "references/policy.md")

            assert "Offline: server unreachable" in loaded.text
            assert POLICY.decode() in policy.text
        async with hosting(tmp_path, [server], user=User()) as host:
            await host.refresh()
            assert host.view.skills == ()


@TRANSPORTS
@pytest.mark.requirement("IDX-10")
async def test_without_an_archive_only_the_skill_file_is_promised(tmp_path: Path, transport: str) -> None:
    async with visiting("packed", tmp_path, transport=transport, form="plain") as visit:
        loaded = await visit.host.load(REFUNDS)
        error = await refused(visit.host.read_skill_file(REFUNDS, "references/policy.md"))

        assert "Note: only SKILL.md has a digest" in loaded.text
        assert error.refusal == "unverified-file"
        assert visit.user.occasions == [Occasion.FIRST]
        assert [uri for uri in visit.peer.reads() if uri != INDEX] == [f"{ROOT}/SKILL.md"]


@pytest.mark.requirement("IDX-10")
@pytest.mark.requirement("CACHE-09")
async def test_a_file_without_a_digest_is_asked_about_in_each_window_labelled_and_never_kept(
    tmp_path: Path,
) -> None:
    options = {"policy": HostPolicy(dynamic="ask")}
    async with visiting("packed", tmp_path, form="plain", options=options) as visit:
        await visit.host.load(REFUNDS)
        first = (await visit.host.read_skill_file(REFUNDS, "references/policy.md")).text
        visit.peer.say(rotated="Now something else.")
        again = (await visit.host.read_skill_file(REFUNDS, "references/policy.md")).text
        await visit.host.read_skill_file(REFUNDS, "scripts/check.sh")
        visit.host.close(REFUNDS)
        await visit.host.load(REFUNDS)
        visit.user.will(Reply.DENY)
        error = await refused(visit.host.read_skill_file(REFUNDS, "references/policy.md"))
        repeated = await refused(visit.host.read_skill_file(REFUNDS, "references/policy.md"))

        assert "State: UNVERIFIED" in first and MARK in first
        assert MARK in again
        assert (error.refusal, repeated.refusal) == ("approval-denied", "approval-denied")
        assert visit.user.occasions == [Occasion.FIRST, Occasion.UNVERIFIED, Occasion.UNVERIFIED]
        assert all(MARK.encode() not in path.read_bytes() for path in kept(tmp_path))
        [approval] = visit.host.approvals
        assert approval.manifest.uris == (f"{ROOT}/SKILL.md",)


@pytest.mark.requirement("IDX-10")
@pytest.mark.requirement("SEC-04")
async def test_no_grant_covers_a_script_without_a_digest(tmp_path: Path) -> None:
    async with visiting(
        "packed", tmp_path, form="plain", options={"policy": HostPolicy(dynamic="ask")}
    ) as visit:
        await visit.host.load(REFUNDS)
        await visit.host.approve(await visit.host.find(REFUNDS), frozenset(Grant))

        await visit.host.request_scripts(REFUNDS, "scripts/check.sh")
        await visit.host.request_scripts(REFUNDS, "scripts/check.sh")

        scripts = [question for question in visit.user.questions if question.occasion is Occasion.SCRIPTS]
        assert [question.may_be_remembered for question in scripts] == [False, False]
        call = ToolCall("run", ToolKind.EXECUTE, skill=REFUNDS, script="scripts/check.sh")
        assert visit.host.gate(call).verdict is Verdict.ASK


@pytest.mark.requirement("APPR-08")
@pytest.mark.requirement("CONF-11")
async def test_looking_at_a_skill_without_its_archive_does_not_end_the_approval_of_it(tmp_path: Path) -> None:
    async with hostile("packed", transport="http") as peer:
        async with hosting(tmp_path, [config(peer)], user=User(), **ARCHIVES) as host:
            await host.refresh()
            await host.load(REFUNDS)
        async with hosting(tmp_path, [config(peer)], user=None) as host:
            await host.refresh()
            assert (await refused(host.load(REFUNDS))).refusal == "approval-required"
        async with hosting(tmp_path, [config(peer)], user=None, **ARCHIVES) as host:
            await host.refresh()
            await host.load(REFUNDS)


@pytest.mark.requirement("ARC-14")
async def test_a_changed_archive_is_compared_file_by_file(tmp_path: Path) -> None:
    async with visiting("packed", tmp_path, options=ARCHIVES) as visit:
        await visit.host.load(REFUNDS)
        visit.peer.say(version=2)
        await visit.host.refresh(force=True)

        found = await visit.host.compare(REFUNDS)

        assert [(file.path, file.state.value) for file in found.files] == [
            ("SKILL.md", "modified"),
            ("references/policy.md", "modified"),
        ]
        assert found.problems == () and not found.is_same
        assert [file.lines is not None for file in found.files] == [True, True]


@pytest.mark.requirement("SEC-12")
async def test_a_person_can_look_into_an_archive_before_anything_is_approved(tmp_path: Path) -> None:
    async with visiting("packed", tmp_path, options=ARCHIVES) as visit:
        preview = await visit.host.preview(REFUNDS, "references/policy.md")

        assert preview.content == POLICY + b"v1"
        assert visit.user.questions == [] and visit.host.loaded == ()


@pytest.mark.requirement("DRAFT-03")
@pytest.mark.requirement("SEC-10")
async def test_what_a_short_listing_does_not_tell_is_taken_from_the_file_once_it_is_loaded(
    tmp_path: Path,
) -> None:
    async with visiting("packed", tmp_path, form="april", options=ARCHIVES) as visit:
        listed = await visit.host.find(REFUNDS)
        await visit.host.load(REFUNDS)
        granted = await visit.host.request_allowed_tools(REFUNDS)

        assert listed.entry.is_summary and "allowed-tools" not in listed.entry.frontmatter.fields
        [window] = visit.host.loaded
        assert window.skill.entry.frontmatter.fields["allowed-tools"] == "Read"
        assert granted == ("Read",)
        assert (await visit.host.load(REFUNDS)).is_again


@pytest.mark.requirement("DRAFT-03")
async def test_what_a_short_listing_tells_must_be_true(tmp_path: Path) -> None:
    options, said = ARCHIVES, "Harmless. Use when asked."
    async with visiting("packed", tmp_path, form="april", said=said, options=options) as visit:
        assert (await refused(visit.host.load(REFUNDS))).refusal == "frontmatter-mismatch"
        assert kept(tmp_path) == []


@pytest.mark.requirement("ASK-24")
async def test_the_address_of_an_archive_means_the_skill_in_it(tmp_path: Path) -> None:
    async with visiting("packed", tmp_path, form="alone", options=ARCHIVES) as visit:
        found = await visit.host.find(f"{LABEL}/{ARCHIVE}")

        assert (found.reference, found.id.uri) == (REFUNDS, f"{ROOT}/SKILL.md")
