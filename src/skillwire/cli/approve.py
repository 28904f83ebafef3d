"""`skillwire approve`: your yes to one skill, with exactly these files."""

from typing import Annotated

import typer

from skillwire.cli.answer import Answer, answering
from skillwire.cli.asking import NO, YES, TerminalAsk
from skillwire.cli.failures import MisuseError
from skillwire.cli.hosting import DEFAULT_WAIT, Archives, At, Config, Frozen, Lock, Wait, Wanted, with_host
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.show import approvals_of, skill_json
from skillwire.cli.states import print_refusal, reason_of
from skillwire.core.manifest import is_digest
from skillwire.host import Change, Grant, Host, KnownSkill, Occasion, Question, RefusedError
from skillwire.host.approval.approvals import binding_of
from skillwire.host.asking import Paragraph, name_of, paragraphs_of
from skillwire.host.failures import (
    ApprovalDeniedError,
    ApprovalRequiredError,
    DynamicDeclinedError,
    SkillChangedError,
)

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
            help="What to agree to: load, scripts or allowed-tools; load unless told otherwise. "
            "Can be repeated.",
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
            help="The digest of what is promised, as `skillwire show` prints it: anything else is refused.",
            show_default=False,
        ),
    ] = None,
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

    Shows whose it is, what changed since you approved it, its files and what
    it asks for, and asks. The yes is bound to these files: after any change
    you are asked again. A script says --yes with the --digest it reviewed.
    """
    with answering("approve", json=json, verbose=verbose) as answer:
        _check(yes=yes, digest=digest)
        grants = frozenset(grant or (Grant.LOAD,))
        wanted = Wanted(
            config=config, targets=at or (), lock=lock, frozen=frozen, wait=wait, archives=archives
        )
        asker = None if yes else TerminalAsk.find()
        with_host(
            answer, wanted, lambda host: _approve(answer, host, asker, reference, grants, digest, is_sure=yes)
        )


def _check(*, yes: bool, digest: str | None) -> None:
    if yes and digest is None:
        raise MisuseError(
            "--yes needs --digest, so that exactly what was reviewed is approved",
            fix="take `binding` from `skillwire show REF --json`, or leave out --yes to be asked",
        )
    if digest is not None and not is_digest(digest):
        raise MisuseError(
            "--digest is no digest", fix="use sha256: and 64 digits, as `skillwire show REF` prints it"
        )


async def _approve(
    answer: Answer,
    host: Host,
    asker: TerminalAsk | None,
    reference: str,
    grants: frozenset[Grant],
    digest: str | None,
    *,
    is_sure: bool,
) -> None:
    if asker is not None:
        asker.host = host
    if host.lock.is_frozen:
        raise RefusedError("the lock is frozen, so approvals change nothing", reference=reference)
    skill = await host.find(reference)
    _require_digest(skill, digest)
    for problem in host.problems:
        print_refusal(answer, problem)
    if not skill.is_remote:
        grants &= {Grant.SCRIPTS}
    if not grants:
        _report(answer, host, skill, "it is a local skill, and needs no approval")
        return
    if grants <= held_by(host, skill):
        _report(answer, host, skill, "approved already")
        return
    if not is_sure:
        await _ask(host, asker, skill, grants)
    await host.approve(skill, grants)
    _report(answer, host, skill, "approved", is_new=True)
    await _warn(answer, host, skill)


def held_by(host: Host, skill: KnownSkill) -> frozenset[Grant]:
    """Return what is granted to exactly this content already."""
    found = [approval for _, approval in approvals_of(host, skill) if approval.is_for(skill.entry)]
    return frozenset(grant for approval in found for grant in approval.grants)


def _require_digest(skill: KnownSkill, digest: str | None) -> None:
    manifest = skill.entry.manifest
    if skill.is_remote and manifest is None:
        raise DynamicDeclinedError(
            f"{skill.reference} has no digests, so no approval could be bound to anything and remembered",
            reference=skill.reference,
            fix="allow it when it is loaded; you are asked at every load",
        )
    if digest is not None and manifest is not None and binding_of(manifest) != digest:
        raise SkillChangedError(
            f"{skill.reference} is not what --digest names: it is {binding_of(manifest)} now",
            reference=skill.reference,
            fix="review it again with `skillwire show`",
        )


async def _ask(host: Host, asker: TerminalAsk | None, skill: KnownSkill, grants: frozenset[Grant]) -> None:
    if asker is None:
        raise ApprovalRequiredError(
            f"{skill.reference} cannot be approved without someone to ask",
            reference=skill.reference,
            fix="run this on a terminal, or review it and pass --yes with --digest",
        )
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


def _report(answer: Answer, host: Host, skill: KnownSkill, words: str, *, is_new: bool = False) -> None:
    if answer.json:
        answer.document(
            {"approved": is_new, "grants": sorted(held_by(host, skill)), **skill_json(host, skill)}
        )
        return
    held = ", ".join(sorted(held_by(host, skill)))
    answer.line(
        (words, "bold green" if is_new else "bold"), f"  {name_of(skill)}{f' ({held})' if held else ''}"
    )


async def _warn(answer: Answer, host: Host, skill: KnownSkill) -> None:
    """Say what stands in the way of a load all the same, such as a setting."""
    explanation = await host.explain(skill.reference)
    for step in explanation.steps:
        if not step.is_well and step.refusal is not None:
            answer.word(("warning:", "yellow"), f" it still cannot be loaded: {reason_of(step.refusal)}")
