"""Secrets a script was given are not in what it leaves behind, however programs usually write them."""

import base64
import json
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from skillwire.runner.redaction import MIN_SECRET_SIZE, Redactor

TOKEN = b"s3cr3t/Tok+en=&\xc3\xbc \"q'"
MARK = b"[redacted:TOKEN]"
properties = settings(deadline=None)

SECRETS = st.binary(min_size=MIN_SECRET_SIZE, max_size=80).filter(
    lambda secret: len(secret.strip()) >= MIN_SECRET_SIZE
)
TEXTS = st.text(st.characters(codec="utf-8"), min_size=MIN_SECRET_SIZE, max_size=40).filter(
    lambda text: len(text.encode().strip()) >= MIN_SECRET_SIZE
)
NOISE = st.binary(max_size=12)


def standard(data: bytes) -> bytes:
    return base64.b64encode(data)


def url_safe(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data)


def spellings(secret: bytes) -> list[bytes]:
    """Write a secret in the ways that need no neighbours."""
    upper = quote(secret, safe="")
    found = [
        *(secret, secret.hex().encode(), secret.hex().upper().encode()),
        *(upper.encode(), quote(secret).encode(), quote_plus(secret).encode()),
        "".join(f"%{byte:02x}" for byte in secret).encode(),
        "".join(f"%{byte:02X}" for byte in secret).encode(),
    ]
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        return found
    return [*found, json.dumps(text)[1:-1].encode(), json.dumps(text, ensure_ascii=False)[1:-1].encode()]


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize("spelling", spellings(TOKEN), ids=lambda spelling: ascii(spelling)[2:40])
def test_a_secret_is_replaced_by_its_name_in_every_spelling(spelling: bytes) -> None:
    redactor = Redactor({"TOKEN": TOKEN})

    assert redactor.redact(b"before " + spelling + b" after") == b"before [redacted:TOKEN] after"


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize("encode", [standard, url_safe])
@pytest.mark.parametrize("before", [b"", b"u", b"u:", b"us:", b"user", b"user:"])
@pytest.mark.parametrize("after", [b"", b"\n", b"!!", b"and more"])
def test_a_secret_is_found_inside_base64_wherever_it_begins(
    encode: Callable[[bytes], bytes], before: bytes, after: bytes
) -> None:
    secret = b"\xfb\xff\xfe-secret-\xff?\xbf~~~"
    encoded = encode(before + secret + after)

    shown = Redactor({"TOKEN": secret}).redact(b"Authorization: Basic " + encoded)

    # At most one character on either side, which the secret shares with its neighbours, and the rest.
    assert MARK in shown
    assert len(shown) - len(b"Authorization: Basic " + MARK) <= len(encoded) - len(secret) * 8 // 6 + 2
    for size in range(8, len(encoded)):
        inner = encode(secret)[:size]
        assert inner not in shown


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize("width", [60, 64, 76])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_long_secret_is_found_though_base64_was_broken_into_lines(width: int, end: bytes) -> None:
    secret = bytes(range(33, 233))
    encoded = base64.b64encode(b"x" + secret + b"y")
    wrapped = end.join(encoded[at : at + width] for at in range(0, len(encoded), width))

    shown = Redactor({"KEY": secret}).redact(b"head\n" + wrapped + end + b"tail\n")

    assert shown.startswith(b"head\n")
    assert shown.endswith(end + b"tail\n")
    assert len(shown) < 60
    assert b"[redacted:KEY]" in shown


@pytest.mark.requirement("EXEC-11")
def test_a_key_of_many_lines_is_found_with_other_line_ends_and_in_json() -> None:
    key = (
        b"-----BEGIN KEY-----\n"
        + b"\n".join(bytes([65 + n]) * 40 for n in range(20))
        + b"\n-----END KEY-----\n"
    )
    redactor = Redactor({"KEY": key})

    assert redactor.redact(key) == b"[redacted:KEY]"
    assert redactor.redact(key.strip().replace(b"\n", b"\r\n")) == b"[redacted:KEY]"
    assert redactor.redact(json.dumps({"k": key.decode()}).encode()) == b'{"k": "[redacted:KEY]"}'
    assert redactor.redact(repr(key).encode()) == b"b'[redacted:KEY]'"


@pytest.mark.requirement("EXEC-11")
def test_a_secret_is_found_without_the_line_end_of_its_file() -> None:
    redactor = Redactor({"TOKEN": b"hunter22\n"})

    assert redactor.redact(b"Bearer hunter22;") == b"Bearer [redacted:TOKEN];"
    assert redactor.redact(b"hunter22\nnext") == b"[redacted:TOKEN]next"


def test_of_two_secrets_the_longer_one_is_named() -> None:
    redactor = Redactor({"USER": b"alice", "LOGIN": b"alice:pass"})

    assert redactor.redact(b"alice:pass, alice") == b"[redacted:LOGIN], [redacted:USER]"


def test_secrets_that_overlap_go_together() -> None:
    redactor = Redactor({"A": b"abcdefgh", "B": b"efghijkl"})

    assert redactor.redact(b"<abcdefghijkl>") == b"<[redacted:A]>"


def test_a_secret_too_short_to_look_for_is_named_and_left() -> None:
    redactor = Redactor({"PIN": b"123", "EMPTY": b"", "BLANK": b"    \n", "TOKEN": b"1234"})

    assert redactor.too_short == ("PIN", "EMPTY", "BLANK")
    assert redactor.redact(b"123 1234     \n") == b"123 [redacted:TOKEN]     \n"


def test_without_secrets_nothing_changes() -> None:
    assert Redactor({}).redact(b"anything", is_cut=True) == b"anything"
    assert Redactor({}).redact_text("anything") == "anything"


def test_text_is_redacted_like_bytes() -> None:
    assert Redactor({"TOKEN": "größe9".encode()}).redact_text("die größe9!") == "die [redacted:TOKEN]!"


# Where the data was cut


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize("spelling", [*spellings(TOKEN), base64.b64encode(TOKEN).rstrip(b"=")[:-1]])
def test_the_beginning_of_a_secret_at_a_cut_goes_too(spelling: bytes) -> None:
    redactor = Redactor({"TOKEN": TOKEN})

    for length in range(MIN_SECRET_SIZE, len(spelling)):
        data = b"x" * 20 + spelling[:length]
        assert redactor.redact(data, is_cut=True) == b"x" * 20 + MARK


@pytest.mark.requirement("EXEC-11")
def test_the_beginning_of_a_long_secret_broken_into_lines_goes_too() -> None:
    secret = bytes(range(33, 233))
    encoded = base64.encodebytes(secret)
    redactor = Redactor({"KEY": secret})

    for length in range(MIN_SECRET_SIZE, len(encoded) - 2):
        assert redactor.redact(b"go!\n" + encoded[:length], is_cut=True).strip() == b"go!\n[redacted:KEY]"


def test_fewer_bytes_than_a_secret_must_have_stay_at_a_cut() -> None:
    redactor = Redactor({"TOKEN": b"swordfish"})

    assert redactor.redact(b"a swo", is_cut=True) == b"a swo"
    assert redactor.redact(b"a sword", is_cut=False) == b"a sword"
    assert redactor.redact(b"a sword", is_cut=True) == b"a [redacted:TOKEN]"
    assert redactor.redact(b"a swordfish", is_cut=True) == b"a [redacted:TOKEN]"
    assert redactor.redact(b"swordswordfi", is_cut=True) == b"sword[redacted:TOKEN]"


# For any secret


@pytest.mark.requirement("EXEC-11")
@properties
@given(SECRETS | TEXTS.map(str.encode), NOISE, NOISE)
@example(b"    \x80\x80\x80\x80    ", b"", b"")
@example(b"redacted", b"", b"")
def test_no_spelling_of_any_secret_is_left(secret: bytes, before: bytes, after: bytes) -> None:
    assume(secret.strip() not in MARK)
    redactor = Redactor({"TOKEN": secret})
    forms = spellings(secret.strip())

    shown = redactor.redact(before + after.join(forms) + after)

    assert MARK in shown
    # What the marks themselves put together with their neighbours was not there before.
    for part in shown.split(MARK):
        for form in forms:
            assert form not in part


@pytest.mark.requirement("EXEC-11")
@properties
@given(SECRETS, NOISE, NOISE)
def test_no_base64_of_any_secret_is_left(secret: bytes, before: bytes, after: bytes) -> None:
    assume(secret.strip() not in MARK)
    redactor = Redactor({"TOKEN": secret})

    for encode in (standard, url_safe):
        assert MARK in redactor.redact(encode(before + secret.strip() + after))


@properties
@given(st.lists(SECRETS, min_size=1, max_size=3), NOISE, NOISE, st.booleans())
def test_redacting_again_changes_nothing(
    secrets: list[bytes], before: bytes, after: bytes, is_cut: bool
) -> None:
    redactor = Redactor({f"NAME_{index}": secret for index, secret in enumerate(secrets)})

    once = redactor.redact(before + after.join(secrets) + after, is_cut=is_cut)

    assert redactor.redact(once, is_cut=is_cut) == once


def test_a_secret_that_is_part_of_the_mark_does_not_break_it() -> None:
    redactor = Redactor({"TOKEN": b"redacted"})

    once = redactor.redact(b"it is redacted.")

    assert once == b"it is [redacted:TOKEN]."
    assert redactor.redact(once) == once


def test_the_longest_secrets_take_a_moment_only() -> None:
    secret = b"".join(b"%d," % number for number in range(13_000))[: 64 * 1024]
    begun = time.process_time()
    redactor = Redactor({"BIG": secret})

    shown = redactor.redact(b"x" + secret + b"!" + base64.encodebytes(secret) + secret[:-1], is_cut=True)

    assert shown.count(b"[redacted:BIG]") == 3
    assert len(shown) < 100
    assert time.process_time() - begun < 5


def test_a_secret_that_begins_like_a_longer_one_is_found() -> None:
    redactor = Redactor(
        {"LONG": b"a-secret-that-is-rather-long", "SHORT": b"a-secret", "MID": b"a-secret-that-is-"}
    )

    assert redactor.redact(b"a-secret-that-is-rather-short") == b"[redacted:MID]rather-short"
    assert redactor.redact(b"a-secret-that") == b"[redacted:SHORT]-that"
    assert redactor.redact(b"a-secret-that-is-rather-long") == b"[redacted:LONG]"


def test_megabytes_and_many_secrets_take_a_moment_only() -> None:
    secrets = {f"NAME_{n}": f"{n}-{'secret' * n}-{n}".encode() for n in range(1, 13)}
    secrets["KEY"] = bytes(range(256)) * 8
    worst = [
        b"1-secre" * 150_000,
        b"1-secret-1" * 100_000,
        secrets["KEY"][:300] * 3_500,
        b"\n\r" * 500_000,
    ]
    redactor = Redactor(secrets)

    for data in worst:
        begun = time.process_time()
        redactor.redact(data, is_cut=True)
        assert time.process_time() - begun < 5
