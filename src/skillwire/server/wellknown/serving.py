"""`SiteApp`: the web site of skills, answered over plain HTTP."""

import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any, Final, Protocol

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skillwire.errors import NotFoundError, SkillError
from skillwire.server.answers import Answers
from skillwire.server.etags import is_known
from skillwire.server.wellknown.site import PublishedSite, Publisher
from skillwire.wire.core import CacheScope
from skillwire.wire.wellknown import INDEX_MEDIA_TYPE, INDEX_PATH, SITE_PATH

logger = logging.getLogger(__name__)

ROUTE: Final = f"{SITE_PATH}{{path:path}}"
METHODS: Final = ("GET", "HEAD")

_FOREVER = "max-age=31536000, immutable"
_SECONDS = 120
_RETRY_SECONDS = 5


class Published(Protocol):
    """The skills of one server, as far as a site needs to know them."""

    @property
    def answers(self) -> Answers: ...


class SiteApp:
    """Answers GET and HEAD below `/.well-known/agent-skills/`.

    The index is fresh for as long as every other answer of the server, and
    then compared by its ETag. An artifact never changes: when its skill does,
    it is gone, and the index names another one.
    """

    def __init__(self, skills: Published, *, publisher: Publisher | None = None) -> None:
        self._skills = skills
        self._publisher = publisher or Publisher()

    async def respond(self, request: Request, *, is_open: bool = True, is_private: bool = False) -> Response:
        """Answer a request; pages of other origins may read the answer if the site `is_open`.

        What `is_private` is for this caller alone: no other page and no shared cache gets it.
        """
        headers = {"access-control-allow-origin": "*"} if is_open and not is_private else {}
        headers["x-content-type-options"] = "nosniff"
        if request.method not in METHODS:
            return _words(
                405, "Only GET and HEAD are answered here", {**headers, "allow": ", ".join(METHODS)}
            )
        try:
            with anyio.fail_after(_SECONDS):
                return await self._found(request, headers, "private" if is_private else "public")
        except NotFoundError:
            return _words(404, "There is nothing here", {**headers, "cache-control": "no-store"})
        except (SkillError, TimeoutError) as error:
            logger.warning("the web site of skills cannot be answered for: %s", error or "it takes too long")
        except Exception:
            logger.exception("unexpected failure while answering for the web site of skills")
        later = {**headers, "cache-control": "no-store", "retry-after": str(_RETRY_SECONDS)}
        return _words(503, "The skills cannot be read now", later)

    async def _found(self, request: Request, headers: dict[str, str], scope: CacheScope) -> Response:
        answers = self._skills.answers
        path = request.scope["path"][len(request.scope.get("root_path", "")) :]
        site = await self._publisher.site(answers.catalog, answers.listed_of)
        if path == INDEX_PATH:
            return self._index(request, site, answers.terms.ttl_ms // 1000, headers, scope)
        artifact = site.artifacts.get(path.removeprefix(SITE_PATH))
        if artifact is None:
            raise NotFoundError("no such artifact", uri=path)
        headers = {**headers, "cache-control": f"{scope}, {_FOREVER}", "etag": _etag(artifact.digest)}
        if is_known(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        headers = {**headers, "content-type": artifact.media_type, "content-length": str(artifact.size)}
        if request.method == "HEAD":
            return Response(headers=headers)
        return Response(await self._publisher.read(artifact, answers.catalog), headers=headers)

    @staticmethod
    def _index(
        request: Request, site: PublishedSite, ttl: int, headers: dict[str, str], scope: CacheScope
    ) -> Response:
        headers = {
            **headers,
            "cache-control": f"{scope}, max-age={ttl}" if ttl else f"{scope}, no-cache",
            "etag": _etag(site.digest),
        }
        if is_known(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        headers = {**headers, "content-type": INDEX_MEDIA_TYPE, "content-length": str(len(site.index))}
        return Response(b"" if request.method == "HEAD" else site.index, headers=headers)


class Routed(Protocol):
    """A server that takes routes of others: the SDK's `MCPServer`, and FastMCP's."""

    def custom_route(self, path: str, methods: list[str], /) -> Callable[[Any], Any]: ...


def site_endpoint(skills: Published) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of the site, for an application of someone else.

    There nobody checks who asks under which name. So when it listens on this
    machine only, pages of other origins may not read the answers; if a proxy
    stands before it, that is for the proxy to allow.
    """
    site = SiteApp(skills)

    async def answer(request: Request) -> Response:
        return await site.respond(request, is_open=not _is_on_loopback(request))

    return answer


def add_site(server: Routed, skills: Published) -> None:
    """Serve the site of `skills` beside a server's own endpoint."""
    server.custom_route(ROUTE, [*METHODS])(site_endpoint(skills))


def site_routes(skills: Published) -> list[Route]:
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


def _words(status: int, words: str, headers: dict[str, str]) -> Response:
    return Response(words, status_code=status, headers=headers, media_type="text/plain; charset=utf-8")
