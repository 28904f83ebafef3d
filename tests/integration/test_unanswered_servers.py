"""Servers that have not answered: named wherever skills are listed, and never in the way of other servers."""

import json
import logging
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from folders import write_skill
from hostile.hosting import storage_in
from integration.peers import PROGRAM, Peer, hostile
from reviewing import approve
from skillwire.host import Host, HostLimits
from skillwire.host.listing.text import ListingForm
from terminals import Desk

DEADLINE = 60.0
NOT_YET = "has not answered yet"


def opened(folder: Path, peer: Peer, **options: Any) -> Host:
    return Host([peer.server], storage=storage_in(folder), roots=(), **options)


def answer(peer: Peer) -> None:
    """Let a late server answer from now on."""
    Path(f"{peer.log}.go").touch()


async def later(host: Host) -> str:
    """Return the first changes of a listing that there are."""
    with anyio.fail_after(DEADLINE):
        while True:  # Each call waits for the server for a second.
            if changes := await host.listing_changes():
                return changes


@pytest.mark.parametrize("form", list(ListingForm))
async def test_a_server_that_has_not_answered_is_named_in_the_listing_and_its_skills_come_as_changes(
    form: ListingForm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), hostile(tmp_path, "late", seconds=30) as peer:
        async with opened(tmp_path, peer, limits=HostLimits(wait_seconds=0.3)) as host:
            listing = host.listing(form=form)
            answer(peer)
            changes = await later(host)
            again = host.listing(form=form)

    if form is ListingForm.JSON:
        [origin] = json.loads(listing)["origins"]
        listing = f"{origin['origin']} {origin['more']}"
    assert "MCP server peer" in listing
    assert NOT_YET in listing
    assert "unverified" not in listing.replace("What a server says is its own words, unverified", "")
    assert "peer/refunds" in changes
    assert NOT_YET in again
    assert [record.getMessage() for record in caplog.records if NOT_YET[:7] in record.getMessage()] == [
        "peer has not answered in 0.3 seconds; its skills are missing"
    ]


async def test_a_server_that_could_not_be_asked_is_named_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), hostile(tmp_path, "silent", seconds=0.3) as peer:
        async with opened(tmp_path, peer) as host:
            listing = host.listing()
            search = {tool.name: tool for tool in host.tools()}["search_skills"]
            found = (await search({"query": "refunds"})).text

    assert "From MCP server peer:\n- could not be reached" in listing
    assert "the MCP server peer has not answered" in found
    logged = [record.getMessage() for record in caplog.records]
    assert any("could not list the skills of MCP server peer" in line for line in logged)


async def test_entering_waits_for_a_slow_server_and_ends_as_soon_as_it_has_answered(tmp_path: Path) -> None:
    references: list[str] = []
    with anyio.fail_after(DEADLINE - 10), hostile(tmp_path, "late", seconds=30) as peer:
        async with anyio.create_task_group() as group:

            async def release() -> None:
                await peer.wait_for("server/discover")
                answer(peer)

            group.start_soon(release)
            async with opened(tmp_path, peer) as host:
                references = [skill.reference for skill in host.view.skills]

    assert references == ["peer/refunds"]


async def test_with_no_wait_no_server_is_started_before_something_is_wanted_of_it(tmp_path: Path) -> None:
    with hostile(tmp_path, "none") as peer:
        async with opened(tmp_path, peer, limits=HostLimits(wait_seconds=0)) as host:
            before = peer.facts
            await host.refresh()

    assert before == []
    assert peer.starts == 1


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    write_skill(tmp_path / "skills" / "tea", {"scripts/check.sh": "echo one\n"})
    found = Desk(tmp_path / "project", tmp_path / "home")
    found.serve("beta", tmp_path / "skills")
    return found


def add_silent(desk: Desk, log: Path) -> None:
    """Configure a server that never answers."""
    arguments = [str(PROGRAM), "silent", "modern", str(log)]
    desk.configure("alpha", {"command": sys.executable, "args": arguments})


def test_a_command_about_one_server_starts_no_other(desk: Desk, tmp_path: Path) -> None:
    approve(desk, "beta/tea")
    add_silent(desk, tmp_path / "log")
    ended = {
        command: desk.run(command, "beta/tea", "--json").code
        for command in ("show", "why", "load", "diff", "run", "approve", "revoke")
    }

    assert ended == dict.fromkeys(ended, 0)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("command", ["load", "show", "approve", "diff", "run", "why"])
def test_a_command_about_a_silent_server_ends_after_the_time_to_wait(
    desk: Desk, tmp_path: Path, command: str
) -> None:
    add_silent(desk, tmp_path / "log")
    started = time.monotonic()

    ended = desk.run(command, "alpha/tea", "--wait", "2")

    assert time.monotonic() - started < 20, "the connection itself waits for a minute"
    assert ended.code == 1
    assert "skillwire doctor" in f"{ended.out}{ended.err}"
    if command != "why":
        assert "the server alpha has not answered in 2 seconds" in ended.err
        assert "--wait SECONDS" in ended.err


def test_the_answering_server_is_listed_and_the_silent_one_named(desk: Desk, tmp_path: Path) -> None:
    add_silent(desk, tmp_path / "log")
    listed = desk.run("list", "--prompt", "compact", "--wait", "8")

    assert "- beta/tea" in listed.out
    assert f"MCP server alpha:\n- {NOT_YET}" in listed.out


def test_a_frozen_lock_is_checked_again_when_a_server_was_only_starting_up(
    desk: Desk, tmp_path: Path
) -> None:
    server = desk.servers["beta"]
    program, counter = tmp_path / "beta.sh", tmp_path / "starts"
    words = shlex.join([server["command"], *server["args"]])
    fails_thrice = f'echo >> {counter}\n[ "$(wc -l < {counter})" -gt 3 ] || exit 3'
    program.write_text(f"#!/bin/sh\n{fails_thrice}\nexec {words}\n")
    program.chmod(0o755)
    counter.write_text("\n" * 9)
    desk.configure("beta", {**server, "command": str(program), "args": []})
    approve(desk, "beta/tea", lock=desk.folder / "skills.lock")
    counter.unlink()

    checked = desk.run("lock", "--frozen", "--json")

    assert (checked.code, [skill["state"] for skill in checked.json["skills"]]) == (0, ["same"])
    assert checked.json["unanswered"] == []
    assert len(counter.read_text()) > 3


def test_a_frozen_lock_is_not_checked_when_a_server_without_a_pin_does_not_answer(
    desk: Desk, tmp_path: Path
) -> None:
    approve(desk, "beta/tea", lock=desk.folder / "skills.lock")
    add_silent(desk, tmp_path / "log")

    checked = desk.run("lock", "--frozen", "--wait", "3", "--json")
    printed = desk.run("lock", "--frozen", "--wait", "3")
    partial = desk.run("lock", "--frozen", "--wait", "3", "--partial")

    assert (checked.code, checked.json["ok"]) == (1, False)
    assert [server["subject"] for server in checked.json["unanswered"]] == ["alpha"]
    assert [skill["state"] for skill in checked.json["skills"]] == ["same"]
    assert printed.code == 1 and "no answer   alpha" in printed.out
    assert partial.code == 0 and "no answer   alpha" in partial.out
