"""`SiteApp`: the web site of skills over plain HTTP."""

import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any, Final, Protocol

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skillwire.core import INDEX_PATH, SITE_PATH, NotFoundError, SkillError, digest_of
from skillwire.server.answers import Answers, etag_matches
from skillwire.server.wellknown.site import Publisher
from skillwire.wire.core import CacheScope
from skillwire.wire.wellknown import INDEX_MEDIA_TYPE

logger = logging.getLogger(__name__)

ROUTE: Final = f"{SITE_PATH}{{path:path}}"
METHODS: Final = ("GET", "HEAD")

_VERSIONS_PATH = f"{SITE_PATH}versions.json"

_FOREVER = "public, max-age=31536000, immutable"
_SECONDS = 120
_RETRY_SECONDS = 5


class SiteSkills(Protocol):
    """The part of `Skills` that a site uses."""

    @property
    def answers(self) -> Answers: ...


class SiteApp:
    """Answers GET and HEAD below `/.well-known/agent-skills/`.

    The index may be cached for the server's `ttl`, and is revalidated by its
    ETag, and so may `versions.json`, which names the immutable versions of skills
    if a catalog has any. An artifact never changes: when its skill changes, the index names
    another one. So it may be cached forever, unless it is private: the caller's
    access may end.
    """

    def __init__(self, skills: SiteSkills, *, publisher: Publisher | None = None) -> None:
        self._skills = skills
        self._publisher = publisher or Publisher()

    @property
    def cached_bytes(self) -> int:
        """The size of the cached answers in bytes."""
        return self._publisher.cached_bytes

    async def respond(self, request: Request, *, is_open: bool = True, is_private: bool = False) -> Response:
        """Answer a request; pages of other origins may read the answer if the site `is_open`.

        With `is_private`, the answer is for this caller only: other origins and shared caches do not
        get it, and it varies by the `Authorization` header.
        """
        headers = {"access-control-allow-origin": "*"} if is_open and not is_private else {}
        if is_private:
            headers["vary"] = "authorization"
        headers["x-content-type-options"] = "nosniff"
        if request.method not in METHODS:
            return _text_response(
                405, "Only GET and HEAD are allowed", {**headers, "allow": ", ".join(METHODS)}
            )
        try:
            with anyio.fail_after(_SECONDS):
                return await self._respond(request, headers, "private" if is_private else "public")
        except NotFoundError:
            return _text_response(404, "Not found", {**headers, "cache-control": "no-store"})
        except (SkillError, TimeoutError) as error:
            logger.warning("a request for the web site of skills failed: %s", error or "timeout")
        except Exception:
            logger.exception("unexpected failure while answering a request for the web site of skills")
        later = {**headers, "cache-control": "no-store", "retry-after": str(_RETRY_SECONDS)}
        return _text_response(503, "The skills cannot be read at the moment. Try again later.", later)

    async def _respond(self, request: Request, headers: dict[str, str], scope: CacheScope) -> Response:
        answers = self._skills.answers
        path = request.scope["path"][len(request.scope.get("root_path", "")) :]
        site = await self._publisher.site(answers.source, answers.listed_of)
        ttl = answers.settings.ttl_ms // 1000
        fresh = f"{scope}, max-age={ttl}" if ttl else f"{scope}, no-cache"
        if path == INDEX_PATH:
            return self._document(request, site.index, site.digest, {**headers, "cache-control": fresh})
        if path == _VERSIONS_PATH and site.versions:
            digest = digest_of(site.versions)
            return self._document(request, site.versions, digest, {**headers, "cache-control": fresh})
        artifact = site.artifacts.get(path.removeprefix(SITE_PATH))
        if artifact is None:
            raise NotFoundError("no such artifact", uri=path)
        kept = fresh if scope == "private" else _FOREVER
        headers = {**headers, "cache-control": kept, "etag": _etag(artifact.digest)}
        if etag_matches(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        headers = {**headers, "content-type": artifact.media_type, "content-length": str(artifact.size)}
        if request.method == "HEAD":
            return Response(headers=headers)
        return Response(await self._publisher.read(artifact, answers.source), headers=headers)

    @staticmethod
    def _document(request: Request, content: bytes, digest: str, headers: dict[str, str]) -> Response:
        headers = {**headers, "etag": _etag(digest)}
        if etag_matches(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        headers = {**headers, "content-type": INDEX_MEDIA_TYPE, "content-length": str(len(content))}
        return Response(b"" if request.method == "HEAD" else content, headers=headers)


class RoutableServer(Protocol):
    """A server with custom routes: the SDK's `MCPServer`, or FastMCP's."""

    def custom_route(self, path: str, methods: list[str], /) -> Callable[[Any], Any]: ...


def site_endpoint(skills: SiteSkills) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of the site for another application.

    Such an application does not check the `Host` header. So when it listens on
    loopback only, pages of other origins may not read the answers; a proxy in
    front of it can allow that.
    """
    site = SiteApp(skills)

    async def answer(request: Request) -> Response:
        return await site.respond(request, is_open=not _is_on_loopback(request))

    return answer


def add_site(server: RoutableServer, skills: SiteSkills) -> None:
    """Add the site of `skills` to a server's routes."""
    server.custom_route(ROUTE, [*METHODS])(site_endpoint(skills))


def site_routes(skills: SiteSkills) -> list[Route]:
    """Return the routes of the site, for a Starlette application."""
    return [Route(ROUTE, site_endpoint(skills), methods=[*METHODS])]


def _is_on_loopback(request: Request) -> bool:
    server = request.scope.get("server")
    try:
        return server is None or ip_address(server[0]).is_loopback
    except ValueError:  # A name, or the path of a socket.
        return True


def _etag(digest: str) -> str:
    return f'"{digest.removeprefix("sha256:")}"'


def _text_response(status: int, text: str, headers: dict[str, str]) -> Response:
    return Response(text, status_code=status, headers=headers, media_type="text/plain; charset=utf-8")
