"""What a caller may not see: nothing that can be asked of a server tells whether it is there.

Each question is put to two servers, one with skills that the caller may not
see and one without. Both must give the same answer, to the byte. The same
questions of a caller who may see everything show that they could tell.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import orjson
import pytest

from folders import skill_md, write_files
from integration.access_world import (
    NOWHERE,
    OPEN,
    SECRET,
    SECRET_PATHS,
    Asker,
    listening,
    serving,
    token_of,
    write_access,
    write_world,
)
from integration.both_paths import Outcome
from serving import legacy
from skillwire.core import SITE_PATH
from skillwire.runner import Policy
from skillwire.server.access.settings import METADATA_PATH
from skillwire.server.http.app import HttpApp
from skillwire.server.http.views import PATH, Views
from skillwire.server.ops.metrics import OPS_PATHS
from skillwire.server.page import templates
from skillwire.wire.core import write_cursor

pytestmark = pytest.mark.requirement("SEC-14")

DIALECTS = ("index-june", "list-march", "primitive", "exec", "prompt", "well-known")
OTHER_DIALECTS = ("index-april",)

PLACES = (*SECRET_PATHS, *NOWHERE, "acme", "acme/open", "acme/group", "")
FILES = tuple(f"skill://{path}" for path in (*SECRET, *OPEN, "secret/plan/references/none.md"))
SKILLS = tuple(f"skill://{path}/SKILL.md" for path in (*SECRET_PATHS, *NOWHERE, "acme/open"))
NAMES = ("plan", "group", "zebra", "open", "acme/open", "acme-vault/open", "skill://secret/plan", "missing")
WORDS = ("vault fountain", "plan", "zebra", "testing", "open", "nothing")

# Nothing in their answers depends on which skills there are.
SAME_FOR_EVERYONE = {
    "ping",
    "initialize",
    "resources/templates/list",
    "tools/list",
    "subscriptions/listen",
    "resources/subscribe",
    "resources/unsubscribe",
}


def cursors(listing: str) -> list[dict[str, Any]]:
    """Ask from the beginning, and from after things that are there, or not, or not to be seen."""
    places = ("skill://acme/group/one/SKILL.md", *SKILLS[:5], "skill://a", "skill://b")
    return [{}, *({"cursor": write_cursor(listing, place)} for place in places), {"cursor": "none of yours"}]


def at(uris: Sequence[str], **more: Any) -> list[dict[str, Any]]:
    return [{"uri": uri, **more} for uri in uris]


DIRECTORIES = tuple(f"skill://{path}" for path in PLACES)
PROBES: dict[str, list[dict[str, Any]]] = {
    "ping": [{}],
    "server/discover": [{}],
    "skills/list": cursors("skills/list"),
    "skills/get": [*at(SKILLS), *({"name": name} for name in NAMES)],
    "skills/read": [{"name": name} for name in NAMES],
    "skills/read_reference": [
        {"name": name, "reference": reference} for name in NAMES for reference in ("map", "references/map.md")
    ],
    "skills/execute": [{"name": name, "script": "open", "arguments": {}} for name in ("plan", "missing")],
    "resources/read": [
        *at(FILES),
        *at(DIRECTORIES),
        *at(["skill://index.json"]),
        *at(
            [f"skill://{path}.{kind}" for path in (*SECRET_PATHS, "acme/open") for kind in ("tar.gz", "zip")]
        ),
    ],
    "resources/list": [*cursors("resources/list"), *at(DIRECTORIES)],
    "resources/directory/read": [*at(DIRECTORIES), *at(FILES[:3])],
    "resources/templates/list": [{}],
    "resources/subscribe": at(SKILLS),
    "resources/unsubscribe": at(SKILLS),
    "completion/complete": [
        {
            "ref": {"type": "ref/resource", "uri": "skill://{+path}"},
            "argument": {"name": "path", "value": typed},
        }
        for typed in ("", "s", "secret/", "secret/plan/", "ac", "acme", "acme/", "zeb", "nowhere/")
    ],
    "prompts/list": cursors("prompts/list"),
    "prompts/get": [{"name": name} for name in NAMES],
    "tools/list": [{}],
    "tools/call": [
        {"name": "find_skills", "arguments": {"query": words, "limit": 5}} for words in (*WORDS, "*", "")
    ],
}
GETS = (
    "/",
    *(f"/?q={words.replace(' ', '+')}" for words in WORDS),
    "/connect",
    "/robots.txt",
    "/static/none.css",
    *(f"/skills/{path}" for path in PLACES),
    *(f"/skills/{path}/" for path in PLACES),
    *(f"/files/{path}" for path in (*SECRET, *OPEN)),
    *(f"/files/{path}?download" for path in SECRET),
    f"{SITE_PATH}index.json",
    *(f"{SITE_PATH}{path}/SKILL.md" for path in SECRET_PATHS),
    "/metrics",
    "/catalog/audit",
    "/nothing",
    "/mcp",
    "/healthz",
    "/readyz",
    "/.well-known/oauth-protected-resource",
    "/.well-known/nothing",
)


class Worlds(NamedTuple):
    """The server with everything, and the one with what may be seen."""

    whole: HttpApp
    part: HttpApp

    def callers(self, name: str) -> tuple[Asker, Asker]:
        token = token_of(name) if name else ""
        return Asker(self.whole, token), Asker(self.part, token)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for all tests, because the servers last as long as they do."""
    return "asyncio"


@pytest.fixture(scope="module", params=[DIALECTS, OTHER_DIALECTS], ids=["june and others", "april"])
async def worlds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Worlds]:
    place: Path = tmp_path_factory.mktemp("worlds")
    access = write_access(place / "etc")
    whole = write_world(place / "whole" / "skills", with_secrets=True)
    part = write_world(place / "part" / "skills", with_secrets=False)
    options = {"dialect": request.param, "watch": False, "scripts": True, "policy": Policy(pool=0)}
    async with serving(whole, access, **options) as one, serving(part, access, **options) as other:
        yield Worlds(one, other)


def methods_of(app: HttpApp) -> set[str]:
    """Return every method that any view of a server answers."""
    views = app._views  # pyright: ignore[reportPrivateUsage]
    assert isinstance(views, Views)
    opened = views._views.values()  # pyright: ignore[reportPrivateUsage]
    servers = [view.endpoint.skill_server.server for view in opened]
    return {name for server in servers for name in server._request_handlers}  # pyright: ignore[reportPrivateUsage]


async def test_every_method_that_is_answered_is_asked_about_here(worlds: Worlds) -> None:
    for name in ("few", "many"):
        for caller in worlds.callers(name):
            assert (await caller.ask("skills/list")).status == 200

    answered = methods_of(worlds.whole) | methods_of(worlds.part)

    assert answered - {"initialize", "subscriptions/listen", "logging/setLevel"} <= PROBES.keys()
    assert PROBES.keys() - answered <= {"ping", "server/discover", "initialize"} | {
        # Those of dialects that are not spoken here.
        method
        for method in PROBES
        if "april" in str(worlds.whole.skills.dialects) or method.startswith(("skills/", "prompts/"))
    }


def test_every_route_is_asked_about_here() -> None:
    known = {*OPS_PATHS, PATH, SITE_PATH}
    known |= {
        templates.HOME,
        templates.CONNECT,
        templates.ROBOTS,
        templates.SKILLS,
        templates.FILES,
        templates.STATIC,
    }
    known |= {METADATA_PATH}

    for route in known:
        assert any(path.partition("?")[0] == route or path.startswith(route) for path in GETS), route


@pytest.mark.parametrize("method", sorted(PROBES))
async def test_a_method_of_the_new_protocol_tells_nothing_of_what_is_out_of_sight(
    method: str, worlds: Worlds
) -> None:
    telling = 0
    for params in PROBES[method]:
        here, there = [await caller.ask(method, **params) for caller in worlds.callers("few")]
        assert here == there, params
        everything, less = [await caller.ask(method, **params) for caller in worlds.callers("many")]
        telling += everything != less

    is_spoken = method in methods_of(worlds.whole)
    assert bool(telling) == (is_spoken and method not in SAME_FOR_EVERYONE)


@pytest.mark.parametrize("method", sorted(PROBES.keys() - {"server/discover", "skills/execute"}))
async def test_a_method_of_a_session_tells_nothing_of_what_is_out_of_sight(
    method: str, worlds: Worlds
) -> None:
    callers = worlds.callers("few")
    sessions = [await caller.shake_hands() for caller in callers]

    for params in PROBES[method]:
        message = legacy(method, **params)
        here, there = [
            await caller.post(message, (b"mcp-session-id", session), (b"mcp-protocol-version", b"2025-11-25"))
            for caller, session in zip(callers, sessions, strict=True)
        ]
        assert here == there, params


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_no_route_tells_anything_of_what_is_out_of_sight(method: str, worlds: Worlds) -> None:
    for path in GETS:
        for name in ("few", ""):
            here, there = [await caller.get(path, method) for caller in worlds.callers(name)]
            assert here == there, path
            assert here.raw == there.raw, path


async def test_the_routes_could_tell(worlds: Worlds) -> None:
    """The control: who may see everything gets other answers where there is more."""

    async def differ(path: str) -> bool:
        here, there = [await caller.get(path) for caller in worlds.callers("many")]
        return here.raw != there.raw or here.status != there.status

    assert await differ("/")
    assert await differ("/?q=vault+fountain")
    assert await differ("/skills/secret/plan")
    assert await differ("/files/secret/plan/SKILL.md")


def secrets_in(outcome: Outcome) -> Iterator[str]:
    for word in (b"fountain", b"acme-vault", b"zebra", b"Turn left"):
        if word in outcome.raw:
            yield word.decode()


async def test_without_a_credential_every_route_and_method_sends_away(worlds: Worlds) -> None:
    stranger = worlds.callers("")[0]
    free = ("/healthz", "/readyz")

    for path in GETS:
        if path not in free:
            assert (await stranger.get(path)).status == 401, path
    for method, probes in PROBES.items():
        answer = await stranger.ask(method, **probes[0])
        assert answer.status == 401, method
        assert b"www-authenticate" in dict(answer.headers)


async def test_a_wrong_credential_is_sent_away_like_none(worlds: Worlds) -> None:
    bad = [b"Bearer skw_few_" + b"0" * 64, b"Bearer nonsense", b"Basic Zm9vOmJhcg==", b"Bearer", b"", b"few"]
    stranger = worlds.callers("")[0]

    for value in bad:
        answer = await stranger.get("/", "GET", (b"authorization", value))
        assert answer.status == 401, value
    twice = [(b"authorization", f"Bearer {token_of(name)}".encode()) for name in ("few", "many")]
    assert (await stranger.get("/", "GET", *twice)).status == 401


async def test_what_a_caller_may_see_is_all_there(worlds: Worlds) -> None:
    few, many = Asker(worlds.whole, token_of("few")), Asker(worlds.whole, token_of("many"))

    async def listed(caller: Asker) -> list[str]:
        found: list[str] = []
        params: dict[str, Any] = {}
        while True:
            result = orjson.loads((await caller.ask("skills/list", **params)).raw)["result"]
            assert result["cacheScope"] == "private"
            found += [entry["uri"] for entry in result["skills"]]
            if "nextCursor" not in result:
                return found
            params = {"cursor": result["nextCursor"]}

    assert await listed(few) == sorted(f"skill://{path}" for path in OPEN if path.endswith("/SKILL.md"))
    assert len(await listed(many)) == len(await listed(few)) + len(SECRET_PATHS)


async def test_a_session_belongs_to_who_began_it(worlds: Worlds) -> None:
    few, many = Asker(worlds.whole, token_of("few")), Asker(worlds.whole, token_of("many"))
    session = await many.shake_hands()

    stolen = await few.post(
        legacy("skills/list"), (b"mcp-session-id", session), (b"mcp-protocol-version", b"2025-11-25")
    )

    assert stolen.status == 404
    assert list(secrets_in(stolen)) == []


async def test_scripts_are_run_only_where_the_rules_allow_it(worlds: Worlds) -> None:
    if "exec" not in worlds.whole.skills.dialects and not worlds.whole.skills.scripts:
        return
    few = Asker(worlds.whole, token_of("few"))

    async def run(name: str, script: str) -> dict[str, Any]:
        return orjson.loads((await few.ask("skills/execute", name=name, script=script, arguments={})).raw)

    allowed, seen, unseen = (
        await run("tools", "hello.py"),
        await run("one", "hello.py"),
        await run("plan", "open.py"),
    )

    assert "result" in allowed, allowed
    assert (seen["error"]["code"], "may not run" in seen["error"]["message"]) == (-32003, True)
    assert unseen["error"]["code"] == (await run("missing", "open.py"))["error"]["code"]


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_a_change_out_of_sight_is_not_announced(era: str, tmp_path: Path) -> None:
    folder = write_world(tmp_path / "skills", with_secrets=True)
    access = write_access(tmp_path / "etc")
    async with serving(folder, access) as app:
        few, many = Asker(app, token_of("few")), Asker(app, token_of("many"))
        async with listening(few, era) as heard_few, listening(many, era) as heard_many:
            write_files(folder, {"secret/plan/SKILL.md": skill_md("plan", body="Elsewhere.\n")})
            await heard_many.wait_for_more(0)
            await anyio.sleep(1.0)
            before = list(heard_few.events)
            write_files(folder, {"acme/open/SKILL.md": skill_md("open", body="Another way.\n")})
            await heard_few.wait_for_more(0)

    assert before == []
    assert b"secret" not in b"".join(heard_few.events)
