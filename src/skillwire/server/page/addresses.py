"""Where things are on the page: from a URI of a skill to an address, and back.

Every link is relative, so that the page works below any path that a proxy
gives it, and can never lead to another machine.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request

from skillwire.core.uri import DEFAULT_SCHEME, SkillUri
from skillwire.errors import InvalidUriError, NotFoundError

HOME: Final = "/"
CONNECT: Final = "/connect"
ROBOTS: Final = "/robots.txt"
SKILLS: Final = "/skills/"
FILES: Final = "/files/"
STATIC: Final = "/static/"

UNKNOWN_SERVER: Final = "https://this-server.invalid"
"""What stands for the server's address when a request does not tell it."""

# A name, an IPv4 address, or an IPv6 address in brackets; nothing else can stand in a snippet.
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(?:/[A-Za-z0-9._~/-]*)?")


def owns(path: str) -> bool:
    """Tell whether a path, without what an application is mounted at, is one of the page's."""
    return path in (HOME, CONNECT, ROBOTS) or path.startswith((SKILLS, FILES, STATIC))


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path that was asked for, decoded, without what the application is mounted at.

    Raises:
        NotFoundError: A slash in it is encoded, which never is part of a name.
    """
    if b"%2f" in scope.get("raw_path", b"").lower():
        raise NotFoundError("a slash in the path is encoded", uri="")
    return scope["path"][len(scope.get("root_path", "")) :]


def base_of(scope: Mapping[str, Any]) -> str:
    """Return the way from what was asked for to where all paths begin."""
    path = scope["path"][len(scope.get("root_path", "")) :]
    return "../" * (path.count("/") - 1) or "./"


def uri_at(place: str) -> str:
    """Return the canonical URI of what has the address `place`, after the page's own part of it.

    Raises:
        NotFoundError: Nothing can be there.
    """
    first, _, rest = place.partition("/")
    # The first segment of a skill's path never holds a colon.
    scheme, path = (first[:-1], rest) if first.endswith(":") else (DEFAULT_SCHEME, place)
    try:
        return SkillUri.build(path.removesuffix("/"), scheme=scheme).root
    except InvalidUriError as error:
        raise NotFoundError(str(error), uri=place) from error


def place_of(uri: str) -> str:
    """Return the part of an address that stands for a canonical URI."""
    scheme, _, path = uri.partition("://")
    return path if scheme == DEFAULT_SCHEME else f"{scheme}:/{path}"


def endpoint_of(request: Request, public_url: str, path: str) -> str:
    """Return the URL at which clients reach the server's `path`.

    That is below `public_url`, if it is given. Otherwise the client's own word
    for the server is taken, as far as it can be one: it goes into snippets
    that people copy.
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
    except ValueError:  # A port above the last one, or no address in the brackets.
        is_sound = None
    return url if is_sound else UNKNOWN_SERVER + path
