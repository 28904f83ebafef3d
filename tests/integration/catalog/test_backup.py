"""Backups: restored on the other engine they are equal, and damaged or hostile ones change nothing."""

import gzip
import os
import random
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import orjson
import pytest

from integration.catalog.blob_places import PLACES, Place, new_place
from integration.catalog.catalog_world import draft, publish, uri_of
from skillwire.catalog import FOREVER, Catalog, CatalogError, open_catalog
from skillwire.catalog.backup import TABLES, BackupSummary, backup, restore
from skillwire.catalog.maintenance import verify
from skillwire.core import digest_of

Part: TypeAlias = tuple[str, bytes]
Change: TypeAlias = Callable[[dict[str, Any], dict[str, Any]], object]

pytestmark = pytest.mark.anyio


async def fill(catalog: Catalog) -> None:
    """Publish in several revisions: changes, immutable versions, removals, a managed source, odd texts."""
    odd = {"SKILL.md": b"Do it.\n", "data/é€.bin": bytes(range(256)), "empty": b""}
    tea = {"SKILL.md": b"tea\n", **{f"notes/{number}.md": b"%d" % number for number in range(20)}}
    await publish(catalog, draft("acme/tea", tea), draft("zöo/ether", odd))
    changed = draft("acme/tea", {"SKILL.md": b"Tea\n"}, version="1.2.0", modified=1.25)
    await catalog.publish(await catalog.plan([changed]), actor="ann", note="say “hi”")
    await publish(catalog, draft("b", metadata={"skillwire/pinned": "true", "skillwire/listed": "false"}))
    await catalog.unpublish([uri_of("zöo/ether")], actor="bob", note='"quoted"\n')
    await catalog.rollback(uri_of("acme/tea"), 1, actor="bob")
    async with catalog.database.transaction(write=True) as transaction:
        await transaction.execute(
            "INSERT INTO managed (name, kind, location, prefix, every, options, last_at, last_result) "
            "VALUES ('x', 'git', 'https://example.org/r.git', 'acme', 300.5, '{}', NULL, '')"
        )


async def rows_of(catalog: Catalog) -> dict[str, list[Sequence[object]]]:
    return {
        table: [
            tuple(row)
            for row in await catalog.database.read(f"SELECT {columns} FROM {table} ORDER BY {order}")
        ]
        for table, (columns, order) in TABLES.items()
    }


async def blobs_of(catalog: Catalog) -> set[str]:
    return {blob.digest async for batch in catalog.store.digests() for blob in batch}


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def parts_of(path: Path) -> list[Part]:
    with tarfile.open(path) as archive:
        members = [(member.name, archive.extractfile(member).read()) for member in archive]  # pyright: ignore
    return [part for part in members if part[0] != "end.json"]


def member(name: str, content: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def ended(data: bytes) -> bytes:
    """Return a backup of some members, with the digest of them at its end."""
    return data + member("end.json", orjson.dumps({"digest": digest_of(data)})) + bytes(1024)


def written(parts: Sequence[Part]) -> bytes:
    return ended(b"".join(member(*part) for part in parts))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small catalog and its backup."""
    folder = tmp_path_factory.mktemp("origin")

    async def make() -> None:
        async with open_catalog(f"sqlite:///{folder}/small.db", create=True) as catalog:
            await fill(catalog)
            await backup(catalog, folder / "small.backup")

    anyio.run(make)
    return folder


@pytest.fixture
def small(origin: Path, tmp_path: Path) -> Path:
    """Return a copy of the backup of the small catalog."""
    return Path(shutil.copy(origin / "small.backup", tmp_path))


PAIRS = [(0, 2), (2, 0), (0, 3), (3, 1)]


@pytest.mark.parametrize(("origin", "target"), [(PLACES[one], PLACES[other]) for one, other in PAIRS])
async def test_a_restored_catalog_has_equal_rows_and_files(
    request: pytest.FixtureRequest, tmp_path: Path, origin: str, target: str
) -> None:
    seen: list[tuple[int, int]] = []
    async with new_place(request, origin).catalog() as catalog:
        await fill(catalog)
        summary = await backup(catalog, tmp_path / "backup", lambda done, total: seen.append((done, total)))
        rows, blobs, identity = await rows_of(catalog), await blobs_of(catalog), catalog.id
    place = new_place(request, target)

    result = await restore(tmp_path / "backup", place.url, blobs=place.location)

    assert summary == result == BackupSummary(5, len(rows["versions"]), len(blobs), result.size)
    assert seen[-1] == (len(blobs), len(blobs)) == (26, 26)
    async with open_catalog(place.url) as restored:
        found = await rows_of(restored)
        [event] = found["audit"][len(rows["audit"]) :]
        assert event[2] == "restore"
        assert found | {"audit": found["audit"][:-1]} == rows
        assert await blobs_of(restored) == blobs
        assert (await verify(restored)).is_intact
        assert await restored.revision() == 5
        assert restored.id != identity
        assert (await publish(restored, draft("acme/new"))).revision == 6
        assert (await restored.rollback(uri_of("acme/tea"), 2, actor="ann")).revision == 7


async def test_the_same_catalog_has_the_same_backup_and_any_program_can_unpack_it(
    tmp_path: Path, origin: Path, small: Path
) -> None:
    async with open_catalog(f"sqlite:///{origin}/small.db") as catalog:
        await backup(catalog, tmp_path / "again")
    await anyio.run_process(["tar", "-xf", str(small), "--one-top-level=out"], cwd=tmp_path)

    assert content_of(tmp_path / "again") == content_of(small)
    assert oct(os.stat(small).st_mode & 0o777) == "0o600"  # noqa: PTH116
    blobs = [part for part in parts_of(small) if part[0].startswith("blobs/")]
    assert {digest_of(content) for _, content in blobs} == {f"sha256:{name[6:]}" for name, _ in blobs}
    assert all(content_of(tmp_path / "out" / name) == content for name, content in blobs)


async def test_an_empty_catalog_can_be_restored_too(tmp_path: Path) -> None:
    async with open_catalog(f"sqlite:///{tmp_path}/a.db", create=True) as catalog:
        await backup(catalog, tmp_path / "backup")

    await restore(tmp_path / "backup", f"sqlite:///{tmp_path}/b.db")

    async with open_catalog(f"sqlite:///{tmp_path}/b.db") as restored:
        assert await restored.revision() == 0


async def test_a_backup_taken_while_others_publish_is_of_one_revision(place: Place, tmp_path: Path) -> None:
    written_backups: list[BackupSummary] = []

    async def publish_often(number: int) -> None:
        async with place.catalog() as own:
            for turn in range(25):
                files = {"SKILL.md": b"%d of %d" % (turn, number), "a": b"%d" % (turn * 10 + number)}
                await publish(own, draft(f"space{number}/tea", files))

    async with place.catalog() as catalog:
        async with anyio.create_task_group() as group:
            for number in range(2):
                group.start_soon(publish_often, number)
            for number in range(6):
                written_backups.append(await backup(catalog, tmp_path / f"backup{number}"))
                await anyio.sleep(0.05)
        final = await rows_of(catalog)

    for number, summary in enumerate(written_backups):
        url = f"sqlite:///{tmp_path}/restored{number}.db"
        await restore(tmp_path / f"backup{number}", url)
        async with open_catalog(url) as restored:
            assert (await verify(restored)).is_intact
            rows = (await rows_of(restored))["versions"]
        wanted = [row for row in final["versions"] if int(str(row[1])) <= summary.revision]
        assert [row[:2] for row in rows] == [row[:2] for row in wanted]
        assert newest_in(rows) == summary.revision
    assert len({summary.revision for summary in written_backups}) > 1


def newest_in(rows: Sequence[Sequence[object]]) -> int:
    return max((int(str(row[1])) for row in rows), default=0)


# Backups that cannot be written


async def test_a_backup_never_replaces_a_file(tmp_path: Path, origin: Path, small: Path) -> None:
    before = content_of(small)
    async with open_catalog(f"sqlite:///{origin}/small.db") as catalog:
        for path in (small, tmp_path):
            with pytest.raises(CatalogError, match="already"):
                await backup(catalog, path)
        with pytest.raises(CatalogError) as caught:
            await backup(catalog, tmp_path / "nowhere" / "backup")

    assert content_of(small) == before
    assert str(tmp_path) not in str(caught.value) and caught.value.fix


async def test_a_backup_of_a_damaged_catalog_fails_and_leaves_nothing(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    async with place.catalog() as catalog:
        await fill(catalog)
        await place.damage(digest_of(b"7"), b"8")

        with pytest.raises(CatalogError, match="damaged"):
            await backup(catalog, folder / "backup")

    assert os.listdir(folder) == []  # noqa: PTH208


# Backups that must not be restored


async def assert_refused(path: Path, content: bytes) -> CatalogError:
    """Check that a backup is refused with one error, and that nothing of the target exists after that."""
    target = path.with_name("target.db")
    write(path, content)
    with pytest.raises(CatalogError) as caught:
        await restore(path, f"sqlite:///{target}")
    assert list(path.parent.glob("target.db*")) == []
    assert str(path) not in str(caught.value)
    return caught.value


async def test_a_truncated_backup_is_refused_wherever_it_ends(tmp_path: Path, small: Path) -> None:
    content = content_of(small)
    cuts = {0, 1, 511, 512, 513, len(content) - 1, len(content) - 512, len(content) - 1024}
    cuts |= set(range(512, len(content), 2_048)) | {
        random.Random(1).randrange(len(content)) for _ in range(30)
    }

    for cut in sorted(cuts):
        await assert_refused(tmp_path / "cut", content[:cut])
    await assert_refused(tmp_path / "cut", content + b"\0")
    await assert_refused(tmp_path / "cut", content + content)


async def test_a_changed_byte_is_noticed(tmp_path: Path, small: Path) -> None:
    content = content_of(small)
    picked = random.Random(2)

    for position in [picked.randrange(len(content)) for _ in range(200)]:
        changed = bytearray(content)
        changed[position] ^= 1 << picked.randrange(8)
        await assert_refused(tmp_path / "changed", bytes(changed))


def swap(parts: list[Part]) -> list[Part]:
    return [parts[0], *reversed(parts[1:])]


def with_header(parts: list[Part], header: bytes) -> bytes:
    return ended(b"".join(member(*part) for part in parts) + header)


def link(parts: list[Part]) -> bytes:
    info = tarfile.TarInfo("blobs/" + "f" * 64)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return with_header(parts, info.tobuf(tarfile.USTAR_FORMAT))


def large(parts: list[Part], size: int) -> bytes:
    info = tarfile.TarInfo("blobs/" + "f" * 64)
    info.size = size
    return with_header(parts, info.tobuf(tarfile.GNU_FORMAT))


def extended(parts: list[Part]) -> bytes:
    info = tarfile.TarInfo("blobs/" + "f" * 64)
    info.pax_headers = {"comment": "x" * 100_000}
    return with_header(parts, info.tobuf(tarfile.PAX_FORMAT))


HOSTILE: dict[str, Callable[[list[Part]], list[Part] | bytes]] = {
    "no tar": lambda parts: b"hello" * 1_000,
    "zeros": lambda parts: bytes(10_240),
    "compressed": lambda parts: gzip.compress(written(parts)),
    "no description": lambda parts: parts[1:],
    "description not first": lambda parts: [parts[1], parts[0], *parts[2:]],
    "two descriptions": lambda parts: [parts[0], *parts],
    "huge description": lambda parts: [(parts[0][0], b" " * 33 * 1024 * 1024), *parts[1:]],
    "description no object": lambda parts: [(parts[0][0], b"[]"), *parts[1:]],
    "description nested": lambda parts: [(parts[0][0], b"[" * 60_000), *parts[1:]],
    "order": swap,
    "upwards": lambda parts: [*parts, ("../out", b"x")],
    "absolute": lambda parts: [*parts, ("/tmp/out", b"x")],
    "name no digest": lambda parts: [*parts, ("blobs/" + "z" * 64, b"x")],
    "other table": lambda parts: [*parts[:1], ("leases/00000001.jsonl", b"[]\n"), *parts[1:]],
    "symbolic link": link,
    "one more file": lambda parts: [*parts, ("blobs/" + "f" * 64, b"x")],
    "one file less": lambda parts: parts[:-1],
    "twice": lambda parts: [*parts, parts[-1]],
    "other bytes": lambda parts: [*parts[:-1], (parts[-1][0], parts[-1][1][::-1] + b"!")],
    "rows left out": lambda parts: [parts[0], *parts[2:]],
    "rows twice": lambda parts: [*parts[:2], *parts[1:]],
    "large file": lambda parts: large(parts, 2**33 - 1),
    "huge file": lambda parts: large(parts, 2**62),
    "negative size": lambda parts: large(parts, -1_000_000),
    "extended header": extended,
    "no end": lambda parts: b"".join(member(*part) for part in parts) + bytes(1024),
    "another end": lambda parts: b"".join(member(*part) for part in parts) + ended(b""),
    "two ends": lambda parts: ended(written(parts)[:-1024]),
    "more after the end": lambda parts: (
        written(parts)[:-1024] + member("blobs/" + "f" * 64, b"") + bytes(1024)
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_backup_with_other_parts_is_refused(tmp_path: Path, small: Path, name: str) -> None:
    made = HOSTILE[name](parts_of(small))

    error = await assert_refused(tmp_path / "hostile", made if isinstance(made, bytes) else written(made))

    assert "backup" in str(error) and error.fix


def changed(path: Path, change: Change) -> bytes:
    """Change the description and the rows of a backup, with the right digest at its end."""
    parts = parts_of(path)
    manifest = orjson.loads(parts[0][1])
    tables: dict[str, Any] = {table: [] for table in TABLES}
    for name, content in parts[1:]:
        if not name.startswith("blobs/"):
            tables[name.partition("/")[0]] += [orjson.loads(line) for line in content.splitlines()]
    change(manifest, tables)
    new: list[Part] = []
    for table, rows in tables.items():
        lines = b"".join(row if isinstance(row, bytes) else orjson.dumps(row) + b"\n" for row in rows)
        new += [(f"{table}/00000001.jsonl", lines)] if rows else []
    blobs = [part for part in parts if part[0].startswith("blobs/")]
    return written([("catalog.json", orjson.dumps(manifest)), *new, *blobs])


def set_column(column: str, value: object, *, row: int = 0, table: str = "versions") -> Change:
    position = TABLES[table][0].split(", ").index(column)
    return lambda manifest, tables: tables[table][row].__setitem__(position, value)


LYING: dict[str, Change] = {
    "another format": lambda manifest, tables: manifest.update(format="other"),
    "a later version": lambda manifest, tables: manifest.update(version=2),
    "a negative revision": lambda manifest, tables: manifest.update(revision=-1),
    "a huge revision": lambda manifest, tables: manifest.update(revision=2**64 - 1),
    "a revision that is a text": lambda manifest, tables: manifest.update(revision="5"),
    "an earlier revision": lambda manifest, tables: manifest.update(revision=4),
    "no revision": lambda manifest, tables: manifest.pop("revision"),
    "a row left out that has files": lambda manifest, tables: tables["versions"].pop(),
    "a row twice": lambda manifest, tables: tables["versions"].insert(0, tables["versions"][0]),
    "rows in another order": lambda manifest, tables: tables["versions"].reverse(),
    "a row that is no JSON": lambda manifest, tables: tables["versions"].append(b"{\n"),
    "a row that is an object": lambda manifest, tables: tables["versions"].append({}),
    "a row that is nested": lambda manifest, tables: tables["versions"].append(b"[" * 100_000 + b"\n"),
    "a row with another width": lambda manifest, tables: tables["versions"][0].append(1),
    "a column of another type": set_column("listed", "1"),
    "a flag that is a bool": set_column("listed", True),
    "a flag that is two": set_column("listed", 2),
    "a number out of range": set_column("since", 2**64 - 1),
    "a row of no revision": set_column("since", 0),
    "a row that ends before": set_column("until", 1),
    "a row that ends late": set_column("until", 6),
    "a row that overlaps": set_column("until", FOREVER),
    "another skill's name": set_column("name", "coffee"),
    "another namespace": set_column("namespace", "other"),
    "another URI": set_column("uri", "skill://acme/aaa/SKILL.md"),
    "no URI": set_column("uri", "a"),
    "a text with a zero": set_column("source", "a\0b"),
    "another digest": set_column("digest", digest_of(b"")),
    "another entry": set_column("entry", "{}"),
    "an entry that is no JSON": set_column("entry", "nothing"),
    "details that are no JSON": set_column("details", "{"),
    "a revision left out": lambda manifest, tables: tables["revisions"].pop(0),
    "revisions in another order": lambda manifest, tables: tables["revisions"].reverse(),
    "a revision too many": set_column("revision", 99, row=-1, table="revisions"),
    "a time that is a text": set_column("at", "now", table="audit"),
    "an interval without a number": set_column("every", None, table="managed"),
}


@pytest.mark.parametrize("name", LYING)
async def test_a_backup_whose_rows_cannot_be_right_is_refused(tmp_path: Path, small: Path, name: str) -> None:
    error = await assert_refused(tmp_path / "lying", changed(small, LYING[name]))

    assert "backup" in str(error) and error.fix


async def test_an_unchanged_backup_that_was_written_again_is_restored(tmp_path: Path, small: Path) -> None:
    (tmp_path / "same").write_bytes(changed(small, lambda manifest, tables: None))

    assert (await restore(tmp_path / "same", f"sqlite:///{tmp_path}/same.db")).revision == 5


async def test_a_backup_that_changes_while_it_is_restored_is_refused(tmp_path: Path, small: Path) -> None:
    def change(done: int, total: int) -> None:
        if done == total:
            write(small, content_of(small)[::-1])

    with pytest.raises(CatalogError, match="backup"):
        await restore(small, f"sqlite:///{tmp_path}/target.db", progress=change)

    async with open_catalog(f"sqlite:///{tmp_path}/target.db") as catalog:
        assert await catalog.revision() == 0
        assert (await rows_of(catalog))["versions"] == []


async def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(CatalogError) as caught:
            await restore(path, f"sqlite:///{tmp_path}/target.db")
        assert caught.value.fix and str(tmp_path) not in str(caught.value)


# The target


async def test_a_catalog_that_is_not_empty_stays_as_it_is(place: Place, small: Path) -> None:
    async with place.catalog() as catalog:
        await publish(catalog, draft("acme/mine"))
        await catalog.unpublish([uri_of("acme/mine")], actor="ann")
        before, blobs = await rows_of(catalog), await blobs_of(catalog)

        with pytest.raises(CatalogError, match="empty"):
            await restore(small, place.url, blobs=place.location)

        assert (await rows_of(catalog), await blobs_of(catalog)) == (before, blobs)


async def test_of_two_restores_at_once_into_one_catalog_one_succeeds(place: Place, small: Path) -> None:
    results: list[object] = []

    async def run() -> None:
        try:
            results.append(await restore(small, place.url, blobs=place.location))
        except CatalogError as error:
            results.append(str(error))

    async with place.catalog() as catalog:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(run)

        assert sorted(type(result).__name__ for result in results) == ["BackupSummary", "str"]
        assert (await verify(catalog)).is_intact
        assert await catalog.revision() == 5


RESTORE_AND_DIE = """
import anyio, os, signal, sys
from pathlib import Path
from skillwire.catalog import database, postgres
from skillwire.catalog import backup
from skillwire.catalog.blobs import FolderBlobs, TableBlobs

url, location, path, left = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])

def dying(function):
    async def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await function(*arguments, **options)
    return call

for kind in (database.SqliteTransaction, postgres.PostgresTransaction):
    for name in ("execute", "execute_many", "fetch"):
        setattr(kind, name, dying(getattr(kind, name)))
for kind in (FolderBlobs, TableBlobs):
    kind.put = dying(kind.put)
anyio.run(lambda: backup.restore(path, url, blobs=location))
print("restored")
"""


@pytest.mark.parametrize("name", PLACES[:3])
async def test_a_restore_that_is_killed_leaves_an_empty_catalog_and_can_be_done_again(
    request: pytest.FixtureRequest, small: Path, name: str
) -> None:
    place = new_place(request, name)
    killed = 0
    for step in (1, 15, 35, 40, 43, 46, 49, 52, 80, 400):
        command = [sys.executable, "-c", RESTORE_AND_DIE, place.url, place.location, str(small), str(step)]
        process = await anyio.run_process(command, check=False)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr.decode()
        killed += 1
        async with place.catalog() as catalog:
            if await catalog.revision():
                break
            assert (await rows_of(catalog))["versions"] == []
            assert (await rows_of(catalog))["revisions"] == []

    assert killed > 3
    async with place.catalog() as catalog:
        assert await catalog.revision() == 5
        assert (await verify(catalog)).is_intact
