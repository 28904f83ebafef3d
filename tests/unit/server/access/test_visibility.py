"""What someone may see: places in the tree of URIs, and what is below them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.errors import InvalidUriError
from skillwire.core.uri import SkillUri
from skillwire.server.visibility import ALL, NOTHING, Visibility, merge_prefixes, parse_prefix

SEGMENTS = st.sampled_from(["acme", "acme-two", "billing", "a", "b", "b-c"])
PATHS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)


def uri(path: str) -> SkillUri:
    return SkillUri.build(path)


@pytest.mark.requirement("SEC-14")
def test_a_place_allows_what_is_there_and_below_and_nothing_beside_it() -> None:
    visibility = Visibility((parse_prefix("acme/billing"),))

    assert visibility.includes(uri("acme/billing"))
    assert visibility.includes(uri("acme/billing/refunds"))
    assert not visibility.includes(uri("acme"))
    assert not visibility.includes(uri("acme/billing-internal"))
    assert not visibility.includes(uri("other/acme/billing"))
    assert not visibility.includes(SkillUri.build("acme/billing", scheme="docs"))


def test_everything_and_nothing_are_visibilities_too() -> None:
    assert ALL.includes(uri("acme")) and ALL.may_run(uri("acme")) and ALL.can_operate and ALL.is_unrestricted
    assert not NOTHING.includes(uri("acme")) and not NOTHING.may_run(uri("acme")) and not NOTHING.can_operate


def test_scripts_may_be_run_only_of_what_is_in_sight() -> None:
    visibility = Visibility((parse_prefix("acme"),), (parse_prefix("*"),))

    assert visibility.may_run(uri("acme/refunds"))
    assert not visibility.may_run(uri("other"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("acme/billing", "skill://acme/billing"),
        ("/acme/billing/", "skill://acme/billing"),
        ("skill://acme/billing", "skill://acme/billing"),
        ("docs://handbook/", "docs://handbook"),
        ("*", "*"),
    ],
)
def test_a_place_is_written_as_a_path_or_as_a_uri(written: str, meant: str) -> None:
    assert parse_prefix(written) == meant


@pytest.mark.parametrize(
    "written", ["", "/", "acme/../other", "skill://", "a\x00b", "acme//billing", "acme/*"]
)
def test_what_can_be_no_place_is_refused(written: str) -> None:
    with pytest.raises(InvalidUriError):
        parse_prefix(written)


@given(st.lists(PATHS, max_size=5), st.lists(PATHS, max_size=5), PATHS)
def test_two_visibilities_together_include_what_either_sees(
    left: list[str], right: list[str], path: str
) -> None:
    one, other = (Visibility(merge_prefixes(map(parse_prefix, paths))) for paths in (left, right))

    assert (one | other).includes(uri(path)) == (one.includes(uri(path)) or other.includes(uri(path)))


@given(st.lists(PATHS, max_size=6), PATHS)
def test_the_fewest_places_allow_the_same_and_are_the_same_in_any_order(paths: list[str], path: str) -> None:
    places = [parse_prefix(one) for one in paths]

    assert merge_prefixes(places) == merge_prefixes(reversed(places))
    assert Visibility(merge_prefixes(places)).includes(uri(path)) == Visibility(tuple(places)).includes(
        uri(path)
    )
    assert not any(
        a != b and a.startswith(f"{b}/") for a in merge_prefixes(places) for b in merge_prefixes(places)
    )
