"""References: one for each skill, the same in any order, and none that reaches where it should not."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from skillwire.core.errors import InvalidUriError
from skillwire.core.uri import SkillUri
from skillwire.host.model.errors import AmbiguousReferenceError, UnknownReferenceError
from skillwire.host.model.naming import (
    MAX_CANDIDATES,
    NAMING_VERSION,
    Collision,
    bare_name,
    collisions_of,
    full_reference,
    local_reference,
    match,
    name_of,
    references_for,
)
from skillwire.host.model.origin import KnownSkill, Origin, OriginKind, SkillId
from unit.host.registry.remotes import entry_at, record


def local(name: str, *, folder: str = "") -> KnownSkill:
    entry = entry_at(f"local://user/{folder or name}")
    origin = Origin(OriginKind.LOCAL, "user", "sha256:0")
    return KnownSkill(
        SkillId(origin, entry.uri.text), local_reference(name, entry.uri.text), entry, directory=Path("/x")
    )


def served(label: str, *roots: str) -> list[KnownSkill]:
    """Return a server's skills under the references they get."""
    references = references_for(label, [f"{root}/SKILL.md" for root in roots])
    return [record(label, root, references[f"{root}/SKILL.md"]) for root in roots]


def references(*roots: str) -> list[str]:
    return [skill.reference for skill in served("acme", *roots)]


# Small alphabets, so that names, paths and labels meet often.
segments = st.sampled_from(["a", "b", "c-1", "refunds"])
odd_segments = st.one_of(
    segments, st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=3)
)
schemes = st.sampled_from(["skill", "github", "x+y"])
labels = st.sampled_from(["acme", "a", "refunds", "été"])


@st.composite
def roots(draw: st.DrawFn) -> str:
    above = draw(st.lists(odd_segments, max_size=2))
    path = "/".join([*above, draw(segments)])
    try:
        return SkillUri.build(path, scheme=draw(schemes)).root
    except InvalidUriError:
        reject()


@pytest.mark.requirement("NAME-03")
@pytest.mark.requirement("NAME-07")
def test_a_servers_skill_is_its_label_and_name() -> None:
    assert references("skill://acme/billing/refunds", "skill://hello") == ["acme/refunds", "acme/hello"]


@pytest.mark.requirement("NAME-03")
@pytest.mark.requirement("NAME-01")
def test_every_skill_of_a_repeated_name_goes_by_its_path() -> None:  # attack 30
    assert references("skill://acme/billing/refunds", "skill://eu/refunds", "skill://hello") == [
        "acme/acme/billing/refunds",
        "acme/eu/refunds",
        "acme/hello",
    ]


@pytest.mark.requirement("NAME-03")
def test_a_path_of_one_segment_or_of_two_schemes_is_written_with_its_scheme() -> None:
    assert references(
        "skill://refunds", "skill://eu/refunds", "github://eu/refunds", "skill://us/refunds"
    ) == [
        "acme/skill://refunds",
        "acme/skill://eu/refunds",
        "acme/github://eu/refunds",
        "acme/us/refunds",
    ]


@pytest.mark.requirement("NAME-07")
def test_references_are_ascii_whatever_the_path_is() -> None:
    uris = [SkillUri.build(path).root for path in ("zürich/refunds", "basel/refunds")]

    assert references(*uris) == ["acme/z%C3%BCrich/refunds", "acme/basel/refunds"]


def test_the_rules_have_a_version() -> None:
    assert NAMING_VERSION == 1


@pytest.mark.requirement("NAME-07")
@pytest.mark.requirement("ASK-06")
@settings(deadline=None)
@given(st.lists(roots(), unique=True, max_size=12), st.randoms())
def test_references_do_not_depend_on_the_order_of_a_listing(listed: list[str], random: Random) -> None:
    shuffled = list(listed)
    random.shuffle(shuffled)

    assert {skill.id: skill.reference for skill in served("acme", *listed)} == {
        skill.id: skill.reference for skill in served("acme", *shuffled)
    }


@pytest.mark.requirement("NAME-01")
@pytest.mark.requirement("NAME-04")
@pytest.mark.requirement("NAME-07")
@settings(deadline=None)
@given(st.dictionaries(labels, st.lists(roots(), unique=True, max_size=8)), st.sets(segments))
def test_every_skill_has_a_reference_of_its_own_that_leads_back_to_it(
    listings: dict[str, list[str]], names: set[str]
) -> None:
    known = [skill for label, listed in listings.items() for skill in served(label, *listed)]
    known += [local(name) for name in names]

    assert len({skill.reference for skill in known}) == len(known)
    for skill in known:
        assert match(skill.reference, known) is skill
        if skill.is_remote:
            label = skill.id.origin.label
            assert skill.reference.startswith(f"{label}/")
            assert match(f"{label}/{skill.id.uri}", known) is skill
            assert match(full_reference(label, skill.id.uri), known) is skill


@pytest.mark.requirement("NAME-07")
@settings(deadline=None)
@given(st.lists(roots(), unique=True, max_size=8), roots())
def test_a_skill_that_is_not_listed_renames_no_other_and_takes_no_ones_reference(
    listed: list[str], found: str
) -> None:
    assume(found not in listed)
    reference = full_reference("acme", f"{found}/SKILL.md")
    known = [*served("acme", *listed), record("acme", found, reference)]

    assert len({skill.reference for skill in known}) == len(known)
    for skill in known:
        assert match(skill.reference, known) is skill


@pytest.mark.requirement("NAME-04")
@settings(deadline=None)
@given(
    st.dictionaries(labels, st.lists(roots(), unique=True, max_size=8)), st.text("abc-1refunds/", max_size=12)
)
def test_a_bare_name_never_reaches_a_server(listings: dict[str, list[str]], text: str) -> None:  # attack 28
    known = [skill for label, listed in listings.items() for skill in served(label, *listed)]
    bare = text.replace("/", "")

    with pytest.raises(UnknownReferenceError) as caught:
        match(bare, known)

    namesakes = [skill.reference for skill in known if skill.name == bare]
    assert caught.value.candidates == tuple(sorted(namesakes))
    assert not isinstance(caught.value, AmbiguousReferenceError)


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("ab/:skil%2e.", max_size=30))
def test_whatever_is_asked_for_the_answer_is_a_skill_or_an_unknown_reference(text: str) -> None:
    known = [*served("a", "skill://a/b", "skill://b", "github://a/b"), local("a")]

    try:
        found = match(text, known)
    except UnknownReferenceError as error:
        assert str(error).isascii()
        assert "\n" not in str(error)
    else:
        assert found in known


@pytest.mark.requirement("NAME-08")
def test_a_name_that_several_skills_of_a_server_have_fails_with_all_of_them() -> None:
    known = [*served("acme", "skill://refunds", "skill://eu/refunds"), *served("b", "skill://refunds")]

    with pytest.raises(AmbiguousReferenceError) as caught:
        match("acme/refunds", known)

    assert caught.value.candidates == ("acme/eu/refunds", "acme/skill://refunds")
    assert caught.value.refusal == "ambiguous-reference"


@pytest.mark.requirement("NAME-08")
def test_a_path_that_two_schemes_share_fails_with_both() -> None:
    known = served("acme", "skill://eu/refunds", "github://eu/refunds")

    with pytest.raises(AmbiguousReferenceError) as caught:
        match("acme/eu/refunds", known)

    assert caught.value.candidates == ("acme/github://eu/refunds", "acme/skill://eu/refunds")


@pytest.mark.requirement("NAME-04")
def test_the_local_skill_is_meant_by_a_bare_name_whoever_else_has_it() -> None:  # attack 28
    mine = local("code-review")
    known = [*served("a", "skill://code-review"), mine, *served("b", "skill://code-review")]

    assert match("code-review", known) is mine
    assert match("a/code-review", known) is known[0]
    assert match("b/code-review", known) is known[2]


def test_the_name_of_a_scope_is_no_label() -> None:
    with pytest.raises(UnknownReferenceError):
        match("user/mine", [local("mine")])


@pytest.mark.requirement("NAME-04")
def test_a_reference_with_a_label_is_never_answered_with_another_servers_skill() -> None:
    known = served("b", "skill://refunds")

    with pytest.raises(UnknownReferenceError) as caught:
        match("a/refunds", known)

    assert caught.value.candidates == ()


def test_a_skill_is_found_by_its_path_and_by_any_spelling_of_its_uri() -> None:
    (skill,) = served("acme", "skill://eu/billing/refunds")

    for rest in ("eu/billing/refunds", "skill://eu/billing/refunds", "SKILL://eu/b%69lling/refunds/SKILL.md"):
        assert match(f"acme/{rest}", [skill]) is skill


@pytest.mark.parametrize(
    "rest", ["Refunds", "EU/refunds", "refunds/", "eu//refunds", "eu/refunds/SKILL.md", ""]
)
def test_references_are_compared_exactly(rest: str) -> None:
    with pytest.raises(UnknownReferenceError):
        match(f"acme/{rest}", served("acme", "skill://eu/refunds"))


def test_a_skill_that_is_not_listed_can_be_meant_by_its_name_while_no_other_has_it() -> None:
    hidden = replace(record("acme", "skill://eu/refunds", "acme/skill://eu/refunds"), is_listed=False)

    assert match("acme/refunds", [hidden]) is hidden

    listed = served("acme", "skill://us/refunds")
    assert match("acme/refunds", [hidden, *listed]) is listed[0]


def test_a_flood_of_namesakes_is_reported_by_number() -> None:
    known = served("acme", *(f"skill://team-{number}/refunds" for number in range(300)))

    with pytest.raises(AmbiguousReferenceError) as caught:
        match("acme/refunds", known)

    assert len(caught.value.candidates) == MAX_CANDIDATES
    assert "300 skills" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["x" * 5000, "a\nb", "a\x1b[2Jb", "\ud800", "a\u202eb", "acme/\x00", "acme/skill://\ud800"]
)
def test_odd_text_is_quoted_in_the_error(text: str) -> None:
    with pytest.raises(UnknownReferenceError) as caught:
        match(text, served("acme", "skill://refunds"))

    for shown in (str(caught.value), caught.value.reference):
        assert len(shown) < 300
        assert shown.isascii()
        assert shown.isprintable()


@pytest.mark.requirement("NAME-04")
@pytest.mark.parametrize(
    "name",
    [
        "acme/refunds",
        "",
        " refunds",
        "re\ufe0ffunds",
        "re\u3164funds",
        "re\u00a0funds",
        "re\ue000funds",
        "re\u200bfunds",
        "re\x1bfunds",
        "x" * 201,
        "re\u202efunds",
    ],
)
def test_a_local_name_that_could_mislead_gives_way_to_the_folders_name(name: str) -> None:
    assert local_reference(name, "local://user/team/r%C3%A9sum%C3%A9/SKILL.md") == "r%C3%A9sum%C3%A9"


@pytest.mark.parametrize("name", ["refunds", "Code Review", "zürich", "a.b_c", "x" * 200])
def test_a_local_name_that_breaks_only_the_rules_of_mcp_is_kept(name: str) -> None:
    assert local_reference(name, "local://user/other/SKILL.md") == name


@pytest.mark.requirement("NAME-06")
def test_collisions_name_every_skill_of_a_name_whoever_has_it() -> None:
    known = [
        local("refunds"),
        *served("a", "skill://refunds", "skill://hello"),
        *served("b", "skill://refunds", "skill://eu/refunds"),
    ]

    assert collisions_of(known) == (
        Collision("refunds", ("a/refunds", "b/eu/refunds", "b/skill://refunds", "refunds")),
    )


@settings(deadline=None)
@given(st.dictionaries(labels, st.lists(roots(), unique=True, max_size=8)), st.text(max_size=5), labels)
def test_what_collisions_are_counted_by_is_the_name_whatever_the_reference_is(
    listings: dict[str, list[str]], name: str, label: str
) -> None:
    own = local(name, folder="team/refunds")
    known = [skill for each, listed in listings.items() for skill in served(each, *listed)]

    assert [bare_name(skill) for skill in known] == [name_of(skill.id.uri) for skill in known]
    for skill in known:
        unlisted = replace(skill, reference=full_reference(label, skill.id.uri), is_listed=False)
        assert bare_name(unlisted) == name_of(skill.id.uri)
    assert bare_name(own) == own.reference


def test_a_slip_of_the_pen_is_answered_with_what_was_probably_meant() -> None:
    known = [record("a", "skill://refunds"), record("a", "skill://reports"), record("b", "skill://refund")]

    with pytest.raises(UnknownReferenceError) as caught:
        match("a/refund", known)

    assert caught.value.candidates == ("a/skill://refunds",)
    assert "similar: a/skill://refunds" in str(caught.value)


def test_in_a_large_catalog_nobody_waits_for_guesses() -> None:
    known = [record("a", f"skill://skill-{number}") for number in range(3000)]

    with pytest.raises(UnknownReferenceError) as caught:
        match("a/skil-7", known)

    assert caught.value.candidates == ()
