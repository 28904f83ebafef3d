"""`skillwire approve`: approve one skill with exactly its current files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from skillwire.cli.command import Json, MisuseError, Output, Verbose, command_output, new_app
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    Archives,
    At,
    Config,
    Frozen,
    HostRequest,
    Lock,
    Wait,
    run_with_host,
)
from skillwire.cli.prompt import NO, YES, TerminalAsk
from skillwire.cli.states import approvals_of, print_refusal, reason_of, skill_json
from skillwire.core import is_digest
from skillwire.host import (
    ApprovalDeniedError,
    ApprovalRequiredError,
    Change,
    DynamicDeclinedError,
    Grant,
    KnownSkill,
    Occasion,
    Paragraph,
    Question,
    RefusedError,
    SkillChangedError,
    binding_of,
    name_of,
    one_line,
    paragraphs_of,
)

if TYPE_CHECKING:
    from skillwire.host import Host


GRANTS = {
    Grant.LOAD: "load: its text may enter a model's context",
    Grant.SCRIPTS: "scripts: its own scripts, byte for byte, may be run",
    Grant.ALLOWED_TOOLS: "allowed-tools: tools it asks for by name may be used without further questions",
}

app = new_app()


@app.command()
def approve(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The skill, as it is listed.")],
    grant: Annotated[
        list[Grant] | None,
        typer.Option(
            "--grant",
            metavar="GRANT",
            help="What to approve: load (the default), scripts or allowed-tools. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask. Needs --digest, to approve what was reviewed.")
    ] = False,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest",
            metavar="SHA256:…",
            help="The digest that `skillwire show` prints: other content is refused.",
            show_default=False,
        ),
    ] = None,
    review: Annotated[
        bool,
        typer.Option(
            "--review",
            help="Show every file first, one after another, and keep them for `skillwire diff`.",
        ),
    ] = False,
    config: Config = None,
    at: At = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Approve a skill, as it is now, on this machine.

    Shows where it comes from, what changed since you approved it, its files
    and what it asks for, and then asks. The approval is bound to these files:
    after any change you are asked again. Files are listed but not fetched;
    --review shows all of them before it asks, and keeps them, so that
    `skillwire diff` can show changed lines later. In a script, pass --yes
    with the --digest that was reviewed.
    """
    with command_output("approve", json=json, verbose=verbose) as output:
        _check(yes=yes, digest=digest, review=review)
        grants = frozenset(grant or (Grant.LOAD,))
        wanted = HostRequest.for_skill(
            reference, config, at, lock, frozen=frozen, wait=wait, archives=archives
        )
        asker = None if yes else TerminalAsk.find()
        request = ApprovalRequest(wanted, grants, digest, is_sure=yes, is_review=review)
        run_with_host(output, wanted, lambda host: _approve(output, host, asker, request))


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What to approve: the skill, the grants and the expected content, and whether to ask or to review."""

    wanted: HostRequest
    grants: frozenset[Grant]
    digest: str | None
    is_sure: bool
    is_review: bool


def _check(*, yes: bool, digest: str | None, review: bool) -> None:
    if yes and review:
        raise MisuseError(
            "--review asks on a terminal, and --yes never asks",
            fix="leave out --yes to review it on a terminal, or leave out --review",
        )
    if yes and digest is None:
        raise MisuseError(
            "--yes needs --digest, so that exactly what was reviewed is approved",
            fix="take `binding` from `skillwire show REF --json`, or leave out --yes to be asked",
        )
    if digest is not None and not is_digest(digest):
        raise MisuseError(
            "--digest is not a digest", fix="use sha256: and 64 digits, as `skillwire show REF` prints it"
        )


async def _approve(output: Output, host: Host, asker: TerminalAsk | None, request: ApprovalRequest) -> None:
    if asker is not None:
        asker.host, asker.options = host, request.wanted.options
    if host.lock.is_frozen:
        raise RefusedError(
            "the lock is frozen, so approvals change nothing", reference=request.wanted.reference
        )
    skill = await host.find(request.wanted.reference)
    _require_digest(skill, request)
    for problem in host.problems:
        print_refusal(output, problem)
    grants = request.grants
    opened = await _require_terminal(asker, skill, request).review(host, skill) if request.is_review else None
    if not skill.is_remote:
        grants &= {Grant.SCRIPTS}
    if not grants:
        _report(output, host, skill, "a local skill needs no approval")
        return
    if grants <= grants_of(host, skill):
        _report(output, host, skill, "already approved")
        return
    if not request.is_sure:
        opened = opened or _how_to_review(skill, request.wanted)
        await _ask(host, _require_terminal(asker, skill, request), skill, grants, opened)
    await host.approve(skill, grants)
    _report(output, host, skill, "approved", is_new=True)
    await _warn(output, host, skill)


def grants_of(host: Host, skill: KnownSkill) -> frozenset[Grant]:
    """Return what is already granted to exactly this content."""
    found = [approval for _, approval in approvals_of(host, skill) if approval.is_for(skill.entry)]
    return frozenset(grant for approval in found for grant in approval.grants)


def _require_digest(skill: KnownSkill, request: ApprovalRequest) -> None:
    manifest, digest = skill.entry.manifest, request.digest
    if skill.is_remote and manifest is None:
        raise DynamicDeclinedError(
            f"{skill.reference} has no digests, so an approval cannot be bound to its content and stored",
            reference=skill.reference,
            fix="approve it when it is loaded; you are asked at every load",
        )
    if digest is not None and manifest is not None and binding_of(manifest) != digest:
        raise SkillChangedError(
            f"{skill.reference} does not match --digest: its digest is {binding_of(manifest)} now",
            reference=skill.reference,
            fix=f"review it again with `{request.wanted.command_line('show', skill.reference)}`",
        )


def _require_terminal(asker: TerminalAsk | None, skill: KnownSkill, request: ApprovalRequest) -> TerminalAsk:
    if asker is None:
        raise ApprovalRequiredError(
            f"{skill.reference} cannot be approved without a terminal to ask on",
            reference=skill.reference,
            fix=_how_to_approve(skill, request),
        )
    return asker


def _how_to_approve(skill: KnownSkill, request: ApprovalRequest) -> str:
    """Return how to approve a skill without a terminal."""
    manifest = skill.entry.manifest
    if manifest is None:
        return "run this on a terminal"
    words = ["approve", skill.reference, "--yes", "--digest", binding_of(manifest)]
    for grant in () if request.grants == frozenset({Grant.LOAD}) else sorted(request.grants):
        words += ["--grant", grant.value]
    look, agree = request.wanted.command_line("show", skill.reference), request.wanted.command_line(*words)
    return f"run this on a terminal, or review it with `{look}`, then run `{agree}`"


def _how_to_review(skill: KnownSkill, wanted: HostRequest) -> Paragraph:
    command = wanted.command_line("approve", one_line(skill.reference), "--review")
    return Paragraph("To read every file first", (command,))


async def _ask(
    host: Host, asker: TerminalAsk, skill: KnownSkill, grants: frozenset[Grant], opened: Paragraph
) -> None:
    previous = host.previous(skill)
    change = None
    if previous is not None and skill.entry.manifest is not None:
        difference = Change.between(previous, skill.entry.manifest)
        is_alike = previous.coverage is skill.entry.coverage
        change = None if difference.is_empty and is_alike else difference
    occasion = Occasion.FIRST if change is None else Occasion.CHANGED
    question = Question(occasion, skill, change=change, previous=previous)
    words = (
        "A skill you approved before has CHANGED."
        if change is not None
        else "You are about to approve a skill."
    )
    paragraphs = [
        Paragraph(words, is_warning=change is not None),
        *paragraphs_of(question)[1:],
        opened,
        Paragraph("You would agree to", tuple(GRANTS[grant] for grant in Grant if grant in grants)),
    ]
    chosen = await asker.choose(
        skill,
        paragraphs,
        f"Approve {name_of(skill)}?",
        {NO: "no", YES: "yes"},
        has_changed=change is not None,
    )
    if chosen != YES:
        raise ApprovalDeniedError(f"{skill.reference} was not approved", reference=skill.reference)


def _report(output: Output, host: Host, skill: KnownSkill, words: str, *, is_new: bool = False) -> None:
    if output.json:
        output.document(
            {"approved": is_new, "grants": sorted(grants_of(host, skill)), **skill_json(host, skill)}
        )
        return
    held = ", ".join(sorted(grants_of(host, skill)))
    output.line(
        (words, "bold green" if is_new else "bold"), f"  {name_of(skill)}{f' ({held})' if held else ''}"
    )


async def _warn(output: Output, host: Host, skill: KnownSkill) -> None:
    """Print what would still prevent a load, such as a setting."""
    explanation = await host.explain(skill.reference)
    for step in explanation.steps:
        if not step.ok and step.refusal is not None:
            output.message(("warning:", "yellow"), f" it still cannot be loaded: {reason_of(step.refusal)}")
