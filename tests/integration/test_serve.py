"""`skillwire serve` as a program of its own, on two pipes and at a URL, from its first word to its end."""

import http.client
import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

import serving
from configs import configured
from folders import delete, skill_md, write_files, write_skill
from programs import http_server, stdio_server, words_of
from serving import (
    ENDED_WITHIN,
    INITIALIZED,
    LEGACY,
    HttpServer,
    Json,
    Server,
    StdioServer,
    bytes_to_read,
    cancelled,
    environment,
    handshake,
    hook,
    legacy,
    listed_uris,
    modern,
    next_event,
    wait_until,
)

# Larger than every buffer on the way, and than what is kept in memory.
BIG = 6 * 1024 * 1024
# What is promised to take at most a second may take this long on a machine with other work.
SOON = 8.0
# A server that was told to end waits for a client that does not read, but not for longer than this.
PATIENCE = 25.0

SKILLS = ["skill://one/SKILL.md", "skill://three/SKILL.md", "skill://two/SKILL.md"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of three skills, which a test may change."""
    return make_root(tmp_path / "skills")


def make_root(root: Path) -> Path:
    for name in ("one", "two", "three"):
        write_skill(root / name, {"references/a.md": f"About {name}.\n"})
    return root


def words_at(url: str) -> str:
    """Return all that a server of the three skills says when it starts at `url`."""
    return f"serving 3 skills at {url}\nopen {url.removesuffix('mcp')} in a browser to read them\n"


def add_big_file(root: Path) -> str:
    """Put a large file into a skill, and return its URI."""
    write_files(root / "one", {"assets/big.bin": os.urandom(BIG)})
    return "skill://one/assets/big.bin"


def ids(messages: list[Json]) -> list[int | str]:
    return [message["id"] for message in messages]


# Standard input and output


@dataclass(slots=True)
class Stuck:
    """A server that was told to end while its client reads nothing, and when it did end."""

    server: Server
    told: float = field(default_factory=time.monotonic)
    ended: float | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.server.send_signal(signal.SIGTERM)
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.thread.start()

    def _wait(self) -> None:
        self.server.process.wait(3 * PATIENCE)
        self.ended = time.monotonic()


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Stuck]]:
    """Servers whose clients stopped reading. They take their time to end, while other tests run."""
    root = make_root(tmp_path_factory.mktemp("stuck") / "skills")
    uri = add_big_file(root)
    env = environment(tmp_path_factory.mktemp("stuck-home"))
    start = modern("server/discover", 0)
    with (
        stdio_server(root, env=env, ready=False, reading=False) as plain,
        stdio_server(root, env=env, ready=False, reading=False) as ready,
        http_server(root, env=env) as http,
        http.connection() as connection,
    ):
        connection.post(modern("resources/read", uri=uri))  # It has begun, and nobody reads on.
        plain.send(start, *(modern("resources/list", number) for number in range(1, 200)))
        ready.send(start, *(modern("skills/list", number) for number in range(1, 200)))
        for server in (plain, ready):
            server.wait_for_words("over stdio")
            wait_until_full(server)
        yield [Stuck(plain), Stuck(ready), Stuck(http)]


def wait_until_full(server: StdioServer) -> None:
    """Wait until the server cannot write more, because what it wrote is not read."""
    before = -1
    deadline = time.monotonic() + 60
    while (size := bytes_to_read(server)) != before or size < 30_000:
        assert time.monotonic() < deadline, f"{size} bytes, and not full"
        before = size
        time.sleep(0.5)


@pytest.mark.usefixtures("stuck")  # What the last test looks at begins here.
@pytest.mark.requirement("TOOL-03")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_whatever_was_asked_before_the_input_ended_is_answered(
    root: Path, env: dict[str, str], era: str
) -> None:
    uri = add_big_file(root)
    ask = modern if era == "modern" else legacy
    first = [modern("server/discover", 0)] if era == "modern" else [handshake(0), INITIALIZED]
    reads = [ask("resources/read", number, uri=uri) for number in range(1, 5)]
    lists = [ask("skills/list", number) for number in range(5, 105)]
    rest = [ask("resources/list", 105), ask("skills/get", 106, uri=SKILLS[0]), ask("no/such", 107)]

    with stdio_server(root, env=env, ready=False) as server:
        server.send(*first, *reads, *lists, *rest[:-1], orjson.dumps(rest[-1]))
        server.close_input()
        answers = {answer["id"]: answer for answer in server.rest()}
        code = server.wait()

    assert (code, server.words) == (0, "serving 3 skills over stdio\n")
    assert sorted(answers) == list(range(108))
    assert {listed_tuple(answers[number]) for number in range(5, 105)} == {tuple(SKILLS)}
    assert {len(answers[number]["result"]["contents"][0]["blob"]) for number in range(1, 5)} == {BIG * 4 // 3}
    assert [number for number in answers if "error" in answers[number]] == [107]


def listed_tuple(answer: Json) -> tuple[str, ...]:
    return tuple(listed_uris(answer))


def test_a_client_that_leaves_without_a_word_is_no_failure(root: Path, env: dict[str, str]) -> None:
    with stdio_server(root, env=env, ready=False) as server:
        server.close_input()

        assert (server.wait(), server.rest()) == (0, [])


def test_clients_that_leave_while_they_are_answered_end_the_server_quietly(
    root: Path, env: dict[str, str]
) -> None:
    uri = add_big_file(root)
    with (
        stdio_server(root, env=env, ready=False, reading=False) as killed,
        stdio_server(root, env=env, ready=False, reading=False) as deaf,
    ):
        for server in (killed, deaf):
            server.send(*(modern("resources/read", number, uri=uri) for number in range(3)))
        for server in (killed, deaf):
            wait_until(lambda s=server: bytes_to_read(s) > 0, 60, "the beginning of an answer")
        killed.close_output()
        killed.close_input()
        deaf.close_output()  # Its input stays open: that nobody reads must be enough.
        start = time.monotonic()
        codes = [killed.wait(), deaf.wait()]

        assert codes == [0, 0]
        assert time.monotonic() - start < SOON
        assert killed.words == deaf.words == "serving 3 skills over stdio\n"


def test_a_terminal_is_told_to_use_http(root: Path, env: dict[str, str]) -> None:
    leader, terminal = pty.openpty()
    try:
        words = serving.words_of(root)
        result = subprocess.run(words, env=env, stdin=terminal, capture_output=True, timeout=60)
    finally:
        os.close(leader)
        os.close(terminal)

    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"error: standard input is a terminal")
    assert b"--http 127.0.0.1:8000" in result.stderr


def test_without_standard_input_it_says_so(root: Path, env: dict[str, str]) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *serving.words_of(root)]

    result = subprocess.run(command, env=env, capture_output=True, timeout=60)

    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"error: standard input is closed")


NOISE = """
import logging, os, pathlib, subprocess, sys, threading, time, warnings
def make_noise(quiet):
    while "skillwire.cli.serve" not in sys.modules:
        time.sleep(0.01)
    for number in range(100000):
        print("printed")
        sys.stdout.write("written\\n")
        warnings.warn(f"warned {number}")
        logging.getLogger("stray").error("logged")
        if os.fstat(1) == os.fstat(2):
            os.write(1, b"raw\\n")
            subprocess.run(["echo", "from a child"], check=True)
            if quiet.exists():
                break
        time.sleep(0.005)
    sys.stderr.write("silence\\n")
if "serve" in sys.orig_argv:
    threading.Thread(target=make_noise, args=[pathlib.Path(os.environ["QUIET"])], daemon=True).start()
"""


def test_nothing_but_the_protocol_reaches_standard_output(
    root: Path, env: dict[str, str], tmp_path: Path
) -> None:
    quiet = tmp_path / "quiet"
    env = env | hook(tmp_path / "site", NOISE) | {"QUIET": str(quiet)}

    with serving.stdio_server(root, env=env) as server:
        server.wait_for_words("from a child")
        answers = [server.call(modern("skills/list", number)) for number in range(30)]
        quiet.touch()
        server.wait_for_words("silence")
        server.close_input()
        rest, code = server.rest(), server.wait()

    assert (code, ids(answers), rest) == (0, list(range(30)), [])
    for stray in ("printed", "written", "warned", "logged", "raw", "from a child"):
        assert stray in server.words


def test_two_servers_on_one_folder_do_not_disturb_each_other(root: Path, env: dict[str, str]) -> None:
    with (
        stdio_server(root, env=env, ready=False) as sibling,
        stdio_server(root, env=env, ready=False) as server,
    ):
        found = [running.call(modern("server/discover", 0)) for running in (sibling, server)]
        sibling.process.kill()
        sibling.process.wait(ENDED_WITHIN)
        answer = server.call(modern("skills/list", 1))
        server.close_input()

        assert found[0] == found[1]
        assert (listed_uris(answer), server.wait()) == (SKILLS, 0)


DEATH = """
import os, sys
def die(event, args):
    if event == os.environ["DEATH"] and any(".cache/skillwire" in str(arg) for arg in args):
        os.kill(os.getpid(), 9)
if "serve" in sys.orig_argv:
    sys.addaudithook(die)
"""


@pytest.mark.parametrize("moment", ["open", "os.rename"])
def test_a_server_killed_while_it_saves_its_index_does_not_harm_the_next(
    root: Path, env: dict[str, str], tmp_path: Path, moment: str
) -> None:
    deadly = env | hook(tmp_path / "site", DEATH) | {"DEATH": moment}
    result = subprocess.run(serving.words_of(root), env=deadly, input=b"", capture_output=True, timeout=60)

    write_files(root / "two", {"references/a.md": "Changed meanwhile.\n"})
    with stdio_server(root, env=env, ready=False) as server:
        entry = server.call(modern("skills/get", 1, uri="skill://two/SKILL.md"))["result"]["skill"]
        file = server.call(modern("resources/read", 2, uri="skill://two/references/a.md"))["result"]
        server.close_input()
        code = server.wait()

    assert result.returncode == -signal.SIGKILL, "the server was not killed at that moment"
    assert (code, server.words) == (0, "serving 3 skills over stdio\n")
    assert file["contents"][0]["text"] == "Changed meanwhile.\n"
    sizes = {item["uri"]: item["size"] for item in entry["resources"]}
    assert sizes["skill://two/references/a.md"] == len("Changed meanwhile.\n")


def test_signals_end_the_server_after_it_has_answered(root: Path, env: dict[str, str]) -> None:
    uri = add_big_file(root)
    with (
        stdio_server(root, env=env, ready=False) as terminated,
        stdio_server(root, env=env, ready=False) as interrupted,
    ):
        for server, number in ((terminated, signal.SIGTERM), (interrupted, signal.SIGINT)):
            server.call(modern("server/discover", 0))
            server.send(*(modern("resources/read", number, uri=uri) for number in range(1, 5)))
            server.send(modern("skills/list", "last"))
            answers: list[Json] = []
            while not answers or answers[-1]["id"] != "last":
                answers.append(server.receive())
            server.send_signal(number)  # What was sent before the last is taken, and mostly not yet answered.
            code = server.wait()
            answers += server.rest()

            assert (code, server.words) == (0, "serving 3 skills over stdio\n")
            assert {answer["id"] for answer in answers} == {1, 2, 3, 4, "last"}
            assert all("result" in answer for answer in answers)


def test_broken_lines_get_one_error_each_and_the_connection_goes_on(root: Path, env: dict[str, str]) -> None:
    garbage = [
        b"\xff\xfe\xfa\n",
        b"{nope\n",
        b"\n",
        b"\x00\n",
        b"[]\n",
        b'"text"\n',
        b"[" * 100_000 + b"\n",
        b'{"jsonrpc":"2.0","method":"skills/list","params":{"cursor":"\xc3\x28"}}\n',
        b'{"jsonrpc":"3.0","method":"ping"}\n',
    ]
    codes = [-32700, -32700, -32700, -32600, -32600, -32700, -32700, -32600]  # And none for the blank line.
    with stdio_server(root, env=env, ready=False) as server:
        server.send(*garbage)
        refusals = [server.receive() for _ in codes]
        first = server.call(modern("skills/list", 1))
        server.send(*garbage, b'{"jsonrpc":"2.0","id":"mine","method":"skills/list","params":[1]}\n')
        refusals += [server.receive() for _ in codes]
        mine = server.receive()
        server.send(b'{"jsonrpc":"2.0","id":2,"method":"skills/list","params":{"x":"', b"a" * 5 * 1024 * 1024)
        server.send(b"a" * 1024 * 1024, b'"}}\n')
        too_long = server.receive()
        second = server.call(modern("skills/list", 3))
        server.close_input()

        assert (listed_uris(first), listed_uris(second)) == (SKILLS, SKILLS)
        assert [(refusal["id"], refusal["error"]["code"]) for refusal in refusals] == [
            (None, code) for code in codes * 2
        ]
        assert (mine["id"], mine["error"]["code"]) == ("mine", -32600)
        assert too_long["error"]["code"] == -32600
        assert (server.rest(), server.wait()) == ([], 0)
        assert "Traceback" not in server.words


@pytest.mark.requirement("SDK-07")
def test_a_listening_client_hears_of_changes_and_of_the_end(root: Path, env: dict[str, str]) -> None:
    uri = add_big_file(root)
    with stdio_server(root, env=env) as server:
        server.send(modern("subscriptions/listen", "ear", notifications={"resourcesListChanged": True}))
        heard = server.receive()
        write_skill(root / "four")
        told = server.receive()
        seen = listed_uris(server.call(modern("skills/list", 1)))
        server.send(modern("resources/read", 2, uri=uri), cancelled(2))
        server.close_input()
        start = time.monotonic()
        code, rest = server.wait(), server.rest()

        assert heard["method"] == "notifications/subscriptions/acknowledged"
        assert told["method"] == "notifications/resources/list_changed"
        assert seen == ["skill://four/SKILL.md", *SKILLS]
        assert code == 0
        assert time.monotonic() - start < SOON, "nobody waits for an answer that was cancelled"
        ends = [message["result"] for message in rest if message["id"] == "ear"]
        assert [end["resultType"] for end in ends] == ["complete"]


def test_skills_that_cannot_be_served_together_end_the_server_before_it_speaks(
    root: Path, env: dict[str, str], tmp_path: Path
) -> None:
    other = write_skill(tmp_path / "more" / "two")

    command = words_of(root, tmp_path / "more")
    asked = orjson.dumps(modern("skills/list")) + b"\n"
    result = subprocess.run(command, env=env, input=asked, capture_output=True, timeout=60)

    assert (result.returncode, result.stdout) == (1, b"")
    words = result.stderr.decode()
    assert "skill://two/SKILL.md" in words and str(root / "two") in words and str(other) in words


# HTTP


@dataclass(frozen=True, slots=True)
class Shop:
    """A server that several tests ask, with many options at once."""

    server: HttpServer
    document: Json


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    root = make_root(tmp_path_factory.mktemp("shop") / "skills")
    write_skill(root.parent / "more" / "four")
    write_files(root.parent / "more", {"broken/SKILL.md": "no frontmatter"})
    options = [*configured(root.parent, prefix="acme/tools", page_size=3, ttl=2.5), "--json"]
    env = environment(tmp_path_factory.mktemp("shop-home"))
    with http_server(root, root.parent / "more", *options, env=env) as server:
        server.wait_for_url()
        assert server.process.stdout is not None
        lines: list[bytes] = []
        while not lines or lines[-1] != b"}\n":
            lines.append(server.process.stdout.readline())
        yield Shop(server, orjson.loads(b"".join(lines)))

        assert server.stop() == 0
        assert "Traceback" not in server.words
        assert server.process.stdout.read() == b""


@pytest.mark.parametrize(("options", "name"), [((), "skills"), (("--name", "Acme support"), "Acme support")])
def test_a_server_says_which_one_it_is(
    options: tuple[str, ...], name: str, tmp_path: Path, env: dict[str, str]
) -> None:
    root = make_root(tmp_path / "skills")
    with http_server(root, *options, env=env) as server, server.connection() as connection:
        answer = orjson.loads(connection.post(modern("skills/list")).read())
        begun = orjson.loads(connection.post(handshake()).read())

    assert answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == name
    assert begun["result"]["serverInfo"]["name"] == name


@pytest.mark.parametrize("name", [" ", "x" * 101, "two\nlines", "hidden\u202e"])
def test_a_name_that_shows_other_than_it_is_is_refused(name: str, root: Path, env: dict[str, str]) -> None:
    command = words_of(root, "--http", "127.0.0.1:0", "--name", name)
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    assert result.returncode == 2
    assert "cannot be the name of a server" in result.stderr


def test_skills_of_one_name_are_warned_about(tmp_path: Path, env: dict[str, str]) -> None:
    for place in ("a/tea", "b/tea", "c/coffee"):
        write_skill(tmp_path / "skills" / place)
    with (
        http_server(tmp_path / "skills", env=env) as one,
        http_server(tmp_path / "skills", "--workers", "2", env=env) as several,
    ):
        for server in (one, several):
            server.wait_for_words(r"skill://b/tea/SKILL.md")
        said = [" ".join(server.words.split()) for server in (one, several)]

    for words in said:
        assert "warning: 2 skills are called 'tea'" in words
        assert "skill://a/tea/SKILL.md" in words and "skill://b/tea/SKILL.md" in words
        assert "coffee" not in words


def test_the_url_is_one_line_for_people_and_one_document_for_programs(shop: Shop) -> None:
    lines = [line for line in shop.server.words.splitlines() if "http" in line]

    page = shop.server.url.removesuffix("mcp")
    assert lines == [f"serving 4 skills at {shop.server.url}", f"open {page} in a browser to read them"]
    assert shop.document == {
        "schema": "skillwire/serve/1",
        "url": shop.server.url,
        "page": page,
        "skills": 4,
        "workers": 1,
    }


@pytest.mark.requirement("NEG-20")
@pytest.mark.requirement("LIST-12")
@pytest.mark.requirement("LIST-14")
def test_options_show_in_the_answers_which_need_no_handshake(shop: Shop) -> None:
    first = shop.server.call(modern("skills/list"))["result"]
    second = shop.server.call(modern("skills/list", cursor=first["nextCursor"]))["result"]

    found = [[skill["uri"] for skill in page["skills"]] for page in (first, second)]
    assert found == [
        [
            "skill://acme/tools/four/SKILL.md",
            "skill://acme/tools/one/SKILL.md",
            "skill://acme/tools/three/SKILL.md",
        ],
        ["skill://acme/tools/two/SKILL.md"],
    ]
    assert "nextCursor" not in second
    assert {(page["ttlMs"], page["cacheScope"], page["resultType"]) for page in (first, second)} == {
        (2500, "public", "complete")
    }


def test_a_broken_skill_is_named_and_the_rest_is_served(shop: Shop) -> None:
    assert "WARNING: broken: " in shop.server.words


def test_connections_are_kept_open(shop: Shop) -> None:
    with shop.server.connection() as connection:
        ports: set[int] = set()
        for number, method in enumerate(["skills/list", "resources/list", "no/such", "skills/list"]):
            connection.call(modern(method, number))
            ports.add(connection.local_port)

    assert len(ports) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Host": "localhost:1"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "https://127.0.0.1.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:5173"}, 200),
    ],
)
@pytest.mark.parametrize("method", ["skills/list", "resources/list"])
def test_web_pages_of_strangers_cannot_ask_a_server_on_this_machine(
    shop: Shop, method: str, headers: dict[str, str], status: int
) -> None:
    with shop.server.connection() as connection:
        response = connection.post(modern(method), **headers)
        body = response.read()

    assert response.status == status
    assert (b"result" in body) == (status == 200)


def test_an_exposed_server_answers_no_other_websites_pages(root: Path, env: dict[str, str]) -> None:
    with (
        http_server(root, "--allow-anonymous", env=env, bind="0.0.0.0:0") as server,
        server.connection() as connection,
    ):
        statuses: dict[str, int] = {}
        for origin in ("", f"http://127.0.0.1:{server.port}", "http://evil.example", "null"):
            headers = {"Origin": origin} if origin else {}
            response = connection.post(modern("skills/list"), **headers)
            response.read()
            statuses[origin] = response.status
        named = connection.post(modern("skills/list"), Host="skills.example", Origin="https://skills.example")
        named.read()

        assert list(statuses.values()) == [200, 200, 403, 403]
        assert named.status == 421  # Nobody said that it is called so.
        assert server.stop() == 0


def test_an_address_of_version_6_and_one_that_is_taken(root: Path, env: dict[str, str]) -> None:
    with http_server(root, env=env, bind="[::1]:0", host="::1") as server:
        taken = f"[::1]:{server.port}"
        with http_server(root, env=env, bind=taken, ready=False) as late:
            code = late.wait()
        answer = server.call(modern("skills/list"))

    assert server.url == f"http://[::1]:{server.port}/mcp"
    assert listed_uris(answer) == SKILLS
    assert code == 1
    assert late.words.startswith(f"error: cannot listen on {taken}: Address already in use\n")
    assert "Traceback" not in late.words


@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("SDK-07")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_streams_hear_of_changes_and_end_with_the_server(
    root: Path, env: dict[str, str], number: signal.Signals
) -> None:
    with (
        http_server(root, env=env) as server,
        server.connection() as ear,
        server.connection() as older,
        server.connection() as stream,
    ):
        listening = ear.post(
            modern("subscriptions/listen", "ear", notifications={"resourcesListChanged": True})
        )
        heard = next_event(listening)
        welcome = older.post(handshake())
        declared = orjson.loads(welcome.read())["result"]["capabilities"]
        session = {"Mcp_Session_Id": welcome.headers["Mcp-Session-Id"], "Mcp_Protocol_Version": LEGACY}
        older.post(INITIALIZED, **session).read()
        messages = stream.get(**session)

        start = time.monotonic()
        write_skill(root / "four")
        told = [next_event(listening), next_event(messages)]
        took = time.monotonic() - start
        seen = [
            listed_uris(server.call(modern("skills/list"))),
            listed_uris(older.call(legacy("skills/list"), **session)),
        ]
        server.send_signal(number)
        start = time.monotonic()
        last, silence = next_event(listening), [next_event(listening), next_event(messages)]
        code = server.wait()
        ended = time.monotonic() - start

        assert heard is not None and heard["method"] == "notifications/subscriptions/acknowledged"
        assert declared["extensions"] == {"io.modelcontextprotocol/skills": {"directoryRead": True}}
        assert [event and event["method"] for event in told] == ["notifications/resources/list_changed"] * 2
        assert seen == [["skill://four/SKILL.md", *SKILLS]] * 2
        assert took < SOON
        assert last is not None and (last["id"], last["result"]["resultType"]) == ("ear", "complete")
        assert (silence, code) == ([None, None], 0)
        assert ended < SOON
        assert server.words == words_at(server.url)


@pytest.mark.requirement("GET-04")
@pytest.mark.requirement("SDK-07")
def test_changes_are_published_at_once_unless_it_was_told_not_to_look(
    root: Path, env: dict[str, str]
) -> None:
    uri, text = "skill://one/references/a.md", "Another text.\n"
    with (
        http_server(root, env=env, ready=False) as server,
        http_server(root, "--no-watch", env=env, ready=False) as sleeping,
    ):
        server.wait_for_url()
        sleeping.wait_for_url()

        def digest() -> str:
            skill = server.call(modern("skills/get", uri=SKILLS[0]))["result"]["skill"]
            return next(item["digest"] for item in skill["resources"] if item["uri"] == uri)

        def seen() -> list[str]:
            return listed_uris(server.call(modern("skills/list")))

        old, asleep = digest(), sleeping.call(modern("skills/list"))
        write_files(root / "one", {"references/a.md": text})
        wait_until(lambda: digest() != old, SOON, "the edit")
        contents = server.call(modern("resources/read", uri=uri))["result"]["contents"]
        write_files(root / "one", {"SKILL.md": "no frontmatter any more"})
        wait_until(lambda: seen() == SKILLS[1:], SOON, "the broken skill is gone, and no other")
        error = server.call(modern("skills/get", uri=SKILLS[0]))["error"]
        write_files(root / "one", {"SKILL.md": skill_md("one")})
        wait_until(lambda: seen() == SKILLS, SOON, "the mended skill is back")
        delete(root / "two")
        wait_until(lambda: seen() == SKILLS[:2], SOON, "the deleted skill is gone")

        assert [item["text"] for item in contents] == [text]
        assert (error["code"], error["data"]) == (-32602, {"uri": SKILLS[0]})
        assert sleeping.call(modern("skills/list")) == asleep
        assert (server.stop(), sleeping.stop()) == (0, 0)


def test_a_signal_does_not_cut_an_answer_short_and_a_second_one_does(root: Path, env: dict[str, str]) -> None:
    uri = add_big_file(root)
    with (
        http_server(root, env=env, ready=False) as polite,
        http_server(root, env=env, ready=False) as hasty,
    ):
        polite.wait_for_url()
        hasty.wait_for_url()
        reader, idler = polite.connect(), hasty.connect()
        response = reader.post(modern("resources/read", uri=uri))
        idler.post(modern("resources/read", uri=uri))  # It has begun, and nobody reads on.
        for server in (polite, hasty):
            server.send_signal(signal.SIGINT)
        answer = orjson.loads(response.read())
        code = polite.wait()
        waits = hasty.process.poll() is None
        hasty.send_signal(signal.SIGINT)
        start = time.monotonic()
        hasty.wait()
        reader.close()
        idler.close()

        assert len(answer["result"]["contents"][0]["blob"]) == BIG * 4 // 3
        assert (code, polite.words) == (0, words_at(polite.url))
        assert waits, "it ended before its client had the answer"
        assert time.monotonic() - start < SOON
        assert (hasty.process.returncode, hasty.words) == (0, words_at(hasty.url))


EARLY = """
import os, signal, sys
def interrupt(event, args):
    if event == "os.scandir" and "skillwire.server.http.server" in sys.modules and not asked:
        asked.append(event)
        os.kill(os.getpid(), signal.SIGTERM)
asked = []
if "serve" in sys.orig_argv:
    sys.addaudithook(interrupt)
"""


def test_a_signal_that_comes_while_the_skills_are_opened_is_not_lost(
    root: Path, env: dict[str, str], tmp_path: Path
) -> None:
    with serving.http_server(root, env=env | hook(tmp_path / "site", EARLY), ready=False) as server:
        code = server.wait()

    assert (code, server.words) == (0, "")


HELD = """
import os, sys
def hold(event, args):
    if event == "socket.bind":
        held.append(args[0])
    elif event == "os.scandir" and "skillwire.server.http.server" in sys.modules and len(held) == 1:
        print("held", held[0].getsockname()[1], file=sys.stderr, flush=True)
        held.append(event)
        open(os.environ["HELD"]).close()
held = []
if "serve" in sys.orig_argv:
    sys.addaudithook(hold)
"""


def test_a_server_that_is_not_ready_says_so_and_answers_other_requests_later(
    root: Path, env: dict[str, str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "held")
    more = hook(tmp_path / "site", HELD) | {"HELD": str(tmp_path / "held")}
    with serving.http_server(root, env=env | more, ready=False) as server:
        server.port = port = int(server.wait_for_words(r"held (\d+)\n")[1])
        alive = health(port, "/healthz")
        with server.connection() as early:
            early.send(modern("skills/list"))
            before = health(port, "/readyz")
            (tmp_path / "held").open("w").close()  # It waits for whoever opens the other end.
            listed = orjson.loads(early.response().read())

        assert (alive, before) == ((200, b"ok\n"), (503, b"starting\n"))
        assert len(listed["result"]["skills"]) == 3
        assert health(port, "/readyz") == (200, b"ok\n")


def health(port: int, path: str) -> tuple[int, bytes]:
    """Return what a server says of itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_clients_that_do_not_read_cannot_keep_a_server_from_ending(stuck: list[Stuck]) -> None:
    for case in stuck:
        case.thread.join(3 * PATIENCE)

        assert case.ended is not None, "it did not end"
        assert case.ended - case.told < PATIENCE
        assert case.server.process.returncode == 0
        assert "Traceback" not in case.server.words
