"""The search: whether it finds the right skill, beside plain indexes, and what it costs.

What is searched: the skills of `examples/` and of installed packages, and, in
their form, installed packages of Python and npm with their read-me files, and
modules and classes of Python with their documentation. Queries are prompts
written for the skills; and parts of texts, from which the text is to be found:
words of a description, one of them misspelled, a question with a whole
paragraph, and headings of a body.

One half of the texts and prompts was used to choose the weights. What is
reported is measured on the other half.
"""

import ast
import importlib.metadata
import json
import random
import re
import sqlite3
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from statistics import median

from bench.rows import Row, limit_row, ratio_row
from skillwire.core import Frontmatter, SkillError, parse_skill_md
from skillwire.search.index import SearchIndex
from skillwire.search.scores import MAX_BODY, Document

SEARCH_MS = 5.0
BUILD_MS_PER_1_000 = 400.0
RESTART_SHARE = 0.1
MAX_QUERY = 400
TOP = 10
ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NODE_MODULES = ROOT / "tests" / "interop" / "node_modules"
PROMPTS = Path(__file__).with_name("prompts.json")

_WORD = re.compile(r"[^\W\d_][\w+.-]+")
_HEADING = re.compile(r"^#{2,6} +(.+)$", re.MULTILINE)
_PARAGRAPH = re.compile(r"^[A-Z][^\n]+(?:\n[^\s#>|`*-][^\n]*)*", re.MULTILINE)
_SAMPLED_WORDS = 5
_SAMPLED_HEADINGS = 3
_MIN_WORDS = 8
_MIN_PARAGRAPH = 150
_QUERIES = 150

Rank = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class Text:
    """A skill, or what is indexed like one."""

    name: str
    frontmatter: Frontmatter
    body: str


def measure_search(count: int, corpus: Path | None, *, tunes: bool = False) -> list[Row]:
    """Measure the search on the half of the queries that is held back, or with `tunes` on the other."""
    texts, sets = texts_and_queries(count, corpus, tunes=tunes)
    plain, with_body = _fts(texts, has_body=False), _fts(texts, has_body=True)
    rankings: dict[str, Rank] = {"plain": plain, "fused": _fused(plain, with_body)}
    with tempfile.TemporaryDirectory(prefix="skillwire-search-") as folder:
        index, rows = _built_twice(Path(folder, "index"), texts)
        with closing(index):
            rankings["ours"] = _ours(index)
            for name, queries in sets.items():
                rows += _quality(name, queries, rankings)
    return rows


def texts_and_queries(
    count: int, corpus: Path | None = None, *, tunes: bool = False
) -> tuple[dict[str, Text], dict[str, list[tuple[str, str]]]]:
    """Return texts by name, and sets of queries with the names of the texts to be found."""
    skills = dict(
        _skills([EXAMPLES, Path(sysconfig.get_path("purelib")), NODE_MODULES, *([corpus] if corpus else [])])
    )
    packages = {**dict(_npm_packages()), **dict(_python_packages()), **skills}
    texts = dict(islice({**packages, **dict(_documented(count))}.items(), count))
    return texts, {"prompts": _prompts(skills, tunes=tunes), **_known_items(texts, packages, tunes=tunes)}


def _built_twice(file: Path, texts: Mapping[str, Text]) -> tuple[SearchIndex, list[Row]]:
    """Return an index that continues with the file of another, and what both took."""
    documents = {key: Document(text.name, text.name, text.frontmatter, "1") for key, text in texts.items()}
    times: list[float] = []
    bodies = {key: text.body for key, text in texts.items()}
    for body in (bodies.__getitem__, _unread):
        used = time.thread_time()
        index = SearchIndex(file)
        index.update(object(), lambda: documents, body)
        index.rank("which skill reviews a migration")
        times.append((time.thread_time() - used) * 1000)
        if body is not _unread:
            index.close()
    built, restarted = times
    return index, [
        limit_row("index build, CPU per 1,000 skills", built / len(texts) * 1000, "ms", BUILD_MS_PER_1_000),
        ratio_row("first search after a restart", [restarted], "build", [built], RESTART_SHARE, "ms"),
    ]


def _unread(_key: str) -> str:
    raise AssertionError("no body is read again")


def _quality(name: str, queries: Sequence[tuple[str, str]], rankings: Mapping[str, Rank]) -> Iterator[Row]:
    results = {who: _scores(rank, queries) for who, rank in rankings.items()}
    ours, fused, plain = results["ours"], results["fused"], results["plain"]
    for number, measure in enumerate(("H@1", f"H@{TOP}", f"MRR@{TOP}")):
        yield Row(
            f"{name}: {measure} of {len(queries)} queries",
            f"{ours[number]:.3f}",
            f"fused {fused[number]:.3f}, plain {plain[number]:.3f}",
            None,
            ">= fused" if measure == f"H@{TOP}" else "",
            measure != f"H@{TOP}" or ours[number] >= fused[number],
        )
    yield limit_row(f"{name}: CPU of a query, p50", ours[3] * 1000, "ms", SEARCH_MS)


def _scores(rank: Rank, queries: Sequence[tuple[str, str]]) -> tuple[float, float, float, float]:
    """Return H@1, H@10, MRR@10 and the median of the CPU seconds of one query."""
    positions: list[int] = []
    costs: list[float] = []
    for query, key in queries:
        used = time.thread_time()
        found = rank(query[:MAX_QUERY])[:TOP]
        costs.append(time.thread_time() - used)
        positions.append(found.index(key) + 1 if key in found else 0)
    count = max(len(queries), 1)
    hits = [position for position in positions if position]
    first = sum(position == 1 for position in hits)
    reciprocal = sum(1 / position for position in hits)
    return first / count, len(hits) / count, reciprocal / count, median(costs or [0.0])


# Queries


def _prompts(skills: Mapping[str, Text], *, tunes: bool) -> list[tuple[str, str]]:
    """Return prompts with the skills that they are written for."""
    written: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(PROMPTS.read_text("utf-8"))
    half = written["tuning" if tunes else "held back"]
    return [(prompt, name) for name, prompts in half.items() for prompt in prompts if name in skills]


def _known_items(
    texts: Mapping[str, Text], packages: Mapping[str, Text], *, tunes: bool
) -> dict[str, list[tuple[str, str]]]:
    """Return queries that are parts of texts: of all skills and packages, and of some documentation."""
    chance = random.Random(0)
    keys = [key for key in texts if _is_held_back(key) != tunes]
    chosen = [key for key in keys if key in packages]
    chosen += chance.sample(
        [key for key in keys if key not in packages], min(len(keys) - len(chosen), 2 * len(chosen))
    )
    words: list[tuple[str, str]] = []
    misspelled: list[tuple[str, str]] = []
    paragraphs: list[tuple[str, str]] = []
    headings: list[tuple[str, str]] = []
    for key in chosen:
        text = texts[key]
        described = [word for word in _WORD.findall(text.frontmatter.description) if len(word) > 2]
        if len(described) > 2 * _SAMPLED_WORDS:
            sample = chance.sample(described, _SAMPLED_WORDS)
            words.append((" ".join(sample), key))
            longest = max(sample, key=len)
            misspelled.append(
                (" ".join(_misspelled(word, chance) if word is longest else word for word in sample), key)
            )
        if parts := [
            part for part in _PARAGRAPH.findall(text.body[:MAX_BODY]) if len(part) >= _MIN_PARAGRAPH
        ]:
            paragraphs.append((" ".join(chance.choice(parts).split()), key))
        if len(parts := _HEADING.findall(text.body[:MAX_BODY])) > _SAMPLED_HEADINGS:
            headings.append((" ".join(chance.sample(parts, _SAMPLED_HEADINGS)), key))
    sets = {
        "words of a description": words,
        "the same, misspelled": misspelled,
        "a paragraph": paragraphs,
        "headings": headings,
    }
    return {name: chance.sample(queries, min(len(queries), _QUERIES)) for name, queries in sets.items()}


def _misspelled(word: str, chance: random.Random) -> str:
    """Return a word with two neighbours swapped behind its first letters."""
    if len(word) < 5:
        return word
    place = chance.randrange(2, len(word) - 1)
    return f"{word[:place]}{word[place + 1]}{word[place]}{word[place + 2 :]}"


def _is_held_back(key: str) -> bool:
    return sha256(key.encode()).digest()[0] % 2 == 1


# Texts


def _skills(folders: Sequence[Path]) -> Iterator[tuple[str, Text]]:
    for folder in folders:
        for path in sorted(folder.rglob("SKILL.md")):
            try:
                parsed = parse_skill_md(path.read_bytes())
            except SkillError:
                continue
            frontmatter = parsed.frontmatter
            if frontmatter.name and frontmatter.description:
                yield frontmatter.name, Text(frontmatter.name, frontmatter, parsed.body)


def _npm_packages() -> Iterator[tuple[str, Text]]:
    for path in sorted([*NODE_MODULES.glob("*/package.json"), *NODE_MODULES.glob("@*/*/package.json")]):
        package = json.loads(path.read_bytes())
        read_me = next(
            (each for each in sorted(path.parent.glob("*.md")) if each.stem.lower() == "readme"), None
        )
        if read_me is not None and package.get("description"):
            yield _named(package["name"], package["description"], read_me.read_text("utf-8", "replace"))


def _python_packages() -> Iterator[tuple[str, Text]]:
    for package in sorted(importlib.metadata.distributions(), key=lambda each: each.name):
        about = package.metadata.json
        summary, body = about.get("summary"), about.get("description")
        if isinstance(summary, str) and isinstance(body, str):
            yield _named(package.name, summary, body)


def _documented(count: int) -> Iterator[tuple[str, Text]]:
    """Yield modules, classes and functions of Python with their documentation and source."""
    found = 0
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for path in sorted(Path(folder).rglob("*.py")):
            if {"site-packages", "test", "tests", "__pycache__"} & set(path.relative_to(folder).parts):
                continue
            for item in _documented_in(path):
                found += 1
                yield item
            if found >= 2 * count:
                return


def _documented_in(path: Path) -> Iterator[tuple[str, Text]]:
    try:
        source = path.read_text("utf-8")
        tree = ast.parse(source)
    except (ValueError, SyntaxError):
        return
    lines = source.splitlines()
    if text := ast.get_docstring(tree):
        if len(text.split()) >= _MIN_WORDS:
            yield _named(f"{path.parent.name}-{path.stem}", *_parts(text, tree.body))
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (
            text := ast.get_docstring(node)
        ):
            if len(text.split()) >= _MIN_WORDS:
                first, rest = _parts(text, node.body if isinstance(node, ast.ClassDef) else ())
                code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                yield _named(f"{path.stem}-{node.name}", first, f"{rest}\n\n```python\n{code}\n```")


def _parts(text: str, members: Sequence[ast.stmt]) -> tuple[str, str]:
    """Return the first paragraph of a documentation, and the rest with sections for members."""
    first, _, rest = text.partition("\n\n")
    sections = [
        f"## {node.name}\n\n{ast.get_docstring(node) or ''}"
        for node in members
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name[0] != "_"
    ]
    return " ".join(first.split()), "\n\n".join([rest, *sections])


def _named(name: str, description: str, body: str) -> tuple[str, Text]:
    name = "-".join(re.findall("[a-z0-9]+", name.lower()))
    return name, Text(name, Frontmatter({"name": name, "description": description}), body)


# Rankings


def _ours(index: SearchIndex) -> Rank:
    return lambda query: [key for key, _ in islice(index.rank(query), TOP)]


def _fts(texts: Mapping[str, Text], *, has_body: bool) -> Rank:
    """Return a ranking by FTS5 with its default weights over name and description, and perhaps the body."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE VIRTUAL TABLE plain USING fts5(key UNINDEXED, text, tokenize='porter unicode61')"
    )
    for key, text in texts.items():
        searched = f"{text.name} {text.frontmatter.description}" + (f" {text.body}" if has_body else "")
        database.execute("INSERT INTO plain VALUES (?, ?)", (key, searched))

    def rank(query: str) -> list[str]:
        expression = " OR ".join(f'"{word}"' for word in dict.fromkeys(re.findall(r"\w+", query.lower())))
        found = database.execute(
            "SELECT key FROM plain WHERE plain MATCH ? ORDER BY rank LIMIT 100", (expression,)
        )
        return [key for (key,) in found]

    return rank


def _fused(*rankings: Rank) -> Rank:
    """Return the fusion by reciprocal rank of other rankings."""

    def rank(query: str) -> list[str]:
        scores: dict[str, float] = {}
        for each in rankings:
            for position, key in enumerate(each(query), start=1):
                scores[key] = scores.get(key, 0.0) + 1 / (60 + position)
        return sorted(scores, key=lambda key: -scores[key])

    return rank
