"""What a model is given again after its context was summarised, in front of a real server."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from folders import skill_md, write_files
from hostile.hosting import User, hosting
from integration.hosting_serve import BILLING, written
from programs import words_of
from serving import environment
from skillwire.host import Host, HostLimits, ListingForm, ServerConfig, StdioEndpoint
from skillwire.host.model.origin import estimated_tokens

pytestmark = pytest.mark.anyio

REFUNDS, STOCK, OUTER = "desk/refunds", "desk/stock", "desk/outer"
PATIENCE = 30.0


@asynccontextmanager
async def desk(folder: Path, **options: Any) -> AsyncGenerator[tuple[Host, User, Path]]:
    skills = written(folder / "served", BILLING)
    user = User()
    command, *args = words_of(skills)
    server = ServerConfig("desk", StdioEndpoint(command, tuple(args), environment(folder)), seconds=30)
    async with hosting(folder, [server], user=user, **options) as host:
        await host.refresh()
        yield host, user, skills


@pytest.mark.requirement("HOST-15")
async def test_one_call_gives_back_the_list_and_the_texts_as_they_were_loaded_the_newest_first(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as (host, user, _):
        listing = host.listing()
        loaded = [await host.load(reference) for reference in (REFUNDS, STOCK, OUTER)]
        await host.read_skill_file(REFUNDS, "references/policy.md")
        restored = host.after_compaction()
        asked = len(user.questions)

    assert restored.listing == listing
    assert [skill.text for skill in restored.skills] == [skill.text for skill in reversed(loaded)]
    assert restored.text.startswith(listing)
    assert "Refund within 30 days" not in restored.text, "files are read again when they are needed"
    assert (restored.left_out, restored.refused, asked) == ((), (), 3)


@pytest.mark.parametrize("budget", [*range(0, 1_000, 100), 1_500, 2_000, 3_000, 6_000])
async def test_what_comes_back_stays_within_the_budget_and_says_what_is_missing(
    tmp_path: Path, budget: int
) -> None:
    async with desk(tmp_path) as (host, user, _):
        host.listing(budget_tokens=300)
        loaded = {reference: await host.load(reference) for reference in (STOCK, REFUNDS, OUTER)}
        restored = host.after_compaction(budget_tokens=budget)
        again = await host.load(STOCK)
        asked = len(user.questions)

    assert estimated_tokens(restored.text) <= budget
    named = {skill.reference for skill in restored.skills} | set(restored.left_out)
    assert named == set(loaded) or budget < 500
    given = [skill.reference for skill in restored.skills]
    assert [*given, *restored.left_out] == [OUTER, REFUNDS, STOCK][: len(named)]
    for reference in restored.left_out:
        assert reference in restored.text
    for skill in restored.skills:
        assert skill.text.count(skill.boundary) == loaded[skill.reference].text.count(skill.boundary)
        if skill.text != loaded[skill.reference].text:
            assert f'for all of them: load_skill(skill="{skill.reference}")' in skill.text
    assert (again.text, asked) == (loaded[STOCK].text, 3)


async def test_long_texts_are_cut_and_short_ones_stay_whole(tmp_path: Path) -> None:
    async with desk(tmp_path) as (host, _, _):
        host.listing(budget_tokens=100)
        loaded = {reference: await host.load(reference) for reference in (STOCK, REFUNDS)}
        room = sum(estimated_tokens(skill.text) for skill in loaded.values()) - 100
        restored = host.after_compaction(budget_tokens=room + estimated_tokens(host.listing()))

    refunds, stock = restored.skills
    assert refunds.text == loaded[REFUNDS].text
    assert "Cut: only the first " in stock.text and stock.text.endswith(f"----- end {stock.boundary} -----")
    assert len(stock.text) > len(loaded[STOCK].text) / 2


async def test_what_was_revoked_closed_or_only_inherited_does_not_come_back(tmp_path: Path) -> None:
    async with desk(tmp_path) as (host, _, _):
        for reference in (REFUNDS, STOCK, OUTER):
            await host.load(reference)
        child = host.child()
        await host.revoke(STOCK)
        restored = host.after_compaction(removed=[OUTER])
        inherited = child.after_compaction()
        windows = [window.skill.reference for window in host.loaded]

    assert [skill.reference for skill in restored.skills] == [REFUNDS]
    assert [refusal.subject for refusal in restored.refused] == [STOCK]
    assert "Count the boxes" not in restored.text and "Outer." not in restored.text
    assert windows == [REFUNDS, STOCK], "a summary may carry on what was revoked, so the gate stays"
    assert inherited.skills == ()


async def test_only_pages_that_were_given_come_back(tmp_path: Path) -> None:
    async with desk(tmp_path, limits=HostLimits(page_length=1_000)) as (host, _, _):
        pages = [await host.load(STOCK, page=page) for page in (1, 3)]
        restored = host.after_compaction()

    assert restored.skills[0].text == "\n\n".join(page.text for page in pages)


async def test_the_list_that_comes_back_has_what_was_appended_to_it_before(tmp_path: Path) -> None:
    async with desk(tmp_path) as (host, _, skills):
        before = host.listing()
        write_files(skills, {"late/SKILL.md": skill_md("late")})
        with anyio.fail_after(PATIENCE):
            while not (changes := await host.listing_changes()):
                await host.refresh(force=True)
        restored = host.after_compaction()
        after = await host.listing_changes()

    assert "desk/late" not in before and "desk/late" in changes
    assert "desk/late" in restored.listing and restored.listing != before
    assert after == "", "the new list has it already"


@pytest.mark.requirement("HOST-15")
async def test_texts_are_missed_only_after_the_model_had_them(tmp_path: Path) -> None:
    async with desk(tmp_path) as (host, _, _):
        early = host.restore(["nothing loaded yet"])
        loaded = await host.load(REFUNDS)
        file = await host.read_skill_file(REFUNDS, "references/policy.md")
        unseen = host.restore(["never sent"])
        there = host.restore([loaded.text, file.text])
        lost = host.restore(["a summary", file.text])
        kept = host.restore(["a summary", lost])
        again = host.restore(["a summary"])
        host.close(REFUNDS)
        closed = host.restore(["a summary"])

    assert (early, unseen, there, kept, closed) == ("", "", "", "", "")
    assert loaded.text in lost and lost == again


@pytest.mark.requirement("HOST-15")
@pytest.mark.parametrize("form", list(ListingForm))
async def test_changes_of_the_list_that_were_lost_come_back_as_a_new_list(
    tmp_path: Path, form: ListingForm
) -> None:
    async with desk(tmp_path) as (host, _, skills):
        host.listing(form=form)
        early = host.restore(["nothing announced yet"])
        write_files(skills, {"late/SKILL.md": skill_md("late")})
        with anyio.fail_after(PATIENCE):
            while not (changes := await host.listing_changes()):
                await host.refresh(force=True)
        unseen = host.restore(["not sent yet"])
        there = host.restore(map(repr, [{"role": "user", "content": changes}]))
        lost = host.restore(["a summary"])
        listing = host.listing()
        kept = host.restore(["a summary", json.dumps(lost)])
        again = host.restore(["a shorter summary"])
        after = await host.listing_changes()

    assert (early, unseen, there, kept, after) == ("", "", "", "", "")
    assert "desk/late" in lost and lost == listing == again


async def test_a_list_that_comes_back_stays_within_half_of_the_budget(tmp_path: Path) -> None:
    async with desk(tmp_path) as (host, _, skills):
        host.listing()
        write_files(skills, {"late/SKILL.md": skill_md("late")})
        with anyio.fail_after(PATIENCE):
            while not (changes := await host.listing_changes()):
                await host.refresh(force=True)
        host.restore([changes])
        lost = host.restore(["a summary"], budget_tokens=300)

    assert lost and estimated_tokens(lost) <= 150


async def test_a_list_is_what_was_asked_for_and_the_same_bytes_for_the_same_arguments(tmp_path: Path) -> None:
    async with desk(tmp_path) as (host, _, _):
        compact = host.listing()
        xml = host.listing(form=ListingForm.XML)
        current = host.listing()
        short = host.listing(budget_tokens=150)
        counted = host.listing(budget_tokens=150, count=len)
        again = host.listing(form=ListingForm.COMPACT)
        last = host.listing()

    assert "<" in xml and xml != compact and current == xml
    assert estimated_tokens(short) <= 150 < estimated_tokens(compact)
    assert len(counted) <= 150
    assert again == compact == last
