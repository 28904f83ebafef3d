"""`skillwire list`: the registry as a host sees it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Annotated

import typer

from skillwire.cli.answer import Answer, Part, answering, plural
from skillwire.cli.failures import ExitCode
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    Archives,
    Config,
    Frozen,
    Lock,
    Places,
    Wait,
    Wanted,
    places_of,
    with_host,
)
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.remembering import remember_references
from skillwire.cli.states import (
    common_json,
    place_of,
    print_notice,
    print_refusal,
    server_state,
    server_words,
    state_of,
)
from skillwire.cli.tables import one_line, print_rows
from skillwire.cli.targets import TargetCommand, Targets, command_in
from skillwire.core.manifest import UNKNOWN_SIZE
from skillwire.host import (
    Host,
    KnownSkill,
    ListingForm,
    Refusal,
    RegistryView,
    ServerConfig,
    ServerStatus,
    estimated_tokens,
)
from skillwire.host.listing.rendering import DEFAULT_BUDGET
from skillwire.host.origin import OriginKind
from skillwire.host.registry.view import KnownTemplate

_MOST_REMARKS = 5

app = new_app()


@dataclass(slots=True)
class Group:
    """One origin: what it is, how it stands, and its skills."""

    label: str
    kind: OriginKind
    place: str
    state: str
    words: Part = ""
    problem: Refusal | None = None
    refused: int = 0
    skills: list[KnownSkill] = field(default_factory=list[KnownSkill])
    templates: list[KnownTemplate] = field(default_factory=list[KnownTemplate])

    @property
    def is_missing(self) -> bool:
        """Whether the origin could not be asked, so that its skills are not known, or not all."""
        return self.state in ("failed", "waiting")

    @property
    def heading(self) -> str:
        return f"{self.kind.words}, {self.place}"

    def to_json(self) -> dict[str, object]:
        return {
            "label": self.label,
            "kind": self.kind.value,
            "place": self.place,
            "state": self.state,
            "skills": len(self.skills),
            "refused": self.refused,
            "problem": None if self.problem is None else self.problem.to_json(),
        }


@app.command("list", cls=TargetCommand)
def list_(
    context: typer.Context,
    targets: Targets = None,
    config: Config = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    prompt: Annotated[
        ListingForm | None, typer.Option("--prompt", help="Print what a model would be told, in this form.")
    ] = None,
    budget: Annotated[
        int, typer.Option("--budget", metavar="TOKENS", min=1, help="How long that may be.")
    ] = DEFAULT_BUDGET,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List all skills with their origin, and what is hidden and why.

    Looks at the servers of the configuration and at the local folders, unless
    a target is named. A server that cannot be reached costs only its own
    skills: it is named, and the exit code is 1 only when nothing is left.
    """
    with answering("list", json=json, verbose=verbose) as answer:
        wanted = Wanted(config, targets or (), command_in(context), lock, frozen, wait, archives)
        places = places_of(wanted)

        async def work(host: Host) -> None:
            if prompt is not None:
                _print_prompt(answer, host.listing(form=prompt, budget_tokens=budget), prompt)
                return
            _answer(answer, host, places)
            if not wanted.targets and not wanted.command:
                remember_references(host.view.skills)

        with_host(answer, wanted, work)


def _print_prompt(answer: Answer, text: str, form: ListingForm) -> None:
    if answer.json:
        answer.document({"form": form.value, "tokens": estimated_tokens(text), "text": text})
    for line in () if answer.json else text.splitlines():
        answer.line(line, wrap=False)


def _answer(answer: Answer, host: Host, places: Places) -> None:
    view = host.view
    groups = _groups(view, places)
    if answer.json:
        answer.document(
            {
                "origins": [group.to_json() for group in groups],
                "skills": [skill_json(host, skill) for group in groups for skill in group.skills],
                "templates": [_template_json(template) for group in groups for template in group.templates],
                "collisions": [
                    {"name": collision.name, "references": list(collision.references)}
                    for collision in view.collisions
                ],
                "notices": [refusal.to_json() for refusal in view.notices],
                "hidden": [refusal.to_json() for refusal in view.hidden],
                "problems": [refusal.to_json() for refusal in host.problems],
            }
        )
    else:
        _print(answer, host, groups)
    if not view.skills and (host.problems or any(group.is_missing for group in groups)):
        answer.code = ExitCode.NO


def skill_json(host: Host, skill: KnownSkill) -> dict[str, object]:
    """Return what there is to say about a skill, for programs."""
    files = skill.entry.files
    is_sized = files is not None and UNKNOWN_SIZE not in files.sizes
    return {
        **common_json(host, skill),
        "files": None if files is None else len(files),
        "size": files.total_size if files is not None and is_sized else None,
    }


def _template_json(known: KnownTemplate) -> dict[str, object]:
    return {
        "label": known.origin.label,
        "name": known.told.name,
        "template": known.template.text,
        "variables": list(known.template.variables),
        "description": known.description,
    }


def _groups(view: RegistryView, places: Places) -> list[Group]:
    """Put skills to their origins: the user's own folders first, then servers as they are configured."""
    statuses = {status.origin.label: status for status in view.servers}
    local: dict[str, Group] = {}
    servers = {server.label: _server_group(server, statuses.get(server.label)) for server in places.servers}
    for template in view.templates:
        servers[template.origin.label].templates.append(template)
    for skill in view.skills:
        if skill.is_remote:
            servers[skill.id.origin.label].skills.append(skill)
            continue
        place = _root_of(skill)
        group = local.setdefault(place, Group(skill.id.origin.label, OriginKind.LOCAL, place, "read"))
        group.skills.append(skill)
    for root in places.roots or ():
        place = str(root.path.absolute())
        local.setdefault(place, Group(root.scope, OriginKind.LOCAL, place, "read"))
    for group in local.values():
        group.words = (plural(len(group.skills), "skill"), "green")
    return [*sorted(local.values(), key=attrgetter("label", "place")), *servers.values()]


def _server_group(server: ServerConfig, status: ServerStatus | None) -> Group:
    return Group(
        server.label,
        server.origin.kind,
        place_of(server),
        server_state(server, status),
        server_words(server, status),
        None if status is None else status.problem,
        0 if status is None else status.refused,
    )


def _root_of(skill: KnownSkill) -> str:
    """Return the folder a local skill was found below: its URI has one segment for each folder between."""
    assert skill.directory is not None, "local skills lie in folders"
    below = skill.id.uri.partition("://")[2].count("/") - 1
    return str(skill.directory.parents[max(below - 1, 0)])


def _print(answer: Answer, host: Host, groups: Sequence[Group]) -> None:
    is_first = True
    for group in groups:
        if not group.skills and group.is_missing:
            continue
        if answer.width is not None:
            if not is_first:
                answer.line("")
            _print_heading(answer, group)
        is_first = False
        rows = chain(_rows(host, group.skills), _template_rows(group.templates))
        print_rows(answer, rows, indent=2 if answer.width is not None else 0)
    remarks = list(_remarks(answer, host, groups))
    if remarks and answer.width is not None and not is_first:
        answer.word("")
    for group in groups:
        if group.is_missing and (not group.skills or answer.width is None):
            _print_failed(answer, group)
    _print_remarks(answer, "problems", host.problems, print_refusal)
    _print_remarks(answer, "not used", host.view.hidden, print_refusal)
    _print_remarks(answer, "good to know", host.view.notices, print_notice)
    _print_summary(answer, groups)


def _remarks(answer: Answer, host: Host, groups: Sequence[Group]) -> Iterator[object]:
    yield from (group for group in groups if group.is_missing)
    yield from (*host.problems, *host.view.hidden, *host.view.notices)


def _print_heading(answer: Answer, group: Group) -> None:
    answer.line((group.label, "bold"), f"  {group.heading}: ", group.words)


def _words_of(group: Group) -> str:
    return group.words if isinstance(group.words, str) else group.words[0]


def _rows(host: Host, skills: Iterable[KnownSkill]) -> Iterator[tuple[Part, Part, Part]]:
    for skill in skills:
        yield (skill.reference, "bold"), state_of(host, skill), one_line(skill.description)


def _template_rows(templates: Iterable[KnownTemplate]) -> Iterator[tuple[Part, Part, Part]]:
    """Yield a row for each template, to be filled in by whoever reads it."""
    for known in templates:
        reference = f"{known.origin.label}/{known.template.text}"
        yield (reference, "bold"), ("template", "cyan"), one_line(known.description)


def _print_failed(answer: Answer, group: Group) -> None:
    """Say in one line that a server's skills are missing; a terminal has room for the remedy."""
    words = (group.label, "bold"), f"  {group.heading}: ", (_words_of(group), "red")
    remedy = "" if group.problem is None else group.problem.remedy
    if answer.width is None:
        answer.word(*words, f"; fix: {remedy}" if remedy else "")
        return
    answer.word(*words)
    if remedy:
        answer.word(("fix:", "bold"), f" {remedy}", indent=2)


def _print_remarks(
    answer: Answer, title: str, refusals: Sequence[Refusal], show: Callable[[Answer, Refusal], None]
) -> None:
    if not refusals:
        return
    answer.word((f"{title} ({len(refusals):,})", "bold"))
    shown = refusals if answer.verbose else refusals[:_MOST_REMARKS]
    for refusal in shown:
        show(answer, refusal)
    if len(shown) < len(refusals):
        answer.word(f"and {len(refusals) - len(shown):,} more: show them with -v", indent=2)


def _print_summary(answer: Answer, groups: Sequence[Group]) -> None:
    skills = sum(len(group.skills) for group in groups)
    filled = sum(1 for group in groups if group.skills)
    if not groups:
        answer.word("no servers are configured here, and there are no local skills")
        answer.word(
            ("fix:", "bold"),
            " add servers to .mcp.json, name a target, or put skills into ~/.agents/skills",
        )
        return
    words = f"{plural(skills, 'skill')} from {plural(filled, 'origin')}" if skills else "no skills"
    answer.word(f"{words}; skillwire why REF tells how one stands")
