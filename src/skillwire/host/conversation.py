"""`Conversation`: the skills that one model has loaded, their files, and which tool calls they allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread

from skillwire.core import SKILL_FILE, quoted
from skillwire.host.approval.consent import Actor
from skillwire.host.listing.context import (
    RESTORED_TOKENS,
    ConversationListings,
    Nudges,
    RestoredTexts,
)
from skillwire.host.listing.text import ListingForm
from skillwire.host.model import (
    Activation,
    ApprovalDeniedError,
    CrossOriginError,
    Grant,
    NotLoadedError,
    Occasion,
    OnEvent,
    Question,
    RefusedError,
    SkillActivated,
    TokenCounter,
    UnknownReferenceError,
    Windows,
    emit,
    match,
    new_boundary,
)
from skillwire.host.use.gate import Decision, ToolCall, ToolGate, ToolKind, Verdict, allowed_tools
from skillwire.host.use.load import SkillLoader, canonical_file_uri, recording_refusals, text_of, uri_of
from skillwire.host.use.present import (
    FramedText,
    LoadedSkill,
    PagedText,
    SkillFileLine,
    files_of,
    frame_file,
    frame_resource,
    frame_skill,
)
from skillwire.host.use.script_results import ScriptResult
from skillwire.host.use.scripts import ScriptRuns
from skillwire.host.use.search import SearchPage, SkillSearch
from skillwire.host.use.tools import Tool, tools_for

RESULTS_PER_PAGE = 10
CHANGES_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class OpenHost:
    """The parts of an open host that all its conversations share."""

    loader: SkillLoader
    gate: ToolGate
    scripts: ScriptRuns
    search: SkillSearch
    on_event: OnEvent | None = None


class Conversation:
    """The context of one model: which skills are loaded in it, and which tool calls they allow.

    Each has its own windows, listings and hints, and shares the parts of its
    host. A host is the conversation of its own model; `child` makes one for a
    sub-agent.
    """

    def __init__(
        self,
        host: Conversation | None = None,
        windows: Iterable[Activation] = (),
        *,
        page_length: int | None = None,
    ) -> None:
        self._host = host or self
        self._page_length = page_length
        self._open: OpenHost | None = None
        self._windows = Windows(windows)
        self._listings = ConversationListings()
        self._nudges = Nudges()

    @property
    def _parts(self) -> OpenHost:
        found = self._host._open
        if found is None:
            raise RefusedError("the host is not open; use it with `async with`")
        return found

    @property
    def page_length(self) -> int:
        """Bytes of UTF-8 of a skill's text in one page."""
        return self._page_length or self._parts.loader.page_length

    @property
    def loaded(self) -> tuple[Activation, ...]:
        """The loaded skills that this model may be acting on, the oldest first."""
        return self._windows.all()

    def listing(
        self,
        *,
        budget_tokens: int | None = None,
        form: ListingForm | None = None,
        count: TokenCounter | None = None,
    ) -> str:
        """Return the list of skills for the model's instructions; empty when there is nothing to list.

        Servers that have not answered, or could not be asked, are named in it.
        It is made once for the same arguments: later calls return the same
        bytes, so that prompt caches stay valid. A call without arguments
        returns the latest list, and `listing_changes` returns what to append
        to it. `count` counts tokens as the model in use does; without it
        tokens are estimated as UTF-8 bytes divided by four.
        """
        return self._listings.text(self._parts.loader, form=form, budget_tokens=budget_tokens, count=count)

    async def listing_changes(self, *, wait_seconds: float = CHANGES_SECONDS) -> str:
        """Return what changed since the listing was made, or since the last call; usually nothing.

        Call it before each request to the model and append what it returns,
        without changing earlier messages. Servers whose listing is no longer
        fresh are asked again. Changes of servers that take longer than
        `wait_seconds` are returned by a later call.
        """
        loader = self._parts.loader
        view = await loader.registry.refresh(wait_seconds=wait_seconds)
        return self._listings.changes(view.skills, loader.show_rules)

    def close(self, reference: str) -> bool:
        """Unload a skill whose text, and everything derived from it, has left the context."""
        window = self._windows.by_reference(reference)
        if window is None:
            return False
        self._parts.loader.audit.record("close", reference=reference, uri=window.skill.id.uri)
        return self._windows.close(window.skill.id)

    def on_compaction(self, removed: Iterable[str] = ()) -> tuple[Activation, ...]:
        """Unload the skills that are `removed` from a summarised context; return those that stay loaded.

        A summary can contain instructions of a skill, so all others stay loaded.
        """
        for reference in removed:
            self.close(reference)
        return self.loaded

    def after_compaction(
        self,
        removed: Iterable[str] = (),
        *,
        budget_tokens: int = RESTORED_TOKENS,
        count: TokenCounter | None = None,
    ) -> RestoredTexts:
        """Call `on_compaction`, and return the texts to add to the context again, within `budget_tokens`.

        That is the current list of skills, and the texts of the skills loaded
        in this conversation, framed as before: the newest first, long ones cut
        with a line on how to read the rest. Skills that are no longer approved
        are left out. Nothing is fetched.
        """
        self.on_compaction(removed)
        return self._listings.after_compaction(self._parts.loader, self._windows, budget_tokens, count)

    def restore(self, context: Iterable[str], *, budget_tokens: int = RESTORED_TOKENS) -> str:
        """Return what the model had before and `context` no longer has, within `budget_tokens`.

        That are the texts of loaded skills, and if changes of the list are
        missing, the current list. `context` is what will be sent to the model,
        as texts in any form. Call it before each request, and append what it
        returns, usually nothing. Then compaction need not be detected
        elsewhere, and the model receives no text that it never had. If changes
        were appended to the list, the next call of `listing` makes a new one.
        """
        return self._listings.restore(self._parts.loader, self._windows, context, budget_tokens)

    async def search(
        self,
        query: str,
        *,
        limit: int = RESULTS_PER_PAGE,
        cursor: str | None = None,
        label: str = "",
        everything: bool = False,
    ) -> SearchPage:
        """Search the listed skills by words. Nothing is read, and no server is asked.

        `label` limits the search to one server, or with `local` to local
        skills. `everything` adds the skills that only people may load.

        Raises:
            InvalidCursorError: The cursor is not from this search, or the skills have changed since.
        """
        parts, loader = self._parts, self._parts.loader
        found = await anyio.to_thread.run_sync(
            partial(
                parts.search.find,
                loader.registry.view,
                query,
                limit=limit,
                cursor=cursor,
                label=label,
                include=None if everything else loader.show_rules.may_model_load,
            )
        )
        loader.audit.record("search", found=found.total)
        return found

    def unanswered_servers(self) -> tuple[str, ...]:
        """Return the labels of the servers whose first listing has not arrived yet."""
        servers = self._parts.loader.registry.view.servers
        return tuple(status.origin.label for status in servers if status.is_unanswered)

    def nudge(self, tool: str, server: str = "") -> str:
        """Return a hint for the model at a skill that explains the tool it is about to call.

        `server` is the label of the tool's MCP server. Each skill is named
        once in a conversation; usually the hint is empty.
        """
        loader = self._parts.loader
        loaded = {window.skill.id for window in self.loaded}
        return self._nudges.for_call(
            loader.registry.view, loader.show_rules, tool=tool, server=server, loaded=loaded
        )

    def tools(self, *, with_resources: bool = False) -> tuple[Tool, ...]:
        """Return the tools for the model; none when there is neither a skill nor a server.

        `with_resources` adds a tool that reads any resource of a server.
        """
        view = self._parts.loader.registry.view
        if not (view.skills or view.servers):
            return ()
        with_scripts = self._parts.scripts.runner is not None
        return tools_for(self, with_resources=with_resources, with_scripts=with_scripts)

    async def load(
        self,
        reference: str,
        *,
        page: int = 1,
        arguments: Mapping[str, str] | None = None,
        actor: Actor = "model",
    ) -> LoadedSkill:
        """Load a skill, and return the text for the model.

        A skill that is already loaded is returned from memory, as are further
        pages. `arguments` are sent to servers that build a skill from them,
        after the user has seen them; different arguments load the skill again.
        `actor` is "user" when a person asked for exactly this skill; the user
        is then asked again even after a denial.

        Raises:
            UnknownReferenceError: No skill has this reference.
            InvalidArgumentsError: The skill does not take these arguments; nothing was sent.
            ArgumentsNeededError: It needs arguments that are missing; nothing was sent.
            ApprovalError: The user has not approved exactly this content.
            VerificationError: The content does not match the entry.
            SkillError: The skill cannot be fetched, or is not allowed.
        """
        parts, loader = self._parts, self._parts.loader
        with recording_refusals(loader.audit, "load", reference):
            try:
                skill = await loader.registry.resolve(reference)
            except UnknownReferenceError as error:
                if actor == "user" or loader.show_rules.is_static:
                    raise
                # An error names similar skills only if the model may know all skills.
                message = f"no skill is called {quoted(reference)}"
                raise UnknownReferenceError(message, reference=error.reference) from error
            window = self._windows.find(skill.id)
            is_again = window is not None and loader.is_current(window, skill, arguments)
            if window is None or not is_again:
                window = await loader.load(skill, actor, arguments)
            framed = frame_skill(
                window,
                page,
                page_length=self._page_length or loader.page_length,
                is_again=is_again,
                is_offline=loader.files.is_offline(window.skill),
                texts=loader.texts,
            )
        self._windows.open(window, page)
        loader.audit.record(
            "load",
            reference=reference,
            origin=window.skill.id.origin.label,
            uri=window.skill.id.uri,
            page=page,
            again=is_again,
            arguments=sorted(window.fetched.arguments),
        )
        if parts.on_event is not None and not is_again:
            emit(parts.on_event, SkillActivated.of(window))
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
            UnverifiedFileError: The file has no digest, and the policy declines such files.
            NotTextError: The file is not text.
            SkillChangedError: The skill changed since it was loaded.
            SkillError: The file cannot be fetched.
        """
        loader = self._parts.loader
        with recording_refusals(loader.audit, "read_skill_file", reference):
            window = self._require_window(reference)
            uri = uri_of(window.skill, path, relative_to)
            text = await loader.pages_of(window, uri, self.page_length)
            return frame_file(window, uri, text, page, page_length=self.page_length)

    async def read_skill_bytes(self, reference: str, path: str) -> bytes:
        """Return a supporting file's bytes, for the embedding program and not for a model.

        Raises:
            SkillError: As for `read_skill_file`, except that it need not be text.
        """
        loader = self._parts.loader
        with recording_refusals(loader.audit, "read_skill_bytes", reference):
            window = self._require_window(reference)
            return await loader.content_of(window, uri_of(window.skill, path))

    def list_skill_files(self, reference: str) -> tuple[SkillFileLine, ...]:
        """Return the supporting files of a loaded skill, from the loaded entry; nothing is sent.

        Raises:
            NotLoadedError: The skill is not loaded.
        """
        return files_of(self._require_window(reference).skill)

    async def read_skill_directory(self, reference: str, path: str = "") -> tuple[SkillFileLine, ...]:
        """Return what a directory of a loaded skill contains now, as its server lists it.

        A file that the manifest does not list is not returned; it means that
        the skill changed. Only if not all files have digests, the server's
        answer is returned as it is. For a skill from an archive, the unpacked
        archive is listed.

        Raises:
            NotLoadedError: The skill is not loaded.
            NotDeclaredError: The server does not offer to read directories.
            SkillChangedError: There are files that the approved skill does not have.
            SkillError: The directory cannot be read.
        """
        loader = self._parts.loader
        with recording_refusals(loader.audit, "read_skill_directory", reference):
            return await loader.directory(self._require_window(reference), path)

    async def read_resource(self, server: str, uri: str, *, page: int = 1) -> FramedText:
        """Read any resource of a server, as ordinary content. This never loads a skill.

        While a skill of another server is loaded, the user is asked about
        each read. A file of a loaded skill is verified like its other files.

        Raises:
            UnknownReferenceError: No server has this label.
            CrossOriginError: The user has not allowed this read.
            UnlistedFileError: It is inside a loaded skill, whose manifest does not list it.
            NotTextError: The resource is not text.
            SkillError: It cannot be read.
        """
        loader = self._parts.loader
        with recording_refusals(loader.audit, "read_resource", f"{server} {uri}"):
            connection = loader.files.connection(server)
            await self._require_own_origin(ToolCall("read_resource", ToolKind.READ, server=server, uri=uri))
            if (held := self._loaded_file(server, uri)) is not None:
                window, file = held
                text = await loader.pages_of(window, file, self.page_length)
                return frame_file(window, file, text, page, page_length=self.page_length)
            loader.audit.record("read", origin=server, uri=uri, source="server")
            content = (await connection.read_resource(uri)).content
            text = loader.texts.prepared(
                (connection.origin, "resource", uri, self.page_length),
                content,
                lambda: PagedText.of(text_of(content, uri), self.page_length),
            )
        return frame_resource(
            connection.origin, uri, text, new_boundary(), page, page_length=self.page_length
        )

    def gate(self, call: ToolCall) -> Decision:
        """Decide whether a tool call may run while these skills are loaded.

        Nobody is asked, and nothing runs. "ask" means that the user has to
        agree to this one call; `authorise` asks.
        """
        return self._parts.gate.decide(call, self._windows.all())

    async def authorise(self, call: ToolCall) -> Decision:
        """Decide whether a tool call may run, and ask the user if needed; the verdict is allow or deny.

        The answer holds for this one call. If nobody can be asked, it is deny.
        """
        return await self._parts.gate.authorise(call, self._windows.all())

    async def request_scripts(self, reference: str, path: str) -> bytes:
        """Ask the user whether the scripts of a loaded skill may be run, showing this one; return its bytes.

        The caller must run exactly the bytes returned here, which were shown
        and verified, and not a file that the model can rewrite. For a script
        without a digest the user is asked each time.

        Raises:
            ApprovalError: The user does not agree, or cannot be asked.
            SkillError: The script cannot be fetched.
        """
        loader = self._parts.loader
        with recording_refusals(loader.audit, "request_scripts", reference):
            window = self._require_window(reference)
            skill = window.skill
            uri = uri_of(skill, path)
            content = await loader.content_of(window, uri)
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
                await loader.consent.request(question, Grant.SCRIPTS)
            elif not await loader.consent.permit(question):
                raise ApprovalDeniedError(
                    f"the user does not allow {quoted(path)} of {skill.reference} to be run",
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
    ) -> ScriptResult:
        """Run a script of a loaded skill in a sandbox, or on its server if only the server can run it.

        The user is shown exactly what would run, unless this content was
        approved before. A run with network or secrets, of a script without a
        digest, or on a server is shown each time. With `actor` "user", the
        skill is loaded first. A script that failed, or was stopped at a limit,
        is a result. Cancelling the call ends the script.

        Raises:
            ScriptsOffError: This host runs no scripts.
            NotLoadedError: The skill is not loaded.
            ApprovalError: The user does not agree, or cannot be asked; nothing was run or sent.
            SandboxUnavailableError: This machine has no sandbox for it.
            SkillError: It cannot be fetched, does not take these arguments, or could not be run.
        """
        audit, scripts = self._parts.loader.audit, self._parts.scripts
        with recording_refusals(audit, "run_script", reference):
            scripts.require_runner(reference)
        if actor == "user":
            await self.load(reference, actor=actor)
        with recording_refusals(audit, "run_script", reference):
            return await scripts.run(
                self._require_window(reference),
                script,
                {} if arguments is None else arguments,
                objections=self._disallowing_skills,
                actor=actor,
            )

    async def request_allowed_tools(self, reference: str) -> tuple[str, ...]:
        """Ask the user whether a loaded skill may use the tools its frontmatter names, and return them.

        Raises:
            ApprovalError: The user does not agree, or cannot be asked.
        """
        loader = self._parts.loader
        with recording_refusals(loader.audit, "request_allowed_tools", reference):
            skill = self._require_window(reference).skill
            tools = allowed_tools(skill)
            if tools:
                question = Question(Occasion.ALLOWED_TOOLS, skill, tools=tools)
                await loader.consent.request(question, Grant.ALLOWED_TOOLS)
            return tools

    def child(self, *, page_length: int | None = None) -> Conversation:
        """Return a conversation for a sub-agent, in which the same skills are loaded.

        `page_length` is for a model whose results are cut at another length.
        """
        return Conversation(self._host, self._windows.all(), page_length=page_length or self._page_length)

    def adopt(self, child: Conversation) -> None:
        """Add the skills that a finished sub-agent loaded: its answer can contain their instructions."""
        self._windows.adopt(child._windows)

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
        assert window is not None, "only loaded skills were matched"
        return window

    async def _require_own_origin(self, call: ToolCall) -> None:
        decision = await self.authorise(call)
        if decision.verdict is not Verdict.ALLOW:
            raise CrossOriginError(
                f"skills of {', '.join(decision.origins)} are loaded, and this reads from {call.server}",
                reference=call.server,
            )

    def _loaded_file(self, server: str, uri: str) -> tuple[Activation, str] | None:
        """Return the loaded skill, the innermost of several, and its file that has this URI."""
        found = [
            (window, file)
            for window in self._windows.all()
            if window.skill.is_remote and window.skill.id.origin.label == server
            if (file := canonical_file_uri(window.skill, uri)) is not None
        ]
        return max(found, key=lambda held: len(held[0].skill.id.uri), default=None)

    def _disallowing_skills(self, call: ToolCall, own: Activation) -> tuple[str, ...]:
        """Return the other loaded skills that do not allow a run.

        Whether the skill itself allows its own script depends on more than grants, and is decided elsewhere.
        """
        others = [window for window in self._windows.all() if window.skill.id != own.skill.id]
        return self._parts.gate.decide(call, others).skills
