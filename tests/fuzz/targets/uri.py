"""URIs: one spelling for each resource, and none that leads out of a skill."""

import re
from urllib.parse import unquote_to_bytes

from fuzz.properties import require_fit, text_of
from skillwire.core.errors import InvalidUriError
from skillwire.core.uri import MAX_URI_LENGTH, SkillUri, are_plain, canonical_uri, parse_uri, segment_of

_HARMFUL = re.compile(rb"[\x00-\x1f\x7f/\\]")


def check(data: bytes) -> None:
    """The first line is a URI, the second a path or a reference inside a skill."""
    uri, _, reference = text_of(data).partition("\n")
    _check_uri(uri)
    _check_path(reference)
    try:
        skill = SkillUri.parse(uri)
    except InvalidUriError as error:
        require_fit(str(error))
        return
    _check_skill(skill, reference)


def _check_uri(text: str) -> None:
    try:
        canonical = canonical_uri(text)
    except InvalidUriError as error:
        require_fit(str(error))
        return
    assert len(canonical) <= MAX_URI_LENGTH
    assert canonical.isascii()
    assert canonical.isprintable()
    assert canonical_uri(canonical) == canonical
    scheme, segments = parse_uri(text)
    assert parse_uri(canonical) == (scheme, segments)
    assert scheme == text.partition("://")[0].lower()
    # The standard library decodes the segments to the same bytes, and to nothing new after that.
    spelled = [unquote_to_bytes(part) for part in text.partition("://")[2].split("/")]
    assert [segment.encode() for segment in segments] == spelled
    for segment in spelled:
        for _ in range(10):
            assert segment not in (b"", b".", b"..")
            assert not _HARMFUL.search(segment)
            segment = unquote_to_bytes(segment)
    assert segment_of(canonical) == segments[-1]


def _check_path(path: str) -> None:
    root = SkillUri.build("acme/tea")
    try:
        joined = root.join(path)
    except InvalidUriError as error:
        require_fit(str(error))
        assert not are_plain([path])
        return
    assert joined == canonical_uri(joined)
    assert root.contains(joined)
    assert root.relative_path(joined) == path


def _check_skill(skill: SkillUri, reference: str) -> None:
    assert SkillUri.parse(skill.text) == skill
    assert SkillUri.build(skill.path, scheme=skill.scheme) == skill
    assert skill.path.rpartition("/")[2] == skill.name
    assert skill.contains(skill.published)
    assert not skill.contains(skill.root)
    found = skill.resolve(reference)
    if found is None:
        return
    assert found.startswith(f"{skill.root}/")
    assert canonical_uri(found) == found
    path = skill.relative_path(found)
    assert ".." not in path.split("/")
    try:
        assert skill.join(path) == found
    except InvalidUriError:
        raise AssertionError(f"{path!r} was resolved and cannot be joined") from None
