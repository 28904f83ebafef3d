"""Reading `mcpServers`: what is usable is used, and everything else is named."""

import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.characters import visible
from skillwire.host.connect.config import Servers, read_servers, servers_of
from skillwire.host.connect.config_file import MAX_CONFIG_BYTES, label_of
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.model.errors import ConfigError

BASE = Path("/project")
ENVIRON = {"HOME": "/home/me", "TOKEN": "s3cret", "EMPTY": ""}


def read(servers: object, environ: dict[str, str] = ENVIRON) -> Servers:
    return servers_of({"mcpServers": servers}, base=BASE, environ=environ)


def only(entry: object) -> ServerConfig:
    """Return the one server of a configuration that has no fault."""
    found = read({"billing": entry})
    assert found.refused == ()
    return found.servers[0]


def refusal(entry: object, key: str = "billing") -> str:
    """Return why a server is not used; another one beside it is."""
    found = read({key: entry, "good": {"command": "x"}})
    assert [server.label for server in found.servers] == ["good"]
    (refused,) = found.refused
    assert refused.code == "invalid-config"
    return str(refused)


def test_a_program_is_read_with_everything_about_it() -> None:
    entry = {"command": "npx", "args": ["-y", "billing"], "env": {"A": "1"}, "cwd": "/srv", "alwaysAllow": []}

    endpoint = StdioEndpoint("npx", ("-y", "billing"), {"A": "1"}, "/srv")
    assert only(entry) == ServerConfig("billing", endpoint, title="billing")


@pytest.mark.parametrize(
    "kind", [{}, {"type": "http"}, {"type": "streamable-http"}, {"type": "streamableHttp"}]
)
def test_an_address_is_read_with_everything_about_it(kind: dict[str, str]) -> None:
    entry = {**kind, "url": "https://example.org/mcp", "headers": {"X-Key": "1"}}

    assert only(entry).endpoint == HttpEndpoint("https://example.org/mcp", {"X-Key": "1"})


@pytest.mark.parametrize(("disabled", "is_enabled"), [(True, False), (False, True)])
def test_a_disabled_server_is_read_and_says_so(disabled: bool, is_enabled: bool) -> None:
    assert only({"command": "x", "disabled": disabled}).is_enabled is is_enabled


def test_a_relative_folder_starts_at_the_configuration() -> None:
    endpoint = only({"command": "x", "cwd": "tools"}).endpoint

    assert isinstance(endpoint, StdioEndpoint)
    assert endpoint.cwd == "/project/tools"


# Variables


def test_variables_are_filled_in_everywhere() -> None:
    program = only(
        {"command": "${HOME}/x", "args": ["--a=${TOKEN}"], "env": {"T": "${TOKEN}"}, "cwd": "${HOME}"}
    )
    site = only({"url": "https://${HOST:-example.org}/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}})

    assert program.endpoint == StdioEndpoint("/home/me/x", ("--a=s3cret",), {"T": "s3cret"}, "/home/me")
    assert site.endpoint == HttpEndpoint("https://example.org/mcp", {"Authorization": "Bearer s3cret"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${TOKEN:-x}", "s3cret"),
        ("${GONE:-x}", "x"),
        ("${GONE:-}", ""),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY}", ""),
        ("$TOKEN ${x.y} $ {", "$TOKEN ${x.y} $ {"),
        ("${GONE:-${TOKEN}", "${TOKEN"),
    ],
)
def test_a_variable_has_the_value_a_shell_would_give_it(text: str, value: str) -> None:
    endpoint = only({"command": "x", "args": [text]}).endpoint

    assert isinstance(endpoint, StdioEndpoint)
    assert endpoint.args == (value,)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "${GONE}"},
        {"command": "x", "args": ["${GONE}"]},
        {"command": "x", "env": {"A": "${GONE}"}},
        {"command": "x", "cwd": "${GONE}"},
        {"url": "https://${GONE}/"},
        {"url": "https://example.org", "headers": {"A": "${GONE}"}},
    ],
)
def test_a_variable_that_is_not_set_is_named(entry: object) -> None:
    assert "GONE" in refusal(entry)


# Faults


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"command": ""},
        {"command": 1},
        {"command": "x\0y"},
        {"command": "x", "url": "https://example.org"},
        {"command": "x", "args": "-y"},
        {"command": "x", "args": [1]},
        {"command": "x", "env": ["A=1"]},
        {"command": "x", "env": {"A": 1.5}},
        {"command": "x", "env": {"A": True}},
        {"command": "x", "env": {"A=B": "1"}},
        {"command": "x", "env": {"": "1"}},
        {"command": "x", "cwd": 1},
        {"command": "x", "disabled": "yes"},
        {"type": "http"},
        {"type": "sse", "url": "https://example.org"},
        {"type": "websocket", "url": "https://example.org"},
        {"type": 1, "url": "https://example.org"},
        {"url": ""},
        {"url": "example.org/mcp"},
        {"url": "file:///etc/passwd"},
        {"url": "ftp://example.org"},
        {"url": "https://"},
        {"url": "https://example.org/#part"},
        {"url": "https://example.org:port/"},
        {"url": "https://example.org/a b"},
        {"url": "https://example.org/\r\nX: y"},
        {"url": "https://example.org", "headers": {"A\r\nB": "1"}},
        {"url": "https://example.org", "headers": {"A": "1\r\nB: 2"}},
        {"url": "https://example.org", "headers": {"A": "ü"}},
        {"url": "https://example.org", "headers": []},
    ],
)
def test_a_server_that_cannot_be_used_costs_only_itself(entry: object) -> None:
    refusal(entry)


def test_the_retired_transport_is_named_with_its_remedy() -> None:
    words = refusal({"type": "sse", "url": "https://example.org"})

    assert "sse" in words and "streamable HTTP" in words


def test_secrets_do_not_appear_in_refusals() -> None:
    for entry in (
        {"url": "ftp://me:${TOKEN}@example.org"},
        {"url": "http://a", "headers": {"A": "${TOKEN}ü"}},
    ):
        assert "s3cret" not in refusal(entry)


# Labels


@pytest.mark.requirement("NAME-05")
@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("billing", "billing"),
        ("GitHub Enterprise", "GitHub-Enterprise"),
        ("  a // b  ", "a-b"),
        ("@acme/tools", "acme-tools"),
        ("v1.2_x-y", "v1.2_x-y"),
        ("Rechnungsprüfung", "Rechnungsprüfung"),
        ("Pru\u0308fung", "Prüfung"),
        ("請求書", "請求書"),
        ("a\u200bb\u202ec", "a-b-c"),
        ("a\u3164b", "a-b"),
        ("a\nb", "a-b"),
        ("--a--", "a"),
        ("x" * 64, "x" * 64),
    ],
)
def test_a_label_keeps_letters_and_digits_of_any_script(key: str, label: str) -> None:
    assert label_of(key) == label


@pytest.mark.requirement("NAME-04")
@pytest.mark.parametrize(
    "key",
    [
        "",
        "  ",
        "///",
        "\u200b",
        "x" * 65,
        "local",
        "Local",
        "PROJECT",
        "user",
        "skill",
        "-local-",
        "ｌｏｃａｌ",
    ],
)
def test_keys_that_name_nothing_or_something_else_are_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        label_of(key)

    assert "rename" in caught.value.fix


@given(st.text(max_size=80))
def test_a_label_is_short_visible_and_stays_what_it_is(key: str) -> None:
    try:
        label = label_of(key)
    except ConfigError:
        return

    assert 1 <= len(label) <= 64
    assert visible(label) == label
    assert not set(label) & set("/: \t\n'\"<>")
    assert label_of(label) == label


@pytest.mark.requirement("NAME-05")
@pytest.mark.parametrize("rival", ["Billing", "billing!", " billing", "ｂilling"])
def test_keys_that_give_one_label_are_all_refused_and_named(rival: str) -> None:
    found = read({"billing": {"command": "x"}, rival: {"command": "y"}, "good": {"command": "z"}})

    assert [server.label for server in found.servers] == ["good"]
    assert len(found.refused) == 2
    for refused in found.refused:
        assert "'billing'" in refused.detail and ascii(rival) in refused.detail


def test_a_title_shows_what_a_key_hides() -> None:
    found = read({"a\x1b[2J\u202eb": {"command": "x"}})

    assert found.servers[0].title == "a<U+001B>[2J<U+202E>b"


# Files


def written(folder: Path, content: object) -> Path:
    path = folder / ".mcp.json"
    path.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    return path


def test_a_file_is_read_with_the_variables_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_NAME", "run-me")
    path = written(tmp_path, {"mcpServers": {"a": {"command": "${SERVER_NAME}", "cwd": "."}}})

    (server,) = read_servers(path).servers

    assert server.endpoint == StdioEndpoint("run-me", (), {}, str(tmp_path))


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert read_servers(written(tmp_path, b'\xef\xbb\xbf{"mcpServers": {}}')) == Servers()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe{\x00",
        b"[]",
        b"{}",
        b'{"mcpServers": []}',
        b'{"mcpServers": {}, "mcpServers": {}}',
        b'{"mcpServers": {"a": {"command": "x", "command": "y"}}}',
        b'{"mcpServers": {"a": {"command": NaN}}}',
        b"[" * 100_000,
        b'{"mcpServers": {"a": ' + b"9" * 10_000 + b"}}",
    ],
)
def test_a_file_that_is_no_configuration_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        read_servers(written(tmp_path, content))

    assert str(tmp_path) not in str(caught.value)


def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    empty = b'{"mcpServers": {}}'
    padding = b" " * (MAX_CONFIG_BYTES - len(empty))

    assert read_servers(written(tmp_path, empty + padding)) == Servers()
    with pytest.raises(ConfigError):
        read_servers(written(tmp_path, empty + padding + b" "))


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path / "gone.json", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError):
            read_servers(path)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["command", "args", "env", "cwd", "url", "headers", "type", "disabled", "a"]),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_no_entry_makes_reading_fail(entry: Any) -> None:
    found = read({"a": entry})

    assert len(found.servers) + len(found.refused) == 1
