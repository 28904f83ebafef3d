"""Skills made when they are read: published without digests, and a maker's failure stays its own."""

import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import InvalidSkillError, NotFoundError, SourceError
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.uri import SkillUri
from skillwire.sources import DynamicSkill, MemorySource

URI = "skill://ops/live-status/SKILL.md"


def status(body: Callable[[], str | bytes | Awaitable[str | bytes]]) -> DynamicSkill:
    return DynamicSkill(
        "live-status",
        description="Use when asked how things are.",
        body=body,
        path="ops/live-status",
        frontmatter={"license": "MIT"},
    )


@pytest.mark.requirement("LIST-09")
@pytest.mark.requirement("GET-05")
async def test_it_is_listed_and_got_with_the_marker_instead_of_digests() -> None:
    source = MemorySource([status(lambda: "Fine.")])

    listed = [entry async for entry in source.list_skills()]
    got = await source.get_skill(SkillUri(URI))

    frontmatter = Frontmatter(
        {"name": "live-status", "description": "Use when asked how things are.", "license": "MIT"}
    )
    assert listed == [got] == [SkillEntry(SkillUri(URI), frontmatter, None, dynamic_files=(URI,))]
    assert got.to_json() == {"uri": URI, "frontmatter": dict(frontmatter.fields), "resources": "dynamic"}


@pytest.mark.requirement("SDK-06")
async def test_its_content_is_made_anew_at_every_read() -> None:
    numbers = iter(range(10))
    source = MemorySource([status(lambda: f"Status {next(numbers)}.\n")])

    first, second = await source.read_file(URI), await source.read_file(URI)

    assert parse_skill_md(first).body.strip() == "Status 0."
    assert parse_skill_md(second).body.strip() == "Status 1."


async def test_what_is_read_begins_with_the_frontmatter_that_is_published() -> None:
    skill = status(lambda: b"Fine.")

    document = parse_skill_md(await skill.read("SKILL.md"))

    assert document.frontmatter == skill.entry().frontmatter
    assert document.body.strip() == "Fine."


async def test_a_plain_function_runs_in_a_thread_and_a_coroutine_function_in_the_loop() -> None:
    threads: list[threading.Thread] = []

    def plain() -> str:
        threads.append(threading.current_thread())
        return "plain"

    async def coroutine() -> bytes:
        threads.append(threading.current_thread())
        return b"coroutine"

    skill = status(plain).with_file("a.md", coroutine)

    assert parse_skill_md(await skill.read("SKILL.md")).body.strip() == "plain"
    assert await skill.read("a.md") == b"coroutine"
    assert [thread is threading.current_thread() for thread in threads] == [False, True]


@pytest.mark.requirement("SDK-06")
async def test_its_other_files_are_made_too_and_nothing_else_is_there() -> None:
    source = MemorySource([status(lambda: "Fine.").with_file("reports/to day.md", lambda: "ü")])

    assert await source.read_file("skill://ops/live-status/reports/to%20day.md") == "ü".encode()
    for path in ("reports", "reports/other.md", "skill.md", "a/../SKILL.md"):
        with pytest.raises(NotFoundError):
            await source.read_file(f"skill://ops/live-status/{path}")


def fail() -> str:
    raise RuntimeError("password=hunter2 in /home/someone")


async def fail_later() -> str:
    raise RuntimeError("password=hunter2 in /home/someone")


def nothing() -> str:
    return cast(Any, None)


def number() -> str:
    return cast(Any, 7)


def surrogate() -> str:
    return "\ud800"


def not_text() -> bytes:
    return b"\xff\xfe"


def whole_file() -> str:
    return "---\nname: other\ndescription: Use when other.\n---\n"


@pytest.mark.parametrize("body", [fail, fail_later, nothing, number, surrogate, not_text, whole_file])
async def test_a_body_that_cannot_be_made_is_an_error_that_gives_nothing_away(
    body: Callable[[], str | bytes | Awaitable[str | bytes]],
) -> None:
    source = MemorySource([status(body)])

    with pytest.raises(SourceError) as caught:
        await source.read_file(URI)

    assert str(caught.value) == f"the content of {URI} could not be generated"
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("produce", [fail, fail_later, nothing, number, surrogate])
async def test_a_file_that_cannot_be_made_is_an_error_that_gives_nothing_away(
    produce: Callable[[], str | bytes | Awaitable[str | bytes]],
) -> None:
    source = MemorySource([status(lambda: "Fine.").with_file("a.md", produce)])

    with pytest.raises(SourceError) as caught:
        await source.read_file("skill://ops/live-status/a.md")

    assert "hunter2" not in str(caught.value)
    assert await source.read_file(URI)


@pytest.mark.parametrize(
    "path", ["", "/abs.md", "../out.md", "a/./b", "https://x/y", "SKILL.md", "a\\b", "taken.md"]
)
def test_a_path_no_file_may_have_is_refused(path: str) -> None:
    skill = status(lambda: "Fine.").with_file("taken.md", lambda: "x")

    with pytest.raises(InvalidSkillError):
        skill.with_file(path, lambda: "y")


@pytest.mark.parametrize(
    "broken",
    [
        DynamicSkill("Bad_Name", "Use when bad.", lambda: ""),
        DynamicSkill("undescribed", "", lambda: ""),
        DynamicSkill("moved", "Use when moved.", lambda: "", path="somewhere/else"),
        DynamicSkill("odd", "Use when odd.", lambda: "", frontmatter={"metadata": {"a": 1}}),
        DynamicSkill("odd", "Use when odd.", lambda: "", scheme="file"),
    ],
)
def test_a_skill_that_breaks_a_rule_of_the_format_is_refused_when_it_is_added(broken: DynamicSkill) -> None:
    with pytest.raises(InvalidSkillError):
        MemorySource([broken])
