"""The shortcut for plain entries: it is taken, never for what is unusual, and changes no answer."""

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.entry import (
    DYNAMIC,
    JsonObject,
    SkillEntry,
    are_plain_fields,
    check_entries,
    check_entry,
    parse_entry,
    plain_entries,
    plain_manifest,
)
from skillwire.core.finding import SKILL_FILE, Finding
from skillwire.core.manifest import MAX_JSON_SIZE, digest_of
from skillwire.core.uri import MAX_PLAIN_LENGTH, MAX_URI_LENGTH
from skillwire.core.yaml12 import MAX_NODES, JsonValue

ROOT = "skill://acme/billing/refunds"
DIGEST = digest_of(b"text")
SELF: JsonObject = {"uri": f"{ROOT}/SKILL.md", "digest": DIGEST, "size": 4}
GUIDE: JsonObject = {"uri": f"{ROOT}/references/guide.md", "digest": DIGEST, "size": 4}
FRONTMATTER: JsonObject = {"name": "refunds", "description": "Refunds money. Use when asked."}
ENTRY: JsonObject = {"uri": f"{ROOT}/SKILL.md", "frontmatter": FRONTMATTER, "resources": [SELF, GUIDE]}


def test_an_entry_of_the_common_shape_takes_the_shortcut() -> None:
    resources = cast("list[JsonObject]", ENTRY["resources"])

    assert are_plain_fields(FRONTMATTER)
    assert are_plain_fields(
        {**FRONTMATTER, "metadata": {"owner": "é"}, "license": "MIT", "compatibility": "x"}
    )
    assert plain_manifest(f"{ROOT}/", resources) == parse_entry(ENTRY).manifest
    assert plain_entries([ENTRY]) == [(ENTRY["uri"], FRONTMATTER, parse_entry(ENTRY).manifest)]


@pytest.mark.parametrize(
    "description",
    [
        "Refunds for orders.",
        "Ask before you pay.",
        "Pays if asked.",
        "Things to use often.",
        "Pays when due.",
    ],
)
def test_common_ways_to_say_when_a_skill_is_for_take_the_shortcut(description: str) -> None:
    assert are_plain_fields({**FRONTMATTER, "description": description})


@pytest.mark.parametrize(
    "odd",
    [
        *({**ENTRY, "_meta": {}}, {**ENTRY, "resources": DYNAMIC}, {**ENTRY, "resources": []}, {}, [], None),
        *({**ENTRY, "uri": "skill://acme/billing/other/SKILL.md"}, {**ENTRY, "uri": None}),
        {**ENTRY, "frontmatter": {**FRONTMATTER, "description": "Vague."}},
        {**ENTRY, "uri": f"skill://a b/refunds/{SKILL_FILE}", "resources": []},
        {**ENTRY, "resources": [SELF, {**GUIDE, "uri": f"{ROOT}/a b.md"}]},
        {**ENTRY, "resources": [SELF, {**GUIDE, "digest": DIGEST.upper()}]},
        {**ENTRY, "resources": [SELF, {**GUIDE, "size": -1}]},
    ],
    ids=lambda odd: ascii(odd)[:50],
)
def test_an_odd_entry_takes_no_shortcut_and_its_neighbours_do(odd: object) -> None:
    (plain,) = plain_entries([ENTRY])

    assert plain is not None
    assert plain_entries([ENTRY, odd, ENTRY]) == [plain, None, plain]


def test_a_shortcut_never_takes_what_is_unusual() -> None:
    unusual: list[JsonObject] = [
        {**GUIDE, "uri": f"{ROOT}/a\n{ROOT}/b"},
        {**GUIDE, "uri": f"{ROOT}/{'a' * (MAX_PLAIN_LENGTH + 1)}"},
        {**GUIDE, "digest": f"{DIGEST}\n{DIGEST}"},
        {**GUIDE, "size": True},
        {**GUIDE, "more": 1},
        SELF,
    ]

    assert [plain_manifest(f"{ROOT}/", [SELF, line]) for line in unusual] == [None] * len(unusual)
    assert plain_manifest(f"{ROOT}/", [GUIDE]) is None
    assert (
        plain_manifest(f"{ROOT}/", [{**SELF, "uri": "a"}, {**SELF, "uri": f"{SELF['uri']}\n{ROOT}/b"}])
        is None
    )
    assert plain_manifest("skill://acme/billing/", [SELF, GUIDE]) is None
    long = f"skill://{'a' * (MAX_URI_LENGTH - MAX_PLAIN_LENGTH)}/"
    assert plain_manifest(long, [{**SELF, "uri": f"{long}SKILL.md"}]) is None


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"name": "Refunds"},
            {"name": ""},
            {"name": None},
            {"description": "Vague."},
            {"description": None},
        ),
        *({"description": "x when " * 147}, {"compatibility": ""}, {"compatibility": "x" * 501}),
        *({"metadata": None}, {"metadata": []}, {"metadata": {"a": 1}}, {"metadata": {1: "a"}}),
        *({"metadata": {"io.modelcontextprotocol/x": "y"}}, {"license": 1}, {"allowed-tools": ["Read"]}),
        *({"hooks": "x"}, {"license": "\ud800"}, {"metadata": {"\ud800": ""}}, {"metadata": {"a": {}}}),
        {"metadata": {f"k{number}": "v" for number in range(MAX_NODES // 2)}},
    ],
    ids=lambda changes: ascii(changes)[:50],
)
def test_frontmatter_there_is_something_to_say_about_is_not_plain(changes: dict[str, object]) -> None:
    assert not are_plain_fields({**FRONTMATTER, **changes})


USUAL: list[JsonObject] = [
    ENTRY,
    {**ENTRY, "resources": [GUIDE, SELF]},
    {
        "uri": "skill://hello/SKILL.md",
        "frontmatter": {"name": "hello", "description": "Use when greeted.", "metadata": {"a": "b"}},
        "resources": [{**SELF, "uri": "skill://hello/SKILL.md"}],
    },
]
roots = st.sampled_from(
    [
        *(ROOT, "skill://refunds", "SKILL://acme/refunds", "skill://acme/%72efunds", "github://o/r/refunds"),
        *("skill://a%20b/refunds", "skill://ac%6De/refunds", "skill://é/refunds", "skill://acme/Q&A/refunds"),
        *("skill://acme/other", "file://acme/refunds", "skill://acme//refunds", "skill://acme/refunds/"),
        *(f"skill://{'a' * length}/refunds" for length in (4000, MAX_URI_LENGTH - MAX_PLAIN_LENGTH - 17)),
        *(f"skill://{'a' * (MAX_URI_LENGTH - more)}/refunds" for more in (25, 24, 23)),
    ]
)
paths = st.sampled_from(
    [
        *("SKILL.md", "SKILL.md/x", "skill.md", "a.md", "b/c.md", "a", "A", "a-", "a/", "/a", "", ".", ".."),
        *"a%20b %61 a%2Fb a%2fb %2e%2e %C3%A9 a//b ./a".split(),
        *("a\nb", "a\n", "\na", "a b", "é"),
        *"..a .a a.. ... a:b a@b ~ a?b a#b".split(),
        *("\ud800", "\x00", "a\\b", "😀", "a" * 64),
        *("a" * length for length in (MAX_PLAIN_LENGTH - 1, MAX_PLAIN_LENGTH, MAX_PLAIN_LENGTH + 1)),
        *("a/" * 50 + "a", "a" * MAX_URI_LENGTH),
    ]
)
digests = st.sampled_from(
    [
        *(
            DIGEST,
            digest_of(b"other"),
            DIGEST.upper(),
            DIGEST[:-1],
            DIGEST + "0",
            DIGEST + "\n",
            "\n" + DIGEST,
        ),
        *(f"{DIGEST}\n{DIGEST}", "sha256:" + "٠" * 64, "", "\n", "0" + DIGEST[:-1]),
    ]
)
sizes = st.sampled_from([0, 4, 2**53, MAX_JSON_SIZE, MAX_JSON_SIZE + 1, -1, True, 4.0, "4", None])
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
odd: st.SearchStrategy[object] = st.one_of(
    json_values,
    st.sampled_from(
        [
            *(
                "\ud800",
                "\udc00x",
                "é",
                "Use when é.",
                "",
                " ",
                "x" * 65,
                "x" * 1025,
                float("nan"),
                float("inf"),
            ),
            *(
                2**53,
                2**64,
                -(2**63) - 1,
                b"x",
                ("x",),
                {1: "x"},
                {"k": {"k": "x"}},
                {"k": "\ud800"},
                {"k": 1},
            ),
            *({"io.modelcontextprotocol/x": "y"}, {"k": "io.modelcontextprotocol/"}, [[[None]]], [""]),
        ]
    ),
)
field_names = st.sampled_from(
    ["name", "description", "license", "compatibility", "metadata", "allowed-tools", "x", "\ud800", "é\n"]
)


@st.composite
def resource_lines(draw: st.DrawFn, root: str) -> object:
    """Draw lines that are mostly right."""
    usual = [
        {"uri": f"{root}/{path}", "digest": digest_of(path.encode()), "size": 4}
        for path in draw(st.permutations(["SKILL.md", "a.md", "b/c.md"]))
    ]
    lines: list[object] = [*usual]
    for _ in range(draw(st.integers(0, 2))):
        line: dict[str, object] = dict(draw(st.sampled_from(usual)))
        match draw(
            st.sampled_from(["uri", "digest", "size", "foreign", "drop", "more", "odd", "copy", "remove"])
        ):
            case "uri":
                line["uri"] = f"{root}/{draw(paths)}"
            case "foreign":
                line["uri"] = draw(roots) + "/" + draw(paths)
            case "digest":
                line["digest"] = draw(digests)
            case "size":
                line["size"] = draw(sizes)
            case "drop":
                del line[draw(st.sampled_from(["uri", "digest", "size"]))]
            case "more":
                line[draw(st.sampled_from(["uri", "digest", "size", "_meta"]))] = draw(odd)
            case "odd":
                lines.append(draw(odd))
                continue
            case "remove":
                del lines[draw(st.integers(0, len(lines) - 1))]
                continue
            case _:
                pass
        if draw(st.booleans()) and lines:
            lines[draw(st.integers(0, len(lines) - 1))] = line
        else:
            lines.append(line)
    return draw(st.one_of(st.just(lines), st.just(DYNAMIC), odd)) if draw(st.booleans()) else lines


@st.composite
def entries(draw: st.DrawFn) -> object:
    """Draw entries that are mostly right, with something odd in them now and then."""
    root = draw(roots)
    fields: dict[object, object] = {
        "name": "refunds",
        "description": draw(
            st.sampled_from(["Use when asked.", "Refunds when due.", "Vague.", "x when " * 147])
        ),
        **draw(
            st.fixed_dictionaries({}, optional={"metadata": st.dictionaries(st.text(max_size=3), st.text())})
        ),
    }
    for _ in range(draw(st.integers(0, 2))):
        fields[draw(field_names)] = draw(odd)
    entry: dict[str, object] = {
        "uri": f"{root}/SKILL.md",
        "frontmatter": fields,
        "resources": draw(resource_lines(root)),
    }
    if draw(st.integers(0, 9)) == 0:
        entry[draw(st.sampled_from([*entry, "_meta"]))] = draw(odd)
    return entry


@pytest.mark.requirement("LIST-11")
@settings(deadline=None, max_examples=400)
@given(entries())
def test_the_shortcut_and_the_careful_reading_say_the_same(value: object) -> None:
    quick, careful = check_entry(value), check_entry(value, shortcuts=False)

    assert told(*quick) == told(*careful)


@pytest.mark.requirement("LIST-11")
@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(USUAL) | entries(), max_size=8))
def test_entries_that_are_read_together_are_what_each_of_them_is_alone(values: list[object]) -> None:
    together = list(check_entries(values))

    assert [told(*answer) for answer in together] == [
        told(*check_entry(value, shortcuts=False)) for value in values
    ]


@pytest.mark.parametrize(
    ("member", "halves"),
    [
        ("digest", (f"{DIGEST}\n{DIGEST}", "")),
        ("digest", ("", f"{DIGEST}\n{DIGEST}")),
        ("digest", (DIGEST + "0", DIGEST[:-1])),
        ("uri", (f"{ROOT}/a\n{ROOT}/b", f"{ROOT}/")),
        ("uri", (f"{ROOT}/a\n", f"{ROOT}/\nb")),
    ],
)
def test_two_odd_entries_do_not_make_up_for_each_other(member: str, halves: tuple[str, str]) -> None:
    values: list[object] = [{**ENTRY, "resources": [SELF, {**GUIDE, member: half}]} for half in halves]

    assert plain_entries(values) == [None, None]
    assert list(check_entries(values)) == [check_entry(value, shortcuts=False) for value in values]


@pytest.mark.requirement("LIST-11")
def test_a_value_that_is_nested_too_deep_to_be_compared_costs_only_its_entry() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    lines = [{**SELF, "uri": deep}, {**SELF, "uri": deep}]
    others = [{**SELF, "digest": deep}, {**SELF, "digest": deep}]
    values: list[object] = [ENTRY, {**ENTRY, "resources": lines}, {**ENTRY, "resources": others}]

    good, *bad = check_entries(values)

    assert good == (parse_entry(ENTRY), [])
    assert [(entry, [finding.code for finding in findings]) for entry, findings in bad] == [
        (None, ["resource-invalid"])
    ] * 2


def told(entry: SkillEntry | None, findings: list[Finding]) -> tuple[object, ...]:
    """Return everything there is to know about an answer, what does not count for equality included."""
    if entry is None:
        return None, findings
    manifest = entry.manifest
    columns = (
        None if manifest is None else (manifest.base, manifest.files, manifest.spellings, manifest.extras)
    )
    return entry, entry.uri.spelling, entry.extra, entry.to_json(), columns, findings
