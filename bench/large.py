"""One server with very many skills: how long it takes to start, to list, to find, and what it holds.

All skills lie in one folder, which is the largest directory there can be. Each
has two files, as half of all published skills have at most. Descriptions are
of made-up words, some in nearly all of them and most in few, as words are.
"""

import random
import sys
import time
from bisect import bisect
from collections.abc import Generator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from statistics import median, quantiles

from bench.candidates import ours
from bench.corpus import Shape, generate
from bench.measuring import ask
from bench.messages import Call, WrongAnswerError
from bench.processes import Server, opened, settled, started
from bench.rows import Row, limit_row, ratio_row, show
from bench.source import FULL_FLOOR, WALK_FLOOR, run
from skillwire.wire.core import write_cursor

MANY = 100_000
TIMEOUT = 120.0
# A cold start reads and hashes every file; a slow disk takes its time.
START_TIMEOUT = 1800.0
MEMORY_LIMIT_MIB = 1024
LISTING_SECONDS_PER_10_000 = 0.1
SEARCH_MS = 5.0

_QUERIES = 300
_REPEATS = 200
_SETTLE = 2.5
_VOCABULARY = 20_000
_SYLLABLES = [first + second for first in "bcdfgklmnprstvz" for second in "aeiou"]
_FLAT = "skill://team-00"


class Words:
    """Made-up words: the n-th is drawn n times less often than the first."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        made = random.Random(0)
        words: dict[str, None] = {}
        while len(words) < _VOCABULARY:
            words["".join(made.choice(_SYLLABLES) for _ in range(made.choice((2, 3, 3, 4))))] = None
        self._words = [*words]
        self._weights = [*accumulate(1 / number for number in range(1, _VOCABULARY + 1))]

    def draw(self, count: int) -> str:
        return " ".join(
            self._words[bisect(self._weights, self._chance.random() * self._weights[-1])]
            for _ in range(count)
        )

    def any(self, count: int) -> str:
        """Draw words that all are equally likely: what people look for is seldom what is everywhere."""
        return " ".join(self._chance.choice(self._words) for _ in range(count))


def measure_large(folder: Path, skills: int) -> list[Row]:
    root, cache = folder / "skills", folder / "cache"
    print(f"generating {skills} skills in one folder ...", file=sys.stderr)
    words = Words(1)
    shape = Shape(
        teams=1,
        references=1,
        has_script=False,
        describe=lambda number, _: f"Case {number}. {words.draw(20)}. Use when {words.draw(8)}.",
    )
    generate(root, skills, shape)
    time.sleep(_SETTLE)
    rows: list[Row] = []
    empty = _empty_start(folder)
    for kind in ("cold", "warm"):
        with _serving(root, cache, kind, empty, rows) as server:
            if kind == "warm":
                _measure(server, skills, rows)
    show(f"A server with {skills} skills and {skills * 2} files in one folder, over HTTP", rows)
    return rows


def _empty_start(folder: Path) -> float:
    """Return the CPU seconds of a start without skills; the first one finds modules to compile."""
    nothing = folder / "nothing"
    nothing.mkdir()
    used = 0.0
    for _ in range(2):
        with started(ours(nothing, "http", "find.toml"), http=True, timeout=TIMEOUT) as server:
            opened(server, time.monotonic() + TIMEOUT)
            used = server.cpu()
    return used


@contextmanager
def _serving(root: Path, cache: Path, kind: str, empty: float, rows: list[Row]) -> Generator[Server]:
    """Start a server, note what that took beside the least that it could, and keep it meanwhile."""
    task, name, budget = (
        ("floor_full", FULL_FLOOR, 1.5) if kind == "cold" else ("floor_walk", WALK_FLOOR, 2.0)
    )
    floor = run(task, root, cache)["cpu"]
    begun = time.monotonic()
    env = {"XDG_CACHE_HOME": str(cache)}
    command = ours(root, "http", "find.toml")
    with started(command, http=True, env=env, timeout=START_TIMEOUT) as server:
        opened(server, time.monotonic() + START_TIMEOUT)
        wall, cpu = time.monotonic() - begun, server.cpu() - empty
        what = f"{kind} start to the first answer, CPU beyond an empty server's"
        rows.append(ratio_row(what, [cpu], name, [floor], budget))
        rows.append(_told(f"the same, wall ({kind})", f"{wall:.1f} s", server))
        settled(server)
        rows.append(_told(f"at rest after a {kind} start", f"{server.cpu():.1f} s CPU in all", server))
        yield server


def _measure(server: Server, skills: int, rows: list[Row]) -> None:
    middle = f"{_FLAT}/case-{skills // 2:06d}"
    first_page, middle_page = (
        Call("skills/list"),
        Call("skills/list", cursor=write_cursor("skills/list", f"{middle}/SKILL.md")),
    )
    for what, call in (
        ("skills/list, first page", first_page),
        ("skills/list, a page in the middle", middle_page),
        ("skills/get", Call("skills/get", uri=f"{middle}/SKILL.md")),
        ("resources/read", Call("resources/read", uri=f"{middle}/SKILL.md")),
        ("directory with all of them, first page", Call("resources/directory/read", uri=_FLAT)),
    ):
        rows.append(_repeated(what, server, call))
    limit = LISTING_SECONDS_PER_10_000 * skills / 10_000 * 1000
    for what, member, call in (
        ("skills/list", "skills", first_page),
        ("resources/directory/read", "resources", Call("resources/directory/read", uri=_FLAT)),
    ):
        cpu, wall, pages = _walked(server, call, member, skills)
        row = limit_row(f"{what}, all {pages} pages ({wall:.1f} s wall), server CPU", cpu * 1000, "ms", limit)
        rows += [row, _told("memory after that", "", server)]
    rows += _searching(server)
    rows.append(limit_row("memory after all this", server.resident_mib(), "MiB", MEMORY_LIMIT_MIB))


def _repeated(what: str, server: Server, call: Call) -> Row:
    used, begun = server.cpu(), time.monotonic()
    ask(server, call, TIMEOUT)
    first, first_wall = server.cpu() - used, time.monotonic() - begun
    costs: list[float] = []
    for _ in range(_REPEATS):
        used = server.cpu()
        ask(server, call, TIMEOUT)
        costs.append(server.cpu() - used)
    words = f"{median(costs) * 1000:.2f} ms CPU, first {first * 1000:.1f} ({first_wall * 1000:.1f} wall)"
    return _told(what, words, server)


def _walked(server: Server, call: Call, member: str, skills: int) -> tuple[float, float, int]:
    """Follow the cursors of a listing; return CPU and wall seconds, and the number of pages."""
    seen, pages, method = 0, 0, call.method
    params = {"uri": _FLAT} if method == "resources/directory/read" else {}
    used, begun = server.cpu(), time.monotonic()
    while True:
        page = ask(server, call, TIMEOUT)
        seen, pages = seen + len(page[member]), pages + 1
        if not page.get("nextCursor"):
            break
        call = Call(method, **params, cursor=page["nextCursor"])
    if seen != skills:
        raise WrongAnswerError(f"{method} told of {seen} of {skills} skills")
    return server.cpu() - used, time.monotonic() - begun, pages


def _searching(server: Server) -> list[Row]:
    words = Words(2)
    begun, used = time.monotonic(), server.cpu()
    _find(server, words.any(2))
    built = f"{server.cpu() - used:.1f} s CPU ({time.monotonic() - begun:.1f} wall)"
    rows = [_told("find_skills, the first time", built, server)]
    for what, draw in (("rare words", words.any), ("words as they are written", words.draw)):
        walls: list[float] = []
        costs: list[float] = []
        for number in range(_QUERIES):
            begun, used = time.monotonic(), server.cpu()
            _find(server, draw(1 + number % 4))
            walls.append((time.monotonic() - begun) * 1000)
            costs.append((server.cpu() - used) * 1000)
        cpu, wall = quantiles(costs, n=100), quantiles(walls, n=100)
        told = f"p50 {cpu[49]:.1f}, p99 {cpu[98]:.1f} ms CPU ({wall[49]:.1f}, {wall[98]:.1f} wall)"
        is_judged = draw == words.any
        met = not is_judged or cpu[49] <= SEARCH_MS
        limit = f"p50 {SEARCH_MS:.0f} ms" if is_judged else ""
        memory = f"{server.resident_mib():.0f} MiB held"
        rows.append(Row(f"find_skills, {_QUERIES} queries, {what}", told, memory, None, limit, met))
    return rows


def _find(server: Server, query: str) -> None:
    result = ask(server, Call("tools/call", name="find_skills", arguments={"query": query}), TIMEOUT)
    if result.get("isError") or "skills" not in result["structuredContent"]:
        raise WrongAnswerError(str(result)[:500])


def _told(what: str, measured: str, server: Server) -> Row:
    """Report something that has no budget, with the memory the server holds; and now, for who waits."""
    print(f"{what}: {measured}, {server.resident_mib():.0f} MiB held", file=sys.stderr)
    return Row(what, measured, f"{server.resident_mib():.0f} MiB held", None, "", True)
