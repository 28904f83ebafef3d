"""The words under which an author files a skill, wherever the frontmatter has them."""

from collections.abc import Iterator
from typing import Final

from skillwire.core.frontmatter import Frontmatter
from skillwire.core.yaml12 import JsonValue

MAX_TAGS: Final = 512
"""How many characters of all tags together count."""

_FIELDS = ("tags", "keywords", "categories", "category")
_MOST_VALUES = 64


def tags_of(frontmatter: Frontmatter) -> str:
    """Return a skill's tags as one text: those among its fields, and those in `metadata`."""
    fields = frontmatter.fields
    metadata = fields.get("metadata")
    holders = (fields, metadata) if isinstance(metadata, dict) else (fields,)
    tags = [text for holder in holders for key in _FIELDS if key in holder for text in _texts(holder[key])]
    return " ".join(tags)[:MAX_TAGS]


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value[:MAX_TAGS]
    elif isinstance(value, list):
        for item in value[:_MOST_VALUES]:
            if isinstance(item, str):
                yield item[:MAX_TAGS]
