"""Origins, entries and approvals for tests of what a host remembers."""

import hashlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.host.model.approval import Approval, Grant
from skillwire.host.model.origin import Origin, OriginKind, SkillId

WHEN = datetime(2026, 9, 8, 12, 0, tzinfo=UTC)
LOAD = frozenset({Grant.LOAD})
FILES: Mapping[str, bytes] = {"SKILL.md": b"Do it.\n", "scripts/run.sh": b"echo\n"}


def origin(label: str = "acme", endpoint: str = "https://acme.example/mcp") -> Origin:
    return Origin(OriginKind.SERVER, label, f"sha256:{hashlib.sha256(endpoint.encode()).hexdigest()}")


def skill_id(name: str = "refunds", *, of: Origin | None = None) -> SkillId:
    return SkillId(of or origin(), f"skill://acme/{name}/SKILL.md")


def manifest(name: str = "refunds", files: Mapping[str, bytes] = FILES) -> Manifest:
    return Manifest.of(ManifestFile.of(f"skill://acme/{name}/{path}", data) for path, data in files.items())


def entry(
    name: str = "refunds", files: Mapping[str, bytes] | None = FILES, description: str = "Use it."
) -> SkillEntry:
    """Return an entry of a skill with these files; None makes it dynamic."""
    return SkillEntry(
        SkillUri(f"skill://acme/{name}/SKILL.md"),
        Frontmatter({"name": name, "description": description}),
        None if files is None else manifest(name, files),
    )


def approval(
    name: str = "refunds",
    files: Mapping[str, bytes] = FILES,
    *,
    of: Origin | None = None,
    grants: frozenset[Grant] = LOAD,
    by: str = "dana",
) -> Approval:
    return Approval(skill_id(name, of=of), manifest(name, files), grants, WHEN, by)


def foreign_folder(tmp_path: Path) -> Path:
    """Return a folder that belongs to another user."""
    if os.geteuid() != 0:
        return Path("/")
    folder = tmp_path / "foreign"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    return folder


def foreign_file(tmp_path: Path) -> Path:
    """Return a file that belongs to another user."""
    if os.geteuid() != 0:
        return Path("/etc/passwd")
    file = tmp_path / "foreign"
    file.write_text("theirs")
    os.chown(file, 12345, 12345)
    return file


def mode_of(path: Path) -> int:
    return path.lstat().st_mode & 0o7777
