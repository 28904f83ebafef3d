"""Skill URIs: what they mean, which spellings are one, and which are refused."""

import re
import socket
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.core.errors import INVALID_PARAMS, InvalidUriError
from skillwire.core.uri import (
    MAX_PLAIN_LENGTH,
    MAX_URI_LENGTH,
    UNSAFE_SCHEMES,
    SkillUri,
    are_plain,
    canonical_uri,
    check_segment,
    compose_uri,
    parse_uri,
)

# Two homes for every table: all logic is the same under another scheme (URI-06).
HOMES = ("skill://acme/billing/refunds", "github://o/r/skills/x")
ANYWHERE = pytest.mark.parametrize("home", HOMES)

REG_NAME = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-F]{2})+")
PATH_SEGMENT = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-F]{2})+")

properties = settings(deadline=None, max_examples=80)

schemes = st.sampled_from(["skill", "github", "x-corp+skills.v1"])
segments = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/\\"), min_size=1, max_size=10
).filter(lambda text: text not in (".", "..") and not re.search("%[0-9A-Fa-f]{2}", text))
paths = st.lists(segments, min_size=1, max_size=4).map("/".join)
homes = st.tuples(paths, schemes).map(lambda home: SkillUri.build(home[0], scheme=home[1]))

# Text of every kind, and text that almost is a URI, which a random generator would rarely hit upon.
PIECES = (
    *"skill: GitHub: file: // / : @ [ ] ? # a Zz ~".split(),
    *("\\", " ", "é", "‮"),
    *(".", "..", "%", "%2e", "%2E", "%2f", "%5C", "%00", "%25", "%252e", "%41", "%C3%A9", "%c3", "%C0%AE"),
    *("SKILL.md", "/SKILL.md", "\x00", "\x1b", "\x7f", "\x85", "\n", "\ud800", "\udcff"),
)
almost_uris = st.lists(st.sampled_from(PIECES) | st.characters(), max_size=12).map("".join)
texts = almost_uris | almost_uris.map("skill://a".__add__)
plain_texts = st.text("aZ0-._~/", max_size=12).map("skill://".__add__)
# Segments that a careless comparison would take for one another.
neighbours = st.sampled_from(
    [
        "a",
        "A",
        "%",
        "%2",
        "%20",
        " ",
        "+",
        "é",
        "e\u0301",
        "É",
        "ß",
        "ss",
        "a@b",
        "a%40b",
        "ﬁ",
        "fi",
        "...",
        "a.",
    ]
)


@st.composite
def spelt_uris(draw: st.DrawFn) -> tuple[str, tuple[str, list[str]]]:
    """Draw a scheme and segments, and one of the many spellings that mean them."""
    scheme, parts = draw(schemes), draw(st.lists(segments, min_size=1, max_size=3))
    spelt_scheme = "".join(draw(st.sampled_from([letter, letter.upper()])) for letter in scheme)
    spelt = [_spelt(draw, part, "%?#[]@:" if number == 0 else "%?#") for number, part in enumerate(parts)]
    return f"{spelt_scheme}://{'/'.join(spelt)}", (scheme, parts)


def _spelt(draw: st.DrawFn, segment: str, always_escaped: str) -> str:
    spelt: list[str] = []
    for character in segment:
        escaped = "".join(f"%{byte:02X}" for byte in character.encode())
        choices = [escaped, escaped.lower()]
        if character not in always_escaped:
            choices.append(character)
        spelt.append(draw(st.sampled_from(choices)))
    return "".join(spelt)


def outcome(function: Callable[[str], object], text: str) -> object:
    """Return what `function` returns, or the type of the one error it may raise."""
    try:
        return function(text)
    except InvalidUriError as error:
        return type(error)


# What a skill's URI says


@pytest.mark.requirement("URI-03")
@pytest.mark.requirement("URI-06")
@pytest.mark.parametrize(
    ("text", "scheme", "root", "path", "name"),
    [
        ("skill://refunds/SKILL.md", "skill", "skill://refunds", "refunds", "refunds"),
        (
            "skill://acme/billing/refunds/SKILL.md",
            "skill",
            "skill://acme/billing/refunds",
            "acme/billing/refunds",
            "refunds",
        ),
        ("github://o/r/skills/x/SKILL.md", "github", "github://o/r/skills/x", "o/r/skills/x", "x"),
        ("skill://a%20b/caf%C3%A9/SKILL.md", "skill", "skill://a%20b/caf%C3%A9", "a b/café", "café"),
        ("skill://SKILL.md/SKILL.md", "skill", "skill://SKILL.md", "SKILL.md", "SKILL.md"),
        ("skill://index.json/SKILL.md", "skill", "skill://index.json", "index.json", "index.json"),
    ],
)
def test_a_skill_uri_tells_its_scheme_root_path_and_name(
    text: str, scheme: str, root: str, path: str, name: str
) -> None:
    uri = SkillUri.parse(text)

    assert (uri.scheme, uri.root, uri.path, uri.name) == (scheme, root, path, name)
    assert str(uri) == text


@pytest.mark.requirement("URI-03")
@ANYWHERE
@pytest.mark.parametrize(
    "ending", ["", "/", "/skill.md", "/SKILL.MD", "/SKILL.md/", "/SKILL.md/x", "SKILL.md", "/README.md"]
)
def test_only_an_explicit_skill_md_is_a_skills_uri(home: str, ending: str) -> None:
    with pytest.raises(InvalidUriError):
        SkillUri.parse(home + ending)


@pytest.mark.requirement("URI-03")
@pytest.mark.parametrize("text", ["skill://SKILL.md", "github://SKILL.md", "skill:///SKILL.md"])
def test_a_skill_needs_a_path_before_its_skill_md(text: str) -> None:
    with pytest.raises(InvalidUriError):
        SkillUri.parse(text)


def test_equal_uris_are_equal_values_however_they_were_spelt() -> None:
    tidy = SkillUri.parse("skill://acme/caf%C3%A9/SKILL.md")
    untidy = SkillUri.parse("SKILL://%61cme/café/SKILL%2emd")

    assert untidy == tidy
    assert {untidy: "found"}[tidy] == "found"
    assert untidy != SkillUri.parse("skill://acme/cafe/SKILL.md")


def test_a_publisher_is_asked_in_the_spelling_it_used_itself() -> None:
    parsed = SkillUri.parse("skill://acme/café/SKILL.md")
    built = SkillUri.build("acme/café")

    assert (parsed.published, parsed.text) == (
        "skill://acme/café/SKILL.md",
        "skill://acme/caf%C3%A9/SKILL.md",
    )
    assert (built.published, built.text) == ("skill://acme/caf%C3%A9/SKILL.md",) * 2


# Building and parsing are each other's reverse


@pytest.mark.requirement("URI-06")
@properties
@given(paths, schemes)
def test_a_built_uri_parses_back_to_what_it_was_built_from(path: str, scheme: str) -> None:
    built = SkillUri.build(path, scheme=scheme)

    parsed = SkillUri.parse(built.text)

    assert parsed == built
    assert (parsed.scheme, parsed.path, parsed.name) == (scheme, path, path.rpartition("/")[2])
    assert parse_uri(built.text) == (scheme, (*path.split("/"), "SKILL.md"))


@pytest.mark.requirement("URI-04")
@properties
@given(paths, schemes)
@example("user@x:80/a@b:c", "skill")
@example("[::1]/x", "skill")
@example("a b/%", "skill")
def test_a_built_uri_keeps_to_the_grammar_of_rfc_3986(path: str, scheme: str) -> None:
    uri = SkillUri.build(path, scheme=scheme)

    authority, *rest = uri.text.removeprefix(f"{scheme}://").split("/")
    assert REG_NAME.fullmatch(authority)
    assert all(PATH_SEGMENT.fullmatch(segment) for segment in rest)


@pytest.mark.requirement("URI-04")
def test_the_first_segment_escapes_what_would_look_like_a_user_or_a_port() -> None:
    uri = SkillUri.build("user@x:80/user@x:80")

    assert uri.text == "skill://user%40x%3A80/user@x:80/SKILL.md"
    assert uri.path == "user@x:80/user@x:80"


@pytest.mark.parametrize(
    "path", ["", "/", "a/", "/a", "a//b", ".", "a/..", "a\\b", "a\x00", "%2e%2e", "\ud800"]
)
def test_a_path_that_cannot_be_part_of_a_uri_is_not_built(path: str) -> None:
    with pytest.raises(InvalidUriError):
        SkillUri.build(path)


@pytest.mark.parametrize(
    "scheme", ["", "1a", "a b", "a:", "skill\n", "é", "-a", "skill://a", "skill:/", "a/b"]
)
def test_a_scheme_that_is_none_is_not_built(scheme: str) -> None:
    with pytest.raises(InvalidUriError):
        SkillUri.build("a", scheme=scheme)


# Files of a skill


@pytest.mark.requirement("URI-06")
@properties
@given(homes, paths)
def test_a_joined_path_lies_inside_the_skill_and_is_found_again(home: SkillUri, path: str) -> None:
    joined = home.join(path)

    assert canonical_uri(joined) == joined
    assert home.contains(joined)
    assert home.relative_path(joined) == path


@pytest.mark.requirement("URI-03")
@properties
@given(homes)
def test_joining_skill_md_gives_the_skills_own_uri(home: SkillUri) -> None:
    joined = home.join("SKILL.md")

    assert joined == home.text
    assert joined == f"{home.root}/SKILL.md"


@ANYWHERE
@pytest.mark.parametrize(
    "path",
    ["", "/x", "x/", "..", "../x", "x/../y", "a\\b", "%2e%2e/x", "x%2Fy"],
)
def test_a_path_that_could_leave_the_skill_is_not_joined(home: str, path: str) -> None:
    skill = SkillUri.parse(home + "/SKILL.md")

    with pytest.raises(InvalidUriError):
        skill.join(path)


@properties
@given(several=st.lists(paths | st.text("ab.-/\n", max_size=6), max_size=4))
@example(several=["b\nc"])
@example(several=["b", ""])
@example(several=["b\n"])
@example(several=[])
def test_paths_that_are_called_plain_stand_in_a_uri_as_they_are(several: list[str]) -> None:
    home = SkillUri.build("acme/refunds")

    if are_plain(several):
        assert [home.join(path) for path in several] == [f"{home.root}/{path}" for path in several]


def test_ordinary_paths_are_plain_and_odd_or_long_ones_are_not() -> None:
    assert are_plain(["SKILL.md", "a/b.md"])
    assert not are_plain(["SKILL.md", "a b.md"])
    assert not are_plain(["a\nb"])
    assert not are_plain(["SKILL.md", "a" * (MAX_PLAIN_LENGTH + 1)])


@ANYWHERE
def test_a_joined_path_is_taken_literally(home: str) -> None:
    skill = SkillUri.parse(home + "/SKILL.md")

    assert skill.join("a b/100%/q?.md#1") == home + "/a%20b/100%25/q%3F.md%231"
    assert skill.join("a%20b") == home + "/a%2520b"
    assert skill.relative_path(home + "/a%2520b") == "a%20b"


@ANYWHERE
@pytest.mark.parametrize(
    ("ending", "inside"),
    [
        ("/SKILL.md", True),
        ("/references/x.md", True),
        ("/%72eferences/%78.md", True),
        ("/nested/SKILL.md", True),
        ("", False),
        ("/", False),
        ("-evil/x.md", False),
        ("/../x.md", False),
        ("/%2e%2e/x.md", False),
        ("/x.md?q", False),
        ("/x.md#f", False),
    ],
)
def test_a_skill_contains_what_lies_below_its_root_and_nothing_else(
    home: str, ending: str, inside: bool
) -> None:
    skill = SkillUri.parse(home + "/SKILL.md")

    assert skill.contains(home + ending) is inside
    assert isinstance(outcome(skill.relative_path, home + ending), str) is inside


@pytest.mark.parametrize(
    "uri",
    [
        "skill://acme/x/a.md",
        "skill://Acme/billing/refunds/a.md",
        "github://acme/billing/refunds/a.md",
        "skill://x/acme/billing/refunds/a.md",
        "acme/billing/refunds/a.md",
        "a.md",
        "",
    ],
)
def test_a_uri_from_elsewhere_is_not_inside(uri: str) -> None:
    skill = SkillUri.build("acme/billing/refunds")

    assert not skill.contains(uri)
    with pytest.raises(InvalidUriError):
        skill.relative_path(uri)


# References found in a skill's text


@pytest.mark.requirement("READ-06")
@ANYWHERE
@pytest.mark.parametrize(
    ("reference", "ending"),
    [
        ("references/GUIDE.md", "/references/GUIDE.md"),
        ("./references/GUIDE.md", "/references/GUIDE.md"),
        ("scripts/../references/GUIDE.md", "/references/GUIDE.md"),
        ("scripts/%2E%2e/GUIDE.md", "/GUIDE.md"),
        ("references/", "/references"),
        ("references//GUIDE.md", "/references/GUIDE.md"),
        ("GUIDE.md#setup", "/GUIDE.md"),
        ("GUIDE.md?raw=1", "/GUIDE.md"),
        (" GUIDE.md\n", "/GUIDE.md"),
        ("caf%c3%a9.md", "/caf%C3%A9.md"),
        ("café.md", "/caf%C3%A9.md"),
        ("a b.md", "/a%20b.md"),
        ("b@c:d.md", "/b@c:d.md"),
        ("./a:b.md", "/a:b.md"),
        ("...", "/..."),
        ("SKILL.md", "/SKILL.md"),
    ],
)
def test_a_reference_resolves_against_the_root_of_the_skill_it_stands_in(
    home: str, reference: str, ending: str
) -> None:
    skill = SkillUri.parse(home + "/SKILL.md")
    nested = SkillUri.parse(home + "/nested/SKILL.md")

    assert skill.resolve(reference) == home + ending
    assert nested.resolve(reference) == home + "/nested" + ending


@pytest.mark.requirement("READ-07")
@ANYWHERE
@pytest.mark.parametrize(
    "reference",
    [
        *("", " ", ".", "./", "a/..", "#setup", "?q"),
        *("..", "../x", "a/../../x", "%2e%2e/x", "%2E./x", "..//x", "./../x", "a/%2e%2e/../x"),
        *("/x", "//host/x", "///x", " /x", "\n//host"),
        *("http://x", "HTTPS://x", "skill://acme/x", "mailto:a@b", "file:/etc/passwd", "file:x", "data:,x"),
        *("javascript:alert(1)", "c:/x", "C:\\x", "x-y+z.1:a"),
        *("a\\b", "..\\x", "a%2Fb", "..%2Fx", "%252e%252e/x", "a%5Cb", "a%00b", "a\x00b", "a\tb", "a\x1bb"),
        *("%", "a%zz", "a%C0%AE", "%ff", "\ud800", "a" * (MAX_URI_LENGTH + 1)),
    ],
)
def test_a_reference_to_anything_else_is_no_file_of_the_skill(home: str, reference: str) -> None:
    skill = SkillUri.parse(home + "/SKILL.md")

    assert skill.resolve(reference) is None


@pytest.mark.requirement("READ-06")
@properties
@given(homes, paths)
def test_an_escaped_path_used_as_a_reference_means_that_file(home: SkillUri, path: str) -> None:
    reference = quote(path)

    assert home.resolve(reference) == home.join(path)


@pytest.mark.requirement("READ-07")
@properties
@given(homes, texts)
def test_whatever_a_reference_says_it_never_leaves_the_skill(home: SkillUri, reference: str) -> None:
    resolved = home.resolve(reference)

    assert resolved is None or home.contains(resolved)


# One canonical spelling


@pytest.mark.requirement("URI-10")
@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("skill://a/b", "skill://a/b"),
        ("SKILL://a/b", "skill://a/b"),
        ("skill://a/%7e%7Eb%2dc%5F%2e.", "skill://a/~~b-c_.."),
        ("skill://%61/%41", "skill://a/A"),
        ("skill://a/%c3%a9", "skill://a/%C3%A9"),
        ("skill://a/é", "skill://a/%C3%A9"),
        ("skill://é/x", "skill://%C3%A9/x"),
        ("skill://a/e\u0301", "skill://a/e%CC%81"),
        ("skill://a/😀", "skill://a/%F0%9F%98%80"),
        ("skill://a/b c", "skill://a/b%20c"),
        ("skill://a/b+c", "skill://a/b+c"),
        ('skill://a/<"{|}^`>[]', "skill://a/%3C%22%7B%7C%7D%5E%60%3E%5B%5D"),
        ("skill://a/100%25", "skill://a/100%25"),
        ("skill://a/%3F%23", "skill://a/%3F%23"),
        ("skill://a/b%40c%3ad", "skill://a/b@c:d"),
        ("skill://b%40c%3ad/a", "skill://b%40c%3Ad/a"),
        ("skill://a/%21%24%26%27%28%29%2a%2b%2c%3b%3d", "skill://a/!$&'()*+,;="),
        ("skill://a/.hidden/...", "skill://a/.hidden/..."),
        ("skill://a/\u202e", "skill://a/%E2%80%AE"),
        ("skill://index.json", "skill://index.json"),
    ],
)
def test_every_spelling_has_one_canonical_form(text: str, canonical: str) -> None:
    assert canonical_uri(text) == canonical
    assert canonical_uri(canonical) == canonical


@pytest.mark.requirement("URI-10")
@properties
@given(spelt_uris())
def test_all_spellings_of_the_same_segments_are_one(spelt: tuple[str, tuple[str, list[str]]]) -> None:
    text, (scheme, parts) = spelt

    assert parse_uri(text) == (scheme, tuple(parts))
    assert canonical_uri(text) == compose_uri(scheme, parts)


@pytest.mark.requirement("URI-10")
@properties
@given(spelt_uris().map(lambda spelt: spelt[0]) | plain_texts)
@example("skill://a/" + "é" * 2_000)
@example("skill://a/" + "é" * 4_000)
def test_the_canonical_form_of_a_canonical_form_is_itself(text: str) -> None:
    canonical = outcome(canonical_uri, text)

    again = outcome(canonical_uri, canonical) if isinstance(canonical, str) else canonical

    assert again == canonical


@pytest.mark.requirement("URI-10")
@settings(properties, max_examples=200)
@given(*[st.tuples(schemes, st.lists(neighbours, min_size=1, max_size=3))] * 2)
def test_different_resources_never_share_a_canonical_form(
    one: tuple[str, list[str]], other: tuple[str, list[str]]
) -> None:
    first, second = compose_uri(*one), compose_uri(*other)

    assert (canonical_uri(first) == canonical_uri(second)) is (one == other)


@pytest.mark.requirement("URI-10")
@settings(properties, max_examples=200)
@given(texts | plain_texts)
@example("skill://a")
@example("skill://a/b\n")
@example("skill://a/..")
@example("skill://a/.")
@example("skill://./a")
@example("skill://a//b")
@example("skill://a/")
@example("skill://")
@example("file://a/b")
@example("view-source://a/b")
@example("skill://" + "a" * MAX_URI_LENGTH)
def test_the_shortcut_for_plain_uris_agrees_with_the_long_way(text: str) -> None:
    short = outcome(canonical_uri, text)
    long = outcome(lambda uri: compose_uri(*parse_uri(uri)), text)

    assert short == long


@pytest.mark.requirement("URI-11")
@pytest.mark.parametrize("scheme", ["skill", "github"])
@pytest.mark.parametrize(("path", "decoded"), [("x", "x"), ("%C3%9F/x", "ß/x")])
def test_the_first_segment_keeps_its_case(scheme: str, path: str, decoded: str) -> None:
    upper = SkillUri.parse(f"{scheme}://Acme/{path}/SKILL.md")
    lower = SkillUri.parse(f"{scheme}://acme/{path}/SKILL.md")

    assert upper.text == f"{scheme}://Acme/{path}/SKILL.md"
    assert upper.path == f"Acme/{decoded}"
    assert upper != lower
    assert not lower.contains(upper.join("a.md"))


@pytest.mark.requirement("URI-11")
def test_the_first_segment_is_no_host_name() -> None:
    uri = SkillUri.parse("https://EXAMPLE.com./x/SKILL.md")

    assert uri.root == "https://EXAMPLE.com./x"
    assert SkillUri.parse("skill://ß/x/SKILL.md").root == "skill://%C3%9F/x"


# Dangerous spellings

HOSTILE_ENDINGS = {
    "query": "/x?q=1",
    "empty query": "/x?",
    "fragment": "/x#f",
    "empty fragment": "/x#",
    "trailing slash": "/x/",
    "empty segment": "//x",
    "dot": "/./x",
    "dot at the end": "/.",
    "two dots": "/../x",
    "two dots at the end": "/..",
    "escaped dot": "/%2e/x",
    "escaped dots": "/%2e%2e/x",
    "escaped dots, upper case": "/%2E%2E/x",
    "escaped dots, mixed case": "/%2e%2E/x",
    "half escaped dots": "/.%2e/x",
    "other half escaped dots": "/%2E./x",
    "dots escaped twice": "/%252e%252e/x",
    "dots escaped twice, mixed case": "/%252E%252e/x",
    "dots half escaped twice": "/.%252e/x",
    "dots escaped three times": "/%25252e%25252e/x",
    "dots whose escape is escaped": "/%25%32%65%25%32%65/x",
    "raw NUL": "/a\x00b",
    "escaped NUL": "/a%00b",
    "NUL escaped twice": "/a%2500b",
    "tab": "/a\tb",
    "newline": "/a\nb",
    "newline at the end": "/a\n",
    "carriage return": "/a%0Db",
    "escape character": "/a\x1b[31mb",
    "escaped escape character": "/a%1Bb",
    "delete": "/a%7Fb",
    "raw C1 control": "/a\x9bb",
    "escaped C1 control": "/a%C2%9Bb",
    "C1 control escaped twice": "/a%25C2%259Bb",
    "C1 control escaped unevenly": "/a%25C2%25259Bb",
    "backslash": "/a\\b",
    "backslash and dots": "/..\\x",
    "escaped backslash": "/a%5Cb",
    "escaped backslash, lower case": "/a%5cb",
    "backslash escaped twice": "/a%255Cb",
    "escaped slash": "/a%2Fb",
    "escaped slash, lower case": "/a%2fb",
    "escaped slash and dots": "/..%2fx",
    "slash escaped twice": "/a%252Fb",
    "lone surrogate": "/a\ud800b",
    "lone surrogate among escapes": "/a%20\udc80b",
    "escaped surrogate": "/a%ED%A0%80b",
    "overlong dots": "/%C0%AE%C0%AE/x",
    "overlong slash": "/a%C0%AFb",
    "overlong slash in three bytes": "/a%E0%80%AFb",
    "overlong NUL": "/a%C0%80b",
    "Latin-1 escape": "/caf%E9",
    "cut-off UTF-8": "/caf%C3",
    "beyond Unicode": "/a%F4%90%80%80b",
    "escape without digits": "/a%",
    "escape with one digit": "/a%4",
    "escape with a wrong digit": "/a%4g",
    "escape with full-width digits": "/a%４１",
    "escape of another kind": "/a%u002e",
    "too long": "/" + "a" * MAX_URI_LENGTH,
    "too long once it is escaped": "/" + "é" * (MAX_URI_LENGTH // 4),
}


@pytest.mark.requirement("URI-10")
@ANYWHERE
@pytest.mark.parametrize("ending", HOSTILE_ENDINGS.values(), ids=HOSTILE_ENDINGS.keys())
def test_a_hostile_spelling_is_refused_everywhere(home: str, ending: str) -> None:
    skill = SkillUri.parse(home + "/SKILL.md")

    with pytest.raises(InvalidUriError) as caught:
        canonical_uri(home + ending)

    assert caught.value.code == INVALID_PARAMS
    assert outcome(SkillUri.parse, f"{home}{ending}/SKILL.md") is InvalidUriError
    assert outcome(skill.relative_path, home + ending) is InvalidUriError
    assert not skill.contains(home + ending)


@pytest.mark.requirement("URI-04")
@pytest.mark.requirement("URI-10")
@pytest.mark.parametrize("scheme", ["skill", "github"])
@pytest.mark.parametrize(
    "authority",
    [
        *("user@acme", "user:pass@acme", "@acme", "acme@", ":80", "acme:80", "acme:", "[::1]", "[::1]:80"),
        *("[", "]", "", "..", "%2e%2e", "a%2Fb", "a?b"),
    ],
)
def test_a_hostile_first_segment_is_refused(scheme: str, authority: str) -> None:
    with pytest.raises(InvalidUriError):
        SkillUri.parse(f"{scheme}://{authority}/x/SKILL.md")


@pytest.mark.requirement("URI-10")
@pytest.mark.parametrize(
    "text",
    [
        *"/ // :// ://a/b skill skill: skill:a/b skill:/a/b skill:// skill:///".split(),
        *("", " "),
        *(
            "a/b/SKILL.md",
            "/a/SKILL.md",
            "//a/SKILL.md",
            "C:\\a\\SKILL.md",
            "1skill://a/b",
            "-s://a/b",
            "é://a/b",
        ),
        *(
            " skill://a/b",
            "sk ill://a/b",
            "skill\n://a/b",
            "skill%3A//a/b",
            "skill:\\\\a\\b",
            "a?://b",
            "a/b://c",
        ),
    ],
)
def test_text_that_is_no_uri_is_refused(text: str) -> None:
    with pytest.raises(InvalidUriError):
        canonical_uri(text)


@pytest.mark.requirement("URI-12")
@pytest.mark.parametrize(
    "text",
    [
        *("file:/etc/SKILL.md", "file:///etc/SKILL.md", "file:c:/a/SKILL.md", "file:////host/share/SKILL.md"),
        *("data:text/markdown,SKILL.md", "data:,x://a/SKILL.md", "javascript:alert(1)//a/SKILL.md"),
        *("jar:file:///a!/SKILL.md", "view-source:file:///a/SKILL.md", "blob:https://a/SKILL.md"),
    ],
)
def test_a_scheme_that_reads_the_disk_or_runs_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidUriError):
        SkillUri.parse(text)


@pytest.mark.requirement("URI-12")
@pytest.mark.parametrize("scheme", sorted(UNSAFE_SCHEMES))
def test_an_unsafe_scheme_is_refused_in_any_case_and_when_building(scheme: str) -> None:
    for spelt in (scheme, scheme.upper(), scheme.title()):
        assert outcome(canonical_uri, f"{spelt}://acme/x/SKILL.md") is InvalidUriError
        assert outcome(lambda path, spelt=spelt: SkillUri.build(path, scheme=spelt), "a") is InvalidUriError


@pytest.mark.requirement("URI-12")
@pytest.mark.parametrize("scheme", ["files", "file-share", "my.file", "x-data", "javascript2"])
def test_a_scheme_that_only_starts_like_an_unsafe_one_is_fine(scheme: str) -> None:
    uri = SkillUri.parse(f"{scheme}://acme/x/SKILL.md")

    assert uri.scheme == scheme


@pytest.mark.requirement("URI-10")
@pytest.mark.parametrize("harm", [".", "..", "a/b", "a\\b", "a\x00b", "a\nb", "a\x7fb", "a\x85b"])
@pytest.mark.parametrize("times", range(12))
def test_harm_is_found_however_often_it_is_encoded(harm: str, times: int) -> None:
    segment = harm
    for _ in range(times):
        segment = "".join(
            f"%{byte:02x}" if byte < 0x30 or byte > 0x7A else chr(byte) for byte in segment.encode()
        )

    with pytest.raises(InvalidUriError):
        check_segment(segment)


@pytest.mark.requirement("URI-10")
def test_harmless_escapes_inside_a_name_are_allowed_up_to_a_depth() -> None:
    depths = [depth for depth in range(12) if outcome(check_segment, "a%" + "25" * depth + "20b") is None]

    assert depths == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.requirement("URI-10")
def test_an_endless_chain_of_escapes_is_refused_at_once() -> None:
    chain = "%" + "25" * 100_000

    assert outcome(check_segment, chain) is InvalidUriError
    assert outcome(SkillUri.build("a").join, chain) is InvalidUriError


@pytest.mark.requirement("URI-10")
def test_a_uri_may_be_as_long_as_the_limit_and_no_longer() -> None:
    longest = "skill://" + "a" * (MAX_URI_LENGTH - len("skill:///SKILL.md")) + "/SKILL.md"
    skill = SkillUri.parse(longest)

    assert len(skill.text) == MAX_URI_LENGTH
    assert SkillUri.build(skill.path) == skill
    assert outcome(SkillUri.build, skill.path + "a") is InvalidUriError
    assert outcome(SkillUri.parse, longest.replace("a", "aa", 1)) is InvalidUriError
    assert outcome(skill.join, "a" * len("SKILL.md")) == skill.root + "/aaaaaaaa"
    assert outcome(skill.join, "a" * len("SKILL.md2")) is InvalidUriError
    assert skill.resolve("a" * len("SKILL.md2")) is None


# For any text at all


@properties
@given(homes, texts)
@example(SkillUri.build("a"), "skill://a/\ud800%20")
def test_any_text_gives_a_value_or_an_invalid_uri_error(home: SkillUri, text: str) -> None:
    readers: list[Callable[[str], object]] = [
        SkillUri.parse,
        SkillUri.build,
        canonical_uri,
        parse_uri,
        check_segment,
        home.join,
        home.resolve,
        home.contains,
        home.relative_path,
        lambda scheme: SkillUri.build("a", scheme=scheme),
    ]

    for reader in readers:
        outcome(reader, text)


@properties
@given(homes, texts)
@example(SkillUri.build("a"), "skill://a/\x1b[31m\u202e\ud800?")
@example(SkillUri.build("a"), "\U000e0041" * MAX_URI_LENGTH * 2)
@example(SkillUri.build("a" * 10_000), "skill://elsewhere")
def test_an_error_message_is_short_and_safe_to_print(home: SkillUri, text: str) -> None:
    readers = (SkillUri.parse, SkillUri.build, home.join, home.relative_path)

    for reader in readers:
        try:
            reader(text)
        except InvalidUriError as error:
            message = str(error)
            assert message.isascii()
            assert message.isprintable()
            assert len(message) < 2_000


@pytest.mark.requirement("URI-05")
@ANYWHERE
def test_no_uri_ever_makes_the_library_touch_the_network(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[object] = []
    for name in ("socket", "getaddrinfo", "gethostbyname", "gethostbyname_ex", "create_connection"):
        monkeypatch.setattr(socket, name, lambda *args, **_: touched.append(args))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]

    skill = SkillUri.parse(home.replace("://", "://localhost.") + "/SKILL.md")
    joined = skill.join("a.md")

    assert skill.resolve("a.md") == joined
    assert skill.contains(joined)
    assert skill.relative_path(joined) == "a.md"
    assert touched == []
