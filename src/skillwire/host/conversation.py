"""`Conversation`: what one model has loaded, what it reads of it, and what it may do meanwhile."""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from skillwire.core.characters import quoted
from skillwire.core.uri import SKILL_FILE
from skillwire.errors import UnlistedFileError
from skillwire.host.activation import Activation, Windows, fresh_boundary
from skillwire.host.approval.approvals import Grant, Occasion, Question
from skillwire.host.approval.consent import Actor
from skillwire.host.events import tell
from skillwire.host.failures import (
    ApprovalDeniedError,
    ApprovalError,
    CrossOriginError,
    NotLoadedError,
    UnknownReferenceError,
)
from skillwire.host.gate import Decision, OpenWindow, ToolCall, ToolKind, Verdict, allowed_tools, decide
from skillwire.host.introduction import Introduction
from skillwire.host.loading import is_same, load, recorded, require_unchanged
from skillwire.host.presentation import (
    FramedText,
    LoadedSkill,
    SkillFileLine,
    files_of,
    frame_file,
    frame_resource,
    frame_skill,
)
from skillwire.host.reading import content_of
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.naming import match
from skillwire.host.running.preparing import require_on
from skillwire.host.running.results import RanScript
from skillwire.host.running.running import run_script
from skillwire.host.skillfiles import (
    as_they_come,
    children_of,
    file_meant,
    published_directory,
    text_of,
    told_files,
    uri_of,
)
from skillwire.host.tools import Tool, tools_for
from skillwire.wire.dialect import Dialect

logger = logging.getLogger(__name__)


class Conversation(Introduction):
    """One model's context: which skills are in it, and what that means for its tool calls.

    Made by a host, which is its user's own conversation, or by `child` for a sub-agent.
    """

    def tools(self, *, with_resources: bool = False) -> tuple[Tool, ...]:
        """Return the tools for the model; none when there is neither a skill nor a server to have one.

        `with_resources` adds a tool that reads any resource of a server.
        """
        machinery = self._machinery()
        view = machinery.registry.view
        if not (view.skills or view.servers):
            return ()
        return tools_for(self, with_resources=with_resources, with_scripts=machinery.runner is not None)

    async def load(self, reference: str, *, page: int = 1, actor: Actor = "model") -> LoadedSkill:
        """Load a skill, and return what the model shall receive.

        A skill that is loaded already is answered from its window, as are
        further pages. `actor` is "user" when a person asked for exactly this
        skill, who is then asked again even after an earlier no.

        Raises:
            UnknownReferenceError: No skill has this reference.
            ApprovalError: The user has not agreed to exactly this content.
            VerificationError: The server does not keep its promise.
            SkillError: The skill cannot be had, or must not be.
        """
        machinery = self._machinery()
        with recorded(machinery.audit, "load", reference):
            skill = await self._resolved(reference, actor)
            window = self._windows.find(skill.id)
            is_again = window is not None and self._still_answers(window, skill)
            if window is None or not is_again:
                window = await load(machinery, skill, actor)
            framed = frame_skill(
                window,
                page,
                page_length=machinery.page_length,
                is_again=is_again,
                is_away=machinery.fetcher.is_away(window.skill),
            )
        self._windows.open(window)
        machinery.audit.record(
            "load",
            reference=reference,
            origin=window.skill.id.origin.label,
            uri=window.skill.id.uri,
            page=page,
            again=is_again,
        )
        if not is_again:
            tell(machinery.on_activation, window)
        return framed

    async def read_skill_file(
        self, reference: str, path: str, *, page: int = 1, relative_to: str = SKILL_FILE
    ) -> FramedText:
        """Return a supporting file of a loaded skill, as text.

        `path` is relative to the skill's root. A reference found in the
        `SKILL.md` of a skill inside this one is relative to that, which
        `relative_to` names.

        Raises:
            NotLoadedError: The skill is not loaded.
            UnlistedFileError: It has no such file; nothing was sent.
            UnverifiedFileError: The file has no digest, and such files are not wanted.
            NotTextError: The file is no text.
            SkillChangedError: The skill changed since it was loaded.
            SkillError: The file cannot be had.
        """
        machinery = self._machinery()
        with recorded(machinery.audit, "read_skill_file", reference):
            window = self._require_window(reference)
            uri = uri_of(window.skill, path, relative_to)
            content = await content_of(machinery, window, uri)
            text = text_of(content, uri)
            return frame_file(window, uri, text, page, page_length=machinery.page_length)

    async def read_skill_bytes(self, reference: str, path: str) -> bytes:
        """Return a supporting file's bytes, for the embedding program and not for a model.

        Raises:
            SkillError: As for `read_skill_file`, except that it need not be text.
        """
        with recorded(self._machinery().audit, "read_skill_bytes", reference):
            window = self._require_window(reference)
            return await content_of(self._machinery(), window, uri_of(window.skill, path))

    def list_skill_files(self, reference: str) -> tuple[SkillFileLine, ...]:
        """List the supporting files of a loaded skill, from the entry that is held; nothing is sent.

        Raises:
            NotLoadedError: The skill is not loaded.
        """
        return files_of(self._require_window(reference).skill)

    async def read_skill_directory(self, reference: str, path: str = "") -> tuple[SkillFileLine, ...]:
        """Ask a loaded skill's server what one of its directories holds now.

        What the manifest does not list is not returned, and the manifest does
        not grow: such a file means that the skill changed. Only where not all
        files have digests the answer is taken as it comes. A skill out of an
        archive is answered for from there.

        Raises:
            NotLoadedError: The skill is not loaded.
            NotDeclaredError: The server does not offer to read directories.
            SkillChangedError: There are files now which the approved skill does not have.
            SkillError: The directory cannot be read.
        """
        machinery = self._machinery()
        with recorded(machinery.audit, "read_skill_directory", reference):
            window = self._require_window(reference)
            skill = window.skill
            inside = path.strip("/")
            uri = skill.entry.uri.root if inside in ("", ".") else uri_of(skill, inside)
            if not skill.is_remote or skill.entry.unpacked is not None:
                return children_of(skill, uri)
            connection = machinery.fetcher.connection(skill.id.origin.label)
            if skill.entry.is_dynamic and skill.dialect is not Dialect.CORE:
                # No older dialect has directories; what it tells of a skill names the files.
                return told_files(await connection.get_skill(skill.entry.uri), uri)
            items = await connection.read_directory(published_directory(skill, uri))
            if skill.entry.files is None:
                return as_they_come(skill, items)
            held = skill.entry.files.uris
            strange = [item.uri for item in items if not item.is_directory and item.uri not in held]
            if strange:
                error = UnlistedFileError(
                    f"{quoted(strange[0])} is in the directory and not in the skill's manifest",
                    uri=strange[0],
                )
                await require_unchanged(machinery, skill, error)
            return children_of(skill, uri)

    async def read_resource(self, server: str, uri: str, *, page: int = 1) -> FramedText:
        """Read any resource of a server, as ordinary content. It never loads a skill.

        While a skill of another server is loaded, the user is asked about
        each such read. A file of a loaded skill is checked as one.

        Raises:
            UnknownReferenceError: No server has this label.
            CrossOriginError: The user has not allowed this one read.
            UnlistedFileError: It would be a file of a loaded skill, which does not list it.
            NotTextError: The resource is no text.
            SkillError: It cannot be read.
        """
        machinery = self._machinery()
        with recorded(machinery.audit, "read_resource", f"{server} {uri}"):
            connection = machinery.fetcher.connection(server)
            await self._require_own_origin(ToolCall("read_resource", ToolKind.READ, server=server, uri=uri))
            if (held := self._held_file(server, uri)) is not None:
                window, file = held
                text = text_of(await content_of(machinery, window, file), file)
                return frame_file(window, file, text, page, page_length=machinery.page_length)
            machinery.audit.record("read", origin=server, uri=uri, source="server")
            content = await connection.read_resource(uri)
            text = text_of(content.content, uri)
        return frame_resource(
            connection.origin, uri, text, fresh_boundary(), page, page_length=machinery.page_length
        )

    def gate(self, call: ToolCall) -> Decision:
        """Decide whether a tool call may run while these skills are loaded.

        Nothing is asked and nothing runs here. "ask" means that the user has
        to agree to this one call, which `authorise` does.
        """
        return self._decided(call, self._windows.all())

    def _decided(self, call: ToolCall, among: Iterable[Activation]) -> Decision:
        machinery = self._machinery()
        windows = [OpenWindow(window.skill, self._grants(window)) for window in among]
        real = replace(call, path=os.path.realpath(call.path)) if call.path else call
        decision = decide(real, windows, machinery.protected, machinery.private)
        machinery.audit.record(
            "gate",
            tool=call.name,
            kind=call.kind.value if call.kind else "",
            verdict=decision.verdict.value,
            code=decision.code,
            skills=list(decision.skills),
        )
        return decision

    async def authorise(self, call: ToolCall) -> Decision:
        """Decide on a call and ask the user where that is needed; the verdict is allow or deny.

        The answer is for this one call. When nobody can be asked it is no.
        """
        decision = self.gate(call)
        if decision.verdict is not Verdict.ASK:
            return decision
        question = Question(
            Occasion.CROSS_ORIGIN if decision.code == "cross-origin" else Occasion.CALL,
            self._require_window(decision.skills[0]).skill,
            servers=(*decision.origins, call.server) if call.server else decision.origins,
            uri=call.uri,
            call=call.describe(),
        )
        try:
            agreed = await self._machinery().consent.permit(question)
        except ApprovalError as error:
            logger.info("a call was not allowed: %s", error)
            agreed = False
        return replace(decision, verdict=Verdict.ALLOW if agreed else Verdict.DENY)

    async def request_scripts(self, reference: str, path: str) -> bytes:
        """Ask the user, showing this one, whether a loaded skill's scripts may be run; return its bytes.

        What was shown is what was checked, and what the caller must run: the
        very bytes returned here, not a file the model can rewrite. About a
        script without a digest the user is asked each time.

        Raises:
            ApprovalError: The user does not want it, or cannot be asked.
            SkillError: The script cannot be had.
        """
        machinery = self._machinery()
        with recorded(machinery.audit, "request_scripts", reference):
            window = self._require_window(reference)
            skill = window.skill
            uri = uri_of(skill, path)
            content = await content_of(machinery, window, uri)
            line = skill.entry.files.find(uri) if skill.entry.files else None
            question = Question(
                Occasion.SCRIPTS,
                skill,
                uri=uri,
                call=f"run {skill.entry.uri.relative_path(uri)} of {skill.reference} on this machine",
                script=skill.entry.uri.relative_path(uri),
                script_digest=line.digest if line else "",
                script_content=content,
            )
            if line is not None or skill.entry.is_dynamic:
                await machinery.consent.request(question, Grant.SCRIPTS)
            elif not await machinery.consent.permit(question):
                raise ApprovalDeniedError(
                    f"the user does not want {quoted(path)} of {skill.reference} to be run",
                    reference=skill.reference,
                )
        return content

    async def run_script(
        self,
        reference: str,
        script: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        actor: Actor = "model",
    ) -> RanScript:
        """Run a script of a loaded skill in a sandbox, or have its server run it where only that can.

        The user is shown exactly what would run, unless that was agreed to
        for this content before; about a run with network or secrets, of a
        script without a digest, or on a server, each time. For a person, who
        is `actor` "user", the skill is loaded first. A script that failed, or
        was stopped at a limit, is a result. Cancelling this ends the script.

        Raises:
            ScriptsOffError: This host runs no scripts.
            NotLoadedError: The skill is not loaded.
            ApprovalError: The user does not agree, or cannot be asked; nothing was run or sent.
            SandboxUnavailableError: Nothing here can hold it.
            SkillError: It cannot be had, does not take these arguments, or could not be run.
        """
        machinery = self._machinery()
        with recorded(machinery.audit, "run_script", reference):
            require_on(machinery, reference)
        if actor == "user":
            await self.load(reference, actor=actor)
        with recorded(machinery.audit, "run_script", reference):
            return await run_script(
                machinery,
                self._require_window(reference),
                script,
                {} if arguments is None else arguments,
                objections=self._objections,
                actor=actor,
            )

    async def request_allowed_tools(self, reference: str) -> tuple[str, ...]:
        """Ask the user whether a loaded skill may use the tools its frontmatter names, and return them.

        Raises:
            ApprovalError: The user does not want it, or cannot be asked.
        """
        machinery = self._machinery()
        with recorded(machinery.audit, "request_allowed_tools", reference):
            skill = self._require_window(reference).skill
            tools = allowed_tools(skill)
            if tools:
                question = Question(Occasion.ALLOWED_TOOLS, skill, tools=tools)
                await machinery.consent.request(question, Grant.ALLOWED_TOOLS)
            return tools

    def close(self, reference: str) -> bool:
        """Close a skill's window, because its text, and all that was made of it, has left the context."""
        window = self._windows.by_reference(reference)
        if window is None:
            return False
        self._machinery().audit.record("close", reference=reference, uri=window.skill.id.uri)
        return self._windows.close(window.skill.id)

    def on_compaction(self, gone: Iterable[str] = ()) -> tuple[Activation, ...]:
        """Say that the context was summarised, and which skills left no trace in it; return what stays open.

        A summary carries instructions on, so windows stay open unless the
        caller knows better.
        """
        for reference in gone:
            self.close(reference)
        return self.loaded

    def child(self) -> "Conversation":
        """Make a sub-agent's conversation: whatever is loaded here is loaded there too."""
        return Conversation(self._machinery, Windows(self._windows.all()))

    def adopt(self, child: "Conversation") -> None:
        """Take over a finished sub-agent's windows: its answer carries what it has read."""
        self._windows.adopt(child._windows)

    async def _resolved(self, reference: str, actor: Actor) -> KnownSkill:
        """Find a skill; a model to which not all of them are shown is not told of others like it either."""
        machinery = self._machinery()
        try:
            return await machinery.registry.resolve(reference)
        except UnknownReferenceError as error:
            if actor == "user" or machinery.attention.is_settled:
                raise
            raise UnknownReferenceError(
                f"no skill is called {quoted(reference)}", reference=error.reference
            ) from error

    def _still_answers(self, window: Activation, skill: KnownSkill) -> bool:
        """Tell whether a window holds what a new load would bring, and what the user still agrees to."""
        if window.skill.entry.is_dynamic:
            return is_same(window.skill, skill)
        return is_same(window.skill, skill) and self._machinery().consent.covers(window.skill)

    def _require_window(self, reference: str) -> Activation:
        window = self._windows.by_reference(reference)
        if window is None:
            try:
                skill = match(reference, [window.skill for window in self._windows.all()])
            except UnknownReferenceError as error:
                raise NotLoadedError(
                    f"{quoted(reference)} is not loaded", reference=reference[:200]
                ) from error
            window = self._windows.find(skill.id)
        assert window is not None, "only loaded skills were looked through"
        return window

    async def _require_own_origin(self, call: ToolCall) -> None:
        decision = await self.authorise(call)
        if decision.verdict is not Verdict.ALLOW:
            raise CrossOriginError(
                f"skills of {', '.join(decision.origins)} are loaded, and this would read from {call.server}",
                reference=call.server,
            )

    def _held_file(self, server: str, uri: str) -> tuple[Activation, str] | None:
        """Return the window, the innermost of several, and the file of it that `uri` means."""
        found = [
            (window, file)
            for window in self._windows.all()
            if window.skill.is_remote and window.skill.id.origin.label == server
            if (file := file_meant(window.skill, uri)) is not None
        ]
        return max(found, key=lambda held: len(held[0].skill.id.uri), default=None)

    def _objections(self, call: ToolCall, own: Activation) -> tuple[str, ...]:
        """Put a run to the gate, and return the other loaded skills that do not allow it.

        Whether a skill's own script may run is no question of grants alone, and asked elsewhere.
        """
        others = [window for window in self._windows.all() if window.skill.id != own.skill.id]
        return self._decided(call, others).skills

    def _grants(self, window: Activation) -> frozenset[Grant]:
        return self._machinery().consent.grants(window.skill)
