"""What clients are shown of the skills, within what each of them shows; and the first answers made of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import handshake, legacy, modern
from skillwire.bridge.overview import (
    CAPABILITIES,
    CLIENTS,
    LEAD,
    ClientTexts,
    EarlyBridge,
    Overview,
    StoredOverview,
    client_texts,
    known_client,
    overview_name,
    words_of,
)
from skillwire.core import digest_of
from skillwire.host import FileTrust, SealedFolder

TEXTS = ClientTexts("Skills.", {"load_skill": "- team/refunds: pays back"})
PROMPTS = {"prompts": [{"name": "team--refunds"}], "nextCursor": "more"}
OVERVIEW = Overview(dict.fromkeys(CLIENTS, TEXTS), PROMPTS, "digest", has_scripts=True)


def lines_within(lines: list[str]) -> Callable[[int], str]:
    """Return what lists as many lines as fit, below the first line that every list has."""

    def listing(room: int) -> str:
        text = LEAD
        for line in lines:
            if len(f"{text}\n- {line}".encode()) > room:
                break
            text = f"{text}\n- {line}"
        return text if text != LEAD else ""

    return listing


@given(
    lines=st.lists(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1), max_size=60),
    words=st.lists(st.text("abcdéф", min_size=3, max_size=12), max_size=400),
    note=st.text("abc ", max_size=200),
    name=st.sampled_from(sorted(CLIENTS)),
)
def test_no_text_is_longer_than_the_client_shows(
    lines: list[str], words: list[str], note: str, name: str
) -> None:
    limits = CLIENTS[name]

    texts = client_texts(limits, lines_within(lines), words, note)
    overview = Overview({name: texts})

    assert len(texts.instructions.encode()) <= limits.instructions
    for tool in overview.tools(name):
        assert len(tool["description"].encode()) <= limits.description
        assert LEAD not in tool["description"]


def test_words_that_the_list_has_are_not_repeated_and_those_of_names_come_first() -> None:
    skills = [("sql-review", "Reviews the migrations"), ("refunds", "Pays for an order"), ("sql-format", "")]

    words = words_of(skills)
    texts = client_texts(CLIENTS[""], lines_within(["team/sql-review: Reviews"]), words)

    assert words == ["sql", "format", "refunds", "review", "migrations", "order", "pays", "reviews"]
    assert texts.descriptions["search_skills"] == (
        "Other skills here are about: format, refunds, migrations, order, pays"
    )


@pytest.mark.parametrize("name", ["claude-code", "codex-mcp-client", "gemini-cli-mcp-client", "opencode"])
def test_a_client_is_known_by_its_name_and_any_other_gets_what_is_safe(name: str) -> None:
    assert known_client(name) == name
    assert known_client(name.upper()) == known_client(None) == known_client(["x"]) == ""
    assert all(
        CLIENTS[""].result <= one.result and CLIENTS[""].description <= one.description
        for one in CLIENTS.values()
    )


def test_an_overview_is_stored_and_read_again(tmp_path: Path) -> None:
    stored = StoredOverview(SealedFolder(tmp_path), "bridge-1", OVERVIEW)

    stored.save(OVERVIEW)
    again = SealedFolder(tmp_path).load("bridge-1", Overview.from_bytes)

    assert again == OVERVIEW and not OVERVIEW.is_unknown
    assert Overview.unknown(has_scripts=False).is_unknown


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"[1]", b"[2, {}]", b"\xff", b"null"])
def test_what_is_no_overview_of_this_version_counts_as_none(tmp_path: Path, content: bytes) -> None:
    folder = SealedFolder(tmp_path)
    with folder.locked():
        folder.save("bridge-1", content)

    assert SealedFolder(tmp_path).load("bridge-1", Overview.from_bytes) is None


def test_no_more_overviews_are_stored_than_the_newest_hundred(tmp_path: Path) -> None:
    stored = [StoredOverview(SealedFolder(tmp_path), f"bridge-{number}", OVERVIEW) for number in range(102)]

    for number, each in enumerate(stored):
        each.save(OVERVIEW)
        os.utime(tmp_path / each.name, (number, number))
    stored[0].save(OVERVIEW)

    names = {path.name for path in tmp_path.glob("bridge-*")}
    assert names == {"bridge-0", *(each.name for each in stored[3:])}


REMOTE = {"team": {"url": "https://team.example/mcp"}, "desk": {"type": "http", "url": "https://d.example"}}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that names the overview of a bridge in a folder, new or known."""

    def name_in(folder: str, *args: str, servers: object = None) -> str:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        if servers is not None:
            (path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        monkeypatch.chdir(path)
        return overview_name(args, tmp_path / "state")

    return name_in


def trust(path: Path) -> None:
    FileTrust(path.parents[1] / "state").trust(path, digest_of(path.read_bytes()))


def test_an_overview_of_remote_servers_is_the_same_in_every_folder_that_has_and_trusts_them(
    tmp_path: Path, folders: Callable[..., str]
) -> None:
    untrusted = folders("a", servers=REMOTE)
    trust(tmp_path / "a" / ".mcp.json")
    trusted = folders("a")

    assert folders("a", "-v", "--json") == trusted != untrusted
    assert folders("b", servers=REMOTE) == untrusted
    trust(tmp_path / "b" / ".mcp.json")
    assert folders("b") == trusted
    assert folders("a", "--scripts") != trusted != folders("a", "team")
    named = folders("a", "--config", str(tmp_path / "a" / ".mcp.json"))
    assert folders("c", "--config", str(tmp_path / "a" / ".mcp.json")) == named != trusted
    assert folders("c") == folders("d") != trusted, "without servers"


@pytest.mark.parametrize(
    "servers",
    [
        {**REMOTE, "more": {"url": "https://more.example/mcp"}},
        {"team": REMOTE["team"]},
        {"desk": REMOTE["team"], "team": REMOTE["desk"]},
        {**REMOTE, "team": {"url": "https://other.example/mcp"}},
    ],
)
def test_a_change_of_servers_or_labels_makes_another_overview(
    servers: object, tmp_path: Path, folders: Callable[..., str]
) -> None:
    config = ("--config", str(tmp_path / "a" / ".mcp.json"))
    before = folders("a", *config, servers=REMOTE)

    assert folders("a", *config, servers=servers) != before
    assert folders("b", f"--config={config[1]}", servers=servers) != before


@pytest.mark.parametrize(
    ("servers", "words", "made"),
    [
        ({"team": {"command": "skills", "args": ["."]}}, (), ""),
        ({"team": {"url": "https://team.example/${workspaceFolder}"}}, (), ""),
        (REMOTE, ("skills",), "skills"),
        (REMOTE, ("--", "serve"), ""),
        (REMOTE, (), ".agents/skills"),
        (REMOTE, (), ".skillwire/skills"),
        ([], (), ""),
        ({"team": 1}, (), ""),
    ],
)
def test_where_the_list_may_depend_on_the_folder_each_folder_has_an_overview_of_its_own(
    servers: object, words: tuple[str, ...], made: str, tmp_path: Path, folders: Callable[..., str]
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder / made).mkdir(parents=True)

    assert (
        folders("a", *words, servers=servers) == folders("a", *words) != folders("b", *words, servers=servers)
    )


def answered(early: EarlyBridge, message: dict[str, Any]) -> Any:
    answer = early.answer(json.dumps(message).encode())
    return None if answer is None else json.loads(answer)["result"]


def test_the_handshake_and_the_first_lists_are_answered_early() -> None:
    early = EarlyBridge(OVERVIEW)

    first = answered(early, handshake(0))
    tools = answered(early, legacy("tools/list", 1))

    assert first["capabilities"] == CAPABILITIES and first["instructions"] == "Skills."
    assert len(tools["tools"]) == 5
    assert tools["tools"][0]["description"].endswith("- team/refunds: pays back")
    assert answered(early, legacy("prompts/list", 2)) == PROMPTS
    assert answered(early, legacy("resources/list", 3)) == {"resources": []}


@pytest.mark.parametrize(
    "message",
    [
        legacy("tools/list", 1),
        modern("tools/list", 1),
        modern("server/discover", 1),
        handshake(None),  # type: ignore[arg-type]
        legacy("initialize", 1, protocolVersion="1999-01-01", capabilities={}, clientInfo={}),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ],
)
def test_anything_unusual_at_the_start_is_left_to_the_sdk(message: dict[str, Any]) -> None:
    assert answered(EarlyBridge(OVERVIEW), message) is None


@pytest.mark.parametrize(
    "message",
    [
        handshake(1),
        legacy("tools/list", 1, cursor="x"),
        legacy("prompts/list", 1, cursor="more"),
        legacy("tools/call", 1, name="load_skill", arguments={}),
        legacy("ping", 1),
        {"jsonrpc": "2.0", "method": "tools/list"},
    ],
)
def test_after_the_handshake_only_whole_lists_are_answered_early(message: dict[str, Any]) -> None:
    early = EarlyBridge(OVERVIEW)
    answered(early, handshake(0))

    assert answered(early, message) is None
