"""A file of a skill for a person to read: whose it is, what hides in it, and its lines."""

from collections import Counter
from collections.abc import Iterator

from skillwire.core.characters import visible
from skillwire.core.manifest import digest_of
from skillwire.host import Preview
from skillwire.host.asking import Line, Paragraph, about, barred, foreign
from skillwire.host.promises import is_promised
from skillwire.host.skillfiles import is_script

MOST_HIDDEN = 1000
_HIDDEN_NAMED = 5
_TAB = 4


def path_of(preview: Preview) -> str:
    return preview.skill.entry.uri.relative_path(preview.uri)


def is_text(preview: Preview) -> bool:
    """Tell whether a file can be shown; a zero byte is in no text."""
    return preview.text is not None and b"\0" not in preview.content


def content_paragraphs(preview: Preview) -> list[Paragraph]:
    """Say what is known of a file before it is shown, its origin first."""
    skill, path = preview.skill, path_of(preview)
    found = [
        *about(skill)[:2],
        foreign("A script of it" if is_script(path) else "A file of it", [path]),
        Paragraph("Size", (f"{len(preview.content):,} bytes",)),
        Paragraph("Digest", (digest_of(preview.content),)),
    ]
    if skill.is_remote and not is_promised(skill.entry, preview.uri):
        words = "nothing vouches for this file: the server may send another one next time"
        found.append(Paragraph("Unverified", (words,), is_warning=True))
    if not is_text(preview):
        found.append(Paragraph("Not shown", ("it is binary, and no text",), is_warning=True))
    elif preview.hidden:
        found.append(_hidden(preview))
    return found


def content_lines(preview: Preview, width: int | None = None) -> Iterator[Line]:
    """Yield a file's lines behind a bar, with nothing hidden in them; none when it is no text."""
    text = (preview.text or "") if is_text(preview) else ""
    for line in text.removesuffix("\n").split("\n") if text else ():
        yield from barred(visible(line.rstrip("\r").expandtabs(_TAB)), width)


def _hidden(preview: Preview) -> Paragraph:
    counts = Counter(character.label for character in preview.hidden)
    count = len(preview.hidden)
    many = f"{count:,} or more" if count >= MOST_HIDDEN else f"{count:,}"
    lines = [f"{number:,} × {label}" for label, number in counts.most_common(_HIDDEN_NAMED)]
    rest = len(counts) - len(lines)
    return Paragraph(
        f"Characters people cannot see ({many}; spelled out as <U+…> below)",
        tuple(lines),
        is_warning=True,
        note=f"and {rest:,} other kinds" if rest else "",
    )
