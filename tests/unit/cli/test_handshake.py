"""The first answer over stdio, given without the SDK, is the one that the SDK would give."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import anyio.from_thread
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import Command
from folders import write_files, write_skill
from integration.both_paths import StdioClient, converse, write_catalog
from serving import LEGACY, MODERN, Json, handshake, legacy, modern
from skillwire.core import SkillError
from skillwire.server.handshake import (
    MOST_FOLDERS,
    MOST_SKILLS,
    EarlyHandshake,
    early_handshake,
    typed_options,
    with_fixed_summary,
)
from skillwire.server.options import ServeOptions, folder_name, values_of
from skillwire.server.standalone import SkillServer

META = "io.modelcontextprotocol/"
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", LEGACY]
DIALECTS = ["index-june", "index-april", "list-march", "primitive", "exec", "prompt"]


@pytest.fixture(autouse=True)
def _at_a_pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Give the process an input that is no terminal, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield


def initialize(identifier: int | str = 0, **params: Any) -> Json:
    request = handshake(identifier)
    return {**request, "params": {**request["params"], **params}}


def discover(identifier: int | str = 0, **meta: Any) -> Json:
    request = modern("server/discover", identifier)
    members = {f"{META}{name}": value for name, value in meta.items()}
    return {**request, "params": {"_meta": {**request["params"]["_meta"], **members}}}


def early_of(*args: str | Path) -> EarlyHandshake:
    early = early_handshake([str(arg) for arg in args])
    assert early is not None
    return early


def plain_answers(options: ServeOptions, *lines: bytes) -> list[bytes]:
    """Return what the SDK answers to each of the lines, as the first message of a connection."""
    named = with_fixed_summary(options)

    def talk(line: bytes) -> Callable[[StdioClient], None]:
        return lambda client: client.send(line + b"\n")

    with anyio.from_thread.start_blocking_portal() as portal:
        served = portal.call(lambda: _made(named))
        with portal.wrap_async_context_manager(served.skills.open()):
            return [b"".join(converse(portal, served, None, talk(line))).rstrip(b"\n") for line in lines]


async def _made(options: ServeOptions) -> SkillServer:
    return SkillServer(options)


def configured(folder: Path, text: str, *args: str | Path) -> list[str]:
    path = folder / "serve.toml"
    path.write_text(text)
    return ["--config", str(path), *map(str, args)]


def options_of(args: list[str]) -> ServeOptions:
    options = typed_options(args)
    assert options is not None
    return replace(options, default_name=folder_name(options.folders))


FIRST = [
    *(initialize(protocolVersion=version) for version in VERSIONS),
    initialize("a \u2028 \U0001f600 \\ string"),
    initialize(2**53 - 1),
    initialize(-5, capabilities={"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}}),
    initialize(clientInfo={"name": "codex", "version": "1", "title": "Codex"}),
    discover(),
    discover("x"),
    discover(clientCapabilities={"extensions": {"io.modelcontextprotocol/skills": {}}}),
]
OPTIONS = [
    "",
    "instructions = false\n",
    "find = true\n",
    "find = true\nprefix = 'acme/team'\nmirror = true\nttl = 5\npage_size = 2\n",
    "unlisted = ['tea']\npin = ['acme']\nlist_most = 3\n",
    *(f"dialect = ['{dialect}']\n" for dialect in DIALECTS),
    f"find = true\ndialect = {[name for name in DIALECTS if name != 'index-april']}\n",
]


@pytest.mark.parametrize("config", OPTIONS)
def test_it_is_byte_for_byte_the_answer_of_the_sdk(tmp_path: Path, config: str) -> None:
    write_catalog(tmp_path / "skills")
    args = configured(tmp_path, config, tmp_path / "skills", "--no-watch")
    lines = [orjson.dumps(message) for message in FIRST]

    early = early_of(*args)

    assert [early.answer(line) for line in lines] == plain_answers(options_of(args), *lines)


def test_it_names_the_skills_of_several_folders_and_the_server_by_its_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "one" / "tea")
    write_skill(tmp_path / "two" / "coffee")
    write_files(tmp_path / "two", {"broken/SKILL.md": "no frontmatter\n"})
    args = [str(tmp_path / "one"), str(tmp_path / "two"), "--no-watch", "--name=a “quoted” name"]
    line = orjson.dumps(initialize())

    answer = early_of(*args).answer(line)

    assert [answer] == plain_answers(options_of(args), line)
    assert answer is not None and "- coffee: " in orjson.loads(answer)["result"]["instructions"]
    assert orjson.loads(answer)["result"]["serverInfo"]["name"] == "a “quoted” name"


NESTED = orjson.loads(b"[" * 100 + b"]" * 100)
UNUSUAL = [
    b"",
    b"not JSON",
    b"[]",
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    *map(
        orjson.dumps,
        [
            initialize(protocolVersion=MODERN),
            initialize(protocolVersion="1999-01-01"),
            initialize(protocolVersion=None),
            initialize(protocolVersion=[]),
            initialize(extra=1),
            initialize(_meta={}),
            {**initialize(), "extra": 1},
            {**initialize(), "jsonrpc": "1.0"},
            {**initialize(), "id": None},
            {**initialize(), "id": True},
            {**initialize(), "id": 1.5},
            {**initialize(), "id": 2**53},
            {**initialize(), "params": None},
            initialize(clientInfo=None),
            initialize(clientInfo={"name": "x"}),
            initialize(clientInfo={"name": "x", "version": 1}),
            initialize(clientInfo={"name": "x", "version": "1", "icons": []}),
            initialize(capabilities=None),
            initialize(capabilities={"roots": True}),
            initialize(capabilities={"roots": {"listChanged": "yes"}}),
            initialize(capabilities={"experimental": {"x": 1}}),
            initialize(capabilities={"unknown": {}}),
            initialize(capabilities={"experimental": {"x": {"x": NESTED}}}),
            initialize(clientInfo={"name": "x" * 8192, "version": "1"}),
            discover(protocolVersion="2025-11-25"),
            discover(protocolVersion="2099-01-01"),
            discover(clientInfo={"name": "x"}),
            discover(clientCapabilities=[]),
            discover(other=1),
            legacy("server/discover"),
            {**discover(), "params": {**discover()["params"], "cursor": "x"}},
            modern("skills/list"),
        ],
    ),
]


@pytest.mark.parametrize("line", UNUSUAL, ids=range(len(UNUSUAL)))
def test_an_unusual_first_message_is_left_to_the_sdk(tmp_path: Path, line: bytes) -> None:
    write_skill(tmp_path / "tea")

    assert early_of(tmp_path).answer(line) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
MEMBERS = ["listChanged", "form", "url", "tools", "context", "applyDefaults", "x"]
CAPABILITIES = st.dictionaries(
    st.sampled_from(["roots", "sampling", "elicitation", "experimental", "extensions", "tasks", "x"]),
    st.dictionaries(st.sampled_from(MEMBERS), st.dictionaries(st.sampled_from(MEMBERS), VALUES) | VALUES),
    max_size=3,
)
INFO = st.fixed_dictionaries(
    {"name": st.text(max_size=3), "version": st.text(max_size=3) | VALUES},
    optional={"title": VALUES, "websiteUrl": VALUES, "description": VALUES, "icons": VALUES, "x": VALUES},
)


@settings(max_examples=30, deadline=None)
@given(messages=st.lists(st.tuples(CAPABILITIES, INFO), min_size=5, max_size=20))
def test_what_it_answers_is_what_the_sdk_accepts(
    messages: list[tuple[Json, Json]], tmp_path_factory: Any
) -> None:
    folder: Path = tmp_path_factory.mktemp("empty")
    args = [str(folder), "--no-watch"]
    early = early_of(*args)
    lines = [
        orjson.dumps(request)
        for capabilities, info in messages
        for request in (
            initialize(capabilities=capabilities, clientInfo=info),
            discover(clientCapabilities=capabilities, clientInfo=info),
        )
    ]
    usual = {line: answer for line in lines if (answer := early.answer(line)) is not None}

    assert list(usual.values()) == plain_answers(options_of(args), *usual)


# Which command lines are answered early


SPELLINGS = [
    ["skills"],
    ["skills", "more", "--stdio"],
    ["--stdio", "skills", "--no-watch", "-v"],
    ["skills", "--watch", "--name", "tea"],
    ["skills", "--name=tea", "--dialect", "prompt", "--dialect=exec", "--verbose"],
    ["skills", "--config", "serve.toml", "--scripts", "--allow-anonymous"],
    ["--config=serve.toml", "--no-watch", "--watch"],
]


@pytest.mark.parametrize("args", SPELLINGS, ids=" ".join)
def test_options_are_read_as_the_command_reads_them(here: Path, skillwire: Command, args: list[str]) -> None:
    for folder in ("skills", "more"):
        write_skill(here / folder / f"of-{folder}")
    (here / "serve.toml").write_text("folders = ['skills']\nfind = true\nttl = 7\nwatch = false\n")

    options = typed_options(args)
    printed = skillwire("serve", *args, "--print-config", "--json")

    assert options is not None
    shown = {name: value for name, value in orjson.loads(printed.out)["config"].items()}
    ours = {name: _json(value) for name, value in values_of(options).items()}
    assert shown == ours


def _json(value: object) -> object:
    if isinstance(value, tuple):
        return [str(item) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value) if isinstance(value, Path) else value


@pytest.mark.parametrize(
    "args",
    [
        "",
        "nowhere",
        "skills/tea/SKILL.md",
        "skills --http 127.0.0.1:0",
        "skills --workers 2",
        "skills --scripts",
        "skills --upstream mcp.json",
        "skills --dialect well-known",
        "skills --dialect none",
        "skills --dialect index-june --dialect index-april",
        "skills --name",
        "skills --name -x",
        "skills --name=\u202e",
        "skills --help",
        "skills --print-config",
        "skills --unknown",
        "skills --unknown=1",
        "skills --",
        "skills --stdio=1",
        "skills --no-stdio",
        "skills --config nowhere.toml",
        "skills --config strict.toml",
        "skills --config bad.toml",
        "skills skills",
    ],
)
def test_anything_unusual_is_left_to_the_command(here: Path, args: str) -> None:
    write_skill(here / "skills" / "tea")
    (here / "strict.toml").write_text("strict = true\n")
    (here / "bad.toml").write_text("strict = 7\n")

    try:
        early = early_handshake(args.split())
    except SkillError:
        early = None

    assert early is None


def test_a_terminal_is_answered_only_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    assert early_handshake([str(tmp_path)]) is None


# Too many skills to scan them first


@pytest.mark.parametrize("find, message", list(product([False, True], [initialize(), discover()])))
def test_many_skills_are_not_scanned_for_the_first_answer(tmp_path: Path, find: bool, message: Json) -> None:
    for number in range(MOST_SKILLS + 1):
        write_skill(tmp_path / "skills" / f"s{number}")
    args = configured(tmp_path, f"find = {str(find).lower()}\n", tmp_path / "skills", "--no-watch")
    line = orjson.dumps(message)

    answer = early_of(*args).answer(line)

    assert [answer] == plain_answers(options_of(args), line)
    text = orjson.loads(answer or b"")["result"]["instructions"]
    assert "many Agent Skills" in text and "skills/list" in text and ("find_skills" in text) is find
    assert "\n" not in text


def test_as_many_as_can_be_scanned_are_named(tmp_path: Path) -> None:
    for number in range(MOST_SKILLS):
        write_skill(tmp_path / f"s{number:03}")

    assert with_fixed_summary(ServeOptions((tmp_path,))).summary == ""


def test_many_folders_without_skills_are_not_scanned_either(tmp_path: Path) -> None:
    for number in range(MOST_FOLDERS + 1):
        (tmp_path / str(number)).mkdir()

    assert with_fixed_summary(ServeOptions((tmp_path,))).summary


@pytest.mark.parametrize("rules", [{"pin": ("s1",)}, {"list_most": 3}, {"unlisted": ("s2",)}])
def test_the_skills_that_rules_select_are_named_however_many_there_are(
    tmp_path: Path, rules: dict[str, Any]
) -> None:
    for number in range(MOST_SKILLS + 1):
        write_skill(tmp_path / f"s{number}")

    assert with_fixed_summary(ServeOptions((tmp_path,), **rules)).summary == ""
