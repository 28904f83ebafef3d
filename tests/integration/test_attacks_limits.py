"""Servers that are expensive to list, to look at or to keep. The numbers are those of the threat model."""

import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from hostile.exhaustion import Patterns, bulky, filling
from hostile.hosting import LABEL, REFUNDS, REPORTS, User, config, hosting, storage_in, visiting
from hostile.running import hostile
from skillwire.host import HostLimits
from skillwire.host.approval.consent import PromptLimits
from skillwire.host.calls.exchange import DEFAULT_ENTRIES, DEFAULT_PAGES
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion
from skillwire.host.state.content import MAX_BYTES_PER_ORIGIN, MAX_CACHE_BYTES
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict

twice = pytest.mark.parametrize(("transport", "era"), [("stdio", "modern"), ("http", "legacy")])

HONEST = "honest"
OWN = [f"{HONEST}/refunds", f"{HONEST}/reports"]
PATIENT = HostLimits(prompts=PromptLimits(questions_per_server=1000), wait_seconds=60)
KIB = 1024


def codes(host: Host) -> dict[str, str]:
    """Return what is wrong with each server."""
    return {
        status.origin.label: status.problem.code if status.problem is not None else ""
        for status in host.view.servers
    }


# Attack 54: the limits on a listing, as they are


@pytest.mark.requirement("LIST-18")
@pytest.mark.requirement("LIM-05")
async def test_a_listing_of_more_entries_than_anyone_needs_is_cut_off_at_the_limit(tmp_path: Path) -> None:
    """Attack 54."""
    async with (
        hostile("huge_listing", entries=DEFAULT_ENTRIES + 1, page=10_000) as huge,
        hostile("honest", transport="http") as honest,
        hosting(
            tmp_path,
            [config(huge, seconds=60), config(honest, HONEST)],
            user=User(),
            limits=HostLimits(wait_seconds=0.0),
        ) as host,
    ):
        await host.refresh([HONEST])
        mine = await host.load(OWN[0])
        await host.refresh()
        found = [skill.reference for skill in host.view.skills]
        again = await host.load(OWN[1])

        assert "Read [the policy]" in mine.text and "Write the report." in again.text
        assert codes(host) == {LABEL: "endless-listing", HONEST: ""}
        assert len(found) == DEFAULT_ENTRIES + 2 and {*OWN} < {*found}
        assert len(huge.requests("skills/list")) == DEFAULT_ENTRIES // 10_000 + 1
        assert huge.reads() == []


@pytest.mark.requirement("LIST-18")
async def test_a_listing_of_more_pages_than_anyone_needs_is_cut_off_at_the_limit(tmp_path: Path) -> None:
    """Attack 54."""
    async with (
        hostile("huge_listing", era="modern", entries=DEFAULT_PAGES + 500, page=1) as huge,
        hostile("honest", transport="http") as honest,
        hosting(tmp_path, [config(huge, seconds=60), config(honest, HONEST)], user=User()) as host,
    ):
        await host.refresh()
        mine = await host.load(OWN[0])

        assert codes(host) == {LABEL: "endless-listing", HONEST: ""}
        assert len(host.view.skills) == DEFAULT_PAGES + 2
        assert len(huge.requests("skills/list")) == DEFAULT_PAGES
        assert "Read [the policy]" in mine.text


# Attack 59: patterns


@contextmanager
def cpu_time_limited(seconds: float) -> Generator[None]:
    """Break off what takes this program so much CPU time: a pattern that is matched may never end."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it took more than {seconds:g} seconds of CPU time")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


RUN = "a" * 200 + "!"
CALLS = [
    *(ToolCall(name, ToolKind.EXECUTE) for name in ("Bash", "bash", "Bash(git:a)", "B*", "*", ".*", RUN)),
    *(ToolCall(name, ToolKind.WRITE, path=f"/workspace/{RUN}.a") for name in ("Write", "Edit", RUN)),
    *(ToolCall(name) for name in ("Bash|Write", "{Bash,Write}", "a")),
]


async def costs(
    folder: Path, form: str, transport: str, era: str
) -> tuple[float, dict[str, tuple[str, ...]], list[Verdict]]:
    """Use every skill of `Patterns` in every way; return the CPU time, the tools, and what the gate says."""
    started = time.process_time()
    tools: dict[str, tuple[str, ...]] = {}
    verdicts: list[Verdict] = []
    async with visiting(
        "patterns", folder, transport=transport, era=era, form=form, options={"limits": PATIENT}
    ) as visit:
        host = visit.host
        assert visit.references() == sorted([*(f"{LABEL}/{name}" for name in Patterns.values), REPORTS])
        for name in Patterns.values:
            reference = f"{LABEL}/{name}"
            loaded = await host.load(reference)
            assert f"{name}." in loaded.text
            assert (await host.explain(reference)).can_be_loaded
            await host.preview(reference)
            tools[name] = await host.request_allowed_tools(reference)
            verdicts += [host.gate(call).verdict for call in CALLS]
            assert host.gate(ToolCall("Read", ToolKind.EXECUTE)).verdict is Verdict.ALLOW
            host.close(reference)
        assert {*visit.user.occasions} == {Occasion.FIRST, Occasion.ALLOWED_TOOLS}
    return time.process_time() - started, tools, verdicts


@twice
@pytest.mark.requirement("SEC-10")
@pytest.mark.requirement("SEC-05")
async def test_patterns_in_frontmatter_match_nothing_and_cost_no_more_than_letters(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 59."""
    with cpu_time_limited(30):
        await costs(tmp_path / "warm", "harmless", transport, era)
        harmless, _, _ = await costs(tmp_path / "harmless", "harmless", transport, era)
        hostile_cost, tools, verdicts = await costs(tmp_path / "hostile", "", transport, era)

    assert {*verdicts} == {Verdict.ASK}
    assert tools == {name: ("Read",) for name in Patterns.values}
    assert hostile_cost < 4 * harmless + 1, f"{hostile_cost:.2f} s, and {harmless:.2f} s with letters"


@pytest.mark.requirement("LIST-10")
@pytest.mark.requirement("LIST-18")
async def test_patterns_in_entries_that_break_rules_are_refused_as_fast_as_letters(tmp_path: Path) -> None:
    """Attack 59."""
    spent: dict[str, float] = {}
    with cpu_time_limited(30):
        for form in ("harmless", "hostile"):
            started = time.process_time()
            async with visiting("odd_patterns", tmp_path / form, era="modern", form=form) as visit:
                for _ in range(10):
                    await visit.host.refresh(force=True)
                assert visit.references() == [REFUNDS, REPORTS]
                assert visit.codes().count("invalid-entry") == len(Patterns.values)
            spent[form] = time.process_time() - started

    assert spent["hostile"] < 4 * spent["harmless"] + 1, spent


# Attack 79: what is kept on the disk

BLOCK = 4 * KIB
QUOTA = 200 * KIB


def kept(folder: Path) -> dict[str, int]:
    """Return what the files in the cache take of the disk, for each origin."""
    found: dict[str, int] = {}
    for path in storage_in(folder).cache.glob("*/*/*"):
        size = path.stat().st_size
        found[path.parts[-3]] = found.get(path.parts[-3], 0) + max(1, -(-size // BLOCK)) * BLOCK
    return found


async def read_all(host: Host, label: str, number: int, files: int, size: int) -> None:
    """Load a bulky skill and read every file of it; each has to be what it should be."""
    reference = f"{label}/bulk-{number:03}"
    await host.load(reference)
    for file in range(files):
        assert await host.read_skill_bytes(reference, f"data/{file:03}.bin") == filling(number, file, size)


@twice
@pytest.mark.parametrize(("count", "files", "size"), [(6, 8, 16 * KIB), (2, 60, 8)], ids=["large", "many"])
@pytest.mark.requirement("CACHE-01")
@pytest.mark.requirement("LIM-06")
async def test_a_server_fills_its_own_share_of_the_disk_and_nobody_elses(
    count: int, files: int, size: int, transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 79."""
    options = {"limits": replace(PATIENT, cache_bytes_per_server=QUOTA, cache_bytes=3 * QUOTA)}
    async with (
        hostile("bulky", transport=transport, era=era, count=count, files=files, bytes=size) as bulk,
        hostile("honest", transport="http") as honest,
        hosting(tmp_path, [config(bulk), config(honest, HONEST)], user=User(), **options) as host,
    ):
        await host.load(OWN[0])
        most = 0
        for number in range(count):
            await read_all(host, LABEL, number, files, size)
            most = max(most, *kept(tmp_path).values())
            assert most <= QUOTA, number
        host.close(OWN[0])
        await host.load(OWN[0])
        before = len(bulk.reads())
        await read_all(host, LABEL, 0, files, size)

        # It was used up, the honest server's file is still there, and what went is fetched again.
        assert most > QUOTA * 3 // 4
        assert len(honest.reads()) == 1
        assert len(bulk.reads()) == before + files
        assert max(kept(tmp_path).values()) <= QUOTA


@pytest.mark.requirement("CACHE-01")
async def test_what_is_used_again_and_again_stays_when_the_disk_is_full(tmp_path: Path) -> None:
    """Attack 79."""
    options = {"limits": replace(PATIENT, cache_bytes_per_server=QUOTA, cache_bytes=3 * QUOTA)}
    async with visiting(
        "bulky", tmp_path, transport="http", count=4, files=8, bytes=16 * KIB, options=options
    ) as visit:
        favourite, forgotten = (bulky(0, 8, 16 * KIB).root + f"/data/{file}.bin" for file in ("000", "001"))
        await read_all(visit.host, LABEL, 0, 8, 16 * KIB)
        for number in range(1, 4):
            reference = f"{LABEL}/bulk-{number:03}"
            await visit.host.load(reference)
            for file in range(8):
                await visit.host.read_skill_bytes(reference, f"data/{file:03}.bin")
                await visit.host.read_skill_bytes(f"{LABEL}/bulk-000", "data/000.bin")
        await visit.host.read_skill_bytes(f"{LABEL}/bulk-000", "data/001.bin")

        assert visit.peer.reads().count(favourite) == 1
        assert visit.peer.reads().count(forgotten) == 2


@pytest.mark.requirement("CACHE-01")
async def test_many_servers_together_stay_within_one_quota(tmp_path: Path) -> None:
    """Attack 79."""
    options = {"limits": replace(PATIENT, cache_bytes_per_server=QUOTA, cache_bytes=2 * QUOTA)}
    labels = ("one", "two", "three", "four")
    async with (
        hostile("bulky", transport="http", count=1, files=10, bytes=16 * KIB) as bulk,
        hosting(tmp_path, [config(bulk, label) for label in labels], user=User(), **options) as host,
    ):
        for label in labels:
            await read_all(host, label, 0, 10, 16 * KIB)
            assert sum(kept(tmp_path).values()) <= 2 * QUOTA, label
        used = kept(tmp_path)
        before = len(bulk.reads())
        await read_all(host, "four", 0, 10, 16 * KIB)

        assert sum(used.values()) > QUOTA and max(used.values()) <= QUOTA
        # Those who came last have everything, so those who came first have lost it.
        assert len(bulk.reads()) == before


@pytest.mark.requirement("CACHE-01")
async def test_a_file_beyond_a_servers_share_is_used_and_not_kept(tmp_path: Path) -> None:
    """Attack 79."""
    options = {"limits": replace(PATIENT, cache_bytes_per_server=QUOTA, cache_bytes=3 * QUOTA)}
    async with visiting(
        "bulky", tmp_path, era="legacy", count=1, files=1, bytes=QUOTA + 1, options=options
    ) as visit:
        await read_all(visit.host, LABEL, 0, 1, QUOTA + 1)
        await read_all(visit.host, LABEL, 0, 1, QUOTA + 1)

        assert sum(kept(tmp_path).values()) == BLOCK, "only the text is kept"
        assert len(visit.peer.reads()) == 3


@pytest.mark.parametrize("kind", ["server", "all"])
@pytest.mark.requirement("CACHE-01")
async def test_the_quotas_nobody_changed_hold_too(kind: str, tmp_path: Path) -> None:
    """Attack 79.

    What was read earlier is played by files that have a size and take no room.
    """
    quota = MAX_BYTES_PER_ORIGIN if kind == "server" else MAX_CACHE_BYTES
    async with hostile("bulky", transport="http", count=2, files=2, bytes=16 * KIB) as bulk:
        async with hosting(tmp_path, [config(bulk)], user=User()) as host:
            await read_all(host, LABEL, 0, 2, 16 * KIB)
        [own] = kept(tmp_path)
        fill(
            storage_in(tmp_path).cache, [own] if kind == "server" else [f"{n:064x}" for n in range(6)], quota
        )
        before = sum(kept(tmp_path).values())
        async with hosting(tmp_path, [config(bulk)], user=User()) as host:
            await read_all(host, LABEL, 1, 2, 16 * KIB)
        after = kept(tmp_path)
        async with hosting(tmp_path, [config(bulk)], user=User()) as host:
            await read_all(host, LABEL, 0, 2, 16 * KIB)
            await read_all(host, LABEL, 1, 2, 16 * KIB)
        reads = bulk.reads()

    assert before > quota >= sum(after.values())
    # What the server has just been asked for was used last, and is still there.
    assert len(reads) == len({*reads}) == 6


def fill(cache: Path, origins: list[str], size: int) -> None:
    """Put old files of 16 MiB into folders of the cache, together a little more than `size`."""
    each = 16 * 1024 * KIB
    for number in range(size // each + 1):
        folder = cache / origins[number % len(origins)] / "ab"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"ab{number:062x}"
        path.touch(0o600)
        os.truncate(path, each)
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
