"""Questions in words: origin first, a stranger's words behind a bar, nothing hidden or silently left out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.characters import visible
from skillwire.host.model.approval import Change, Occasion, Question, Reply
from skillwire.host.model.origin import KnownSkill
from skillwire.host.use.question import (
    BAR,
    LONGEST_LINE,
    LONGEST_NAME,
    MARGIN,
    MOST_FILES,
    Paragraph,
    ask_in_terminal,
    choices_of,
    columns_of,
    final_question,
    lines_of,
    one_line,
    paragraphs_of,
    text_of_question,
)
from unit.host.known_skills import known, server


def described(description: str, **fields: object) -> KnownSkill:
    """Return a skill that says this of itself, as no honest server would publish it."""
    skill = known()
    values = {"name": "refunds", "description": description, **fields}
    return replace(skill, entry=replace(skill.entry, frontmatter=Frontmatter(values)))  # pyright: ignore[reportArgumentType] - any JSON


@pytest.mark.requirement("SEC-12")
def test_the_origin_stands_first_and_again_beside_the_answer() -> None:
    question = Question(Occasion.FIRST, known(files={"scripts/run.sh": b"echo\n"}))

    lines = text_of_question(question).split("\n")

    assert lines[:4] == [
        "A skill would be loaded for the first time.",
        "From: MCP server acme, a name you gave it",
        "Skill: acme/refunds",
        "Its address there:",
    ]
    assert "! Scripts (1; loading does not run them):" in lines
    assert final_question(question) == "Load acme/refunds from MCP server acme?"


@given(st.text(max_size=300), st.integers(min_value=10, max_value=90))
def test_no_text_starts_a_line_without_a_bar_at_any_width(text: str, width: int) -> None:
    question = Question(
        Occasion.CHANGED, described(text, **{"allowed-tools": text}), change=Change(), uri=text, call=text
    )
    plain = Question(
        Occasion.CHANGED, described("x", **{"allowed-tools": "x"}), change=Change(), uri="x", call="x"
    )

    lines = list(lines_of(paragraphs_of(question), width))

    own = [str(line) for line in lines if not line.is_untrusted]
    if one_line(text):
        expected = [str(line) for line in lines_of(paragraphs_of(plain), width) if not line.is_untrusted]
        assert [line for line in own if "tools" not in line] == [
            line for line in expected if "tools" not in line
        ]
    for line in lines:
        assert visible(line.text) == line.text
        assert line.lead == MARGIN + BAR or not line.is_untrusted
        assert sum(map(columns_of, f"{line.lead}{line.text}")) <= width


def test_a_text_is_cut_only_with_a_sign_of_it() -> None:
    assert one_line("short" + " " * 5000 + "evil") == "short…"
    assert one_line("x" * 600) == "x" * LONGEST_LINE + "…"
    assert one_line(" a \r\n\t b\x1b[0m ") == "a b<U+001B>[0m"


def test_a_reference_of_any_length_leaves_room_for_its_origin() -> None:
    skill = replace(known(origin=server("bank")), reference="bank/" + "a/" * 5000 + "refunds")

    demand = final_question(Question(Occasion.FIRST, skill))

    assert demand.endswith("refunds from MCP server bank?")
    assert len(demand) < LONGEST_NAME + 60


def test_a_description_is_shown_whole() -> None:
    [shown] = [
        paragraph
        for paragraph in paragraphs_of(Question(Occasion.FIRST, described("y" * 1024)))
        if paragraph.heading == "Description by its author"
    ]

    assert shown.lines == ("y" * 1024,)


def test_changes_name_scripts_first_and_say_what_became_of_each_file() -> None:
    skill = known(files={"scripts/new.sh": b"x", "a.md": b"x"})
    root = skill.entry.uri.root
    change = Change((f"{root}/scripts/new.sh",), (f"{root}/old.md",), (f"{root}/a.md",))

    text = text_of_question(Question(Occasion.CHANGED, skill, change=change))

    assert (
        "! What changed since you approved it:\n"
        "  | added the script scripts/new.sh\n"
        "  | changed a.md\n"
        "  | removed old.md\n"
    ) in text


@pytest.mark.requirement("APPR-02")
def test_content_that_came_back_is_said_to_have_been_something_else() -> None:
    text = text_of_question(Question(Occasion.CHANGED, known(), change=Change()))

    heading = "! What changed since you approved it"
    words = "nothing now: it changed in between, or the approval was revoked"
    assert f"{heading}: {words}" in text


def test_files_that_are_left_out_are_counted_in_the_hosts_own_words() -> None:
    files = {f"references/{number:03}.md": b"x" for number in range(MOST_FILES + 5)}

    lines = text_of_question(Question(Occasion.FIRST, known(files=files))).split("\n")

    assert lines[-1] == "  … and 6 more"


def test_names_keep_the_spaces_that_tell_them_apart() -> None:
    text = text_of_question(Question(Occasion.FIRST, known(files={"a b.md": b"x", "a  b.md": b"x"})))

    assert "bytes  a b.md" in text and "bytes  a  b.md" in text


@pytest.mark.parametrize("value", ["Bash(git:*) Read", ["Bash(git:*)", "Read"], {"Bash": True}, 7])
def test_every_tool_that_is_asked_for_is_named_patterns_and_all(value: object) -> None:
    text = text_of_question(Question(Occasion.FIRST, described("x", **{"allowed-tools": value})))

    assert "! It asks for these tools (loading does not grant them):\n  | " in text
    assert str(value)[:4].strip("[{'") in text.rpartition("grant them")[2]


@pytest.mark.requirement("SEC-07")
def test_a_script_is_shown_to_its_last_column() -> None:
    script = "echo ok" + " " * 2000 + "; rm -rf /\n\techo\x1b[8m\n"
    question = Question(
        Occasion.SCRIPTS,
        known(),
        uri="skill://shop/refunds/scripts/run.sh",
        script="scripts/run.sh",
        script_digest="sha256:" + "0" * 64,
        script_content=script.encode(),
    )

    text = text_of_question(question, 80)

    assert "| ; rm -rf /" in text.replace("  ", "").replace("|;", "| ;")
    assert "  |     echo<U+001B>[8m" in text
    assert "sha256:" + "0" * 64 in text.replace("\n  ", "")


def test_a_question_about_two_servers_names_both() -> None:
    question = Question(Occasion.CROSS_ORIGIN, known(), servers=("acme", "bank"), uri="skill://x/SKILL.md")

    assert "Servers:\n  acme\n  bank\n" in text_of_question(question)


def test_an_offline_copy_is_said_to_be_one_before_anything_of_the_server() -> None:
    lines = text_of_question(Question(Occasion.FIRST, known(offline_since="2026-09-08"))).split("\n")

    assert lines[3] == "! Offline: server unreachable; this is the cached copy you approved on 2026-09-08"


def test_the_safe_answer_is_the_first_and_only_what_can_be_kept_is_offered() -> None:
    assert choices_of(Question(Occasion.FIRST, known())) == (Reply.DENY, Reply.ONCE, Reply.ALWAYS)
    assert choices_of(Question(Occasion.DYNAMIC, known(is_dynamic=True))) == (Reply.DENY, Reply.ONCE)
    assert choices_of(Question(Occasion.CALL, known(), call="x")) == (Reply.DENY, Reply.ONCE)


def test_an_own_line_that_is_broken_goes_on_further_in() -> None:
    lines = [
        str(line) for line in lines_of([Paragraph("From", ("MCP server acme, a name you gave it",))], 24)
    ]

    assert lines == ["From: MCP server acme,", "  a name you gave it"]


@pytest.mark.anyio
async def test_without_a_terminal_the_answer_is_no() -> None:
    assert await ask_in_terminal(Question(Occasion.FIRST, known())) is Reply.DENY
