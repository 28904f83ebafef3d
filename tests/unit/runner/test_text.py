"""What a script wrote becomes text that moves no cursor and hides nothing, or a JSON object, or neither."""

import json
import time
from typing import cast

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from skillwire.core.characters import hidden_characters
from skillwire.runner.redaction import MAX_STRUCTURED, Redactor, shown_text, structured_from

MEBI = 1024 * 1024
properties = settings(deadline=None)

CONTROLS = "".join(map(chr, (*range(9), *range(11, 32), *range(127, 160))))
LINES = "\u2028\u2029"
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ZERO_WIDTH = "\u00ad\u200b\u2060\u2064\ufeff\ufff9\ufffb"
NEVER = frozenset(CONTROLS + LINES + BIDI + ZERO_WIDTH)
CONTEXTUAL = "\u200c\u200d\ufe0e\ufe0f\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e007f"
ANY = st.text(
    st.characters(codec="utf-8") | st.sampled_from(sorted(NEVER | set(CONTEXTUAL)) + list("😀a[];0m\\Pक"))
)


def shown(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return shown_text(raw, total=len(raw), keep=MEBI)


# What is taken out


@pytest.mark.requirement("EXEC-10")
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("", ""),
        ("plain\ttext\n", "plain\ttext\n"),
        ("one\r\ntwo\rthree\n", "one\ntwo\nthree\n"),
        ("a\u2028b\u2029c", "a\nb\nc"),
        ("a\x00b\x07c\x08d\x0be\x7ff\x85g", "abcdefg"),
        ("\ufeffstart", "start"),
        ("pass\u200bword", "password"),
        ("if\u202e admin\u2066:\u2069", "if admin:"),
        ("hi\U000e0072\U000e0075\U000e006e!", "hi!"),
    ],
)
def test_characters_that_hide_or_act_are_taken_out(raw: str, text: str) -> None:
    assert shown(raw) == text


@pytest.mark.requirement("EXEC-10")
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;2;1;2;3mred\x1b[m", "red"),
        ("\x9b31mred\x9bm", "red"),
        ("\x1b[?25l\x1b[2J\x1b[1;1Htop", "top"),
        ("\x1b[>4;2m\x1b[ qx", "x"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]0;a title\x1b\\text", "text"),
        ("\x9d0;a title\x9ctext", "text"),
        ("\x1b]8;;https://evil.example/\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;cm0gLXJm\x07copied", "copied"),
        ("\x1b]0;given up\x1b[1mbold", "bold"),
        ("\x1b]0;given up\x18text", "text"),
        ("\x1bPq#0;2;0;0;0\n#0!9~\x1b\\image", "image"),
        ("\x1b_Gf=24;AAAA\x1b\\picture", "picture"),
        ("\x1b^private\x1b\\\x1bXstring\x9cx", "x"),
        ("\x1b(B\x1b)0\x1b7\x1b8\x1bcreset", "reset"),
        ("\x1b", ""),
        ("cut\x1b[38;5", "cut"),
        ("\x1b\x1b[0m[31mnot red", "[31mnot red"),
        ("\x1b[\nline", "\nline"),
        ("\x1b[31\x1b[32mgreen", "green"),
    ],
)
def test_what_a_terminal_would_obey_goes_as_a_whole(raw: str, text: str) -> None:
    assert shown(raw) == text


@pytest.mark.requirement("EXEC-10")
def test_a_title_without_end_hides_no_lines() -> None:
    assert shown("\x1b]0;title\nimportant\n\x07") == "0;title\nimportant\n"
    assert shown("\x1b]" + "x" * 70_000 + "\x07") == "x" * 70_000
    assert shown("\x1bP" + "x" * 70_000) == "x" * 70_000


@pytest.mark.requirement("EXEC-10")
@pytest.mark.parametrize(
    "text",
    [
        "👨\u200d👩\u200d👧 👩🏽\u200d🚀 ❤\ufe0f 1\ufe0f\u20e3 🏳\ufe0f\u200d🌈",
        "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        "می\u200cخواهم خانه\u200cها",
        "क्\u200dष ශ්\u200dරී",
        "naïve Ελληνικά русский 日本語 한국어 ภาษาไทย",
        "Cafe\u0301\u00a0½ → ∀",
    ],
)
def test_writing_of_any_language_stays(text: str) -> None:
    assert shown(text) == text


@pytest.mark.requirement("EXEC-10")
def test_bytes_that_are_no_text_become_marks() -> None:
    assert shown(b"a\xff\xfeb") == "a\ufffd\ufffdb"
    assert shown(b"\xed\xa0\x80") == "\ufffd" * 3
    assert shown(b"\x9b31m") == "\ufffd31m"
    assert shown(b"end\xe2\x82") == "end\ufffd"


# What is too long


@pytest.mark.requirement("EXEC-12")
def test_a_last_line_says_how_much_is_missing() -> None:
    assert shown_text(b"abcdef", total=6, keep=6) == "abcdef"
    assert shown_text(b"abcdef", total=100, keep=6) == "abcdef\n[truncated: 6 of 100 bytes]"
    assert shown_text(b"abcdef", total=6, keep=4) == "abcd\n[truncated: 4 of 6 bytes]"
    assert shown_text(b"", total=9, keep=0) == "\n[truncated: 0 of 9 bytes]"


def test_a_character_that_was_cut_in_half_is_left_out() -> None:
    assert shown_text("ab€".encode()[:4], total=9, keep=4) == "ab\n[truncated: 4 of 9 bytes]"
    assert shown_text("ab€".encode(), total=5, keep=4) == "ab\n[truncated: 4 of 5 bytes]"


def test_what_became_shorter_by_redaction_was_not_truncated() -> None:
    secret = b"a-rather-long-secret-value"
    redacted = Redactor({"K": secret}).redact(secret)

    assert shown_text(redacted, total=len(secret), keep=64) == "[redacted:K]"


# Secrets


@pytest.mark.requirement("EXEC-11")
def test_a_secret_that_only_stripping_puts_together_is_redacted() -> None:
    redactor = Redactor({"TOKEN": b"swordfish"})

    for raw in (b"swordfish", "sword\u200bfish".encode(), b"sword\x1b[1mfish", b"sw\x00ordf\x1b]0;x\x07ish"):
        assert shown_text(raw, total=len(raw), keep=MEBI, redactor=redactor) == "[redacted:TOKEN]"


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize("keep", range(1, 40))
def test_no_part_of_a_secret_is_left_at_the_cut(keep: int) -> None:
    redactor = Redactor({"TOKEN": b"swordfish-and-chips"})
    whole = b"the word: swordfish-and-chips, ok"

    cut_by_the_sandbox = shown_text(whole[:keep], total=len(whole), keep=keep, redactor=redactor)
    cut_here = shown_text(whole, total=len(whole), keep=keep, redactor=redactor)

    assert "swor" not in cut_by_the_sandbox
    assert "swor" not in cut_here


def test_a_redacted_text_says_how_much_is_missing() -> None:
    redactor = Redactor({"T": b"swordfish"})

    assert (
        shown_text(b"a swordfish", total=11, keep=11, redactor=redactor)
        == "a [redacted\n[truncated: 11 of 14 bytes]"
    )
    assert (
        shown_text(b"a swordfish", total=99, keep=20, redactor=redactor)
        == "a [redacted:T]\n[truncated: 11 of 99 bytes]"
    )


# For any output


@pytest.mark.requirement("EXEC-10")
@properties
@given(st.binary() | ANY.map(str.encode))
@example("a\ufe0f\u200d😀".encode())
@example("a\ufe0f\u200d\ufe0f\u200d\ufe0f\u200d😀".encode())
@example("\u200d\ufeff\u200d".encode())
@example(bytes(range(256)))
@example("".join(sorted(NEVER)).encode())
def test_nothing_forbidden_is_ever_shown(raw: bytes) -> None:
    text = shown(raw)

    assert NEVER.isdisjoint(text)
    assert hidden_characters(text) == []
    text.encode()
    assert shown(text) == text


@properties
@given(ANY.map(str.encode), st.integers(0, 60), st.integers(0, 10))
def test_any_cut_is_announced_and_shows_nothing_forbidden(raw: bytes, keep: int, more: int) -> None:
    text = shown_text(raw[:keep], total=len(raw) + more, keep=keep)

    assert NEVER.isdisjoint(text)
    assert hidden_characters(text) == []
    assert ("[truncated: " in text) or len(raw) + more <= keep or "[truncated: " in raw.decode()


@pytest.mark.parametrize(
    "unit",
    [
        "\x1b]",
        "\x1b[",
        "\x90",
        "\x9d",
        "\x1bP",
        "\x9bx\x90",
        "\x1b[" + "0" * 500,
        "\ufe0f\u200d",
        "a\ufe0f\u200d😀",
        "\r",
        "\x1b]0;" + "y" * 70_000,
    ],
)
def test_a_mebibyte_of_anything_takes_a_moment_only(unit: str) -> None:
    raw = (unit * (MEBI // len(unit.encode())))[:MEBI].encode()
    begun = time.process_time()

    shown(raw)

    assert time.process_time() - begun < 5


# JSON


@pytest.mark.requirement("EXEC-10")
@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"{}", {}),
        (b'  {"a": [1, 2.5, null, true, "x"]}\n', {"a": [1, 2.5, None, True, "x"]}),
        (
            b'{"type": "resource", "uri": "file:///etc/passwd"}',
            {"type": "resource", "uri": "file:///etc/passwd"},
        ),
        (b'{"a": "\\u001b[31mred\\u0000 \\u202ex\\r\\n"}', {"a": "red x\n"}),
        (b'{"a\\u200b": {"b\\u0007": ["\\u2028"]}}', {"a": {"b": ["\n"]}}),
        ('{"ü": "👨\u200d👩"}'.encode(), {"ü": "👨\u200d👩"}),
        (b'{"n": 18446744073709551615}', {"n": 2**64 - 1}),
    ],
)
def test_one_json_object_is_returned_with_its_texts_made_safe(raw: bytes, value: object) -> None:
    assert structured_from(raw) == value


@pytest.mark.requirement("EXEC-10")
@pytest.mark.parametrize(
    "raw",
    [
        *(
            b"",
            b"null",
            b"1",
            b'"text"',
            b"[1]",
            b"{} {}",
            b'{"a": 1}\nmore',
            b'log line\n{"a": 1}',
            b"{'a': 1}",
        ),
        *(
            b'{"a": NaN}',
            b'{"a": Infinity}',
            b'{"a": -1e999}',
            b'{"a": 1, "a": 2}',
            b'{"a": {"b": 1, "b": 1}}',
        ),
        *(b'{"a": "\\ud800"}', b'{"a\\udfff": 1}', b'{"a": "\xff"}', b'{"a": "\n"}', b'{"a": 1,}'),
        *(b'{"a": 18446744073709551616}', b'{"a": -9223372036854775809}', b'{"a": ' + b"9" * 5000 + b"}"),
        b'{"a": 1, "a\\u200b": 2}',
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b'{"a":' * 100_000,
        b'{"a": "' + b"x" * MAX_STRUCTURED + b'"}',
    ],
    ids=lambda raw: ascii(raw)[:30],
)
def test_anything_else_is_not_taken_for_json(raw: bytes) -> None:
    assert structured_from(raw) is None


def test_an_object_of_exactly_the_longest_and_the_deepest_is_taken() -> None:
    assert structured_from(b'{"a": "' + b"x" * (MAX_STRUCTURED - 9) + b'"}') is not None
    assert structured_from(b'{"a":' * 63 + b"1" + b"}" * 63) is not None


@pytest.mark.requirement("EXEC-11")
def test_secrets_are_redacted_inside_json_however_they_were_escaped() -> None:
    redactor = Redactor({"TOKEN": b"swordfish"})
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in "swordfish")
    members = f'"plain": "swordfish", "escaped": "{escaped}", "{escaped}": 1, "hid": "sword\\u200bfish"'
    raw = f"{{{members}}}".encode()

    assert structured_from(raw, redactor=redactor) == {
        "plain": "[redacted:TOKEN]",
        "escaped": "[redacted:TOKEN]",
        "[redacted:TOKEN]": 1,
        "hid": "[redacted:TOKEN]",
    }
    assert structured_from(b'{"pin": 12345678}', redactor=Redactor({"PIN": b"12345678"})) is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.requirement("EXEC-10")
@properties
@given(st.dictionaries(ANY, JSON, max_size=5), st.booleans())
def test_any_object_is_safe_to_show_and_can_be_written_again(
    value: dict[str, object], is_ascii: bool
) -> None:
    found = structured_from(json.dumps(value, ensure_ascii=is_ascii).encode())

    assume(found is not None)
    for text in texts_of(found):
        assert NEVER.isdisjoint(text)
        assert hidden_characters(text) == []
    assert structured_from(json.dumps(found, allow_nan=False).encode()) == found


def texts_of(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return [*members, *(text for item in members.values() for text in texts_of(item))]
    if isinstance(value, list):
        return [text for item in cast("list[object]", value) for text in texts_of(item)]
    return []
