"""Skill servers side by side: ours, ours without its fast paths, and other people's."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.table import Table

from bench.candidates import PEERS, Candidate
from bench.measuring import ask, edit, hot, list_all
from bench.messages import Call
from bench.processes import Server, StartError, opened, started
from bench.rows import console, median_ratio

SIZES = (100, 1_000, 10_000)
ROUNDS = 3
# What takes longer is not waited for.
TIMEOUT = 10
EDIT_PATIENCE = 5
START_TIMEOUT = 60


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, or why there is none."""

    text: str
    value: float | None = None
    floor_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class ComparedServer:
    """What was measured of one server, over one transport, with so many skills."""

    server: str
    transport: str
    skills: int
    read: Figure
    page: Figure
    everything: Figure
    resident: Figure
    edit: Figure


def measure_peers(root: Path, skills: int) -> list[ComparedServer]:
    found: list[ComparedServer] = []
    for candidate in PEERS:
        if missing := candidate.missing():
            print(f"skipped {candidate.name}: {missing}", file=sys.stderr)
            continue
        for transport in ("http", "stdio"):
            print(f"measuring {candidate.name}, {transport}, {skills} skills ...", file=sys.stderr)
            found.append(_measure(candidate, transport, root, skills))
    return found


def _measure(candidate: Candidate, transport: str, root: Path, skills: int) -> ComparedServer:
    env = {"XDG_CACHE_HOME": str(root.with_name(f"{root.name}-cache")), **dict(candidate.env)}
    command = candidate.command(root, transport)
    try:
        with started(command, http=transport == "http", env=env, timeout=START_TIMEOUT) as server:
            opened(server, time.monotonic() + START_TIMEOUT)
            return _Sitting(server, candidate, transport, root, skills).measure()
    except (StartError, TimeoutError):
        late = Figure(f"no start in {START_TIMEOUT} s")
        return ComparedServer(candidate.name, transport, skills, late, late, late, late, late)


class _Sitting:
    """One running server, measured in one way after the other until it is too slow."""

    def __init__(self, server: Server, candidate: Candidate, transport: str, root: Path, skills: int) -> None:
        self._server, self._candidate, self._transport = server, candidate, transport
        self._root, self._skills = root, skills
        self._is_stuck = False

    def measure(self) -> ComparedServer:
        candidate = self._candidate
        read = self._unless_stuck(lambda: self._hot(candidate.read))
        page = self._unless_stuck(lambda: self._hot(candidate.page))
        everything = self._unless_stuck(self._list_all)
        held = self._server.resident_mib()
        resident = Figure(f"{held:,.0f}", held)
        seen = self._unless_stuck(self._edit)
        return ComparedServer(
            candidate.name, self._transport, self._skills, read, page, everything, resident, seen
        )

    def _unless_stuck(self, measure: Callable[[], Figure]) -> Figure:
        """Measure, unless the server is still busy with a question that nobody waits for any more."""
        if self._is_stuck:
            return Figure("not asked")
        try:
            return measure()
        except TimeoutError:
            self._is_stuck = True
            return Figure(f"over {TIMEOUT} s")

    def _hot(self, call: Call) -> Figure:
        ask(self._server, call, TIMEOUT)  # The first time may prepare something.
        runs = hot(self._server, call, self._transport, rounds=ROUNDS, timeout=TIMEOUT)
        cost, ratio = median(runs.server), median_ratio(runs.server, runs.floor)
        return Figure(f"{cost:,.0f} ({ratio:,.1f}x)", cost, ratio)

    def _list_all(self) -> Figure:
        cpu = list_all(self._server, self._candidate, self._skills, TIMEOUT).cpu * 1000
        return Figure(f"{cpu:,.0f}", cpu)

    def _edit(self) -> Figure:
        try:
            spent = edit(self._server, self._candidate, self._root, EDIT_PATIENCE)
        except TimeoutError:
            return Figure(f"not in {EDIT_PATIENCE} s")
        only = "" if self._candidate.gets else ", read only"
        return Figure(f"{spent.wall * 1000:,.0f} / {spent.cpu * 1000:,.0f}{only}", spent.wall * 1000)


def show_peers(peers: list[ComparedServer]) -> None:
    table = Table(title="Skill servers side by side: server CPU, and in how many times that of a raw floor")
    columns = ("skills", "", "server", "read 4 KB, us", "page of 100, us", "list all, ms", "RSS, MiB")
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "server") else "right")
    table.add_column("edit, wall / CPU ms", justify="right")
    order = sorted(peers, key=lambda peer: (peer.skills, peer.transport))
    for peer, following in zip(order, [*order[1:], None], strict=True):
        figures = (peer.read, peer.page, peer.everything, peer.resident, peer.edit)
        last = following is None or (following.skills, following.transport) != (peer.skills, peer.transport)
        texts = [figure.text for figure in figures]
        table.add_row(f"{peer.skills:,}", peer.transport, peer.server, *texts, end_section=last)
    console().print(table)
