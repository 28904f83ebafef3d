"""Folders of skills for tests: writing them, and saying independently what must be published of them."""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.sources.directory.publish import MountPoint
from skillwire.sources.directory.tree import SkillTree
from skillwire.sources.snapshot import Snapshot

NotedReads: TypeAlias = Callable[[], AbstractContextManager[list[str]]]
"""Makes a context that notes the path of every file that is read in it."""


def skill_md(name: str, *, body: str = "Do it.\n", extra: str = "") -> bytes:
    """Return a `SKILL.md` that breaks no rule and earns no remark."""
    return f'---\nname: "{name}"\ndescription: Use when testing {name}.\n{extra}---\n\n{body}'.encode()


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files by their path inside `folder`, making the folders on the way."""
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)


def write_skill(folder: Path, files: Mapping[str, str | bytes] | None = None, *, name: str = "") -> Path:
    """Make `folder` a skill, named like the folder unless told otherwise, and return it."""
    write_files(folder, {**(files or {}), "SKILL.md": skill_md(name or folder.name)})
    return folder


def manifest_of(folder: Path, uri: str) -> Manifest:
    """Say what the manifest of the skill in `folder` must be, by a walk and hashes of our own.

    Names that start with a dot do not count. Only for names that need no percent-encoding.
    """
    root = uri.removesuffix("/SKILL.md")
    lines: list[ManifestFile] = []
    for directory, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                path = Path(directory) / name
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                inner = path.relative_to(folder).as_posix()
                lines.append(ManifestFile(f"{root}/{inner}", f"sha256:{digest}", path.stat().st_size))
    return Manifest.of(lines)


def tree(root: Path, *, prefix: str = "", scheme: str = "skill", follow_links: bool = False) -> SkillTree:
    return SkillTree(str(root), MountPoint(scheme, prefix), follow_links=follow_links)


def scan(root: Path, *, prefix: str = "", scheme: str = "skill", follow_links: bool = False) -> Snapshot:
    """Look at a folder once, without an index."""
    return tree(root, prefix=prefix, scheme=scheme, follow_links=follow_links).scan().snapshot


def uris(snapshot: Snapshot) -> list[str]:
    return [entry.uri.text for entry in snapshot.entries]


def codes(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the codes of all findings by place."""
    return {report.place: [finding.code for finding in report.findings] for report in snapshot.reports}


def held_back(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the codes of the findings about places from which nothing is published."""
    return {report.place: [finding.code for finding in report.findings] for report in snapshot.quarantined}


def manifest_at(snapshot: Snapshot, uri: str) -> Manifest:
    manifest = snapshot.get(SkillUri(uri)).manifest
    assert manifest is not None, "a skill from a folder is not dynamic"
    return manifest


def file_uris(snapshot: Snapshot, uri: str) -> list[str]:
    return [file.uri for file in manifest_at(snapshot, uri).files]


def delete(path: Path) -> None:
    """Delete a file or a folder with all it holds."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def move(path: Path, target: Path) -> None:
    path.rename(target)


def link(path: Path, target: Path | str) -> None:
    """Make `path` a symbolic link to `target`."""
    path.symlink_to(target)
