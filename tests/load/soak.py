"""The load as a program: `scripts/soak` runs it for as long as it is told, and prints what came of it."""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio

from folders import manifest_of
from load.corpus import Mutator, write_corpus
from load.driver import Load, Tally, summary
from load.peers import LostError, Peer
from load.vitals import Vitals, can_look, cpu_of, family_of
from serving import HttpServer, environment, http_server

# By how much the memory of the last third may exceed that of the middle third.
MOST_GROWTH = 0.15
CONVERGED_WITHIN = 20.0
_STEADY, _RESTLESS = 150, 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    tally: Tally
    vitals: Vitals
    mutations: dict[str, int]
    converged: float
    cpu: float
    words: str
    code: int

    def as_json(self) -> dict[str, Any]:
        samples = self.vitals.samples
        return {
            **summary(self.tally),
            "mutations": dict(sorted(self.mutations.items())),
            "converged_s": round(self.converged, 2),
            "server_cpu_s": round(self.cpu, 1),
            "rss_mib": [round(self.vitals.peak_rss(third) / 2**20, 1) for third in range(3)]
            if samples
            else [],
            "rss_growth": round(self.vitals.growth(), 3) if samples else None,
            "descriptors": [max(s.descriptors for s in self.vitals.third(third)) for third in range(3)],
            "threads": [max(s.threads for s in self.vitals.third(third)) for third in range(3)],
            "log_lines": len(self.words.splitlines()),
            "exit_code": self.code,
        }

    def failures(self) -> list[str]:
        """Return what must not be, in words."""
        found = list(self.tally.complaints)
        found += [f"status {status}" for status in self.tally.statuses if status >= 500]
        found += [kind for kind in ("lost", "lost inside an answer") if self.tally.outcomes[kind]]
        if self.vitals.samples and self.vitals.growth() > MOST_GROWTH:
            found.append(f"memory grew by {self.vitals.growth():.0%}")
        if self.converged > CONVERGED_WITHIN:
            found.append("what is served is not what is on disk")
        if "Traceback" in self.words:
            found.append("a traceback in the log")
        if self.code:
            found.append(f"the server ended with {self.code}")
        return found


def run(folder: Path, *, seconds: float, clients: int, workers: int, pause: float = 0.02) -> Outcome:
    """Serve a folder, load the server, change the folder meanwhile, and compare all that is seen."""
    root = folder / "skills"
    steady = write_corpus(root, steady=_STEADY, restless=_RESTLESS)
    with http_server(root, "--workers", str(workers), env=environment(folder / "home")) as server:
        load = Load(server.port, steady)
        with Vitals(server.pid, min(1.0, seconds / 30)) as vitals:
            if not can_look():
                vitals.samples.clear()
            with Mutator(root, pause=pause) as mutator:
                before = cpu_of(server.pid)
                tally = anyio.run(lambda: load.run(clients=clients, seconds=seconds))
                cpu = cpu_of(server.pid) - before
        converged = anyio.run(_converged, server, _on_disk(root))
        code = server.stop()
    return Outcome(tally, vitals, mutator.done, converged, cpu, server.words, code)


def _on_disk(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Return what must be published in the end: the files and digests of every skill, by URI."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in root.glob("*/*/SKILL.md"):
        uri = f"skill://{path.relative_to(root).as_posix()}"
        found[uri] = [(file.uri, file.digest) for file in manifest_of(path.parent, uri).files]
    return found


async def _converged(server: HttpServer, promised: dict[str, list[tuple[str, str]]]) -> float:
    """Return how long it takes until every skill is served as it is on disk; longer than allowed if never."""
    started = time.monotonic()
    while (taken := time.monotonic() - started) < CONVERGED_WITHIN:
        # Workers notice changes each in their own time, so each connection may see another state.
        if all([await _served(server.port) == promised for _ in range(4)]):
            return taken
        await anyio.sleep(0.1)
    return CONVERGED_WITHIN + 1


async def _served(port: int) -> dict[str, list[tuple[str, str]]]:
    peer, found, cursor = Peer(port, is_modern=True), dict[str, list[tuple[str, str]]](), dict[str, str]()
    try:
        while True:
            result = (await peer.ask("skills/list", **cursor)).message["result"]
            for entry in result["skills"]:
                found[entry["uri"]] = [(line["uri"], line["digest"]) for line in entry["resources"]]
            if "nextCursor" not in result:
                return found
            cursor = {"cursor": result["nextCursor"]}
    except LostError:
        return {}
    finally:
        await peer.close()


def workers_of(server: HttpServer) -> list[int]:
    """Return the processes that serve, as opposed to those that look after them."""
    members = family_of(server.pid)[1:]
    return [pid for pid in members if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description="Load a server while its folder changes."
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 runs with one and then with two")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    documents: dict[str, Any] = {}
    failures: list[str] = []
    for workers in [chosen.workers] if chosen.workers else [1, 2]:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(Path(folder), seconds=chosen.seconds, clients=chosen.clients, workers=workers)
        documents[f"workers={workers}"] = outcome.as_json()
        failures += [f"workers={workers}: {failure}" for failure in outcome.failures()]
        if not chosen.json:
            _print_table(f"{chosen.clients} clients, {chosen.seconds:g} s, workers: {workers}", outcome)
    if chosen.json:
        print(json.dumps({**documents, "failures": failures}, indent=2))  # noqa: T201
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)  # noqa: T201
    return 1 if failures else 0


def _leave(number: int, _frame: object) -> None:
    """End as after Ctrl-C, so that the server that was started is stopped."""
    sys.exit(128 + number)


def _print_table(title: str, outcome: Outcome) -> None:
    print(f"\n{title}")  # noqa: T201
    for name, value in outcome.as_json().items():
        rows = cast(dict[str, Any], value) if isinstance(value, dict) else {"": value}
        for key, item in rows.items():
            print(f"  {name:<14} {key:<36} {item}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
