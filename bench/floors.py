"""The floors: the least work that does the same input and output."""

import hashlib
import os

import orjson
import yaml


def walk_and_stat(root: str) -> list[str]:
    """List every folder and look at every file."""
    found: list[str] = []
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as listing:
            for entry in listing:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    entry.stat(follow_symlinks=False)
                    found.append(entry.path)
    return found


def walk_read_hash_parse(root: str) -> int:
    """Read and hash every file, and parse every frontmatter with PyYAML's C loader."""
    count = 0
    for path in walk_and_stat(root):
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        hashlib.sha256(content).hexdigest()
        if path.endswith("/SKILL.md"):
            yaml.load(content[4 : content.index(b"\n---\n", 4)], yaml.CSafeLoader)
        count += 1
    return count


def read_hash_answer(root: str, request: bytes) -> bytes:
    """Open and hash the file that a `resources/read` names, and write the answer with its text."""
    message = orjson.loads(request)
    uri: str = message["params"]["uri"]
    with open(root + uri.removeprefix("skill:/"), "rb", buffering=0) as file:
        content = file.read()
    hashlib.sha256(content).hexdigest()
    item = {"mimeType": "text/markdown", "text": content.decode(), "uri": uri}
    return orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"contents": [item]}})
