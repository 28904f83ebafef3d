"""`WebClient`: GET requests for one site, each to an address that was checked first.

A name is resolved once for each request, all its addresses are checked, and
the connection is made to one of these; the certificate must be that of the
name. Redirects are followed here, so every hop is checked like the first. No
request has a cookie, a credential or a referrer, and proxies of the environment
are not used: they would resolve names themselves.
"""

import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from socket import IPPROTO_TCP, SOCK_STREAM
from typing import Final, TypeAlias, cast
from urllib.parse import urljoin

import anyio
import anyio.to_thread
import httpx2

from skillwire.core import (
    INDEX_PATH,
    OLD_INDEX_PATH,
    Address,
    AddressScope,
    LimitError,
    SkillError,
    SourceError,
    __version__,
    is_loopback,
    literal,
    quoted,
    scope_of,
)

# Errors of requests to a web site.


class SiteUnavailableError(SourceError):
    """The site cannot be reached, or answers with a server error."""

    refusal = "server-unavailable"


class SiteTooSlowError(SourceError):
    """The site did not answer within its deadline."""

    refusal = "too-slow"


class SiteAnswerError(SourceError):
    """The site's response breaks the rules of its dialect.

    `violates` is the entry of `docs/requirements.md` that it breaks.
    """

    refusal = "invalid-answer"

    def __init__(self, message: str, *, violates: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.violates = violates


class ForeignHostError(SourceError):
    """The site refers to another host, in a redirect or in its index; no request was sent there."""

    refusal = "foreign-host"

    def __init__(self, message: str, *, host: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.host = host


class UnsafeAddressError(SourceError):
    """The connection is not encrypted, or the address is not public; no request was sent there."""

    refusal = "unsafe-address"


# The address of a site, as the user typed it, and which other hosts it may refer to.


MAX_URL_LENGTH: Final = 4096
MAX_HOSTS: Final = 64

_PORTS = {"http": 80, "https": 443}
_UNUSABLE = re.compile(r"[\x00-\x20\x7f\\]")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/?#\[\]@*%\\]+)(?::[0-9]{1,5})?")
_LOCALHOST = "localhost"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A normalised host and a port: equal when requests go to the same server."""

    host: str
    port: int

    @classmethod
    def of(cls, url: httpx2.URL) -> "HostPort":
        return cls(_plain(url.raw_host.decode("ascii")), url.port or _PORTS[url.scheme])

    @property
    def is_loopback(self) -> bool:
        """Whether its name means this machine; the address it resolves to must be a loopback address too."""
        address = literal(self.host)
        return self.host == _LOCALHOST if address is None else is_loopback(address)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https"] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HostRule:
    """A host that the user allows, or all names below it."""

    place: HostPort
    is_wildcard: bool = False

    @classmethod
    def parse(cls, text: str) -> "HostRule":
        """Parse `cdn.example.net`, `cdn.example.net:8443` or `*.example.net`.

        Raises:
            SourceError: It is none of these.
        """
        is_wildcard = text.startswith("*.")
        host = text.removeprefix("*.")
        url = _parsed(f"https://{host}/") if _HOST.fullmatch(host) else None
        if url is None:
            raise SourceError(
                f"{quoted(text[:200])} is not a host", fix="write a host such as cdn.example.net"
            )
        place = HostPort.of(url)
        if is_wildcard and ("." not in place.host or literal(place.host) is not None):
            raise SourceError(
                f"{quoted(text[:200])} allows too many hosts", fix="name a domain, such as *.example.net"
            )
        return cls(place, is_wildcard)

    def admits(self, place: HostPort) -> bool:
        if not self.is_wildcard:
            return place == self.place
        return place.port == self.place.port and place.host.endswith(f".{self.place.host}")


@dataclass(frozen=True, slots=True)
class Hop:
    """One allowed request: its URL and host, and whether the user typed that host."""

    url: httpx2.URL
    place: HostPort
    is_typed: bool

    def require_reachable(self, address: Address) -> None:
        """Check an address that the host's name was resolved to.

        Raises:
            UnsafeAddressError: The address is not allowed; no request is sent there.
        """
        scope = scope_of(address)
        if self.url.scheme == "http" and not is_loopback(address):
            raise UnsafeAddressError(
                f"{self.place} is not on this machine, and the connection is not encrypted", fix="use https"
            )
        if scope is AddressScope.PUBLIC or (self.is_typed and scope is AddressScope.INTERNAL):
            return
        if self.is_typed and scope is AddressScope.LINK_LOCAL and literal(self.place.host) == address:
            return
        raise UnsafeAddressError(
            f"{quoted(str(self.place))} is at {address}, which is {_SCOPE_TEXTS[scope]}",
            fix="if this is intended, add this host to the configuration"
            if scope is AddressScope.INTERNAL
            else "report it to the site's author, or check your DNS configuration",
        )


_SCOPE_TEXTS = {
    AddressScope.INTERNAL: "an address of a private network",
    AddressScope.LINK_LOCAL: "an address of the local link",
    AddressScope.NOBODY: "not an address of any web site",
}


@dataclass(frozen=True, slots=True)
class SiteAddress:
    """The address of a site: the URLs of its index, at the current and at the old path."""

    url: str
    index_url: str
    old_index_url: str
    own: HostPort
    others: tuple[HostRule, ...] = ()

    @classmethod
    def parse(cls, url: str, hosts: Iterable[str] = ()) -> "SiteAddress":
        """Parse what the user typed: the URL of the site or of its index, and further hosts.

        A path is kept before the path of the index, for sites that share a host.

        Raises:
            SourceError: It is not a valid site address, or one of `hosts` is not a host.
        """
        parsed = _typed(url)
        path = parsed.path.rstrip("/")
        for known in (INDEX_PATH, OLD_INDEX_PATH):
            path = path.removesuffix(known)
        rules = tuple(HostRule.parse(host) for host in dict.fromkeys(hosts))
        if len(rules) > MAX_HOSTS:
            raise SourceError(f"a site has at most {MAX_HOSTS} further hosts")
        site = str(parsed.copy_with(path=path or "/")).removesuffix("/")
        return cls(site, f"{site}{INDEX_PATH}", f"{site}{OLD_INDEX_PATH}", HostPort.of(parsed), rules)

    def hop(self, url: str) -> Hop:
        """Check a URL of the site, or one that the site refers to.

        Raises:
            SiteAnswerError: It is not an HTTP URL.
            ForeignHostError: The user does not allow its host.
            UnsafeAddressError: The connection would not be encrypted.
        """
        parsed = _parsed(url)
        if parsed is None or parsed.userinfo:
            raise SiteAnswerError(
                f"the site refers to {quoted(url[:200])}, which is not a web address", violates="DISC-04"
            )
        place = HostPort.of(parsed)
        rules = [rule for rule in (HostRule(self.own), *self.others) if rule.admits(place)]
        if not rules:
            raise ForeignHostError(
                f"the site refers to the host {quoted(str(place)[:200])}, which is not allowed for it",
                host=str(place),
                fix=f"if you trust that host too, add {quoted(str(place)[:200])} to the site's `hosts`",
            )
        is_typed = not all(rule.is_wildcard for rule in rules)
        if parsed.scheme == "http" and not (is_typed and place.is_loopback):
            raise UnsafeAddressError(
                f"the site refers to {quoted(str(place)[:200])} without encryption",
                fix="ask the site's author to use https there",
            )
        return Hop(parsed.copy_with(fragment=None), place, is_typed)


def _typed(url: str) -> httpx2.URL:
    parsed = _parsed(url)
    if parsed is None:
        raise SourceError(
            "this is not the address of a web site",
            fix="write https:// and a host, such as https://example.org",
        )
    if parsed.userinfo or parsed.query or "?" in url or "#" in url:
        raise SourceError("the address of a site must not have a user name, query or fragment")
    if parsed.scheme == "http" and not HostPort.of(parsed).is_loopback:
        raise SourceError(
            "the address of a site must begin with https://", fix="http:// is only for sites on this machine"
        )
    return parsed


def _parsed(url: str) -> httpx2.URL | None:
    """Parse an HTTP URL; None when it is not one."""
    if len(url) > MAX_URL_LENGTH or _UNUSABLE.search(url):
        return None
    try:
        parsed = httpx2.URL(url)
        port = parsed.port
    except (httpx2.InvalidURL, ValueError):
        return None
    is_usable = (
        parsed.scheme in _PORTS
        and parsed.host
        and "%" not in parsed.host
        and (port is None or 0 < port < 65536)
    )
    return parsed if is_usable else None


def _plain(host: str) -> str:
    """Return a normalised host: lowercase, without brackets or a trailing dot."""
    return host.strip("[]").lower().removesuffix(".")


MAX_REDIRECTS: Final = 5
DEFAULT_SECONDS: Final = 30.0

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CONNECT_SECONDS = 10.0
_MAX_ADDRESSES = 4
_MAX_ERROR_TEXT = 200

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, as texts; raises OSError when there are none."""


@dataclass(frozen=True, slots=True)
class WebResponse:
    """The final response: its URL, status and headers, and the body if the status is 200."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def media_type(self) -> str:
        """The media type without its parameters; empty when there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Resolve the addresses of a host with the system's resolver."""
    found = await anyio.getaddrinfo(host, port, type=SOCK_STREAM, proto=IPPROTO_TCP)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class WebClient:
    """Fetches URLs of one site, within `seconds` for each, including redirects.

    `resolve` and `tls` are for tests and for networks with certificates of
    their own; without `tls` the system's are used, or those in the file that
    the variable `SSL_CERT_FILE` names.
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
    ) -> WebResponse:
        """Fetch `url`, with a body of at most `max_bytes`; any status except a redirect is returned.

        Nothing is decompressed. A body with a Content-Encoding is refused,
        unless it is requested `raw`.

        Raises:
            ForeignHostError: A hop goes to a host that the user has not allowed.
            UnsafeAddressError: A hop is not encrypted, or its address is not public.
            SiteTooSlowError: It takes too long.
            SiteUnavailableError: The site cannot be reached, or closes the connection.
            SiteAnswerError: It redirects too often, or the response is not HTTP.
            LimitError: The body is larger than `max_bytes`.
        """
        with anyio.move_on_after(self._seconds) as clock:
            try:
                return await self._follow(url, max_bytes, headers or {}, raw)
            except httpx2.HTTPError as error:
                raise _error_for(error) from error
        assert clock.cancelled_caught
        raise SiteTooSlowError(
            f"the site took more than {self._seconds:g} seconds to answer {quoted(_short(url))}"
        )

    async def _follow(self, url: str, max_bytes: int, headers: Mapping[str, str], raw: bool) -> WebResponse:
        for _ in range(MAX_REDIRECTS + 1):
            hop = self._address.hop(url)
            answer = await self._fetch(hop, max_bytes, headers, raw)
            if answer.status not in _REDIRECTS:
                return answer
            target = answer.headers.get("location", "")
            if not target or not target.isascii():
                raise SiteAnswerError("the site redirects without a location", violates="DISC-08")
            url = _joined(str(hop.url), target)
        raise SiteAnswerError(
            f"the site redirects more than {MAX_REDIRECTS} times, last to {quoted(_short(url))}",
            violates="DISC-08",
        )

    async def _fetch(self, hop: Hop, max_bytes: int, headers: Mapping[str, str], raw: bool) -> WebResponse:
        """Send one request, to the first of the host's addresses that accepts the connection."""
        failure: httpx2.HTTPError | None = None
        for address in await self._addresses(hop):
            transport = httpx2.AsyncHTTPTransport(
                # One connection per request: a reused one could serve another name at this address.
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
                    return await _response(hop, response, max_bytes, raw)
                finally:
                    await response.aclose()
        assert failure is not None
        raise failure

    async def _addresses(self, hop: Hop) -> Sequence[str]:
        """Resolve a host, and refuse it if any of its addresses is not allowed."""
        try:
            found = await self._resolve(hop.place.host, hop.place.port)
            addresses = [ip_address(text) for text in found]
        except (OSError, UnicodeError) as error:
            raise SiteUnavailableError(
                f"{quoted(str(hop.place))} has no address: {_text_of(error)}"
            ) from error
        if not addresses:
            raise SiteUnavailableError(f"{quoted(str(hop.place))} has no address")
        for address in addresses:
            hop.require_reachable(address)
        return [str(address) for address in addresses[:_MAX_ADDRESSES]]

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
            "User-Agent": f"skillwire/{__version__}",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **headers,
        },
        extensions={
            "sni_hostname": hop.place.host,
            # The caller limits the total time; this limit leaves time for a second address.
            "timeout": {"connect": _CONNECT_SECONDS, "read": None, "write": None, "pool": None},
        },
    )


async def _response(hop: Hop, response: httpx2.Response, max_bytes: int, raw: bool) -> WebResponse:
    """Read the body of a response with status 200, up to the limit; other bodies are not read."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    if response.status_code != 200:
        return WebResponse(str(hop.url), response.status_code, headers)
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity") and not raw:
        raise SiteAnswerError(
            f"the response is compressed ({quoted(encoding[:50])}), which was not requested",
            violates="LIM-06",
        )
    size, parts = 0, list[bytes]()
    async for data in cast(httpx2.AsyncByteStream, response.stream):
        size += len(data)
        if size > max_bytes:
            raise LimitError(f"{quoted(_short(str(hop.url)))} is larger than {max_bytes} bytes")
        parts.append(data)
    return WebResponse(str(hop.url), 200, headers, b"".join(parts))


def _error_for(error: httpx2.HTTPError) -> SkillError:
    if isinstance(error, httpx2.ProtocolError):
        return SiteAnswerError(f"the response is not valid HTTP: {_text_of(error)}", violates="DISC-01")
    return SiteUnavailableError(f"the site cannot be reached: {_text_of(error)}")


def _text_of(error: Exception) -> str:
    return quoted(str(error)[:_MAX_ERROR_TEXT] or type(error).__name__)


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _short(url: str) -> str:
    return url if len(url) <= _MAX_ERROR_TEXT else url[: _MAX_ERROR_TEXT - 1] + "…"


# How long an HTTP response may be cached, by its headers (RFC 9111).


MAX_SECONDS: Final = 365 * 24 * 3600.0

_SECONDS = re.compile(r"[0-9]{1,10}")
_VALIDATOR = re.compile(r"[\x20-\x7e]{1,1024}")


def fresh_seconds(headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds a response is fresh; None when its headers do not state it.

    Malformed values count as stale. Header names are lowercase.
    """
    directives = _directives(headers.get("cache-control", ""))
    if "no-store" in directives or "no-cache" in directives:
        return 0.0
    if "max-age" in directives:
        lifetime = _number(directives["max-age"])
    elif "expires" in headers:
        lifetime = _between(headers.get("date", ""), headers["expires"])
    else:
        return None
    return max(0.0, min(lifetime, MAX_SECONDS) - _number(headers.get("age", "0")))


def validators(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a conditional request; none when the response has no tag and no date."""
    for name, header in (("etag", "If-None-Match"), ("last-modified", "If-Modified-Since")):
        if _VALIDATOR.fullmatch(headers.get(name, "")):
            return {header: headers[name]}
    return {}


def _directives(text: str) -> dict[str, str]:
    parts = (part.partition("=") for part in text.split(","))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in parts}


def _number(text: str) -> float:
    return float(text) if _SECONDS.fullmatch(text.strip()) else 0.0


def _between(start: str, end: str) -> float:
    try:
        return (parsedate_to_datetime(end) - parsedate_to_datetime(start)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return 0.0
