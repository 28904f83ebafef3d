"""`skillwire load` as a program: exactly what the model would receive, or a refusal."""

from pathlib import Path

import pytest

from folders import write_files
from terminals import Desk, check_document

HEAD = "---\nname: {name}\ndescription: Use when testing.\n---\n\n"
LONG = "".join(f"line {number:05}\n" for number in range(5000))


@pytest.fixture
def desk(tmp_path: Path, empty_home: Path) -> Desk:
    write_files(
        tmp_path / "skills",
        {
            "refunds/SKILL.md": HEAD.format(name="refunds") + "Do it.\n",
            "refunds/references/policy.md": "Be kind.\n",
            "long/SKILL.md": HEAD.format(name="long") + LONG,
        },
    )
    desk = Desk(tmp_path / "project", empty_home)
    desk.serve("acme", tmp_path / "skills")
    return desk


def approve(desk: Desk, reference: str) -> None:
    binding = desk.run("show", reference, "--json").json["binding"]
    assert desk.run("approve", reference, "--yes", "--digest", binding).code == 0


@pytest.mark.requirement("APPR-10")
def test_without_approval_and_without_a_terminal_it_fails_with_a_code(desk: Desk) -> None:
    refused = desk.run("load", "acme/refunds", "--json", typed=b"a\na\n")
    in_words = desk.run("load", "acme/refunds")

    check_document("load", refused.json)
    assert (refused.code, refused.json["error"]["code"]) == (1, "approval-required")
    assert refused.json["error"]["fix"]
    assert (in_words.code, in_words.out) == (1, "")
    assert in_words.err.startswith("error: acme/refunds needs the user's approval\nfix: ")


@pytest.mark.requirement("HOST-08", "HOST-14", "HOST-17")
def test_standard_output_has_exactly_what_the_model_would_receive(desk: Desk) -> None:
    approve(desk, "acme/refunds")

    document = desk.run("load", "acme/refunds", "--json")
    plain = desk.run("load", "acme/refunds")

    check_document("load", document.json)
    assert (document.code, plain.code, plain.err) == (0, 0, "")
    [page] = document.json["texts"]
    boundary = document.json["boundary"]
    assert page["text"].endswith(f"----- begin {boundary} -----\nDo it.\n----- end {boundary} -----")
    assert page["text"].startswith("Skill: acme/refunds\nOrigin: MCP server acme, a name given by")
    assert document.json["origin"]["label"] == "acme"
    assert document.json["files"] == [
        {"path": "references/policy.md", "size": 9, "unverified": False, "mediaType": "text/markdown"}
    ]
    other = plain.lines[-1].removeprefix("----- end ").removesuffix(" -----")
    assert other != boundary
    assert plain.out == page["text"].replace(boundary, other) + "\n"


@pytest.mark.requirement("HOST-14")
def test_a_long_text_comes_with_all_its_pages_or_the_one_that_is_named(desk: Desk) -> None:
    approve(desk, "acme/long")

    everything = desk.run("load", "acme/long", "--json").json
    one = desk.run("load", "acme/long", "--page", "2")
    beyond = desk.run("load", "acme/long", "--page", "99", "--json")

    check_document("load", everything)
    assert [page["page"] for page in everything["texts"]] == list(range(1, everything["pages"] + 1))
    assert everything["pages"] > 1
    pages = [
        page["text"].split(" -----\n", 1)[1].rpartition("\n----- end")[0] for page in everything["texts"]
    ]
    assert "\n".join(pages) + "\n" == LONG
    assert pages[1] in one.out and pages[0] not in one.out
    assert one.err == f"page 2 of {everything['pages']}\n"
    check_document("load", beyond.json)
    assert (beyond.code, beyond.json["error"]["code"]) == (1, "no-such-page")


@pytest.mark.requirement("INT-02")
def test_content_that_breaks_its_promise_never_reaches_standard_output(
    tmp_path: Path, empty_home: Path
) -> None:
    desk = Desk(tmp_path / "project", empty_home)
    desk.invite("acme", "swapped_body")
    approve(desk, "acme/refunds")

    refused = desk.run("load", "acme/refunds", "--json")

    check_document("load", refused.json)
    assert (refused.code, refused.json["error"]["code"]) == (1, "digest-mismatch")
