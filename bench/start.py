"""The budget of a start: from starting `serve` to its first answer, against a bare SDK server."""

import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from bench.candidates import ours, ours_at
from bench.messages import Call, next_number, result
from bench.processes import StartError, started
from bench.rows import Row, ratio_row

FEW = 10
SILENT = 10
ROUNDS = 7
BUDGET = 0.6
TIMEOUT = 60
POLL = 0.002
FLOOR = (sys.executable, "-m", "bench.servers.bare_sdk")
HTTP_FLOOR = (sys.executable, "-m", "bench.servers.bare_sdk_http")
CLIENT = {"name": "bench", "version": "1"}
FIRST = {
    "2025-11-25": Call("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=CLIENT),
    "2026-07-28": Call("server/discover"),
}


def measure_start(root: Path, skills: int, cache: Path) -> list[Row]:
    """Start servers of `root` and bare ones in turns, for a client of each protocol generation."""
    rows: list[Row] = []
    for version, call in FIRST.items():
        # In the first round modules are compiled.
        runs = [
            (_first_answer(ours(root, "stdio"), call, cache), _first_answer(FLOOR, call, cache))
            for _ in range(ROUNDS + 1)
        ][1:]
        what = f"stdio: first answer, {skills} skills, {version}"
        mine, floor = [run[0] for run in runs], [run[1] for run in runs]
        rows.append(ratio_row(what, mine, "bare SDK server", floor, BUDGET))
    runs = [_first_over_http(root, cache) for _ in range(ROUNDS + 1)][1:]
    mine, floor = [run[0] for run in runs], [run[1] for run in runs]
    what = f"http: first answer at /readyz, {skills} skills"
    rows.append(ratio_row(what, mine, "bare SDK server", floor, BUDGET))
    return rows


def measure_bridge(folder: Path) -> list[Row]:
    """Start bridges in front of servers that never answer, and bare servers, in turns, up to the tools."""
    folder.mkdir()
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        config = folder / "mcp.json"
        config.write_text(
            json.dumps({"mcpServers": {f"server{number}": {"url": url} for number in range(10)}})
        )
        command = (sys.executable, "-m", "skillwire", "bridge", "--config", str(config))
        env = {"XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
        runs = [
            (_tools_listed(command, env), _first_answer(FLOOR, FIRST["2025-11-25"], folder))
            for _ in range(ROUNDS + 1)
        ][1:]
    mine, floor = [run[0] for run in runs], [run[1] for run in runs]
    return [ratio_row("bridge: initialize and tools/list", mine, "bare SDK server", floor, BUDGET)]


def _tools_listed(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the seconds from starting a bridge to its list of tools."""
    begun = time.monotonic()
    with started(command, http=False, env=env) as server:
        for call in (FIRST["2025-11-25"], Call("tools/list")):
            number = next_number()
            result(server.link.ask(call, number, begun + TIMEOUT), number)
        return time.monotonic() - begun


def _first_over_http(root: Path, cache: Path) -> tuple[float, float]:
    mine, floor = _free_port(), _free_port()
    return _first_health(ours_at(root, mine), mine, cache), _first_health(
        (*HTTP_FLOOR, str(floor)), floor, cache
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return bound.getsockname()[1]


def _first_health(command: Sequence[str], port: int, cache: Path) -> float:
    """Return the seconds from starting a server to its first answer, whatever it is."""
    begun = time.monotonic()
    with started(command, http=False, env={"XDG_CACHE_HOME": str(cache)}):
        while (now := time.monotonic()) < begun + TIMEOUT:
            try:
                with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
                    connection.sendall(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                    if connection.recv(4096).startswith(b"HTTP/1.1 "):
                        return time.monotonic() - begun
            except OSError:
                time.sleep(max(0.0, now + POLL - time.monotonic()))
    raise StartError("no answer over HTTP")


def _first_answer(command: Sequence[str], call: Call, cache: Path) -> float:
    """Return the seconds from starting a server to its first answer."""
    begun, number = time.monotonic(), next_number()
    with started(command, http=False, env={"XDG_CACHE_HOME": str(cache)}) as server:
        answer = server.link.ask(call, number, begun + TIMEOUT)
        taken = time.monotonic() - begun
    result(answer, number)
    return taken
