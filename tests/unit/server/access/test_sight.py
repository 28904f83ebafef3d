"""What someone may see: places in the tree of URIs, and what is below them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.uri import SkillUri
from skillwire.errors import InvalidUriError
from skillwire.server.access.sight import ALL, NOTHING, Sight, merged, place

SEGMENTS = st.sampled_from(["acme", "acme-two", "billing", "a", "b", "b-c"])
PATHS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)


def uri(path: str) -> SkillUri:
    return SkillUri.build(path)


@pytest.mark.requirement("SEC-14")
def test_a_place_allows_what_is_there_and_below_and_nothing_beside_it() -> None:
    sight = Sight((place("acme/billing"),))

    assert sight.sees(uri("acme/billing"))
    assert sight.sees(uri("acme/billing/refunds"))
    assert not sight.sees(uri("acme"))
    assert not sight.sees(uri("acme/billing-internal"))
    assert not sight.sees(uri("other/acme/billing"))
    assert not sight.sees(SkillUri.build("acme/billing", scheme="docs"))


def test_everything_and_nothing_are_sights_too() -> None:
    assert ALL.sees(uri("acme")) and ALL.may_run(uri("acme")) and ALL.operates and ALL.is_whole
    assert not NOTHING.sees(uri("acme")) and not NOTHING.may_run(uri("acme")) and not NOTHING.operates


def test_scripts_may_be_run_only_of_what_is_in_sight() -> None:
    sight = Sight((place("acme"),), (place("*"),))

    assert sight.may_run(uri("acme/refunds"))
    assert not sight.may_run(uri("other"))


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
    assert place(written) == meant


@pytest.mark.parametrize(
    "written", ["", "/", "acme/../other", "skill://", "a\x00b", "acme//billing", "acme/*"]
)
def test_what_can_be_no_place_is_refused(written: str) -> None:
    with pytest.raises(InvalidUriError):
        place(written)


@given(st.lists(PATHS, max_size=5), st.lists(PATHS, max_size=5), PATHS)
def test_two_sights_together_see_what_either_sees(left: list[str], right: list[str], path: str) -> None:
    one, other = (Sight(merged(map(place, paths))) for paths in (left, right))

    assert (one | other).sees(uri(path)) == (one.sees(uri(path)) or other.sees(uri(path)))


@given(st.lists(PATHS, max_size=6), PATHS)
def test_the_fewest_places_allow_the_same_and_are_the_same_in_any_order(paths: list[str], path: str) -> None:
    places = [place(one) for one in paths]

    assert merged(places) == merged(reversed(places))
    assert Sight(merged(places)).sees(uri(path)) == Sight(tuple(places)).sees(uri(path))
    assert not any(a != b and a.startswith(f"{b}/") for a in merged(places) for b in merged(places))
