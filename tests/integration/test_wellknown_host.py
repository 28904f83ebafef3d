"""Web sites as places a host gets skills from: whole journeys, against real servers on loopback."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from folders import skill_md, write_skill
from hostile.hosting import User, hosting, refused
from integration.web_sites import (
    INDEX,
    OLD_INDEX,
    SCHEMA,
    TEA,
    Certificate,
    Page,
    WebSite,
    archive,
    digest,
    packed,
    single,
    web_site,
)
from programs import http_server, skillwire_command
from serving import environment
from skillwire.core.dialects import Dialect
from skillwire.core.media import ArchiveFormat
from skillwire.host import HostLimits, HostPolicy
from skillwire.host.connect.config import servers_of
from skillwire.host.host import Host
from skillwire.host.model.approval import Occasion, Reply
from skillwire.host.model.endpoints import ServerConfig, SiteEndpoint
from skillwire.host.model.origin import OriginKind
from skillwire.host.use.fetch import ArchivePolicy

BELOW = "/.well-known/agent-skills/"
ALL = {"policy": HostPolicy(archives=ArchivePolicy())}


def at(url: str, *hosts: str, label: str = "web", seconds: float = 20.0) -> ServerConfig:
    return ServerConfig(label, SiteEndpoint(url, hosts), seconds=seconds)


@pytest.fixture
def site() -> Iterator[WebSite]:
    """A site with one skill of a single file, and one in an archive."""
    data = archive(files={"references/a.md": b"things\n", "scripts/run.sh": b"touch /tmp/never\n"})
    with web_site() as found:
        found.index(single(), packed(data), ETag='"1"', Cache_Control="max-age=600")
        found.put(f"{BELOW}tea/SKILL.md", TEA, Content_Type="text/markdown")
        found.put(f"{BELOW}bag.tar.gz", data, Content_Type="application/gzip")
        yield found


def references(host: Host) -> list[str]:
    return [skill.reference for skill in host.view.skills]


def files_below(folder: Path) -> list[str]:
    return [f"{place}/{name}" for place, _, names in os.walk(folder) for name in names]


def problem(host: Host) -> str:
    [status] = host.view.servers
    return "" if status.problem is None else status.problem.code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "tea")
    write_skill(tmp_path / "skills" / "bag", {"references/a b.md": "things\n", "data.bin": bytes(range(256))})
    return tmp_path / "skills"


@contextmanager
def static_site(folder: Path, out: Path) -> Generator[str]:
    """Publish a folder as files, and serve them by a web server that knows nothing of skills."""
    words = skillwire_command("publish", folder, "--static", out)
    subprocess.run(words, env=environment(folder.parent), check=True, capture_output=True, timeout=60)
    words = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield f"http://127.0.0.1:{line.split(' port ')[1].split()[0]}"
    finally:
        process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


async def use_everything(url: str, tmp_path: Path, folder: Path) -> None:
    """List a site, load both of its skills, and read what is in them."""
    on_disk = (folder / "bag" / "data.bin").read_bytes()
    user = User()
    async with hosting(tmp_path / "host", [at(url)], user=user, **ALL) as host:
        assert references(host) == ["web/bag", "web/tea"]
        for skill in host.view.skills:
            assert (skill.dialect, skill.id.origin.kind) == (Dialect.WELL_KNOWN, OriginKind.SITE)

        tea = await host.load("web/tea")
        bag = await host.load("web/bag")

        assert "Do it." in tea.text
        assert [line.path for line in bag.files] == ["data.bin", "references/a b.md"]
        assert "things" in (await host.read_skill_file("web/bag", "references/a b.md")).text
        assert user.occasions == [Occasion.FIRST, Occasion.FIRST]
        assert await host.read_skill_bytes("web/bag", "data.bin") == on_disk


@pytest.mark.requirement("DISC-07")
@pytest.mark.requirement("DISC-13")
async def test_a_site_that_we_serve_is_used_by_our_host(folder: Path, tmp_path: Path) -> None:
    with http_server(folder, "--dialect", "well-known", env=environment(tmp_path)) as server:
        await use_everything(server.url.removesuffix("/mcp"), tmp_path, folder)


@pytest.mark.requirement("DISC-06")
async def test_a_site_of_plain_files_is_used_by_our_host(folder: Path, tmp_path: Path) -> None:
    with static_site(folder, tmp_path / "out") as url:
        await use_everything(url, tmp_path, folder)


@pytest.mark.requirement("DISC-09")
@pytest.mark.requirement("CONF-08")
async def test_an_artifact_is_fetched_when_its_skill_is_loaded_and_then_never_again(
    site: WebSite, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [at(site.url)], user=User(), **ALL) as host:
        assert references(host) == ["web/bag", "web/tea"]
        host.listing()
        for reference in references(host):
            await host.explain(reference)
        assert site.paths == [INDEX]

        await host.load("web/bag")
        await host.read_skill_file("web/bag", "references/a.md")
        assert site.paths == [INDEX, f"{BELOW}bag.tar.gz"]
        await host.load("web/tea")
        assert site.paths[2:] == [f"{BELOW}tea/SKILL.md"]

    site.asked.clear()
    async with hosting(tmp_path, [at(site.url)], user=User(), **ALL) as host:
        await host.load("web/bag")
        await host.load("web/tea")

    assert site.paths == [INDEX]


@pytest.mark.requirement("DISC-08")
async def test_an_index_is_asked_for_again_when_its_time_is_over_or_a_person_wants_it(
    site: WebSite, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [at(site.url)], user=User()) as host:
        await host.refresh()
        assert site.paths == [INDEX]

        await host.refresh(by_user=True)

    assert [asked.headers.get("if-none-match") for asked in site.asked] == [None, '"1"']


@pytest.mark.requirement("DISC-10")
async def test_nothing_in_a_skill_of_a_site_is_run(site: WebSite, tmp_path: Path) -> None:
    started: list[object] = []
    is_over = False

    def note(event: str, args: object) -> None:
        if not is_over and event in ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.system"):
            started.append(args)

    sys.addaudithook(note)  # It cannot be taken away again, so it looks away afterwards.

    async with hosting(tmp_path, [at(site.url)], user=User(), **ALL) as host:
        loaded = await host.load("web/bag")
        content = await host.read_skill_file("web/bag", "scripts/run.sh")
    is_over = True

    assert "scripts/run.sh" in [line.path for line in loaded.files]
    assert "touch" in content.text
    assert started == []
    assert not any(os.access(path, os.X_OK) for path in files_below(tmp_path))


@pytest.mark.requirement("DISC-07")
async def test_an_archive_is_not_unpacked_by_a_host_that_was_not_told_to(
    site: WebSite, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [at(site.url)], user=User()) as host:
        assert references(host) == ["web/tea"]
        [hidden] = host.view.hidden
        assert hidden.subject == "web/skill://bag/SKILL.md"
        assert "archives-off" in hidden.detail

    zips = ArchivePolicy(frozenset({ArchiveFormat.ZIP}))
    async with hosting(tmp_path, [at(site.url)], user=User(), policy=HostPolicy(archives=zips)) as host:
        assert references(host) == ["web/tea"]
    assert site.paths == [INDEX, INDEX]


@pytest.mark.requirement("DISC-07")
async def test_an_artifact_that_is_not_the_promised_one_reaches_nobody(site: WebSite, tmp_path: Path) -> None:
    site.put(f"{BELOW}tea/SKILL.md", TEA.replace(b"Brew", b"Brow"))
    user = User()

    async with hosting(tmp_path, [at(site.url)], user=user, **ALL) as host:
        error = await refused(host.load("web/tea"))

        assert error.refusal == "digest-mismatch"
        assert host.loaded == ()


async def test_an_artifact_that_says_something_else_than_the_index_is_refused(
    site: WebSite, tmp_path: Path
) -> None:
    site.index({**single(), "description": "Quite another thing."})

    async with hosting(tmp_path, [at(site.url)], user=User()) as host:
        error = await refused(host.load("web/tea"))

    assert error.refusal == "frontmatter-mismatch"


@pytest.mark.requirement("DISC-13")
@pytest.mark.parametrize("reference", ["web/tea", "web/bag"])
async def test_an_approval_ends_with_the_bytes_it_was_for(
    site: WebSite, tmp_path: Path, reference: str
) -> None:
    user = User()
    async with hosting(tmp_path, [at(site.url)], user=user, **ALL) as host:
        await host.load(reference)

    later, other = skill_md("tea", body="Brew it twice.\n"), archive(files={"references/a.md": b"more\n"})
    site.index(single(later), packed(other), ETag='"2"')
    site.put(f"{BELOW}tea/SKILL.md", later)
    site.put(f"{BELOW}bag.tar.gz", other, Content_Type="application/gzip")
    user = User(Reply.DENY)
    async with hosting(tmp_path, [at(site.url)], user=user, **ALL) as host:
        error = await refused(host.load(reference))

    assert error.refusal == "approval-denied"
    assert user.occasions == [Occasion.CHANGED]


@pytest.mark.requirement("DISC-13")
async def test_approved_skills_can_be_used_while_the_site_is_away(tmp_path: Path) -> None:
    data = archive()
    with web_site() as site:
        site.index(single(), packed(data))
        site.put(f"{BELOW}tea/SKILL.md", TEA)
        site.put(f"{BELOW}bag.tar.gz", data)
        server = at(site.url)
        async with hosting(tmp_path, [server], user=User(), **ALL) as host:
            await host.load("web/tea")
            await host.load("web/bag")

    async with hosting(tmp_path, [server], user=User(Reply.DENY), **ALL) as host:
        assert problem(host) == "server-unavailable"
        assert references(host) == ["web/bag", "web/tea"]
        tea = await host.load("web/tea")
        await host.load("web/bag")

        assert "Brew it." in tea.text
        assert "things" in (await host.read_skill_file("web/bag", "references/a.md")).text


@pytest.mark.requirement("DISC-13")
async def test_a_site_at_another_address_is_another_origin(site: WebSite, tmp_path: Path) -> None:
    async with hosting(tmp_path, [at(site.url)], user=User()) as host:
        await host.load("web/tea")

    user = User(Reply.DENY)
    async with hosting(tmp_path, [at(f"{site.url}/team")], user=user) as host:
        site.pages[f"/team{INDEX}"] = site.pages[INDEX]
        await host.refresh(by_user=True)
        assert references(host) == ["web/tea"]
        error = await refused(host.load("web/tea"))

    assert error.refusal == "approval-denied"
    assert user.occasions == [Occasion.FIRST]


@pytest.mark.requirement("DISC-11")
async def test_a_foreign_host_is_refused_until_the_user_names_it(site: WebSite, tmp_path: Path) -> None:
    with web_site() as cdn:
        cdn.put("/tea.md", TEA)
        site.index(single(url=f"{cdn.url}/tea.md"))

        async with hosting(tmp_path, [at(site.url)], user=User()) as host:
            error = await refused(host.load("web/tea"))
            assert error.refusal == "foreign-host"
            assert f"127.0.0.1:{cdn.port}" in str(error)
            assert cdn.asked == []

        async with hosting(tmp_path, [at(site.url, f"127.0.0.1:{cdn.port}")], user=User()) as host:
            assert "Brew it." in (await host.load("web/tea")).text


@pytest.mark.requirement("DISC-03")
@pytest.mark.requirement("CONF-20")
async def test_skills_of_the_oldest_form_are_dynamic(tmp_path: Path) -> None:
    with web_site() as site:
        listed = {"name": "tea", "description": "Use when testing tea.", "files": ["SKILL.md", "a.md"]}
        site.put(OLD_INDEX, {"skills": [listed]})
        site.put("/.well-known/skills/tea/SKILL.md", TEA)
        site.put("/.well-known/skills/tea/a.md", b"things\n")

        async with hosting(tmp_path / "a", [at(site.url)], user=User()) as host:
            assert (await refused(host.load("web/tea"))).refusal == "dynamic-declined"

        user = User(Reply.ONCE)
        async with hosting(
            tmp_path / "b", [at(site.url)], user=user, policy=HostPolicy(dynamic="ask")
        ) as host:
            assert "Brew it." in (await host.load("web/tea")).text
            assert "things" in (await host.read_skill_file("web/tea", "a.md")).text
            assert host.approvals == ()


@pytest.mark.requirement("DISC-03")
async def test_an_index_of_an_unknown_form_is_told_and_not_used(site: WebSite, tmp_path: Path) -> None:
    site.put(INDEX, {"$schema": "https://x.example/9", "skills": [single()]})

    async with hosting(tmp_path, [at(site.url)], user=User()) as host:
        assert references(host) == []
        assert problem(host) == "invalid-answer"


@pytest.mark.parametrize(
    ("page", "code"),
    [
        (Page(status=404), "invalid-answer"),
        (Page(status=500), "server-unavailable"),
        (Page(b"{"), "invalid-answer"),
        (Page(status=302, headers={"Location": "https://evil.example/"}), "foreign-host"),
    ],
)
async def test_a_site_in_trouble_costs_only_itself(
    site: WebSite, tmp_path: Path, page: Page, code: str
) -> None:
    with web_site() as other:
        other.pages[INDEX] = page
        servers = [at(site.url), at(other.url, label="other")]
        async with hosting(tmp_path, servers, user=User()) as host:
            problems = {status.origin.label: status.problem for status in host.view.servers}

            assert references(host) == ["web/tea"]
            assert problems["web"] is None
            assert problems["other"] is not None
            assert problems["other"].code == code


async def test_a_site_has_no_resources_and_no_directories(site: WebSite, tmp_path: Path) -> None:
    async with hosting(tmp_path, [at(site.url)], user=User()) as host:
        await host.load("web/tea")

        assert (await refused(host.read_resource("web", "skill://other"))).refusal == "not-declared"


async def test_a_hundred_thousand_skills_are_listed(tmp_path: Path) -> None:
    entries = [single(name=f"s{number}", url="x") for number in range(100_000)]
    with web_site() as site:
        site.put(INDEX, json.dumps({"$schema": SCHEMA, "skills": entries}).encode())
        async with hosting(tmp_path, [at(site.url)], user=User(), limits=HostLimits(wait_seconds=60)) as host:
            assert len(host.view.skills) == 100_000


@pytest.mark.requirement("DISC-13")
async def test_a_site_behind_encryption_is_used_when_its_certificate_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = Certificate.make(tmp_path, "localhost", "127.0.0.1")
    with web_site(certificate.server) as site:
        site.index(single())
        site.put(f"{BELOW}tea/SKILL.md", TEA)

        async with hosting(tmp_path / "a", [at(site.url)], user=User()) as host:
            assert problem(host) == "server-unavailable"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
        async with hosting(tmp_path / "b", [at(site.url)], user=User()) as host:
            assert "Brew it." in (await host.load("web/tea")).text


# The configuration


def configured(entry: dict[str, Any]) -> tuple[Any, Any]:
    found = servers_of({"mcpServers": {"web": entry}}, base=Path("/"), environ={"HOST": "example.org"})
    return found.servers, found.refused


@pytest.mark.requirement("DISC-11")
def test_a_site_is_configured_among_the_servers() -> None:
    entry = {"type": "well-known", "url": "https://${HOST}", "hosts": ["cdn.example.net", "*.img.example"]}

    [server], refusals = configured(entry)

    assert refusals == ()
    assert server.endpoint == SiteEndpoint("https://example.org", ("cdn.example.net", "*.img.example"))
    assert server.origin.kind is OriginKind.SITE
    [again], _ = configured({"type": "well-known", "url": "https://EXAMPLE.org:443/"})
    [elsewhere], _ = configured({"type": "well-known", "url": "https://example.org:8443/"})
    assert again.origin == server.origin
    assert elsewhere.origin != server.origin


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "http://example.org"},
        {"url": "https://user:secret@example.org"},
        {"url": "https://example.org", "hosts": "cdn.example.net"},
        {"url": "https://example.org", "hosts": ["*"]},
        {"url": "https://example.org", "hosts": [7]},
        {"url": "https://example.org", "headers": {"Authorization": "Bearer x"}},
        {},
    ],
)
def test_a_site_that_is_configured_wrongly_is_refused(entry: dict[str, Any]) -> None:
    servers, [refusal] = configured({"type": "well-known", **entry})

    assert servers == ()
    assert refusal.code == "invalid-config"
    assert "secret" not in str(refusal)


def test_a_site_is_a_target_on_the_command_line(site: WebSite, tmp_path: Path) -> None:
    words = skillwire_command("list", "--json", f"well-known:{site.url}")

    done = subprocess.run(
        words, env=environment(tmp_path), capture_output=True, text=True, timeout=60, cwd=tmp_path
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert digest(TEA) not in done.stderr
    assert "tea" in json.dumps(found)
