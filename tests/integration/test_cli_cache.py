"""`skillwire cache`: what is kept, what is removed, and what stays whatever happens."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from approving import LOAD, WHEN, entry, manifest, origin, skill_id
from integration.cli_world import World
from skillwire.core.manifest import ManifestFile
from skillwire.host.approval.lock_trust import LockTrust
from skillwire.host.approval.store import APPROVALS_FILE, ApprovalStore
from skillwire.host.model.approval import Approval
from skillwire.host.model.endpoints import HttpEndpoint
from skillwire.host.model.origin import Origin, OriginKind
from skillwire.host.state.content import ContentCache

FILES: Mapping[str, bytes] = {"SKILL.md": b"Do it.\n", "notes.md": b"n" * 5000}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world in which starting the configured server would leave a mark."""
    world = World(tmp_path)
    world.configure(here={"url": "https://here.example/mcp"}, no={"command": "touch", "args": ["started"]})
    return world


def here() -> Origin:
    return Origin(OriginKind.SERVER, "here", HttpEndpoint("https://here.example/mcp").fingerprint)


def keep(world: World, of: Origin) -> None:
    cache = ContentCache(world.cache)
    for path, content in FILES.items():
        assert cache.put(of, ManifestFile.of(f"skill://acme/refunds/{path}", content), content)


def labels(world: World) -> list[str]:
    return [kept.label for kept in ContentCache(world.cache).usage().origins]


def approve(world: World, of: Origin) -> None:
    approval = Approval(skill_id(of=of), manifest(files=FILES), LOAD, WHEN)
    ApprovalStore(world.state).grant(approval)


def test_what_is_kept_is_listed_by_server_and_none_is_started(world: World) -> None:
    keep(world, here())
    keep(world, origin("acme"))

    ended = world.run("cache", "list")
    document = world.run("cache", "list", "--json").json

    assert ended.lines == [
        "acme  2 files  4.9 KiB  not configured here",
        "here  2 files  4.9 KiB  configured here",
    ]
    assert ended.err == f"4 files, 9.8 KiB of at most 1.0 GiB, in {world.cache}\n"
    assert [kept["configured"] for kept in document["origins"]] == [False, True]
    assert not (world.project / "started").exists()


def test_without_a_terminal_nothing_is_removed_unless_that_is_said(world: World) -> None:
    keep(world, here())

    asked = world.run("cache", "clear")
    told = world.run("cache", "clear", "--yes")

    assert (asked.code, "--yes" in asked.err) == (2, True)
    assert (told.code, told.out) == (0, "removed 2 files, 4.9 KiB\n")
    assert labels(world) == []


def test_clearing_one_server_leaves_the_others_and_every_approval(world: World) -> None:
    keep(world, here())
    keep(world, origin("acme"))
    approve(world, here())

    ended = world.run("cache", "clear", "here", "--yes", "--json")

    assert (ended.code, ended.json["removed"]) == (0, 2)
    assert labels(world) == ["acme"]
    assert list(ApprovalStore(world.state).approvals()) == [skill_id(of=here())]


def test_an_unknown_server_is_a_no_that_names_the_known(world: World) -> None:
    keep(world, here())

    ended = world.run("cache", "clear", "gone", "--yes")

    assert (ended.code, labels(world)) == (1, ["here"])
    assert "here" in ended.err


@pytest.mark.parametrize(("answer", "left"), [("n", ["here"]), ("", ["here"]), ("y", [])])
def test_on_a_terminal_the_user_is_asked(world: World, answer: str, left: list[str]) -> None:
    keep(world, here())

    screen = world.show("cache", "clear", answers=[("[y/N]", answer)])

    assert (screen.code, labels(world)) == (0, left)
    assert "This removes 2 files, 4.9 KiB, of all servers." in screen.text
    assert "Approvals stay." in screen.text


def test_gc_keeps_what_is_configured_approved_or_pinned_and_drops_the_rest(world: World) -> None:
    for name in ("approved", "pinned", "elsewhere", "stranger"):
        keep(world, origin(name))
    keep(world, here())
    approve(world, origin("approved"))
    trust = LockTrust(world.state)
    pinned = Approval(skill_id(of=origin("pinned")), manifest(files=FILES), LOAD, WHEN)
    trust.write(world.project / "skills.lock", [pinned])
    other = world.root / "other"
    other.mkdir()
    elsewhere = Approval(skill_id(of=origin("elsewhere")), manifest(files=FILES), LOAD, WHEN)
    trust.write(other / "skills.lock", [elsewhere])

    ended = world.run("cache", "gc")

    assert (ended.code, ended.out) == (0, "removed 2 files, 4.9 KiB\n")
    assert labels(world) == ["approved", "elsewhere", "here", "pinned"]


def test_gc_keeps_what_was_approved_before_a_change_so_that_it_can_be_compared(world: World) -> None:
    keep(world, origin("acme"))
    approve(world, origin("acme"))
    ApprovalStore(world.state).observe(skill_id(of=origin("acme")), entry(files={"SKILL.md": b"Other.\n"}))

    world.run("cache", "gc")

    assert labels(world) == ["acme"]


@pytest.mark.requirement("APPR-01")
def test_gc_takes_nothing_for_unneeded_when_approvals_were_tampered_with(world: World) -> None:
    keep(world, origin("acme"))
    approve(world, origin("acme"))
    path = world.state / APPROVALS_FILE
    path.write_bytes(path.read_bytes().replace(b"acme", b"evil"))

    ended = world.run("cache", "gc")

    assert (ended.code, labels(world)) == (0, ["acme"])
    assert "warning:" in ended.err


def test_a_broken_configuration_does_not_hide_the_cache_or_empty_it(world: World) -> None:
    keep(world, origin("acme"))
    (world.project / ".mcp.json").write_text("{")

    listed, collected = world.run("cache", "list"), world.run("cache", "gc")

    assert (listed.code, len(listed.lines)) == (0, 1)
    assert (collected.code, labels(world)) == (0, ["acme"])
    assert "warning:" in listed.err


def test_a_label_without_clear_is_misuse(world: World) -> None:
    ended = world.run("cache", "list", "here", "--json")

    assert (ended.code, json.loads(ended.out)["error"]["code"]) == (2, "misuse")
