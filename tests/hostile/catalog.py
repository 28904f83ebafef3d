"""What an honest server publishes: skills made in memory, their digests, and their entries as JSON.

Only the standard library is used in this folder's server, so that nothing
stands between a scenario and the bytes it wants to send.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

Json: TypeAlias = dict[str, Any]

SKILL_FILE = "SKILL.md"
DESCRIPTION = "Handles refunds of orders. Use when a customer wants money back."
BODY = "# Refunds\n\nRead [the policy](references/policy.md) first, then run `scripts/check.sh`.\n"
POLICY = b"Refund within 30 days.\n"
SCRIPT = b"#!/bin/sh\necho checked\n"
LOGO = b"\x89PNG\r\n\x1a\n\xff\x00logo"

# What a YAML reader would refuse or misread when it stands in a quoted text as it is.
_TO_ESCAPE = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029\ufeff]')


@dataclass(frozen=True, slots=True)
class Published:
    """One skill as the peer holds it: its path, the files it serves, and what its entry says.

    Everything follows from `files` unless `claimed` replaces a field of the
    entry: that is how a scenario lies about a skill.
    """

    path: str
    files: Mapping[str, bytes]
    frontmatter: Mapping[str, Any]
    scheme: str = "skill"
    claimed: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def root(self) -> str:
        return f"{self.scheme}://{self.path}"

    @property
    def uri(self) -> str:
        return f"{self.root}/{SKILL_FILE}"

    @property
    def resources(self) -> list[Json]:
        """The lines an honest entry has, sorted."""
        return [line(f"{self.root}/{path}", content) for path, content in sorted(self.files.items())]

    @property
    def entry(self) -> Json:
        """The entry as the peer publishes it; a claim of `...` leaves the field out."""
        honest = {"uri": self.uri, "frontmatter": dict(self.frontmatter), "resources": self.resources}
        said = {**honest, **self.claimed}
        return {name: value for name, value in said.items() if value is not ...}

    def changing(self, files: Mapping[str, bytes | None]) -> "Published":
        """Return the skill with files added or replaced, and those left out that are given as None."""
        merged = {**self.files, **files}
        return replace(self, files={path: data for path, data in merged.items() if data is not None})

    def claiming(self, **fields: Any) -> "Published":
        """Return the skill with an entry that says something else than the files do."""
        return replace(self, claimed={**self.claimed, **fields})


def line(uri: str, content: bytes) -> Json:
    """Return one line of `resources`, true to the content."""
    return {"uri": uri, "digest": digest(content), "size": len(content)}


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def skill(
    path: str,
    *,
    description: str = "",
    body: str = "Do it.\n",
    files: Mapping[str, bytes] | None = None,
    scheme: str = "skill",
    **fields: Any,
) -> Published:
    """Make an honest skill; `fields` are more of its frontmatter, with underscores for hyphens."""
    name = path.rpartition("/")[2]
    more = {key.replace("_", "-"): value for key, value in fields.items()}
    frontmatter = {"name": name, "description": description or f"Does {name}. Use when asked.", **more}
    return Published(path, {**(files or {}), SKILL_FILE: document(frontmatter, body)}, frontmatter, scheme)


def document(frontmatter: Mapping[str, Any], body: str) -> bytes:
    """Return a `SKILL.md` with this frontmatter."""
    lines = [f"{key}: {yaml(value)}\n" for key, value in frontmatter.items()]
    return f"---\n{''.join(lines)}---\n\n{body}".encode()


def yaml(value: Any) -> str:
    """Write a value on one line of YAML that every reader takes for the same value."""
    if isinstance(value, str):
        return f'"{_TO_ESCAPE.sub(_escaped, value)}"'
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value)
        return "{" + ", ".join(f"{yaml(key)}: {yaml(item)}" for key, item in items.items()) + "}"
    if isinstance(value, Sequence):
        parts = cast(Sequence[Any], value)
        return "[" + ", ".join(map(yaml, parts)) + "]"
    return json.dumps(value)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def refunds(version: int = 1) -> Published:
    """The skill most scenarios lie about; every version of it has another body of the same length."""
    body = BODY if version == 1 else BODY.replace("first, then", f"later, v{version:02}X")
    files = {"references/policy.md": POLICY, "scripts/check.sh": SCRIPT, "assets/logo.png": LOGO}
    return skill("acme/refunds", description=DESCRIPTION, body=body, files=files)


def reports() -> Published:
    """A second skill, which no scenario lies about: whatever happens to the first, it must stay usable."""
    return skill("acme/reports", body="Write the report.\n")


def content(uri: str, data: bytes) -> Json:
    """Return one item of a `resources/read` result: text when the bytes are, else base64."""
    try:
        return {"uri": uri, "mimeType": media_type(uri), "text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"uri": uri, "mimeType": media_type(uri), "blob": base64.b64encode(data).decode()}


def media_type(uri: str) -> str:
    suffix = uri.rpartition(".")[2]
    known = {"md": "text/markdown", "png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
    return known.get(suffix, "text/plain")
