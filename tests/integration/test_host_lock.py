"""A project's `skills.lock` through a host: written, changed by others, trusted, frozen."""

import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hostile.hosting import User, hosting, refused, storage_in
from integration.hosting_serve import audit, content_of, put
from integration.hosting_shop import (
    INNER,
    LABEL,
    REFERENCES,
    REFUNDS,
    Catalogue,
    Shop,
    digest,
    skill_md,
)
from skillwire.host import HostLimits, HostPolicy
from skillwire.host.approval.lock import InvalidLockError
from skillwire.host.approval.lock_trust import LockState
from skillwire.host.host import Host
from skillwire.host.model.approval import Grant, Occasion, Reply
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig
from skillwire.host.model.errors import LockUntrustedError, Refusal, RefusedError
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict

SCRIPT = b"echo 1\n"
NOBODY = None


def catalogue(number: int = 0) -> Catalogue:
    return {
        REFUNDS: {"SKILL.md": skill_md(REFUNDS, number), "scripts/check.sh": SCRIPT},
        INNER: {"SKILL.md": skill_md(INNER, 0)},
    }


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        yield shop


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "project" / "skills.lock"


@pytest.fixture
async def content(shop: Shop, lock: Path, tmp_path: Path) -> bytes:
    """A lock that pins `refunds`, written by a host on another machine: this one has never seen it."""
    lock.parent.mkdir()
    async with hosting(tmp_path / "elsewhere", [shop.config], user=User(), lock=lock) as host:
        await host.load(REFERENCES[REFUNDS])
        await host.write_lock()
    return content_of(lock)


def rows(content: bytes) -> dict[str, dict[str, str]]:
    """Return what a lock pins: each skill's files, by URI and digest."""
    found = tomllib.loads(content.decode())["skill"]
    return {row["uri"]: {file["uri"]: file["digest"] for file in row["files"]} for row in found}


@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("APPR-10")
async def test_a_lock_holds_what_was_approved_with_every_file_and_whose_it_is(
    shop: Shop, lock: Path, tmp_path: Path
) -> None:
    lock.parent.mkdir()
    async with hosting(
        tmp_path, [shop.config], user=User(), lock=lock, policy=HostPolicy(granted_by="dana")
    ) as host:
        await host.load(REFERENCES[REFUNDS])
        await host.request_scripts(REFERENCES[REFUNDS], "scripts/check.sh")
        content = await host.write_lock()
        again = await host.write_lock()
        problems = host.problems
    [row] = tomllib.loads(content.decode())["skill"]
    published = catalogue()

    assert content == again == content_of(lock)
    assert problems == ()
    assert (row["label"], row["uri"]) == (LABEL, REFUNDS)
    assert row["fingerprint"] == shop.config.origin.fingerprint
    assert (row["grants"], row["approved_by"]) == (["load", "scripts"], "dana")
    assert rows(content) == {
        REFUNDS: {
            REFUNDS: digest(published[REFUNDS]["SKILL.md"]),
            "skill://acme/refunds/scripts/check.sh": digest(SCRIPT),
            INNER: digest(published[INNER]["SKILL.md"]),
        }
    }
    assert len(audit(tmp_path, "lock-written")) == 2


@pytest.mark.requirement("APPR-10")
async def test_a_trusted_lock_is_as_good_as_an_approval_where_nobody_can_be_asked(
    shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [shop.config], user=NOBODY, lock=lock) as host:
        before = await refused(host.load(REFERENCES[REFUNDS]))
        problems = [found.code for found in host.problems]
        review = host.lock.reload()
        assert review is not None and review.lock is not None
        await host.trust_lock(review.lock.content)
        loaded = await host.load(REFERENCES[REFUNDS])
        inner = await refused(host.load(REFERENCES[INNER]))
        after = host.problems
        approvals = host.approvals
    async with hosting(tmp_path, [shop.config], user=NOBODY, lock=lock) as host:
        restarted = await host.load(REFERENCES[REFUNDS])

    assert (before.refusal, problems) == ("lock-untrusted", ["lock-untrusted"])
    assert review.state is LockState.NEW
    assert [approval.skill.uri for approval in review.difference.added] == [REFUNDS]
    assert review.lock.content == content
    assert "Step 000000." in loaded.text and "Step 000000." in restarted.text
    assert inner.refusal == "approval-required"
    assert (after, approvals) == ((), ())


@pytest.mark.requirement("APPR-10")
async def test_a_lock_that_changed_outside_counts_only_after_the_user_has_seen_the_difference(
    shop: Shop, lock: Path, tmp_path: Path
) -> None:
    lock.parent.mkdir()
    async with hosting(tmp_path, [shop.config], user=User(), lock=lock) as host:
        await host.load(REFERENCES[REFUNDS])
        await host.write_lock()
    await shop.publish(catalogue(1))
    old, new = digest(catalogue()[REFUNDS]["SKILL.md"]), digest(catalogue(1)[REFUNDS]["SKILL.md"])
    put(lock, content_of(lock).replace(old.encode(), new.encode()))
    user = User(Reply.DENY)
    async with hosting(tmp_path, [shop.config], user=user, lock=lock) as host:
        denied = await refused(host.load(REFERENCES[REFUNDS]))
        not_written = await refused(host.write_lock())
        review = host.lock.reload()
        assert review is not None and review.lock is not None
        [(before, after)] = review.difference.changed
        await host.trust_lock(review.lock.content)
        loaded = await host.load(REFERENCES[REFUNDS])
        read = await host.read_skill_file(REFERENCES[REFUNDS], "scripts/check.sh")

    assert denied.refusal == "approval-denied"
    assert not_written.refusal == "lock-untrusted"
    assert review.state is LockState.CHANGED
    assert before.manifest.require(REFUNDS).digest == old
    assert after.manifest.require(REFUNDS).digest == new
    assert "Step 000001." in loaded.text and "echo 1" in read.text
    assert user.occasions == [Occasion.CHANGED]


async def test_what_was_not_seen_cannot_be_trusted(
    shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [shop.config], user=NOBODY, lock=lock) as host:
        host.lock.reload()
        put(lock, content + b"# more\n")
        with pytest.raises(LockUntrustedError):
            await host.trust_lock(content)
        with pytest.raises(InvalidLockError):
            await host.trust_lock(b"no lock at all")
        error = await refused(host.load(REFERENCES[REFUNDS]))

    assert error.refusal == "lock-untrusted"


@pytest.mark.requirement("APPR-02")
async def test_a_pin_ends_when_the_skill_is_seen_to_change_and_counts_again_when_the_user_looks(
    shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [shop.config], user=NOBODY, lock=lock) as host:
        await host.trust_lock(content)
        await shop.publish(catalogue(1))
        await host.refresh(force=True)
        await shop.publish(catalogue())
        await host.refresh(force=True)
        error = await refused(host.load(REFERENCES[REFUNDS]))
        chain = await host.explain(REFERENCES[REFUNDS])
    async with hosting(tmp_path, [shop.config], user=NOBODY, lock=lock) as host:
        restarted = await refused(host.load(REFERENCES[REFUNDS]))
        await host.trust_lock(content)
        loaded = await host.load(REFERENCES[REFUNDS])

    assert (error.refusal, restarted.refusal) == ("approval-required", "approval-required")
    assert not chain.can_be_loaded
    assert "Step 000000." in loaded.text


async def test_a_pin_that_the_user_revoked_stays_revoked(
    shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [shop.config], user=NOBODY, lock=lock) as host:
        await host.trust_lock(content)
        await host.load(REFERENCES[REFUNDS])
        taken_back = await host.revoke(REFERENCES[REFUNDS])
        file = await refused(host.read_skill_file(REFERENCES[REFUNDS], "scripts/check.sh"))
    async with hosting(tmp_path, [shop.config], user=NOBODY, lock=lock) as host:
        restarted = await refused(host.load(REFERENCES[REFUNDS]))

    assert taken_back
    assert (file.refusal, restarted.refusal) == ("not-approved", "approval-required")
    assert content_of(lock) == content


@pytest.mark.requirement("APPR-10")
async def test_a_frozen_lock_is_taken_as_it_lies_there_and_is_all_that_counts(
    shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    user = User()
    async with hosting(tmp_path, [shop.config], user=user, lock=lock) as host:
        await host.load(REFERENCES[INNER])
    before = len(user.questions)
    async with hosting(tmp_path, [shop.config], user=user, lock=lock, policy=HostPolicy(frozen=True)) as host:
        loaded = await host.load(REFERENCES[REFUNDS], actor="user")
        inner = await refused(host.load(REFERENCES[INNER], actor="user"))
        dynamic = await refused(host.load(f"{LABEL}/live"))
        scripts = await refused(host.request_scripts(REFERENCES[REFUNDS], "scripts/check.sh"))
        approve = await refused(host.approve(await host.find(REFERENCES[INNER])))
        write = await refused(host.write_lock())
        await shop.publish(catalogue(1))
        await host.refresh(force=True)
        changed = await refused(host.load(REFERENCES[REFUNDS]))
        call = await host.authorise(ToolCall("Bash", ToolKind.EXECUTE))

    assert "Step 000000." in loaded.text
    assert (inner.refusal, changed.refusal, scripts.refusal) == ("not-in-lock",) * 3
    assert dynamic.refusal == "dynamic-declined"
    assert (approve.refusal, write.refusal) == ("refused", "refused")
    assert call.verdict is Verdict.DENY
    assert len(user.questions) == before
    assert Refusal.of(inner).to_json()["requirement"] == "APPR-10"
    assert content_of(lock) == content


async def test_frozen_without_a_lock_that_can_be_read_is_an_error_before_anything_is_asked(
    shop: Shop, lock: Path, tmp_path: Path
) -> None:
    shop.trace.clear()
    lock.parent.mkdir()
    for path, text in ((None, None), (lock, None), (lock, b"version = 99\n"), (lock, b"\xff")):
        if text is not None:
            put(lock, text)
        host = Host(
            [shop.config],
            storage=storage_in(tmp_path),
            roots=(),
            lock=path,
            policy=HostPolicy(frozen=True),
            limits=HostLimits(wait_seconds=10),
        )
        with pytest.raises(InvalidLockError):
            async with host:
                pass

    assert shop.trace == []


@pytest.mark.parametrize("text", [b"not = [toml", b"version = 1\n[[skill]]\nlabel = 'x'\n", b"\x00" * 10])
async def test_a_lock_that_is_none_is_one_clear_error(
    text: bytes, shop: Shop, lock: Path, tmp_path: Path
) -> None:
    lock.parent.mkdir()
    put(lock, text)

    with pytest.raises(InvalidLockError) as caught:
        async with hosting(tmp_path, [shop.config], user=NOBODY, lock=lock):
            pass

    assert caught.value.refusal == "lock-invalid"
    assert content_of(lock) == text


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("NAME-05")
async def test_a_pin_is_for_one_label_at_one_endpoint(
    is_frozen: bool, shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    """Attacks 23 and 24."""
    endpoint = shop.config.endpoint
    assert isinstance(endpoint, HttpEndpoint)
    elsewhere = HttpEndpoint(endpoint.url.replace("127.0.0.1", "localhost"))
    codes: list[str] = []
    for server in (ServerConfig("other", endpoint), ServerConfig(LABEL, elsewhere)):
        async with hosting(
            tmp_path, [server], user=NOBODY, lock=lock, policy=HostPolicy(frozen=is_frozen)
        ) as host:
            if not is_frozen:
                await host.trust_lock(content)
            codes.append((await refused(host.load(f"{server.label}/refunds"))).refusal)

    assert codes == ["not-in-lock" if is_frozen else "approval-required"] * 2


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.requirement("APPR-05")
async def test_each_grant_of_a_pin_is_given_on_its_own(
    is_frozen: bool, shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    run = ToolCall(
        "run",
        ToolKind.EXECUTE,
        skill=REFERENCES[REFUNDS],
        script="scripts/check.sh",
        script_digest=digest(SCRIPT),
    )
    outcomes: list[tuple[Verdict, str]] = []
    for grants in (b'["load"]', b'["load", "scripts"]'):
        text = content.replace(b'["load"]', grants)
        put(lock, text)
        async with hosting(
            tmp_path, [shop.config], user=NOBODY, lock=lock, policy=HostPolicy(frozen=is_frozen)
        ) as host:
            if not is_frozen:
                await host.trust_lock(text)
            await host.load(REFERENCES[REFUNDS])
            verdict = host.gate(run).verdict
            try:
                script = await host.request_scripts(REFERENCES[REFUNDS], "scripts/check.sh")
                outcomes.append((verdict, script.decode()))
            except RefusedError as error:
                outcomes.append((verdict, error.refusal))
    put(lock, content.replace(b'["load"]', b'["scripts"]'))
    async with hosting(
        tmp_path, [shop.config], user=NOBODY, lock=lock, policy=HostPolicy(frozen=True)
    ) as host:
        not_loaded = await refused(host.load(REFERENCES[REFUNDS]))

    refusal = "not-in-lock" if is_frozen else "approval-required"
    assert outcomes == [(Verdict.ASK, refusal), (Verdict.ALLOW, SCRIPT.decode())]
    assert not_loaded.refusal == "not-in-lock"


async def test_a_lock_keeps_the_pins_of_servers_that_are_not_configured_here(
    shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    other = ServerConfig("other", shop.config.endpoint)
    async with hosting(tmp_path, [other], user=User(), lock=lock) as host:
        await host.trust_lock(content)
        await host.load("other/inner")
        await host.load("other/refunds")
        merged = await host.write_lock()

    labels = [(row["label"], row["uri"]) for row in tomllib.loads(merged.decode())["skill"]]
    assert labels == [("other", REFUNDS), ("other", INNER), (LABEL, REFUNDS)]


async def test_approvals_of_other_servers_stay_out_of_a_projects_lock(
    shop: Shop, lock: Path, tmp_path: Path
) -> None:
    lock.parent.mkdir()
    other = ServerConfig("other", shop.config.endpoint)
    async with hosting(tmp_path, [other], user=User()) as host:
        await host.load("other/refunds")
        no_lock = await refused(host.write_lock())
    async with hosting(tmp_path, [shop.config], user=User(), lock=lock) as host:
        await host.load(REFERENCES[INNER])
        content = await host.write_lock()

    assert no_lock.refusal == "refused"
    assert list(rows(content)) == [INNER]


async def test_a_revoked_pin_is_not_written_into_the_lock_again(
    shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [shop.config], user=User(), lock=lock) as host:
        await host.trust_lock(content)
        await host.revoke(REFERENCES[REFUNDS])
        await host.load(REFERENCES[INNER])
        written = await host.write_lock()

    assert list(rows(written)) == [INNER]


async def test_a_lock_is_used_offline_under_the_same_rules(
    shop: Shop, lock: Path, content: bytes, tmp_path: Path
) -> None:
    async with hosting(
        tmp_path, [shop.config], user=NOBODY, lock=lock, policy=HostPolicy(frozen=True)
    ) as host:
        await host.load(REFERENCES[REFUNDS])
    shop.is_offline = True
    async with hosting(
        tmp_path, [shop.config], user=NOBODY, lock=lock, policy=HostPolicy(frozen=True)
    ) as host:
        loaded = await host.load(REFERENCES[REFUNDS])
    async with hosting(tmp_path, [shop.config], user=NOBODY, lock=lock) as host:
        untrusted = await refused(host.load(REFERENCES[REFUNDS]))

    assert "Offline: server unreachable" in loaded.text
    assert untrusted.refusal == "unknown-reference"


@pytest.mark.parametrize("grant", [Grant.SCRIPTS, Grant.ALLOWED_TOOLS])
async def test_an_approval_without_the_load_grant_loads_nothing(
    grant: Grant, shop: Shop, tmp_path: Path
) -> None:
    async with hosting(tmp_path, [shop.config], user=NOBODY) as host:
        await host.approve(await host.find(REFERENCES[REFUNDS]), [grant])
        error = await refused(host.load(REFERENCES[REFUNDS]))

    assert error.refusal == "approval-required"
