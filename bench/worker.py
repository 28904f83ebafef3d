"""One measurement in a process of its own; prints its result as JSON.

Run as `python -m bench.worker TASK ROOT CACHE`.
"""

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from bench import floors
from skillwire import SkillUri
from skillwire.sources import DirectorySource

EDITS = 7


def floor_walk(root: str, _cache: str) -> dict[str, float]:
    return _timed(lambda: len(floors.walk_and_stat(root)))


def floor_full(root: str, _cache: str) -> dict[str, float]:
    return _timed(lambda: floors.walk_read_hash_parse(root))


def cold(root: str, _cache: str) -> dict[str, float]:
    """From nothing to the first full listing: every entry with its whole manifest."""
    return anyio.run(_list_all, DirectorySource(root, watch=False, index=False))


def warm(root: str, cache: str) -> dict[str, float]:
    """The same with the index of an earlier run, and nothing changed since."""
    return anyio.run(_list_all, DirectorySource(root, watch=False, cache_dir=Path(cache)))


def edit(root: str, cache: str) -> dict[str, float]:
    """One edited file, until read, get and list all show it, in a watched folder."""
    return anyio.run(_edit, root, cache)


def memory(root: str, cache: str) -> dict[str, float]:
    """What a process holds that has the folder open and has listed everything."""

    async def hold() -> dict[str, float]:
        async with DirectorySource(root, watch=False, cache_dir=Path(cache)) as source:
            count = len([entry async for entry in source.list_skills()])
            return {"count": count, "rss_mib": _resident_mib()}

    return anyio.run(hold)


async def _list_all(source: DirectorySource) -> dict[str, float]:
    """Open a source and list everything; the clock starts when the event loop runs."""
    wall, cpu = time.perf_counter(), time.process_time()
    async with source:
        count = sum([len(entry.manifest) async for entry in source.list_skills() if entry.manifest])
        return {"count": count, "cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


async def _edit(root: str, cache: str) -> dict[str, float]:
    walls: list[float] = []
    cpus: list[float] = []
    async with DirectorySource(root, cache_dir=Path(cache)) as source:
        entry = source.snapshot.entries[0]
        uri = entry.uri.join("references/part-0.md")
        path = anyio.Path(root, entry.uri.path, "references/part-0.md")
        await anyio.sleep(3)  # The watch is set up, and its first look around is over.
        for number in range(EDITS):
            wanted = f"edited {number} by process {os.getpid()}\n".encode()
            revision = source.snapshot.revision
            started, spent = time.perf_counter(), time.process_time()
            await path.write_bytes(wanted)
            with anyio.fail_after(20):
                await source.wait_for_change(revision)
                await _visible(source, entry.uri, uri, wanted)
            walls.append(time.perf_counter() - started)
            cpus.append(time.process_time() - spent)
            await anyio.sleep(0.3)
    return {"count": EDITS, "cpu": statistics.median(cpus), "wall": statistics.median(walls)}


async def _visible(source: DirectorySource, skill: SkillUri, uri: str, wanted: bytes) -> None:
    """Check that all three ways of asking agree on the new content."""
    assert await source.read_file(uri) == wanted
    line = (await source.get_skill(skill)).manifest
    assert line is not None
    line.require(uri).verify(wanted)
    listed = [entry async for entry in source.list_skills() if entry.uri == skill]
    assert listed[0].manifest == line


def _timed(work: Callable[[], int]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    count = work()
    return {"count": count, "cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def _resident_mib() -> float:
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS counts bytes


TASKS: dict[str, Callable[[str, str], dict[str, float]]] = {
    task.__name__: task for task in (floor_walk, floor_full, cold, warm, edit, memory)
}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](sys.argv[2], sys.argv[3])))
