"""`Conversation`: the skills that one model has loaded, their files, and which tool calls they allow."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from skillwire.core import SKILL_FILE, Dialect, Manifest, UnlistedFileError, quoted
from skillwire.host.approval.consent import Actor
from skillwire.host.listing.frozen import ConversationListings, FrozenListing
from skillwire.host.listing.text import ListingForm
from skillwire.host.model import (
    Activation,
    ApprovalDeniedError,
    ApprovalError,
    ApprovalState,
    CrossOriginError,
    Grant,
    KnownSkill,
    NotLoadedError,
    Occasion,
    Preview,
    ProvenanceResult,
    Question,
    Refusal,
    ShowRule,
    SkillActivated,
    TokenCounter,
    UnknownReferenceError,
    Windows,
    emit,
    match,
    new_boundary,
)
from skillwire.host.use.context import (
    RESTORED_TOKENS,
    AnnouncedChanges,
    Nudges,
    RestoredTexts,
    is_present,
    restore_texts,
)
from skillwire.host.use.explain import complete_variable, missing_dependency
from skillwire.host.use.files import (
    canonical_file_uri,
    children_of,
    directory_lines,
    dynamic_file_lines,
    published_directory,
    text_of,
    uri_of,
)
from skillwire.host.use.gate import Decision, OpenWindow, ToolCall, ToolKind, Verdict, allowed_tools, decide
from skillwire.host.use.load import (
    HostServices,
    content_of,
    is_current,
    load,
    pages_of,
    preview,
    recording_refusals,
    require_unchanged,
    review,
)
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
from skillwire.host.use.script_results import ScriptPreview, ScriptResult
from skillwire.host.use.scripts import preview_script, require_runner, run_script
from skillwire.host.use.search import SearchPage
from skillwire.host.use.tools import Tool, tools_for

if TYPE_CHECKING:
    from skillwire.runner import Availability


# `ListedConversation`: the list of skills for a model, search, hints before tool calls, and restored texts.


RESULTS_PER_PAGE = 10
CHANGES_SECONDS = 1.0


class ListedConversation:
    """The listing, search and compaction part of a conversation."""

    def __init__(self, services: Callable[[], HostServices], windows: Windows) -> None:
        self._services = services
        self._windows = windows
        self._listings = ConversationListings()
        self._nudges = Nudges()
        self._sent: set[str] = set()
        self._announced = AnnouncedChanges()

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
        services = self._services()
        view = services.registry.view
        return self._listings.text(
            view.skills,
            services.show_rules,
            form=form,
            budget_tokens=budget_tokens,
            count=count,
            servers=view.servers,
        )

    async def listing_changes(self, *, wait_seconds: float = CHANGES_SECONDS) -> str:
        """Return what changed since the listing was made, or since the last call; usually nothing.

        Call it before each request to the model and append what it returns,
        without changing earlier messages. Servers whose listing is no longer
        fresh are asked again. Changes of servers that take longer than
        `wait_seconds` are returned by a later call.
        """
        services = self._services()
        view = await services.registry.refresh(wait_seconds=wait_seconds)
        changes = self._listings.changes(view.skills, services.show_rules)
        self._announced.add(changes)
        return changes

    def close(self, reference: str) -> bool:
        """Unload a skill whose text, and everything derived from it, has left the context."""
        window = self._windows.by_reference(reference)
        if window is None:
            return False
        self._services().audit.record("close", reference=reference, uri=window.skill.id.uri)
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
        counter = count or self._listings.count
        listing = self._renewed_listing(budget_tokens, counter)
        left = budget_tokens - counter(listing) - 1
        found = restore_texts(self._services(), self._windows, self._windows.shown(), left, counter)
        return replace(found, listing=listing)

    def restore(self, context: Iterable[str], *, budget_tokens: int = RESTORED_TOKENS) -> str:
        """Return what the model had before and `context` no longer has, within `budget_tokens`.

        That are the texts of loaded skills, and if changes of the list are
        missing, the current list. `context` is what will be sent to the model,
        as texts in any form. Call it before each request, and append what it
        returns, usually nothing. Then compaction need not be detected
        elsewhere, and the model receives no text that it never had. If changes
        were appended to the list, the next call of `listing` makes a new one.
        """
        given = self._windows.shown()
        if not given and self._announced.is_empty:
            return ""
        texts = tuple(context)
        listing, count = "", self._listings.count
        if self._announced.are_lost(texts):
            listing = self._renewed_listing(budget_tokens, count)
            budget_tokens -= count(listing) + 1
        there = {window.boundary for window in given if is_present(window, texts)}
        lost = [window for window in given if window.boundary in self._sent - there]
        if not lost:
            self._sent |= there
            return listing
        self._listings.renew()
        found = restore_texts(self._services(), self._windows, lost, budget_tokens, count)
        # A text for which there is no room now is not looked for again with every request.
        self._sent = there | {skill.boundary for skill in found.skills}
        return replace(found, listing=listing).text

    def _renewed_listing(self, budget_tokens: int, count: TokenCounter) -> str:
        """Return the current list, which replaces the one in use, in at most half of the budget."""
        self._listings.renew()
        listing = self.listing()
        if count(listing) * 2 > budget_tokens:
            listing = self._short_listing(budget_tokens // 2, count)
        self._announced.replace(listing)
        return listing

    def _short_listing(self, budget_tokens: int, count: TokenCounter) -> str:
        services = self._services()
        view, form = services.registry.view, self._listings.form
        return FrozenListing().text(
            view.skills,
            services.show_rules,
            form=form,
            budget_tokens=budget_tokens,
            count=count,
            servers=view.servers,
        )

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
        services = self._services()
        view = services.registry.view
        found = await anyio.to_thread.run_sync(
            partial(
                services.search.find,
                view,
                query,
                limit=limit,
                cursor=cursor,
                label=label,
                include=None if everything else services.show_rules.may_model_load,
            )
        )
        services.audit.record("search", found=found.total)
        return found

    def unanswered_servers(self) -> tuple[str, ...]:
        """Return the labels of the servers whose first listing has not arrived yet."""
        servers = self._services().registry.view.servers
        return tuple(status.origin.label for status in servers if status.is_unanswered)

    def nudge(self, tool: str, server: str = "") -> str:
        """Return a hint for the model at a skill that explains the tool it is about to call.

        `server` is the label of the tool's MCP server. Each skill is named
        once in a conversation; usually the hint is empty.
        """
        services = self._services()
        loaded = {window.skill.id for window in self.loaded}
        view = services.registry.view
        return self._nudges.for_call(view, services.show_rules, tool=tool, server=server, loaded=loaded)


logger = logging.getLogger(__name__)


class Conversation(ListedConversation):
    """The context of one model: which skills are loaded in it, and which tool calls they allow.

    A host is the conversation of its own model; `child` makes one for a sub-agent.
    """

    def tools(self, *, with_resources: bool = False) -> tuple[Tool, ...]:
        """Return the tools for the model; none when there is neither a skill nor a server.

        `with_resources` adds a tool that reads any resource of a server.
        """
        services = self._services()
        view = services.registry.view
        if not (view.skills or view.servers):
            return ()
        return tools_for(self, with_resources=with_resources, with_scripts=services.runner is not None)

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
        services = self._services()
        with recording_refusals(services.audit, "load", reference):
            skill = await self._resolved(reference, actor)
            window = self._windows.find(skill.id)
            is_again = window is not None and is_current(services, window, skill, arguments)
            if window is None or not is_again:
                window = await load(services, skill, actor, arguments)
            framed = frame_skill(
                window,
                page,
                page_length=services.page_length,
                is_again=is_again,
                is_offline=services.files.is_offline(window.skill),
                texts=services.texts,
            )
        self._windows.open(window, page)
        services.audit.record(
            "load",
            reference=reference,
            origin=window.skill.id.origin.label,
            uri=window.skill.id.uri,
            page=page,
            again=is_again,
            arguments=sorted(window.fetched.arguments),
        )
        if services.on_event is not None and not is_again:
            emit(services.on_event, SkillActivated.of(window))
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
        services = self._services()
        with recording_refusals(services.audit, "read_skill_file", reference):
            window = self._require_window(reference)
            uri = uri_of(window.skill, path, relative_to)
            text = await pages_of(services, window, uri)
            return frame_file(window, uri, text, page, page_length=services.page_length)

    async def read_skill_bytes(self, reference: str, path: str) -> bytes:
        """Return a supporting file's bytes, for the embedding program and not for a model.

        Raises:
            SkillError: As for `read_skill_file`, except that it need not be text.
        """
        with recording_refusals(self._services().audit, "read_skill_bytes", reference):
            window = self._require_window(reference)
            return await content_of(self._services(), window, uri_of(window.skill, path))

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
        services = self._services()
        with recording_refusals(services.audit, "read_skill_directory", reference):
            window = self._require_window(reference)
            skill = window.skill
            inside = path.strip("/")
            uri = skill.entry.uri.root if inside in ("", ".") else uri_of(skill, inside)
            if not skill.is_remote or skill.entry.unpacked is not None:
                return children_of(skill, uri)
            connection = services.files.connection(skill.id.origin.label)
            if skill.entry.is_dynamic and skill.dialect is not Dialect.CORE:
                # Older dialects have no directories; their answer for a skill names the files.
                return dynamic_file_lines(
                    await connection.get_skill(skill.entry.uri, arguments=window.fetched.arguments), uri
                )
            items = await connection.read_directory(published_directory(skill, uri))
            if skill.entry.files is None:
                return directory_lines(skill, items)
            held = skill.entry.files.uris
            strange = [item.uri for item in items if not item.is_directory and item.uri not in held]
            if strange:
                error = UnlistedFileError(
                    f"{quoted(strange[0])} is in the directory and not in the skill's manifest",
                    uri=strange[0],
                )
                await require_unchanged(services, skill, error)
            return children_of(skill, uri)

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
        services = self._services()
        with recording_refusals(services.audit, "read_resource", f"{server} {uri}"):
            connection = services.files.connection(server)
            await self._require_own_origin(ToolCall("read_resource", ToolKind.READ, server=server, uri=uri))
            if (held := self._loaded_file(server, uri)) is not None:
                window, file = held
                text = await pages_of(services, window, file)
                return frame_file(window, file, text, page, page_length=services.page_length)
            services.audit.record("read", origin=server, uri=uri, source="server")
            content = (await connection.read_resource(uri)).content
            text = services.texts.prepared(
                (connection.origin, "resource", uri),
                content,
                lambda: PagedText.of(text_of(content, uri), services.page_length),
            )
        return frame_resource(
            connection.origin, uri, text, new_boundary(), page, page_length=services.page_length
        )

    def gate(self, call: ToolCall) -> Decision:
        """Decide whether a tool call may run while these skills are loaded.

        Nobody is asked, and nothing runs. "ask" means that the user has to
        agree to this one call; `authorise` asks.
        """
        return self._decided(call, self._windows.all())

    def _decided(self, call: ToolCall, among: Iterable[Activation]) -> Decision:
        services = self._services()
        windows = [OpenWindow(window.skill, self._grants(window)) for window in among]
        real = replace(call, path=os.path.realpath(call.path)) if call.path else call
        decision = decide(real, windows, services.protected, services.private)
        services.audit.record(
            "gate",
            tool=call.name,
            kind=call.kind.value if call.kind else "",
            verdict=decision.verdict.value,
            code=decision.code,
            skills=list(decision.skills),
        )
        return decision

    async def authorise(self, call: ToolCall) -> Decision:
        """Decide whether a tool call may run, and ask the user if needed; the verdict is allow or deny.

        The answer holds for this one call. If nobody can be asked, it is deny.
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
            agreed = await self._services().consent.permit(question)
        except ApprovalError as error:
            logger.info("tool call denied: %s", error)
            agreed = False
        return replace(decision, verdict=Verdict.ALLOW if agreed else Verdict.DENY)

    async def request_scripts(self, reference: str, path: str) -> bytes:
        """Ask the user whether the scripts of a loaded skill may be run, showing this one; return its bytes.

        The caller must run exactly the bytes returned here, which were shown
        and verified, and not a file that the model can rewrite. For a script
        without a digest the user is asked each time.

        Raises:
            ApprovalError: The user does not agree, or cannot be asked.
            SkillError: The script cannot be fetched.
        """
        services = self._services()
        with recording_refusals(services.audit, "request_scripts", reference):
            window = self._require_window(reference)
            skill = window.skill
            uri = uri_of(skill, path)
            content = await content_of(services, window, uri)
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
                await services.consent.request(question, Grant.SCRIPTS)
            elif not await services.consent.permit(question):
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
        services = self._services()
        with recording_refusals(services.audit, "run_script", reference):
            require_runner(services, reference)
        if actor == "user":
            await self.load(reference, actor=actor)
        with recording_refusals(services.audit, "run_script", reference):
            return await run_script(
                services,
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
        services = self._services()
        with recording_refusals(services.audit, "request_allowed_tools", reference):
            skill = self._require_window(reference).skill
            tools = allowed_tools(skill)
            if tools:
                question = Question(Occasion.ALLOWED_TOOLS, skill, tools=tools)
                await services.consent.request(question, Grant.ALLOWED_TOOLS)
            return tools

    def child(self) -> Conversation:
        """Return a conversation for a sub-agent, in which the same skills are loaded."""
        return Conversation(self._services, Windows(self._windows.all()))

    def adopt(self, child: Conversation) -> None:
        """Add the skills that a finished sub-agent loaded: its answer can contain their instructions."""
        self._windows.adopt(child._windows)

    async def _resolved(self, reference: str, actor: Actor) -> KnownSkill:
        """Return a skill. An error names similar skills only if the model may know all skills."""
        services = self._services()
        try:
            return await services.registry.resolve(reference)
        except UnknownReferenceError as error:
            if actor == "user" or services.show_rules.is_static:
                raise
            raise UnknownReferenceError(
                f"no skill is called {quoted(reference)}", reference=error.reference
            ) from error

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
        return self._decided(call, others).skills

    def _grants(self, window: Activation) -> frozenset[Grant]:
        return self._services().consent.grants(window.skill)


# `InspectingConversation`: what a person can find out about a skill before it is loaded.


class InspectingConversation(Conversation):
    """A conversation that can also inspect skills without loading them."""

    async def find(self, reference: str) -> KnownSkill:
        """Return the skill with this reference; an unlisted skill of a server has `label/URI`.

        Raises:
            UnknownReferenceError: No skill has this reference.
            AmbiguousReferenceError: Several skills match.
            SkillError: The server failed, or does not have the skill.
        """
        return await self._services().registry.resolve(reference)

    async def preview(self, reference: str, path: str = SKILL_FILE) -> Preview:
        """Fetch one file of a skill for a person to read. Nothing is loaded.

        Raises:
            SkillError: The file cannot be fetched, or does not match the entry.
        """
        return await preview(self._services(), reference, path)

    def review(self, skill: KnownSkill) -> AsyncGenerator[Preview]:
        """Yield every file of a skill for a person to read. Nothing is loaded.

        Each file is fetched when the caller asks for it, and checked against
        the entry in `skill`: `SKILL.md` first, then scripts. The files stay in
        the cache, so that `compare` can show the lines of both sides when an
        approved skill has changed.

        Raises:
            SkillError: A file cannot be fetched, or does not match the entry.
        """
        return review(self._services(), skill)

    @property
    def scripts_availability(self) -> Availability | None:
        """Whether scripts can run on this machine, and if not, why; None when this host runs no scripts."""
        runner = self._services().runner
        return None if runner is None else runner.availability

    async def preview_script(
        self, reference: str, script: str, arguments: Mapping[str, Any] | None = None
    ) -> ScriptPreview:
        """Return what `run_script` would run: the bytes, where, and on which terms. Nothing is run or loaded.

        Without `arguments` none are checked.

        Raises:
            ScriptsOffError: This host runs no scripts.
            SkillError: The script does not exist, cannot be fetched, or does not take these arguments.
        """
        services = self._services()
        with recording_refusals(services.audit, "preview_script", reference):
            skill = await services.registry.resolve(reference)
            return await preview_script(services, skill, script, arguments)

    def show_rule(self, skill: KnownSkill) -> ShowRule:
        """Return how the settings show a skill to the model."""
        return self._services().show_rules.of(skill)

    async def check_provenance(self, skill: KnownSkill) -> ProvenanceResult | None:
        """Return what the provenance provider says about this content; None when there is no provider."""
        check = self._services().provenance
        return None if check is None else await check.result_for(skill)

    async def missing_dependencies(self, skill: KnownSkill) -> Refusal | None:
        """Return which tools and prompts a skill declares to need and its server does not list.

        Raises:
            SkillError: The server cannot list its tools or prompts.
        """
        return await missing_dependency(self._services().files, skill)

    async def complete(
        self, label: str, template: str, variable: str, typed: str, *, others: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Return a server's completions for a variable of one of its templates in `view.templates`.

        The values are untrusted text, for a person to choose from. What the
        template expands to is the URI of a skill, found as `label/URI`.

        Raises:
            UnknownReferenceError: There is no such server, template or variable.
            SkillError: The server failed.
        """
        services = self._services()
        view = services.registry.view
        return await complete_variable(services.files, view, label, template, variable, typed, others)

    def approval_state(self, skill: KnownSkill) -> ApprovalState:
        """Return whether a skill as it is now is approved, and how."""
        return self._services().consent.approval_state(skill)

    def previous(self, skill: KnownSkill) -> Manifest | None:
        """Return the manifest of a skill that the user last approved, if any; nothing is fetched."""
        return self._services().consent.previous(skill)
