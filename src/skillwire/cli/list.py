"""`skillwire list`: list the skills of all servers and local folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from skillwire.cli.command import (
    Json,
    Output,
    Part,
    TargetCommand,
    Targets,
    Verbose,
    command_in,
    command_output,
    new_app,
    one_line,
    plural,
    print_rows,
)
from skillwire.cli.common import ExitCode
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    Archives,
    Config,
    Frozen,
    HostRequest,
    Lock,
    ResolvedTargets,
    Wait,
    resolve_targets,
    run_with_host,
)
from skillwire.cli.recent import remember_references
from skillwire.cli.states import (
    listed_skill_json,
    place_of,
    print_nothing_configured,
    print_notice,
    print_refusal,
    server_state,
    server_words,
    state_of,
)
from skillwire.host import (
    DEFAULT_BUDGET,
    KnownSkill,
    KnownTemplate,
    ListingForm,
    OriginKind,
    Refusal,
    RegistryView,
    ServerConfig,
    ServerStatus,
    estimated_tokens,
)

if TYPE_CHECKING:
    from skillwire.host import Host


_MOST_REMARKS = 5

app = new_app()


@dataclass(slots=True)
class OriginGroup:
    """One origin: its kind, its state, and its skills."""

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
        """Whether the origin did not answer, so that its skills are not known, or not all."""
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
        ListingForm | None, typer.Option("--prompt", help="Print the listing for a model, in this form.")
    ] = None,
    budget: Annotated[
        int, typer.Option("--budget", metavar="TOKENS", min=1, help="With --prompt: the maximum length.")
    ] = DEFAULT_BUDGET,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List all skills with their origin, and what is hidden and why.

    Lists the servers of the configuration and the local folders, unless a
    target is named. A server that cannot be reached is reported, and the
    others are listed; the exit code is 1 only when no skill is left.
    """
    with command_output("list", json=json, verbose=verbose) as output:
        wanted = HostRequest(config, targets or (), command_in(context), lock, frozen, wait, archives)
        places = resolve_targets(wanted)

        async def work(host: Host) -> None:
            if prompt is not None:
                _print_prompt(output, host.listing(form=prompt, budget_tokens=budget), prompt)
                return
            _report(output, host, wanted, places)
            is_typed = bool(wanted.targets or wanted.command)
            remember_references(host.view.skills, is_typed=is_typed)

        run_with_host(output, wanted, work)


def _print_prompt(output: Output, text: str, form: ListingForm) -> None:
    if output.json:
        output.document({"form": form.value, "tokens": estimated_tokens(text), "text": text})
    for line in () if output.json else text.splitlines():
        output.line(line, wrap=False)


def _report(output: Output, host: Host, wanted: HostRequest, places: ResolvedTargets) -> None:
    view = host.view
    groups = _groups(view, places)
    if output.json:
        output.document(
            {
                "origins": [group.to_json() for group in groups],
                "skills": [listed_skill_json(host, skill) for group in groups for skill in group.skills],
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
        _print(output, host, wanted, groups)
    if not view.skills and (host.problems or any(group.is_missing for group in groups)):
        output.code = ExitCode.NO


def _template_json(known: KnownTemplate) -> dict[str, object]:
    return {
        "label": known.origin.label,
        "name": known.skill_template.name,
        "template": known.template.text,
        "variables": list(known.template.variables),
        "description": known.description,
    }


def _groups(view: RegistryView, places: ResolvedTargets) -> list[OriginGroup]:
    """Group skills by origin: local folders first, then servers in the order of the configuration."""
    statuses = {status.origin.label: status for status in view.servers}
    local: dict[str, OriginGroup] = {}
    servers = {server.label: _server_group(server, statuses.get(server.label)) for server in places.servers}
    for template in view.templates:
        servers[template.origin.label].templates.append(template)
    for skill in view.skills:
        if skill.is_remote:
            servers[skill.id.origin.label].skills.append(skill)
            continue
        place = _root_of(skill)
        group = local.setdefault(place, OriginGroup(skill.id.origin.label, OriginKind.LOCAL, place, "read"))
        group.skills.append(skill)
    for root in places.roots or ():
        place = str(root.path.absolute())
        local.setdefault(place, OriginGroup(root.scope, OriginKind.LOCAL, place, "read"))
    for group in local.values():
        group.words = (plural(len(group.skills), "skill"), "green")
    return [*sorted(local.values(), key=attrgetter("label", "place")), *servers.values()]


def _server_group(server: ServerConfig, status: ServerStatus | None) -> OriginGroup:
    return OriginGroup(
        server.label,
        server.origin.kind,
        place_of(server),
        server_state(server, status),
        server_words(server, status),
        None if status is None else status.problem,
        0 if status is None else status.refused,
    )


def _root_of(skill: KnownSkill) -> str:
    """Return the root folder of a local skill: its URI has one segment for each folder below the root."""
    assert skill.directory is not None, "local skills have a folder"
    below = skill.id.uri.partition("://")[2].count("/") - 1
    return str(skill.directory.parents[max(below - 1, 0)])


def _print(output: Output, host: Host, wanted: HostRequest, groups: Sequence[OriginGroup]) -> None:
    is_first = True
    for group in groups:
        if not group.skills and group.is_missing:
            continue
        if output.width is not None:
            if not is_first:
                output.line("")
            _print_heading(output, group)
        is_first = False
        rows = chain(_rows(host, group.skills), _template_rows(group.templates))
        print_rows(output, rows, indent=2 if output.width is not None else 0)
    remarks = list(_remarks(output, host, groups))
    if remarks and output.width is not None and not is_first:
        output.message("")
    for group in groups:
        if group.is_missing and (not group.skills or output.width is None):
            _print_failed(output, group)
    _print_remarks(output, "problems", host.problems, print_refusal)
    _print_remarks(output, "not used", host.view.hidden, print_refusal)
    _print_remarks(output, "notices", host.view.notices, print_notice)
    _print_summary(output, wanted, groups)


def _remarks(output: Output, host: Host, groups: Sequence[OriginGroup]) -> Iterator[object]:
    yield from (group for group in groups if group.is_missing)
    yield from (*host.problems, *host.view.hidden, *host.view.notices)


def _print_heading(output: Output, group: OriginGroup) -> None:
    output.line((group.label, "bold"), f"  {group.heading}: ", group.words)


def _words_of(group: OriginGroup) -> str:
    return group.words if isinstance(group.words, str) else group.words[0]


def _rows(host: Host, skills: Iterable[KnownSkill]) -> Iterator[tuple[Part, Part, Part]]:
    for skill in skills:
        yield (skill.reference, "bold"), state_of(host, skill), one_line(skill.description)


def _template_rows(templates: Iterable[KnownTemplate]) -> Iterator[tuple[Part, Part, Part]]:
    """Yield a row for each resource template."""
    for known in templates:
        reference = f"{known.origin.label}/{known.template.text}"
        yield (reference, "bold"), ("template", "cyan"), one_line(known.description)


def _print_failed(output: Output, group: OriginGroup) -> None:
    """Print that a server's skills are missing, and the remedy."""
    words = (group.label, "bold"), f"  {group.heading}: ", (_words_of(group), "red")
    remedy = "" if group.problem is None else group.problem.remedy
    if output.width is None:
        output.message(*words, f"; fix: {remedy}" if remedy else "")
        return
    output.message(*words)
    if remedy:
        output.message(("fix:", "bold"), f" {remedy}", indent=2)


def _print_remarks(
    output: Output, title: str, refusals: Sequence[Refusal], show: Callable[[Output, Refusal], None]
) -> None:
    if not refusals:
        return
    output.message((f"{title} ({len(refusals):,})", "bold"))
    shown = refusals if output.verbose else refusals[:_MOST_REMARKS]
    for refusal in shown:
        show(output, refusal)
    if len(shown) < len(refusals):
        output.message(f"and {len(refusals) - len(shown):,} more: show them with -v", indent=2)


def _print_summary(output: Output, wanted: HostRequest, groups: Sequence[OriginGroup]) -> None:
    skills = sum(len(group.skills) for group in groups)
    filled = sum(1 for group in groups if group.skills)
    if not groups:
        print_nothing_configured(output)
        return
    if not skills:
        is_unknown = any(group.is_missing for group in groups)
        output.message("nothing could be listed" if is_unknown else "no skills")
        return
    words = f"{plural(skills, 'skill')} from {plural(filled, 'origin')}"
    output.message(
        f"{words}; explain one with: {replace(wanted, targets=()).command_line('why', 'REF')}", wrap=False
    )
