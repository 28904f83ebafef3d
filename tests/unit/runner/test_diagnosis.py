"""Why no sandbox starts, and what an operator is told to do about it."""

import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from skillwire.core.errors import SandboxUnavailableError
from skillwire.runner import Availability, Interpreter, Policy
from skillwire.runner.sandbox import sandbox as availability
from skillwire.runner.sandbox.sandbox import (
    CLONE,
    INSTALL,
    MOST,
    PROFILE,
    RESTRICTED,
    diagnose,
    probe_sandbox,
    setting,
)

pytestmark = pytest.mark.requirement("EXEC-12")

UID_MAP = "bwrap: setting up uid map: Permission denied"
LOOPBACK = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"
NAMESPACE = "bwrap: Creating new namespace failed: Operation not permitted"
NO_PERMISSIONS = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow "
    "non-privileged user namespaces."
)


def kernel(settings: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """Return a kernel that says this of itself, and nothing else."""
    return lambda path: (settings or {}).get(path, "")


@pytest.mark.parametrize("words", [UID_MAP, LOOPBACK, NAMESPACE, NO_PERMISSIONS])
def test_apparmor_is_named_where_it_is_at_work(words: str) -> None:
    found = diagnose(words, kernel({RESTRICTED: "1"}))

    assert found == ("apparmor_restricts_user_namespaces", PROFILE)


def test_the_profile_is_for_one_program_and_does_not_open_the_whole_system() -> None:
    assert "profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }" in PROFILE
    assert "sysctl" not in PROFILE


@pytest.mark.parametrize("words", [UID_MAP, LOOPBACK])
def test_its_words_are_recognised_where_the_kernel_does_not_say_so(words: str) -> None:
    found = diagnose(words, kernel())

    assert found.reason == "user_namespaces_restricted"
    assert PROFILE in found.fix and "container" in found.fix


def test_a_container_that_forbids_namespaces_is_explained() -> None:
    found = diagnose(NAMESPACE, kernel({RESTRICTED: "0"}))

    assert found.reason == "user_namespaces_restricted"
    assert found.fix.startswith("in a container")


@pytest.mark.parametrize("place", [MOST, CLONE])
def test_a_kernel_without_user_namespaces_is_explained(place: str) -> None:
    found = diagnose(NAMESPACE, kernel({place: "0", RESTRICTED: "1"}))

    assert found.reason == "user_namespaces_off"
    assert "user.max_user_namespaces" in found.fix


def test_what_nobody_knows_is_not_guessed() -> None:
    assert diagnose("bwrap: Can't mount tmpfs: No space left", kernel()).reason == "sandbox_unavailable"


def test_a_setting_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\n")
    (tmp_path / "one").write_bytes(b"1\n")

    assert [setting(str(tmp_path / name)) for name in ("none", "binary", "one")] == ["", "", "1"]


def unavailable(policy: Policy) -> Availability:
    equipment = probe_sandbox(policy)
    assert equipment.recipe is None
    assert equipment.interpreters == ()
    assert not equipment.availability.is_available
    with pytest.raises(SandboxUnavailableError) as refused:
        equipment.availability.require()
    assert refused.value.reason == equipment.availability.reason
    assert refused.value.fix == equipment.availability.fix != ""
    return equipment.availability


@pytest.mark.parametrize("machine", ["riscv64", "s390x", "i686", ""])
def test_a_machine_without_a_filter_table_runs_nothing(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: machine)

    found = unavailable(Policy())

    assert found.reason == "architecture_unknown"


def test_a_system_without_a_sandbox_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")

    found = unavailable(Policy())

    assert (found.reason, found.detail) == ("platform_unsupported", "there is no sandbox for Darwin")


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend to be where a sandbox could be; nothing is started."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.usefixtures("linux")
def test_a_machine_without_bubblewrap_runs_nothing(tmp_path: Path) -> None:
    found = unavailable(Policy(bubblewrap=tmp_path / "bwrap"))

    assert (found.reason, found.fix) == ("bubblewrap_missing", INSTALL)


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize("tree", ["/", "/etc", "/home", "/root", "/run", "/var"])
def test_no_interpreter_brings_a_tree_that_is_not_for_scripts(
    tree: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = Interpreter(Path(sys.executable), trees=(Path(tree),))
    monkeypatch.setattr(availability, "is_reachable", everything_is)

    found = unavailable(Policy(bubblewrap=program(tmp_path), interpreters={".py": python}))

    assert (found.reason, found.detail) == ("policy_unsafe", f"{tree} must not be visible to scripts")


@pytest.mark.usefixtures("linux")
def test_without_a_python_there_is_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "found_interpreters", nothing_found)

    found = unavailable(Policy(bubblewrap=program(tmp_path)))

    assert found.reason == "interpreter_missing"


def everything_is(path: Path, uid: int | None) -> bool:
    return True


def nothing_found(uid: int | None) -> dict[str, Interpreter]:
    return {}


def program(folder: Path) -> Path:
    path = folder / "bwrap"
    path.write_bytes(b"#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return path
