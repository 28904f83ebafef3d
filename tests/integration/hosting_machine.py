"""`Approvals`: a machine that does to a host what users, servers and other programs may, in any order.

Beside the host it keeps a `Model` of what the user has agreed to. Whatever
reaches the model's context is held against that.
"""

import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, TypeVar

import anyio
from anyio.from_thread import BlockingPortal
from hypothesis import currently_in_test_context, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from integration.hosting_model import Model
from integration.hosting_shop import (
    INNER,
    LABEL,
    LIVE,
    REFERENCES,
    REFUNDS,
    Asked,
    FileSet,
    Shop,
    files_of,
    skill_md,
)
from skillwire.core.errors import SkillError
from skillwire.host import HostLimits, HostPolicy
from skillwire.host.approval.consent import Actor, PromptLimits
from skillwire.host.conversation import Conversation
from skillwire.host.host import Host
from skillwire.host.model.approval import Question, Reply
from skillwire.host.model.origin import KnownSkill
from skillwire.host.state.places import Storage
from skillwire.host.use.present import FramedText, LoadedSkill

T = TypeVar("T")

DONE_WITHIN = 30.0
PATIENT = PromptLimits(contents_per_skill=10_000, questions_per_server=10_000)
PATHS = ("references/policy.md", "references/rules.md", "scripts/check.sh", "inner/SKILL.md", "notes.md")

skills = st.sampled_from((REFUNDS, INNER, LIVE))
listed = st.sampled_from((REFUNDS, INNER))
files = st.sampled_from(("SKILL.md", *PATHS))
actors = st.sampled_from(("user", "model"))
replies = st.sampled_from((Reply.ALWAYS, Reply.ALWAYS, Reply.ONCE, Reply.DENY))
interferences = st.sampled_from(("nothing", "nothing", "nothing", "changed", "changed-and-seen"))
changes = st.sampled_from(("body", "file", "add", "remove", "rename", "frontmatter", "inner", "inner-gone"))
numbers = st.integers(0, 7)


class Approvals(RuleBasedStateMachine):
    """One user, one server, one project, and one host after the other at the same places."""

    outcomes: ClassVar[Counter[str]] = Counter()
    """How often each way of the host was gone, over all runs."""

    def __init__(self, portal: BlockingPortal, shop: Shop, folder: Path) -> None:
        super().__init__()
        self._portal = portal
        self._shop = shop
        home = Path(tempfile.mkdtemp(dir=folder))
        self._places = Storage(home / "state", home / "cache")
        self._lock = home / "skills.lock"
        self._model = Model(shop.config.endpoint.fingerprint)
        self._number = 0
        self._catalogue: dict[str, dict[str, bytes]] = {}
        self._history: list[dict[str, dict[str, bytes]]] = []
        self._loaded: list[dict[str, dict[str, bytes]]] = []
        self._records: list[KnownSkill] = []
        self._reply = Reply.DENY
        self._meanwhile: Callable[[], Awaitable[object]] | None = None
        self._asked = 0
        self._open: Host | None = None
        self._running: AbstractContextManager[Host] | None = None
        self._is_disturbed = False
        self._children: list[Conversation] = []
        self._windows: list[set[str]] = []

    @initialize(is_locked=st.booleans())
    def begin(self, is_locked: bool) -> None:
        """Publish the first version, and start a host; perhaps all is approved already, and in the lock."""
        shop = self._shop
        shop.trace.clear()
        shop.blobs.clear()
        shop.lies.clear()
        shop.is_offline = False
        self._catalogue = {
            REFUNDS: {
                "SKILL.md": skill_md(REFUNDS, 0),
                "references/policy.md": b"Policy 000000.\n",
                "scripts/check.sh": b"echo 000000\n",
            },
            INNER: {"SKILL.md": skill_md(INNER, 0), "notes.md": b"Notes 000000.\n"},
        }
        self._publish()
        self._start(is_frozen=False)
        if is_locked:
            self.write_lock(is_approved=True)

    def teardown(self) -> None:
        self._stop()

    # The server

    @rule(what=changes, is_seen=st.booleans(), uri=listed, path=files)
    def change(self, what: str, is_seen: bool, uri: str = REFUNDS, path: str = "SKILL.md") -> None:
        """Publish another version, while the one before may be loaded."""
        self._change(what)
        self._publish()
        if is_seen:
            self._refresh(by_user=True)
        self.read_file(uri, path, 0)

    @rule(number=numbers, is_seen=st.booleans(), uri=listed)
    def revert(self, number: int, is_seen: bool, uri: str) -> None:
        """Publish an earlier version again, most likely one that was loaded then."""
        versions = self._loaded if self._loaded and number > 1 else self._history
        self._catalogue = _copied(versions[number % len(versions)])
        self._publish()
        if is_seen:
            self._refresh(by_user=True)
            self._load(uri, Reply.DENY, "model", 0)

    @rule(what=changes, uri=listed, first=replies, reply=replies)
    def flip_flop(self, what: str, uri: str, first: Reply, reply: Reply) -> None:
        """Publish another version, let it be seen and perhaps loaded, and take it back."""
        before = _copied(self._catalogue)
        self._load(uri, first, "user", 0)
        self._change(what)
        self._publish()
        self._refresh(by_user=True)
        self._load(uri, reply, "user", 0)
        self._catalogue = before
        self._publish()
        self._refresh(by_user=True)
        self._load(uri, Reply.DENY, "model", 0)

    @precondition(lambda self: not (self._shop.lies or self._shop.is_offline))
    @rule(uri=listed, path=files, is_offline=st.sampled_from((False, False, True)))
    def lie_or_go_away(self, uri: str, path: str, is_offline: bool) -> None:
        """Serve a file with other bytes than are listed, or serve nothing."""
        self._shop.is_offline = is_offline
        self._is_disturbed = True
        if not is_offline:
            self._shop.lies.add(uri.removesuffix("SKILL.md") + path)

    @precondition(lambda self: self._shop.lies or self._shop.is_offline)
    @rule()
    def be_honest_and_come_back(self) -> None:
        """The user asks at once: how long a host leaves a server alone depends on the time of day."""
        self._shop.lies.clear()
        self._shop.is_offline = False
        self._refresh(by_user=True)

    # The user, and what the model asks for

    @rule(is_by_user=st.booleans())
    def refresh(self, is_by_user: bool) -> None:
        self._refresh(by_user=is_by_user)

    @rule(uri=skills, reply=replies, actor=actors, number=numbers, meanwhile=interferences)
    def load(self, uri: str, reply: Reply, actor: Actor, number: int, meanwhile: str) -> None:
        self._load(uri, reply, actor, number, meanwhile)

    @rule(uri=listed, reply=replies, is_known=st.booleans())
    def load_again(self, uri: str, reply: Reply, is_known: bool) -> None:
        """Load a skill, and once more when nobody says yes any more."""
        if is_known:
            self._refresh(by_user=True)
        self._load(uri, reply, "user", 0)
        self._load(uri, Reply.DENY, "model", 0)

    @rule(uri=listed, path=files, number=numbers)
    def read_file(self, uri: str, path: str, number: int) -> None:
        conversation, windows = self._conversation(number)
        read = self._do(lambda _host: conversation.read_skill_file(REFERENCES[uri], path))
        if read is not None:
            assert uri in windows, f"a file of {uri} was read, which is not loaded"
            self._require_agreed_file(uri, read)

    @rule(uri=listed, path=files)
    def preview(self, uri: str, path: str) -> None:
        shown = self._do(lambda host: host.preview(REFERENCES[uri], path))
        if shown is not None and shown.skill.entry.manifest is not None:
            assert shown.content == self._shop.blobs[shown.skill.entry.manifest.require(shown.uri).digest]
        self._check_windows()

    @rule(uri=listed, path=files, number=numbers)
    def read_resource(self, uri: str, path: str, number: int) -> None:
        conversation, windows = self._conversation(number)
        wanted = uri.removesuffix("SKILL.md") + path
        read = self._do(lambda _host: conversation.read_resource(LABEL, wanted))
        around = [uri for uri in windows if wanted.startswith(uri.removesuffix("SKILL.md"))]
        if read is not None and around:
            self._require_agreed_file(max(around, key=len), read)
        self._check_windows()

    @precondition(lambda self: not self._model.is_frozen)
    @rule(number=numbers)
    def approve_a_record(self, number: int) -> None:
        """Say yes to an entry as it was shown at some time, whatever the server has by now."""
        if self._records:
            self._approve(self._records[number % len(self._records)])

    @rule(uri=listed, first=replies, path=files)
    def revoke(self, uri: str, first: Reply, path: str) -> None:
        """Take back what was agreed to, perhaps a moment ago, and try to go on."""
        self._load(uri, first, "user", 0)
        if self._do(lambda host: host.revoke(REFERENCES[uri])) is not None:
            self._model.revoke(uri)
            self.read_file(uri, path, 0)
            self._load(uri, Reply.DENY, "model", 0)

    @rule(uri=skills, how=st.sampled_from(("closed", "gone", "summarised")))
    def forget(self, uri: str, how: str) -> None:
        """A skill's text leaves the context, or is summarised and so does not."""
        if how == "summarised":
            self._portal.call(self._host.on_compaction)
        elif how == "gone":
            self._portal.call(self._host.on_compaction, [REFERENCES[uri]])
        else:
            self._portal.call(self._host.close, REFERENCES[uri])
        if how != "summarised":
            self._windows[0].discard(uri)
        self._check_windows()

    @rule(is_new=st.booleans())
    def start_or_finish_a_sub_agent(self, is_new: bool) -> None:
        if is_new and len(self._children) < 3:
            self._children.append(self._portal.call(self._host.child))
            self._windows.append(set(self._windows[0]))
        elif self._children:
            self._portal.call(self._host.adopt, self._children.pop())
            self._windows[0] |= self._windows.pop()
        self._check_windows()

    @rule(uri=listed)
    def restart(self, uri: str) -> None:
        self._restart(is_frozen=False)
        self._load(uri, Reply.DENY, "model", 0)

    # The project's lock

    @precondition(lambda self: not self._model.is_frozen)
    @rule(is_approved=st.booleans())
    def write_lock(self, is_approved: bool) -> None:
        """Write the lock, perhaps after a yes to everything that is known."""
        for skill in self._host.view.skills if is_approved else ():
            if not skill.entry.is_dynamic:
                self._approve(skill)
        before = {**self._model.pins}
        written = self._do(lambda host: host.write_lock())
        if written is not None:
            assert written == self._lock.read_bytes()
            for uri, found in self._model.read(written).items():
                assert found in (self._model.stored.get(uri), self._model.doomed.get(uri), before.get(uri))
                self.outcomes["a skill was written into a lock"] += 1
            self._model.written(written)

    @rule()
    def look_at_the_lock(self) -> None:
        if self._do(_looking) is not None:
            self._model.look(self._content())

    @rule(is_changed_meanwhile=st.booleans())
    def trust_the_lock(self, is_changed_meanwhile: bool) -> None:
        self.look_at_the_lock()
        content = self._content()
        if content is None:
            return
        if is_changed_meanwhile:
            self._lock.write_bytes(content + b"# more\n")
        if self._do(lambda host: _trusting(host, content)) is not None:
            assert not is_changed_meanwhile, "a lock was trusted that nobody has seen"
            self.outcomes["a lock was trusted"] += 1
            self._model.trust(content)

    @precondition(lambda self: self._lock.exists())
    @rule(uri=listed, first=replies, path=files, is_brief=st.booleans())
    def restart_frozen(self, uri: str, first: Reply, path: str, is_brief: bool) -> None:
        """Run with the lock as it lies there, whatever the user agreed to, for a moment or longer."""
        self._load(uri, first, "user", 0)
        self._restart(is_frozen=True)
        self._load(uri, Reply.ALWAYS, "user", 0)
        self.read_file(uri, path, 0)
        if is_brief:
            self._restart(is_frozen=False)

    # Somebody else

    @precondition(lambda self: self._model.trusted is not None or self._lock.exists())
    @rule(how=st.sampled_from(("forge", "comment", "delete", "restore")), uri=listed, is_used=st.booleans())
    def change_the_lock_outside(self, how: str, uri: str, is_used: bool) -> None:
        content = self._content()
        if how == "restore" and self._model.trusted is not None:
            self._lock.write_bytes(self._model.trusted)
        elif content is not None and how == "forge":
            self._lock.write_bytes(self._forged(content))
        elif content is not None and how == "comment":
            self._lock.write_bytes(content + b"# changed\n")
        elif how == "delete":
            self._lock.unlink(missing_ok=True)
        if is_used:
            self.restart(uri)

    @precondition(lambda self: (self._places.state / "approvals.json").exists())
    @rule(how=st.sampled_from(("forge", "flip", "delete", "delete-key")), uri=listed, is_used=st.booleans())
    def change_the_approvals_outside(self, how: str, uri: str, is_used: bool) -> None:
        path = self._places.state / "approvals.json"
        if how == "delete-key":
            (self._places.state / "key").unlink(missing_ok=True)
            self._model.lose_key()
        elif how == "delete":
            path.unlink()
            self._model.lose_approvals()
        else:
            content = path.read_bytes()
            changed = self._forged(content) if how == "forge" else content[:-1] + b" "
            if changed != content:
                path.write_bytes(changed)
                self._model.lose_approvals()
        self.outcomes["approvals were tampered with"] += 1
        if is_used:
            self.restart(uri)

    @precondition(lambda self: self._model.trusted is not None)
    @rule(is_deleted=st.booleans(), uri=listed, is_used=st.booleans())
    def change_what_is_trusted_outside(self, is_deleted: bool, uri: str, is_used: bool) -> None:
        """Delete or change the note of which lock was trusted."""
        for path in self._places.state.glob("lock-*.json"):
            content = path.read_bytes()
            path.unlink()
            if not is_deleted:
                path.write_bytes(content[:-1] + b" ")
        self._model.lose_trust()
        if is_used:
            self.restart(uri)

    @rule(number=numbers)
    def change_the_cache_outside(self, number: int) -> None:
        """Put the bytes of some published file in the place of all cached ones."""
        content = sorted(self._shop.blobs.values())[number % len(self._shop.blobs)]
        for path in self._places.cache.rglob("*"):
            if path.is_file() and path.name != "origin.json":
                path.write_bytes(content)
                self.outcomes["a cached file was replaced"] += 1

    # How it is done

    def _check_windows(self) -> None:
        """Windows open by loading, and close when the host is told; nothing else moves them."""
        conversations: list[Conversation] = [self._host, *self._children]
        for conversation, windows in zip(conversations, self._windows, strict=True):
            assert {window.skill.id.uri for window in conversation.loaded} == windows

    @property
    def _host(self) -> Host:
        assert self._open is not None
        return self._open

    def _restart(self, *, is_frozen: bool) -> None:
        self._stop()
        self._start(is_frozen=is_frozen)

    def _start(self, *, is_frozen: bool) -> None:
        self._model.restart(self._content(), is_frozen=is_frozen)
        self._open = Host(
            [self._shop.config],
            approve=self._ask,
            storage=self._places,
            roots=(),
            lock=self._lock,
            policy=HostPolicy(frozen=is_frozen, dynamic="ask"),
            limits=HostLimits(prompts=PATIENT),
        )
        self._running = self._portal.wrap_async_context_manager(self._open)
        self._running.__enter__()
        self._children, self._windows = [], [set()]
        self._is_disturbed = self._shop.is_offline
        self._follow()

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)
        self._follow()

    def _do(self, call: Callable[[Host], Awaitable[T]]) -> T | None:
        """Make a call; None when it is refused. What happened meanwhile is in the model then."""
        host = self._host

        async def within() -> T | SkillError:
            with anyio.fail_after(DONE_WITHIN):
                try:
                    return await call(host)
                except SkillError as error:
                    return error

        result = self._portal.call(within)
        self._follow()
        self._records = [
            *self._records,
            *(skill for skill in host.view.skills if _is_new(skill, self._records)),
        ]
        if isinstance(result, SkillError):
            if currently_in_test_context():
                note(f"    # refused with {result.refusal}: {result}")
            self.outcomes[result.refusal] += 1
            self._check_windows()
            return None
        return result

    def _follow(self) -> None:
        for event in self._shop.trace:
            self._model.follow(event)
        self._shop.trace.clear()

    async def _ask(self, question: Question) -> Reply:
        skill = question.skill
        assert skill is not None
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        files = None if skill.entry.is_dynamic else _files(skill)
        self._shop.trace.append(Asked(skill.id.uri, files, self._reply))
        self._asked += 1
        return self._reply

    def _load(self, uri: str, reply: Reply, actor: Actor, number: int, meanwhile: str = "nothing") -> None:
        conversation, windows = self._conversation(number)
        self._reply, self._asked = reply, 0
        self._meanwhile = None if meanwhile == "nothing" else lambda: self._interfere(meanwhile)
        was_sure = self._is_sure(uri) and uri != LIVE
        was_open = uri in windows
        loaded = self._do(lambda _host: conversation.load(REFERENCES[uri], actor=actor))
        self._meanwhile = None
        if was_sure:
            assert loaded is not None and not self._asked, "what was agreed to was asked about, or refused"
        if loaded is None:
            return
        windows.add(uri)
        self._loaded.append(_copied(self._catalogue))
        self._check_windows()
        if uri == LIVE:
            assert was_open or (self._asked and reply is not Reply.DENY)
            assert not self._model.is_frozen
        else:
            self._require_agreed(uri, conversation, loaded)

    def _refresh(self, *, by_user: bool) -> None:
        self._do(lambda host: host.refresh(force=True, by_user=by_user))
        if by_user:
            self._is_disturbed = self._shop.is_offline

    def _approve(self, record: KnownSkill) -> None:
        if self._do(lambda host: host.approve(record)) is not None:
            self._model.approve(record.id.uri, _files(record))

    def _require_agreed(self, uri: str, conversation: Conversation, loaded: LoadedSkill) -> None:
        [held] = [window.skill for window in conversation.loaded if window.skill.id.uri == uri]
        agreed, files = self._model.agreed(uri), _files(held)
        assert files in agreed, f"{uri} was loaded, and nobody agreed to it"
        body = self._shop.blobs[dict(files)[uri]].rpartition(b"---\n")[2].decode()
        assert _between(loaded) == body.rstrip("\n")
        self.outcomes[f"loaded {self._reason(uri, files)}"] += 1

    def _require_agreed_file(self, uri: str, read: FramedText) -> None:
        found = [files for files in self._model.agreed(uri) if read.uri in dict(files)]
        texts = {self._shop.blobs[dict(files)[read.uri]].decode().rstrip("\n") for files in found}
        assert _between(read) in texts, f"{read.uri} was read, and nobody agreed to it"
        self.outcomes["a file was read"] += 1

    def _reason(self, uri: str, files: FileSet) -> str:
        if self._model.is_frozen:
            return "by a frozen lock"
        if self._asked:
            return "because the user said yes"
        if self._shop.is_offline:
            return "while the server is away"
        if files in self._model.once.get(uri, ()):
            return "after an earlier yes for once"
        return "by a remembered yes" if self._model.stored.get(uri) == files else "by a trusted lock"

    def _is_sure(self, uri: str) -> bool:
        """Tell whether a load must succeed without a question: agreed, current, honest and at hand."""
        return (
            self._model.is_sure(uri)
            and not (self._is_disturbed or self._shop.lies or self._shop.is_offline)
            and uri in self._catalogue
            and self._model.seen[uri] == files_of(uri, self._catalogue)
        )

    def _conversation(self, number: int) -> tuple[Conversation, set[str]]:
        conversations: list[Conversation] = [self._host, *self._children]
        position = number % len(conversations)
        return conversations[position], self._windows[position]

    def _content(self) -> bytes | None:
        return self._lock.read_bytes() if self._lock.exists() else None

    def _forged(self, content: bytes) -> bytes:
        """Publish something, and return a file of approvals in which its digests stand instead of others."""
        self._change("body")
        self._publish()
        for uri in self._catalogue:
            for file, digest in files_of(uri, self._catalogue):
                for old in {dict(files_of(uri, before)).get(file, digest) for before in self._history}:
                    content = content.replace(old.encode(), digest.encode())
        return content

    # Publishing

    def _publish(self) -> None:
        self._portal.call(self._publish_within)

    async def _publish_within(self) -> None:
        self._history.append(_copied(self._catalogue))
        await self._shop.publish(self._catalogue)

    async def _interfere(self, how: str) -> None:
        self._change("body")
        await self._publish_within()
        if how == "changed-and-seen":
            await self._host.refresh(force=True)

    def _change(self, what: str) -> None:
        self._number += 1
        number, refunds = self._number, self._catalogue[REFUNDS]
        if what == "body":
            refunds["SKILL.md"] = skill_md(REFUNDS, number)
        elif what == "frontmatter":
            refunds["SKILL.md"] = skill_md(REFUNDS, number, extra=f"license: L{number}\n")
        elif what == "file":
            refunds["scripts/check.sh"] = f"echo {number:06}\n".encode()
        elif what == "add":
            refunds[f"references/more-{number}.md"] = b"More.\n"
        elif what == "remove":
            refunds.pop("references/policy.md", None)
        elif what == "rename" and "references/policy.md" in refunds:
            refunds["references/rules.md"] = refunds.pop("references/policy.md")
        elif what == "inner":
            self._catalogue[INNER] = {"SKILL.md": skill_md(INNER, number), "notes.md": b"Notes.\n"}
        elif what == "inner-gone":
            self._catalogue.pop(INNER, None)


async def _looking(host: Host) -> bool:
    host.lock.reload()
    return True


async def _trusting(host: Host, content: bytes) -> bool:
    await host.trust_lock(content)
    return True


def _files(skill: KnownSkill) -> FileSet:
    assert skill.entry.manifest is not None
    return frozenset((file.uri, file.digest) for file in skill.entry.manifest.files)


def _is_new(skill: KnownSkill, records: list[KnownSkill]) -> bool:
    return not skill.entry.is_dynamic and all(skill.entry != record.entry for record in records)


def _between(framed: LoadedSkill | FramedText) -> str:
    """Return what stands between the two lines with the mark."""
    _, _, rest = framed.text.partition(f"----- begin {framed.boundary} -----\n")
    text, end, after = rest.rpartition(f"\n----- end {framed.boundary} -----")
    assert end and not after
    return text


def _copied(catalogue: dict[str, dict[str, bytes]]) -> dict[str, dict[str, bytes]]:
    return {uri: dict(files) for uri, files in catalogue.items()}
