"""The schemas of the released extension and of its August draft: what is sent fits, the rest does not."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from skillwire.core.entry import parse_entry
from skillwire.core.errors import InvalidEntryError
from skillwire.host.dialects.core import check_older_entry
from skillwire.wire.core import write_entry

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).with_name("golden")
ANSWERS = ROOT / "tests" / "integration" / "golden"


def schema_of(dialect: str) -> Draft202012Validator:
    schema = json.loads((ROOT / "docs" / "schemas" / "wire" / f"{dialect}.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def fits(dialect: str, value: dict[str, Any]) -> bool:
    return not list(cast(Any, schema_of(dialect)).iter_errors(value))


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / name).read_text("utf-8"))


@pytest.mark.requirement("SDK-09")
@pytest.mark.parametrize("name", ["core-list.json", "core-get.json", "core-directory.json"])
def test_golden_payloads_are_of_the_schema(name: str) -> None:
    assert fits("core", golden(name))


@pytest.mark.parametrize("generation", ["modern", "legacy"])
def test_what_a_server_really_sent_is_of_the_schema(generation: str) -> None:
    answers = json.loads((ANSWERS / f"core-{generation}.json").read_text("utf-8"))

    sent = [json.loads(answer) for call, answer in answers.items() if "resources/read" not in call]

    results = [answer["result"] for answer in sent if "result" in answer]
    assert results
    assert all(fits("core", result) for result in results)


def test_the_entries_of_the_golden_listing_are_read_and_written_as_they_are() -> None:
    for item in golden("core-list.json")["skills"]:
        assert json.loads(write_entry(parse_entry(item))) == item


def test_the_august_listing_is_refused_by_the_released_rules_and_read_by_its_own() -> None:
    listing = golden("core-0804-list.json")

    assert fits("core-0804", listing)
    assert not fits("core", listing)
    for item in listing["skills"]:
        with pytest.raises(InvalidEntryError):
            parse_entry(item)
        assert check_older_entry(item)[0] is not None


@pytest.mark.parametrize("field", ["uri", "frontmatter", "resources"])
def test_an_entry_without_a_field_is_not_of_the_schema(field: str) -> None:
    listing = golden("core-list.json")

    del listing["skills"][0][field]

    assert not fits("core", listing)


@pytest.mark.parametrize("dialect", ["core", "core-0804"])
def test_every_field_is_described(dialect: str) -> None:
    schema = json.loads((ROOT / "docs" / "schemas" / "wire" / f"{dialect}.json").read_text("utf-8"))

    assert [name for name, field in _fields(schema) if not {"description", "$ref"} & field.keys()] == []


def _fields(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    named = [*schema.get("properties", {}).items(), *schema.get("$defs", {}).items()]
    return [*named, *(found for _, inner in named for found in _fields(inner))]
