"""`Web`: GET requests for one site, each of which goes to an address that was looked at first.

A name is resolved once for each request, all its addresses are checked, and
the connection is made to one of exactly these; the certificate must be that of
the name. Redirects are followed by hand, so every hop is checked like the
first. No request carries a cookie, a credential or a referrer, and proxies of
the environment are not used: they would resolve names on their own.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from socket import IPPROTO_TCP, SOCK_STREAM
from typing import Final, TypeAlias, cast
from urllib.parse import urljoin

import anyio
import anyio.to_thread
import httpx2

import skillwire
from skillwire.core.characters import quoted
from skillwire.errors import LimitError, SkillError
from skillwire.sources.wellknown.failures import (
    SiteAnswerError,
    SiteTooSlowError,
    SiteUnavailableError,
)
from skillwire.sources.wellknown.hosts import Hop, SiteAddress

MOST_REDIRECTS: Final = 5
DEFAULT_SECONDS: Final = 30.0

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CONNECT_SECONDS = 10.0
_MOST_ADDRESSES = 4
_LONGEST_WORDS = 200

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, as texts; raises OSError when there are none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back in the end: from where, with which status, and the body if that is 200."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def media_type(self) -> str:
        """The media type without its parameters; empty when there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Ask the system for the addresses of a host."""
    found = await anyio.getaddrinfo(host, port, type=SOCK_STREAM, proto=IPPROTO_TCP)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Web:
    """Fetches what is at the URLs of one site, within `seconds` for each, redirects and all.

    `resolve` and `tls` are for tests and for networks with certificates of
    their own; without `tls` the system's are used, or those that the
    variable `SSL_CERT_FILE` names.
    """

    def __init__(
        self,
        address: SiteAddress,
        *,
        seconds: float = DEFAULT_SECONDS,
        resolve: Resolve = resolve_host,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._seconds = seconds
        self._resolve = resolve
        self._tls = tls

    async def get(
        self, url: str, *, max_bytes: int, headers: Mapping[str, str] | None = None, raw: bool = False
    ) -> Answer:
        """Fetch what is at `url`, of at most `max_bytes`; any status but a redirect is an answer.

        Nothing is ever decompressed here. A body that comes compressed all the
        same is refused, unless it is wanted `raw`, as it is.

        Raises:
            ForeignHostError: A hop leads to a host that the user has not allowed.
            UnsafeAddressError: A hop is not encrypted, or leads into a network.
            SiteTooSlowError: It takes too long.
            SiteUnavailableError: The site cannot be reached, or breaks off.
            SiteAnswerError: It redirects in circles, or answers something else than HTTP.
            LimitError: The body is larger than `max_bytes`.
        """
        with anyio.move_on_after(self._seconds) as clock:
            try:
                return await self._follow(url, max_bytes, headers or {}, raw)
            except httpx2.HTTPError as error:
                raise _meaning_of(error) from error
        assert clock.cancelled_caught
        raise SiteTooSlowError(
            f"the site took more than {self._seconds:g} seconds over {quoted(_short(url))}"
        )

    async def _follow(self, url: str, max_bytes: int, headers: Mapping[str, str], raw: bool) -> Answer:
        for _ in range(MOST_REDIRECTS + 1):
            hop = self._address.hop(url)
            answer = await self._fetch(hop, max_bytes, headers, raw)
            if answer.status not in _REDIRECTS:
                return answer
            target = answer.headers.get("location", "")
            if not target or not target.isascii():
                raise SiteAnswerError("the site redirects to nowhere", violates="DISC-08")
            url = _joined(str(hop.url), target)
        raise SiteAnswerError(
            f"the site redirects more than {MOST_REDIRECTS} times, last to {quoted(_short(url))}",
            violates="DISC-08",
        )

    async def _fetch(self, hop: Hop, max_bytes: int, headers: Mapping[str, str], raw: bool) -> Answer:
        """Make one request, to the first of the host's addresses that takes the connection."""
        failure: httpx2.HTTPError | None = None
        for address in await self._addresses(hop):
            transport = httpx2.AsyncHTTPTransport(
                # One connection for one request: kept open, it could serve another name of this address.
                limits=httpx2.Limits(max_connections=1, max_keepalive_connections=0),
                verify=await self._context() if hop.url.scheme == "https" else False,
                trust_env=False,
            )
            async with transport:
                try:
                    response = await transport.handle_async_request(_request(hop, address, headers))
                except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                    failure = error
                    continue
                try:
                    return await _answer(hop, response, max_bytes, raw)
                finally:
                    await response.aclose()
        assert failure is not None
        raise failure

    async def _addresses(self, hop: Hop) -> Sequence[str]:
        """Resolve a host, and refuse it if any of its addresses is none that it may have."""
        try:
            found = await self._resolve(hop.place.host, hop.place.port)
            addresses = [ip_address(text) for text in found]
        except (OSError, UnicodeError) as error:
            raise SiteUnavailableError(f"{quoted(str(hop.place))} has no address: {_words(error)}") from error
        if not addresses:
            raise SiteUnavailableError(f"{quoted(str(hop.place))} has no address")
        for address in addresses:
            hop.require_reachable(address)
        return [str(address) for address in addresses[:_MOST_ADDRESSES]]

    async def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = await anyio.to_thread.run_sync(httpx2.create_ssl_context)
        return self._tls


def _request(hop: Hop, address: str, headers: Mapping[str, str]) -> httpx2.Request:
    return httpx2.Request(
        "GET",
        hop.url.copy_with(host=address),
        headers={
            "Host": hop.url.netloc.decode("ascii"),
            "User-Agent": f"skillwire/{skillwire.__version__}",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **headers,
        },
        extensions={
            "sni_hostname": hop.place.host,
            # All of it is bounded by the clock around; this is so that a second address has its turn.
            "timeout": {"connect": _CONNECT_SECONDS, "read": None, "write": None, "pool": None},
        },
    )


async def _answer(hop: Hop, response: httpx2.Response, max_bytes: int, raw: bool) -> Answer:
    """Read the body of a good answer, counting while it comes; that of any other is left alone."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    if response.status_code != 200:
        return Answer(str(hop.url), response.status_code, headers)
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity") and not raw:
        raise SiteAnswerError(
            f"the answer is compressed ({quoted(encoding[:50])}), which was not asked for", violates="LIM-06"
        )
    size, parts = 0, list[bytes]()
    async for data in cast(httpx2.AsyncByteStream, response.stream):
        size += len(data)
        if size > max_bytes:
            raise LimitError(f"{quoted(_short(str(hop.url)))} is larger than {max_bytes} bytes")
        parts.append(data)
    return Answer(str(hop.url), 200, headers, b"".join(parts))


def _meaning_of(error: httpx2.HTTPError) -> SkillError:
    if isinstance(error, httpx2.ProtocolError):
        return SiteAnswerError(f"the site does not speak HTTP: {_words(error)}", violates="DISC-01")
    return SiteUnavailableError(f"the site cannot be reached: {_words(error)}")


def _words(error: Exception) -> str:
    return quoted(str(error)[:_LONGEST_WORDS] or type(error).__name__)


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _short(url: str) -> str:
    return url if len(url) <= _LONGEST_WORDS else url[: _LONGEST_WORDS - 1] + "…"
