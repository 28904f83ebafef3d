"""Filling the templates: every text in them is escaped, and shows what hides in it."""

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from skillwire.core.characters import revealed
from skillwire.server.page.assets import ICON, SCRIPT, STYLE, assets

if TYPE_CHECKING:
    from jinja2 import Environment

CUT: Final = "…"

_UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


def fill(template: str, values: Mapping[str, Any]) -> bytes:
    """Return the page that a template makes of values."""
    # Half a character cannot be sent, and nobody may keep a page from being shown by one.
    return _environment().get_template(template).render(values).encode("utf-8", "replace")


def safe(html: str) -> Any:
    """Mark HTML that `markdown.py` or `file.py` wrote, so that it is not escaped again."""
    from markupsafe import Markup

    return Markup(html)


def shortened(text: str, most: int) -> str:
    """Cut a text to `most` characters, at the end of a word if there is one near."""
    if len(text) <= most:
        return text
    beginning = text[:most]
    return (beginning.rpartition(" ")[0] or beginning if " " in beginning[most // 2 :] else beginning) + CUT


def size_in_words(size: int | None) -> str:
    """Say how large something is, for people."""
    if size is None:
        return "unknown size"
    if size < 1000:
        return f"{size} byte{'' if size == 1 else 's'}"
    amount, unit = size / 1000, _UNITS[0]
    for larger in _UNITS[1:]:
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"


def counted(number: int, one: str, many: str = "") -> str:
    """Say how many there are of something."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


@cache
def _environment() -> "Environment":
    # Imported when the first page is asked for: most servers never show one.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("skillwire.server.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters, names = cast("dict[str, Any]", environment.filters), cast("dict[str, Any]", environment.globals)
    filters |= {"size": size_in_words, "shortened": shortened, "short_digest": _short_digest}
    names |= {"counted": counted, "style": assets()[STYLE].name}
    names |= {"script": assets()[SCRIPT].name, "icon": assets()[ICON].name}
    return environment


def _shown(value: object) -> object:
    """Spell out what hides in a text, before it is escaped; HTML of our own did so already."""
    return value if not isinstance(value, str) or hasattr(value, "__html__") else revealed(value)


def _short_digest(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def etag_of(body: bytes) -> str:
    """Return the ETag of a page: the same on every replica that shows the same."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'
