"""What a server says came of a script: whatever it is, it is read without harm."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import MAX_FINDINGS
from skillwire.core.yaml12 import JsonValue
from skillwire.wire import execute
from skillwire.wire.execute import MAX_PIECES, ExecutionResult, ResultPart, parse_execution_result
from unit.wire.payloads import ANY_JSON

PIECES = st.lists(
    st.dictionaries(
        st.sampled_from(("type", "text", "data", "resource", "uri", "name", "mimeType", "blob")),
        ANY_JSON
        | st.sampled_from(("text", "image", "resource", "resource_link"))
        | st.dictionaries(st.sampled_from(("uri", "text", "blob", "mimeType")), ANY_JSON),
    ),
    max_size=6,
)


def blob(content: bytes) -> str:
    return b64encode(content).decode()


@pytest.mark.requirement("EXEC-05")
@pytest.mark.requirement("EXEC-17")
def test_every_kind_of_content_is_read_and_links_bring_nothing() -> None:
    result = {
        "content": [
            {"type": "text", "text": "done\n"},
            {"type": "text", "text": ""},
            {"type": "resource", "resource": {"uri": "skill-output://r/a.csv", "text": "a,b\n"}},
            {
                "type": "resource",
                "resource": {"uri": "file:///b.bin", "blob": blob(b"\x00"), "mimeType": "x/y"},
            },
            {"type": "resource", "resource": {"uri": "skill-output://r/1", "text": "x", "name": "x.txt"}},
            {"type": "resource_link", "uri": "http://169.254.169.254/", "name": "c", "mimeType": "x/z"},
            {"type": "image", "data": blob(b"\x89PNG"), "mimeType": "image/png"},
            {"type": "hologram", "data": "?"},
        ],
        "isError": False,
    }

    found, findings = parse_execution_result(result)

    assert findings == []
    assert found == ExecutionResult(
        (
            ResultPart("text", b"done\n", is_text=True),
            ResultPart("text", b"", is_text=True),
            ResultPart("resource", b"a,b\n", is_text=True, uri="skill-output://r/a.csv"),
            ResultPart("resource", b"\x00", uri="file:///b.bin", media_type="x/y"),
            ResultPart("resource", b"x", is_text=True, uri="skill-output://r/1", name="x.txt"),
            ResultPart("resource_link", uri="http://169.254.169.254/", name="c", media_type="x/z"),
            ResultPart("image", b"\x89PNG", media_type="image/png"),
            ResultPart("hologram"),
        )
    )


def test_the_example_of_the_document_names_a_file_without_its_content() -> None:
    kind = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
    uri, name = "file:///output/q4-sales-review.pptx", "q4-sales-review.pptx"
    resource = {"uri": uri, "mimeType": kind, "name": name}

    found, findings = parse_execution_result(
        {"content": [{"type": "resource", "resource": resource}], "isError": False}
    )

    assert findings == []
    assert found == ExecutionResult((ResultPart("resource", uri=uri, name=name, media_type=kind),))


@pytest.mark.parametrize(
    ("said", "is_error"),
    [(True, True), (False, False), (None, False), ("false", True), (0, True), ([], True)],
)
def test_a_script_of_which_it_is_unclear_whether_it_failed_counts_as_failed(
    said: object, is_error: bool
) -> None:
    found, findings = parse_execution_result({"content": [], "isError": said})

    assert found == ExecutionResult((), is_error)
    assert bool(findings) is (said is not None and not isinstance(said, bool))


@pytest.mark.parametrize("result", [None, [], "text", {}, {"content": None}, {"content": {"type": "text"}}])
def test_an_answer_without_a_list_of_content_is_none(result: object) -> None:
    found, findings = parse_execution_result(result)

    assert found is None
    assert [finding.code for finding in findings] == ["exec-result-invalid"]


@pytest.mark.parametrize(
    "piece",
    [
        "text",
        {},
        {"type": 1},
        {"type": ""},
        {"type": "x" * 300},
        {"type": "text"},
        {"type": "text", "text": 1},
        {"type": "text", "text": "\ud800"},
        {"type": "image", "data": "not base64!"},
        {"type": "image"},
        {"type": "resource"},
        {"type": "resource", "resource": []},
        {"type": "resource", "resource": {"uri": "a:b", "text": "", "blob": ""}},
        {"type": "resource", "resource": {"text": "x"}},
        {"type": "resource_link"},
        {"type": "resource_link", "uri": "x" * 3000},
    ],
)
def test_a_malformed_piece_costs_only_itself(piece: object) -> None:
    found, findings = parse_execution_result({"content": [piece, {"type": "text", "text": "kept"}]})

    assert found == ExecutionResult((ResultPart("text", b"kept", is_text=True),))
    assert {finding.code for finding in findings} == {"exec-result-item"}


def test_more_pieces_than_anyone_needs_are_left_out() -> None:
    found, findings = parse_execution_result({"content": [{"type": "text", "text": "x"}] * (MAX_PIECES + 1)})

    assert found is not None and len(found.parts) == MAX_PIECES
    assert [finding.code for finding in findings] == ["exec-result-item"]


def test_what_does_not_fit_is_named_without_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "MAX_CONTENT", 10)
    pieces = [
        {"type": "text", "text": "123456"},
        {"type": "resource", "resource": {"uri": "a:large", "blob": blob(b"12345")}},
        {"type": "text", "text": "1234"},
        {"type": "text", "text": "12345678901"},
    ]

    found, findings = parse_execution_result({"content": pieces})

    assert found == ExecutionResult(
        (
            ResultPart("text", b"123456", is_text=True),
            ResultPart("resource", uri="a:large"),
            ResultPart("text", b"1234", is_text=True),
        )
    )
    assert len(findings) == 2


@given(
    st.fixed_dictionaries({"content": ANY_JSON | PIECES}, optional={"isError": ANY_JSON, "x": ANY_JSON})
    | ANY_JSON
)
def test_nothing_a_server_says_raises_or_grows(result: JsonValue) -> None:
    found, findings = parse_execution_result(result)

    assert len(findings) <= MAX_FINDINGS + 1
    assert (found is None) == (not isinstance(result, dict) or not isinstance(result.get("content"), list))
