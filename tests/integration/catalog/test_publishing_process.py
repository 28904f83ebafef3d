"""Publishing on the command line to a running server, as its users do."""

import os
from collections.abc import Generator
from pathlib import Path

import orjson
import pytest

from configs import configured
from folders import skill_md, write_files
from integration.access_world import token_line, token_of
from integration.catalog.publishing_world import RULES
from integration.cli_world import Ended, World
from programs import http_server
from serving import HttpServer, listed_uris, modern

pytestmark = pytest.mark.requirement("SEC-14")

URI = "skill://acme/refunds/SKILL.md"
LARGE = 3 * 1024 * 1024


class Site:
    """A running server with two processes, and a user of another machine."""

    def __init__(self, world: World, server: HttpServer) -> None:
        self.world = world
        self.server = server

    def run(self, caller: str, command: str, *words: str) -> Ended:
        token = self.world.root / f"{caller}.token"
        token.write_text(f"{token_of(caller)}\n")
        url = f"http://127.0.0.1:{self.server.port}"
        return self.world.run(command, *words, "--catalog", url, "--token-file", str(token))

    def listed(self, caller: str) -> list[str]:
        return listed_uris(
            self.server.call(modern("skills/list"), authorization=f"Bearer {token_of(caller)}")
        )


@pytest.fixture
def site(tmp_path: Path) -> Generator[Site]:
    world = World(tmp_path)
    files = {"acme/refunds/SKILL.md": skill_md("refunds"), "acme/refunds/data.bin": os.urandom(LARGE)}
    write_files(tmp_path / "skills", files)
    write_files(tmp_path / "other", {"globex/tea/SKILL.md": skill_md("tea")})
    assert world.run("publish", "../other", "--catalog", f"sqlite:///{tmp_path}/shared.db").code == 0
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(token_line(name, token_of(name)) for name in ("publisher", "admin", "reader")))
    tokens.chmod(0o600)
    (tmp_path / "access.toml").write_text(RULES)
    words = ["--catalog", f"sqlite:///{tmp_path}/shared.db", "--token-file", str(tokens), "--workers", "2"]
    with http_server(*words, *configured(tmp_path, access="access.toml"), env=world.env) as server:
        yield Site(world, server)


def test_skills_are_published_to_a_server_and_rolled_back(site: Site) -> None:
    dry = site.run("publisher", "publish", "../skills", "--dry-run")
    first = site.run("publisher", "publish", "../skills", "--note", "first", "--version", "1.0.0")
    again = site.run("publisher", "publish", "../skills", "--version", "1.0.0")

    assert (dry.code, first.code, again.code) == (0, 0, 0), first.err
    assert "nothing was written" in dry.err and "nothing changed" in again.err
    assert site.listed("reader") == [URI]

    write_files(site.world.root / "skills", {"acme/refunds/notes.md": "Within 30 days.\n"})
    assert site.run("publisher", "publish", "../skills", "--version", "1.1.0").code == 0
    history = site.run("publisher", "history", "acme/refunds")
    back = site.run("admin", "rollback", "acme/refunds@2")
    gone = site.run("admin", "unpublish", "acme/refunds")

    assert [line.split()[2:4] for line in history.lines] == [["publish", "publisher"]] * 2
    assert (back.code, gone.code) == (0, 0)
    assert site.listed("reader") == []


def test_what_a_server_refuses_is_told_in_its_words(site: Site) -> None:
    denied = site.run("publisher", "publish", "../other", "--prefix", "elsewhere")
    reader = site.run("reader", "publish", "../skills", "--json")
    unknown = site.run("stranger", "publish", "../skills")
    named = site.run("publisher", "publish", "../skills", "--as", "someone")

    assert (denied.code, reader.code, unknown.code, named.code) == (1, 1, 1, 2)
    assert "no role" in denied.err and "no role" in orjson.loads(reader.out)["error"]["message"]
    assert "does not accept the token" in unknown.err and "--as" in named.err
    assert all(token_of("stranger") not in text for text in (unknown.out, unknown.err))


def test_a_token_is_needed_for_a_server_and_for_nothing_else(site: Site) -> None:
    url = f"http://127.0.0.1:{site.server.port}"

    assert site.world.run("publish", "../skills", "--catalog", url).code == 2
    assert site.world.run("history", "--catalog", url, "--token-file", "missing").code == 2
    assert site.world.run("history", "--token-file", "../tokens").code == 2
    assert site.world.run("catalog", "stats", "--catalog", url).code == 2
