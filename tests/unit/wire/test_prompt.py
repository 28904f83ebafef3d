"""The `prompt` dialect: files stitched into one text, and the text taken apart again."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.core.errors import FrontmatterError, LimitError
from skillwire.core.skill import (
    MAX_PROMPT_BYTES,
    PromptBuilder,
    PromptParts,
    Skill,
    join_prompt,
    split_prompt,
)
from skillwire.wire.core import MAX_PROMPT_NAME, is_prompt_name, prompt_item, prompt_result
from unit.wire.payloads import golden, is_valid

SKILL_MD = b"---\nname: tea\ndescription: Use when brewing.\n---\nBoil.\n"

properties = settings(deadline=None, max_examples=200)
segments = st.text(
    st.characters(blacklist_categories=("Cc", "Cs"), blacklist_characters="/\\%"), min_size=1, max_size=6
).filter(lambda segment: segment.strip(".") != "")
paths = (
    st.lists(segments, min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda path: "://" not in path and path.casefold() != "skill.md")
)
# Lines that look like separators, or nearly so, come often.
pieces = st.sampled_from(
    [
        "\n",
        "\n\n",
        "--- a ---",
        "--- b/c ---\n",
        "--- /x ---",
        "\r\n",
        "x",
        " ",
        "- a\n",
        "\n\n--- a ---\n",
        "é",
    ]
) | st.text(st.characters(blacklist_categories=("Cs",)), max_size=8)
bodies = st.lists(pieces, max_size=6).map("".join).map(str.encode)
references = st.lists(st.tuples(paths, bodies), max_size=4, unique_by=lambda item: item[0])


def text_of(skill_md: bytes, files: list[tuple[str, bytes]]) -> str:
    stitching = PromptBuilder(skill_md)
    for path, content in files:
        stitching.add(path, content)
    return stitching.finish().text


@pytest.mark.requirement("DUAL-02", "DUAL-11")
def test_a_skill_gives_its_own_prompt_text_with_files_in_the_order_they_were_added() -> None:
    skill = Skill("tea", body=SKILL_MD[:-1])
    skill = (
        skill.with_reference("b.md", "B").with_reference("leaf.png", b"\xff").with_reference("a.md", "A\n")
    )

    assert skill.prompt_text() == (
        SKILL_MD.decode()
        + "\n--- b.md ---\nB\n\n--- a.md ---\nA\n"
        + "\n--- / not included, because they are not text: / ---\n- leaf.png\n"
    )


def test_a_skill_of_more_text_than_a_prompt_may_have_has_no_prompt_text() -> None:
    with pytest.raises(LimitError):
        Skill("tea", body=SKILL_MD).with_reference("big.md", b"x" * MAX_PROMPT_BYTES).prompt_text()


@pytest.mark.requirement("DUAL-02", "DUAL-11")
def test_files_follow_each_other_under_their_paths_and_what_is_no_text_is_named_at_the_end() -> None:
    skill = Skill(
        "code-mode",
        body="---\nname: code-mode\ndescription: Writes queries. Use when asked for data.\n---\n\n"
        "# Code mode\n\nRead the schema first.",
    )
    stitching = PromptBuilder(skill.skill_md)
    stitching.add("references/schema.graphql", b"type Query { order(id: ID!): Order }")
    stitching.add("assets/logo.png", b"\x89PNG\r\n\x1a\n\xff")
    stitching.add("references/examples.md", b"# Examples\r\n")
    stitching.add("references/nothing.md", b"")

    made = stitching.finish()

    assert prompt_result(skill.entry(), made.text) == golden("prompt-get")
    assert (made.omitted, made.ambiguous) == (("assets/logo.png",), ())


@pytest.mark.requirement("DUAL-02")
@pytest.mark.parametrize(
    ("skill_md", "content", "expected"),
    [
        (b"S", b"a", b"S\n\n--- p ---\na\n"),
        (b"S\n", b"a\n", b"S\n\n--- p ---\na\n"),
        (b"S\r\n", b"a\r\n", b"S\r\n\n--- p ---\na\r\n"),
        (b"S\r", b"a\n\n", b"S\r\n\n--- p ---\na\n\n"),
        (b"\xef\xbb\xbfS", b"", b"\xef\xbb\xbfS\n\n--- p ---\n\n"),
        (b"S\n", b"\xff\x00", b"S\n\n--- p ---\n\xff\x00\n"),
    ],
)
def test_a_newline_is_added_where_one_is_missing_and_nothing_else_changes(
    skill_md: bytes, content: bytes, expected: bytes
) -> None:
    assert join_prompt(skill_md, [("p", content)]) == expected


@pytest.mark.requirement("DUAL-02")
@properties
@given(references)
def test_the_text_of_a_prompt_is_the_stitched_bytes_of_its_text_files(files: list[tuple[str, bytes]]) -> None:
    assert text_of(SKILL_MD, files).encode() == join_prompt(SKILL_MD, files)


@pytest.mark.requirement("DUAL-03")
@properties
@given(references, st.lists(paths, max_size=2, unique=True))
def test_a_text_without_ambiguous_files_is_taken_apart_into_its_files(
    files: list[tuple[str, bytes]], binaries: list[str]
) -> None:
    binaries = [path for path in binaries if path not in dict(files)]
    every = [path for path, _ in files] + binaries
    stitching = PromptBuilder(SKILL_MD)
    for path, content in files:
        stitching.add(path, content)
    for path in binaries:
        stitching.add(path, b"\xff")
    made = stitching.finish()

    parts = split_prompt(made.text)

    is_tree = not any(one.startswith(f"{other}/") for one in every for other in every)
    if not made.ambiguous and is_tree:
        ended = [(path, body if body.endswith("\n") else body + "\n") for path, body in _decoded(files)]
        assert parts == PromptParts(SKILL_MD.decode(), tuple(ended), tuple(binaries))


@pytest.mark.requirement("DUAL-03")
@properties
@given(bodies, references)
@example(b"\n\n--- a ---\n", [("b", b"\n--- c ---\n"), ("d", b"\n\n--- b ---\n")])
@example(b"", [("a", b"x\n\n--- b ---\n")])
def test_whatever_a_text_is_taken_apart_into_gives_the_text_again(
    body: bytes, files: list[tuple[str, bytes]]
) -> None:
    text = text_of(SKILL_MD + body, files)

    parts = split_prompt(text)

    again = text_of(parts.skill_md.encode(), [(path, part.encode()) for path, part in parts.references])
    note = text[len(again) :]
    assert text.startswith(again)
    assert bool(note) == bool(parts.omitted)
    assert all(f"- {path}\n" in note for path in parts.omitted)


@pytest.mark.requirement("DUAL-11")
def test_a_file_with_a_line_like_a_separator_is_named() -> None:
    stitching = PromptBuilder(SKILL_MD)
    stitching.add("a.md", b"x\n\n--- scripts/run.sh ---\nrm\n")
    stitching.add("b.md", b"x\n--- no empty line before ---\n")
    stitching.add("c.md", b"x\n\n--- /absolute ---\n")
    stitching.add("d.md", b"x\n\n--- / not included, because they are not text: / ---\n- a\n")

    made = stitching.finish()

    assert made.ambiguous == ("a.md", "d.md")
    assert [path for path, _ in split_prompt(made.text).references] == [
        "a.md",
        "scripts/run.sh",
        "b.md",
        "c.md",
        "d.md",
    ]


@pytest.mark.parametrize(
    "labels",
    [
        ["a.md", "a.md"],
        ["SKILL.md"],
        ["a", "a/b"],
        ["a/b/c", "a"],
        [f"f{number}" for number in range(512)],
    ],
)
def test_a_text_whose_labels_contradict_each_other_is_kept_whole(labels: list[str]) -> None:
    text = join_prompt(SKILL_MD, [(label, b"x\n") for label in labels]).decode()

    assert split_prompt(text) == PromptParts(text, is_whole=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Read skill://tea/SKILL.md",
        "---\nname: [\n---\n",
        "---\nname: tea\n\n--- a ---\n---\n",
        "---\nname: \ud800\n---\n",
    ],
)
def test_a_text_that_does_not_start_like_a_skill_is_none(text: str) -> None:
    with pytest.raises(FrontmatterError):
        split_prompt(text)


@pytest.mark.requirement("OPEN-16")
def test_a_text_may_have_a_mebibyte_and_not_a_byte_more() -> None:
    head = len(join_prompt(SKILL_MD, [("big.md", b"\n")]))
    largest = b"x" * (MAX_PROMPT_BYTES - head) + b"\n"
    stitching = PromptBuilder(SKILL_MD)
    stitching.add("big.md", largest)

    assert len(stitching.finish().text.encode()) == MAX_PROMPT_BYTES
    with pytest.raises(LimitError):
        PromptBuilder(SKILL_MD).add("big.md", b"x" + largest)
    with pytest.raises(LimitError):
        PromptBuilder(SKILL_MD + largest + b"x" * 100)


@pytest.mark.requirement("OPEN-16")
def test_what_is_no_text_takes_no_room_but_that_of_its_name() -> None:
    stitching = PromptBuilder(SKILL_MD)

    stitching.add("big.bin", b"\xff" * (2 * MAX_PROMPT_BYTES))

    assert stitching.finish().text.endswith("- big.bin\n")


@pytest.mark.requirement("OPEN-16")
def test_the_note_counts_as_text_too() -> None:
    stitching = PromptBuilder(SKILL_MD)
    stitching.add("big.md", b"x" * (MAX_PROMPT_BYTES - 150))
    for number in range(20):
        stitching.add(f"{number:010}.bin", b"\xff")

    with pytest.raises(LimitError):
        stitching.finish()


def test_a_skill_md_that_is_no_text_has_no_prompt() -> None:
    with pytest.raises(FrontmatterError):
        PromptBuilder(SKILL_MD + b"\xff")


@pytest.mark.requirement("DUAL-01")
@pytest.mark.parametrize("name", ["start_code_mode", "acme/refunds", "A.b-c", "0", "x" * MAX_PROMPT_NAME])
def test_a_plain_name_may_be_a_prompts(name: str) -> None:
    assert is_prompt_name(name)


@pytest.mark.requirement("DUAL-01")
@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a\n", "é", "-a", "/a", "a:b", "a\0", "x" * (MAX_PROMPT_NAME + 1)]
)
def test_a_name_that_needs_quoting_may_not(name: str) -> None:
    assert not is_prompt_name(name)


@pytest.mark.requirement("DUAL-04", "DUAL-05")
def test_the_schema_tells_what_is_sent_from_what_must_not_be() -> None:
    entry = Skill("tea", body=SKILL_MD).entry()
    good = prompt_result(entry, SKILL_MD.decode())
    pointer = prompt_result(entry, "Read skill://tea/SKILL.md")
    twice = {**good, "messages": good["messages"] * 2}

    assert is_valid("prompt", {"prompts": [prompt_item("tea", entry)]})
    assert [is_valid("prompt", result) for result in (good, pointer, twice)] == [True, False, False]


def _decoded(files: list[tuple[str, bytes]]) -> list[tuple[str, str]]:
    return [(path, content.decode()) for path, content in files]
