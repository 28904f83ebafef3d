"""Watching: when a place is looked at again, and that no trouble ends it. The events here are made up."""

import logging
import threading
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import watchfiles

from folders import delete, write_files
from skillwire.core.errors import SourceError
from skillwire.sources import Snapshot
from skillwire.sources.directory import watch
from skillwire.sources.directory.watch import TreeWatcher

Batch = set[tuple[watchfiles.Change, str]]


class Looks:
    """A tree that notes where it was looked at, and has nothing in it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...] | None] = []
        self.failures: list[Exception] = []
        self.still_writing: list[frozenset[str]] = []
        self.revision = 1
        self._looked = anyio.Event()

    @property
    def unsettled(self) -> frozenset[str]:
        return self.still_writing.pop(0) if self.still_writing else frozenset()

    def start_for(self, place: str) -> str | None:
        return None if place.startswith(".") else place.split("/")[0]

    async def refresh(self, places: Iterable[str] | None = None) -> Snapshot:
        self.seen.append(None if places is None else tuple(sorted(places)))
        self._looked.set()
        self._looked = anyio.Event()
        if self.failures:
            raise self.failures.pop(0)
        return Snapshot.of((), revision=self.revision)

    async def until(self, *expected: tuple[str, ...] | None) -> None:
        """Wait for looks at these places, in this order, with others before and between.

        Places that become quiet close together are one look: each look has to include what is expected of it.
        """
        with anyio.fail_after(10):
            while not _in_order(expected, self.seen):
                await self._looked.wait()


def _in_order(wanted: Iterable[tuple[str, ...] | None], seen: Iterable[tuple[str, ...] | None]) -> bool:
    rest = iter(seen)
    return all(any(_includes(places, expected) for places in rest) for expected in wanted)


def _includes(places: tuple[str, ...] | None, expected: tuple[str, ...] | None) -> bool:
    if places is None or expected is None:
        return places is expected
    return set(expected) <= set(places)


class Events:
    """Stands in for the operating system: what is put in comes out as batches of events."""

    def __init__(self) -> None:
        self._batches: list[Batch | Exception] = []
        self.stalls: list[float] = []
        self._more = threading.Condition()
        self.starts = 0

    def put(self, *batches: Batch | Exception) -> None:
        with self._more:
            self._batches += batches
            self._more.notify_all()

    def watch(self, *_paths: Path, stop_event: threading.Event, **_options: object) -> Iterator[Batch]:
        self.starts += 1
        yield set()
        while not stop_event.is_set():
            with self._more:
                self._more.wait(0.01)
                batch = self._batches.pop(0) if self._batches else set[tuple[watchfiles.Change, str]]()
            if isinstance(batch, Exception):
                raise batch
            if batch and self.stalls:
                time.sleep(self.stalls.pop(0))
            yield batch


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    made_up = Events()
    monkeypatch.setattr(watchfiles, "watch", made_up.watch)
    monkeypatch.setattr(watch, "SETTLE_SECONDS", 0.02)
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.03)
    # A busy machine may stop a process for a second at any time, and a virtual machine for a minute.
    monkeypatch.setattr(watch, "_STALL_SECONDS", 60.0)
    monkeypatch.setattr(watch, "JUMP_SECONDS", 600.0)
    return made_up


@asynccontextmanager
async def watching(root: Path, looks: Looks) -> AsyncGenerator[None]:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(TreeWatcher(str(root), looks).run)
            yield
            group.cancel_scope.cancel()


def modified(path: Path) -> Batch:
    return {(watchfiles.Change.modified, str(path))}


async def test_everything_is_looked_at_once_the_watch_is_in_place_and_then_only_what_changes(
    root: Path, events: Events
) -> None:
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",))
        events.put(modified(root / "pdf" / "SKILL.md"))
        await looks.until(("",), ("pdf",))

    # Before the watch is in place everything is looked at now and then, and once more soon after.
    assert looks.seen[looks.seen.index(("",)) :].count(None) <= 1


async def test_events_close_together_are_one_look(
    root: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SETTLE_SECONDS", 0.3)
    looks = Looks()

    async with watching(root, looks):
        events.put(*(modified(root / "pdf" / f"{number}.md") for number in range(20)))
        await looks.until(("pdf",))
        events.put(modified(root / "end"))
        await looks.until(("end",))

    assert sum("pdf" in (places or ()) for places in looks.seen) == 1


async def test_events_about_hidden_places_are_no_reason_to_look(root: Path, events: Events) -> None:
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",))
        events.put(modified(root / ".git" / "index"), modified(root / "pdf"))
        await looks.until(("pdf",))

    assert all("." not in place for places in looks.seen for place in places or ())


async def test_an_event_about_the_root_itself_is_a_look_at_everything(root: Path, events: Events) -> None:
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",))
        events.put(modified(root))
        await looks.until(("",), ("",))


async def test_what_is_still_being_written_is_looked_at_again(root: Path, events: Events) -> None:
    looks = Looks()
    looks.still_writing = [frozenset({"pdf"}), frozenset({"pdf"})]

    async with watching(root, looks):
        await looks.until(("",), ("pdf",), ("pdf",))


async def test_trouble_with_looking_does_not_end_the_watch_and_is_said_once(
    root: Path, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    looks = Looks()
    looks.failures = [SourceError("the folder cannot be read")] * 3
    looks.failures += [ZeroDivisionError("a bug")] * 3

    with caplog.at_level(logging.INFO):
        async with watching(root, looks):
            while "INFO" not in caplog.text:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            events.put(modified(root / "b"))
            while not any("b" in (places or ()) for places in looks.seen):  # noqa: ASYNC110
                await anyio.sleep(0.01)

    said = [record for record in caplog.records if record.name == watch.__name__]
    assert [record.levelname for record in said] == ["WARNING", "ERROR", "INFO"]
    assert events.starts == 1


async def test_what_a_failed_look_should_have_seen_is_looked_at_soon(
    root: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",), None)
        looks.failures = [SourceError("too many open files")]
        events.put(modified(root / "a"))
        await looks.until(("",), None, ("a",), None)


async def test_so_many_events_that_some_may_be_lost_are_a_look_at_everything(
    root: Path, events: Events
) -> None:
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",))
        events.put({(watchfiles.Change.added, str(root / f"skill-{number}")) for number in range(5000)})
        await looks.until(("",), ("",))

    assert all(len(places or ()) <= 1 for places in looks.seen)


async def test_events_that_came_while_the_process_stood_still_are_a_look_at_everything(
    root: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_STALL_SECONDS", 0.1)
    events.stalls = [0.2]
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",))
        events.put(modified(root / "pdf"))
        await looks.until(("",), ("",))

    assert ("pdf",) not in looks.seen


@pytest.mark.parametrize(("seconds", "way"), [(3600.0, "forward"), (-3600.0, "back")])
async def test_a_clock_that_was_set_is_said_and_has_everything_looked_at(
    root: Path,
    events: Events,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    way: str,
) -> None:
    looks, now = Looks(), time.time

    async with watching(root, looks):
        await looks.until(("",), None)
        events.put(modified(root / "a"))
        await looks.until(("a",))
        monkeypatch.setattr(time, "time", lambda: now() + seconds)
        events.put(modified(root / "b"))
        await looks.until(("a",), None)
        events.put(modified(root / "c"))
        await looks.until(("c",))

    assert ("b",) not in looks.seen
    assert caplog.text.count(f"the clock jumped {way} by 3600 seconds") == 1


async def test_a_change_that_no_event_told_of_has_the_watch_set_up_anew(
    root: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "RECHECK_SECONDS", 0.05)
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",), None, None)
        before = events.starts
        looks.revision += 1
        await looks.until(("",), None, None, ("",))

    assert (before, events.starts) == (1, 2)


@pytest.mark.parametrize(
    "error", [OSError("too many watches"), UnicodeEncodeError("utf-8", "\udce9", 0, 1, "surrogate")]
)
async def test_where_watching_fails_everything_is_looked_at_from_time_to_time(
    root: Path, events: Events, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    looks = Looks()
    events.put(error)

    with caplog.at_level(logging.WARNING):
        async with watching(root, looks):
            await looks.until(("",), None, None, None)

    assert events.starts == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("error", [OSError("too many watches"), RuntimeError("too many open files")])
async def test_a_watch_that_fails_is_tried_again_and_its_failure_said_once(
    root: Path,
    events: Events,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    monkeypatch.setattr(watch, "RECHECK_SECONDS", 0.05)
    looks = Looks()
    events.put(error, error, error)

    with caplog.at_level(logging.WARNING):
        async with watching(root, looks):
            while events.starts < 4:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            events.put(modified(root / "pdf"))
            await looks.until(("pdf",))

    assert events.starts == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_watch_that_loses_track_is_set_up_anew(root: Path, events: Events) -> None:
    looks = Looks()
    events.put(RuntimeError("a name that is not UTF-8"))

    async with watching(root, looks):
        await looks.until(("",), ("",))
        events.put(modified(root / "pdf"))
        await looks.until(("pdf",))

    assert events.starts == 2


async def test_a_root_that_is_deleted_is_waited_for_and_watched_again(root: Path, events: Events) -> None:
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",))
        delete(root)
        events.put({(watchfiles.Change.deleted, str(root))})
        await looks.until(("",), ("",))
        assert events.starts == 1
        write_files(root, {"file": ""})
        await looks.until(("",), ("",), ("",))
        events.put(modified(root / "pdf"))
        await looks.until(("pdf",))

    assert events.starts == 2


async def test_a_root_that_is_replaced_at_once_is_watched_again(root: Path, events: Events) -> None:
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",))
        events.put({(watchfiles.Change.deleted, str(root))})
        await looks.until(("",), ("",))
        events.put(modified(root / "pdf"))
        await looks.until(("pdf",))

    assert events.starts == 2


async def test_everything_is_looked_at_now_and_then_even_while_watching(
    root: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "RECHECK_SECONDS", 0.05)
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",), None, None)

    assert events.starts == 1


async def test_the_thread_that_waits_for_events_is_told_to_stop(
    root: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()

    def wait_for_the_stop(*_paths: Path, stop_event: threading.Event, **_options: object) -> Iterator[Batch]:
        yield set()
        assert stop_event.wait(10), "nobody told"
        stopped.set()

    monkeypatch.setattr(watchfiles, "watch", wait_for_the_stop)
    looks = Looks()

    async with watching(root, looks):
        await looks.until(("",))

    assert stopped.is_set()
