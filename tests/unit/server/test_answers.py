"""What each method answers, asked directly: snapshots that change between two questions."""

from collections.abc import AsyncGenerator

import pytest

from skillwire.core.errors import InvalidCursorError, NotFoundError
from skillwire.core.uri import SkillUri
from skillwire.server.answers import Answers, ResultSettings
from skillwire.sources import CombinedSource, DynamicSkill, MemorySource
from talking import Json, PlainSource, eventually, skill


@pytest.fixture
def source() -> MemorySource:
    return MemorySource([skill(f"acme/s{number}") for number in range(5)])


@pytest.fixture
async def answers(source: MemorySource) -> AsyncGenerator[Answers]:
    async with CombinedSource([source]) as catalog:
        yield Answers(catalog, ResultSettings(page_size=2, ttl_ms=7, cache_scope="private"))


def names(page: Json) -> list[str]:
    return [entry["frontmatter"]["name"] for entry in page["skills"]]


async def caught_up(answers: Answers, source: MemorySource) -> None:
    """Wait until the catalog has taken over what the source holds."""

    async def look() -> list[str]:
        return [entry.uri.text for entry in answers.source.snapshot.entries]

    wanted = [entry.uri.text for entry in source.snapshot.entries]
    await eventually(look, lambda seen: seen == wanted)


@pytest.mark.requirement("NEG-17", "LIST-14", "GET-07")
async def test_terms_are_part_of_a_modern_answer_and_of_no_other(answers: Answers) -> None:
    terms = {"ttlMs": 7, "cacheScope": "private", "resultType": "complete"}
    uri = "skill://acme/s0/SKILL.md"

    for modern, expected in ((True, terms), (False, {})):
        results = [
            answers.list_skills(None, modern=modern),
            await answers.get_skill(uri, modern=modern),
            answers.read_directory("skill://acme", None, modern=modern),
            answers.read_result(await answers.read(uri), modern=modern),
        ]
        assert [{key: result[key] for key in terms if key in result} for result in results] == [expected] * 4


@pytest.mark.requirement("LIST-12")
async def test_pages_are_those_of_the_snapshot_of_the_moment(answers: Answers, source: MemorySource) -> None:
    first = answers.list_skills(None, modern=False)
    source.add(skill("acme/s2a"), skill("acme/r"))
    source.remove(SkillUri("skill://acme/s3/SKILL.md"))
    await caught_up(answers, source)

    second = answers.list_skills(first["nextCursor"], modern=False)
    third = answers.list_skills(second["nextCursor"], modern=False)

    assert (names(first), names(second), names(third)) == (["s0", "s1"], ["s2", "s2a"], ["s4"])
    assert "nextCursor" not in third
    assert names(answers.list_skills(None, modern=False)) == ["r", "s0"]


@pytest.mark.requirement("LIST-12")
async def test_a_cursor_after_the_last_skill_gives_an_empty_last_page(
    answers: Answers, source: MemorySource
) -> None:
    second = answers.list_skills(answers.list_skills(None, modern=False)["nextCursor"], modern=False)
    source.remove(SkillUri("skill://acme/s4/SKILL.md"))
    await caught_up(answers, source)

    assert answers.list_skills(second["nextCursor"], modern=False) == {"skills": []}


async def test_pages_that_did_not_change_are_not_written_again(
    answers: Answers, source: MemorySource
) -> None:
    first, last = answers.listing.after(None), answers.listing.after("skill://acme/s3/SKILL.md")
    source.add(skill("acme/s9"))
    await caught_up(answers, source)

    assert answers.listing.after(None) is first
    assert answers.listing.after("skill://acme/s3/SKILL.md") is not last


@pytest.mark.requirement("DIR-05")
async def test_a_large_directory_goes_on_in_the_snapshot_of_the_moment(
    answers: Answers, source: MemorySource
) -> None:
    first = answers.read_directory("skill://acme", None, modern=False)
    source.remove(SkillUri("skill://acme/s2/SKILL.md"))
    await caught_up(answers, source)
    second = answers.read_directory("skill://acme", first["nextCursor"], modern=False)

    assert [child["name"] for child in first["resources"]] == ["s0", "s1"]
    assert [child["name"] for child in second["resources"]] == ["s3", "s4"]


@pytest.mark.requirement("LIST-13", "DIR-05")
async def test_cursors_of_nobody_are_refused_everywhere(answers: Answers) -> None:
    for ask in (
        lambda: answers.list_skills("zz", modern=True),
        lambda: answers.list_resources("zz"),
        lambda: answers.read_directory("skill://acme", "zz", modern=True),
    ):
        with pytest.raises(InvalidCursorError):
            ask()


@pytest.mark.requirement("READ-02")
async def test_what_has_no_digest_is_stale_at_once() -> None:
    live = DynamicSkill("live", description="Use when asked.", body=lambda: "now")
    hidden = skill("acme/hidden")
    async with CombinedSource([MemorySource([live]), PlainSource(unlisted=[hidden])]) as catalog:
        answers = Answers(catalog, ResultSettings())
        files = [await answers.read("skill://live/SKILL.md"), await answers.read(hidden.uri.text)]
        results = [answers.read_result(file, modern=True) for file in files]

    assert [file.digest for file in files] == ["", ""]
    assert [result["ttlMs"] for result in results] == [0, 0]


async def test_a_file_is_answered_under_the_uri_it_was_asked_for(answers: Answers) -> None:
    file = await answers.read("SKILL://%61cme/s0/SKILL.md")

    [item] = answers.read_result(file, modern=False)["contents"]
    assert item["uri"] == "SKILL://%61cme/s0/SKILL.md"
    assert file.digest.startswith("sha256:")


@pytest.mark.requirement("GET-02", "READ-09", "DIR-03")
@pytest.mark.parametrize("uri", ["skill://acme/nope/SKILL.md", "skill://acme/%2e%2e/SKILL.md", "x", ""])
async def test_what_is_not_served_is_not_found_under_the_uri_that_was_asked_for(
    answers: Answers, uri: str
) -> None:
    failures: list[NotFoundError] = []
    for ask in (answers.get_skill(uri, modern=True), answers.read(uri)):
        with pytest.raises(NotFoundError) as caught:
            await ask
        failures.append(caught.value)
    with pytest.raises(NotFoundError) as caught:
        answers.read_directory(uri, None, modern=True)
    failures.append(caught.value)

    assert [failure.uri for failure in failures] == [uri] * 3
    assert not answers.is_directory(uri)


async def test_completions_are_capped_and_say_how_many_there_are() -> None:
    source = MemorySource([skill(f"acme/s{number:03}") for number in range(130)])
    async with CombinedSource([source]) as catalog:
        answers = Answers(catalog, ResultSettings())
        found = answers.complete("skill://{+path}", "path", "acme/s")
        others = [
            answers.complete("info://{+path}", "path", "a"),
            answers.complete("skill://{path}", "path", "a"),
            answers.complete("skill://{+path}", "other", "a"),
            answers.complete("skill", "path", "a"),
        ]

    assert found is not None
    assert (len(found["values"]), found["total"], found["hasMore"]) == (100, 130, True)
    assert others == [None] * 4


async def test_without_skills_there_still_is_a_template_to_browse_with() -> None:
    async with CombinedSource([MemorySource()]) as catalog:
        answers = Answers(catalog, ResultSettings())

    assert [template["uriTemplate"] for template in answers.templates()] == ["skill://{+path}"]
    assert answers.list_resources(None) == {"resources": []}
    assert answers.complete("skill://{+path}", "path", "") == {"values": [], "total": 0, "hasMore": False}
