"""A skill as one text: taking it apart and putting it together again changes no byte."""

from fuzz.properties import text_of
from skillwire.core.errors import FrontmatterError, LimitError
from skillwire.core.skill import PromptBuilder, join_prompt, split_prompt


def check(data: bytes) -> None:
    text = text_of(data)
    try:
        parts = split_prompt(text)
    except FrontmatterError:
        return
    references = [(path, content.encode()) for path, content in parts.references]
    if parts.is_whole:
        assert parts.skill_md == text
        assert not references
        return
    written = join_prompt(parts.skill_md.encode(), references)
    assert text.encode().startswith(written)
    assert parts.omitted or written == text.encode()
    _check_stitching(parts.skill_md.encode(), references)


def _check_stitching(skill_md: bytes, references: list[tuple[str, bytes]]) -> None:
    try:
        whole = PromptBuilder(skill_md)
        for path, content in references:
            whole.add(path, content)
        made = whole.finish()
    except LimitError:
        return
    assert made.text.encode() == join_prompt(skill_md, references)
