"""Searching a catalog: one index that follows its revisions, in which a caller finds what it may see."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.catalog.model import COLUMNS, FOREVER
from skillwire.catalog.schema import VERSIONS
from skillwire.core import Frontmatter, Manifest, ManifestFile, SkillEntry, SkillUri, SourceError, digest_of
from skillwire.search import index as index_module
from skillwire.search import lookup
from skillwire.search import scores as scores_module
from skillwire.search.index import SearchIndex
from skillwire.search.lookup import SearchArea
from skillwire.server import index_updates
from skillwire.server.index_updates import document_of
from skillwire.server.search import Filters, ServerSearch, SkillSearchPage
from skillwire.sources.combined import CombinedSource
from skillwire.sources.snapshot import SnapshotSource
from skillwire.sources.stored import READ_INDEX, SkillsFile, StoredSnapshot
from skillwire.wire.core import write_entry

Skills = Mapping[str, tuple[str, str]]
"""The descriptions and bodies of skills by path."""

_INTEGER = {"integer": "INTEGER", "real": "REAL", "blob": "BLOB", "text": "TEXT"}


class Shelf(SnapshotSource):
    """A catalog in a SQLite file, changed in place."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self.file = SkillsFile(self.database)
        self.revision = 0
        self.bodies: dict[str, str] = {}
        self.reads: list[str] = []
        self.unreadable: set[str] = set()
        self.held = ""
        self.released = anyio.Event()
        if not self.database.execute("PRAGMA table_info(versions)").fetchall():
            self.database.execute(VERSIONS.format(**_INTEGER))
            self.database.execute(READ_INDEX)
        self.show()

    def close(self) -> None:
        self.database.close()

    @property
    def stored(self) -> StoredSnapshot:
        assert isinstance(self.snapshot, StoredSnapshot)
        return self.snapshot

    def show(self) -> None:
        number = 1 if self._snapshot is None else self._snapshot.revision + 1
        self._replace_snapshot(replace(StoredSnapshot.at(self.file, self.revision), revision=number))

    def publish(self, skills: Skills, removed: Iterable[str] = ()) -> None:
        """Make one revision."""
        self.revision += 1
        self.database.execute("BEGIN")
        for path in [*skills, *removed]:
            self.database.execute(
                "UPDATE versions SET until = ? WHERE uri = ? AND until = ?",
                (self.revision, SkillUri.build(path).text, FOREVER),
            )
        for path, (description, body) in skills.items():
            one = entry(path, description, body)
            self.bodies[one.uri.text] = body
            written = write_entry(one)
            row = (one.uri.text, self.revision, FOREVER, "", one.name, written, digest_of(written), "{}")
            row += (None, 1, 0, 0, "", "")
            self.database.execute(f"INSERT INTO versions ({COLUMNS}) VALUES ({', '.join('?' * 14)})", row)
        self.database.execute("COMMIT")
        self.show()

    def read_now(self, entry: SkillEntry, line: ManifestFile) -> bytes | None:
        return None

    async def read_file(self, uri: str) -> bytes:
        self.reads.append(SkillUri(uri).path)
        if uri == self.held:
            await self.released.wait()
        if uri in self.unreadable:
            raise SourceError("the store is away")
        return f"---\nname: x\ndescription: y\n---\n{self.bodies.get(uri, '')}".encode()


def entry(path: str, description: str, body: str = "", *, scripts: bool = False) -> SkillEntry:
    uri = SkillUri.build(path)
    files = {"SKILL.md": body, **({"scripts/run.py": ""} if scripts or path.startswith("run") else {})}
    lines = [ManifestFile.of(f"{uri.root}/{name}", text.encode()) for name, text in files.items()]
    return SkillEntry(uri, Frontmatter({"name": uri.name, "description": description}), Manifest.of(lines))


@asynccontextmanager
async def searching(shelf: Shelf, file: Path | None = None) -> AsyncGenerator[ServerSearch]:
    """Search a catalog whose bodies are at hand only later."""

    async def read(skill: SkillEntry) -> str | None:
        try:
            return (await shelf.read_file(skill.uri.text)).decode().split("---\n")[2]
        except SourceError:
            return None

    search = ServerSearch(lambda _: None)
    async with CombinedSource([shelf]) as source, anyio.create_task_group() as group:
        search.use_file(file)
        group.start_soon(search.updates(source, read).run)
        try:
            yield search
        finally:
            group.cancel_scope.cancel()
    search.close()


async def indexed(shelf: Shelf, search: ServerSearch) -> StoredSnapshot:
    """Wait until the index has the newest revision."""
    await anyio.wait_all_tasks_blocked()  # Until a change has reached the search.
    await until(search, shelf, lambda page: page.is_complete)
    return shelf.stored


async def until(
    search: ServerSearch, shelf: Shelf, is_right: Callable[[SkillSearchPage], bool], query: str = "nothing"
) -> SkillSearchPage:
    """Search until the answer is right."""
    with anyio.fail_after(60):
        while True:
            page = await search.find(shelf.stored, query)
            if is_right(page):
                return page
            await anyio.sleep(0.01)


def paths(page: SkillSearchPage) -> list[str]:
    return [match.entry.uri.path for match in page.matches]


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    with closing(Shelf(tmp_path / "skills.db")) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "index" / "it"


SHOP = {
    "acme/refunds": ("Pays customers back.", "Ask for a photo."),
    "acme/returns/labels": ("Prints labels for customers.", "Use the printer."),
    "run/menu": ("Writes menus for customers.", "Use the kitchen."),
    "tea": ("Boils water.", "Use a kettle."),
}


async def test_words_of_entries_and_bodies_are_found(shelf: Shelf) -> None:
    shelf.publish(SHOP)
    async with searching(shelf) as search:
        for query, expected in {"water": ["tea"], "kettle": ["tea"], "photos": ["acme/refunds"]}.items():
            page = await search.find(shelf.stored, query)
            assert (paths(page), page.total, page.is_complete) == (expected, 1, True)


async def test_a_publication_is_found_at_once_and_reads_one_body(shelf: Shelf) -> None:
    shelf.publish(SHOP)
    async with searching(shelf) as search:
        await indexed(shelf, search)
        shelf.reads.clear()

        shelf.publish({"milk": ("Comes from cows.", "Use a bucket.")}, removed=["tea"])
        await anyio.wait_all_tasks_blocked()

        assert paths(await search.find(shelf.stored, "buckets")) == ["milk"]
        assert paths(await search.find(shelf.stored, "kettle")) == []
        assert shelf.reads == ["milk"]


async def test_a_restart_reads_only_what_changed(shelf: Shelf, file: Path) -> None:
    shelf.publish(SHOP)
    async with searching(shelf, file) as search:
        await indexed(shelf, search)
    assert len(shelf.reads) == len(SHOP)
    shelf.reads.clear()
    shelf.publish({"milk": ("Comes from cows.", ""), "tea": ("Boils water.", "Use a pot.")}, ["run/menu"])

    async with searching(shelf, file) as search:
        await indexed(shelf, search)
        assert sorted(shelf.reads) == ["milk", "tea"]
        assert paths(await search.find(shelf.stored, "pot")) == ["tea"]
        assert paths(await search.find(shelf.stored, "kettle menus")) == []


async def test_a_catalog_that_forgot_what_is_gone_or_is_older_is_compared(shelf: Shelf, file: Path) -> None:
    shelf.publish(SHOP)
    async with searching(shelf, file) as search:
        await indexed(shelf, search)
    shelf.publish({"milk": ("Comes from cows.", "")}, removed=["tea"])
    shelf.database.execute("DELETE FROM versions WHERE until < ?", (FOREVER,))

    async with searching(shelf, file) as search:
        await indexed(shelf, search)
        assert paths(await search.find(shelf.stored, "water cows")) == ["milk"]
        shelf.reads.clear()
        shelf.publish({}, removed=["milk"])
        await anyio.wait_all_tasks_blocked()
        assert paths(await search.find(shelf.stored, "water cows")) == []
        # A backup of the first revision is restored.
        shelf.database.execute("DELETE FROM versions WHERE uri = 'skill://milk/SKILL.md'")
        shelf.publish({"tea": SHOP["tea"]})
        shelf.database.execute("UPDATE versions SET since = 1")
        shelf.revision = 1
        shelf.show()
        await anyio.wait_all_tasks_blocked()
        assert paths(await search.find(shelf.stored, "water cows")) == ["tea"]
        assert shelf.reads == ["tea"]


async def test_a_body_that_cannot_be_read_is_read_later(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_updates, "RETRY_SECONDS", 0.02)
    shelf.publish(SHOP)
    shelf.unreadable = {"skill://tea/SKILL.md"}
    async with searching(shelf) as search:
        assert paths(await search.find(shelf.stored, "water")) == ["tea"]
        assert paths(await search.find(shelf.stored, "kettle")) == []

        shelf.unreadable = set()

        assert await until(search, shelf, lambda page: page.total == 1, "kettle")


async def test_a_skill_whose_body_could_not_be_read_is_gone_when_it_is_removed(shelf: Shelf) -> None:
    shelf.publish(SHOP)
    shelf.unreadable = {"skill://tea/SKILL.md"}
    async with searching(shelf) as search:
        assert (await search.find(shelf.stored, "water")).total == 1

        shelf.publish({}, removed=["tea"])
        await anyio.wait_all_tasks_blocked()

        assert (await search.find(shelf.stored, "water")).total == 0


async def test_while_the_store_of_bodies_is_away_it_is_asked_little_and_later_all_are_read(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_updates, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(index_updates, "_CHUNK", 2)
    shelf.publish({f"tea-{number}": ("Boils water.", "Use a kettle.") for number in range(20)})
    shelf.unreadable = {entry.uri.text for entry in shelf.stored.entries}
    async with searching(shelf) as search:
        assert (await search.find(shelf.stored, "water")).total == 20
        assert len(shelf.reads) < 10

        shelf.unreadable = set()

        await until(search, shelf, lambda page: page.total == 20, "kettle")


async def test_while_much_is_indexed_the_answer_says_that_it_is_not_complete(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_updates, "_FEW_CHANGES", 5)
    monkeypatch.setattr(index_updates, "_CHUNK", 4)
    monkeypatch.setattr(index_updates, "_MOST_WORDS", 1)
    shelf.publish({f"tea-{number}": ("Boils water.", "") for number in range(12)})
    shelf.held = "skill://tea-8/SKILL.md"
    async with searching(shelf) as search:
        pages = [await search.find(shelf.stored, "water") for _ in range(2)]
        page = await until(search, shelf, lambda page: page.total > 0, "water")
        shelf.released.set()

        assert not any(one.is_complete for one in [*pages, page])
        assert 0 < page.total < 12
        await indexed(shelf, search)
        assert (await search.find(shelf.stored, "water")).total == 12


async def test_a_broken_index_is_built_again(
    shelf: Shelf, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_updates, "RETRY_SECONDS", 0.05)
    shelf.publish(SHOP)
    async with searching(shelf, file) as search:
        await indexed(shelf, search)
        search._index.open().execute("DROP TABLE weights")  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(SourceError):
            await search.find(shelf.stored, "water")
        monkeypatch.setattr(search, "_retry_at", 0.0)

        await indexed(shelf, search)
        assert paths(await search.find(shelf.stored, "water")) == ["tea"]


# Views


async def test_a_view_finds_only_its_own(shelf: Shelf) -> None:
    others = {f"other/skill-{number}": ("Pays customers. Knows kubernetes.", "") for number in range(30)}
    shelf.publish({**SHOP, **others})
    async with searching(shelf) as search:
        await indexed(shelf, search)
        view = shelf.stored.visible(["skill://acme"], 1)

        page = await search.find(view, "customers", limit=1)
        assert (paths(page), page.total) == (["acme/refunds"], 2)
        after = await search.find(view, "customers", limit=9, cursor=page.cursor)
        assert (paths(after), after.total, after.cursor) == (["acme/returns/labels"], 2, None)
        for query in ("kubernetes", "kubernets", "kuber", "skill-7", "water"):
            assert await search.find(view, query) == SkillSearchPage((), 0, None)
        # Another skill that has the word as it is written does not matter.
        shelf.publish({"other/typo": ("Knows refnds.", "")})
        await anyio.wait_all_tasks_blocked()
        assert paths(await search.find(shelf.stored.visible(["skill://acme"], 2), "refnds")) == [
            "acme/refunds"
        ]


async def test_filters_are_within_the_view(shelf: Shelf) -> None:
    shelf.publish(SHOP)
    async with searching(shelf) as search:
        await indexed(shelf, search)
        view = shelf.stored.visible(["skill://acme", "skill://run"], 1)

        for filters, expected in (
            (Filters("acme/returns"), ["acme/returns/labels"]),
            (Filters("run"), ["run/menu"]),
            (Filters("tea"), []),
            (Filters("other"), []),
            (Filters(has_scripts=True), ["run/menu"]),
            (Filters(has_scripts=False), ["acme/refunds", "acme/returns/labels"]),
            (Filters("acme/refunds", has_scripts=True), []),
        ):
            page = await search.find(view, "customers water", filters=filters)
            assert (sorted(paths(page)), page.total) == (expected, len(expected))


# Properties


NAMES = st.sampled_from(["a/tea", "a/coffee", "b/cocoa", "b/water-tea", "run/milk", "beans", "a/c/cups"])
TEXTS = st.sampled_from(["Boils water.", "Boils milk and water.", "Grinds beans.", "日本のお茶", "Tea, tea."])
STATES = st.dictionaries(NAMES, st.tuples(TEXTS, TEXTS), max_size=6)
QUERIES = ("tea water", "boil", "milk beans", "お茶", "waetr", "te")


def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the limits of frequent words, and of what is written at once, so low that few skills reach them."""
    for module in (scores_module, index_module, lookup):
        monkeypatch.setattr(module, "MOST_RANKED", 2)
    for module in (scores_module, index_module):
        monkeypatch.setattr(module, "SMALL_SET", 1)
    monkeypatch.setattr(index_module, "MOST_STORED", 3)
    monkeypatch.setattr(scores_module, "MOST_SCORED", 6)
    monkeypatch.setattr(index_updates, "_CHUNK", 2)
    monkeypatch.setattr(index_updates, "_MOST_WORDS", 6)
    monkeypatch.setattr(index_updates, "_MOST_CHANGES", 4)


async def answers(search: ServerSearch, shelf: Shelf) -> list[SkillSearchPage]:
    snapshot = await indexed(shelf, search)
    views = (snapshot, snapshot.visible(["skill://a"], 1), snapshot.visible(["skill://b", "skill://run"], 1))
    return [await search.find(view, query) for view in views for query in QUERIES]


@settings(max_examples=12, deadline=None)
@given(histories=st.lists(st.tuples(STATES, st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_after_any_history_the_index_answers_as_a_new_one(
    histories: Sequence[tuple[Skills, bool, bool]],
) -> None:
    """A history is of states, and whether the process restarts and the catalog forgets what is gone."""

    async def compare(folder: Path) -> None:
        with closing(Shelf(folder / "skills.db")) as shelf:
            stack = AsyncExitStack()
            search = await stack.enter_async_context(searching(shelf, folder / "index"))
            before: Skills = {}
            for state, restarts, forgets in histories:
                changed = {path: texts for path, texts in state.items() if before.get(path) != texts}
                if restarts:
                    await stack.aclose()
                shelf.publish(changed, before.keys() - state.keys())
                if restarts:
                    if forgets:
                        shelf.database.execute("DELETE FROM versions WHERE until < ?", (FOREVER,))
                    search = await stack.enter_async_context(searching(shelf, folder / "index"))
                before = state
                async with searching(shelf) as fresh:
                    assert await answers(search, shelf) == await answers(fresh, shelf)
            await stack.aclose()

    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as folder:
        limit(monkeypatch)
        anyio.run(compare, Path(folder))


@settings(max_examples=80, deadline=None)
@given(documents=st.dictionaries(NAMES, TEXTS), later=st.dictionaries(NAMES, TEXTS, max_size=2))
def test_the_order_in_an_area_is_that_of_an_index_without_the_others(
    documents: Mapping[str, str], later: Mapping[str, str]
) -> None:
    area = SearchArea((("a/", "a0"), ("run/", "")), (("run/milk", "run/milk\x01"),))

    def made(texts: Mapping[str, str]) -> SearchIndex:
        index = SearchIndex()
        update(index, texts)
        return index

    def update(index: SearchIndex, texts: Mapping[str, str]) -> None:
        found = {path: document_of(entry(path, text)) for path, text in texts.items()}
        index.update(object(), lambda: found)

    with pytest.MonkeyPatch.context() as monkeypatch:
        limit(monkeypatch)
        with closing(made(documents)) as index:
            for state in (documents, {**documents, **later}):
                update(index, state)
                inside = {path: text for path, text in state.items() if area.includes(path)}
                with closing(made(inside)) as own:
                    # With one word, the rarity of words does not matter.
                    for query in ("tea", "water", "boiling", "お茶", "waetr", "bea"):
                        found, expected = index.rank(query, area=area), own.rank(query)
                        assert [key for key, _ in found] == [key for key, _ in expected]
                        assert (found.total, found.words) == (expected.total, expected.words)


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_a_process_that_is_killed_during_an_update_leaves_what_the_next_one_continues(
    shelf: Shelf, file: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    limit(monkeypatch)
    shelf.publish({f"tea-{number}": ("Boils water.", f"Pot {number}.") for number in range(9)})

    async def build() -> None:
        async with searching(shelf, file) as search:
            await indexed(shelf, search)

    pid = os.fork()
    if pid == 0:
        done = 0
        merge = SearchIndex._merge  # pyright: ignore[reportPrivateUsage]

        def killed(*arguments: object) -> None:
            nonlocal done
            merge(*arguments)  # pyright: ignore[reportArgumentType]
            done += 1
            if done > writes:
                os._exit(1)

        monkeypatch.setattr(SearchIndex, "_merge", killed)
        anyio.run(build)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] >> 8 == 1

    async def compare() -> None:
        async with searching(shelf, file) as search, searching(shelf) as fresh:
            shelf.reads.clear()
            found = await answers(search, shelf)
            assert len(shelf.reads) <= 9 - 2 * writes
            assert found == await answers(fresh, shelf)

    anyio.run(compare)


_SKILLS = 20_000
_MANY = """
import re, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import anyio
from test_catalog_search import Shelf, indexed, searching

def peak() -> int:
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

async def build() -> None:
    shelf = Shelf(Path(sys.argv[1], "skills.db"))
    shelf.revision = 1
    shelf.show()
    before = peak()
    async with searching(shelf, Path(sys.argv[1], "index")) as search:
        await indexed(shelf, search)
        found = await search.find(shelf.stored, "water 12345")
        assert found.total == len(shelf.stored.stored), found
    print(peak() - before)

anyio.run(build)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_memory_of_an_update_does_not_grow_with_the_entries(shelf: Shelf, tmp_path: Path) -> None:
    filler = "-" * 5000
    shelf.publish({f"tea-{number}": (f"{number} boils water {filler}", "") for number in range(_SKILLS)})

    places = [str(Path(__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", _MANY, str(tmp_path), *places], capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    # All entries take 150 MiB.
    assert int(done.stdout) < 75
