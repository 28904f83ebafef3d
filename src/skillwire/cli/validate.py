"""`skillwire validate`: check skills against the Agent Skills format."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer

from skillwire.cli.command import (
    STYLES,
    FollowLinks,
    Json,
    MissingFolderError,
    MisuseError,
    Output,
    ProgressMeter,
    Verbose,
    command_output,
    new_app,
    plural,
    progress,
)
from skillwire.cli.common import ExitCode
from skillwire.cli.folders import FindingCounts, NamedFolder, located, print_findings
from skillwire.core import SKILL_FILE, Finding, Frontmatter, Node, RelationGraph
from skillwire.sources.directory.walk import FoundSkill, Walk
from skillwire.sources.review import read_skill

_OTHERS_NAMED = 3

app = new_app()


@dataclass(slots=True)
class ReviewedFolder:
    """A skill or another folder, and the findings about it."""

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
    """All skills below some folders, and the findings about folders that are not skills."""

    skills: list[ReviewedFolder] = field(default_factory=list[ReviewedFolder])
    folders: list[ReviewedFolder] = field(default_factory=list[ReviewedFolder])

    @property
    def findings(self) -> Iterator[Finding]:
        for place in (*self.skills, *self.folders):
            yield from place.findings


@app.command()
def validate(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="A folder of skills, a skill, or a file of one.", show_default=False
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    publish: Annotated[
        bool, typer.Option("--publish", help="Also check the rules for publishing them together.")
    ] = False,
    allow_duplicate_names: Annotated[
        bool, typer.Option("--allow-duplicate-names", help="With --publish: allow skills to share a name.")
    ] = False,
    follow_links: FollowLinks = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check skills against the Agent Skills format.

    Prints each finding with its file and line, the rule behind it and what to
    change. Exits with 1 when a skill has errors, and with 2 when a PATH does
    not exist or belongs to no skill; the other paths are still checked.
    """
    with command_output("validate", json=json, verbose=verbose) as output:
        if allow_duplicate_names and not publish:
            raise MisuseError("--allow-duplicate-names needs --publish", fix="add --publish")
        named, missing = _existing(folders)
        with progress(output, "looking for skills") as meter:
            review = review_folders(
                named, meter, follow_links=follow_links, unique=publish and not allow_duplicate_names
            )
        counts = FindingCounts.of(review.findings)
        ok = not missing and not counts.errors and not (strict and counts.warnings)
        if json and named:
            output.document(_document(review, counts, missing, ok=ok))
        elif named:
            for place in (*review.skills, *review.folders):
                print_findings(output, place.path, place.findings)
            _print_summary(output, review, counts, strict=strict, ok=ok)
        if not ok:
            output.code = ExitCode.NO
        for error in missing:
            output.refuse(error)


def _existing(paths: Iterable[Path]) -> tuple[list[NamedFolder], list[MissingFolderError]]:
    """Return the folder of each path, and the errors for paths without one."""
    found: list[NamedFolder] = []
    missing: list[MissingFolderError] = []
    for path in paths:
        try:
            found.append(NamedFolder.of_skill(path))
        except MissingFolderError as error:
            missing.append(error)
    return found, missing


def review_folders(
    folders: Iterable[NamedFolder], meter: ProgressMeter, *, follow_links: bool = False, unique: bool = False
) -> Review:
    """Review every skill below `folders`, each once even when the folders overlap.

    With `unique` a shared name is an error, otherwise a warning.
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


def _review_skill(folder: NamedFolder, skill: FoundSkill, *, follow_links: bool) -> ReviewedFolder:
    reading = read_skill(folder.real, skill, follow_links=follow_links)
    path = folder.path(skill.directory)
    return ReviewedFolder(
        path, [located(finding, path) for finding in reading.findings()], reading.frontmatter
    )


def _loose_findings(folder: NamedFolder, walk: Walk) -> list[tuple[str, Finding]]:
    """Return the findings about folders that are not skills, and one when there is no skill at all."""
    if walk.skills or any(finding.is_error for _, finding in walk.loose):
        return walk.loose
    message = f"no {SKILL_FILE} was found in this folder or below it"
    fix = "name a folder that holds skills, or create one with `skillwire new NAME`"
    return [*walk.loose, ("", Finding("skill-file-missing", message, file="", fix=fix))]


def _grouped(folder: NamedFolder, loose: Iterable[tuple[str, Finding]]) -> list[ReviewedFolder]:
    places: dict[str, ReviewedFolder] = {}
    for place, finding in sorted(loose, key=itemgetter(0)):
        path = folder.path(place)
        places.setdefault(place, ReviewedFolder(path, [])).findings.append(located(finding, path))
    return list(places.values())


def _add_duplicates(skills: Sequence[ReviewedFolder], code: str) -> None:
    """Add a finding to every skill that shares its name with another."""
    by_name: defaultdict[str, list[ReviewedFolder]] = defaultdict(list)
    for skill in skills:
        if skill.name:
            by_name[skill.name].append(skill)
    for name, sharers in by_name.items():
        for skill in sharers if len(sharers) > 1 else ():
            others = [other.path for other in sharers if other is not skill]
            places = ", ".join(others[:_OTHERS_NAMED])
            if len(others) > _OTHERS_NAMED:
                places += f" and {len(others) - _OTHERS_NAMED:,} more"
            message = f"the name {name!r} is also used by {places}"
            finding = Finding(code, message, fix="rename one of them, or serve them separately")
            skill.findings.insert(0, located(finding, skill.path))


def _add_relations(skills: Sequence[ReviewedFolder]) -> None:
    """Add the findings about the relations that skills declare to each other."""
    by_path = {skill.path: skill for skill in skills}
    nodes = [
        Node(skill.path, (Path(skill.path).parent / skill.name).as_posix(), skill.frontmatter)
        for skill in skills
        if skill.frontmatter is not None and skill.name
    ]
    for path, findings in RelationGraph(nodes).findings().items():
        by_path[path].findings += [located(finding, path) for finding in findings]


def _document(
    review: Review, counts: FindingCounts, missing: Iterable[MissingFolderError], *, ok: bool
) -> dict[str, object]:
    return {
        "ok": ok,
        "errors": [{"code": error.refusal, "message": str(error), "fix": error.fix} for error in missing],
        "skills": [skill.to_json() for skill in review.skills],
        "folders": [folder.to_json() for folder in review.folders],
        "summary": {
            "skills": len(review.skills),
            "skillsWithErrors": _count(review, "errors"),
            "skillsWithWarnings": _count(review, "warnings"),
            "errors": counts.errors,
            "warnings": counts.warnings,
            "notes": counts.notes,
        },
    }


def _count(review: Review, kind: str) -> int:
    return sum(1 for skill in review.skills if getattr(FindingCounts.of(skill.findings), kind))


def _print_summary(output: Output, review: Review, counts: FindingCounts, *, strict: bool, ok: bool) -> None:
    total = len(review.skills)
    bad = _count(review, "errors")
    warned = sum(1 for skill in review.skills if _only_warned(skill)) if strict else 0
    verdict = [f"{total - bad - warned:,} good" if bad or warned else "all good" if total > 1 else "good"]
    verdict += [f"{bad:,} with errors"] if bad else []
    verdict += [f"{warned:,} with warnings"] if warned else []
    parts = [f"{plural(total, 'skill')}: {', '.join(verdict)}" if total else plural(total, "skill")]
    parts += [counts.words()] if counts.words() else []
    output.line(("; ".join(parts), "bold green" if ok else STYLES["error"]))
    if counts.notes and not output.verbose:
        output.line(f"{plural(counts.notes, 'note')}; show {'it' if counts.notes == 1 else 'them'} with -v")


def _only_warned(skill: ReviewedFolder) -> bool:
    counts = FindingCounts.of(skill.findings)
    return bool(counts.warnings) and not counts.errors
