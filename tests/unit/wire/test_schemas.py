"""The published schemas of the dialects: what is sent fits, the rest does not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from skillwire.core.entry import parse_entry
from skillwire.core.errors import InvalidEntryError
from skillwire.host.dialects.core import check_older_entry
from skillwire.wire.core import write_entry
from unit.wire.payloads import golden, is_valid, schema_of

ANSWERS = Path(__file__).parents[2] / "integration" / "golden"


@pytest.mark.requirement("SDK-09", "DUAL-05", "NEG-19", "DISC-02")
@pytest.mark.parametrize(
    ("dialect", "name", "definition"),
    [
        *(("core", name, "") for name in ("core-list", "core-get", "core-directory")),
        ("index-april", "index-april-index", ""),
        ("index-june", "index-june-index", ""),
        *(("primitive", "primitive-list", "listResult"), ("primitive", "primitive-get", "getResult")),
        *(("exec", "exec-list", "listResult"), ("exec", "exec-read", "readResult")),
        *(("exec", f"exec-reference-{kind}", "readReferenceResult") for kind in ("text", "blob")),
        *(("prompt", name, "") for name in ("prompt-get", "prompt-list")),
        *(("well-known", f"well-known-{form}", "") for form in ("current", "first", "interim")),
    ],
)
def test_golden_payloads_are_of_the_schema(dialect: str, name: str, definition: str) -> None:
    assert is_valid(dialect, golden(name), definition)


@pytest.mark.parametrize("generation", ["modern", "legacy"])
def test_what_a_server_really_sent_is_of_the_schema(generation: str) -> None:
    answers = json.loads((ANSWERS / f"core-{generation}.json").read_text("utf-8"))

    sent = [json.loads(answer) for call, answer in answers.items() if "resources/read" not in call]

    results = [answer["result"] for answer in sent if "result" in answer]
    assert results
    assert all(is_valid("core", result) for result in results)


def test_the_entries_of_the_golden_listing_are_read_and_written_as_they_are() -> None:
    for item in golden("core-list")["skills"]:
        assert json.loads(write_entry(parse_entry(item))) == item


def test_the_august_listing_is_refused_by_the_released_rules_and_read_by_its_own() -> None:
    listing = golden("core-0804-list")

    assert is_valid("core-0804", listing)
    assert not is_valid("core", listing)
    for item in listing["skills"]:
        with pytest.raises(InvalidEntryError):
            parse_entry(item)
        assert check_older_entry(item)[0] is not None


@pytest.mark.parametrize("field", ["uri", "frontmatter", "resources"])
def test_an_entry_without_a_field_is_not_of_the_schema(field: str) -> None:
    listing = golden("core-list")

    del listing["skills"][0][field]

    assert not is_valid("core", listing)


@pytest.mark.parametrize("dialect", ["core", "core-0804", "exec", "primitive", "prompt", "well-known"])
def test_every_schema_is_one_and_describes_every_field(dialect: str) -> None:
    schema = schema_of(dialect)
    Draft202012Validator.check_schema(schema)

    assert [name for name, field in fields_of(schema) if not field.keys() & {"description", "$ref"}] == []


def fields_of(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield every field that a schema allows, at any depth."""
    if isinstance(node, list):
        for item in cast(list[Any], node):
            yield from fields_of(item)
    elif isinstance(node, dict):
        members = cast(dict[str, Any], node)
        named = members.get("properties", {})
        yield from ((name, field) for name, field in named.items() if field is not False)
        for item in members.values():
            yield from fields_of(item)
