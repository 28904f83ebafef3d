"""Links in Markdown: found where a reader would see them, in time linear in the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.validation import MarkdownLink, links_in

properties = settings(deadline=None)

PIECES = (
    *("[", "]", "(", ")", "](", "]:", "<", ">", "!", "`", "``", "```", "````", "~~~", "\\", '"', "'", "^"),
    *(" ", "    ", "\t", "\n", "\r\n", "\r", "\u2028", "a", "b.md", "- ", "1. ", "[a](b)", "[a]: b"),
)
almost_markdown = st.lists(st.sampled_from(PIECES) | st.characters(), max_size=30).map("".join)


def targets(markdown: str) -> list[str]:
    return [link.target for link in links_in(markdown)]


# What is a link


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("See [the guide](references/GUIDE.md).", ["references/GUIDE.md"]),
        ("![logo](assets/logo.png)", ["assets/logo.png"]),
        ("[a](b.md) and [c](d.md)", ["b.md", "d.md"]),
        ("[![badge](badge.svg)](target.md)", ["badge.svg", "target.md"]),
        ("[](b.md)", ["b.md"]),
        ("[`code`](b.md)", ["b.md"]),
        ("[a [nested] b](c.md)", ["c.md"]),
        ("- [a](b.md)\n> [c](d.md)\n| [e](f.md) |", ["b.md", "d.md", "f.md"]),
        ("[text over\ntwo lines](b.md)", ["b.md"]),
        ("[a](b.md#part)", ["b.md#part"]),
        ("[a](#part)", ["#part"]),
        ("[a](https://example.com/x?y=1)", ["https://example.com/x?y=1"]),
        ("[a](caf%C3%A9.md) [b](café.md)", ["caf%C3%A9.md", "café.md"]),
        ("[a](b.md)\r\n[c](d.md)\r\n", ["b.md", "d.md"]),
    ],
)
def test_inline_links_and_images_are_found(markdown: str, expected: list[str]) -> None:
    assert targets(markdown) == expected


@pytest.mark.parametrize(
    "markdown",
    [
        '[a](b.md "Title")',
        "[a](b.md 'Title')",
        "[a](b.md (Title))",
        '[a](b.md "")',
        "[a]( b.md )",
        '[a](\tb.md\t"Ti)t(le" )',
        "[a](<b.md>)",
        '[a](<b.md> "Title")',
    ],
)
def test_a_title_is_no_part_of_the_target(markdown: str) -> None:
    assert targets(markdown) == ["b.md"]


@pytest.mark.parametrize(
    ("markdown", "target"),
    [
        ("[a](<b c.md>)", "b c.md"),
        ("[a](<b)c.md>)", "b)c.md"),
        ("[a](b_(c).md)", "b_(c).md"),
        ("[a](b(c))", "b(c)"),
        ("([a](b.md))", "b.md"),
        ("[a](b(c)d(e)f.md)", "b(c)d(e)f.md"),
        ("[a](b().md)", "b().md"),
        ("[a](b[c].md)", "b[c].md"),
        ("[a](b\\c.md)", "b\\c.md"),
    ],
)
def test_brackets_may_be_part_of_a_target(markdown: str, target: str) -> None:
    assert targets(markdown) == [target]


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("[a]: b.md", ["b.md"]),
        ("   [a]: b.md", ["b.md"]),
        ("[a]:b.md", ["b.md"]),
        ("[a]:\t<b c.md>", ["b c.md"]),
        ('[a]: b.md "Title"', ["b.md"]),
        ("[a]: b.md 'Title'  ", ["b.md"]),
        ("[a]: <b.md> (Title)\r", ["b.md"]),
        ("[a]: b.md\r\n[c]: d.md\r\n", ["b.md", "d.md"]),
        ("[`a`]: b.md", ["b.md"]),
        ("[a b c]: https://example.com/(x)", ["https://example.com/(x)"]),
    ],
)
def test_reference_definitions_are_found(markdown: str, expected: list[str]) -> None:
    assert targets(markdown) == expected


# What is none


@pytest.mark.parametrize(
    "markdown",
    [
        "",
        "plain text",
        "[a] (b.md)",
        "[a][b]",
        "[a]",
        "[a]()",
        "[a](<>)",
        "[a](b.md",
        "[a](b c.md)",
        "[a](b.md 'Title\")",
        "[a]\n(b.md)",
        "\\[a\\](b.md)",
        "[a\\](b.md)",
        "[a]`code`(b.md)",
        "[a]`](`(b.md)",
        "[a](b`code`.md)",
        "[a](<b`code`.md>)",
        "[a]: b`code`.md",
        "<b.md>",
        "[^1]: See the docs",
        "[^1]: b.md",
        "[note]: this is a sentence",
        "[ ]: ",
        "[]: b.md",
        "    [a]: b.md",
        "text [a]: b.md",
        "`code` [a]: b.md",
        "- [x]: done",
    ],
)
def test_what_only_resembles_a_link_is_none(markdown: str) -> None:
    assert links_in(markdown) == []


def test_a_line_that_is_no_definition_may_still_hold_links() -> None:
    assert targets("[note]: see [the guide](b.md)") == ["b.md"]
    assert targets("[^1]: see [the guide](b.md)") == ["b.md"]


# Code


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("`[a](b.md)`", []),
        ("`` [a](b.md) ` [c](d.md) ``", []),
        ("```` [a](b.md) ``` [c](d.md) ````", []),
        ("`x` [a](b.md) `y`", ["b.md"]),
        ("`[a](b.md)` [c](d.md) `[e](f.md)`", ["d.md"]),
        ("` [a](b.md)", ["b.md"]),
        ("`` [a](b.md) `", ["b.md"]),
        ("``` [a](b.md) ```", []),
        ("x ``` [a](b.md) ``` y [c](d.md)", ["d.md"]),
        ("\\`[a](b.md)\\`", ["b.md"]),
        ("`x\\` [a](b.md)", ["b.md"]),
        ("`" + "x" * 2_000 + "[a](b.md)`", []),
    ],
)
def test_links_in_code_spans_are_none(markdown: str, expected: list[str]) -> None:
    assert targets(markdown) == expected


@pytest.mark.parametrize(
    "fenced",
    [
        "```\n[a](b.md)\n```",
        "```markdown\n[a](b.md)\n```",
        "~~~\n[a](b.md)\n~~~",
        "~~~ `info` ~~~\n[a](b.md)\n~~~",
        "````\n```\n[a](b.md)\n```\n[a](b.md)\n````",
        "```\n~~~\n[a](b.md)\n```",
        "~~~\n```\n[a](b.md)\n~~~",
        "```\n[a](b.md)\n`````",
        "```\n[a](b.md)\n```   ",
        "```\r\n[a](b.md)\r\n```\r",
        "   ```\n[a](b.md)\n  ```",
        "```\n``` not closed by this\n[a](b.md)\n```",
        "```\n    ```\n[a](b.md)\n```",
        "```\n- ```\n[a](b.md)\n```",
        "1. Step\n\n    ```\n    [a](b.md)\n    ```",
        "- ```sh\n  [a](b.md)\n  ```",
        "10) ~~~\n    [a](b.md)\n    ~~~",
        "\t```\n\t[a](b.md)\n\t```",
    ],
)
def test_links_in_fenced_code_are_none_and_links_after_it_are_found(fenced: str) -> None:
    line = fenced.count("\n") + 2

    assert links_in(f"{fenced}\n[c](d.md)") == [MarkdownLink("d.md", line)]


def test_a_fence_that_is_never_closed_reaches_to_the_end() -> None:
    assert targets("[a](b.md)\n```\n[c](d.md)\n\n[e](f.md)") == ["b.md"]


@pytest.mark.parametrize(
    "markdown", ["```x``` [a](b.md)\n[c](d.md)", "``x\n[a](b.md)\n``\n[c](d.md)", "~~ [a](b.md)\n[c](d.md)"]
)
def test_a_line_that_only_starts_like_a_fence_opens_none(markdown: str) -> None:
    assert targets(markdown) == ["b.md", "d.md"]


# Lines


def test_lines_are_counted_from_the_first_as_editors_count_them() -> None:
    markdown = "one\x0c\u2028\x85 [a](a.md)\r\n\n```\n[no](no.md)\n```\n[b]: b.md\n[c](c.md) [d](d.md)"

    assert links_in(markdown) == [
        MarkdownLink("a.md", 1),
        MarkdownLink("b.md", 6),
        MarkdownLink("c.md", 7),
        MarkdownLink("d.md", 7),
    ]
    assert links_in(markdown, first_line=10)[0] == MarkdownLink("a.md", 10)


@properties
@given(st.lists(st.sampled_from(["", "text", "[a](b.md)", "[a]: b.md", "x\u2028y"]), max_size=20))
def test_each_link_is_on_the_line_it_stands_on(lines: list[str]) -> None:
    expected = [MarkdownLink("b.md", number) for number, line in enumerate(lines, 1) if "b.md" in line]

    assert links_in("\n".join(lines)) == expected


# Any text at all


@properties
@given(almost_markdown)
def test_any_text_gives_links_whose_targets_stand_in_it(markdown: str) -> None:
    lines = markdown.split("\n")

    for link in links_in(markdown):
        assert link.target
        assert link.target in lines[link.line - 1]


@pytest.mark.parametrize(
    "unit",
    [
        *"[ ] ]( []( ![ ](< ](a ](a( ](a()".split(),
        *('](a "', "](a '", "](a (", "]( ", "](\t"),
        *("[a]:", "[a]: b ", "[a](b", "[a](b) ", "\\](", "<", "(", " ", "\t", "- ", "1. ", "]:\n"),
        *("`", "`](", "``](`", "```](", "` ", "~", "~~~\n", "```\n", "```x`\n"),
    ],
)
def test_hostile_repetition_is_read_in_linear_time(unit: str) -> None:
    hostile = unit * (200_000 // len(unit))

    found = [link for text in (hostile, f"[a](b.md) {hostile}](") for link in links_in(text)]

    assert len(found) <= len(hostile)


def test_backtick_runs_of_every_length_are_read_in_linear_time() -> None:
    hostile = " ".join("`" * length for length in range(1, 1_000))

    assert targets(f"[a](b.md) {hostile} [c](d.md)") == ["b.md", "d.md"]


def test_a_target_too_long_for_any_uri_is_passed_over() -> None:
    assert links_in(f"[a]({'x' * 200_000})") == []
    assert links_in(f"[a](<{'x' * 200_000}>)") == []
    assert links_in(f"[a]: {'x' * 200_000}") == []
