"""The header `Authorization`: one credential, or nothing."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.errors import CredentialError
from skillwire.server.access.settings import MAX_CREDENTIAL, credential_of


def basic(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


@pytest.mark.parametrize(
    "header", [b"Bearer skw_a_0", b"bearer skw_a_0", b"BEARER   skw_a_0 ", b"\tBearer skw_a_0"]
)
def test_a_bearer_token_is_found_however_its_scheme_is_written(header: bytes) -> None:
    assert credential_of(header, basic=False) == "skw_a_0"


@pytest.mark.parametrize("user", ["", "alice", "a b", "é"])
def test_where_people_look_the_password_is_the_credential(user: str) -> None:
    assert credential_of(basic(user, "skw_a_0"), basic=True) == "skw_a_0"
    with pytest.raises(CredentialError):
        credential_of(basic(user, "skw_a_0"), basic=False)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"skw_a_0",
        b"Bearer a b",
        b"Bearer a, Bearer b",
        b"Bearer a,b",
        b"Bearer a\r\nX: y",
        b"Bearer a\n",
        b"Bearer \xff",
        b"Bearer a=b",
        b"Token a",
        b"Basic !!!",
        b"Basic YQ",
        b"Basic " + base64.b64encode(b"no colon"),
        b"Basic " + base64.b64encode(b"a:"),
        b"Basic " + base64.b64encode(b"a:b\nc"),
        b"Basic " + base64.b64encode(b"a:\xff"),
        b"Bearer " + b"a" * (MAX_CREDENTIAL + 1),
        b"Bearer " + b"a" * 10_000_000,
        basic("", "a" * (MAX_CREDENTIAL + 1)),
    ],
)
@pytest.mark.requirement("SEC-14")
def test_anything_else_is_malformed_and_not_repeated(header: bytes) -> None:
    with pytest.raises(CredentialError) as caught:
        credential_of(header, basic=True)

    assert caught.value.reason == "malformed"
    assert len(str(caught.value)) < 100


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.booleans(), st.sampled_from([b"", b"Bearer ", b"Basic "]))
def test_any_bytes_are_a_credential_or_one_clear_error(data: bytes, is_basic: bool, scheme: bytes) -> None:
    try:
        found = credential_of(scheme + data, basic=is_basic)
    except CredentialError as error:
        assert error.reason == "malformed"
    else:
        assert found.isascii() and found.isprintable() and " " not in found
