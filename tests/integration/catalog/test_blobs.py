"""Blobs of a catalog: one behaviour of folders, tables and S3."""

import hashlib
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from integration.catalog.blob_places import (
    DIGEST,
    ONE,
    Place,
    run_script,
)
from skillwire.catalog import blobs, s3
from skillwire.catalog.blobs import (
    MAX_BLOB_BYTES,
    BlobMissingError,
    BlobStore,
    FolderBlobs,
    TableBlobs,
    open_blobs,
)
from skillwire.catalog.database import SqliteDatabase
from skillwire.catalog.model import CatalogError
from skillwire.catalog.s3 import S3Blobs
from skillwire.core import digest_of

NO_DIGESTS = [
    "",
    "sha256:",
    "../../etc/passwd",
    f"sha256:{'../' * 21}a",
    DIGEST.upper(),
    f"{DIGEST}\n",
    DIGEST[:-1],
    "sha256:' OR 1=1 --",
    DIGEST.removeprefix("sha256:"),
]
NO_LOCATIONS = [
    "",
    "elsewhere",
    "s3://",
    "s3://ab",
    "s3://KEY:SECRET@bucket/x",
    "s3://bucket/../x",
    "s3://bucket//x",
    "s3://bucket/x?region=y",
    "s3://Bucket",
    "file:///etc",
    "s3://bucket/x\n",
]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(place: Place) -> AsyncGenerator[BlobStore]:
    async with place.opened() as opened:
        yield opened


async def test_a_stored_blob_is_read_again_and_others_are_missing(place: Place, store: BlobStore) -> None:
    before = time.time()
    absent = digest_of(b"other")

    await store.check()
    await store.put(DIGEST, ONE)
    await store.put(DIGEST, ONE)

    assert await store.has([DIGEST, absent]) == {DIGEST}
    assert await store.get(DIGEST) == ONE
    with pytest.raises(BlobMissingError) as missing:
        await store.get(absent)
    assert missing.value.digest == absent and absent in str(missing.value)
    [[blob]] = [batch async for batch in store.digests()]
    assert (blob.digest, blob.size) == (DIGEST, len(ONE))
    assert before - 2 <= blob.at <= time.time() + 2
    async with place.opened() as other:
        assert await other.get(DIGEST) == ONE
        assert other.location == place.location


async def test_an_empty_store_has_nothing(store: BlobStore) -> None:
    assert await store.has([DIGEST]) == set()
    assert await store.has([]) == set()
    assert [batch async for batch in store.digests() if batch] == []
    await store.remove([DIGEST])
    with pytest.raises(BlobMissingError):
        await store.get(DIGEST)


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 64, secrets.token_bytes(MAX_BLOB_BYTES)],
                         ids=["empty", "binary", "largest"])  # fmt: skip
async def test_bytes_of_any_size_are_kept(store: BlobStore, content: bytes) -> None:
    await store.put(digest_of(content), content)

    assert await store.get(digest_of(content)) == content


async def test_removed_blobs_are_gone_and_others_stay(store: BlobStore) -> None:
    other = digest_of(b"other")
    await store.put(DIGEST, ONE)
    await store.put(other, b"other")

    await store.remove([DIGEST, digest_of(b"never stored")])

    assert await store.has([DIGEST, other]) == {other}
    with pytest.raises(BlobMissingError):
        await store.get(DIGEST)
    await store.put(DIGEST, ONE)
    assert await store.get(DIGEST) == ONE


@pytest.mark.parametrize("damaged", [b"One\n", b"on", b"", ONE + b"more"])
async def test_damaged_bytes_are_noticed_on_every_read(
    place: Place, store: BlobStore, damaged: bytes
) -> None:
    await store.put(DIGEST, ONE)
    assert await store.get(DIGEST) == ONE

    await place.damage(DIGEST, damaged)

    for _ in range(2):
        with pytest.raises(CatalogError, match="damaged") as caught:
            await store.get(DIGEST)
        assert not isinstance(caught.value, BlobMissingError)
        assert DIGEST in str(caught.value) and caught.value.fix


async def test_bytes_that_are_not_those_of_the_digest_or_too_large_are_refused(store: BlobStore) -> None:
    with pytest.raises(CatalogError, match="do not match"):
        await store.put(DIGEST, b"two\n")
    large = bytes(MAX_BLOB_BYTES + 1)
    with pytest.raises(CatalogError, match="larger than"):
        await store.put(digest_of(large), large)

    assert [batch async for batch in store.digests() if batch] == []


@pytest.mark.parametrize("name", NO_DIGESTS)
async def test_names_that_are_no_digests_are_refused_before_anything_is_asked(
    tmp_path: Path, name: str
) -> None:
    # Stores that cannot answer: the error is about the name all the same.
    (tmp_path / "file").touch()
    database = SqliteDatabase(tmp_path / "none", "", create=False)
    for store in (FolderBlobs(tmp_path / "file"), TableBlobs(database), S3Blobs("s3://no-such-bucket/x")):
        calls = (store.has([DIGEST, name]), store.put(name, ONE), store.get(name), store.remove([name]))
        for call in calls:
            with pytest.raises(CatalogError, match="not a digest"):
                await call


async def test_many_digests_are_looked_up_at_once(place: Place, store: BlobStore) -> None:
    wanted = [digest_of(b"%d" % number) for number in range(500 if place.environment else 5_000)]
    stored = wanted[::50]
    for number, digest in zip(range(0, len(wanted), 50), stored, strict=True):
        await store.put(digest, b"%d" % number)

    assert await store.has(wanted) == set(stored)
    assert await store.has(set(wanted)) == set(stored)


async def test_all_blobs_are_listed_in_bounded_batches(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (blobs, s3):
        monkeypatch.setattr(module, "_BATCH", 10)
    contents = [b"%d" % number for number in range(35)]
    for content in contents:
        await store.put(digest_of(content), content)

    batches = [batch async for batch in store.digests()]

    assert 0 < max(map(len, batches)) <= 10
    found = {blob.digest: blob.size for batch in batches for blob in batch}
    assert found == {digest_of(content): len(content) for content in contents}


PUT_MANY = """
import anyio, sys
from skillwire.catalog.blobs import open_blobs
from skillwire.catalog.database import open_database
from skillwire.core import digest_of

async def main():
    async with open_database(sys.argv[1]) as database, anyio.create_task_group() as group:
        store = open_blobs(sys.argv[2], database)
        for number in range(40):
            content = b"%d" % number * 10_000
            group.start_soon(store.put, digest_of(content), content)

anyio.run(main)
"""


async def test_several_processes_may_store_the_same_blobs_at_once(place: Place, store: BlobStore) -> None:
    processes = [run_script(place, PUT_MANY) for _ in range(4)]

    ended = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]

    assert [error[-700:] for error, _ in ended] == [""] * 4
    assert [code for _, code in ended] == [0] * 4
    contents = [b"%d" % number * 10_000 for number in range(40)]
    assert await store.has([digest_of(content) for content in contents]) == set(map(digest_of, contents))
    for content in contents:
        assert await store.get(digest_of(content)) == content
    assert sum([len(batch) async for batch in store.digests()]) == 40


# Folders


PUT_AND_DIE = """
import anyio, os, signal, sys
from pathlib import Path
from skillwire.catalog.blobs import FolderBlobs
from skillwire.core import digest_of

content = b"x" * 3_000_000
digest = digest_of(content)

def die_before(step):
    left = step
    def wrapped(function):
        def call(*arguments, **options):
            nonlocal left
            if arguments and arguments[0] in (1, 2):
                return function(*arguments, **options)
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if function is write:
                return write(arguments[0], arguments[1][:1_000_000])
            return function(*arguments, **options)
        return call
    write = os.write
    for name in ("mkdir", "open", "stat", "write", "fsync", "close", "rename", "utime"):
        setattr(os, name, wrapped(getattr(os, name)))

for step in range(1, 200):
    root = Path(sys.argv[1]) / str(step)
    child = os.fork()
    if child == 0:
        store = FolderBlobs(root)
        die_before(step)
        store._put(digest, content)
        os._exit(0)
    status = os.waitpid(child, 0)[1]

    async def look():
        store = FolderBlobs(root)
        has = digest in await store.has([digest])
        listed = [blob.size async for batch in store.digests() for blob in batch]
        whole = has and await store.get(digest) == content
        await store.put(digest, content)
        return has, listed, whole, await store.get(digest) == content

    print(step, os.WIFSIGNALED(status), *anyio.run(look), sep="|")
    if not os.WIFSIGNALED(status):
        break
"""


async def test_a_process_killed_at_any_step_leaves_nothing_or_the_whole_file(tmp_path: Path) -> None:
    process = run_script(Place(str(tmp_path), "folder"), PUT_AND_DIE)

    output, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (0, "")
    lines = [line.split("|", 1)[1] for line in output.splitlines()]
    assert lines[-1] == "False|True|[3000000]|True|True"
    killed = lines[:-1]
    assert len(killed) > 15
    assert set(killed) == {"True|False|[]|False|True", "True|True|[3000000]|True|True"}


async def test_what_killed_processes_left_is_removed_later(tmp_path: Path) -> None:
    store = FolderBlobs(tmp_path / "blobs")
    await store.put(DIGEST, ONE)
    old, young = tmp_path / "blobs" / "new" / "old", tmp_path / "blobs" / "new" / "young"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (1_000.0, 1_000.0))

    await store.remove([])

    assert not old.exists() and young.exists()
    assert await store.get(DIGEST) == ONE


async def test_storing_a_blob_again_renews_its_time(tmp_path: Path) -> None:
    store = FolderBlobs(tmp_path / "blobs")
    await store.put(DIGEST, ONE)
    [file] = (tmp_path / "blobs").glob("??/*")
    os.utime(file, (1_000.0, 1_000.0))

    await store.put(DIGEST, ONE)

    [[blob]] = [batch async for batch in store.digests()]
    assert time.time() - 60 < blob.at


async def test_files_and_folders_are_private(tmp_path: Path) -> None:
    store = FolderBlobs(tmp_path / "blobs")

    await store.put(DIGEST, ONE)

    modes = {path.is_dir(): oct(path.stat().st_mode & 0o777) for path in (tmp_path / "blobs").rglob("*")}
    assert modes == {True: "0o700", False: "0o600"}
    assert oct((tmp_path / "blobs").stat().st_mode & 0o777) == "0o700"


async def test_links_are_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    name = hashlib.sha256(ONE).hexdigest()
    (outside / name).write_bytes(ONE)
    linked_root, linked_shard, linked_file = (
        FolderBlobs(tmp_path / name) for name in ("root", "shard", "file")
    )
    (tmp_path / "root").symlink_to(outside)
    (tmp_path / "shard").mkdir()
    (tmp_path / "shard" / name[:2]).symlink_to(outside)
    (tmp_path / "file" / name[:2]).mkdir(parents=True)
    (tmp_path / "file" / name[:2] / name).symlink_to(outside / name)

    for store in (linked_root, linked_shard):
        for call in (store.has([DIGEST]), store.get(DIGEST), store.put(DIGEST, ONE), store.remove([DIGEST])):
            with pytest.raises(CatalogError, match="link"):
                await call
    assert await linked_file.has([DIGEST]) == set()
    with pytest.raises(CatalogError, match="link"):
        await linked_file.get(DIGEST)
    assert [batch async for batch in linked_file.digests() if batch] == []
    await linked_file.put(DIGEST, ONE)

    assert await linked_file.get(DIGEST) == ONE
    assert [path.name for path in outside.iterdir()] == [name]


async def test_the_folder_of_the_database_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = FolderBlobs(tmp_path / "link" / "blobs")

    await store.put(DIGEST, ONE)

    assert await FolderBlobs(tmp_path / "real" / "blobs").get(DIGEST) == ONE


async def test_a_folder_that_cannot_be_used_is_one_error_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "blobs").touch()

    with pytest.raises(CatalogError) as caught:
        await FolderBlobs(tmp_path / "blobs").check()

    assert str(tmp_path) not in str(caught.value) and caught.value.fix


# S3 and locations


@pytest.mark.parametrize("change", [{"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, {"bucket": "no-such-bucket"}])
async def test_a_bucket_that_cannot_be_used_is_an_error_without_secrets(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    for name, value in (request.getfixturevalue("s3") | change).items():
        monkeypatch.setenv(name, value)
    store = S3Blobs(f"s3://{change.get('bucket', 'files')}/x")

    for call in (store.check(), store.put(DIGEST, ONE), store.get(DIGEST)):
        with pytest.raises(CatalogError) as caught:
            await call
        assert not isinstance(caught.value, BlobMissingError)
        said = f"{caught.value} {caught.value.fix} {caught.value.__cause__}"
        assert "not-to-be-shown" not in said and "127.0.0.1" not in said
        assert change.get("bucket", "files") in said


@pytest.mark.parametrize("location", NO_LOCATIONS)
async def test_other_locations_are_refused(tmp_path: Path, location: str) -> None:
    with pytest.raises(CatalogError) as caught:
        open_blobs(location, SqliteDatabase(tmp_path / "none", "", create=False))

    assert "SECRET" not in f"{caught.value} {caught.value.fix}"


async def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "skillwire.catalog.s3", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)

    with pytest.raises(CatalogError) as caught:
        open_blobs("s3://bucket/x", SqliteDatabase(tmp_path / "none", "", create=False))

    assert "skillwire[s3]" in caught.value.fix
