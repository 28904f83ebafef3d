"""An issuer of signed tokens on loopback: real keys, real answers, and a count of who asked what."""

import base64
import hashlib
import hmac
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from integration.web_sites import WebSite, web_site

AUDIENCE = "https://skills.example.org/mcp"
NOW = 1_800_000_000
DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"

RSA = RSAKey.generate_key(2048)
EC = ECKey.generate_key("P-256")
ED = OKPKey.generate_key("Ed25519")
OTHER = ECKey.generate_key("P-256")


class Issuer:
    """Says who it is and which keys it has, on a scripted site."""

    def __init__(self, site: WebSite) -> None:
        self.site = site
        self.url = site.url
        self.describe()
        self.publish(rsa=RSA, ec=EC, ed=ED)

    def describe(self, path: str = DISCOVERY, **more: object) -> None:
        self.site.put(path, {"issuer": self.url, "jwks_uri": self.url + KEYS, **more})

    def publish(self, *odd: object, max_age: int | None = None, **keys: Key) -> None:
        """Show keys by their names, and `odd` things beside them."""
        shown = [{**key.as_dict(private=False), "kid": kid, "use": "sig"} for kid, key in keys.items()]
        cached = {} if max_age is None else {"Cache_Control": f"public, max-age={max_age}"}
        self.site.put(KEYS, {"keys": [*odd, *shown]}, **cached)

    @property
    def fetches(self) -> int:
        """How often the keys were asked for."""
        return self.site.paths.count(KEYS)

    def claims(self, **changed: object) -> dict[str, Any]:
        return {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": NOW, "exp": NOW + 600, **changed}

    def token(
        self,
        key: Key = EC,
        algorithm: str = "ES256",
        kid: str = "ec",
        *,
        header: Mapping[str, object] | None = None,
        **claims: object,
    ) -> str:
        """Return a signed token; what is given changes a good one."""
        said = {"alg": algorithm, "kid": kid, "typ": "at+jwt", **(header or {})}
        return signed_with(key, algorithm, said, self.claims(**claims))

    def forged(self, algorithm: str, secret: bytes = b"", *, kid: str = "rsa") -> str:
        """Return a token that nobody signed, or somebody with a secret of their own choice."""
        signed = f"{part({'alg': algorithm, 'kid': kid})}.{part(self.claims())}"
        return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), hashlib.sha256) if secret else b'')}"


@contextmanager
def issuing() -> Generator[Issuer]:
    """Run an issuer."""
    with web_site() as site:
        yield Issuer(site)


def signed_with(key: Key, algorithm: str, header: Mapping[str, object], claims: Mapping[str, object]) -> str:
    """Return a token of a header and claims."""
    signed = f"{part(header)}.{part(claims)}"
    return f"{signed}.{encoded(JWSRegistry.algorithms[algorithm].sign(signed.encode(), key))}"


def part(value: object) -> str:
    return encoded(json.dumps(value).encode())


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
