"""Keys of an issuer, and what they have signed. The only place that needs `joserfc`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64decode

MOST_TRIED: Final = 8
"""With how many keys a signature is tried, at most."""

_KINDS: Final[Mapping[str, type[RSAKey] | type[ECKey] | type[OKPKey]]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}
# Fewer bits can be broken, and more take long to check.
_RSA_BITS = range(2048, 8192 + 1)
_MOST_EXPONENT_BITS = 64
# What makes a key a private one: an issuer that shows it has none left.
_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that signatures are checked with. `kid` and `algorithm` are empty where the issuer names none."""

    kid: str
    algorithm: str
    key: Key

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Tell whether this key made a signature, in a way that such keys are meant for."""
        if self.algorithm not in ("", algorithm):
            return False
        model = JWSRegistry.algorithms[algorithm]
        try:
            model.check_key(self.key)
            return model.verify(signed, signature, self.key)
        except (JoseError, ValueError):
            return False


def parse_key(found: object) -> PublicKey | None:
    """Read one key of a key set; None when it is none that can be used here."""
    if not isinstance(found, dict):
        return None
    rows = cast("dict[str, Any]", found)
    kind = _KINDS.get(str(rows.get("kty")))
    kid, algorithm = rows.get("kid", ""), rows.get("alg", "")
    operations = rows.get("key_ops", ["verify"])
    if (
        kind is None
        or not isinstance(kid, str)
        or not isinstance(algorithm, str)
        or not isinstance(operations, list)
        or rows.get("use", "sig") != "sig"
        or "verify" not in operations
        or not _PRIVATE.isdisjoint(rows)
    ):
        return None
    # Certificates and the like that stand beside a key prove nothing here, and need not be read.
    plain = {name: rows[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in rows}
    try:
        if kind is RSAKey and not _is_sound(plain["n"], plain["e"]):
            return None
        return PublicKey(kid, algorithm, kind.import_key(plain))
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _is_sound(modulus: str, exponent: str) -> bool:
    """Tell whether an RSA key is neither weak nor made to keep us busy."""
    n, e = (int.from_bytes(decoded(part.encode("ascii")) or b"") for part in (modulus, exponent))
    return n.bit_length() in _RSA_BITS and e.bit_length() <= _MOST_EXPONENT_BITS


def is_signed(
    keys: Iterable[PublicKey], kid: str, algorithm: str, signed: bytes, signature: bytes
) -> bool | None:
    """Tell whether one of the keys made a signature; None when none of them has that name.

    Where the token names no key, each of the right kind is tried.
    """
    named = [key for key in keys if not kid or key.kid == kid]
    if not named:
        return None
    return any(key.verifies(algorithm, signed, signature) for key in named[:MOST_TRIED])


def decoded(part: bytes) -> bytes | None:
    """Return what a part of a token says; None when it is not written as such parts are."""
    try:
        return urlsafe_b64decode(part)
    except (ValueError, TypeError):
        return None
