"""The extension as of 4 August 2026: two rules less, and all others."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.entry import check_entry
from skillwire.core.errors import DigestMismatchError
from skillwire.core.manifest import MAX_TOTAL_SIZE, UNKNOWN_SIZE, digest_of
from skillwire.host.dialects.core import check_older_entries, check_older_entry

CONTENT = b"Do it.\n"
URI = "skill://acme/refunds/SKILL.md"
NOTES = "skill://acme/refunds/Q%26A.md"


def entry(**changes: object) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "uri": URI,
        "frontmatter": {"name": "refunds", "description": "Use when testing.", "x": 1},
        "resources": [
            {"uri": URI, "digest": digest_of(CONTENT)},
            {"uri": NOTES, "digest": digest_of(CONTENT), "size": 7, "more": True},
        ],
        "more": 1,
    }
    return {**raw, **changes}


def without(raw: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name != key}


@pytest.mark.requirement("DRAFT-10")
@pytest.mark.requirement("CONF-05")
def test_a_line_without_a_size_promises_its_digest_alone() -> None:
    read, findings = check_older_entry(entry())

    assert read is not None and read.manifest is not None
    assert not [finding for finding in findings if finding.is_error]
    skill_file, notes = read.manifest.require(URI), read.manifest.require("skill://acme/refunds/Q&A.md")
    assert (skill_file.size, skill_file.known_size, skill_file.max_bytes) == (
        UNKNOWN_SIZE,
        None,
        MAX_TOTAL_SIZE,
    )
    assert (notes.size, notes.published, notes.extra) == (7, NOTES, {"more": True})
    assert read.to_json() == entry(resources=entry()["resources"][::-1])
    skill_file.verify(CONTENT)
    with pytest.raises(DigestMismatchError):
        skill_file.verify(b"Something else.\n")


@pytest.mark.requirement("CONF-04")
@pytest.mark.requirement("CONF-05")
@pytest.mark.parametrize("raw", [entry(), without(entry(), "resources")], ids=["no size", "no resources"])
def test_the_released_rules_refuse_both(raw: dict[str, Any]) -> None:
    read, findings = check_entry(raw)

    assert read is None
    assert {finding.code for finding in findings if finding.is_error} <= {
        "resource-invalid",
        "resources-invalid",
    }


@pytest.mark.requirement("DRAFT-10")
@pytest.mark.requirement("CONF-04")
@pytest.mark.parametrize("raw", [without(entry(), "resources"), entry(resources="dynamic")])
def test_an_entry_without_resources_is_dynamic(raw: dict[str, Any]) -> None:
    read, _ = check_older_entry(raw)

    assert read is not None
    assert (read.is_dynamic, read.uri.text, read.extra) == (True, URI, {"more": 1})


@pytest.mark.parametrize(
    "resources",
    [
        None,
        {},
        "static",
        [],
        [{"uri": NOTES, "digest": digest_of(CONTENT)}],
        [{"uri": URI, "digest": digest_of(CONTENT), "size": None}],
        [{"uri": URI, "digest": digest_of(CONTENT), "size": -1}],
        [{"uri": URI, "digest": digest_of(CONTENT), "size": True}],
        [{"uri": URI}],
        [{"uri": URI, "digest": digest_of(CONTENT)}] * 2,
        [
            {"uri": URI, "digest": digest_of(CONTENT)},
            {"uri": "skill://other/a", "digest": digest_of(CONTENT)},
        ],
        ["x"],
    ],
)
def test_every_other_rule_holds(resources: object) -> None:
    read, findings = check_older_entry(entry(resources=resources))

    assert read is None
    assert any(finding.is_error for finding in findings)


SIZES = st.none() | st.integers(-2, 10) | st.booleans() | st.just("7")
LINES = st.fixed_dictionaries(
    {},
    optional={
        "uri": st.sampled_from((URI, NOTES, "skill://x", "skill://acme/refunds/../x", 7)),
        "digest": st.sampled_from((digest_of(CONTENT), "sha256:1", None)),
        "size": SIZES,
    },
)


@given(st.lists(LINES | st.none() | st.just("x"), max_size=4))
def test_what_tells_every_size_is_read_as_ever_and_nothing_is_changed_on_the_way(
    lines: list[dict[str, Any] | str | None],
) -> None:
    raw = entry(resources=lines)
    before = deepcopy(raw)
    sized = [{"size": 3, **line} if isinstance(line, dict) else line for line in lines]

    [(read, findings)] = check_older_entries([entry(resources=sized)])
    [(older, _)] = check_older_entries([raw])

    assert (read, findings) == check_entry(entry(resources=sized))
    assert raw == before
    assert (older is None) == (read is None)
    if older is not None and older.manifest is not None:
        told = {line["uri"] for line in lines if isinstance(line, dict) and "size" in line}
        assert {line.uri: line.size != UNKNOWN_SIZE for line in older.manifest.files} == {
            line.uri: line.published in told for line in older.manifest.files
        }


@given(st.none() | st.integers() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()))
def test_what_is_no_entry_is_none(value: object) -> None:
    read, findings = check_older_entry(value)

    assert read is None
    assert findings
