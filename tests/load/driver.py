"""Many clients at once, each checking everything it is told."""

import random
import time
from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.client import Client
from mcp.shared.exceptions import MCPError

import talking
from load.corpus import RESTLESS, STEADY, WHOLE, digest_of, is_whole
from load.peers import Json, LostError, Peer, Reply
from skillwire.core.errors import INTERNAL_ERROR, INVALID_PARAMS

Line = tuple[str, int]
"""What a manifest promises of a file: its digest and its size."""

# The upper ends of the histogram's buckets, in seconds: four to every doubling or so.
_BUCKETS = [0.0002 * 1.2**power for power in range(80)]
_MOST_COMPLAINTS = 20


class Latencies:
    """How long answers took, in buckets that grow by a fifth each."""

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0.0
        self._buckets = [0] * (len(_BUCKETS) + 1)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.longest = max(self.longest, seconds)
        self._buckets[bisect(_BUCKETS, seconds)] += 1

    def quantile(self, part: float) -> float:
        """Return the time within which this part of the answers came."""
        left = part * self.count
        for end, number in zip([*_BUCKETS, self.longest], self._buckets, strict=True):
            left -= number
            if left <= 0:
                return min(end, self.longest)
        return self.longest


@dataclass(slots=True)
class Tally:
    """What all clients of a run saw together."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    requests: Counter[str] = field(default_factory=Counter[str])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    latencies: dict[str, Latencies] = field(default_factory=dict[str, Latencies])
    complaints: list[str] = field(default_factory=list[str])
    published: dict[str, set[Line]] = field(default_factory=dict[str, set[Line]])
    lost_at: list[float] = field(default_factory=list[float])

    def note(self, method: str, reply: Reply) -> None:
        self.statuses[reply.status] += 1
        self.requests[method] += 1
        self.latencies.setdefault(method, Latencies()).add(reply.seconds)

    def complain(self, kind: str, what: str) -> None:
        """Count something that must not happen, and keep the first few in words."""
        self.outcomes[kind] += 1
        if len(self.complaints) < _MOST_COMPLAINTS:
            self.complaints.append(f"{kind}: {what}")

    @property
    def total(self) -> int:
        return sum(self.requests.values())


class Load:
    """Clients that list, get and read until told to stop, and a tally of what came of it.

    `steady` is what every file of the part that nobody touches must hold, by URI.
    """

    def __init__(self, port: int, steady: Mapping[str, bytes]) -> None:
        self.tally = Tally()
        self._port = port
        self._steady = {uri: (digest_of(content), len(content)) for uri, content in steady.items()}
        self._steady_skills = {uri for uri in steady if uri.endswith("/SKILL.md")}
        self._until = 0.0

    async def run(self, *, clients: int, seconds: float, sdk_clients: int = 2) -> Tally:
        """Run for a while; half of the clients are of each generation."""
        self._until = time.monotonic() + seconds
        with anyio.fail_after(seconds + 60):
            async with anyio.create_task_group() as group:
                for number in range(clients):
                    group.start_soon(self._client, number)
                for number in range(sdk_clients):
                    group.start_soon(self._sdk_client, talking.MODES[number % 2], number)
        return self.tally

    def stop(self) -> None:
        self._until = 0.0

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

    async def _client(self, number: int) -> None:
        peer, choose = Peer(self._port, is_modern=number % 2 == 0), random.Random(number)
        try:
            while not self._is_over:
                try:
                    await self._round(peer, choose)
                except LostError as error:
                    self.tally.outcomes["lost inside an answer" if error.began else "lost"] += 1
                    self.tally.lost_at.append(time.monotonic())
                    await anyio.sleep(0.05)
        finally:
            await peer.close()

    async def _round(self, peer: Peer, choose: random.Random) -> None:
        """Do what a host does: list everything, look at a few skills, read some of their files."""
        listed = await self._listing(peer, "skills/list", "skills")
        for entry in listed.values():
            self._publish(entry)
        if missing := self._steady_skills - listed.keys():
            self.tally.complain("steady skill not listed", min(missing))
        if choose.random() < 0.2:
            await self._listing(peer, "resources/list", "resources")
        restless = [uri for uri in listed if uri.startswith(f"skill://{RESTLESS}/")]
        steady = sorted(self._steady_skills)
        for uri in choose.sample(restless, min(6, len(restless))) + choose.sample(
            steady, min(6, len(steady))
        ):
            if self._is_over:
                return
            await self._look_at(peer, uri, choose)

    async def _look_at(self, peer: Peer, uri: str, choose: random.Random) -> None:
        before = await self._lines(peer, uri)
        if before is None:
            return
        if choose.random() < 0.3:
            await self._directory(peer, uri)
        for file in choose.sample(sorted(before), min(2, len(before))):
            reply = await self._ask(peer, "resources/read", uri=file)
            if reply.code is not None:
                self._judge_refusal(file, reply)
                continue
            content = talking.content_of(reply.message["result"]["contents"][0])
            await self._judge(peer, uri, file, content, before[file])

    async def _judge(self, peer: Peer, uri: str, file: str, content: bytes, before: Line) -> None:
        """Compare bytes with the entry got before, else with the one got right after, as a host would."""
        line = digest_of(content), len(content)
        if file.endswith(f"/{WHOLE}") and not is_whole(content):
            self.tally.complain("half a file", file)
        if file in self._steady and line != self._steady[file]:
            self.tally.complain("wrong bytes of a steady file", file)
        if line == before:
            self.tally.outcomes["read as promised"] += 1
            return
        after = await self._lines(peer, uri)
        if after is not None and after.get(file) == line:
            self.tally.outcomes["read as promised by the next entry"] += 1
        elif line in self.tally.published.get(file, ()):
            self.tally.outcomes["overtaken twice"] += 1
        elif after is None or file not in after:
            self.tally.outcomes["read and then removed"] += 1
        else:
            self.tally.complain("digest mismatch", f"{file}: {line}, {before} before, {after[file]} after")

    def _judge_refusal(self, uri: str, reply: Reply) -> None:
        if uri in self._steady:
            self.tally.complain("steady file refused", f"{uri}: {reply.message}")
        elif reply.code == INVALID_PARAMS:
            self.tally.outcomes["gone"] += 1
        elif reply.code == INTERNAL_ERROR:
            self.tally.outcomes["changing"] += 1
        else:
            self.tally.complain("unexpected error", f"{uri}: {reply.message}")

    async def _lines(self, peer: Peer, uri: str) -> dict[str, Line] | None:
        """Return what the entry of a skill promises, by file; None when there is no such skill."""
        reply = await self._ask(peer, "skills/get", uri=uri)
        if reply.code is not None:
            self._judge_refusal(uri, reply)
            return None
        return self._publish(reply.message["result"]["skill"])

    def _publish(self, entry: Json) -> dict[str, Line]:
        """Remember what an entry promises: bytes may be compared with it later."""
        lines: dict[str, Line] = {}
        for item in entry["resources"]:
            lines[item["uri"]] = item["digest"], item["size"]
            self.tally.published.setdefault(item["uri"], set()).add(lines[item["uri"]])
        if list(lines) != sorted(lines) or len(lines) != len(entry["resources"]):
            self.tally.complain("manifest out of order", entry["uri"])
        return lines

    async def _directory(self, peer: Peer, uri: str) -> None:
        folder = uri.removesuffix("/SKILL.md")
        reply = await self._ask(peer, "resources/directory/read", uri=folder)
        if reply.code is not None:
            self._judge_refusal(uri, reply)
            return
        children = [child["uri"] for child in reply.message["result"]["resources"]]
        if children != sorted(set(children)) or any(not child.startswith(folder) for child in children):
            self.tally.complain("directory out of order", uri)
        if uri in self._steady and len(children) != 3:
            self.tally.complain("steady directory differs", f"{uri}: {children}")

    async def _listing(self, peer: Peer, method: str, key: str) -> dict[str, Json]:
        """Return everything a listing holds by URI, from all its pages, which must be in order."""
        found: dict[str, Json] = {}
        cursor: dict[str, str] = {}
        last = ""
        while True:
            reply = await self._ask(peer, method, **cursor)
            if reply.code is not None:
                self.tally.complain("listing refused", f"{method}: {reply.message}")
                return found
            result = reply.message["result"]
            for item in result[key]:
                if item["uri"] <= last:
                    self.tally.complain("listing out of order", f"{method}: {item['uri']} after {last}")
                last = item["uri"]
                found[last] = item
            if "nextCursor" not in result:
                return found
            cursor = {"cursor": result["nextCursor"]}

    async def _ask(self, peer: Peer, method: str, **params: str) -> Reply:
        reply = await peer.ask(method, **params)
        self.tally.note(method, reply)
        if reply.status >= 500:
            self.tally.complain("5xx", f"{reply.status} for {method} {params}")
        elif not reply.message:
            self.tally.complain("no JSON-RPC", f"{reply.status} for {method} {params}")
            raise LostError(began=True)
        return reply

    async def _sdk_client(self, mode: str, number: int) -> None:
        """A client of the SDK's own, at leisure: one round after another, and a pause."""
        choose, url = random.Random(1000 + number), f"http://127.0.0.1:{self._port}/mcp"
        steady = sorted(uri for uri in self._steady if f"/{STEADY}/" in uri)
        try:
            async with Client(url, mode=mode, cache=None) as client:
                while not self._is_over:
                    await self._sdk_round(client, choose, steady)
                    await anyio.sleep(0.2)
        except* (MCPError, OSError, anyio.BrokenResourceError) as errors:
            self.tally.complain("SDK client failed", repr(errors.exceptions[0]))

    async def _sdk_round(self, client: Client, choose: random.Random, steady: list[str]) -> None:
        entries = await talking.skills_of(client)
        for file in choose.sample(steady, min(3, len(steady))):
            content = await talking.read(client, file)
            if (digest_of(content), len(content)) != self._steady[file]:
                self.tally.complain("wrong bytes for an SDK client", file)
        self.tally.outcomes["rounds of SDK clients"] += 1
        if missing := self._steady_skills - entries.keys():
            self.tally.complain("steady skill not listed to an SDK client", min(missing))


def summary(tally: Tally) -> dict[str, Any]:
    """Return a tally as plain values."""
    return {
        "requests": tally.total,
        "by_method": dict(sorted(tally.requests.items())),
        "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
        "outcomes": dict(sorted(tally.outcomes.items())),
        "latency_ms": {
            method: {
                "p50": round(taken.quantile(0.5) * 1000, 1),
                "p99": round(taken.quantile(0.99) * 1000, 1),
                "max": round(taken.longest * 1000, 1),
            }
            for method, taken in sorted(tally.latencies.items())
        },
        "complaints": tally.complaints,
    }
