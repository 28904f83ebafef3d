"""Catalogs on the command line, by processes: publishing, history, serving, searching and maintenance."""

import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import orjson
import pytest
from mcp.client import Client

from folders import skill_md, write_files
from integration.catalog.catalog_world import drop_database, given_server, new_database, running_postgres
from integration.cli_world import Ended, World
from programs import http_server, skillwire_command, stdio_server
from serving import INITIALIZED, HttpServer, handshake, legacy, listed_uris, modern
from skillwire.catalog.model import CatalogConflictError, CatalogError, NewerSchemaError, NoCatalogError
from talking import get, is_as_promised, read, skills_of
from terminals import check_document

REFUNDS, STOCK, TEA = (f"skill://{path}/SKILL.md" for path in ("acme/billing/refunds", "acme/stock", "tea"))
SECRET = "topsecret"
WITHIN = 60.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    write_files(
        tmp_path / "skills",
        {
            "acme/billing/refunds/SKILL.md": skill_md("refunds", body="Refund a customer.\n"),
            "acme/billing/refunds/notes.md": "Within 30 days.\n",
            "acme/stock/SKILL.md": skill_md("stock"),
            "tea/SKILL.md": skill_md("tea"),
        },
    )
    return world


@pytest.fixture(scope="module")
def postgres() -> Generator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres: str) -> Generator[str]:
    url = new_database(postgres)
    yield url.replace("postgres:@", f"postgres:{SECRET}@")
    drop_database(postgres, url)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    return request.getfixturevalue("postgres_url")


def done(world: World, command: str, *words: str | Path, code: int = 0) -> Any:
    """Run a command with `--json`, and return its document, which fits the schema."""
    ended = world.run(command, *words, "--json")
    assert ended.code == code, ended.err
    check_document(command, ended.json)
    assert SECRET not in ended.out + ended.err
    return ended.json


def refused(world: World, command: str, *words: str | Path, code: int = 1) -> str:
    """Run a command that must fail, and return the code of its error; the fix is one line for people."""
    document = done(world, command, *words, code=code)
    assert document["error"]["message"] and document["error"]["fix"]
    return document["error"]["code"]


def changes(document: Any) -> dict[str, str]:
    return {change["uri"]: change["change"] for change in document["changes"]}


def change(world: World, text: str) -> None:
    (world.root / "skills" / "acme" / "billing" / "refunds" / "notes.md").write_text(text)


def own_files(world: World) -> list[str]:
    folder = world.home / ".local" / "share"
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


def test_two_commands_lead_from_a_folder_to_skills_that_can_be_searched(world: World) -> None:
    published = world.run("publish", "../skills")
    found = world.run("search", "refund a customer", "--catalog", "default")

    assert (published.code, found.code) == (0, 0)
    assert [line.split()[:2] for line in published.lines] == [["added", uri] for uri in (REFUNDS, STOCK, TEA)]
    assert "published revision 1 of sqlite:///" in published.err and published.err.endswith(": 3 added\n")
    assert found.lines[0].startswith("acme/billing/refunds  ")
    assert found.err == "1 skill found\n"
    assert world.run("search", "zeppelin", "--catalog", "default").code == 1


def test_a_dry_run_prints_the_difference_and_writes_nothing(world: World) -> None:
    planned = done(world, "publish", "../skills", "--dry-run")
    before = own_files(world)
    done(world, "publish", "../skills")
    change(world, "Within 14 days.\n")
    again = done(world, "publish", "../skills", "--dry-run")
    words = world.run("publish", "../skills", "--dry-run")

    assert (planned["revision"], planned["isDryRun"], before) == (0, True, [])
    assert set(changes(planned).values()) == {"added"}
    assert (again["revision"], changes(again), len(again["unchanged"])) == (1, {REFUNDS: "changed"}, 2)
    assert [one["files"] for one in again["changes"]] == [["notes.md"]]
    assert words.lines[0].startswith(f"changed  {REFUNDS}  sha256:") and " -> sha256:" in words.lines[0]
    assert words.lines[1:] == ["    notes.md"]
    assert "nothing was written to" in words.err
    assert done(world, "history")["revisions"][0]["revision"] == 1


def test_publishing_again_changes_nothing(world: World) -> None:
    done(world, "publish", "../skills", "--note", "first", "--as", "ann")

    again = done(world, "publish", "../skills")

    assert (again["revision"], again["changes"], again["unchanged"]) == (1, [], [REFUNDS, STOCK, TEA])
    [made] = done(world, "history")["revisions"]
    assert (made["actor"], made["action"], made["note"]) == ("ann", "publish", "first")


def test_one_broken_skill_prevents_everything(world: World) -> None:
    write_files(world.root / "skills", {"bad/SKILL.md": "no frontmatter\n"})

    ended = done(world, "publish", "../skills", code=1)

    assert ended["error"]["code"] == "invalid-skill"
    assert [found["code"] for found in ended["error"]["findings"]] == ["frontmatter-missing"]
    assert own_files(world) == []


def test_a_name_that_is_taken_in_the_namespace_is_a_conflict_and_writes_nothing(world: World) -> None:
    done(world, "publish", "../skills")
    world.write("more", {"refunds": "Use when testing."})

    assert refused(world, "publish", "../more", "--prefix", "acme") == "catalog-conflict"
    assert done(world, "history")["revisions"][0]["revision"] == 1


def test_a_published_version_never_changes(world: World) -> None:
    first = done(world, "publish", "../skills", "--version", "1.2.0")
    change(world, "Within 14 days.\n")

    assert "skill://acme/billing/v1.2.0/refunds/SKILL.md" in changes(first)
    assert refused(world, "publish", "../skills", "--version", "1.2.0") == "catalog-conflict"
    done(world, "publish", "../skills", "--version", "1.3.0")
    states = done(world, "history", "acme/billing/v1.2.0/refunds")["revisions"]
    assert [(state["revision"], state["version"]) for state in states] == [(1, "1.2.0")]


def test_processes_that_publish_one_skill_at_the_same_time_do_so_one_after_another(world: World) -> None:
    done(world, "publish", "../skills")
    for number in range(4):
        world.write(f"skills{number}", {"tea": f"Version {number}."})

    words = [skillwire_command("publish", f"../skills{number}", "--json") for number in range(4)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(one, cwd=world.project, env=world.env, stdout=pipe, stderr=pipe) for one in words
    ]
    documents = [orjson.loads(process.communicate(timeout=WITHIN)[0]) for process in started]

    codes = [document["error"]["code"] for document in documents if "error" in document]
    assert set(codes) <= {"catalog-conflict"}
    made = [document["revision"] for document in documents if "error" not in document]
    assert sorted(made) == list(range(2, 2 + len(made)))
    assert done(world, "catalog", "verify")["isIntact"]


def test_a_skill_is_named_by_its_path_its_uri_or_a_name_that_is_unique(world: World) -> None:
    world.write("more", {"shop/refunds": "Use when testing."})
    done(world, "publish", "../skills", "../more")

    named = [done(world, "history", name)["uri"] for name in ("acme/billing/refunds", REFUNDS, REFUNDS[:-9])]
    unique = done(world, "history", "stock")["uri"]
    ambiguous = done(world, "unpublish", "refunds", code=1)["error"]

    assert (named, unique) == ([REFUNDS] * 3, STOCK)
    assert ambiguous["code"] == "ambiguous-reference"
    assert "acme/billing/refunds, shop/refunds" in ambiguous["fix"]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("publish ../skills --catalog skills.db", 2, "misuse"),
        ("publish ../skills --catalog mysql://root:topsecret@host/skills", 2, "misuse"),
        ("publish ../skills --version 1", 2, "misuse"),
        ("publish ../skills --prefix ../x", 2, "misuse"),
        ("publish ../skills --static site --note x", 2, "misuse"),
        ("publish ../skills --prune", 2, "misuse"),
        ("publish ../skills --catalog sqlite:///nowhere/skills.db", 1, "no-catalog"),
        ("publish ../skills --catalog sqlite:///other.txt", 1, "catalog-unusable"),
        ("publish ../skills --catalog sqlite:///new.db --blobs nowhere", 1, "catalog-unusable"),
        ("publish ../skills --catalog postgresql://ann:topsecret@127.0.0.1:1/skills", 1, "catalog-unusable"),
        ("history --catalog sqlite:///nowhere.db", 1, "no-catalog"),
        ("history --catalog postgresql://ann:topsecret@[bad/skills", 1, "catalog-unusable"),
        ("rollback tea --catalog sqlite:///nowhere.db", 2, "misuse"),
        ("rollback tea@1 --catalog sqlite:///nowhere.db", 1, "no-catalog"),
        ("unpublish tea --catalog sqlite:///nowhere.db", 1, "no-catalog"),
        ("search tea --catalog sqlite:///nowhere.db", 1, "no-catalog"),
        ("search tea skills --catalog default", 2, "misuse"),
        ("serve --catalog sqlite:///nowhere.db", 1, "no-catalog"),
        ("serve --catalog sqlite:///nowhere.db --http 127.0.0.1:0", 1, "no-catalog"),
        ("serve --catalog sqlite:///nowhere.db --http 127.0.0.1:0 --workers 2", 1, "no-catalog"),
        ("serve --catalog postgresql://ann:topsecret@127.0.0.1:1/skills", 1, "catalog-unusable"),
        ("serve --catalog skills.db", 2, "misuse"),
        ("serve ../skills --catalog default", 2, "misuse"),
        ("serve --upstream mcp.json --catalog default", 2, "misuse"),
        ("catalog stats --catalog sqlite:///nowhere.db", 1, "no-catalog"),
        ("catalog backup x.tar --catalog sqlite:///nowhere.db", 1, "no-catalog"),
        ("catalog restore nowhere.tar", 1, "catalog-unusable"),
        ("catalog sync --add x --from ../skills --remove y", 2, "misuse"),
        ("catalog sync --from ../skills", 2, "misuse"),
        ("catalog sync --add x --from ../skills --every often", 2, "misuse"),
    ],
)
def test_what_cannot_be_done_is_one_error_with_a_fix(world: World, words: str, code: int, error: str) -> None:
    (world.project / "other.txt").write_text("A text that is no database. " * 100)
    before = sorted(world.project.iterdir())

    assert refused(world, *words.split(), code=code) == error

    assert sorted(path for path in world.project.iterdir() if path.name != "new.db") == before
    assert not (world.home / ".cache" / "skillwire" / "catalogs").exists()


def test_the_codes_of_catalogs_are_explained(world: World) -> None:
    for kind in (CatalogError, NoCatalogError, NewerSchemaError, CatalogConflictError):
        meaning = done(world, "why", kind.refusal)["code"]
        assert meaning["sentence"] and meaning["remedy"]


def test_another_catalog_may_be_the_default(world: World) -> None:
    mine = f"sqlite:///{world.root / 'mine.db'}"

    published = world.run("publish", "../skills", "--json", SKILLWIRE_CATALOG=mine)
    found = world.run("search", "tea", "--catalog", "default", "--json", SKILLWIRE_CATALOG=mine)

    assert published.json["catalog"] == found.json["catalog"] == mine
    assert own_files(world) == []
    assert world.run("history", SKILLWIRE_CATALOG="skills.db").code == 2


async def test_a_catalog_from_the_first_publication_to_the_last(world: World, url: str) -> None:
    at = ("--catalog", url)
    first = done(world, "publish", "../skills", *at, "--version", "1.0.0")
    assert done(world, "publish", "../skills", *at, "--dry-run", "--version", "1.0.0")["changes"] == []

    with http_server(*at, "--json", env=world.env) as server:
        async with Client(server.url, cache=None) as client:
            before = await skills_of(client)
            change(world, "Within 14 days.\n")
            second = done(world, "publish", "../skills", *at, "--as", "bob")
            # The next answer has what another process has published.
            after = await skills_of(client)
            notes = f"{REFUNDS[:-9]}/notes.md"
            content = await read(client, notes)
            line = next(one for one in after[REFUNDS]["resources"] if one["uri"] == notes)
            assert (sorted(before), sorted(after)) == ([REFUNDS, STOCK, TEA],) * 2
            assert after[REFUNDS] != before[REFUNDS] and after[TEA] == before[TEA]
            assert content == b"Within 14 days.\n" and is_as_promised(content, line)

            back = done(world, "rollback", "refunds@1", *at)
            assert await get(client, REFUNDS) == before[REFUNDS]
            assert await read(client, notes) == b"Within 30 days.\n"
            gone = done(world, "unpublish", "refunds", "tea", *at)
            assert sorted(await skills_of(client)) == [STOCK]
            pinned = await read(client, "skill://acme/billing/v1.0.0/refunds/notes.md")
            assert pinned == b"Within 30 days.\n"
        pages = pages_of(server)
        assert server.stop() == 0
        assert SECRET not in server.words and SECRET.encode() not in pages

    assert set(changes(first).values()) == {"added"} and len(changes(first)) == 6
    # The skills have no version any more, which is a change too.
    assert changes(second)[REFUNDS] == "changed" and second["revision"] == 2
    assert (changes(back), back["revision"]) == ({REFUNDS: "changed"}, 3)
    assert (changes(gone), gone["revision"]) == ({REFUNDS: "removed", TEA: "removed"}, 4)
    history = done(world, "history", "acme/billing/refunds", *at)
    assert [state["action"] for state in history["revisions"]] == ["rollback", "publish", "publish"]
    assert [state["actor"] for state in history["revisions"]][1] == "bob"
    assert history["removedIn"] == 4
    assert changes(done(world, "rollback", "refunds@2", *at)) == {REFUNDS: "added"}
    assert done(world, "search", "refund", *at)["matches"][0]["uri"] == REFUNDS
    check_maintenance(world, url)


def pages_of(server: HttpServer) -> bytes:
    """Return what a server shows besides the protocol."""
    return b"".join(urlopen(f"{server.url[:-4]}{path}").read() for path in ("/", "/metrics", "/readyz"))


def check_maintenance(world: World, url: str) -> None:
    """Check that the whole catalog is intact, and move it to another one by its backup."""
    at, elsewhere = ("--catalog", url), ("--catalog", f"sqlite:///{world.root / 'restored.db'}")
    figures = done(world, "catalog", "stats", *at)
    checked = done(world, "catalog", "verify", *at)
    collected = done(world, "catalog", "gc", *at)
    saved = done(world, "catalog", "backup", "saved.tar", *at)
    restored = done(world, "catalog", "restore", "saved.tar", *elsewhere)

    assert (figures["revision"], figures["skills"], figures["versions"]) == (5, 2, 3)
    assert (checked["isIntact"], collected["removed"]) == (True, 0)
    assert {name: saved[name] for name in ("revision", "files", "size")} == {
        name: restored[name] for name in ("revision", "files", "size")
    }
    assert refused(world, "catalog", "backup", "saved.tar", *at) == "catalog-unusable"
    assert refused(world, "catalog", "restore", "saved.tar", *at) == "catalog-unusable"
    assert done(world, "history", *elsewhere)["revisions"] == done(world, "history", *at)["revisions"]


def test_a_missing_file_is_found(world: World) -> None:
    done(world, "publish", "../skills")
    blobs = world.home / ".local" / "share" / "skillwire" / "catalog.db.blobs"
    damaged = next(path for path in blobs.rglob("*") if path.is_file())
    damaged.unlink()

    ended = world.run("catalog", "verify")
    found = done(world, "catalog", "verify", code=1)

    assert ended.code == 1 and ended.lines[0].startswith("missing  sha256:")
    assert (found["isIntact"], len(found["missing"]), found["damaged"]) == (False, 1, [])


def test_sources_are_added_synced_and_removed(world: World) -> None:
    done(world, "publish", "../skills")
    add = done(world, "catalog", "sync", "--add", "team", "--from", "../skills", "--prefix", "team")
    done(world, "catalog", "sync", "--add", "lost", "--from", "../nowhere", "--every", "10m")

    synced = done(world, "catalog", "sync", "--run", code=1)
    again = done(world, "catalog", "sync", "--run")

    [source] = add["sources"]
    assert (source["kind"], source["every"], source["lastAt"]) == ("folder", 3600.0, None)
    assert Path(source["location"]).is_absolute()
    assert (synced["synced"], again["synced"]) == (["lost", "team"], [])
    results = {one["name"]: one["lastResult"] for one in synced["sources"]}
    assert results["lost"]["error"] and results["team"]["changes"] == 3
    owned = done(world, "history", "team/tea")["revisions"][0]
    assert (owned["action"], owned["actor"]) == ("sync", "sync:team")
    assert (
        refused(world, "publish", "../skills", "--prefix", "team", "--version", "1.0.0") == "catalog-conflict"
    )
    done(world, "catalog", "sync", "--remove", "lost")
    assert [one["name"] for one in done(world, "catalog", "sync")["sources"]] == ["team"]
    assert refused(world, "catalog", "sync", "--remove", "lost") == "catalog-unusable"


def test_a_client_over_stdio_is_answered_the_same_early_and_late(world: World) -> None:
    done(world, "publish", "../skills")
    answers: list[Any] = []
    for more in ({}, {"SKILLWIRE_FAST": "0"}):
        with stdio_server("--catalog", "default", env={**world.env, **more}) as server:
            answers.append(server.call(handshake()))
            server.send(INITIALIZED)
            answers.append(server.call(legacy("skills/list", 1)))
            world.run("unpublish", "tea")
            server.send(legacy("skills/list", 2))
            # A notification of the change may arrive before the answer.
            received = [server.receive()]
            while received[-1].get("id") != 2:
                received.append(server.receive())
            assert listed_uris(received[-1]) == [REFUNDS, STOCK]
            world.run("publish", "../skills")

    assert answers[:2] == answers[2:]
    assert "many Agent Skills" in answers[0]["result"]["instructions"]
    assert answers[0]["result"]["serverInfo"]["name"] == "skillwire"


def test_workers_answer_alike(world: World) -> None:
    done(world, "publish", "../skills")
    with http_server("--catalog", "default", "--workers", "2", env=world.env) as server:
        before = [listed_uris(server.call(modern("skills/list"))) for _ in range(8)]
        done(world, "unpublish", "tea")
        after = [listed_uris(server.call(modern("skills/list"))) for _ in range(8)]

    assert before == [[REFUNDS, STOCK, TEA]] * 8
    assert after == [[REFUNDS, STOCK]] * 8


def test_the_configuration_file_names_a_catalog_and_is_printed_without_a_password(world: World) -> None:
    done(world, "publish", "../skills")
    config = world.root / "serve.toml"
    config.write_text(f'catalog = "postgresql://ann:{SECRET}@db.example/skills?password={SECRET}"\n')
    config.chmod(0o600)
    printed = world.run("serve", "--config", config, "--print-config")
    as_json = done(world, "serve", "--config", config, "--print-config")
    config.write_text('catalog = "default"\n')

    with http_server("--config", config, env=world.env) as server:
        assert len(listed_uris(server.call(modern("skills/list")))) == 3
        config.write_text('catalog = "sqlite:///other.db"\n')
        server.send_signal(signal.SIGHUP)
        server.wait_for_words("restart the server to apply: catalog")
        assert len(listed_uris(server.call(modern("skills/list")))) == 3

    assert 'catalog = "postgresql://ann@db.example/skills"\n' in printed.out
    assert SECRET not in printed.out + printed.err
    assert as_json["config"]["catalog"] == "postgresql://ann@db.example/skills"


def test_a_password_is_never_shown(world: World, postgres_url: str) -> None:
    missing = postgres_url.replace("/test_", "/nothing_")
    assert SECRET in missing or given_server()
    for words in (["history"], ["publish", "../skills"], ["serve"], ["catalog", "stats"], ["search", "tea"]):
        ended: Ended = world.run(*words, "--verbose", "--catalog", missing)
        assert ended.code == 1 and SECRET not in ended.out + ended.err
        assert ended.err.splitlines()[-1].startswith("fix: ")
