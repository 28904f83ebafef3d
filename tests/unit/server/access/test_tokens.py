"""Tokens of our own: what a file may say, and what a credential proves."""

import hmac
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.errors import CredentialError
from skillwire.server.access import tokens as module
from skillwire.server.access.settings import AccessError, Caller
from skillwire.server.access.tokens import (
    Token,
    Tokens,
    digest_of,
    new_secret,
    parse_tokens,
    read_tokens,
    with_token,
    without_token,
)

END = datetime(2027, 1, 31, tzinfo=UTC)
HEX = "ab" * 32

VALUES = st.lists(st.sampled_from(["a", "b-1", "urn:x/y", "a=b", "@!$~"]), max_size=3, unique=True).map(tuple)
MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))
TOKENS = st.builds(
    Token,
    st.sampled_from(["a", "ci", "team-1", "x.y", "0", "b" * 64]),
    st.sampled_from([HEX, "0" * 64, "12" * 32]),
    VALUES,
    VALUES,
    st.none() | MOMENTS.map(lambda moment: moment.replace(microsecond=0, tzinfo=UTC)),
)


@settings(max_examples=50, deadline=None)
@given(TOKENS)
def test_a_line_says_all_that_is_known_of_a_token(token: Token) -> None:
    assert Token.parse(token.line) == token


@settings(max_examples=50, deadline=None)
@given(st.lists(TOKENS, max_size=5, unique_by=lambda token: token.name), TOKENS)
def test_a_token_that_comes_and_goes_leaves_every_other_line_as_it_was(
    others: list[Token], one: Token
) -> None:
    lines = [
        "# a remark \u2028 of two parts",
        "",
        *(token.line for token in others if token.name != one.name),
        " # end",
    ]
    before = "\r\n".join(lines).encode() + b"\n"

    added = with_token(before, one)

    assert added.startswith(before)
    assert parse_tokens(added).by_name[one.name] == one
    assert without_token(added, one.name) == before


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_token_file_or_one_clear_error(text: str) -> None:
    try:
        found = parse_tokens(text.encode("utf-8", "surrogatepass"))
    except AccessError as error:
        assert str(error)
    else:
        assert all(token.name == name for name, token in found.by_name.items())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ci", "sha256:"),
        (f"ci sha256:{HEX[:-2]}", "sha256:"),
        (f"ci sha256:{HEX.upper()}", "sha256:"),
        (f"CI sha256:{HEX}", "'CI'"),
        (f"anonymous sha256:{HEX}", "'anonymous'"),
        (f"a_b sha256:{HEX}", "'a_b'"),
        (f"{'a' * 65} sha256:{HEX}", "name"),
        (f"ci sha256:{HEX} admin", "'admin'"),
        (f"ci sha256:{HEX} groups=a", "'groups=a'"),
        (f"ci sha256:{HEX} group=a group=b", "twice"),
        (f"ci sha256:{HEX} group=", "''"),
        (f"ci sha256:{HEX} group=a,,b", "''"),
        (f"ci sha256:{HEX} group={','.join(map(str, range(65)))}", "64"),
        (f"ci sha256:{HEX} scope=a\"b", "scope"),
        (f"ci sha256:{HEX} expires=2027-01-31", "'2027-01-31'"),
        (f"ci sha256:{HEX} expires=2027-13-31T00:00:00Z", "time"),
        (f"ok sha256:{HEX}", "line 2"),
    ],
)  # fmt: skip
@pytest.mark.requirement("SEC-14")
def test_a_wrong_line_is_named_by_its_number_and_by_what_is_wrong(line: str, words: str) -> None:
    content = f"# tokens\nok sha256:{HEX}\n{line}\n"

    with pytest.raises(AccessError) as caught:
        parse_tokens(content.encode())

    assert "line 3" in str(caught.value)
    assert words in str(caught.value)


def test_too_much_and_what_is_no_text_is_refused() -> None:
    for content in (b"\xff", b"#" * (module.MAX_SIZE + 1), b"\x00"):
        with pytest.raises(AccessError):
            parse_tokens(content)


@pytest.mark.requirement("SEC-14")
def test_a_token_proves_who_holds_it_and_no_other_text_does() -> None:
    secret = new_secret("ci")
    tokens = Tokens({"ci": Token("ci", digest_of(secret), ("ops",), ("read",), END)})

    caller = tokens.caller(secret, now=0)

    assert caller == Caller(
        "ci", token="ci", groups=frozenset({"ops"}), scopes=frozenset({"read"}), expires=END.timestamp()
    )
    for wrong in (
        new_secret("ci"),
        secret[:-1],
        secret + "0",
        secret.upper(),
        digest_of(secret),
        "",
        "ci",
        "\udc80",
    ):
        with pytest.raises(CredentialError) as caught:
            tokens.caller(wrong, now=0)
        assert caught.value.reason == "unknown"
        assert not wrong or len(wrong) < 10 or wrong not in str(caught.value)


@pytest.mark.requirement("SEC-14")
def test_an_expired_token_proves_nothing_from_that_second_on() -> None:
    secret = new_secret("ci")
    tokens = Tokens({"ci": Token("ci", digest_of(secret), expires=END)})

    assert tokens.caller(secret, now=END.timestamp() - 1).name == "ci"
    with pytest.raises(CredentialError) as caught:
        tokens.caller(secret, now=END.timestamp())
    assert caught.value.reason == "expired"


@pytest.mark.requirement("SEC-14")
def test_a_name_that_nobody_has_is_compared_like_a_wrong_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def watched(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    class Watched:
        compare_digest = staticmethod(watched)

    monkeypatch.setattr(module, "hmac", Watched)
    tokens = Tokens({"ci": Token("ci", digest_of(new_secret("ci")))})
    messages: set[str] = set()
    for wrong in (new_secret("ci"), new_secret("nobody"), "nonsense"):
        with pytest.raises(CredentialError) as caught:
            tokens.caller(wrong, now=0)
        messages.add(str(caught.value))

    assert compared == [(64, 64)] * 3
    assert len(messages) == 1


def test_no_two_tokens_are_alike_and_each_has_256_random_bits() -> None:
    secrets = {new_secret("ci") for _ in range(100)}

    assert len(secrets) == 100
    assert all(len(bytes.fromhex(secret.rpartition("_")[2])) == 32 for secret in secrets)


@pytest.mark.requirement("SEC-14")
def test_a_file_that_others_can_write_is_not_used_and_one_they_can_read_is_remarked_upon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"ci sha256:{HEX}\n")

    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(AccessError) as caught:
            read_tokens(path)
        assert caught.value.fix == "chmod go-w the file"
    path.chmod(0o644)
    assert "ci" in read_tokens(path).by_name
    assert "chmod go-r" in caplog.text
    caplog.clear()
    path.chmod(0o600)
    read_tokens(path)
    assert caplog.text == ""


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(AccessError):
            read_tokens(path)
