"""Running a script of a loaded skill in a local sandbox, after the user approved exactly that run.

The bytes are read and verified once: the same bytes are shown to the user and
then run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import anyio
import anyio.to_thread

from skillwire.core import (
    Coverage,
    Dialect,
    InvalidUriError,
    JsonValue,
    NotFoundError,
    RunnerError,
    SandboxUnavailableError,
    ScriptNotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    digest_of,
    visible,
)
from skillwire.host.approval.consent import Actor
from skillwire.host.calls import Session
from skillwire.host.dialects.base import NO_ARGUMENTS, Arguments, DialectClient
from skillwire.host.dialects.by_name import ExecDialectClient
from skillwire.host.model import (
    Activation,
    ApprovalDeniedError,
    DynamicFiles,
    Grant,
    KnownSkill,
    NotDeclaredError,
    Occasion,
    Question,
    RunTerms,
    ScriptsOffError,
)
from skillwire.host.state.audit import AuditLog
from skillwire.host.use.definitions import RUN_TOOL
from skillwire.host.use.gate import ToolCall, ToolKind
from skillwire.host.use.load import SkillLoader
from skillwire.host.use.present import one_word
from skillwire.host.use.script_results import (
    ScriptPreview,
    ScriptResult,
    format_arguments,
    format_limits,
    format_main_limits,
    frame_outcome,
    frame_server_result,
)
from skillwire.runner import Limits, OutputFile, Policy, Recorder, RunRecord
from skillwire.runner.interface import FOLDER, MANIFEST_PATH, ScriptInterface, ScriptRun
from skillwire.runner.preparation import (
    ReadFile,
    RunSlot,
    check_arguments,
    encode,
    find_script,
    interfaces_of,
    prepare,
    scripts_of,
)
from skillwire.wire.execute import EXECUTE_METHOD, LINK, TEXT, ExecutionResult, ResultPart

if TYPE_CHECKING:
    from skillwire.runner import Runner


# Preparing a run of a skill's script: reading its files, and the terms that the user approves.


_HTTPS = ":443"


def require_sandbox(runner: Runner) -> None:
    """Check that there is a sandbox, before the user is asked for approval.

    Raises:
        SandboxUnavailableError: There is none.
    """
    found = runner.availability
    if not found.is_available:
        raise SandboxUnavailableError(found.detail, reason=found.reason, backend=found.backend, fix=found.fix)


def require_interpreter(runner: Runner, script: str) -> None:
    """Check that there is an interpreter for a script.

    Raises:
        RunnerError: There is none.
    """
    if not runner.has_interpreter(script):
        raise RunnerError(
            "no interpreter is configured for scripts with this suffix",
            script=script,
            fix="continue without it; the interpreters are set in the policy for scripts",
        )


def plain_object(arguments: object) -> object:
    """Return a mapping as a dict, and anything else unchanged."""
    return dict(cast("Mapping[str, object]", arguments)) if isinstance(arguments, Mapping) else arguments


def rule_origin(skill: KnownSkill) -> str:
    """Return the skill's origin for rules of the policy: its server's label, or an empty text."""
    return skill.id.origin.label if skill.is_remote else ""


def granted_limits(policy: Policy, interface: ScriptInterface) -> Limits:
    return policy.limits.with_requested(interface.limits, policy.most)


def terms_of(policy: Policy, run: ScriptRun, *, beside: tuple[str, ...] = ()) -> RunTerms:
    """Return the terms of a run: what it is granted, and what it requests without being granted."""
    asked = run.interface
    rule = policy.rule_for(origin=run.origin, skill=run.skill, script=run.script, digest=run.digest)
    hosts = {_with_port(host) for host in rule.network} if rule is not None else set[str]()
    names = set(rule.secrets) if rule is not None else set[str]()
    network = tuple(host for host in asked.network if _with_port(host) in hosts)
    secrets = tuple(name for name in asked.secrets if name in names)
    unmet = [host for host in asked.network if host not in network]
    unmet += [name for name in asked.secrets if name not in secrets]
    return RunTerms(
        "sandbox",
        arguments=format_arguments(run.arguments),
        asked=format_limits(asked.limits),
        limits=format_main_limits(granted_limits(policy, asked)),
        network=network,
        secrets=secrets,
        unmet=tuple(unmet),
        other_skills=beside,
    )


async def _existing(entry: SkillEntry, path: str, read: ReadFile) -> str | None:
    try:
        uri = entry.uri.join(path)
        await read(uri)
    except (InvalidUriError, NotFoundError):
        return None
    return uri


def _one_at_a_time(read: ReadFile) -> ReadFile:
    """Return a reader that reads one file at a time, so that the user gets one question at a time."""
    turn = anyio.Lock()

    async def one(uri: str) -> bytes:
        async with turn:
            return await read(uri)

    return one


def _with_port(host: str) -> str:
    return host if ":" in host else host + _HTTPS


# Asking a server to run its own script. Each run needs approval, because the script cannot be inspected.


_MAX_NAME_LENGTH = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_CANCELLED = "cancelled"


def _result_of(skill: KnownSkill, path: str, executed: ExecutionResult, page_length: int) -> ScriptResult:
    texts = [_text(part) for part in executed.parts if part.kind == TEXT and part.content is not None]
    brought = [part for part in executed.parts if part.kind != TEXT and part.content is not None]
    files = _files(brought)
    named = [_describe_unfetched(part) for part in executed.parts if part.content is None]
    text = frame_server_result(
        skill, path, texts, named, files, is_error=executed.is_error, page_length=page_length
    )
    verdict = f"the server says that it {'failed' if executed.is_error else 'ran'}"
    return ScriptResult(
        skill.reference, skill.id.origin, path, "", "server", None, text, executed.is_error, verdict, files
    )


def _files(parts: list[ResultPart]) -> tuple[OutputFile, ...]:
    """Return the attached contents as files with safe, unique names."""
    taken: set[str] = set()
    files: list[OutputFile] = []
    for number, part in enumerate(parts, 1):
        last = _UNSAFE.sub("-", (part.name or part.uri).rpartition("/")[2])[-_MAX_NAME_LENGTH:].strip(".-")
        name = last or f"{_UNSAFE.sub('-', part.kind)[:_MAX_NAME_LENGTH]}-{number}"
        if name.casefold() in taken:
            name = f"{number}-{name}"
        taken.add(name.casefold())
        files.append(OutputFile(name, part.content or b""))
    return tuple(files)


def _describe_unfetched(part: ResultPart) -> str:
    """Describe a part without content: a link, which is not followed, or an unknown kind."""
    what = "a link" if part.kind == LINK else f"content of the kind {one_word(part.kind)}"
    about = [one_word(word) for word in (part.name, part.uri) if word]
    media = f", {visible(part.media_type, most=_MAX_NAME_LENGTH)}" if part.media_type else ""
    return " ".join([what, *about]) + media


def _text(part: ResultPart) -> str:
    return (part.content or b"").decode("utf-8", "replace")


def _exec(client: DialectClient) -> ExecDialectClient:
    if not isinstance(client, ExecDialectClient):
        raise NotDeclaredError(
            "the server no longer speaks the dialect for running scripts",
            violates="EXEC-01",
        )
    return client


Objections: TypeAlias = Callable[[ToolCall, Activation], tuple[str, ...]]
"""Returns the references of other loaded skills that do not allow a call."""


def recorder(audit: AuditLog) -> Recorder:
    """Return a recorder that writes each run to the host's audit log."""

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


def _listed_digest(skill: KnownSkill, run: ScriptRun) -> str:
    """Return the digest of the script in the skill's manifest; empty if it has none."""
    files = skill.entry.files
    line = files.find(skill.entry.uri.join(run.script)) if files is not None else None
    return "" if line is None else line.digest


class ScriptRuns:
    """Runs scripts of loaded skills, in a sandbox or on their server; `runner` is None if none may run."""

    def __init__(self, loader: SkillLoader, runner: Runner | None) -> None:
        self._loader = loader
        self.runner = runner

    def require_runner(self, reference: str) -> Runner:
        """Return the runner of this host.

        Raises:
            ScriptsOffError: This host does not run scripts.
        """
        if self.runner is None:
            raise ScriptsOffError("this host is not configured to run scripts", reference=reference[:200])
        return self.runner

    async def run(
        self,
        window: Activation,
        script: object,
        arguments: object,
        *,
        objections: Objections,
        actor: Actor,
    ) -> ScriptResult:
        """Run a script of a loaded skill, in a local sandbox or on its server.

        Raises:
            ScriptsOffError: This host does not run scripts.
            ApprovalError: The user denied it, or cannot be asked.
            SkillError: It cannot be read, or not be run.
        """
        runner = self.require_runner(window.skill.reference)
        if window.skill.dialect is Dialect.EXEC:
            return await self._run_on_server(window, script, arguments, objections=objections, actor=actor)
        require_sandbox(runner)
        skill = window.skill
        with runner.admit(skill.entry, script, arguments, origin=rule_origin(skill)) as place:
            return await self._run_here(window, script, arguments, place, objections=objections, actor=actor)

    async def _run_here(
        self,
        window: Activation,
        script: object,
        arguments: object,
        place: RunSlot,
        *,
        objections: Objections,
        actor: Actor,
    ) -> ScriptResult:
        """Read and verify the skill, ask the user, and run the script in a local sandbox."""
        runner, skill = self.require_runner(window.skill.reference), window.skill

        async def read(uri: str) -> bytes:
            return await self._loader.content_of(window, uri)

        run = await self._prepare(skill, script, arguments, read, skill_arguments=window.fetched.arguments)
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
            script_digest=_listed_digest(skill, run),
            script_content=run.files[run.script],
            terms=terms,
        )
        approval = await self._approve(question, actor)
        # The question may have been open for a long time.
        self._loader.require_still_approved(window)
        outcome = await runner.run(replace(run, approval=approval), place)
        text = frame_outcome(
            skill, run.script, outcome, network=terms.network, page_length=self._loader.page_length
        )
        return ScriptResult(
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

    async def preview(self, skill: KnownSkill, script: object, arguments: object) -> ScriptPreview:
        """Return what would run, and on which terms. Nothing is loaded, asked or run.

        Raises:
            ScriptsOffError: This host does not run scripts.
            ScriptNotFoundError: The skill has no such script.
            InvalidScriptArgumentsError: The script does not take these arguments.
            SkillError: The skill's files cannot be read.
        """
        runner = self.require_runner(skill.reference)
        self._loader.files.require_safe(skill)
        if skill.dialect is Dialect.EXEC:
            return await self._preview_on_server(skill, script, arguments)
        if skill.entry.coverage is Coverage.ARCHIVE:
            skill = await self._loader.files.opened(skill)
        fetched = DynamicFiles()

        async def read(uri: str) -> bytes:
            return await self._loader.files.file(skill, uri, fetched)

        run = await self._prepare(skill, script, arguments, read)
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

    async def _prepare(
        self,
        skill: KnownSkill,
        script: object,
        arguments: object,
        read: ReadFile,
        *,
        skill_arguments: Arguments = NO_ARGUMENTS,
    ) -> ScriptRun:
        """Read and check the files of a skill, and build the run. It is neither approved nor started yet.

        Without `arguments`, only the script itself is read, for a preview.
        `skill_arguments` are the arguments with which the skill itself was requested.

        Raises:
            ScriptNotFoundError: The skill has no such script.
            InvalidScriptArgumentsError: The script does not take these arguments.
            SkillError: A file of the skill cannot be read.
        """
        in_turn = _one_at_a_time(read)
        entry = await self._runnable_entry(skill, script, in_turn, skill_arguments)
        reads = read if entry.files is not None else in_turn
        origin = rule_origin(skill)
        if arguments is not None:
            return await prepare(entry, script, plain_object(arguments), reads, origin=origin)
        path = find_script(scripts_of(entry), script)
        interface = (await interfaces_of(entry, reads)).get(path, ScriptInterface())
        files = {path: await reads(entry.uri.join(path))}
        return ScriptRun(entry.uri.text, path, files, interface=interface, origin=origin)

    async def _runnable_entry(
        self, skill: KnownSkill, script: object, read: ReadFile, skill_arguments: Arguments
    ) -> SkillEntry:
        """Return the entry of a skill with all its known files, including the requested script.

        A dynamic skill may not list its files: then only the requested script and
        the manifest of scripts are tried.

        Raises:
            SkillError: The skill's server cannot be reached.
        """
        entry = skill.entry
        if entry.files is not None:
            return entry
        if not entry.dynamic_files and skill.dialect is not Dialect.CORE:
            connection = self._loader.files.connection(skill.id.origin.label)
            current = await connection.get_skill(entry.uri, arguments=skill_arguments)
            entry = replace(entry, dynamic_files=current.dynamic_files)
        inside = tuple(uri for uri in dict.fromkeys(entry.dynamic_files) if uri != entry.uri.text)
        entry = replace(entry, dynamic_files=inside)
        try:
            find_script(scripts_of(entry), script)
        except ScriptNotFoundError as error:
            if error.candidates or not isinstance(script, str):
                raise
            wanted = script if script.startswith(FOLDER) else FOLDER + script
            found = [uri for path in (wanted, MANIFEST_PATH) if (uri := await _existing(entry, path, read))]
            return replace(entry, dynamic_files=tuple(dict.fromkeys((*inside, *found))))
        return entry

    async def _run_on_server(
        self,
        window: Activation,
        script: object,
        arguments: object,
        *,
        objections: Callable[[ToolCall, Activation], tuple[str, ...]],
        actor: Actor,
    ) -> ScriptResult:
        """Ask a skill's server to run one of its scripts, after the user approved this run.

        Raises:
            NotDeclaredError: The server does not run scripts; nothing was sent.
            ApprovalError: The user denied it, or cannot be asked; nothing was sent.
            PeerError: The server answered with an error.
            SkillError: There is no usable answer.
        """
        skill = window.skill
        preview = await self._preview_on_server(skill, script, arguments)
        path, given = preview.script, preview.arguments or {}
        label = skill.id.origin.label
        call = ToolCall(
            RUN_TOOL, ToolKind.EXECUTE, skill=skill.reference, script=path, detail=f"on the server {label}"
        )
        terms = RunTerms("server", arguments=preview.terms.arguments, other_skills=objections(call, window))
        question = Question(
            Occasion.CALL,
            skill,
            servers=(label,),
            call=f"ask the server to run {path} of {skill.reference}",
            terms=terms,
        )
        if not await self._loader.consent.permit(question, actor=actor):
            raise ApprovalDeniedError(
                f"the user denied running a script of {skill.reference} on its server",
                reference=skill.reference,
            )
        executed = await self._execute(skill, path, given)
        return _result_of(skill, path, executed, self._loader.page_length)

    async def _preview_on_server(self, skill: KnownSkill, script: object, arguments: object) -> ScriptPreview:
        """Find the requested script, and check its arguments.

        Raises:
            ScriptNotFoundError: The server does not list such a script.
            InvalidScriptArgumentsError: The arguments are not a JSON object, or are too large.
            NotDeclaredError: The server does not run scripts; nothing was sent.
        """

        async def ask(session: Session, client: DialectClient) -> tuple[str, ...]:
            return await _exec(client).scripts(session, skill.entry.uri)

        paths = await self._loader.files.connection(skill.id.origin.label).call_once(EXECUTE_METHOD, ask)
        path = find_script(paths, script)
        value: object = {} if arguments is None else plain_object(arguments)
        check = partial(check_arguments, value, ScriptInterface(), script=path)
        given = await anyio.to_thread.run_sync(check, abandon_on_cancel=True)
        terms = RunTerms("server", arguments=format_arguments(given))
        return ScriptPreview(skill, path, "server", terms, arguments=given)

    async def _execute(self, skill: KnownSkill, path: str, given: Mapping[str, JsonValue]) -> ExecutionResult:
        """Send the request, and record its outcome in the audit log."""
        uri: SkillUri = skill.entry.uri

        async def ask(session: Session, client: DialectClient) -> ExecutionResult:
            return await _exec(client).execute(session, uri, path, given)

        connection = self._loader.files.connection(skill.id.origin.label)
        started = time.monotonic()
        outcome = _CANCELLED
        try:
            executed = await connection.call_once(EXECUTE_METHOD, ask)
            outcome = "failed" if executed.is_error else "ran"
            return executed
        except SkillError as error:
            outcome = error.refusal
            raise
        finally:
            self._loader.audit.record(
                "run",
                where="server",
                origin=skill.id.origin.label,
                skill=skill.id.uri,
                script=path,
                script_digest="",
                arguments_digest=digest_of(encode(given)),
                approval="for this run",
                outcome=outcome,
                duration_seconds=round(time.monotonic() - started, 3),
            )

    async def _approve(self, question: Question, actor: Actor) -> str:
        """Get the user's approval for a run, and return its kind for the audit log.

        A remembered grant is enough, except where approval is valid for one run
        only: with network or secrets, without a digest, or while skills of other
        servers are loaded.

        Raises:
            ApprovalError: The user denied it, or cannot be asked.
        """
        skill, consent = question.skill, self._loader.consent
        assert skill is not None, "a question about a script has a skill"
        if question.may_be_remembered:
            if consent.covers(skill, Grant.SCRIPTS):
                return "granted before"
            await consent.request(question, Grant.SCRIPTS, actor=actor)
            return "granted now"
        if not await consent.permit(question, actor=actor):
            raise ApprovalDeniedError(
                f"the user denied this run of a script of {skill.reference}", reference=skill.reference
            )
        return "for this run"
