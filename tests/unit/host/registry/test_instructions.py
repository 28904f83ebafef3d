"""Skill URIs in a server's instructions: found in prose, bounded, and nothing else taken for one."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.uri import SkillUri
from skillwire.host.registry.registry import MAX_INSPECTED, MAX_URIS, uris_in

URI = "skill://acme/refunds/SKILL.md"


@pytest.mark.requirement("HOST-12")
@pytest.mark.parametrize(
    "text",
    [
        URI,
        f"Load {URI} first.",
        f"Load {URI}. Then go on.",
        f"See `{URI}`, please",
        f"See <{URI}>!",
        f"[refunds]({URI})",
        f"**{URI}**",
        f"_{URI}_",
        f'"{URI}"',
        f"'{URI}'",
        f"({URI});",
        f"start:{URI}",
        f"- {URI}\n- {URI}\n",
        f"{URI}…",
        f"{URI}?!",
        f"not://,{URI}",
        f"https://example.com/x,{URI}",
        f"SKILL.md is at {URI}",
        "SKILL://acme/%72efunds/SKILL.md",
    ],
)
def test_a_uri_is_found_in_whatever_stands_around_it(text: str) -> None:
    assert uris_in(text) == (URI,)


@pytest.mark.requirement("HOST-12")
def test_several_uris_come_in_their_order_and_each_once() -> None:
    text = f"skill://b/SKILL.md,{URI} and github://o/r/SKILL.md;{URI}"

    assert uris_in(text) == ("skill://b/SKILL.md", URI, "github://o/r/SKILL.md")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SKILL.md",
        "acme/refunds/SKILL.md",
        "://acme/SKILL.md",
        "skill:///SKILL.md",
        "skill://SKILL.md",
        "file:///etc/SKILL.md",
        "FILE://etc/SKILL.md",
        "skill://a/../b/SKILL.md",
        "skill://a/%2e%2e/SKILL.md",
        "skill://user@a/b/SKILL.md",
        "skill://a/b/SKILL.md?x",
        "skill://a/b/SKILL.md#x",
        "skill://a/b/SKILL.md.bak",
        "skill://a/b/SKILL.mdx",
        "skill://a/b/SKILL.md_old",
        "skill://a/b/SKILL.md/c",
        "skill://a/b/skill.md",
        "skill:// a/SKILL.md",
        "skill://a/\ud800/SKILL.md",
    ],
)
def test_what_no_skill_may_have_as_its_uri_is_passed_over(text: str) -> None:
    assert uris_in(text) == ()


def test_a_folder_that_is_named_like_the_file_does_not_end_a_uri() -> None:
    assert uris_in("skill://a/SKILL.md/b/SKILL.md") == ("skill://a/SKILL.md/b/SKILL.md",)


@pytest.mark.requirement("HOST-12")
def test_no_more_than_twenty_are_taken() -> None:
    text = " ".join(f"skill://s-{number}/SKILL.md" for number in range(100))

    assert uris_in(text) == tuple(f"skill://s-{number}/SKILL.md" for number in range(MAX_URIS))


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "://",
        "/SKILL.md",
        "a://",
        "a://b/SKILL.md",
        "a://b/SKILL.md/",
        "/SKILL.md.",
        ".",
        "(",
        "a-",
        "%2",
        "*_",
    ],
)
def test_no_text_takes_long(unit: str) -> None:
    text = unit * (4 * MAX_INSPECTED // len(unit))
    started = time.process_time()

    uris_in(text)

    assert time.process_time() - started < 1.0


@settings(deadline=None)
@given(st.text(max_size=200) | st.text("ab:/SKIL.md(,`*_% ", max_size=200))
def test_whatever_is_found_is_canonical(text: str) -> None:
    for uri in uris_in(text):
        assert SkillUri.parse(uri).text == uri
