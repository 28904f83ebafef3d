"""Rendering of templates: every text is escaped, with hidden characters spelled out."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from starlette.requests import Request

from skillwire.core import DEFAULT_SCHEME, InvalidUriError, NotFoundError, SkillUri, revealed

if TYPE_CHECKING:
    from jinja2 import Environment


# The static files of the page: style, script and icon.


STYLE: Final = "page.css"
SCRIPT: Final = "page.js"
ICON: Final = "icon.svg"

_MEDIA_TYPES = {
    STYLE: "text/css; charset=utf-8",
    SCRIPT: "text/javascript; charset=utf-8",
    ICON: "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file whose name contains its digest, so that it can be cached forever."""

    name: str
    media_type: str
    content: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return all files by their original names."""
    return {name: _load(name, media_type) for name, media_type in _MEDIA_TYPES.items()}


def asset_at(name: str) -> Asset | None:
    """Return the file with a served name, if there is one."""
    return next((asset for asset in assets().values() if asset.name == name), None)


def _load(name: str, media_type: str) -> Asset:
    content = (files("skillwire.server.page") / "static" / name).read_bytes()
    stem, _, suffix = name.rpartition(".")
    return Asset(f"{stem}.{hashlib.sha256(content).hexdigest()[:16]}.{suffix}", media_type, content)


CUT: Final = "…"

_UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


def render_template(template: str, values: Mapping[str, Any]) -> bytes:
    """Return a rendered template."""
    # Lone surrogates cannot be encoded, and must not make the page fail.
    return _environment().get_template(template).render(values).encode("utf-8", "replace")


def safe(html: str) -> Any:
    """Mark HTML from `markdown.py` or `skill.py` as safe, so that it is not escaped again."""
    from markupsafe import Markup

    return Markup(html)


def shortened(text: str, most: int) -> str:
    """Cut a text to `most` characters, at a word boundary if there is one near."""
    if len(text) <= most:
        return text
    beginning = text[:most]
    return (beginning.rpartition(" ")[0] or beginning if " " in beginning[most // 2 :] else beginning) + CUT


def format_size(size: int | None) -> str:
    """Return a size in a human-readable unit."""
    if size is None:
        return "unknown size"
    if size < 1000:
        return f"{size} byte{'' if size == 1 else 's'}"
    amount, unit = size / 1000, _UNITS[0]
    for larger in _UNITS[1:]:
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"


def format_count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun in singular or plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


@cache
def _environment() -> "Environment":
    # Imported on the first request: most servers never serve a page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("skillwire.server.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_reveal_text,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters, names = cast("dict[str, Any]", environment.filters), cast("dict[str, Any]", environment.globals)
    filters |= {"size": format_size, "shortened": shortened, "short_digest": _short_digest}
    names |= {"counted": format_count, "style": assets()[STYLE].name}
    names |= {"script": assets()[SCRIPT].name, "icon": assets()[ICON].name}
    return environment


def _reveal_text(value: object) -> object:
    """Spell out hidden characters before escaping; in safe HTML this is already done."""
    return value if not isinstance(value, str) or hasattr(value, "__html__") else revealed(value)


def _short_digest(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def etag_of(body: bytes) -> str:
    """Return the ETag of a page, which is the same on all replicas."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


# The paths of the page: conversion between URIs of skills and URL paths.


HOME: Final = "/"
CONNECT: Final = "/connect"
ROBOTS: Final = "/robots.txt"
SKILLS: Final = "/skills/"
FILES: Final = "/files/"
STATIC: Final = "/static/"

UNKNOWN_SERVER: Final = "https://this-server.invalid"
"""Placeholder for the server's URL when a request has no valid Host header."""

# A name, an IPv4 address, or an IPv6 address in brackets; nothing else may be in a snippet.
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(?:/[A-Za-z0-9._~/-]*)?")


def owns(path: str) -> bool:
    """Return whether the page serves a path (relative to the application's mount point)."""
    return path in (HOME, CONNECT, ROBOTS) or path.startswith((SKILLS, FILES, STATIC))


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the decoded path of a request, relative to the mount point.

    Raises:
        NotFoundError: It contains an encoded slash, which no name has.
    """
    if b"%2f" in scope.get("raw_path", b"").lower():
        raise NotFoundError("the path contains an encoded slash", uri="")
    return scope["path"][len(scope.get("root_path", "")) :]


def base_of(scope: Mapping[str, Any]) -> str:
    """Return the relative path from the requested page to the root of the application."""
    path = scope["path"][len(scope.get("root_path", "")) :]
    return "../" * (path.count("/") - 1) or "./"


def uri_at(place: str) -> str:
    """Return the canonical URI for `place`, the part of a path after `/skills/` or `/files/`.

    Raises:
        NotFoundError: It is not the path of a URI.
    """
    first, _, rest = place.partition("/")
    # The first segment of a skill's path never contains a colon.
    scheme, path = (first[:-1], rest) if first.endswith(":") else (DEFAULT_SCHEME, place)
    try:
        return SkillUri.build(path.removesuffix("/"), scheme=scheme).root
    except InvalidUriError as error:
        raise NotFoundError(str(error), uri=place) from error


def place_of(uri: str) -> str:
    """Return the part of a path that identifies a canonical URI; the inverse of `uri_at`."""
    scheme, _, path = uri.partition("://")
    return path if scheme == DEFAULT_SCHEME else f"{scheme}:/{path}"


def endpoint_of(request: Request, public_url: str, path: str) -> str:
    """Return the URL at which clients reach the server's `path`.

    It is below `public_url`, if that is given. Otherwise it is built from the
    Host header, which is checked because the URL goes into snippets that people
    copy.
    """
    if public_url and _PLAIN_URL.fullmatch(public_url):
        return public_url.rstrip("/").removesuffix(path) + path
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        return UNKNOWN_SERVER + path
    scheme = "https" if request.scope.get("scheme") == "https" else "http"
    root = request.scope.get("root_path", "")
    url = f"{scheme}://{host}{root}{path}"
    try:
        is_sound = urlsplit(url).port != 0 and _PLAIN_URL.fullmatch(url)
    except ValueError:  # The port is out of range, or the brackets contain no address.
        is_sound = None
    return url if is_sound else UNKNOWN_SERVER + path
