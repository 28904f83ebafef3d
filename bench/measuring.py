"""What is measured about a running server: CPU per hot request, a full listing, an edit becoming visible."""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from bench.candidates import EDITED, FIRST, Candidate, floor_command
from bench.messages import Call, Expected, WrongAnswerError, always, next_number, repeats, result
from bench.processes import Server, started

TIMES = 40
TURNS = 60
# A slow server gets fewer and shorter turns; if it answers once in this time, then only one.
_ROUND_SECONDS = 1.0
_POLL = 0.02
# What an edit makes the server do after its answers are right is counted for this long.
_AFTER = 0.5

Result: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hot:
    """CPU microseconds per request, of a server and of its floor, in runs that took turns."""

    server: list[float]
    floor: list[float]


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds on the clock, and of the server's CPU."""

    wall: float
    cpu: float


def ask(server: Server, call: Call, timeout: float) -> Result:
    """Return the result of one request."""
    number = next_number()
    return result(server.link.ask(call, number, time.monotonic() + timeout), number)


def hot(server: Server, call: Call, transport: str, *, rounds: int, timeout: float) -> Hot:
    """Send one request again and again, to the server and to a floor that sends the same bytes.

    A round alternates between the two in short turns, and the middle turn of
    each counts. All of it stays on one core: a request that wakes another core
    costs several times as much, and whether it does is up to the system, not
    to what is measured.

    Raises:
        TimeoutError: A turn took longer than `timeout` seconds.
    """
    number = next_number()
    begun = time.monotonic()
    body = server.link.ask(call, number, begun + timeout)
    affordable = int(_ROUND_SECONDS / (time.monotonic() - begun))
    times = min(max(affordable, 1), TIMES)
    turns = min(max(affordable // times, 1), TURNS)
    with floor(body, transport) as least:
        loads = (
            Load(server, call, times, repeats(body, number), timeout),
            Load(least, call, TIMES, always(body), timeout),
        )
        with on_one_core(server, least):
            if affordable:
                middle(loads, turns)  # Both warm up.
            runs = [middle(loads, turns) for _ in range(rounds if affordable else 1)]
    return Hot([run[0] for run in runs], [run[1] for run in runs])


def cold(server: Server, transport: str, root: Path, files: Sequence[str], timeout: float) -> Hot:
    """Read every file once, from the server and from a floor that opens and hashes it for each request.

    The two take turns of `TIMES` files, on one core; the first turn warms up and
    does not count. `files` are paths below `root`, and of all but SKILL.md.

    Raises:
        TimeoutError: A read took longer than `timeout` seconds.
    """
    costs: tuple[list[float], list[float]] = [], []
    with started(floor_command(root, transport), http=transport == "http") as least:
        with on_one_core(server, least):
            for start in range(0, len(files), TIMES):
                turn = files[start : start + TIMES]
                for reader, spent in zip((server, least), costs, strict=True):
                    spent.append(_read_each(reader, root, turn, timeout))
    return Hot(*(spent[1:] for spent in costs))


def _read_each(server: Server, root: Path, files: Sequence[str], timeout: float) -> float:
    """Read files; return the CPU microseconds the server spent on each."""
    calls = [Call("resources/read", uri=f"skill://{file}") for file in files]
    used = server.cpu()
    answers = [ask(server, call, timeout) for call in calls]
    spent = (server.cpu() - used) / len(files) * 1e6
    for file, answer in zip(files, answers, strict=True):
        if answer["contents"][0]["text"] != (root / file).read_text("utf-8"):
            raise WrongAnswerError(f"{file} reads differently")
    return spent


@dataclass(frozen=True, slots=True)
class Load:
    """A request to send so many times in a turn, and what must come back."""

    server: Server
    call: Call
    times: int
    expected: Expected
    timeout: float

    def carry(self) -> float:
        """Send the requests of one turn; return the CPU microseconds the server spent on each."""
        used = self.server.cpu()
        self.server.link.repeat(self.call, self.times, self.expected, time.monotonic() + self.timeout)
        return (self.server.cpu() - used) / self.times * 1e6


def middle(loads: Sequence[Load], turns: int) -> list[float]:
    """Carry loads in turns; return what a request of each cost in its middle turn."""
    costs = [[load.carry() for load in loads] for _ in range(turns)]
    return [median(column) for column in zip(*costs, strict=True)]


@contextmanager
def on_one_core(*servers: Server) -> Generator[None]:
    """Keep this process and all threads of the servers on one core while the block lasts."""
    before = os.sched_getaffinity(0)
    core = {min(before)}
    os.sched_setaffinity(0, core)
    for server in servers:
        server.stay_on(core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for server in servers:
            server.stay_on(before)


@contextmanager
def floor(body: bytes, transport: str) -> Generator[Server]:
    """Run a floor that answers every request with these bytes."""
    with tempfile.TemporaryDirectory(prefix="skillwire-bench-") as folder:
        answer = Path(folder, "answer.json")
        answer.write_bytes(body)
        with started(floor_command(answer, transport), http=transport == "http") as server:
            yield server


def list_all(server: Server, candidate: Candidate, skills: int, timeout: float) -> Spent:
    """Follow the cursors of a listing to its end, and check that everything was there.

    Raises:
        TimeoutError: It took longer than `timeout` seconds.
    """
    until = time.monotonic() + timeout
    count, call = 0, candidate.page
    begun, used = time.monotonic(), server.cpu()
    while True:
        page = ask(server, call, until - time.monotonic())
        count += len(page[candidate.listed])
        if not page.get("nextCursor"):
            break
        call = Call(candidate.listing, cursor=page["nextCursor"])
    spent = Spent(time.monotonic() - begun, server.cpu() - used)
    if count != skills * candidate.per_skill:
        raise WrongAnswerError(f"{count} lines listed for {skills} skills")
    return spent


def edit(server: Server, candidate: Candidate, root: Path, timeout: float) -> Spent:
    """Change one file and ask until every way of asking shows the new content.

    Raises:
        TimeoutError: The change was not visible within `timeout` seconds.
    """
    text = f"edited at {time.time_ns()}\n"
    until = time.monotonic() + timeout
    begun, used = time.monotonic(), server.cpu()
    Path(root, FIRST, EDITED).write_text(text, "utf-8")
    for call, shows in _ways_to_see(candidate, text):
        while not shows(ask(server, call, until - time.monotonic())):
            time.sleep(_POLL)
    wall = time.monotonic() - begun
    time.sleep(_AFTER)
    return Spent(wall, server.cpu() - used)


def _ways_to_see(candidate: Candidate, text: str) -> Iterable[tuple[Call, Callable[[Result], bool]]]:
    """Return requests, and what their results must satisfy once a file holds this text.

    The listing comes first: unlike a read, it gives the server no hint where to look.
    """
    main, file = f"{candidate.skill}/SKILL.md", f"{candidate.skill}/{EDITED}"
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def described(entry: Result) -> bool:
        return any(line["uri"] == file and line["digest"] == digest for line in entry["resources"])

    if candidate.gets:
        yield candidate.page, lambda page: any(e["uri"] == main and described(e) for e in page["skills"])
        yield Call("skills/get", uri=main), lambda got: described(got["skill"])
    yield Call("resources/read", uri=file), lambda read: read["contents"][0]["text"] == text
