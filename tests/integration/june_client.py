"""A client of the June index, written from that document alone: nothing of skillwire is in it."""

import base64
import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

Json: TypeAlias = dict[str, Any]
Read: TypeAlias = Callable[[str], Awaitable[Json]]
"""Asks for `resources/read` of a URI and returns the one item of its contents."""

INDEX = "skill://index.json"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A skill as this client got it: file by file, and from each archive."""

    entry: Json
    files: dict[str, bytes]
    archives: dict[str, dict[str, bytes]]


async def read_index(read: Read) -> list[Json]:
    """Read the index without having been told of it, and check what the document asks of every entry."""
    item = await read(INDEX)
    assert item["mimeType"] == "application/json"
    index = json.loads(item["text"])
    assert "$schema" not in index
    for entry in index["skills"]:
        assert entry["frontmatter"]["name"]
        assert entry["frontmatter"]["description"]
        assert entry.get("url") or entry.get("archives")
        assert ("url" in entry) == ("digest" in entry)
        if "url" in entry:
            assert entry["url"].split("/")[-2:] == [entry["frontmatter"]["name"], "SKILL.md"]
        for archive in entry.get("archives", ()):
            assert archive["url"]
            assert archive["mimeType"] in ("application/gzip", "application/zip")
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", archive["digest"])
    return index["skills"]


async def load(read: Read, entry: Json) -> Loaded:
    """Fetch a skill in every way the index offers, and verify all that can be verified."""
    root = entry["url"].removesuffix("SKILL.md")
    skill = _bytes(await read(entry["url"]))
    _verify(skill, entry["digest"])
    assert _frontmatter(skill) == entry["frontmatter"]
    files = {"SKILL.md": skill}
    for line in entry["resources"]:
        content = _bytes(await read(line["uri"]))
        _verify(content, line["digest"])
        assert len(content) == line["size"]
        assert line["uri"].startswith(root)
        files[_unquoted(line["uri"].removeprefix(root))] = content
    assert len(skill) == entry["size"]
    archives = {archive["mimeType"]: await _unpacked(read, archive) for archive in entry["archives"]}
    return Loaded(entry, files, archives)


async def _unpacked(read: Read, archive: Json) -> dict[str, bytes]:
    item = await read(archive["url"])
    assert item["mimeType"] == archive["mimeType"]
    data = base64.b64decode(item["blob"], validate=True)
    _verify(data, archive["digest"])
    assert len(data) == archive["size"]
    if archive["mimeType"] == "application/zip":
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            names = [name for name in packed.namelist() if not name.endswith("/")]
            return {_safe(name): packed.read(name) for name in names}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as packed:
        files: dict[str, bytes] = {}
        for member in packed:
            assert member.isfile() or member.isdir()
            if member.isfile():
                stream = packed.extractfile(member)
                assert stream is not None
                files[_safe(member.name)] = stream.read()
        return files


def _safe(name: str) -> str:
    assert not name.startswith("/")
    assert ".." not in name.split("/")
    assert "\\" not in name
    return name


def _verify(content: bytes, digest: str) -> None:
    assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"


def _bytes(item: Json) -> bytes:
    return item["text"].encode() if "text" in item else base64.b64decode(item["blob"], validate=True)


def _frontmatter(skill: bytes) -> Json:
    _, head, _ = skill.decode().split("---\n", 2)
    return yaml.safe_load(head)


def _unquoted(path: str) -> str:
    data = re.sub(rb"%([0-9A-F]{2})", lambda escape: bytes.fromhex(escape[1].decode()), path.encode())
    return data.decode()
