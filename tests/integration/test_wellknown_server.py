"""The web site of skills, served and as files, read by a client that knows only HTTP and the format."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import uvicorn
from fastmcp import FastMCP
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from jsonschema import Draft202012Validator
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from commands import names_in
from configs import configured
from folders import skill_md, write_files, write_skill
from programs import http_server, skillwire_command
from serving import environment, modern, wait_until
from skillwire.core.errors import SkillError
from skillwire.server import add_skills
from skillwire.server.listener import listen_on
from skillwire.server.wellknown.app import site_routes
from skillwire.server.wellknown.folder import SiteFolder

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "wire" / "well-known.json"
INDEX = "/.well-known/agent-skills/index.json"
WITHIN = 30.0

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer over HTTP, whatever its status."""

    status: int
    headers: Message
    body: bytes


def ask(url: str, method: str = "GET", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, method=method, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=WITHIN) as response:
            return Reply(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.headers, error.read())


def index_of(site: str) -> Json:
    """Fetch the index, and check that it is one."""
    reply = ask(site + INDEX)
    assert (reply.status, reply.headers.get_content_type()) == (200, "application/json")
    index: Json = json.loads(reply.body)
    validator: Any = Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
    validator.validate(index)
    assert index["$schema"].endswith("/0.2.0/schema.json")
    return index


def files_of(site: str, entry: Json) -> dict[str, bytes] | None:
    """Fetch a skill as its entry says, verify it, and return its files; None when the artifact is gone."""
    reply = ask(urljoin(site + INDEX, entry["url"]))
    if reply.status == 404:
        return None
    assert reply.status == 200
    assert f"sha256:{hashlib.sha256(reply.body).hexdigest()}" == entry["digest"]
    if entry["type"] == "skill-md":
        assert reply.headers.get_content_type() in ("text/markdown", "text/plain")
        return {"SKILL.md": reply.body}
    assert reply.headers.get_content_type() == "application/gzip"
    assert "Content-Encoding" not in reply.headers
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(reply.body), mode="r:gz") as archive:
        for member in archive:
            if member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                files[member.name] = content.read()
    return files


def skills_of(site: str) -> dict[str, dict[str, bytes] | None]:
    return {entry["name"]: files_of(site, entry) for entry in index_of(site)["skills"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "tea")
    write_skill(
        tmp_path / "skills" / "kitchen" / "bag",
        {"references/a b.md": "things", "data.bin": bytes(range(256))},
    )
    return tmp_path / "skills"


def on_disk(folder: Path) -> dict[str, dict[str, bytes]]:
    return {
        file.parent.name: {
            path.relative_to(file.parent).as_posix(): path.read_bytes()
            for path in file.parent.rglob("*")
            if path.is_file()
        }
        for file in folder.rglob("SKILL.md")
    }


@contextmanager
def site_of(folder: Path, *more: str) -> Generator[str]:
    env = environment(folder.parent)
    with http_server(folder, "--dialect", "well-known", *more, env=env) as server:
        yield server.url.removesuffix("/mcp")


@contextmanager
def static_server(root: Path) -> Generator[str]:
    words = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", str(root)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield f"http://127.0.0.1:{line.split(' port ')[1].split()[0]}"
    finally:
        process.kill()
        process.wait(WITHIN)
        if process.stdout is not None:
            process.stdout.close()


def publish(folder: Path, out: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        skillwire_command("publish", folder, "--static", out, *more),
        env=environment(folder.parent),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.requirement("DISC-01")
@pytest.mark.requirement("DISC-02")
@pytest.mark.requirement("DISC-05")
@pytest.mark.requirement("DISC-06")
@pytest.mark.requirement("CONF-22")
def test_a_stranger_reads_every_skill_from_a_served_site(folder: Path) -> None:
    with site_of(folder) as site:
        index = index_of(site)

        assert {entry["name"]: entry["type"] for entry in index["skills"]} == {
            "bag": "archive",
            "tea": "skill-md",
        }
        assert skills_of(site) == on_disk(folder)


@pytest.mark.requirement("DISC-01")
@pytest.mark.requirement("DISC-08")
def test_a_served_site_answers_like_a_good_web_server(folder: Path) -> None:
    with site_of(folder, *configured(folder.parent, ttl=7)) as site:
        first = ask(site + INDEX)
        entry = json.loads(first.body)["skills"][0]
        artifact = urljoin(site + INDEX, entry["url"])

        for url, lasting in (
            (site + INDEX, "public, max-age=7"),
            (artifact, "public, max-age=31536000, immutable"),
        ):
            got, head = ask(url), ask(url, "HEAD")
            assert got.headers["Cache-Control"] == lasting
            assert got.headers["Access-Control-Allow-Origin"] == "*"
            assert got.headers["X-Content-Type-Options"] == "nosniff"
            assert (head.status, head.body) == (200, b"")
            assert head.headers["Content-Length"] == str(len(got.body))
            again = ask(url, If_None_Match=got.headers["ETag"])
            assert (again.status, again.body) == (304, b"")
            refused = ask(url, "POST")
            assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
        for missing in ("/.well-known/agent-skills/", "/.well-known/skills/index.json", f"{INDEX}/x"):
            assert ask(site + missing).status == 404


@pytest.mark.requirement("DISC-08")
def test_a_site_on_loopback_keeps_pages_and_names_of_others_out(folder: Path) -> None:
    with site_of(folder) as site:
        assert ask(site + INDEX, Origin="https://evil.example").status == 403
        assert ask(site + INDEX, Host="evil.example").status == 421
        assert ask(site + INDEX, Origin="http://localhost:3000").status == 200


@pytest.mark.requirement("DISC-08")
def test_a_site_for_everyone_is_open_to_pages_of_any_origin_and_mcp_is_not(folder: Path) -> None:
    env = environment(folder.parent)
    with http_server(
        folder, "--dialect", "well-known", "--allow-anonymous", env=env, bind="0.0.0.0:0"
    ) as server:
        site = f"http://127.0.0.1:{server.port}"
        reply = ask(site + INDEX, Origin="https://elsewhere.example")
        with server.connection() as connection:
            refused = connection.post(modern("skills/list"), Origin="https://elsewhere.example").status

    assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (200, "*")
    assert refused == 403


def test_without_the_dialect_there_is_no_site(folder: Path) -> None:
    with http_server(folder, env=environment(folder.parent)) as server:
        assert ask(server.url.removesuffix("/mcp") + INDEX).status == 404


@pytest.mark.requirement("DISC-01")
def test_an_edit_gives_a_new_artifact_and_the_old_name_never_other_bytes(folder: Path) -> None:
    with site_of(folder) as site:
        before = {entry["name"]: entry for entry in index_of(site)["skills"]}
        tag = ask(site + INDEX).headers["ETag"]
        write_files(folder, {"kitchen/bag/data.bin": b"less"})
        wait_until(lambda: ask(site + INDEX, If_None_Match=tag).status == 200, WITHIN, "the edit on the site")

        after = {entry["name"]: entry for entry in index_of(site)["skills"]}
        assert after["tea"] == before["tea"]
        assert after["bag"]["url"] != before["bag"]["url"]
        assert files_of(site, before["bag"]) is None
        assert skills_of(site) == on_disk(folder)


def test_whoever_reads_while_skills_are_edited_gets_whole_skills_or_none(folder: Path) -> None:
    states = [{"SKILL.md": skill_md("tea", body=f"Take {number}.\n")} for number in range(6)]
    seen: list[bytes] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def read(site: str) -> None:
        try:
            while not done.is_set():
                for entry in index_of(site)["skills"]:
                    files = files_of(site, entry)
                    if files is not None and entry["name"] == "tea":
                        seen.append(files["SKILL.md"])
        except BaseException as error:
            failures.append(error)

    with site_of(folder) as site:
        readers = [threading.Thread(target=read, args=(site,)) for _ in range(3)]
        for reader in readers:
            reader.start()
        try:
            for state in states:
                part = folder / "tea" / ".new"
                part.write_bytes(state["SKILL.md"])
                part.replace(folder / "tea" / "SKILL.md")
                new = state["SKILL.md"]
                wait_until(lambda new=new: bool(failures) or new in seen, WITHIN, "the edit")
        finally:
            done.set()
            for reader in readers:
                reader.join(WITHIN)

    assert failures == []
    assert set(seen) <= {skill_md("tea"), *(state["SKILL.md"] for state in states)}


def test_several_workers_serve_the_same_site(folder: Path) -> None:
    with site_of(folder, "--workers", "2") as site:
        tags = {ask(site + INDEX).headers["ETag"] for _ in range(12)}

        assert len(tags) == 1
        for _ in range(6):
            assert skills_of(site) == on_disk(folder)


@pytest.mark.requirement("DISC-01")
@pytest.mark.requirement("DISC-05")
@pytest.mark.requirement("DISC-06")
@pytest.mark.requirement("DISC-14")
def test_a_stranger_reads_every_skill_from_a_published_folder_with_the_same_bytes(
    folder: Path, tmp_path: Path
) -> None:
    ended = publish(folder, tmp_path / "site")

    assert (ended.returncode, ended.stderr.count("\n")) == (0, 1)
    with static_server(tmp_path / "site") as static, site_of(folder) as served:
        assert ask(static + INDEX).body == ask(served + INDEX).body
        assert skills_of(static) == on_disk(folder)


def test_a_reader_of_a_folder_that_is_published_again_never_sees_half_a_site(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "site"
    assert publish(folder, out).returncode == 0
    failures: list[BaseException] = []
    done = threading.Event()

    def read(site: str) -> None:
        try:
            while not done.is_set():
                found = skills_of(site)
                assert None not in found.values()
                assert found.keys() >= {"tea", "bag"}
        except BaseException as error:
            failures.append(error)

    with static_server(out) as site:
        old = index_of(site)
        reader = threading.Thread(target=read, args=(site,))
        reader.start()
        try:
            for number in range(4):
                write_files(folder, {"kitchen/bag/data.bin": f"round {number}"})
                write_skill(folder / f"extra-{number}")
                assert publish(folder, out).returncode == 0
        finally:
            done.set()
            reader.join(WITHIN)
        assert failures == []
        assert skills_of(site) == on_disk(folder)
        assert all(files_of(site, entry) is not None for entry in old["skills"])
        assert publish(folder, out, "--prune").returncode == 0
        assert skills_of(site) == on_disk(folder)
        assert [files_of(site, entry) is None for entry in old["skills"]] == [True, False]


@pytest.mark.requirement("DISC-14")
@pytest.mark.parametrize("call", ["mkdir", "rename", "replace", "fsync", "rmdir"])
def test_a_command_that_is_killed_while_it_writes_does_not_block_the_next_one(
    call: str, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "site"
    killed = (
        "import os, runpy, signal, sys\n"
        f"os.{call} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "runpy.run_module('skillwire', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", killed, "publish", str(folder), "--static", str(out)]
    first = subprocess.run(command, env=environment(tmp_path), capture_output=True, timeout=60)

    ended = publish(folder, out)

    assert first.returncode == -signal.SIGKILL
    assert ended.returncode == 0, ended.stderr
    with static_server(out) as site:
        assert skills_of(site) == on_disk(folder)
    assert names_in(out / ".well-known") == ["agent-skills"]


@pytest.mark.requirement("DISC-14")
def test_of_two_commands_that_write_one_site_the_second_is_told_so(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    with SiteFolder(out):
        second = publish(folder, out)
    third = publish(folder, out)

    assert (second.returncode, third.returncode) == (1, 0)
    assert "another process is writing the site" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.requirement("DISC-14")
def test_a_site_with_a_bad_skill_is_refused_and_the_published_one_stays(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    assert publish(folder, out).returncode == 0
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))

    write_skill(folder / "other" / "tea")
    ended = publish(folder, out)

    assert ended.returncode == 1
    assert "name-not-unique" in ended.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*")) == before


@contextmanager
def running(app: Any) -> Generator[str]:
    """Run an application of someone else on loopback, in a thread."""
    with listen_on("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive(), WITHIN, "the server")
            assert server.started
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WITHIN)


@pytest.mark.requirement("DISC-01")
@pytest.mark.parametrize("kind", ["mcpserver", "fastmcp", "mounted", "lowlevel"])
def test_the_site_stands_beside_servers_of_other_kinds(folder: Path, empty_home: Path, kind: str) -> None:
    dialects = ["well-known"]
    if kind == "mcpserver":
        server = MCPServer("demo")
        add_skills(server, folder, dialects=dialects)
        app: Any = server.streamable_http_app()
    elif kind == "lowlevel":
        lowlevel: Server[Any] = Server("demo")
        skills = add_skills(lowlevel, folder)
        app = lowlevel.streamable_http_app(custom_starlette_routes=site_routes(skills))
    else:
        inner: FastMCP[Any] = FastMCP("demo")
        add_skills(inner, folder, dialects=dialects)
        outer: FastMCP[Any] = FastMCP("outer")
        if kind == "mounted":
            outer.mount(inner)
        app = (outer if kind == "mounted" else inner).http_app()

    with running(app) as site:
        assert skills_of(site) == on_disk(folder)
        head = ask(site + INDEX, "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert ask(site + INDEX, If_None_Match=head.headers["ETag"]).status == 304
        assert ask(site + INDEX, "POST").status == 405
        assert ask(site + "/.well-known/agent-skills/none").status == 404
        assert "Access-Control-Allow-Origin" not in head.headers


def test_a_server_that_does_not_show_its_skills_to_everyone_gets_no_site(folder: Path) -> None:
    guarded: FastMCP[Any] = FastMCP("demo", auth=StaticTokenVerifier({"t": {"client_id": "c", "scopes": []}}))
    for server, more in (
        (guarded, {}),
        (MCPServer("demo"), {"cache_scope": "private"}),
        (Server("demo"), {}),
    ):
        with pytest.raises(SkillError):
            add_skills(server, folder, dialects=["well-known"], **more)  # pyright: ignore[reportArgumentType]


async def test_a_fastmcp_server_that_hides_resources_does_not_start_with_a_site(
    folder: Path, empty_home: Path
) -> None:
    server: FastMCP[Any] = FastMCP("demo")
    add_skills(server, folder, dialects=["well-known"])
    server.disable(names={"tea"}, components={"resource"})

    app = server.http_app()
    with pytest.raises(SkillError):
        async with app.router.lifespan_context(app):
            pass


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_publishing_into_a_place_that_is_no_folder_changes_nothing(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    ended = publish(folder, tmp_path / "pipe")

    assert (ended.returncode, "is not a folder" in ended.stderr) == (1, True)
