"""Why a sandbox does not start, and what an operator can do about it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

RESTRICTED = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
MOST = "/proc/sys/user/max_user_namespaces"
CLONE = "/proc/sys/kernel/unprivileged_userns_clone"

INSTALL = "install bubblewrap: apt install bubblewrap, dnf install bubblewrap, or the like"
PROFILE = (
    "let this one program make user namespaces: write an AppArmor profile /etc/apparmor.d/bwrap with\n"
    "    abi <abi/4.0>,\n"
    "    include <tunables/global>\n"
    "    profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }\n"
    "and load it with: apparmor_parser -r /etc/apparmor.d/bwrap"
)
_CONTAINER = (
    "in a container, let its runtime allow user namespaces (for Docker: --security-opt seccomp=… with clone "
    "and unshare allowed, and --security-opt systempaths=unconfined), or run skillwire outside of it"
)
_NAMESPACES = (
    "uid map",
    "rtm_newaddr",
    "creating new namespace",
    "no permissions to create",
    "operation not permitted",
    "permission denied",
)


class Diagnosis(NamedTuple):
    """A stable word for the reason, and what to do."""

    reason: str
    fix: str


def setting(path: str) -> str:
    """Return what the kernel says at `path`; empty when it says nothing."""
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def diagnose(detail: str, read: Callable[[str], str] = setting) -> Diagnosis:
    """Say why a sandbox that ended with these words did not start."""
    words = detail.casefold()
    if read(MOST) == "0" or read(CLONE) == "0":
        return Diagnosis(
            "user_namespaces_off",
            "user namespaces are switched off; allow them: sysctl user.max_user_namespaces=15000 "
            "(on some systems kernel.unprivileged_userns_clone=1)",
        )
    if any(sign in words for sign in _NAMESPACES):
        if read(RESTRICTED) == "1":
            return Diagnosis("apparmor_restricts_user_namespaces", PROFILE)
        if "uid map" in words or "rtm_newaddr" in words:
            return Diagnosis("user_namespaces_restricted", f"{PROFILE}\nor, {_CONTAINER}")
        return Diagnosis("user_namespaces_restricted", _CONTAINER)
    return Diagnosis("sandbox_unavailable", "see the detail; skillwire doctor tries again")
