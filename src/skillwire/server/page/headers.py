"""The headers of what the page answers: what a browser may do with it, and who may keep it."""

from typing import Final
from urllib.parse import quote

# Our own style, script and icon, and nothing else: no frame, no plug-in, no request to another machine.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_NOTHING_ALLOWED = "default-src 'none'; frame-ancestors 'none'; sandbox"

SAFE: Final = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""What every answer carries."""

FOREVER: Final = "public, max-age=31536000, immutable"
NEVER: Final = "no-store"
_FRESH_SECONDS = 10


def freshness(ttl_ms: int, *, is_private: bool) -> str:
    """Say who may keep a page and for how long: nobody what is for one caller, others a few seconds."""
    if is_private:
        return "private, no-store"
    seconds = min(_FRESH_SECONDS, ttl_ms // 1000)
    return f"public, max-age={seconds}" if seconds else "public, no-cache"


def download(name: str) -> dict[str, str]:
    """Return the headers of a stranger's file, which a browser shall save and never show."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in name)
    return {
        **SAFE,
        "content-security-policy": _NOTHING_ALLOWED,
        "content-type": "application/octet-stream",
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
    }
