"""What became of skills while a host watched: told once they are gone, and as long as they are."""

from pathlib import Path

import pytest

from folders import write_skill
from skillwire.core.errors import NotFoundError
from skillwire.core.finding import Finding
from skillwire.host.calls.listing import Listing
from skillwire.host.model.errors import TooSlowError
from skillwire.host.model.naming import RegistryView
from skillwire.host.registry.local import LocalRoot, LocalSkills
from skillwire.host.registry.registry import Registry
from skillwire.host.registry.servers import MAX_REMEMBERED
from skillwire.wire.index import SkillTemplate, Template
from unit.host.registry.remotes import MemoryRemote, entry_at
from unit.host.registry.test_registry import opened


def told(view: RegistryView) -> list[tuple[str, str, tuple[str, ...]]]:
    codes = ("vanished", "reference-changed", "shadowed")
    return [
        (notice.code, notice.subject, notice.candidates)
        for notice in (*view.hidden, *view.notices)
        if notice.code in codes
    ]


@pytest.mark.requirement("ASK-34")
async def test_a_skill_that_is_gone_is_told_until_it_is_back() -> None:
    remote = MemoryRemote("shop", "skill://refunds", "skill://tea")

    async with opened(Registry([remote])) as registry:
        first = await registry.refresh()
        kept = remote.listed.pop("skill://tea")
        gone = await registry.refresh(force=True)
        still_gone = await registry.refresh(force=True)
        remote.listed["skill://tea"] = kept
        back = await registry.refresh(force=True)

    assert told(first) == told(back) == []
    assert told(gone) == told(still_gone) == [("vanished", "shop/tea", ())]


@pytest.mark.requirement("ASK-34")
async def test_a_skill_that_goes_by_another_reference_is_told_with_the_new_one() -> None:
    remote = MemoryRemote("shop", "skill://acme/refunds")

    async with opened(Registry([remote])) as registry:
        await registry.refresh()
        remote.listed["skill://mall/refunds"] = entry_at("skill://mall/refunds")
        renamed = await registry.refresh(force=True)
        del remote.listed["skill://mall/refunds"]
        as_before = await registry.refresh(force=True)

    assert told(renamed) == [("reference-changed", "shop/refunds", ("shop/acme/refunds",))]
    assert told(as_before) == [("vanished", "shop/mall/refunds", ())]


@pytest.mark.requirement("ASK-34")
async def test_that_another_skill_took_the_reference_of_one_that_is_gone_is_told() -> None:
    remote = MemoryRemote("shop", "skill://acme/refunds")

    async with opened(Registry([remote])) as registry:
        await registry.refresh()
        remote.listed = {"skill://evil/refunds": entry_at("skill://evil/refunds")}
        view = await registry.refresh(force=True)

    [notice] = view.notices
    assert (notice.code, notice.subject) == ("vanished", "shop/refunds")
    assert "another skill has this reference now" in notice.detail


@pytest.mark.requirement("ASK-34")
async def test_what_a_failure_or_a_partial_listing_does_not_show_is_not_gone() -> None:
    remote = MemoryRemote("shop", "skill://refunds", "skill://tea")

    async with opened(Registry([remote])) as registry:
        await registry.refresh()
        del remote.listed["skill://tea"]
        remote.problem = TooSlowError("too slow")
        partly = await registry.refresh(force=True)
        remote.problem, remote.failure = None, TooSlowError("away")
        failed = await registry.refresh(force=True)

    assert told(partly) == told(failed) == []
    assert [skill.reference for skill in failed.skills] == ["shop/refunds", "shop/tea"]


@pytest.mark.requirement("ASK-34")
async def test_a_skill_that_is_not_there_when_it_is_asked_for_is_gone_at_once() -> None:
    remote = MemoryRemote("shop", "skill://refunds", "skill://tea")

    async with opened(Registry([remote])) as registry:
        view = await registry.refresh()
        del remote.listed["skill://tea"]
        with pytest.raises(NotFoundError):
            await registry.renew(view.skills[1].id)
        gone = registry.view

    assert told(gone) == [("vanished", "shop/tea", ())]


@pytest.mark.requirement("ASK-34")
async def test_a_local_skill_that_is_gone_or_comes_second_is_told(tmp_path: Path) -> None:
    local = LocalSkills([LocalRoot(tmp_path, "user")])
    write_skill(tmp_path / "mine")
    write_skill(tmp_path / "b" / "deploy")

    async with opened(Registry([], local)) as registry:
        await registry.refresh()
        (tmp_path / "mine" / "SKILL.md").unlink()
        write_skill(tmp_path / "a" / "deploy")
        view = await registry.refresh()

    assert sorted(told(view)) == [
        ("shadowed", "deploy", ()),
        ("vanished", "deploy", ()),
        ("vanished", "mine", ()),
    ]


@pytest.mark.requirement("ASK-34")
async def test_a_server_that_loses_everything_is_not_told_of_without_end() -> None:
    remote = MemoryRemote("shop", *(f"skill://s{number}" for number in range(MAX_REMEMBERED + 50)))

    async with opened(Registry([remote])) as registry:
        await registry.refresh()
        remote.speaks_of_skills = False
        view = await registry.refresh(force=True)

    assert len(told(view)) == MAX_REMEMBERED


async def test_templates_and_remarks_of_a_listing_come_along() -> None:
    class Remarkable(MemoryRemote):
        async def list_skills(self) -> Listing:
            template = SkillTemplate("Product", Template.parse("skill://docs/{product}/SKILL.md"), "Docs.")
            finding = Finding("uri-name-mismatch", "the path has another name", file="")
            remark = ("skill://refunds/SKILL.md", finding)
            return Listing(tuple(self.listed.values()), templates=(template,), remarks=(remark,))

    async with opened(Registry([Remarkable("shop", "skill://refunds")])) as registry:
        view = await registry.refresh()

    [template] = view.templates
    assert (template.origin.label, template.template.variables, template.description) == (
        "shop",
        ("product",),
        "Docs.",
    )
    [notice] = view.notices
    assert (notice.code, notice.subject) == ("entry-remark", "shop/skill://refunds/SKILL.md")
    assert "the path has another name" in notice.detail
