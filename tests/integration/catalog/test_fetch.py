"""Fetching managed sources: real repositories, archives and web sites, and bad ones of each."""

import io
import os
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Generator, Mapping
from pathlib import Path

import anyio
import pytest

from folders import skill_md
from integration.web_sites import WebSite, archive, digest, packed, single, web_site
from skillwire.catalog import fetch
from skillwire.catalog.fetch import ManagedKind, check_location, fetched
from skillwire.catalog.model import CatalogError
from skillwire.core import InvalidArchiveError, LimitError, SkillError

FILES = {
    "skills/tea/SKILL.md": skill_md("tea"),
    "skills/tea/references/leaves.md": b"green\n",
    "skills/coffee/SKILL.md": skill_md("coffee"),
    "README.md": b"not a skill\n",
}

pytestmark = pytest.mark.anyio


def git(folder: Path, *arguments: str) -> str:
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


def commit(folder: Path, files: Mapping[str, bytes]) -> str:
    """Write files into a repository, which is created if necessary, and return the new commit."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet")
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=change")
    return git(folder, "rev-parse", "HEAD")


def tar_gz(files: Mapping[str, bytes], *members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as written:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            written.addfile(info, io.BytesIO(content))
        for member in members:
            written.addfile(member)
    return buffer.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def items_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def names(kind: ManagedKind, location: str, prefix: str = "acme") -> dict[str, bytes]:
    """Return the SKILL.md of each fetched skill, by path; all of its files can be read."""
    found: dict[str, bytes] = {}
    async with fetched(kind, location, prefix) as source:
        for entry in source.snapshot.entries:
            assert entry.manifest is not None
            for line in entry.manifest.files:
                line.verify(await source.read_file(line.uri))
            found[entry.uri.path] = await source.read_file(entry.uri.text)
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    commit(folder, FILES)
    return folder


@pytest.fixture
def site() -> Generator[WebSite]:
    with web_site() as running:
        yield running


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Give each test a temporary folder, which is empty again after it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


async def test_a_folder_is_read_where_it_is(tmp_path: Path) -> None:
    commit(tmp_path / "own", FILES)

    found = await names(ManagedKind.FOLDER, str(tmp_path / "own"))

    assert found == {
        "acme/skills/tea": FILES["skills/tea/SKILL.md"],
        "acme/skills/coffee": FILES["skills/coffee/SKILL.md"],
    }


async def test_a_repository_is_fetched_at_its_head_a_branch_a_tag_or_a_commit(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "v1")
    git(repository, "checkout", "--quiet", "-b", "next")
    newer = skill_md("tea", body="newer\n")
    commit(repository, {"skills/tea/SKILL.md": newer})
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    url = repository.as_uri()

    for location, wanted in (
        (url, newer),
        (f"{url}#main", FILES["skills/tea/SKILL.md"]),
        (f"{url}#v1", FILES["skills/tea/SKILL.md"]),
        (f"{url}#next", newer),
        (f"{url}#{first}", FILES["skills/tea/SKILL.md"]),
    ):
        assert (await names(ManagedKind.GIT, location))["acme/skills/tea"] == wanted


async def test_a_folder_of_a_repository_can_be_named(repository: Path) -> None:
    for fragment in ("#main:skills", "#:skills", "#:skills/"):
        found = await names(ManagedKind.GIT, repository.as_uri() + fragment)

        assert set(found) == {"acme/tea", "acme/coffee"}


@pytest.mark.parametrize("fragment", ["#nowhere", "#:nowhere", "#main:README.md"])
async def test_a_branch_or_folder_that_is_not_there_is_an_error(repository: Path, fragment: str) -> None:
    with pytest.raises(CatalogError, match="git"):
        await names(ManagedKind.GIT, repository.as_uri() + fragment)


async def test_hooks_filters_and_configuration_of_others_are_not_used(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch '{ran}'\ncat\n")
    script.chmod(0o755)
    home = tmp_path / "user"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f'[core]\nhooksPath={tmp_path}/hooks\nfsmonitor={script}\n[filter "x"]\nsmudge={script}\n'
        f'[init]\ntemplateDir={tmp_path}/template\n[tar "tar.gz"]\ncommand={script}\n'
    )
    for folder in (tmp_path / "hooks", tmp_path / "template" / "hooks"):
        folder.mkdir(parents=True)
        for hook in ("reference-transaction", "post-checkout", "post-index-change"):
            (folder / hook).symlink_to(script)
    commit(repository, {".gitattributes": b"* filter=x\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(script))
    monkeypatch.setenv("GIT_SSH", str(script))

    assert len(await names(ManagedKind.GIT, repository.as_uri())) == 2

    assert not ran.exists()


@pytest.mark.parametrize(
    "location",
    [
        "",
        "/srv/repository",
        "http://example.org/r.git",
        "git://example.org/r.git",
        "ext::sh -c touch% /tmp/x",
        "--upload-pack=touch /tmp/x",
        "https://example.org/r.git#--upload-pack=x",
        "https://example.org/r.git#a..b",
        "https://example.org/r.git#main:../..",
        "https://example.org/r git",
        "https://someone:secret@example.org/r.git",
    ],
)
async def test_other_locations_of_repositories_are_refused(location: str) -> None:
    with pytest.raises(CatalogError) as caught:
        check_location(ManagedKind.GIT, location)

    assert "secret" not in f"{caught.value} {caught.value.fix}" and caught.value.fix


async def test_a_link_of_a_repository_leads_nowhere_else(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (repository / "skills" / "tea" / "own.md").symlink_to("references/leaves.md")
    (repository / "skills" / "coffee" / "other.md").symlink_to(tmp_path / "secret")
    commit(repository, {})

    async with fetched(ManagedKind.GIT, repository.as_uri(), "") as source:
        snapshot = source.snapshot
        paths = [entry.uri.path for entry in snapshot.entries]
        assert await source.read_file("skill://skills/tea/own.md") == b"green\n"

    assert paths == ["skills/tea"]
    assert [report.uri for report in snapshot.reports] == [None]


async def test_git_that_hangs_is_ended_with_everything_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {tmp_path}/child\nwait\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(fetch, "GIT_SECONDS", 1.0)
    start = time.monotonic()

    with pytest.raises(CatalogError, match="within"):
        await names(ManagedKind.GIT, "https://example.org/r.git")

    assert time.monotonic() - start < 10
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while is_running(child):
        assert time.monotonic() < deadline
        await anyio.sleep(0.02)


async def test_a_repository_with_more_than_the_limit_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository, {"large.bin": os.urandom(1_000_000)})
    monkeypatch.setattr(fetch, "_MAX_ARCHIVE_BYTES", 100_000)

    with pytest.raises(LimitError):
        await names(ManagedKind.GIT, repository.as_uri())


@pytest.mark.parametrize("suffix", ["tar.gz", "zip"])
@pytest.mark.parametrize("top", ["", "repository-main/"])
async def test_an_archive_is_read_from_a_path_or_a_url(
    tmp_path: Path, site: WebSite, suffix: str, top: str
) -> None:
    files = {top + name: content for name, content in FILES.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as written:
        for name, content in files.items():
            written.writestr(name, content)
    content = tar_gz(files) if suffix == "tar.gz" else buffer.getvalue()
    (tmp_path / f"skills.{suffix}").write_bytes(content)
    site.put(f"/skills.{suffix}", content)

    wanted = {"acme/skills/tea", "acme/skills/coffee"}
    assert set(await names(ManagedKind.ARCHIVE, str(tmp_path / f"skills.{suffix}"))) == wanted
    assert set(await names(ManagedKind.ARCHIVE, f"{site.url}/skills.{suffix}")) == wanted


async def test_an_archive_of_one_skill_keeps_its_folder(tmp_path: Path) -> None:
    (tmp_path / "tea.tar.gz").write_bytes(tar_gz({"tea/SKILL.md": skill_md("tea")}))

    assert set(await names(ManagedKind.ARCHIVE, str(tmp_path / "tea.tar.gz"))) == {"acme/tea"}


BAD_ARCHIVES = {
    "nothing": b"",
    "not an archive": b"hello" * 100,
    "truncated": tar_gz(FILES)[:-30],
    "upwards": tar_gz({"../out.md": b"x"}),
    "absolute": tar_gz({"/out.md": b"x"}),
    "twice": tar_gz({"a/b.md": b"x"}, tarfile.TarInfo("a/b.md")),
    "file and folder": tar_gz({"a": b"x", "a/b.md": b"y"}),
    "deep": tar_gz({"a/" * 40 + "b": b"x"}),
    "long": tar_gz({"a" * 256: b"x"}),
    "device": tar_gz({}, link("null", "", tarfile.CHRTYPE)),
}


@pytest.mark.parametrize("name", BAD_ARCHIVES)
async def test_bad_archives_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.tar.gz").write_bytes(BAD_ARCHIVES[name])

    with pytest.raises((InvalidArchiveError, LimitError)):
        await names(ManagedKind.ARCHIVE, str(tmp_path / "bad.tar.gz"))

    assert {path.name for path in items_in(tmp_path)} == {"temporary", "bad.tar.gz"}


async def test_nothing_is_written_through_a_link_of_an_archive(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as written:
        written.addfile(link("skills", str(outside)))
        info = tarfile.TarInfo("skills/tea/SKILL.md")
        info.size = len(FILES["skills/tea/SKILL.md"])
        written.addfile(info, io.BytesIO(FILES["skills/tea/SKILL.md"]))
    (tmp_path / "bad.tar.gz").write_bytes(data.getvalue())

    await names(ManagedKind.ARCHIVE, str(tmp_path / "bad.tar.gz"))

    assert items_in(outside) == []


async def test_no_link_is_created_below_another(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "bad.tar.gz").write_bytes(tar_gz({}, link("a", str(outside)), link("a/b", "/etc/passwd")))

    with pytest.raises(InvalidArchiveError):
        await names(ManagedKind.ARCHIVE, str(tmp_path / "bad.tar.gz"))

    assert items_in(outside) == []


async def test_an_archive_that_expands_without_end_is_refused(tmp_path: Path) -> None:
    zeros = tar_gz({f"{number}.bin": bytes(16_000_000) for number in range(17)})
    (tmp_path / "bomb.tar.gz").write_bytes(zeros)
    assert len(zeros) < 1_000_000

    with pytest.raises(LimitError):
        await names(ManagedKind.ARCHIVE, str(tmp_path / "bomb.tar.gz"))


async def test_a_disk_without_space_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "_create", fail)
    (tmp_path / "tea.tar.gz").write_bytes(tar_gz(FILES))

    with pytest.raises(CatalogError, match="space"):
        await names(ManagedKind.ARCHIVE, str(tmp_path / "tea.tar.gz"))


async def test_an_archive_that_cannot_be_downloaded_is_an_error(
    tmp_path: Path, site: WebSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.redirect("/elsewhere.tar.gz", "https://example.org/skills.tar.gz")
    site.put("/large.tar.gz", bytes(2_000))
    monkeypatch.setattr(fetch, "_MAX_ARCHIVE_BYTES", 1_000)

    for location in (
        f"{site.url}/none.tar.gz",
        f"{site.url}/elsewhere.tar.gz",
        f"{site.url}/large.tar.gz",
        "http://example.org/x.tar.gz",
        str(tmp_path / "none.tar.gz"),
        str(tmp_path),
    ):
        with pytest.raises(SkillError):
            await names(ManagedKind.ARCHIVE, location)


async def test_a_site_is_fetched_once_and_not_polled(site: WebSite) -> None:
    bag = archive("bag")
    site.index(single(FILES["skills/tea/SKILL.md"]), packed(bag))
    site.put("/.well-known/agent-skills/tea/SKILL.md", FILES["skills/tea/SKILL.md"])
    site.put("/.well-known/agent-skills/bag.tar.gz", bag)
    assert digest(bag)

    found = await names(ManagedKind.WELL_KNOWN, site.url)

    assert set(found) == {"acme/tea", "acme/bag"}
    assert len(site.asked) == 3


async def test_a_site_that_is_away_is_an_error(site: WebSite) -> None:
    with pytest.raises(SkillError):
        await names(ManagedKind.WELL_KNOWN, site.url)
    with pytest.raises(SkillError):
        await names(ManagedKind.WELL_KNOWN, "http://127.0.0.1:1")
