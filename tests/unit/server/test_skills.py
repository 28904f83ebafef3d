"""`Skills` without a server: what may be added when, and who opens and closes the sources."""

import gc
from pathlib import Path
from types import TracebackType

import anyio
import pytest

from folders import write_skill
from skillwire.core.errors import DuplicateSkillError, InvalidUriError, NotFoundError, SkillError, SourceError
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.server.answers import ResultSettings
from skillwire.server.skills import Skills
from skillwire.sources import DynamicSkill, MemorySource
from talking import PlainSource, skill


def of(*origins: object, prefix: str = "", strict: bool = False) -> Skills:
    return Skills(origins, result_settings=ResultSettings(), prefix=prefix, watch=False, strict=strict)  # pyright: ignore[reportArgumentType]


def listed(skills: Skills) -> list[str]:
    return [entry["uri"] for entry in skills.answers.list_skills(None, modern=False)["skills"]]


@pytest.mark.requirement("SDK-06")
async def test_everything_skills_can_come_from_is_taken_at_once(tmp_path: Path) -> None:
    write_skill(tmp_path / "folder/one")
    write_skill(tmp_path / "other/two")
    live = DynamicSkill("live", description="Use when asked.", body=lambda: "now")
    skills = of(
        str(tmp_path / "folder"),
        tmp_path / "other",
        MemorySource([skill("three")]),
        PlainSource(skill("four")),
        skill("five"),
        live,
        prefix="acme",
    )

    async with skills.open():
        found = listed(skills)

    assert found == [
        "skill://acme/one/SKILL.md",
        "skill://acme/two/SKILL.md",
        "skill://five/SKILL.md",
        "skill://four/SKILL.md",
        "skill://live/SKILL.md",
        "skill://three/SKILL.md",
    ]


def test_constructing_opens_nothing(tmp_path: Path) -> None:
    skills = of(tmp_path / "not there yet")

    with pytest.raises(SourceError):
        _ = skills.answers


def test_adding_is_all_or_nothing(tmp_path: Path) -> None:
    skills = of(skill("one"))

    with pytest.raises(DuplicateSkillError):
        skills.add(tmp_path, skill("two"), skill("one", body="Other.\n"))
    with pytest.raises(InvalidUriError):
        of(skill("one"), tmp_path, prefix="..")

    assert len(skills._sources) == 1  # pyright: ignore[reportPrivateUsage]
    skills.add(skill("two"))


def test_only_what_was_built_in_code_can_be_removed() -> None:
    skills = of(skill("one"), MemorySource([skill("two")]))

    skills.remove(SkillUri("skill://one/SKILL.md"))
    for uri in ("skill://one/SKILL.md", "skill://two/SKILL.md"):
        with pytest.raises(NotFoundError):
            skills.remove(SkillUri(uri))


async def test_folders_and_functions_are_refused_only_while_open(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    skills = of()

    async with skills.open():
        with pytest.raises(SkillError):
            skills.add(tmp_path)
        with pytest.raises(SkillError):
            skills.skill("acme/one")(lambda: tmp_path / "one")
        skills.add(skill("two"))
    skills.add(tmp_path)
    skills.skill("acme/one")(lambda: tmp_path / "one")
    async with skills.open():
        assert listed(skills) == [
            "skill://acme/one/SKILL.md",
            "skill://one/SKILL.md",
            "skill://two/SKILL.md",
        ]


class Slow(PlainSource):
    """A source that takes its time to open and to close, and notes both."""

    def __init__(self, *skills: Skill) -> None:
        super().__init__(*skills)
        self.events: list[str] = []
        self.opening = anyio.Event()
        self.may_open = anyio.Event()
        self.may_close = anyio.Event()
        self.may_close.set()

    async def __aenter__(self) -> "Slow":
        self.opening.set()
        await self.may_open.wait()
        self.events.append("open")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.may_close.wait()
        self.events.append("close")


async def test_who_comes_while_the_last_one_leaves_gets_sources_that_are_open() -> None:
    source = Slow(skill("one"))
    source.may_open.set()
    source.may_close = anyio.Event()
    skills = of(source)
    found: list[list[str]] = []

    async def visit() -> None:
        async with skills.open():
            found.append(listed(skills))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(visit)
            await anyio.wait_all_tasks_blocked()
            assert found == [["skill://one/SKILL.md"]]
            group.start_soon(visit)
            await anyio.wait_all_tasks_blocked()
            source.may_close.set()

    assert found == [["skill://one/SKILL.md"]] * 2
    assert source.events == ["open", "close"] * 2


async def test_who_is_cancelled_while_opening_leaves_nothing_half_open() -> None:
    source = Slow(skill("one"))
    skills = of(source)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(enter_and_stay, skills)
            await source.opening.wait()
            group.cancel_scope.cancel()
        source.may_open.set()
        async with skills.open():
            found = listed(skills)
    gc.collect()

    assert found == ["skill://one/SKILL.md"]
    assert source.events == ["open", "close"]


async def enter_and_stay(skills: Skills) -> None:
    async with skills.open():
        await anyio.sleep_forever()


async def test_who_is_cancelled_while_using_closes_the_sources() -> None:
    source = Slow(skill("one"))
    source.may_open.set()
    skills = of(source)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(enter_and_stay, skills)
            await anyio.wait_all_tasks_blocked()
            assert source.events == ["open"]
            group.cancel_scope.cancel()

    assert source.events == ["open", "close"]
    with pytest.raises(SourceError):
        _ = skills.answers


async def test_one_who_waits_for_the_opening_is_not_cancelled_with_another() -> None:
    source = Slow(skill("one"))
    skills = of(source)
    found: list[list[str]] = []

    async def visit() -> None:
        async with skills.open():
            found.append(listed(skills))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                group.start_soon(visit_in, scope, skills)
                await source.opening.wait()
            group.start_soon(visit)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            source.may_open.set()

    assert found == [["skill://one/SKILL.md"]]


async def visit_in(scope: anyio.CancelScope, skills: Skills) -> None:
    with anyio.move_on_after(0.05):
        async with skills.open():
            await anyio.sleep_forever()


class Failing(PlainSource):
    failures = 0

    async def __aenter__(self) -> "Failing":
        if self.failures:
            self.failures -= 1
            raise SourceError("not yet")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


async def test_a_failure_to_open_is_for_who_came_and_the_next_one_tries_again() -> None:
    source = Failing(skill("one"))
    source.failures = 3
    skills = of(source)
    outcomes: list[object] = []

    async def visit() -> None:
        try:
            async with skills.open():
                outcomes.append(listed(skills))
                await anyio.sleep(0.01)
        except SourceError:
            outcomes.append("failed")

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(visit)

    assert outcomes.count("failed") == 3
    assert outcomes.count(["skill://one/SKILL.md"]) == 2
