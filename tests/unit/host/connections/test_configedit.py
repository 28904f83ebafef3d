"""A server is put into a configuration file, and nothing else in the file changes."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from skillwire.host import ConfigError
from skillwire.host.connect.config_edit import ConfigEdit
from skillwire.host.connect.config_file import parse_json

ENTRY = {"type": "http", "url": "http://127.0.0.1:9/mcp"}

TEXTS = {
    "empty": "{}",
    "no table": '{"a": [1, {"mcpServers": 2}], "b": "}"}',
    "empty table": '{"mcpServers":{}}',
    "other servers": '{\n\t"mcpServers": {\n\t\t"one": {"command": "x", "args": ["{", "}"]}\n\t}\n}\n',
    "comments": '// top\n{ /* { */ "mcpServers": { "one": {}, // last, with a }\n }, }\n',
    "comment after the last": '{"mcpServers": {"one": {} // a note\n}}',
    "trailing comma": '{"mcpServers": {"one": {"command": "x",},},}',
    "of an editor": '{"servers": {"one": {}}, "inputs": []}',
    "escaped key": '{"mcp\\u0053ervers": {"one": {}}}',
    "windows lines": '{\r\n  "mcpServers": {\r\n    "one": {}\r\n  }\r\n}\r\n',
    "byte order mark": '\ufeff{"mcpServers": {}}',
    "nested look-alike": '{"x": {"mcpServers": {"team": 1}}, "mcpServers": {"one": {"team": {}}}}',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_was_there_stays_byte_for_byte_around_the_new_server(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".mcp.json"
    path.write_bytes(text.encode())
    before = cast(dict[str, Any], parse_json(path.read_bytes(), "before"))

    ConfigEdit.for_server(path, "team", ENTRY).write()

    after = parse_json(path.read_bytes(), "after")
    table = "servers" if "servers" in before else "mcpServers"
    assert after == {**before, table: {**before.get(table, {}), "team": ENTRY}}
    kept = iter(path.read_bytes().decode())
    assert all(character in kept for character in text if not character.isspace())


@pytest.mark.parametrize("old", ["{}", '{"command": "x", "args": ["}"]}', "7"])
def test_a_server_that_is_replaced_is_the_only_thing_that_changes(tmp_path: Path, old: str) -> None:
    path = tmp_path / ".mcp.json"
    head, tail = '{ // mine\n "mcpServers": {"one": {}, "team": ', ', "two": {"x": 1}},}'
    path.write_text(head + old + tail)

    ConfigEdit.for_server(path, "team", ENTRY).write()

    text = path.read_text()
    assert text.startswith(head) and text.endswith(tail)
    assert json.loads(text[len(head) : -len(tail)]) == ENTRY


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"mcpServers": []}', '{"mcpServers": {}, "servers": {}}', '{"projects": {}}']
)
def test_what_is_no_configuration_is_refused_and_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".mcp.json"
    path.write_text(text)

    with pytest.raises(ConfigError):
        ConfigEdit.for_server(path, "team", ENTRY)

    assert path.read_text() == text


def test_nothing_is_written_through_a_link_or_over_what_changed_meanwhile(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / ".mcp.json"
    target.write_text("{}")
    link.symlink_to(target)

    with pytest.raises(ConfigError, match="symbolic link"):
        ConfigEdit.for_server(link, "team", ENTRY)
    edit = ConfigEdit.for_server(target, "team", ENTRY)
    target.write_text('{"newer": 1}')
    with pytest.raises(ConfigError, match="changed by another program"):
        edit.write()

    assert target.read_text() == '{"newer": 1}'
