"""`skillwire serve --workers`: several processes behind one address, which come and go together."""

import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from configs import configured
from folders import delete, write_files, write_skill
from serving import (
    LEGACY,
    HttpServer,
    Json,
    environment,
    handshake,
    http_server,
    legacy,
    listed_uris,
    modern,
    wait_until,
    words_of,
)

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="only /proc tells which processes serve"
)

WORKERS = 3
NAMES = ["five", "four", "one", "six", "three", "two"]
SKILLS = [f"skill://{name}/SKILL.md" for name in NAMES]
# What is promised to take at most a second may take this long on a machine with other work.
SOON = 10.0
# A worker loads everything anew, and all of them do so at the same time.
STARTED_WITHIN = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "skills")


def make_root(root: Path) -> Path:
    for name in NAMES:
        write_skill(root / name, {"references/a.md": f"About {name}.\n"})
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the team serves."""
    return make_root(tmp_path_factory.mktemp("team") / "skills")


@pytest.fixture(scope="module")
def team(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A server with several workers, all of them up, for tests that leave it as it was."""
    env = environment(tmp_path_factory.mktemp("team-home"))
    config = configured(folder.parent, page_size=1)
    with http_server(folder, "--workers", str(WORKERS), *config, env=env) as server:
        wait_until(lambda: len(workers_of(server)) == WORKERS, SOON, "all workers have begun")
        for worker in workers_of(server):
            with only(server, worker):
                server.call(modern("skills/list"))
        yield server

        workers = workers_of(server)
        assert server.stop() == 0
        assert not any(map(is_running, workers))
        assert "Traceback" not in server.words


def workers_of(server: HttpServer) -> list[int]:
    """Return the processes that serve, as opposed to those that look after them."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return sorted(int(child) for child in children if b"spawn_main" in command_of(int(child)))


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def state_of(pid: int) -> str:
    """Return the letter for what a process does, or nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    return state_of(pid) not in ("", "Z", "X")


@contextmanager
def only(server: HttpServer, worker: int) -> Generator[None]:
    """Let only one of the workers answer what is asked meanwhile."""
    others = [pid for pid in workers_of(server) if pid != worker]
    try:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(state_of(pid) == "T" for pid in others), SOON, "the others stand still")
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def ask_each(server: HttpServer, request: Json) -> list[Json]:
    """Return what each worker answers."""
    answers: list[Json] = []
    for worker in workers_of(server):
        with only(server, worker):
            answers.append(server.call(request))
    return answers


@pytest.mark.requirement("TOOL-03")
def test_every_worker_gives_the_same_answers(team: HttpServer) -> None:
    workers = workers_of(team)

    listed = ask_each(team, modern("skills/list"))
    read = ask_each(team, modern("resources/read", uri="skill://six/references/a.md"))
    found = ask_each(team, modern("server/discover"))

    assert len(set(workers)) == WORKERS
    assert workers_of(team) == workers
    for answers in (listed, read, found):
        assert len(answers) == WORKERS
        assert all(answer == answers[0] and "result" in answer for answer in answers)


@pytest.mark.requirement("LIST-12")
def test_a_listing_can_be_continued_at_any_worker(team: HttpServer) -> None:
    workers = workers_of(team)
    pages: list[list[str]] = []
    cursor: dict[str, str] = {}
    while len(pages) <= len(SKILLS):
        with only(team, workers[len(pages) % WORKERS]):
            answer = team.call(modern("skills/list", **cursor))
        pages.append(listed_uris(answer))
        if "nextCursor" not in answer["result"]:
            break
        cursor = {"cursor": answer["result"]["nextCursor"]}

    assert pages == [[uri] for uri in SKILLS]


@pytest.mark.requirement("NEG-20")
@pytest.mark.requirement("NEG-02")
def test_older_clients_are_served_without_sessions(team: HttpServer) -> None:
    with team.connection() as connection:
        response = connection.post(handshake())
        response.read()
    welcomes = ask_each(team, handshake())
    listings = ask_each(team, legacy("skills/list"))
    headed = team.call(legacy("skills/list"), Mcp_Protocol_Version=LEGACY)

    assert (response.status, response.headers["Mcp-Session-Id"]) == (200, None)
    declared = [welcome["result"]["capabilities"]["extensions"] for welcome in welcomes]
    assert declared == [{"io.modelcontextprotocol/skills": {"directoryRead": True}}] * WORKERS
    assert [listed_uris(listing) for listing in [*listings, headed]] == [SKILLS[:1]] * (WORKERS + 1)
    assert {tuple(sorted(listing["result"])) for listing in listings} == {("nextCursor", "skills")}


@pytest.mark.requirement("SDK-07")
def test_an_edit_is_seen_by_every_worker(team: HttpServer, folder: Path) -> None:
    text = f"Edited at {time.monotonic()}.\n"
    uri = "skill://two/references/a.md"
    request = modern("skills/get", uri="skill://two/SKILL.md")

    def sizes(answer: Json) -> dict[str, int]:
        return {item["uri"]: item["size"] for item in answer["result"]["skill"]["resources"]}

    write_files(folder / "two", {"references/a.md": text})

    for worker in workers_of(team):
        with only(team, worker):
            wait_until(lambda: sizes(team.call(request))[uri] == len(text), SOON, "the edit at every worker")
            contents = team.call(modern("resources/read", uri=uri))["result"]["contents"]
        assert [item["text"] for item in contents] == [text]


def test_a_worker_that_dies_is_replaced(team: HttpServer) -> None:
    before = workers_of(team)

    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: not is_running(before[0]), SOON, "it is dead")
    meanwhile = team.call(modern("skills/list"))
    wait_until(lambda: len(set(workers_of(team)) - {before[0]}) == WORKERS, STARTED_WITHIN, "another worker")
    (new,) = set(workers_of(team)) - set(before)
    with only(team, new):
        after = team.call(modern("skills/list"))

    assert listed_uris(meanwhile) == listed_uris(after) == SKILLS[:1]
    assert "a worker exited with code -9" in team.words


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_that_are_still_starting_end_with_the_server(
    root: Path, env: dict[str, str], number: signal.Signals
) -> None:
    command = words_of(root, "--workers", "2", "--http", "127.0.0.1:0")
    # A terminal sends its signal to the whole group of processes.
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
    ) as process:
        server = HttpServer(process, "127.0.0.1")
        try:
            server.wait_for_url()
            # What was just forked has another name for a moment.
            wait_until(lambda: len(workers_of(server)) == 2, SOON, "both workers have begun")
            workers = workers_of(server)
            os.killpg(process.pid, number) if number == signal.SIGINT else os.kill(process.pid, number)
            code = server.wait()
        finally:
            server.release()

    assert len(workers) == 2
    page = server.url.removesuffix("mcp")
    words = f"serving 6 skills at {server.url}\nopen {page} in a browser to read them\n"
    assert (code, server.words) == (0, words)
    assert not any(map(is_running, workers))


def test_workers_that_are_still_starting_are_not_ended_by_a_word_to_read_again(
    root: Path, env: dict[str, str]
) -> None:
    with http_server(root, "--workers", "2", env=env) as server:
        wait_until(lambda: len(workers_of(server)) == 2, SOON, "both workers have begun")
        workers = workers_of(server)
        for _ in range(20):
            server.send_signal(signal.SIGHUP)
            time.sleep(0.05)
        answers: list[Json] = []
        for worker in workers:
            with only(server, worker):
                answers.append(server.call(modern("skills/list")))

        assert list(map(listed_uris, answers)) == [SKILLS] * 2
        assert workers_of(server) == workers
        assert server.stop() == 0


def test_workers_do_not_outlive_a_server_that_was_killed(root: Path, env: dict[str, str]) -> None:
    with http_server(root, "--workers", "2", env=env) as server:
        answer = server.call(modern("skills/list"))
        workers = workers_of(server)
        server.process.kill()
        server.wait()

        wait_until(lambda: not any(map(is_running, workers)), 30, "the workers are gone too")

    assert (listed_uris(answer), len(workers)) == (SKILLS, 2)
    assert "Traceback" not in server.words


def test_workers_that_cannot_start_are_not_tried_for_ever(root: Path, env: dict[str, str]) -> None:
    with http_server(root, "--workers", "2", env=env) as server:
        delete(root)
        code = server.wait(4 * STARTED_WITHIN)

    assert code == 1
    assert "error: the workers keep failing\n" in server.words
    assert "'skills' is not a folder" in server.words
    assert "Traceback" not in server.words
