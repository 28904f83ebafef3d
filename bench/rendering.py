"""The budget of the list of skills: what it costs to render, and to find out what changed since."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import median

from bench.messages import WrongAnswerError
from bench.rows import Row, median_ratio
from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.host.listing.render import FrozenListing, RenderedListing, render
from skillwire.host.listing.text import ListingForm
from skillwire.host.model.origin import KnownSkill, Origin, OriginKind, SkillId
from skillwire.host.model.show_rules import ShowRule, ShowRules

ROUNDS = 15
BUDGET_SECONDS = 0.05
BUDGET_TOKENS = 4_000
SERVERS = 20
FLOOR = "sort, look at each, join"
LENGTHS = (200, 1_000)
_WORDS = (
    "handles checks refunds orders figures sources requests deploys databases migrations reviews invoices "
    "tickets reports customers contracts when the user asks about for and with before after"
).split()


def measure_rendering(skills: int) -> list[Row]:
    """Render the same skills in every way, in turns with a floor that picks the same amount of text."""
    one, many = made_up(skills, 1), made_up(skills, SERVERS)
    nothing_set = ShowRules()
    pins = ShowRules(show={skill.reference: ShowRule.PIN for skill in one[:: max(skills // 10, 1)]})
    budgets = {f"server-{number:02d}": BUDGET_TOKENS // SERVERS for number in range(SERVERS)}
    tasks: dict[str, Callable[[], RenderedListing]] = {
        "one server": lambda: render(one, nothing_set),
        f"{SERVERS} servers": lambda: render(many, nothing_set),
        f"{SERVERS} servers with budgets": lambda: render(many, nothing_set, server_budgets=budgets),
        "one server, ten pins": lambda: render(one, pins),
        **{
            f"{SERVERS} servers, {form}": lambda form=form: render(many, nothing_set, form=form)
            for form in ListingForm
            if form is not ListingForm.COMPACT
        },
    }
    rows = [
        _measured(f"render: {what}", lambda task=task: checked(task(), skills), many)
        for what, task in tasks.items()
    ]
    return [*rows, _measured("what changed since", changes(many), many)]


def made_up(count: int, servers: int) -> tuple[KnownSkill, ...]:
    """Make the records of so many skills, with descriptions as long as people write them."""
    chance = random.Random(count)
    origins = [
        Origin(OriginKind.SERVER, f"server-{number:02d}", f"sha256:{number:064x}")
        for number in range(servers)
    ]
    return tuple(_made_up(origins[number % servers], number, chance) for number in range(count))


def changes(skills: Sequence[KnownSkill]) -> Callable[[], None]:
    """Return a task that looks for changes, of which there is one each time."""
    listing, show_rules = FrozenListing(), ShowRules()
    listing.text(skills, show_rules)
    shown = listing.listed.shortened[0] if listing.listed else ""
    turn = 0

    def task() -> None:
        nonlocal turn
        turn += 1
        now = [_reworded(skill, turn) if skill.reference == shown else skill for skill in skills]
        if f"- changed {shown}: " not in listing.changes(now, show_rules):
            raise WrongAnswerError("a change was not told")

    return task


def floor(skills: Sequence[KnownSkill]) -> str:
    """Write a list of as many bytes with the least work, without regard to fairness or safety."""
    lines: list[str] = []
    room = BUDGET_TOKENS * 4
    for skill in sorted(skills, key=attrgetter("reference")):
        line = f"- {skill.reference}: {skill.description[:80]}"
        if len(line) < room:
            lines.append(line)
            room -= len(line) + 1
    return "\n".join(lines)


def checked(listed: RenderedListing, skills: int) -> None:
    shown = len(listed.full) + len(listed.shortened) + len(listed.names)
    if shown + listed.left_out != skills or not 0 < listed.tokens <= BUDGET_TOKENS:
        raise WrongAnswerError(f"{shown} shown and {listed.left_out} left out, in {listed.tokens} tokens")


def _measured(what: str, task: Callable[[], None], skills: Sequence[KnownSkill]) -> Row:
    task()  # Everything warms up.
    ours: list[float] = []
    least: list[float] = []
    for _ in range(ROUNDS):
        ours.append(_cpu(task))
        least.append(_cpu(lambda: floor(skills)))
    measured = median(ours)
    return Row(
        what,
        f"{measured * 1000:.1f} ms",
        f"{FLOOR} {median(least) * 1000:.1f} ms",
        median_ratio(ours, least),
        f"{BUDGET_SECONDS * 1000:.0f} ms",
        measured <= BUDGET_SECONDS,
    )


def _cpu(task: Callable[[], object]) -> float:
    begun = time.process_time()
    task()
    return time.process_time() - begun


def _made_up(origin: Origin, number: int, chance: random.Random) -> KnownSkill:
    length = chance.randint(*LENGTHS)
    text = f"Case {number}:"
    while len(text) < length:
        text += f" {chance.choice(_WORDS)}"
    name = f"case-{number:06d}"
    uri = SkillUri.build(f"team-{number % 100:02d}/{name}")
    entry = SkillEntry(uri, Frontmatter({"name": name, "description": text[:length]}), None)
    return KnownSkill(SkillId(origin, uri.text), f"{origin.label}/{name}", entry)


def _reworded(skill: KnownSkill, turn: int) -> KnownSkill:
    fields = {**skill.entry.frontmatter.fields, "description": f"Changed {turn}."}
    return replace(skill, entry=replace(skill.entry, frontmatter=Frontmatter(fields)))
