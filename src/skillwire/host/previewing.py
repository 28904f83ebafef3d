"""A file of a skill for a person to look at, before anything is loaded."""

from dataclasses import dataclass

from skillwire.core.characters import HiddenCharacter, hidden_characters, revealed
from skillwire.host.activation import DynamicFiles
from skillwire.host.loading import Machinery, recorded
from skillwire.host.registry.known import KnownSkill
from skillwire.host.skillfiles import uri_of

_MOST_HIDDEN = 1000


@dataclass(frozen=True, slots=True)
class Preview:
    """A file of a skill for a person to look at: checked against the entry, and not loaded.

    `text` has everything hidden in it spelled out; it is None when the file is no text.
    """

    skill: KnownSkill
    uri: str
    content: bytes
    text: str | None
    hidden: tuple[HiddenCharacter, ...]


async def preview(machinery: Machinery, reference: str, path: str) -> Preview:
    """Fetch one file of a skill and check it against the entry.

    Raises:
        SkillError: The file cannot be had, or does not match the entry.
    """
    with recorded(machinery.audit, "preview", reference):
        skill = await machinery.registry.resolve(reference)
        machinery.fetcher.require_safe(skill)
        uri = uri_of(skill, path)
        content = await machinery.fetcher.file(skill, uri, DynamicFiles())
    machinery.audit.record("preview", reference=reference, uri=uri)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return Preview(skill, uri, content, None, ())
    return Preview(skill, uri, content, revealed(text), tuple(hidden_characters(text, most=_MOST_HIDDEN)))
