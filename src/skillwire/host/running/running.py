"""Running a script of a loaded skill in a sandbox of this machine, after the user has agreed to exactly that.

The bytes are read and checked once. What the user is shown is what was
checked, and what runs is what was shown.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from skillwire.core.manifest import Coverage
from skillwire.host.activation import Activation, DynamicFiles
from skillwire.host.approval.approvals import Grant, Occasion, Question
from skillwire.host.approval.consent import Actor
from skillwire.host.failures import ApprovalDeniedError
from skillwire.host.gate import ToolCall, ToolKind
from skillwire.host.loading import Machinery
from skillwire.host.presentation import RUN_TOOL
from skillwire.host.reading import content_of, require_still_approved
from skillwire.host.registry.known import KnownSkill
from skillwire.host.running.preparing import (
    granted_limits,
    prepared,
    require_interpreter,
    require_on,
    require_sandbox,
    terms_of,
)
from skillwire.host.running.remote import preview_on_server, run_on_server
from skillwire.host.running.results import RanScript, ScriptPreview
from skillwire.host.running.words import frame_outcome
from skillwire.host.state.audit import AuditLog
from skillwire.runner import Recorder, RunRecord, ScriptRun
from skillwire.wire.dialect import Dialect

Objections: TypeAlias = Callable[[ToolCall, Activation], tuple[str, ...]]
"""Says which other loaded skills do not allow a call; their references."""


def recorder(audit: AuditLog) -> Recorder:
    """Return what writes each run down in the host's own log."""

    def record(run: RunRecord) -> None:
        audit.record(
            "run",
            where="sandbox",
            run_id=run.run_id,
            origin=run.origin,
            skill=run.skill,
            script=run.script,
            script_digest=run.script_digest,
            arguments_digest=run.arguments_digest,
            approval=run.approval,
            limits=run.limits,
            secrets=run.secrets,
            network=run.network,
            outcome=run.outcome,
            detail=run.detail,
            duration_seconds=run.duration_seconds,
            cpu_seconds=run.cpu_seconds,
            memory_bytes=run.memory_bytes,
            is_pooled=run.is_pooled,
            traffic=run.traffic,
        )

    return record


async def run_script(
    machinery: Machinery,
    window: Activation,
    script: object,
    arguments: object,
    *,
    objections: Objections,
    actor: Actor,
) -> RanScript:
    """Run a script of a loaded skill, here or on the server that keeps it.

    Raises:
        ScriptsOffError: This host runs none.
        ApprovalError: The user does not agree, or cannot be asked.
        SkillError: It cannot be had, or not be run.
    """
    runner = require_on(machinery, window.skill.reference)
    if window.skill.dialect is Dialect.EXEC:
        return await run_on_server(machinery, window, script, arguments, objections=objections, actor=actor)
    require_sandbox(runner)

    async def read(uri: str) -> bytes:
        return await content_of(machinery, window, uri)

    skill = window.skill
    run = await prepared(machinery, skill, script, arguments, read)
    require_interpreter(runner, run.script)
    call = ToolCall(
        RUN_TOOL, ToolKind.EXECUTE, skill=skill.reference, script=run.script, script_digest=run.digest
    )
    terms = terms_of(runner.policy, run, beside=objections(call, window))
    question = Question(
        Occasion.SCRIPTS,
        skill,
        uri=skill.entry.uri.join(run.script),
        call=f"run {run.script} of {skill.reference} on this machine",
        script=run.script,
        script_digest=_promised_digest(skill, run),
        script_content=run.files[run.script],
        terms=terms,
    )
    approval = await _agreed(machinery, question, actor)
    # The question may have been on the screen for long.
    require_still_approved(machinery, window)
    outcome = await runner.run(replace(run, approval=approval))
    text = frame_outcome(skill, run.script, outcome, network=terms.network, page_length=machinery.page_length)
    return RanScript(
        skill.reference,
        skill.id.origin,
        run.script,
        run.digest,
        "sandbox",
        outcome,
        text,
        outcome.is_error,
        outcome.verdict,
        outcome.files,
    )


async def preview_script(
    machinery: Machinery, skill: KnownSkill, script: object, arguments: object
) -> ScriptPreview:
    """Say what would run, and on which terms. Nothing is loaded, asked or run.

    Raises:
        ScriptsOffError: This host runs none.
        ScriptNotFoundError: The skill has no such script.
        InvalidScriptArgumentsError: The script does not take these arguments.
        SkillError: The skill's files cannot be had.
    """
    runner = require_on(machinery, skill.reference)
    machinery.fetcher.require_safe(skill)
    if skill.dialect is Dialect.EXEC:
        return await preview_on_server(machinery, skill, script, arguments)
    if skill.entry.coverage is Coverage.ARCHIVE:
        skill = await machinery.fetcher.opened(skill)
    fetched = DynamicFiles()

    async def read(uri: str) -> bytes:
        return await machinery.fetcher.file(skill, uri, fetched)

    run = await prepared(machinery, skill, script, arguments, read)
    return ScriptPreview(
        skill,
        run.script,
        "sandbox",
        terms_of(runner.policy, run),
        run.digest,
        run.files[run.script],
        run.interface,
        granted_limits(runner.policy, run.interface),
        run.arguments,
    )


async def _agreed(machinery: Machinery, question: Question, actor: Actor) -> str:
    """Make sure that the user agrees to a run, and return how, in words for the audit.

    A grant that is remembered is enough, except for what can only be meant
    for one run: with network or secrets, without a digest, or while other
    servers' skills are loaded.

    Raises:
        ApprovalError: The user does not, or cannot be asked.
    """
    skill, consent = question.skill, machinery.consent
    assert skill is not None, "a script is a skill's"
    if question.may_be_remembered:
        if consent.covers(skill, Grant.SCRIPTS):
            return "granted before"
        await consent.request(question, Grant.SCRIPTS, actor=actor)
        return "granted now"
    if not await consent.permit(question, actor=actor):
        raise ApprovalDeniedError(
            f"the user does not want this run of a script of {skill.reference}", reference=skill.reference
        )
    return "for this run"


def _promised_digest(skill: KnownSkill, run: ScriptRun) -> str:
    """Return the digest that the skill's origin promises; empty when it promises none."""
    files = skill.entry.files
    line = files.find(skill.entry.uri.join(run.script)) if files is not None else None
    return "" if line is None else line.digest
