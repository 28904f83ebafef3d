"""Skills of which not every file has a digest of its own, as models and people see them."""

from dataclasses import replace

import pytest

from skillwire.core.manifest import digest_of
from skillwire.host.model.approval import Activation, Change, DynamicFiles, Grant, Occasion, Question
from skillwire.host.model.origin import KnownSkill
from skillwire.host.use.gate import OpenWindow, ToolCall, ToolKind, Verdict, decide
from skillwire.host.use.load import children_of, is_same, uri_of
from skillwire.host.use.present import SkillFileLine, files_of, frame_file, frame_skill
from skillwire.host.use.question import final_question, text_of_question
from unit.host.covered import FILES, URL, archive, in_archive, unpacked, with_skill_file
from unit.host.known_skills import document, known

PACKED = unpacked(in_archive(archive()))
PARTIAL = with_skill_file(told=["references/policy.md", "scripts/check.sh"])


def window(skill: KnownSkill) -> Activation:
    return Activation(skill, document(), DynamicFiles())


def loaded(skill: KnownSkill) -> str:
    return frame_skill(window(skill), 1, page_length=10_000).text


def read(skill: KnownSkill, path: str) -> str:
    uri = uri_of(skill, path)
    return frame_file(window(skill), uri, "text\n", 1, page_length=10_000).text


def test_a_skill_out_of_an_archive_says_so_and_lists_what_came_out() -> None:
    text = loaded(PACKED)

    assert "State: unpacked from the archive that matches the server's listing." in text
    assert "  references/policy.md (13 bytes)" in text
    assert "unpacked from the archive" in read(PACKED, "references/policy.md")
    assert "verified" not in text.lower()


def test_before_an_archive_is_unpacked_its_files_are_unknown() -> None:
    assert files_of(in_archive(archive())) == ()
    assert "Files: unknown beforehand" in loaded(in_archive(archive()))


@pytest.mark.requirement("IDX-10")
def test_files_without_digests_are_labelled_wherever_the_model_meets_them() -> None:
    text = loaded(PARTIAL)

    assert "State: matches the server's listing." in text
    assert "Note: only SKILL.md has a digest" in text
    assert "  references/policy.md (size unknown, unverified)" in text
    assert "State: UNVERIFIED: only the skill's SKILL.md has a digest" in read(
        PARTIAL, "references/policy.md"
    )
    assert "UNVERIFIED" not in read(PARTIAL, "SKILL.md")
    assert files_of(PARTIAL)[0] == SkillFileLine(
        "references/policy.md", None, "text/markdown", is_unverified=True
    )


def test_a_skill_that_tells_of_no_other_files_says_that_they_are_unknown() -> None:
    assert "Files: unknown beforehand; ask with list_skill_files" in loaded(with_skill_file())


def test_folders_of_an_archive_are_listed_from_the_archive() -> None:
    assert [line.path for line in children_of(PACKED, PACKED.entry.uri.root)] == ["references", "scripts"]


def run(skill: KnownSkill, content: bytes) -> Verdict:
    call = ToolCall(
        "run",
        ToolKind.EXECUTE,
        skill=skill.reference,
        script="scripts/check.sh",
        script_digest=digest_of(content),
    )
    return decide(call, [OpenWindow(skill, frozenset(Grant))]).verdict


@pytest.mark.requirement("IDX-10")
@pytest.mark.requirement("APPR-05")
def test_a_grant_for_scripts_covers_those_of_the_archive_and_none_without_a_digest() -> None:
    script = FILES["scripts/check.sh"]

    assert run(PACKED, script) is Verdict.ALLOW
    assert run(PACKED, b"echo other\n") is Verdict.ASK
    assert run(in_archive(archive()), script) is Verdict.ASK
    assert run(PARTIAL, script) is Verdict.ASK


def test_the_question_about_an_archive_names_its_digest_and_its_address() -> None:
    data = archive()

    text = text_of_question(Question(Occasion.FIRST, in_archive(data)))

    assert "Dialect: index-june" in text
    assert f"one archive, digest {digest_of(data)}; its files are known when it is unpacked" in text
    assert f"  | {URL}" in text


def test_the_question_about_a_skill_file_says_that_it_is_all_there_is() -> None:
    text = text_of_question(Question(Occasion.FIRST, PARTIAL))

    assert (
        "! What you agree to: only SKILL.md has a digest; other files are whatever the server sends" in text
    )
    assert "  | no digest  scripts/check.sh" in text


def test_a_question_about_files_without_digests_says_how_long_the_answer_holds() -> None:
    question = Question(Occasion.UNVERIFIED, PARTIAL, uri=f"{PARTIAL.entry.uri.root}/references/policy.md")

    text = text_of_question(question)

    assert text.startswith("Files of a skill would be read that have no digest.")
    assert "your answer applies while the skill is loaded" in text
    assert "references/policy.md" in text
    assert final_question(question) == "Read files without digests of acme/refunds from MCP server acme?"


@pytest.mark.requirement("APPR-08")
def test_a_question_about_a_changed_archive_names_the_archive() -> None:
    before, after = in_archive(archive()), in_archive(archive({"SKILL.md": FILES["SKILL.md"]}))
    assert before.entry.manifest is not None and after.entry.manifest is not None
    change = Change.between(before.entry.manifest, after.entry.manifest)

    text = text_of_question(Question(Occasion.CHANGED, after, change, before.entry.manifest))

    assert f"  | changed the archive {URL}" in text


def test_a_question_says_when_digests_cover_something_else_now() -> None:
    before, after = with_skill_file(), known(extra="allowed-tools: Read\n")
    assert before.entry.manifest is not None and after.entry.manifest is not None
    change = Change.between(before.entry.manifest, after.entry.manifest)

    text = text_of_question(Question(Occasion.CHANGED, after, change, before.entry.manifest))

    assert change.is_empty
    assert "! What you agreed to before: only SKILL.md has a digest" in text
    assert "! What changed since you approved it: what its digests cover" in text


def test_a_released_skill_has_no_dialect_to_tell_of() -> None:
    assert "Dialect" not in text_of_question(Question(Occasion.FIRST, known()))


@pytest.mark.requirement("DRAFT-03")
@pytest.mark.requirement("DRAFT-04")
def test_a_record_with_fewer_fields_is_the_same_skill_as_long_as_they_agree() -> None:
    told = {"name": "refunds", "description": "Refunds an order. Use when a customer asks."}
    summary = in_archive(b"", fields=told)
    fewer = replace(summary, entry=replace(summary.entry, manifest=None))
    whole = known(is_dynamic=True, extra="allowed-tools: Bash\n")

    assert is_same(whole, fewer) and is_same(fewer, whole)
    assert not is_same(fewer, known("payments", is_dynamic=True))
    assert not is_same(known(is_dynamic=True), whole)
