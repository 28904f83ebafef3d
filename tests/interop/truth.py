"""What a server must say of a folder of skills, found out without any code of ours."""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"

Json: TypeAlias = Any
"""A JSON value, as a stranger's tool printed it."""

# Names and contents that are easily served wrong, as one more skill beside the examples.
AWKWARD: Mapping[str, bytes] = {
    "SKILL.md": b"---\r\nname: awkward\r\ndescription: Use when testing.\r\n---\r\n\r\nCarriage returns.\r\n",
    "references/Q&A notes.md": b"A name with a space.\n",
    "references/100% #1?.txt": b"A name full of delimiters.\n",
    "references/caf\u00e9 \u65e5\u672c.md": "Caf\u00e9.\n".encode(),
    "references/marked.md": b"\xef\xbb\xbfA byte order mark.\n",
    "references/plain": b"No extension.\n",
    "references/latin1.txt": "Caf\u00e9 in Latin-1.\n".encode("latin-1"),
    "assets/empty.txt": b"",
    "assets/nul.txt": b"a\0b",
    "assets/large.bin": bytes(range(256)) * 2048,
}


@dataclass(frozen=True, slots=True)
class Truth:
    """The entries, files and directories that a folder of skills comes down to."""

    entries: list[Json]
    files: dict[str, Path]
    directories: dict[str, dict[str, bool]]
    """The children of every directory in a skill, by URI, and whether they are directories."""

    @property
    def uris(self) -> list[str]:
        return [entry["uri"] for entry in self.entries]

    def is_text(self, uri: str) -> bool:
        try:
            self.files[uri].read_bytes().decode()
        except UnicodeDecodeError:
            return False
        return True


def make_folder(folder: Path) -> None:
    """Put the examples and the awkward skill into `folder`."""
    shutil.copytree(EXAMPLES, folder)
    for path, content in AWKWARD.items():
        target = folder / "awkward" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (folder / "awkward" / "templates").mkdir()


def truth_of(folder: Path) -> Truth:
    """Walk and hash `folder`."""
    roots = sorted(path.parent for path in folder.rglob("SKILL.md"))
    entries = sorted((_entry(folder, root) for root in roots), key=lambda entry: entry["uri"])
    files = {_uri(folder, path): path for root in roots for path in _below(root) if path.is_file()}
    folders = {path for root in roots for path in (root, *_below(root)) if path.is_dir()}
    directories = {
        _uri(folder, path): {_uri(folder, child): child.is_dir() for child in path.iterdir()}
        for path in folders
    }
    return Truth(entries, files, directories)


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _entry(folder: Path, root: Path) -> Json:
    _, frontmatter, _ = (root / "SKILL.md").read_text("utf-8").split("---\n", 2)
    resources = [
        {"uri": _uri(folder, path), "digest": digest_of(path.read_bytes()), "size": path.stat().st_size}
        for path in _below(root)
        if path.is_file()
    ]
    return {
        "uri": _uri(folder, root / "SKILL.md"),
        # In the examples the rules of YAML 1.1 and 1.2 give the same values.
        "frontmatter": yaml.safe_load(frontmatter),
        "resources": sorted(resources, key=lambda resource: resource["uri"]),
    }


def _below(root: Path) -> Iterator[Path]:
    return root.rglob("*")


def _uri(folder: Path, path: Path) -> str:
    """Return the URI: each name with everything escaped that RFC 3986 does not allow in a path segment."""
    return "skill://" + "/".join(quote(name, safe="!$&'()*+,;=:@") for name in path.relative_to(folder).parts)
