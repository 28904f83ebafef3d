"""How a server lets clients in over HTTP, from the options that say so."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skillwire.cli.failures import MisuseError
from skillwire.server.access.settings import Access, Oidc, Rate
from skillwire.server.http import Door, Tls
from skillwire.server.names import LOOPBACK
from skillwire.server.ops.peers import Proxies

_MAX_PORT = 65_535
_RATE = re.compile(r"(?P<rate>\d{1,7}(?:\.\d{1,3})?)(?:/(?P<burst>\d{1,7}))?")
_BURST_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """What someone typed about it; what they left out is empty."""

    token_file: Path | None = None
    oidc: str = ""
    audience: str = ""
    access: Path | None = None
    public_url: str = ""
    allow_anonymous: bool = False
    rate: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxy: tuple[str, ...] = ()
    access_log: bool = False

    @property
    def given(self) -> str:
        """The first option that was given, if any was."""
        named = {
            "--token-file": self.token_file,
            "--oidc": self.oidc,
            "--audience": self.audience,
            "--access": self.access,
            "--public-url": self.public_url,
            "--allow-anonymous": self.allow_anonymous,
            "--rate": self.rate,
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
            "--proxy": self.proxy,
            "--access-log": self.access_log,
        }
        return next((name for name, value in named.items() if value), "")

    def door(self, host: str) -> Door:
        """Return how clients come in by `host`.

        Raises:
            MisuseError: Options contradict each other, or nobody said that everyone may come in.
            SkillError: One of them cannot be what it is meant to be.
        """
        access = self._access()
        if access.is_open and host not in LOOPBACK and not self.allow_anonymous:
            raise MisuseError(
                f"{host} can be reached by others, and nobody would be asked who they are",
                fix="make tokens with `skillwire token new NAME --file F` and add --token-file F, "
                "or add --allow-anonymous if everyone may see these skills",
            )
        Proxies(self.proxy)
        return Door(host, access, self._tls(), self.proxy, self.access_log)

    def _access(self) -> Access:
        if self.access is not None and self.token_file is None and not self.oidc:
            raise MisuseError(
                "--access is about callers, and nobody would be asked who they are",
                fix="add --token-file or --oidc",
            )
        if self.audience and not self.oidc:
            raise MisuseError("--audience is about signed tokens", fix="add --oidc with their issuer")
        oidc = Oidc(self.oidc, self.audience or self.public_url) if self.oidc else None
        return Access(
            tokens=self.token_file,
            oidc=oidc,
            rules=self.access,
            allow_anonymous=self.allow_anonymous,
            rate=_rate(self.rate) if self.rate else None,
            public_url=self.public_url,
        )

    def _tls(self) -> Tls | None:
        if self.tls_cert is None and self.tls_key is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise MisuseError("a certificate and its key go together", fix="give --tls-cert and --tls-key")
        return Tls(self.tls_cert.absolute(), self.tls_key.absolute())


def parsed_address(address: str) -> tuple[str, int]:
    """Return the host and port of `HOST:PORT`.

    Raises:
        MisuseError: It is none.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _MAX_PORT:
        raise MisuseError(f"{address!r} is not HOST:PORT", fix="write it like 127.0.0.1:8000")
    return host, int(port)


def _rate(text: str) -> Rate:
    match = _RATE.fullmatch(text)
    if match is None:
        raise MisuseError(
            f"--rate {text} cannot be used", fix="write requests a second, like 20, or 20/100 with a burst"
        )
    per_second = float(match["rate"])
    burst = int(match["burst"]) if match["burst"] else max(1, round(per_second * _BURST_SECONDS))
    return Rate(per_second, burst)
