"""The events of a host: one callback, called with one value for each event."""

import logging
from pathlib import Path

import pytest

from folders import write_skill
from skillwire.host import Host, HostEvent, LocalRoot, SkillActivated, Storage
from skillwire.host.model.approval import OnEvent, binding_of
from skillwire.host.model.errors import UnknownReferenceError


def host_in(folder: Path, on_event: OnEvent | None = None) -> Host:
    write_skill(folder / "skills" / "notes")
    write_skill(folder / "skills" / "tea")
    roots = [LocalRoot(folder / "skills", "user")]
    storage = Storage(folder / "state", folder / "cache")
    return Host(roots=roots, storage=storage, on_event=on_event)


@pytest.mark.requirement("ASK-37")
async def test_each_skill_that_enters_the_context_is_one_event(tmp_path: Path) -> None:
    events: list[HostEvent] = []
    async with host_in(tmp_path, events.append) as host:
        await host.load("notes")
        await host.load("notes")
        await host.child().load("tea")
        [window] = host.loaded

    manifest = window.skill.entry.manifest
    assert manifest is not None
    assert events[0] == SkillActivated(
        window.skill.id.origin, window.skill.id.uri, "notes", binding_of(manifest), window.opened_at
    )
    assert [event.reference for event in events] == ["notes", "tea"]


@pytest.mark.requirement("ASK-37")
async def test_what_is_listed_searched_or_refused_is_no_event(tmp_path: Path) -> None:
    events: list[HostEvent] = []
    async with host_in(tmp_path, events.append) as host:
        host.listing()
        await host.search("notes")
        await host.preview("notes")
        with pytest.raises(UnknownReferenceError):
            await host.load("missing")

    assert events == []


@pytest.mark.requirement("ASK-37")
async def test_a_callback_that_fails_is_logged_and_the_skill_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(event: HostEvent) -> None:
        raise OSError("the disk is full")

    with caplog.at_level(logging.ERROR):
        async with host_in(tmp_path, fails) as host:
            loaded = await host.load("notes")

    assert loaded.reference == "notes"
    assert [record.getMessage() for record in caplog.records] == ["on_event failed for SkillActivated"]


async def test_without_a_callback_a_skill_is_loaded_as_well(tmp_path: Path) -> None:
    async with host_in(tmp_path) as host:
        loaded = await host.load("notes")

    assert loaded.reference == "notes"
