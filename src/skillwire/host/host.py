"""`Host`: skills from many servers and local folders, for an agent to use safely."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

import anyio.to_thread

from skillwire.host.activation import Windows
from skillwire.host.approval.approvals import Approval, Ask, Grant
from skillwire.host.approval.consent import Consent, DynamicPolicy, PromptLimits
from skillwire.host.approval.locktrust import LockTrust
from skillwire.host.approval.policy import ProjectLock
from skillwire.host.approval.provenance import ProvenanceProvider
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.archives import NO_ARCHIVES, ArchivePolicy, Archives
from skillwire.host.attention import Attention, Attentions, Visible
from skillwire.host.comparing import compare, previous_of
from skillwire.host.comparison import Comparison
from skillwire.host.connections.config import read_servers
from skillwire.host.connections.endpoints import ServerConfig
from skillwire.host.connections.labels import require_distinct
from skillwire.host.connections.opening import AnyConnection, connection_for
from skillwire.host.connections.throttle import ConnectionLimits
from skillwire.host.events import OnActivation
from skillwire.host.explain import Circumstances, Explanation, explain
from skillwire.host.failures import ConfigError, RefusedError, UnknownReferenceError
from skillwire.host.fetching import Fetcher
from skillwire.host.inspection import Inspection
from skillwire.host.judging import Judge
from skillwire.host.loading import Machinery, recorded
from skillwire.host.offline import cached_skills
from skillwire.host.origin import Origin, SkillId
from skillwire.host.presentation import DEFAULT_PAGE_LENGTH
from skillwire.host.refusals import Refusal
from skillwire.host.registry.confusables import LOCAL
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.local import LocalRoot, LocalSkills, default_roots
from skillwire.host.registry.naming import match, name_of, uri_in
from skillwire.host.registry.registry import Registry, RegistryView
from skillwire.host.running.running import recorder
from skillwire.host.state.audit import AuditLog
from skillwire.host.state.cache import MAX_BYTES, MAX_BYTES_PER_ORIGIN, ContentCache
from skillwire.host.state.places import Places
from skillwire.host.state.trees import FOLDER as TREES
from skillwire.host.state.trees import Trees
from skillwire.host.state.trust import FolderTrust
from skillwire.runner import Policy, Runner

DEFAULT_WAIT_SECONDS = 5.0


class Host(Inspection):
    """All skills an agent may use, and everything that stands between them and its model.

        async with Host.from_config(".mcp.json", approve=ask_user) as host:
            loaded = await host.load("acme/refunds")

    Entering connects to the servers and asks for their listings, for at most
    `wait_seconds`; slower ones come later. `approve` is asked whenever the
    user has to decide; without it, what needs a decision is refused. `lock`
    is a project's `skills.lock`; when `frozen`, it alone decides. `project`
    is the folder whose own skills count once it is trusted, and
    `writable_roots` are where the agent's tools may write. What outlives a
    run lies in `places`. `prompts` and `limits` say how much a server may ask
    of the user and of this program, and the two `cache_bytes` how much of what
    was read stays on the disk, in all and of one server. `archives` says which
    archives are unpacked; without it none are. `show` says how much
    attention single skills may have, by reference, `label/*` or `*`; it comes
    before what a configuration says.

    `visible="approved"` keeps from the model whatever the user has not approved
    before; `top_level_only` leaves out skills that lie inside others;
    `by_priority` lists a server's skills in the order that it says they matter.
    `provenance` is asked about each skill before it is loaded, and may say no.
    `on_activation` hears of every skill whose text enters a model's context.
    `scripts` says how scripts are run, in a sandbox; without it none ever is.
    """

    def __init__(
        self,
        servers: Sequence[ServerConfig] = (),
        *,
        approve: Ask | None = None,
        project: Path | None = None,
        roots: Sequence[LocalRoot] | None = None,
        lock: str | Path | None = None,
        frozen: bool = False,
        dynamic: DynamicPolicy = "decline",
        places: Places | None = None,
        writable_roots: Iterable[Path] = (),
        state_key: bytes | None = None,
        granted_by: str = "",
        prompts: PromptLimits | None = None,
        show: Mapping[str, Attention] | None = None,
        visible: Visible = "all",
        top_level_only: bool = False,
        by_priority: bool = False,
        provenance: ProvenanceProvider | None = None,
        on_activation: OnActivation | None = None,
        limits: ConnectionLimits | None = None,
        archives: ArchivePolicy | None = None,
        scripts: Policy | None = None,
        cache_bytes: int = MAX_BYTES,
        cache_bytes_per_server: int = MAX_BYTES_PER_ORIGIN,
        page_length: int = DEFAULT_PAGE_LENGTH,
        wait_seconds: float = DEFAULT_WAIT_SECONDS,
        refused_servers: Sequence[Refusal] = (),
    ) -> None:
        super().__init__(self._open_machinery, Windows())
        if visible not in get_args(Visible):
            raise ConfigError("`visible` is either all or approved", fix='use "all" or "approved"')
        self._servers = tuple(server for server in servers if server.is_enabled and server.skills.is_on)
        self._unused = tuple(server for server in servers if server not in self._servers)
        settings = {server.label: server.skills for server in self._servers}
        self._attention = Attentions(settings, show, by_priority=by_priority)
        self._visible: Visible = visible
        self._top_level_only = top_level_only
        self._provenance = provenance
        self._on_activation = on_activation
        self._ask = approve
        self._roots = tuple(default_roots(project) if roots is None else roots)
        self._lock = ProjectLock(None if lock is None else Path(lock), is_frozen=frozen)
        self._dynamic: DynamicPolicy = dynamic
        self._places = places or Places.default()
        self._writable_roots = tuple(writable_roots)
        self._state_key = state_key
        self._granted_by = granted_by
        self._prompts = prompts or PromptLimits()
        self._limits = limits
        self._archive_policy = archives or NO_ARCHIVES
        self._scripts = scripts
        self._quotas = {"max_bytes": cache_bytes, "max_bytes_per_origin": cache_bytes_per_server}
        self._page_length = page_length
        self._wait_seconds = wait_seconds
        self._refused_servers = tuple(refused_servers)
        self._shared: Machinery | None = None
        self._stack = AsyncExitStack()

    @classmethod
    def from_config(cls, path: str | Path, **options: Any) -> "Host":
        """Make a host for the servers of a configuration file such as `.mcp.json`.

        The options are those of `Host`. A server that is configured wrongly
        costs only itself, and is named in `problems`.

        Raises:
            ConfigError: The file cannot be read, or is no such file.
        """
        found = read_servers(Path(path))
        return cls(found.servers, refused_servers=found.refused, **options)

    async def __aenter__(self) -> "Host":
        """Connect, and wait a little for the first listings.

        Raises:
            ConfigError: Two servers have the same label.
            UnsafePlaceError: The cache or the approvals would lie where they must not.
            InvalidLockError: The lock cannot be read.
        """
        if self._shared is not None:
            raise RefusedError("this host is open already")
        require_distinct([server.label for server in self._servers])
        async with AsyncExitStack() as stack:
            self._shared = await self._assemble(stack)
            self._stack = stack.pop_all()
        try:
            await self.refresh(wait_seconds=self._wait_seconds)
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
        return self._open_machinery().registry.view

    @property
    def problems(self) -> tuple[Refusal, ...]:
        """What the user should know of this host itself: servers, approvals or a lock that do not count."""
        tampered = (self._open_store().tampering, self._trust.tampering)
        found = [*self._refused_servers, *(refusal for refusal in tampered if refusal is not None)]
        return (*found, *self._lock.problems())

    @property
    def readable_folders(self) -> tuple[Path, ...]:
        """The folders of local skills, for an agent that lets its own tools read there.

        Skills of servers have no folder, cached or not.
        """
        return tuple(skill.directory for skill in self.view.skills if skill.directory is not None)

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """What the user has agreed to on this machine, by label and URI."""
        found = self._open_store().approvals().values()
        return tuple(sorted(found, key=lambda approval: (approval.skill.origin.label, approval.skill.uri)))

    @property
    def lock(self) -> ProjectLock:
        """The project's lock: whether it counts, what changed in it, and how to trust it."""
        return self._lock

    async def refresh(
        self,
        labels: Collection[str] | None = None,
        *,
        force: bool = False,
        by_user: bool = False,
        wait_seconds: float | None = None,
    ) -> RegistryView:
        """Ask servers for their listings where these are no longer fresh, and return what is known then.

        `force` asks in any case. `by_user` says that a person wants it: then
        servers that failed are tried at once, and earlier noes are forgotten.
        """
        machinery = self._open_machinery()
        if by_user:
            machinery.consent.calm()
        view = await machinery.registry.refresh(
            labels, force=force or by_user, at_once=by_user, wait_seconds=wait_seconds
        )
        machinery.audit.record(
            "listing", skills=len(view.skills), hidden=len(view.hidden), servers=len(view.servers)
        )
        return view

    async def approve(self, skill: KnownSkill, grants: Collection[Grant] = (Grant.LOAD,)) -> Approval | None:
        """Remember the user's yes to exactly the entry that was shown, which is the one in `skill`.

        None when it cannot be remembered, because the skill has no digests.

        Raises:
            RefusedError: The lock is frozen, so approvals change nothing.
        """
        if self._lock.is_frozen:
            raise RefusedError("the lock is frozen; nothing else is approved", reference=skill.reference)
        return await self._open_machinery().consent.approve(skill, frozenset(grants))

    def meant_by(self, reference: str) -> list[SkillId]:
        """Return the skills a reference means: the one that is known, else those approved under it.

        No server is asked.

        Raises:
            AmbiguousReferenceError: Several that are known could be meant.
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
        """Take back what the user agreed to for a skill; False when there was nothing.

        The skill need not be there any more, nor its server: `label/URI` and
        `label/name` mean what was approved under it.

        Raises:
            UnknownReferenceError: Nothing of this reference is known or approved.
        """
        machinery = self._open_machinery()
        skills = self.meant_by(reference) or [(await machinery.registry.resolve(reference)).id]
        return any([await machinery.consent.revoke(skill) for skill in skills])

    async def explain(self, reference: str, *, wait_seconds: float | None = None) -> Explanation:
        """Say why a skill is found, renamed, hidden or refused, and what to do about it.

        The label of a server is explained too. `wait_seconds` bounds how long
        a server is waited for.
        """
        loaded = any(window.skill.reference == reference for window in self.loaded)
        circumstances = Circumstances(
            tuple(server.label for server in self._unused),
            self.problems,
            self.approvals,
            self._lock,
            self._places.audit,
        )
        return await explain(
            self._open_machinery(),
            reference,
            is_loaded=loaded,
            circumstances=circumstances,
            wait_seconds=wait_seconds,
        )

    async def compare(self, reference: str, *, full: bool = False) -> Comparison:
        """Say how a skill as its server shows it now differs from what the user approved.

        Files that differ are fetched for that, as for a preview; nothing is
        loaded. Of a skill that was never approved they are only with `full`.

        Raises:
            UnknownReferenceError: No skill has this reference.
            UnavailableError: Its server is away, so what it shows now is not known.
            SkillError: The server cannot be asked, or does not have it.
        """
        machinery = self._open_machinery()
        with recorded(machinery.audit, "compare", reference):
            skill = await machinery.registry.resolve(reference)
            previous = await anyio.to_thread.run_sync(previous_of, skill, self._store, self._lock)
            return await compare(machinery, self._cache, skill, previous, full=full)

    async def forget_server(self, label: str) -> None:
        """Forget a server the user has removed: its approvals and everything cached of it."""
        store, cache, trees = self._open_store(), self._cache, self._trees
        await anyio.to_thread.run_sync(store.forget_origin, label)
        await anyio.to_thread.run_sync(cache.forget_label, label)
        await anyio.to_thread.run_sync(trees.forget_label, label)
        self._open_machinery().audit.record("forget", origin=label)

    async def trust_folder(self, folder: Path) -> RegistryView:
        """Trust a project's folder, so that its own skills count, and look at them."""
        await anyio.to_thread.run_sync(self._trust.trust, folder)
        self._open_machinery().audit.record("trust-folder")
        return await self.refresh([LOCAL])

    async def distrust_folder(self, folder: Path) -> RegistryView:
        """Trust a project's folder no longer: its skills are not used any more."""
        await anyio.to_thread.run_sync(self._trust.distrust, folder)
        self._open_machinery().audit.record("distrust-folder")
        return await self.refresh([LOCAL])

    async def trust_lock(self, content: bytes) -> None:
        """Trust the project's lock, whose `content` the user was shown: what it pins counts from now on.

        `lock.look()` has the content and what differs from what was trusted before.

        Raises:
            LockUntrustedError: The file has other bytes by now.
            RefusedError: This host has no lock.
        """
        await anyio.to_thread.run_sync(self._lock.trust, content)
        self._open_machinery().audit.record("lock-trusted", skills=len(self._lock.approvals))

    async def write_lock(self) -> bytes:
        """Write what is approved here into the project's lock, which is thereby trusted.

        Raises:
            RefusedError: There is no lock, or it is frozen.
        """
        origins = [server.origin for server in self._servers]
        content = await anyio.to_thread.run_sync(self._lock.write, self.approvals, origins)
        self._open_machinery().audit.record("lock-written", skills=len(self._lock.approvals))
        return content

    async def _assemble(self, stack: AsyncExitStack) -> Machinery:
        await anyio.to_thread.run_sync(self._prepare_places)
        self._store = ApprovalStore(self._places.state, key=self._state_key)
        self._trust = FolderTrust(self._places.state, key=self._state_key)
        self._cache = ContentCache(self._places.cache, **self._quotas)
        self._trees = Trees(self._places.cache / TREES, **self._quotas)
        audit = AuditLog(self._places.audit)
        self._archives = Archives(self._archive_policy, self._trees, audit)
        trust = LockTrust(self._places.state, key=self._state_key)
        await anyio.to_thread.run_sync(self._lock.open, trust)
        consent = Consent(
            self._store,
            self._lock,
            audit,
            ask=self._ask,
            dynamic=self._dynamic,
            granted_by=self._granted_by,
            limits=self._prompts,
            attention=self._attention,
        )
        if self._visible == "approved":
            self._attention.show_only(consent.covers)
        connections: dict[str, AnyConnection] = {}
        for server in self._servers:
            label = server.label
            connections[label] = connection_for(
                server,
                limits=self._limits,
                formats=self._archive_policy.formats_for(label),
                on_change=lambda label=label: registry.invalidate(label),
            )
        registry = Registry(
            list(connections.values()),
            LocalSkills(self._roots, self._trust),
            on_entries=consent.observe_all,
            offline=self._offline,
            top_level_only=self._top_level_only,
        )
        for connection in connections.values():
            await stack.enter_async_context(connection)
        for connection in connections.values():
            stack.callback(connection.begin_closing)
        await stack.enter_async_context(registry)
        fetcher = Fetcher(connections, self._cache, self._archives, audit)
        runner = None if self._scripts is None else Runner(self._scripts, record=recorder(audit))
        if runner is not None:
            await stack.enter_async_context(runner)
        return Machinery(
            registry,
            fetcher,
            consent,
            audit,
            self._protected,
            self._private,
            self._page_length,
            self._attention,
            judge=Judge(self._provenance, audit),
            on_activation=self._on_activation,
            runner=runner,
        )

    async def _close(self) -> None:
        self._shared = None
        await self._stack.aclose()

    def _prepare_places(self) -> None:
        self._places.check([root.path for root in self._roots], self._writable_roots)
        self._places.prepare()
        self._private = tuple(os.path.realpath(place) for place in (self._places.state, self._places.cache))
        self._protected = () if self._lock.path is None else (os.path.realpath(self._lock.path),)

    def _open_machinery(self) -> Machinery:
        if self._shared is None:
            raise RefusedError("the host is not open; use it with `async with`")
        return self._shared

    def _open_store(self) -> ApprovalStore:
        self._open_machinery()
        return self._store

    async def _offline(self, origin: Origin) -> Sequence[KnownSkill]:
        """Return the approved skills of a server that is away, as far as their text is cached."""
        known = {approval.skill: approval for approval in self._lock.approvals}
        if not self._lock.is_frozen:
            known |= self._store.approvals()
        approvals = [approval for approval in known.values() if approval.skill.origin == origin]
        return await anyio.to_thread.run_sync(cached_skills, approvals, self._cache, self._archives)
