"""The files that the page brings along: its style, its script, its icon."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

STYLE: Final = "page.css"
SCRIPT: Final = "page.js"
ICON: Final = "icon.svg"

_MEDIA_TYPES = {
    STYLE: "text/css; charset=utf-8",
    SCRIPT: "text/javascript; charset=utf-8",
    ICON: "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file under a name that changes with its content, so that it can be kept forever."""

    name: str
    media_type: str
    content: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return all files by their own names."""
    return {name: _load(name, media_type) for name, media_type in _MEDIA_TYPES.items()}


def asset_at(name: str) -> Asset | None:
    """Return the file that is served under a name, if there is one."""
    return next((asset for asset in assets().values() if asset.name == name), None)


def _load(name: str, media_type: str) -> Asset:
    content = (files("skillwire.server.page") / "static" / name).read_bytes()
    stem, _, suffix = name.rpartition(".")
    return Asset(f"{stem}.{hashlib.sha256(content).hexdigest()[:16]}.{suffix}", media_type, content)
