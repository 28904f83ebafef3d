"""`Host`: the skills of many servers and local folders, for one agent."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio.to_thread

import skillwire.runner
from skillwire.core import SKILL_FILE, Manifest
from skillwire.host.approval.consent import Consent, ProvenanceCheck
from skillwire.host.approval.lock_trust import LockTrust, ProjectLock
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.approval.synced import SyncedFolders
from skillwire.host.connect.config import Servers, read_servers
from skillwire.host.connect.config_file import require_distinct
from skillwire.host.connect.connection import AnyConnection, connection_for
from skillwire.host.conversation import Conversation, OpenHost
from skillwire.host.model import (
    LOCAL,
    Approval,
    ApprovalState,
    Ask,
    Comparison,
    Grant,
    KnownSkill,
    OnEvent,
    Origin,
    Preview,
    ProvenanceResult,
    Refusal,
    RefusedError,
    RegistryView,
    ServerConfig,
    ShowRule,
    ShowRules,
    SkillId,
    UnknownReferenceError,
    match,
    name_of,
    uri_in,
)
from skillwire.host.options import HostLimits, HostPolicy, require_kind
from skillwire.host.registry.local import LocalRoot, LocalSkills, default_roots
from skillwire.host.registry.registry import Registry
from skillwire.host.state.audit import AuditLog
from skillwire.host.state.content import UNPACKED_FOLDER, ContentCache, UnpackedArchives
from skillwire.host.state.places import Storage
from skillwire.host.state.trust import FolderTrust
from skillwire.host.use.diff import compare, previous_of
from skillwire.host.use.explain import (
    ExplainContext,
    Explanation,
    complete_variable,
    explain,
    missing_dependency,
)
from skillwire.host.use.export import SkillExport
from skillwire.host.use.fetch import Archives, Files, cached_skills
from skillwire.host.use.gate import ToolGate
from skillwire.host.use.load import SkillLoader, recording_refusals
from skillwire.host.use.script_results import ScriptPreview
from skillwire.host.use.scripts import ScriptRuns, recorder
from skillwire.host.use.search import SEARCH_FOLDER, SkillSearch
from skillwire.runner import Policy
from skillwire.search.index import index_file

if TYPE_CHECKING:
    from skillwire.runner import Availability


class Host(Conversation):
    """The skills of MCP servers and local folders, for one agent.

        async with Host.from_config(".mcp.json", approve=ask_user) as host:
            loaded = await host.load("acme/refunds")

    Entering asks the servers for their listings, and waits until all have
    answered or `limits.wait_seconds` have passed; slower servers are added later.

    Args:
        servers: The servers to use, or what `read_servers` returned; then the entries that
            cannot be used are named in `problems`.
        approve: Asks the user to decide. Without it, whatever needs a decision is refused.
        project: The project's folder. Its own skills are used once the folder is trusted.
        lock: The project's `skills.lock`.
        roots: The folders of local skills; by default those of the user and of `project`.
        policy: What the host decides about skills.
        storage: Where state and cache are stored.
        limits: How much servers may ask of the user and of this program.
        scripts: How scripts are run, in a sandbox. Without it no script is run.
        on_event: Called with each event, such as `SkillActivated`.

    Raises:
        ConfigError: An option has an invalid value.
    """

    def __init__(
        self,
        servers: Servers | Iterable[ServerConfig] = (),
        *,
        approve: Ask | None = None,
        project: Path | None = None,
        lock: str | Path | None = None,
        roots: Sequence[LocalRoot] | None = None,
        policy: HostPolicy | None = None,
        storage: Storage | None = None,
        limits: HostLimits | None = None,
        scripts: Policy | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        super().__init__()
        found = servers if isinstance(servers, Servers) else Servers(tuple(servers))
        self._servers = tuple(server for server in found.servers if server.is_enabled and server.skills.is_on)
        self._unused = tuple(server for server in found.servers if server not in self._servers)
        self._refused_servers = found.refused
        self._policy = require_kind("policy", HostPolicy() if policy is None else policy, HostPolicy)
        self._storage = require_kind("storage", Storage() if storage is None else storage, Storage)
        self._limits = require_kind("limits", HostLimits() if limits is None else limits, HostLimits)
        settings = {server.label: server.skills for server in self._servers}
        self._show_rules = ShowRules(settings, self._policy.show, by_priority=self._policy.by_priority)
        self._ask = approve
        self._roots = tuple(default_roots(project) if roots is None else roots)
        self._lock = ProjectLock(None if lock is None else Path(lock), is_frozen=self._policy.frozen)
        self._scripts = scripts
        self._on_event = on_event
        self._stack = AsyncExitStack()

    @classmethod
    def from_config(cls, path: str | Path, **options: Any) -> Host:
        """Return a host for the servers of a configuration file such as `.mcp.json`.

        The options are those of `Host`. An entry that cannot be used is left
        out and named in `problems`.

        Raises:
            ConfigError: The file cannot be read, or is not such a file.
        """
        return cls(read_servers(Path(path)), **options)

    async def __aenter__(self) -> Host:
        """Connect to the servers, and wait for their first listings; log those that have not answered.

        Raises:
            ConfigError: Two servers have the same label.
            UnsafePlaceError: State or cache overlap with a folder of skills or of the agent's tools.
            InvalidLockError: The lock cannot be read.
        """
        if self._open is not None:
            raise RefusedError("the host is open already", fix="use one `async with` for each host")
        require_distinct([server.label for server in self._servers])
        async with AsyncExitStack() as stack:
            self._open = await self._assemble(stack)
            self._stack = stack.pop_all()
        try:
            wait_seconds = self._limits.wait_seconds
            await self.refresh(None if wait_seconds else [LOCAL], wait_seconds=wait_seconds or None)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def view(self) -> RegistryView:
        """All skills as far as they are known now, with everything that was refused or renamed."""
        return self._parts.loader.registry.view

    @property
    def problems(self) -> tuple[Refusal, ...]:
        """The configured servers, approvals and locks that are not used, and why."""
        tampered = (self._open_store().tampering, self._trust.tampering)
        found = [*self._refused_servers, *(refusal for refusal in tampered if refusal is not None)]
        return (*found, *self._lock.problems())

    @property
    def readable_folders(self) -> tuple[Path, ...]:
        """The folders of local skills, for an agent whose own tools may read them.

        Skills of servers have no folder, whether cached or not.
        """
        return tuple(skill.directory for skill in self.view.skills if skill.directory is not None)

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The approvals on this machine, sorted by label and URI."""
        found = self._open_store().approvals().values()
        return tuple(sorted(found, key=lambda approval: (approval.skill.origin.label, approval.skill.uri)))

    @property
    def lock(self) -> ProjectLock:
        """The project's lock: whether it is trusted, and what changed in it."""
        return self._lock

    @property
    def export(self) -> SkillExport:
        """The approved skills of the servers, with their verified files, for agents without a host."""
        origins = [server.origin for server in self._servers]
        return SkillExport(self._parts.loader, self._store, self._lock, self._cache, origins)

    # What a person can find out about a skill without loading it.

    async def find(self, reference: str) -> KnownSkill:
        """Return the skill with this reference; an unlisted skill of a server has `label/URI`.

        Raises:
            UnknownReferenceError: No skill has this reference.
            AmbiguousReferenceError: Several skills match.
            SkillError: The server failed, or does not have the skill.
        """
        return await self._parts.loader.registry.resolve(reference)

    async def preview(self, reference: str, path: str = SKILL_FILE) -> Preview:
        """Fetch one file of a skill for a person to read. Nothing is loaded.

        Raises:
            SkillError: The file cannot be fetched, or does not match the entry.
        """
        return await self._parts.loader.preview(reference, path)

    def review(self, skill: KnownSkill) -> AsyncGenerator[Preview]:
        """Yield every file of a skill for a person to read. Nothing is loaded.

        Each file is fetched when the caller asks for it, and checked against
        the entry in `skill`: `SKILL.md` first, then scripts. The files stay in
        the cache, so that `compare` can show the lines of both sides when an
        approved skill has changed.

        Raises:
            SkillError: A file cannot be fetched, or does not match the entry.
        """
        return self._parts.loader.review(skill)

    @property
    def scripts_availability(self) -> Availability | None:
        """Whether scripts can run on this machine, and if not, why; None when this host runs no scripts."""
        runner = self._parts.scripts.runner
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
        loader = self._parts.loader
        with recording_refusals(loader.audit, "preview_script", reference):
            skill = await loader.registry.resolve(reference)
            return await self._parts.scripts.preview(skill, script, arguments)

    def offered_skills(self, *, to_user: bool = False) -> tuple[KnownSkill, ...]:
        """Return the skills that a model may load, or with `to_user` a person, sorted by reference."""
        rules = self._parts.loader.show_rules
        if to_user:
            return tuple(skill for skill in self.view.skills if rules.may_user_load(skill))
        return tuple(skill for skill in self.view.skills if rules.may_model_load(skill))

    def show_rule(self, skill: KnownSkill) -> ShowRule:
        """Return how the settings show a skill to the model."""
        return self._parts.loader.show_rules.of(skill)

    async def check_provenance(self, skill: KnownSkill) -> ProvenanceResult | None:
        """Return what the provenance provider says about this content; None when there is no provider."""
        check = self._parts.loader.provenance
        return None if check is None else await check.result_for(skill)

    async def missing_dependencies(self, skill: KnownSkill) -> Refusal | None:
        """Return which tools and prompts a skill declares to need and its server does not list.

        Raises:
            SkillError: The server cannot list its tools or prompts.
        """
        return await missing_dependency(self._parts.loader.files, skill)

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
        loader = self._parts.loader
        return await complete_variable(
            loader.files, loader.registry.view, label, template, variable, typed, others
        )

    def approval_state(self, skill: KnownSkill) -> ApprovalState:
        """Return whether a skill as it is now is approved, and how."""
        return self._parts.loader.consent.approval_state(skill)

    def previous(self, skill: KnownSkill) -> Manifest | None:
        """Return the manifest of a skill that the user last approved, if any; nothing is fetched."""
        return self._parts.loader.consent.previous(skill)

    # What a person decides.

    async def refresh(
        self,
        labels: Collection[str] | None = None,
        *,
        force: bool = False,
        by_user: bool = False,
        wait_seconds: float | None = None,
    ) -> RegistryView:
        """Ask servers for listings that are no longer fresh, and return all skills known then.

        `force` asks all of them. `by_user` means that a person asked for it:
        servers that failed are tried at once, and earlier denials are forgotten.
        """
        loader = self._parts.loader
        if by_user:
            loader.consent.reset_prompts()
        view = await loader.registry.refresh(
            labels, force=force or by_user, at_once=by_user, wait_seconds=wait_seconds
        )
        loader.audit.record(
            "listing", skills=len(view.skills), hidden=len(view.hidden), servers=len(view.servers)
        )
        return view

    async def approve(self, skill: KnownSkill, grants: Collection[Grant] = (Grant.LOAD,)) -> Approval | None:
        """Store the user's approval of exactly the entry in `skill`, and return it.

        None when it cannot be stored, because the skill has no digests.

        Raises:
            RefusedError: The lock is frozen, so approvals have no effect.
        """
        if self._lock.is_frozen:
            raise RefusedError(
                "the lock is frozen, so nothing else can be approved", reference=skill.reference
            )
        return await self._parts.loader.consent.approve(skill, frozenset(grants))

    def matching(self, reference: str) -> list[SkillId]:
        """Return the skills that a reference matches: the known one, or else the approved ones.

        No server is asked.

        Raises:
            AmbiguousReferenceError: Several known skills match.
        """
        try:
            return [match(reference, self.view.skills).id]
        except UnknownReferenceError:
            label, _, name = reference.partition("/")
            uri = uri_in(reference)
            return [
                approval.skill
                for approval in (*self.approvals, *self._lock.approvals)
                if approval.skill.origin.label == label
                and (approval.skill.uri == uri.text if uri else name_of(approval.skill.uri) == name)
            ]

    async def revoke(self, reference: str) -> bool:
        """Revoke the approval of a skill; return False when there was none.

        Neither the skill nor its server need exist any more: `label/URI` and
        `label/name` match what was approved under that label.

        Raises:
            UnknownReferenceError: No known or approved skill matches.
        """
        loader = self._parts.loader
        skills = self.matching(reference) or [(await loader.registry.resolve(reference)).id]
        return any([await loader.consent.revoke(skill) for skill in skills])

    async def explain(self, reference: str, *, wait_seconds: float | None = None) -> Explanation:
        """Explain why a skill is found, renamed, hidden or refused, and what to do about it.

        `reference` can also be the label of a server. `wait_seconds` is how
        long to wait for a server.
        """
        loaded = any(window.skill.reference == reference for window in self.loaded)
        context = ExplainContext(
            tuple(server.label for server in self._unused),
            self.problems,
            self.approvals,
            self._lock,
            self._storage.audit,
        )
        return await explain(
            self._parts.loader,
            reference,
            is_loaded=loaded,
            context=context,
            wait_seconds=wait_seconds,
        )

    async def compare(self, reference: str, *, full: bool = False) -> Comparison:
        """Compare a skill as its server publishes it now with what the user approved.

        Files that differ are fetched, as for a preview; nothing is loaded. The
        files of a skill that was never approved are fetched only with `full`.

        Raises:
            UnknownReferenceError: No skill has this reference.
            UnavailableError: Its server cannot be reached.
            SkillError: The server failed, or does not have the skill.
        """
        loader = self._parts.loader
        with recording_refusals(loader.audit, "compare", reference):
            skill = await loader.registry.resolve(reference)
            previous = await anyio.to_thread.run_sync(previous_of, skill, self._store, self._lock)
            return await compare(loader.files, self._cache, loader.audit, skill, previous, full=full)

    async def forget_server(self, label: str) -> None:
        """Delete the approvals and the cached files of a server that the user has removed."""
        store, cache, unpacked = self._open_store(), self._cache, self._unpacked
        await anyio.to_thread.run_sync(store.forget_origin, label)
        await anyio.to_thread.run_sync(cache.forget_label, label)
        await anyio.to_thread.run_sync(unpacked.forget_label, label)
        self._parts.loader.audit.record("forget", origin=label)

    async def trust_folder(self, folder: Path) -> RegistryView:
        """Trust a project's folder, and return all skills, now with those of the folder."""
        await anyio.to_thread.run_sync(self._trust.trust, folder)
        self._parts.loader.audit.record("trust-folder")
        return await self.refresh([LOCAL])

    async def distrust_folder(self, folder: Path) -> RegistryView:
        """Stop trusting a project's folder, and return all skills, now without those of the folder."""
        await anyio.to_thread.run_sync(self._trust.distrust, folder)
        self._parts.loader.audit.record("distrust-folder")
        return await self.refresh([LOCAL])

    async def trust_lock(self, content: bytes) -> None:
        """Trust the project's lock with the `content` that the user was shown; its pins are used from now on.

        `lock.reload()` returns the content, and what changed since it was last trusted.

        Raises:
            LockUntrustedError: The file has changed since it was shown.
            RefusedError: This host has no lock.
        """
        await anyio.to_thread.run_sync(self._lock.trust, content)
        self._parts.loader.audit.record("lock-trusted", skills=len(self._lock.approvals))

    async def write_lock(self) -> bytes:
        """Write the approvals of this machine into the project's lock, and trust it; return its content.

        Raises:
            RefusedError: There is no lock, or it is frozen.
        """
        origins = [server.origin for server in self._servers]
        content = await anyio.to_thread.run_sync(self._lock.write, self.approvals, origins)
        self._parts.loader.audit.record("lock-written", skills=len(self._lock.approvals))
        return content

    async def _assemble(self, stack: AsyncExitStack) -> OpenHost:
        policy, storage, limits = self._policy, self._storage, self._limits
        await anyio.to_thread.run_sync(self._prepare_storage)
        self._store = ApprovalStore(storage.state, key=storage.state_key)
        self._trust = FolderTrust(storage.state, key=storage.state_key)
        quotas = {"max_bytes": limits.cache_bytes, "max_bytes_per_origin": limits.cache_bytes_per_server}
        self._cache = ContentCache(storage.cache, **quotas)
        self._unpacked = UnpackedArchives(storage.cache / UNPACKED_FOLDER, **quotas)
        audit = AuditLog(storage.audit)
        self._archives = Archives(policy.archives, self._unpacked, audit)
        trust = LockTrust(storage.state, key=storage.state_key)
        await anyio.to_thread.run_sync(self._lock.open, trust)
        consent = Consent(
            self._store,
            self._lock,
            audit,
            ask=self._ask,
            dynamic=policy.dynamic,
            granted_by=policy.granted_by,
            limits=limits.prompts,
            show_rules=self._show_rules,
        )
        if policy.visible == "approved":
            self._show_rules.show_only(consent.covers)
        connections: dict[str, AnyConnection] = {}
        for server in self._servers:
            label = server.label
            connections[label] = connection_for(
                server,
                limits=limits.connections,
                formats=policy.archives.formats_for(label),
                on_change=lambda label=label: registry.invalidate(label),
            )
        registry = Registry(
            list(connections.values()),
            LocalSkills(self._roots, self._trust, SyncedFolders(storage.state, key=storage.state_key)),
            on_entries=consent.observe_all,
            offline=self._offline,
            top_level_only=policy.top_level_only,
        )
        for connection in connections.values():
            await stack.enter_async_context(connection)
        for connection in connections.values():
            stack.callback(connection.begin_closing)
        await stack.enter_async_context(registry)
        runner = (
            None if self._scripts is None else skillwire.runner.Runner(self._scripts, record=recorder(audit))
        )
        if runner is not None:
            await stack.enter_async_context(runner)
        loader = SkillLoader(
            registry,
            Files(connections, self._cache, self._archives, audit),
            consent,
            audit,
            self._show_rules,
            provenance=None if policy.provenance is None else ProvenanceCheck(policy.provenance, audit),
            page_length=limits.page_length,
        )
        search = SkillSearch(
            index_file(self._search_key(), storage.cache / SEARCH_FOLDER), ranker=policy.ranker
        )
        stack.callback(search.close)
        gate = ToolGate(consent, audit, self._protected, self._private)
        return OpenHost(loader, gate, ScriptRuns(loader, runner), search, self._on_event)

    def _search_key(self) -> str:
        origins = sorted(f"{server.origin.label} {server.origin.fingerprint}" for server in self._servers)
        return "\n".join([*origins, *(str(root.path) for root in self._roots)])

    async def _close(self) -> None:
        self._open = None
        await self._stack.aclose()

    def _prepare_storage(self) -> None:
        self._storage.check([root.path for root in self._roots])
        self._storage.prepare()
        folders = (self._storage.state, self._storage.cache)
        self._private = tuple(os.path.realpath(folder) for folder in folders)
        self._protected = () if self._lock.path is None else (os.path.realpath(self._lock.path),)

    def _open_store(self) -> ApprovalStore:
        assert self._parts
        return self._store

    async def _offline(self, origin: Origin) -> Sequence[KnownSkill]:
        """Return the approved skills of a server that cannot be reached, if their text is cached."""
        known = {approval.skill: approval for approval in self._lock.approvals}
        if not self._lock.is_frozen:
            known |= self._store.approvals()
        approvals = [approval for approval in known.values() if approval.skill.origin == origin]
        return await anyio.to_thread.run_sync(cached_skills, approvals, self._cache, self._archives)
