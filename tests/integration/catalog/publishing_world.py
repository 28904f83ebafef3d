"""A server over a catalog whose callers have roles: what the tests of publishing over HTTP share."""

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import orjson

from folders import skill_md
from integration.access_world import Asker, token_line, token_of
from integration.both_paths import Outcome, exchange
from integration.odd_requests import HttpRequest
from skillwire.catalog import Catalog, CatalogSource, Draft, open_catalog
from skillwire.catalog.http import open_publishing
from skillwire.catalog.remote import RemoteCatalog
from skillwire.core import Manifest, ManifestFile, SkillEntry, SkillUri, parse_skill_md
from skillwire.server.access.settings import AccessSettings
from skillwire.server.http.app import HttpApp
from skillwire.server.options import ServeOptions

RULES = """
[[rule]]
tokens = ["reader", "publisher", "admin"]
see = ["acme"]

[[rule]]
tokens = ["publisher"]
publish = ["acme"]

[[rule]]
tokens = ["admin"]
manage = ["acme"]

[[rule]]
tokens = ["billing"]
publish = ["acme/billing"]

[[rule]]
tokens = ["other"]
manage = ["globex"]

[[rule]]
tokens = ["root"]
manage = ["*"]
"""
NAMES = ("reader", "publisher", "admin", "billing", "other", "root", "nobody")

Files = Mapping[str, bytes]


def files_of(path: str, body: str = "Do it.\n", **more: str) -> dict[str, bytes]:
    """Return the files of a skill; `more` is for its frontmatter."""
    return {"SKILL.md": skill_md(path.rpartition("/")[2], body=body, **more)}


def draft_of(path: str, files: Files | None = None, *, version: str = "") -> Draft:
    """Return a draft of the skill at a path as it would be published from a folder."""
    uri, contents = SkillUri.build(path), files or files_of(path)
    lines = [ManifestFile.of(uri.join(file), content) for file, content in contents.items()]
    by_uri = {uri.join(file): content for file, content in contents.items()}

    async def read(line: ManifestFile) -> bytes:
        return by_uri[line.uri]

    frontmatter = parse_skill_md(contents["SKILL.md"]).frontmatter
    return Draft(SkillEntry(uri, frontmatter, Manifest.of(lines)), read, version=version)


def as_json(*drafts: Draft) -> list[dict[str, Any]]:
    """Return drafts as the requests of publishers carry them."""
    return [
        {"entry": draft.entry.to_json(), **({"version": draft.version} if draft.version else {})}
        for draft in drafts
    ]


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Publisher(Asker):
    """A caller who sends requests below `/catalog/`."""

    async def send(
        self, method: str, path: str, *pieces: bytes, leaves: bool = False, token: str | None = None
    ) -> Outcome:
        credential = self.token if token is None else token
        headers = [(b"host", b"127.0.0.1:8000")]
        if credential:
            headers.append((b"authorization", f"Bearer {credential}".encode()))
        path, _, query = path.partition("?")
        request = HttpRequest(
            tuple(headers), pieces or (b"",), method=method, path=path, query=query.encode(), leaves=leaves
        )
        return await exchange(self.app, request)

    async def call(self, route: str, **document: Any) -> tuple[int, dict[str, Any]]:
        """Send a document to a route, and return the status and the answer."""
        answer = await self.send("POST", f"/catalog/{route}", orjson.dumps(document))
        return answer.status, orjson.loads(answer.raw) if answer.raw.startswith(b"{") else {}

    async def fetch(self, path: str) -> tuple[int, dict[str, Any]]:
        answer = await self.send("GET", f"/catalog/{path}")
        return answer.status, orjson.loads(answer.raw) if answer.raw.startswith(b"{") else {}

    async def upload(self, *contents: bytes) -> dict[str, str]:
        """Upload files, and return the receipts."""
        found: dict[str, str] = {}
        for content in contents:
            answer = await self.send("PUT", f"/catalog/blobs/{digest(content)}", content)
            assert answer.status == 200, answer
            found[digest(content)] = orjson.loads(answer.raw)["receipt"]
        return found

    async def publish(self, *drafts: Draft, files: Sequence[Files] = ()) -> tuple[int, dict[str, Any]]:
        """Plan, upload all of `files`, and publish."""
        status, plan = await self.call("plan", drafts=as_json(*drafts))
        if status != 200:
            return status, plan
        uploads = await self.upload(*[content for one in files for content in one.values()])
        return await self.call("publish", drafts=as_json(*drafts), seen=plan["seen"], uploads=uploads)


def write_rules(folder: Path, rules: str = RULES, names: Sequence[str] = NAMES) -> AccessSettings:
    folder.mkdir(parents=True, exist_ok=True)
    tokens = folder / "tokens"
    tokens.write_text("".join(token_line(name, token_of(name)) for name in names))
    tokens.chmod(0o600)
    (folder / "access.toml").write_text(rules)
    return AccessSettings(tokens=tokens, rules=folder / "access.toml")


@asynccontextmanager
async def serving_catalog(
    url: str, access: AccessSettings | None, folder: Path, **options: Any
) -> AsyncGenerator[HttpApp]:
    """Serve a catalog that callers may publish to."""
    served = ServeOptions(
        page_size=2,
        find=True,
        more_sources=lambda: [CatalogSource(url, folder=folder / "copies", poll_seconds=0.2)],
        publishing=partial(open_publishing, url),
        **options,
    )
    app = HttpApp(served, host="127.0.0.1", access=access)
    async with app.open():
        yield app


@dataclass(frozen=True, slots=True)
class World:
    """A server, its catalog, and its callers."""

    app: HttpApp
    catalog: Catalog
    access: AccessSettings

    def caller(self, name: str) -> Publisher:
        return Publisher(self.app, token_of(name) if name else "")

    @asynccontextmanager
    async def remote(self, name: str) -> AsyncGenerator[RemoteCatalog]:
        transport = httpx2.ASGITransport(self.app, client=("127.0.0.1", 50000))
        headers = {"authorization": f"Bearer {token_of(name)}"}
        async with httpx2.AsyncClient(transport=transport, headers=headers) as client:
            yield RemoteCatalog(client, "http://127.0.0.1:8000")

    async def denials(self) -> list[tuple[str, str, str]]:
        events = await self.catalog.audit_log(limit=1000)
        return [(one.actor, one.uri, one.detail) for one in events if one.action == "denied"]


@asynccontextmanager
async def a_world(url: str, folder: Path, rules: str = RULES, **options: Any) -> AsyncGenerator[World]:
    access = write_rules(folder / "etc", rules)
    async with (
        open_catalog(url, create=True) as catalog,
        serving_catalog(url, access, folder, **options) as app,
    ):
        yield World(app, catalog, access)
