"""Paths for agents whose model works with files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.errors import InvalidUriError
from skillwire.core.uri import SkillUri
from skillwire.host.adapters.mount import mount_path, parse_mount_path
from skillwire.host.model.errors import NotLoadedError


@pytest.mark.requirement("URI-09")
@given(
    label=st.from_regex(r"[a-z0-9._-]{1,10}", fullmatch=True),
    scheme=st.sampled_from(["skill", "github", "x-y.z"]),
    path=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4),
    file=st.text(min_size=1, max_size=8),
)
def test_a_path_means_one_resource_of_one_server_and_back(
    label: str, scheme: str, path: list[str], file: str
) -> None:
    try:
        uri = SkillUri.build("/".join(path), scheme=scheme).join(file)
    except InvalidUriError:
        return

    assert parse_mount_path(mount_path(label, uri)) == (label, uri)


@pytest.mark.requirement("HOST-09")
def test_two_servers_with_one_uri_have_two_paths() -> None:
    uri = "skill://shop/refunds/SKILL.md"

    assert mount_path("a", uri) == "a/skill/shop/refunds/SKILL.md"
    assert mount_path("b", uri) == "b/skill/shop/refunds/SKILL.md"


@pytest.mark.parametrize(
    "path", ["", "/", "a", "a/skill", "a/file/etc/passwd", "a/skill/x/../../y", "../../x"]
)
def test_a_path_that_means_no_resource_is_refused(path: str) -> None:
    with pytest.raises(NotLoadedError):
        parse_mount_path(path)
