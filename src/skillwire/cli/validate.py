"""`skillwire validate`: everything there is to say about the skills in some folders."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer

from skillwire.cli.answer import STYLES, Answer, answering, plural
from skillwire.cli.failures import ExitCode, MisuseError
from skillwire.cli.findings import Tally, print_findings
from skillwire.cli.folders import Folder, located
from skillwire.cli.options import FollowLinks, Json, Verbose, new_app
from skillwire.cli.progress import Meter, progress
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.relations import Node, RelationGraph
from skillwire.core.uri import SKILL_FILE
from skillwire.sources.review import read_skill
from skillwire.sources.walk import FoundSkill, Walk

_OTHERS_NAMED = 3

app = new_app()


@dataclass(slots=True)
class Reviewed:
    """A skill or another folder, and what there is to say about it."""

    path: str
    findings: list[Finding]
    frontmatter: Frontmatter | None = None

    @property
    def name(self) -> str:
        return "" if self.frontmatter is None else self.frontmatter.name

    def to_json(self) -> dict[str, object]:
        named = {"name": self.name} if self.name else {}
        return {"path": self.path, **named, "findings": [finding.to_json() for finding in self.findings]}


@dataclass(slots=True)
class Review:
    """All skills below some folders, and the remarks about folders that are none."""

    skills: list[Reviewed] = field(default_factory=list[Reviewed])
    folders: list[Reviewed] = field(default_factory=list[Reviewed])

    @property
    def findings(self) -> Iterator[Finding]:
        for place in (*self.skills, *self.folders):
            yield from place.findings


@app.command()
def validate(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="A folder of skills, or a skill.", show_default=False)
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for errors.")] = False,
    publish: Annotated[
        bool, typer.Option("--publish", help="Also check what matters when they are published together.")
    ] = False,
    allow_duplicate_names: Annotated[
        bool, typer.Option("--allow-duplicate-names", help="With --publish: let skills share a name.")
    ] = False,
    follow_links: FollowLinks = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check skills against the Agent Skills format.

    Prints each finding with its file and line, the rule behind it and what to
    change. Exits with 1 when a skill has errors.
    """
    with answering("validate", json=json, verbose=verbose) as answer:
        if allow_duplicate_names and not publish:
            raise MisuseError("--allow-duplicate-names means nothing without --publish", fix="add --publish")
        named = [Folder.named(folder) for folder in folders]
        with progress(answer, "looking for skills") as meter:
            review = review_folders(
                named, meter, follow_links=follow_links, unique=publish and not allow_duplicate_names
            )
        tally = Tally.of(review.findings)
        ok = not tally.errors and not (strict and tally.warnings)
        if json:
            answer.document(_document(review, tally, ok=ok))
        else:
            for place in (*review.skills, *review.folders):
                print_findings(answer, place.path, place.findings)
            _print_summary(answer, review, tally, strict=strict, ok=ok)
        if not ok:
            answer.code = ExitCode.NO


def review_folders(
    folders: Iterable[Folder], meter: Meter, *, follow_links: bool = False, unique: bool = False
) -> Review:
    """Review every skill below `folders`, each once even when the folders overlap.

    With `unique` it is an error when two of them share a name, and else a warning.
    """
    review = Review()
    seen: set[str] = set()
    for folder in folders:
        walk = Walk(folder.real, follow_links)
        for count in walk.steps():
            meter.show("looking through folders", count)
        loose = [item for item in _loose_findings(folder, walk) if folder.real_path(item[0]) not in seen]
        skills = [skill for skill in walk.skills if folder.real_path(skill.directory) not in seen]
        seen.update(folder.real_path(place) for place, _ in loose)
        seen.update(folder.real_path(skill.directory) for skill in skills)
        for done, skill in enumerate(sorted(skills, key=lambda skill: skill.directory)):
            meter.show("checking skills", done, len(skills))
            review.skills.append(_review_skill(folder, skill, follow_links=follow_links))
        review.folders += _grouped(folder, loose)
    _add_duplicates(review.skills, "name-not-unique" if unique else "duplicate-name")
    _add_relations(review.skills)
    return review


def _review_skill(folder: Folder, skill: FoundSkill, *, follow_links: bool) -> Reviewed:
    reading = read_skill(folder.real, skill, follow_links=follow_links)
    path = folder.path(skill.directory)
    return Reviewed(path, [located(finding, path) for finding in reading.findings()], reading.frontmatter)


def _loose_findings(folder: Folder, walk: Walk) -> list[tuple[str, Finding]]:
    """Return the findings about folders that are no skills, one of them when there is no skill at all."""
    if walk.skills or any(finding.is_error for _, finding in walk.loose):
        return walk.loose
    message = f"no {SKILL_FILE} was found in this folder or below it"
    fix = "name a folder that holds skills, or start one with `skillwire new NAME`"
    return [*walk.loose, ("", Finding("skill-file-missing", message, file="", fix=fix))]


def _grouped(folder: Folder, loose: Iterable[tuple[str, Finding]]) -> list[Reviewed]:
    places: dict[str, Reviewed] = {}
    for place, finding in sorted(loose, key=itemgetter(0)):
        path = folder.path(place)
        places.setdefault(place, Reviewed(path, [])).findings.append(located(finding, path))
    return list(places.values())


def _add_duplicates(skills: Sequence[Reviewed], code: str) -> None:
    """Add a finding to every skill that shares its name with another."""
    by_name: defaultdict[str, list[Reviewed]] = defaultdict(list)
    for skill in skills:
        if skill.name:
            by_name[skill.name].append(skill)
    for name, sharers in by_name.items():
        for skill in sharers if len(sharers) > 1 else ():
            others = [other.path for other in sharers if other is not skill]
            places = ", ".join(others[:_OTHERS_NAMED])
            if len(others) > _OTHERS_NAMED:
                places += f" and {len(others) - _OTHERS_NAMED:,} more"
            message = f"the name {name!r} is also that of {places}"
            finding = Finding(code, message, fix="rename one of them, or serve them apart")
            skill.findings.insert(0, located(finding, skill.path))


def _add_relations(skills: Sequence[Reviewed]) -> None:
    """Add what there is to say about the relations that skills declare to each other."""
    by_path = {skill.path: skill for skill in skills}
    nodes = [
        Node(skill.path, (Path(skill.path).parent / skill.name).as_posix(), skill.frontmatter)
        for skill in skills
        if skill.frontmatter is not None and skill.name
    ]
    for path, findings in RelationGraph(nodes).findings().items():
        by_path[path].findings += [located(finding, path) for finding in findings]


def _document(review: Review, tally: Tally, *, ok: bool) -> dict[str, object]:
    return {
        "ok": ok,
        "skills": [skill.to_json() for skill in review.skills],
        "folders": [folder.to_json() for folder in review.folders],
        "summary": {
            "skills": len(review.skills),
            "skillsWithErrors": _count(review, "errors"),
            "skillsWithWarnings": _count(review, "warnings"),
            "errors": tally.errors,
            "warnings": tally.warnings,
            "notes": tally.notes,
        },
    }


def _count(review: Review, kind: str) -> int:
    return sum(1 for skill in review.skills if getattr(Tally.of(skill.findings), kind))


def _print_summary(answer: Answer, review: Review, tally: Tally, *, strict: bool, ok: bool) -> None:
    total = len(review.skills)
    bad = _count(review, "errors")
    warned = sum(1 for skill in review.skills if _only_warned(skill)) if strict else 0
    verdict = [f"{total - bad - warned:,} good" if bad or warned else "all good" if total > 1 else "good"]
    verdict += [f"{bad:,} with errors"] if bad else []
    verdict += [f"{warned:,} with warnings"] if warned else []
    parts = [f"{plural(total, 'skill')}: {', '.join(verdict)}" if total else plural(total, "skill")]
    parts += [tally.words()] if tally.words() else []
    answer.line(("; ".join(parts), "bold green" if ok else STYLES["error"]))
    if tally.notes and not answer.verbose:
        answer.line(f"{plural(tally.notes, 'note')}; show {'it' if tally.notes == 1 else 'them'} with -v")


def _only_warned(skill: Reviewed) -> bool:
    tally = Tally.of(skill.findings)
    return bool(tally.warnings) and not tally.errors
