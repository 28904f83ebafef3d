"""Skills built in code: what is written, what is refused, and what is published."""

import dataclasses
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.errors import FrontmatterError, InvalidSkillError, InvalidUriError
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.skill import Skill, SkillFile, write_frontmatter
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue

properties = settings(deadline=None, max_examples=150)

DESCRIPTION = "Refunds money. Use when asked."
WHOLE = b"\xef\xbb\xbf---\r\nname: refunds\r\ndescription: Use when asked.\r\n---\r\nSteps \r\n"


@pytest.mark.requirement("SDK-04")
@pytest.mark.requirement("DUAL-08")
def test_a_skill_is_built_from_a_name_a_body_and_references() -> None:
    skill = (
        Skill("refunds", description=DESCRIPTION, body="Do it.\n")
        .with_reference("references/policy.md", "Pay back.")
        .with_reference("references/a b.graphql", b"query { x }")
        .with_reference("data.bin", b"\x00\xff", media_type="application/x-own")
    )

    assert skill.skill_md == f'---\nname: refunds\ndescription: "{DESCRIPTION}"\n---\n\nDo it.\n'.encode()
    assert (skill.name, skill.uri.text) == ("refunds", "skill://refunds/SKILL.md")
    assert skill.frontmatter == Frontmatter({"name": "refunds", "description": DESCRIPTION})
    assert skill.document.body == "\nDo it.\n"
    assert skill.files == (
        SkillFile("references/policy.md", b"Pay back.", "text/markdown"),
        SkillFile("references/a b.graphql", b"query { x }", "application/graphql"),
        SkillFile("data.bin", b"\x00\xff", "application/x-own"),
    )
    assert [skill.read(path) for path in ("SKILL.md", "data.bin")] == [skill.skill_md, b"\x00\xff"]


@pytest.mark.requirement("SDK-04")
@pytest.mark.requirement("LIST-06")
@pytest.mark.requirement("LIST-08")
def test_its_entry_lists_every_file_with_digest_and_size() -> None:
    skill = Skill("refunds", path="acme/refunds", description=DESCRIPTION, body="Do it.").with_reference(
        "a b.md", "x"
    )

    entry = skill.entry()

    assert entry.uri == SkillUri.build("acme/refunds")
    assert entry.frontmatter == skill.frontmatter
    assert entry.manifest == Manifest.of(
        [
            ManifestFile.of("skill://acme/refunds/SKILL.md", skill.skill_md),
            ManifestFile.of("skill://acme/refunds/a%20b.md", b"x"),
        ]
    )
    assert skill.findings() == []


@pytest.mark.requirement("FMT-11")
@pytest.mark.parametrize("body", [WHOLE, WHOLE.decode()])
def test_a_whole_file_is_kept_to_the_byte(body: str | bytes) -> None:
    skill = Skill("refunds", body=body)

    assert (skill.skill_md, skill.read("SKILL.md")) == (WHOLE, WHOLE)
    assert skill.document == parse_skill_md(WHOLE)


@pytest.mark.requirement("DUAL-08")
@pytest.mark.parametrize(
    ("path", "scheme", "uri"),
    [
        (None, "skill", "skill://refunds/SKILL.md"),
        ("refunds", "skill", "skill://refunds/SKILL.md"),
        ("acme/billing/refunds", "skill", "skill://acme/billing/refunds/SKILL.md"),
        ("acme corp/refunds", "GitHub", "github://acme%20corp/refunds/SKILL.md"),
    ],
)
def test_the_path_may_be_chosen_as_long_as_it_ends_in_the_name(
    path: str | None, scheme: str, uri: str
) -> None:
    skill = Skill("refunds", path=path, scheme=scheme, description=DESCRIPTION, body="x")

    assert skill.uri.text == uri


@pytest.mark.requirement("DUAL-08")
@pytest.mark.requirement("CONF-14")
@pytest.mark.parametrize(
    "path",
    ["acme", "refunds/v2", "acme/Refunds", "", "refunds/", "../refunds", "a/%2e%2e/refunds"],
)
def test_any_other_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidSkillError):
        Skill("refunds", path=path, description=DESCRIPTION, body="x")


@pytest.mark.parametrize("scheme", ["file", "javascript", "", "1x", "a b"])
def test_an_unsafe_or_malformed_scheme_is_refused(scheme: str) -> None:
    with pytest.raises(InvalidUriError):
        Skill("refunds", scheme=scheme, description=DESCRIPTION, body="x")


@pytest.mark.requirement("FMT-02")
@pytest.mark.requirement("CONF-14")
def test_a_body_without_frontmatter_needs_a_description() -> None:
    with pytest.raises(InvalidSkillError) as caught:
        Skill("refunds", body="# Refunds\n\nDo it.")

    assert "description" in caught.value.fix


@pytest.mark.requirement("CONF-14")
@pytest.mark.parametrize(
    "more", [{"description": DESCRIPTION}, {"frontmatter": {"license": "MIT"}}, {"frontmatter": {}}], ids=str
)
def test_a_body_with_frontmatter_takes_no_second_one(more: dict[str, object]) -> None:
    with pytest.raises(InvalidSkillError):
        Skill("refunds", body=WHOLE, **more)  # pyright: ignore[reportArgumentType]  # one at a time


@pytest.mark.requirement("FMT-06")
def test_more_fields_are_written_behind_name_and_description() -> None:
    fields: dict[str, JsonValue] = {"license": "MIT", "metadata": {"version": "1.0"}, "x": [1, {"y": None}]}

    skill = Skill("refunds", description=DESCRIPTION, frontmatter=fields, body="x")

    assert list(skill.frontmatter.fields.items()) == [
        ("name", "refunds"),
        ("description", DESCRIPTION),
        *fields.items(),
    ]


def test_a_description_may_be_given_among_the_fields_but_not_twice() -> None:
    among = Skill("refunds", frontmatter={"description": DESCRIPTION}, body="x")
    alike = Skill("refunds", description=DESCRIPTION, frontmatter={"description": DESCRIPTION}, body="x")

    assert among == alike == Skill("refunds", description=DESCRIPTION, body="x")
    with pytest.raises(InvalidSkillError):
        Skill("refunds", description=DESCRIPTION, frontmatter={"description": "Other."}, body="x")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("other", WHOLE),
        ("refunds", b"---\nname: other\ndescription: d\n---\n"),
        ("refunds", b"---\ndescription: d\n---\n"),
        ("1", b"---\nname: 1\ndescription: d\n---\n"),
    ],
)
def test_the_name_must_be_the_frontmatters(name: str, body: bytes) -> None:
    with pytest.raises(InvalidSkillError):
        Skill(name, body=body)


def test_a_name_among_the_fields_must_be_the_name() -> None:
    with pytest.raises(InvalidSkillError):
        Skill("refunds", description=DESCRIPTION, frontmatter={"name": "other"}, body="x")


@pytest.mark.requirement("FMT-03")
@pytest.mark.requirement("OPEN-02")
@pytest.mark.parametrize(
    "name", ["", "A", "a b", "a--b", "-a", "a/b", "..", "café", "a" * 65, "a\0", "\ud800", "a\nb"]
)
def test_a_name_that_cannot_be_served_is_refused(name: str) -> None:
    with pytest.raises(InvalidSkillError):
        Skill(name, description=DESCRIPTION, body="x")


@pytest.mark.parametrize(
    ("description", "fields"),
    [
        ("", {}),
        ("  ", {}),
        ("x" * 1025, {}),
        (DESCRIPTION, {"compatibility": ""}),
        (DESCRIPTION, {"metadata": {"a": 1}}),
        (DESCRIPTION, {"metadata": []}),
        (DESCRIPTION, {"x": float("nan")}),
        (DESCRIPTION, {"x": [float("-inf")]}),
        (DESCRIPTION, {"x": 2**64}),
        (DESCRIPTION, {"x": "\ud800"}),
        (DESCRIPTION, {"k" * 2000: 1}),
    ],
    ids=lambda part: repr(part)[:30],
)
def test_fields_that_break_a_rule_or_have_no_form_are_refused(
    description: str, fields: dict[str, JsonValue]
) -> None:
    with pytest.raises(InvalidSkillError):
        Skill("refunds", description=description, frontmatter=fields, body="x")


def test_a_body_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidSkillError):
        Skill("refunds", description=DESCRIPTION, body="\ud800")
    with pytest.raises(FrontmatterError) as caught:
        Skill("refunds", description=DESCRIPTION, body=b"\xff")

    assert caught.value.reason == "not-utf8"


BAD_PATHS = [
    *("", "SKILL.md", "/a.md", "../a.md", "a/", "a\0b", "a://b", "a\\b", "%2e%2e/a", "\ud800", "x" * 17_000),
    *("references/taken.md", "references", "references/taken.md/more", "SKILL.md/a"),
]


@pytest.mark.requirement("DUAL-07")
@pytest.mark.requirement("SDK-04")
@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: repr(path)[:30])
def test_a_reference_whose_path_cannot_be_served_is_refused_by_both_adders(path: str) -> None:
    skill = Skill("refunds", description=DESCRIPTION, body="x").with_reference("references/taken.md", "y")

    outcome = skill.try_with_reference(path, "z")
    with pytest.raises(InvalidSkillError) as caught:
        skill.with_reference(path, "z")

    assert isinstance(outcome, Finding)
    assert (outcome.code, outcome.rule, outcome.file) == ("unusable-path", "URI-10", path)
    assert (str(caught.value), caught.value.fix) == (outcome.message, outcome.fix)


@pytest.mark.requirement("DUAL-07")
@pytest.mark.parametrize(
    "path",
    ["a.md", "references/other.md", "...", "a b/é.md", "skill.md", "docs/SKILL.md", "a:b"],
)
def test_any_other_path_is_fine(path: str) -> None:
    skill = Skill("refunds", description=DESCRIPTION, body="x").with_reference("references/taken.md", "y")

    outcome = skill.try_with_reference(path, "é")

    assert isinstance(outcome, Skill)
    assert outcome == skill.with_reference(path, "é".encode())
    assert outcome.read(path) == "é".encode()
    assert outcome.entry().manifest is not None


def test_a_reference_that_is_no_text_is_refused_by_both_adders() -> None:
    skill = Skill("refunds", description=DESCRIPTION, body="x")

    outcome = skill.try_with_reference("a.md", "\udfff")
    with pytest.raises(InvalidSkillError):
        skill.with_reference("a.md", "\udfff")

    assert isinstance(outcome, Finding)
    assert (outcome.code, outcome.file) == ("not-utf8", "a.md")


@pytest.mark.requirement("SDK-04")
def test_adding_a_reference_leaves_the_skill_as_it_was() -> None:
    before = Skill("refunds", description=DESCRIPTION, body="x")

    after = before.with_reference("a.md", "y")

    assert (before.files, len(after.files)) == ((), 1)
    assert before == Skill("refunds", description=DESCRIPTION, body="x") != after
    assert hash(before) == hash(Skill("refunds", description=DESCRIPTION, body="x"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.files = after.files  # pyright: ignore[reportAttributeAccessIssue]  # that is the point
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.files[0].content = b""  # pyright: ignore[reportAttributeAccessIssue]  # that is the point


def test_reading_a_file_the_skill_does_not_have_is_a_key_error() -> None:
    skill = Skill("refunds", description=DESCRIPTION, body="x")

    with pytest.raises(KeyError):
        skill.read("gone.md")


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({"name": "demo"}, "name: demo\n"),
        ({"name": "1e3"}, 'name: "1e3"\n'),
        ({"name": "No"}, 'name: "No"\n'),
        ({"name": 1}, "name: 1\n"),
        ({"yes": "yes", "a b": 1, "x-y_z": True}, '"yes": "yes"\n"a b": 1\nx-y_z: true\n'),
        ({"metadata": {"a": "1.0", "on": "x"}}, 'metadata:\n  a: "1.0"\n  "on": "x"\n'),
        ({"metadata": {}, "v": {}, "w": []}, "metadata: {}\nv: {}\nw: []\n"),
        ({"x": {"a": [None, "b\n"]}}, 'x: {"a": [null, "b\\n"]}\n'),
        ({"x": "\u2028\x85\x7f\ufeff😀é"}, 'x: "\\u2028\\u0085\\u007f\\ufeff😀é"\n'),
        ({"v": 1e16, "w": 1e-7, "x": -0.0}, "v: 1e+16\nw: 1e-07\nx: -0.0\n"),
    ],
)
def test_fields_are_written_so_that_every_reader_takes_them_alike(
    fields: dict[str, JsonValue], written: str
) -> None:
    assert write_frontmatter(fields) == written


TRICKY = [
    *"1e3 0o17 010 0x1F 1_000 yes No on null ~ true 2026-01-02 12:30:45".split(),
    *("", " "),
    *".inf .nan - #a &a *a !a %a @a `a | >".split(),
    *("- a", "? a", ": a", "a: b", "a #b", "!!str a"),
    *(
        "[a]",
        "{a: b}",
        "'a'",
        '"a"',
        "it's",
        "a\\b",
        "\\u0041",
        "---",
        "...",
        "a\nb",
        "a\r\nb",
        "\ta",
        "a\t",
        " a ",
        "\n",
        "\r",
    ),
    *(
        "\u2028",
        "\u2029",
        "\x85",
        "\x00",
        "\x1b",
        "\x7f",
        "\x9f",
        "\ufeff",
        "\ufffe",
        "\uffff",
        "😀",
        "\U0010ffff",
        "<<",
        "=",
        "__proto__",
    ),
]
texts = st.sampled_from(TRICKY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.requirement("FMT-10")
@properties
@given(
    st.dictionaries(
        texts | st.sampled_from(["name", "metadata", "description"]), values, min_size=1, max_size=5
    )
)
@example({text: text for text in TRICKY})
@example({"name": "1e3", "metadata": {text: text for text in TRICKY}})
def test_any_json_fields_are_read_back_as_they_were_written(fields: dict[str, JsonValue]) -> None:
    data = f"---\n{write_frontmatter(fields)}---\nBody".encode()

    document = parse_skill_md(data)

    assert document.body == "Body"
    assert repr(document.frontmatter.fields) == repr(fields)


@properties
@given(texts, st.text(string.printable, max_size=20))
def test_whatever_the_description_and_body_a_skill_is_built_or_refused(description: str, body: str) -> None:
    try:
        skill = Skill("demo", description=description, body=body)
    except InvalidSkillError:
        assert not description.strip()
    else:
        assert skill.frontmatter == Frontmatter({"name": "demo", "description": description})
        assert skill.document.body == "\n" + body
