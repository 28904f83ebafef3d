"""The search: whether it finds the right skill, beside plain indexes, and what a query costs.

Skills of `examples/`, of installed packages and of a folder of the caller's are
hidden among made-up ones that share their words. Queries are prompts written
for the examples, and parts of real skills: words of a description, headings of
a body. Half of the skills were used to choose the weights; only queries for
the other half are counted.
"""

import random
import re
import sqlite3
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, islice
from pathlib import Path
from statistics import median

from bench.rows import Row, limit_row
from skillwire.core import Frontmatter, SkillError, parse_skill_md
from skillwire.search.index import SearchIndex
from skillwire.search.ranking import Document

SEARCH_MS = 5.0
BUILD_SECONDS_PER_1_000 = 0.4
MAX_QUERY = 400
TOP = 10
EXAMPLES = Path(__file__).parents[1] / "examples" / "skills"

PROMPTS: Mapping[str, tuple[str, ...]] = {
    "accessible-html": (
        "a blind colleague cannot use our sign-up form, what is wrong with the markup?",
        "does this template work with the keyboard only",
        "check contrast and alternative texts of the landing page",
    ),
    "csv-insights": (
        "here is an export with 40,000 rows, what stands out?",
        "which columns of this table are empty or odd",
        "summarize the spreadsheet I attached",
    ),
    "incident-response": (
        "the shop is down since five minutes, help me coordinate",
        "production outage: who does what now",
        "write the postmortem of last night's downtime",
    ),
    "meeting-minutes": (
        "turn this transcript into decisions and action items",
        "who promised what in the call on Monday",
        "protocol of our weekly, please",
    ),
    "release-notes": (
        "we ship 2.4 tomorrow, tell users what changed since the last tag",
        "write a changelog from these commits",
        "what is new in this version, for customers",
    ),
    "sql-review": (
        "is this query going to lock the table",
        "review my sql before it runs in production",
        "why is this join slow and is the migration safe",
    ),
    "brand-assets": (
        "which logo and which colours do I use on a dark slide",
        "the press needs our logo as a file",
        "may I stretch the company logo",
    ),
}

_WORD = re.compile(r"[^\W\d_][\w+.-]+")
_HEADING = re.compile(r"^#{2,6} +(.+)$", re.MULTILINE)
_SAMPLED_WORDS = 5
_SAMPLED_HEADINGS = 3

Rank = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class RealSkill:
    """A skill of a file: the texts that are indexed."""

    name: str
    frontmatter: Frontmatter
    body: str


def measure_search(skills: int, corpus: Path | None) -> list[Row]:
    real = dict(_real_skills([EXAMPLES, Path(sysconfig.get_path("purelib")), *([corpus] if corpus else [])]))
    everything = {**_made_up(skills - len(real), real), **real}
    documents = {
        key: Document(skill.name, skill.name, skill.frontmatter, "1") for key, skill in everything.items()
    }
    index = SearchIndex()
    used = time.thread_time()
    index.update(object(), lambda: documents, lambda key: everything[key].body)
    built = (time.thread_time() - used) / len(everything) * 1000
    plain, with_body = _fts(everything, has_body=False), _fts(everything, has_body=True)
    rankings: dict[str, Rank] = {"plain": plain, "fused": _fused(plain, with_body), "ours": _ours(index)}
    rows = [row for name, queries in _sets(real).items() for row in _quality(name, queries, rankings)]
    rows.append(
        Row(
            "index build, CPU per 1,000 skills",
            f"{built:.2f} s",
            "",
            None,
            f"{BUILD_SECONDS_PER_1_000} s",
            built <= BUILD_SECONDS_PER_1_000,
        )
    )
    return rows


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


def _sets(real: Mapping[str, RealSkill]) -> dict[str, list[tuple[str, str]]]:
    chance = random.Random(0)
    prompts = [(prompt, name) for name, written in PROMPTS.items() for prompt in written]
    words: list[tuple[str, str]] = []
    headings: list[tuple[str, str]] = []
    for key, skill in real.items():
        if not _is_held_back(key):
            continue
        described = _WORD.findall(skill.frontmatter.description)
        if len(described) > 2 * _SAMPLED_WORDS:
            words.append((" ".join(chance.sample(described, _SAMPLED_WORDS)), key))
        parts = _HEADING.findall(skill.body)
        if len(parts) > _SAMPLED_HEADINGS:
            headings.append((" ".join(chance.sample(parts, _SAMPLED_HEADINGS)), key))
    return {"prompts for the examples": prompts, "words of a description": words, "headings": headings}


def _is_held_back(key: str) -> bool:
    return sha256(key.encode()).digest()[0] % 2 == 1


def _real_skills(folders: Sequence[Path]) -> Iterator[tuple[str, RealSkill]]:
    for folder in folders:
        for path in sorted(folder.rglob("SKILL.md")):
            try:
                parsed = parse_skill_md(path.read_bytes())
            except SkillError:
                continue
            frontmatter = parsed.frontmatter
            if frontmatter.name and frontmatter.description:
                yield frontmatter.name, RealSkill(frontmatter.name, frontmatter, parsed.body)


def _made_up(count: int, real: Mapping[str, RealSkill]) -> dict[str, RealSkill]:
    """Make skills of the words of real ones, each word as often as there."""
    chance = random.Random(1)
    described = [word for skill in real.values() for word in _WORD.findall(skill.frontmatter.description)]
    written = [word for skill in real.values() for word in _WORD.findall(skill.body)]
    rarer = [*accumulate(1 / (number + 1) for number in range(1_000))]
    made: dict[str, RealSkill] = {}
    for number in range(max(count, 0)):
        [rare] = chance.choices(range(1_000), cum_weights=rarer)
        name = f"case-{number:05d}"
        text = " ".join(chance.choices(described, k=25)) + f" topic{rare}"
        fields = {"name": name, "description": text}
        made[name] = RealSkill(name, Frontmatter(fields), " ".join(chance.choices(written, k=400)))
    return made


def _ours(index: SearchIndex) -> Rank:
    return lambda query: [key for key, _ in islice(index.rank(query), TOP)]


def _fts(skills: Mapping[str, RealSkill], *, has_body: bool) -> Rank:
    """Return a ranking by FTS5 with its default weights over name and description, and perhaps the body."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE VIRTUAL TABLE plain USING fts5(key UNINDEXED, text, tokenize='porter unicode61')"
    )
    for key, skill in skills.items():
        text = f"{skill.name} {skill.frontmatter.description}" + (f" {skill.body}" if has_body else "")
        database.execute("INSERT INTO plain VALUES (?, ?)", (key, text))

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
