"""What others do to the host's files, and servers that come and go. The numbers are the threat model's."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hostile.catalog import BODY, SKILL_FILE, refunds
from hostile.hosting import (
    BODY_URI,
    LABEL,
    REFUNDS,
    ROOT,
    User,
    config,
    hosting,
    refused,
    storage_in,
    visiting,
)
from hostile.integrity import MARK
from hostile.running import WIRES, hostile
from skillwire.host.host import Host
from skillwire.host.model.approval import Reply
from skillwire.host.registry.local import LocalRoot
from skillwire.host.state.places import Storage

everywhere = pytest.mark.parametrize(("transport", "era"), WIRES, ids=[f"{way}-{era}" for way, era in WIRES])

CONTENT = refunds().files[SKILL_FILE]


def cached(folder: Path, content: bytes = CONTENT) -> list[Path]:
    """Return the files of the cache that hold exactly these bytes."""
    files = [path for path in storage_in(folder).cache.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if path.read_bytes() == content]


def same_length(path: Path) -> None:
    stamp = path.stat()
    path.write_bytes(MARK.encode().ljust(len(CONTENT), b"#"))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def shorter(path: Path) -> None:
    path.write_bytes(CONTENT[:40])


def longer(path: Path) -> None:
    path.write_bytes(CONTENT + MARK.encode())


def linked(path: Path) -> None:
    target = path.parents[3] / "planted"
    target.write_bytes(CONTENT + MARK.encode())
    path.unlink()
    path.symlink_to(target)


def linked_to_the_truth(path: Path) -> None:
    """Even true bytes are not taken through a link: they could change after the look."""
    target = path.parents[3] / "planted"
    target.write_bytes(CONTENT)
    path.unlink()
    path.symlink_to(target)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "tamper", [same_length, shorter, longer, linked, linked_to_the_truth, a_folder, a_pipe]
)
@pytest.mark.requirement("CACHE-02")
@pytest.mark.requirement("CACHE-03")
@pytest.mark.requirement("CACHE-07")
async def test_a_cached_file_that_something_else_changed_is_fetched_anew(
    tamper: Callable[[Path], None], tmp_path: Path
) -> None:
    """Attacks 71, 72, 73 and 77."""
    async with hostile("honest", transport="http", era="modern") as peer:
        async with hosting(tmp_path, [config(peer)], user=User()) as host:
            await host.load(REFUNDS)
        [path] = cached(tmp_path)
        tamper(path)
        async with hosting(tmp_path, [config(peer)], user=User(Reply.DENY)) as host:
            loaded = await host.load(REFUNDS)
        reads = peer.reads()

    assert MARK not in loaded.text and BODY.strip() in loaded.text
    assert reads == [BODY_URI, BODY_URI]


@pytest.mark.requirement("CACHE-02")
async def test_a_cached_file_changed_while_its_server_is_away_is_not_used(tmp_path: Path) -> None:
    """Attack 71."""
    async with hostile("honest", transport="http") as peer:
        async with hosting(tmp_path, [config(peer)], user=User()) as host:
            await host.load(REFUNDS)
        [path] = cached(tmp_path)
        same_length(path)
        await peer.stop()
        async with hosting(tmp_path, [config(peer)], user=User()) as host:
            error = await refused(host.load(REFUNDS))

    assert error.refusal in ("unknown-reference", "server-unavailable")
    assert MARK not in str(error)


@pytest.mark.requirement("CACHE-05")
@pytest.mark.requirement("SEC-02")
async def test_a_cached_skill_of_a_server_that_is_away_stays_the_servers_and_says_so(tmp_path: Path) -> None:
    """Attack 76."""
    async with hostile("honest", transport="http", era="legacy") as peer:
        async with hosting(tmp_path, [config(peer)], user=User()) as host:
            online = await host.load(REFUNDS)
            await host.read_skill_file(REFUNDS, "references/policy.md")
        peer.forget()
        await peer.stop()
        async with hosting(tmp_path, [config(peer)], user=User(Reply.DENY)) as host:
            offline = await host.load(REFUNDS)
            policy = await host.read_skill_file(REFUNDS, "references/policy.md")
            unread = await refused(host.read_skill_file(REFUNDS, "scripts/check.sh"))
            unapproved = await refused(host.load(f"{LABEL}/reports"))
            asked = [status.state for status in host.view.servers]

    assert offline.origin == online.origin and offline.origin.is_remote
    assert f"Origin: MCP server {LABEL}" in offline.text and "Trust: a third party" in offline.text
    assert re.search(r"^Offline: .*\d{4}-\d{2}-\d{2}", offline.text, re.MULTILINE)
    assert "Offline" not in online.text
    assert "Refund within 30 days." in policy.text
    assert unread.refusal == "server-unavailable"
    assert unapproved.refusal in ("unknown-reference", "server-unavailable")
    assert asked == ["failed"]


@pytest.mark.requirement("CACHE-06")
@pytest.mark.requirement("APPR-01")
async def test_what_was_kept_of_a_server_goes_when_the_user_removes_it(tmp_path: Path) -> None:
    """Attack 76."""
    later = User(Reply.DENY)
    async with hostile("honest") as peer:
        async with hosting(tmp_path, [config(peer)], user=User()) as host:
            await host.load(REFUNDS)
            before = len(cached(tmp_path))
            await host.forget_server(LABEL)
        after = cached(tmp_path)
        async with hosting(tmp_path, [config(peer)], user=later) as host:
            error = await refused(host.load(REFUNDS))

    assert (before, after) == (1, [])
    assert error.refusal == "approval-denied"
    assert len(later.questions) == 1


@pytest.mark.requirement("CACHE-01")
@pytest.mark.requirement("URI-08")
async def test_bytes_cached_for_one_server_give_another_no_standing(tmp_path: Path) -> None:
    """Attack 78."""
    user = User()
    async with (
        hostile("neighbour", transport="http", era="modern") as one,
        hostile("neighbour", era="legacy") as two,
        hosting(tmp_path, [config(one, "one"), config(two, "two")], user=user) as host,
    ):
        first = await host.load("one/refunds")
        second = await host.load("two/refunds")

        assert len(user.questions) == 2
        assert (one.reads(), two.reads()) == ([BODY_URI], [BODY_URI])
        assert "MCP server one" in first.text and "MCP server two" in second.text


@pytest.mark.requirement("CACHE-02")
async def test_cached_files_are_for_this_user_alone_and_never_executable(tmp_path: Path) -> None:
    """Attack 78."""
    async with visiting("honest", tmp_path, era="modern") as visit:
        await visit.host.load(REFUNDS)
        await visit.host.request_scripts(REFUNDS, "scripts/check.sh")
        kept = [path for place in ("state", "cache") for path in (tmp_path / place).rglob("*")]

    assert {oct(path.stat().st_mode & 0o777) for path in kept if path.is_file()} == {"0o600"}
    assert {oct(path.stat().st_mode & 0o777) for path in kept if path.is_dir()} == {"0o700"}


def inside(root: Path, folder: Path) -> Storage:
    return Storage(folder / "state", root / "cache")


def around(root: Path, folder: Path) -> Storage:
    return Storage(folder / "state", root.parent)


def through_a_link(root: Path, folder: Path) -> Storage:
    (folder / "link").symlink_to(root)
    return Storage(folder / "state", folder / "link" / "cache")


def state_inside(root: Path, folder: Path) -> Storage:
    return Storage(root / "state", folder / "cache")


@pytest.mark.parametrize("where", [inside, around, through_a_link, state_inside])
@pytest.mark.requirement("CACHE-04")
async def test_a_cache_where_skills_are_discovered_is_refused_at_the_start(
    where: Callable[[Path, Path], Storage], tmp_path: Path
) -> None:
    """Attack 75."""
    root = tmp_path / "home" / "skills"
    root.mkdir(parents=True)
    host = Host(roots=[LocalRoot(root, "user")], storage=where(root, tmp_path))

    error = await refused(host.__aenter__())

    assert error.refusal == "unsafe-place"
    assert list(root.iterdir()) == []


@pytest.mark.requirement("CACHE-02")
async def test_a_cache_that_is_a_link_is_refused_at_the_start(tmp_path: Path) -> None:
    """Attack 73."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    host = Host(roots=(), storage=storage_in(tmp_path))

    error = await refused(host.__aenter__())

    assert error.refusal == "unsafe-place"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@everywhere
@pytest.mark.requirement("HOST-18")
async def test_the_log_of_what_the_host_did_holds_no_content(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting("honest", tmp_path, transport=transport, era=era) as visit:
        await visit.host.load(REFUNDS)
        await visit.host.read_skill_file(REFUNDS, "references/policy.md")
        await refused(visit.host.read_skill_file(REFUNDS, "references/none.md"))
    log = storage_in(tmp_path).audit.read_text("utf-8")

    assert "Refund within" not in log and "Read [the policy]" not in log
    assert f"{ROOT}/references/policy.md" in log and "unlisted-file" in log
    assert oct(storage_in(tmp_path).audit.stat().st_mode & 0o777) == "0o600"
