"""What the doctor says of scripts where no sandbox can be had."""

import sys
from pathlib import Path

import pytest

from skillwire.cli.doctor import check_sandbox
from skillwire.cli.doctor_checks import Status
from skillwire.runner import Policy

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("platform", ["darwin", "win32"])
async def test_other_systems_have_no_sandbox_and_that_is_no_problem(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)

    [check] = await check_sandbox()

    assert (check.area, check.subject, check.status) == ("sandbox", "scripts", Status.NOTE)
    assert "no sandbox for this system" in check.found
    assert check.fix


@pytest.mark.requirement("EXEC-12")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no sandbox for this system")
async def test_without_bubblewrap_it_says_why_and_what_to_do() -> None:
    [check] = await check_sandbox(Policy(bubblewrap=Path("/nowhere/bwrap")))

    assert check.status is Status.WARNING
    assert check.found.startswith("cannot be run here, because there is no sandbox: ")
    assert "[bubblewrap_missing]" in check.found
    assert check.fix
