"""The store for what scripts leave: who finds what there, how much of it, and for how long."""

import re
from base64 import b64decode
from collections.abc import AsyncGenerator

import anyio
import pytest

from skillwire.runner import OutputFile
from skillwire.server.answers import Answers, FileContent, ResultSettings
from skillwire.server.outputs import Caller, OutputQuota, OutputStore
from skillwire.sources import CombinedSource, MemorySource
from talking import eventually

ME: Caller = ("session-1", None)
OTHER: Caller = ("session-2", None)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def files(*sizes: int) -> list[OutputFile]:
    return [OutputFile(f"{number}.bin", bytes([number]) * size) for number, size in enumerate(sizes)]


@pytest.fixture
async def answers() -> AsyncGenerator[Answers]:
    async with CombinedSource([MemorySource()]) as catalog:
        yield Answers(catalog, ResultSettings())


@pytest.mark.requirement("EXEC-17")
def test_a_file_is_found_by_its_uri_alone() -> None:
    store = OutputStore()

    uris = store.put([OutputFile("plots/möve 1%.svg", b"<svg/>"), OutputFile("a.txt", b"a")], ME)

    assert list(uris) == ["plots/möve 1%.svg", "a.txt"]
    assert re.fullmatch(r"skill-output://[0-9a-f]{32}/plots/m%C3%B6ve%201%25\.svg", uris["plots/möve 1%.svg"])
    found = store.read(uris["plots/möve 1%.svg"], ME)
    assert found == FileContent(
        uris["plots/möve 1%.svg"], "image/svg+xml", b"<svg/>", digest="", is_private=True
    )
    base = uris["a.txt"].removesuffix("a.txt")
    others = [base, base + "b.txt", base + "../a.txt", base + "%61.txt", uris["a.txt"] + "?", "skill://a.txt"]
    assert [store.read(uri, ME) for uri in (*others, uris["a.txt"].upper(), "", "skill-output://")] == [
        None
    ] * 9


@pytest.mark.requirement("EXEC-17")
def test_two_runs_share_no_uri() -> None:
    store = OutputStore()

    keys = {store.put(files(1), ME)["0.bin"].split("/")[2] for _ in range(200)}

    assert len(keys) == 200


@pytest.mark.requirement("EXEC-10")
def test_only_who_ran_a_script_finds_what_it_left() -> None:
    store = OutputStore()

    uri = store.put(files(1), ME)["0.bin"]

    assert store.read(uri, ME) is not None
    assert store.read(uri, OTHER) is None
    assert store.read(uri, ("session-1", "client", None, "someone")) is None


@pytest.mark.requirement("EXEC-17")
def test_what_was_kept_long_enough_is_gone() -> None:
    clock = Clock()
    store = OutputStore(OutputQuota(seconds=60), clock=clock)
    uri = store.put(files(5), ME)["0.bin"]

    clock.now += 59.9
    assert store.read(uri, ME) is not None
    clock.now += 0.1

    assert store.read(uri, ME) is None
    assert store.size == 5
    store.expire()
    assert (store.size, len(store)) == (0, 0)


async def test_memory_is_given_back_without_being_asked() -> None:
    store = OutputStore(OutputQuota(seconds=0.02))
    store.put(files(5), ME)

    async def size() -> int:
        return store.size

    async with anyio.create_task_group() as group:
        group.start_soon(store.expire_forever)
        await eventually(size, lambda left: left == 0)
        group.cancel_scope.cancel()

    assert len(store) == 0


@pytest.mark.requirement("EXEC-12")
def test_the_oldest_runs_make_room() -> None:
    store = OutputStore(OutputQuota(all_bytes=100, all_files=4))
    first = store.put(files(40, 40), ME)
    second = store.put(files(20), ME)

    third = store.put(files(30), ME)

    assert [
        store.read(uri, ME) is not None for uri in (*first.values(), *second.values(), *third.values())
    ] == [
        False,
        False,
        True,
        True,
    ]
    assert (store.size, len(store)) == (50, 2)
    for _ in range(20):
        store.put(files(0, 0, 0), ME)
    assert (store.size, len(store)) == (0, 3)


@pytest.mark.requirement("EXEC-12")
def test_one_run_keeps_no_more_than_its_share() -> None:
    store = OutputStore(OutputQuota(run_bytes=50, run_files=3))

    uris = store.put(files(30, 30, 10, 5, 1), ME)

    assert list(uris) == ["0.bin", "2.bin", "3.bin"]
    assert store.put(files(51), ME) == {}
    assert (store.size, len(store)) == (45, 3)


def test_a_cleared_shelf_has_nothing() -> None:
    store = OutputStore()
    uri = store.put(files(5), ME)["0.bin"]

    store.clear()

    assert (store.read(uri, ME), store.size, len(store)) == (None, 0, 0)


@pytest.mark.requirement("EXEC-17")
async def test_no_cache_may_share_or_keep_an_output(answers: Answers) -> None:
    store = OutputStore()
    uri = store.put([OutputFile("a.bin", b"\xff\x00")], ME)["a.bin"]
    file = store.read(uri, ME)
    assert file is not None

    modern, legacy = (answers.read_result(file, modern=modern) for modern in (True, False))

    assert (modern["ttlMs"], modern["cacheScope"]) == (0, "private")
    assert set(legacy) == {"contents"}
    assert b64decode(legacy["contents"][0]["blob"]) == b"\xff\x00"
