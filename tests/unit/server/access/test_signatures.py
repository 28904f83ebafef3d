"""Keys of an issuer: which ones count, and for what."""

import json
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from skillwire.core.errors import SourceError
from skillwire.server.access.oidc import (
    MAX_KEYS,
    MAX_TRIED_KEYS,
    decoded,
    discovery_urls,
    is_signed,
    parse_key,
    parse_key_set,
)

EC = ECKey.generate_key("P-256")
PUBLIC: dict[str, Any] = dict(EC.as_dict(private=False))


def key_set(*keys: object) -> bytes:
    return json.dumps({"keys": keys}).encode()


@pytest.mark.parametrize(
    "key",
    [
        None,
        [],
        {},
        {"kty": "EC"},
        {"kty": "oct", "k": "AAAA"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "RSA", "n": 5, "e": []},
        {**PUBLIC, "use": "enc"},
        {**PUBLIC, "key_ops": ["sign"]},
        {**PUBLIC, "key_ops": "verify"},
        {**PUBLIC, "kid": 5},
        {**PUBLIC, "x": "AAAA"},
        {**PUBLIC, "crv": "P-999"},
        dict(OKPKey.generate_key("X25519").as_dict(private=False)),
        dict(EC.as_dict(private=True)),
        dict(OctKey.generate_key(256).as_dict()),
        {"kty": "RSA", "n": "_" * 170, "e": "AQAB"},
        {"kty": "RSA", "n": "_" * 1600, "e": "AQAB"},
        {"kty": "RSA", "n": "_" * 400, "e": "_" * 400},
    ],
)
@pytest.mark.requirement("SEC-14")
def test_a_key_that_is_none_for_checking_signatures_is_left_out(key: object) -> None:
    assert parse_key(key) is None
    assert len(parse_key_set(key_set(key, PUBLIC, "garbage"))) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": [], "keys": []}',
        b"\xff",
        b"[" * 5000,
        key_set(*[1] * (MAX_KEYS + 1)),
    ],
)
def test_what_is_no_set_of_keys_is_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises(SourceError):
        parse_key_set(body)


@pytest.mark.requirement("SEC-14")
def test_a_key_verifies_only_what_such_keys_are_meant_for() -> None:
    curves = parse_key_set(key_set(PUBLIC, OKPKey.generate_key("X25519").as_dict(private=False)))

    for algorithm in ("RS256", "PS256", "ES384", "EdDSA", "Ed25519", "ES256"):
        assert is_signed(curves, "", algorithm, b"text", b"x" * 64) is False
    named = parse_key({**PUBLIC, "alg": "ES256", "kid": "a"})
    assert named is not None and (named.algorithm, named.kid) == ("ES256", "a")
    assert is_signed([named], "b", "ES256", b"", b"") is None


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize("kid", ["", "same"])
def test_keys_for_something_else_do_not_count_among_those_that_are_tried(kid: str) -> None:
    others: list[dict[str, Any]] = []
    for _ in range(MAX_TRIED_KEYS):
        others += [
            dict(RSAKey.generate_key(2048).as_dict(private=False)),
            dict(ECKey.generate_key("P-384").as_dict(private=False)),
            dict(OKPKey.generate_key("Ed25519").as_dict(private=False)),
            {**ECKey.generate_key("P-256").as_dict(private=False), "use": "enc"},
            {**ECKey.generate_key("P-256").as_dict(private=False), "key_ops": ["deriveBits"]},
            {**ECKey.generate_key("P-256").as_dict(private=False), "alg": "ECDH-ES"},
        ]
    keys = parse_key_set(key_set(*({**key, "kid": "same"} for key in [*others, PUBLIC])))
    signature = JWSRegistry.algorithms["ES256"].sign(b"text", EC)

    assert is_signed(keys, kid, "ES256", b"text", signature) is True
    assert is_signed(keys, kid, "ES256", b"other", signature) is False


@pytest.mark.parametrize("part", [b"a", b"a=", b"YR", b"+/+/", b"a b", b"\xff\xff"])
def test_a_part_is_written_in_one_way_only(part: bytes) -> None:
    assert decoded(part) is None


def test_an_issuer_is_asked_in_both_ways_that_are_in_use() -> None:
    assert discovery_urls("https://x.example/realms/a") == (
        "https://x.example/realms/a/.well-known/openid-configuration",
        "https://x.example/.well-known/oauth-authorization-server/realms/a",
    )
    assert discovery_urls("https://x.example:8443/") == (
        "https://x.example:8443/.well-known/openid-configuration",
        "https://x.example:8443/.well-known/oauth-authorization-server",
    )
