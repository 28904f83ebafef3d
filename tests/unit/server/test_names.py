"""Under which names requests may come, and from pages of which web sites."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.server.hosts import AllowedHosts

pytestmark = pytest.mark.requirement("SEC-14")

LOOPBACK = AllowedHosts("127.0.0.1")
BEHIND = AllowedHosts("127.0.0.1", "https://Skills.Example:443/mcp")
NAMED = AllowedHosts("0.0.0.0", "https://skills.example/mcp")
PLAIN = AllowedHosts("0.0.0.0", "http://skills.example:8080/mcp")
EXPOSED = AllowedHosts("0.0.0.0")
CALLED = AllowedHosts("skills.internal")

OK, WRONG_NAME, FOREIGN_PAGE = 0, 421, 403


def judged(names: AllowedHosts, *lines: str, **options: bool) -> int:
    headers = [(name.encode(), value.strip().encode("latin-1")) for name, _, value in map(_parted, lines)]
    refusal = names.refusal(headers, **options)
    return 0 if refusal is None else refusal[0]


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(":")


@pytest.mark.parametrize(
    ("names", "lines", "status"),
    [
        (LOOPBACK, ["host: localhost"], OK),
        (LOOPBACK, ["host: LOCALHOST:8000"], OK),
        (LOOPBACK, ["host: [::1]:8000", "origin: http://[::1]:3000"], OK),
        (LOOPBACK, ["host: localhost:8000", "origin: https://localhost:8000"], OK),
        (LOOPBACK, ["host: 192.0.2.7:8000"], WRONG_NAME),
        (LOOPBACK, ["host: localhost:8000", "origin: chrome-extension://localhost"], FOREIGN_PAGE),
        (LOOPBACK, ["host: localhost:8000", "origin: "], FOREIGN_PAGE),
        (
            LOOPBACK,
            ["host: localhost:8000", "origin: http://localhost:1", "origin: http://evil"],
            FOREIGN_PAGE,
        ),
        (LOOPBACK, ["host: localhost:8000", "host: localhost:8000"], WRONG_NAME),
        (LOOPBACK, ["host: localhost@evil.example"], WRONG_NAME),
        (LOOPBACK, ["host: evil.example/localhost"], WRONG_NAME),
        (BEHIND, ["host: skills.example"], OK),
        (BEHIND, ["host: SKILLS.example:443"], OK),
        (BEHIND, ["host: skills.example:444"], WRONG_NAME),
        (BEHIND, ["host: localhost:8000"], OK),
        (NAMED, ["host: skills.example", "origin: https://skills.example:443"], OK),
        (NAMED, ["host: skills.example", "origin: http://skills.example"], FOREIGN_PAGE),
        (NAMED, ["host: 192.0.2.7"], WRONG_NAME),
        (PLAIN, ["host: skills.example:8080", "origin: http://skills.example:8080"], OK),
        (PLAIN, ["host: skills.example"], WRONG_NAME),
        (EXPOSED, ["host: 192.0.2.7:8000"], OK),
        (EXPOSED, ["host: [2001:db8::1]:8000"], OK),
        (EXPOSED, ["host: localhost:8000"], OK),
        (EXPOSED, ["host: evil.example:8000", "origin: http://evil.example:8000"], WRONG_NAME),
        (EXPOSED, ["host: evil.example:8000"], WRONG_NAME),
        (EXPOSED, ["host: 192.0.2.7:8000", "origin: http://localhost:3000"], FOREIGN_PAGE),
        (EXPOSED, ["host: 192.0.2.7:8000", "origin: http://192.0.2.8:8000"], FOREIGN_PAGE),
        (EXPOSED, ["host: 192.0.2.7:8000", "origin: http://192.0.2.7:8000"], OK),
        (CALLED, ["host: skills.internal:8000", "origin: http://skills.internal:8000"], OK),
        (CALLED, ["host: evil.example:8000"], WRONG_NAME),
    ],
)
def test_a_request_is_judged_by_its_name_and_its_page(
    names: AllowedHosts, lines: list[str], status: int
) -> None:
    assert judged(names, *lines) == status
    assert judged(names, *lines) == status  # What is remembered is the same.


def test_what_is_for_any_page_is_still_asked_for_by_a_name_of_ours() -> None:
    assert judged(EXPOSED, "host: 192.0.2.7:1", "origin: https://evil.example", is_for_any_page=True) == OK
    assert judged(EXPOSED, "host: evil.example", is_for_any_page=True) == WRONG_NAME


@given(st.text(max_size=30), st.none() | st.text(max_size=30))
def test_any_header_is_judged_and_no_name_gets_in_by_looking_like_one(host: str, origin: str | None) -> None:
    headers = [(b"host", host.encode("utf-8", "surrogatepass"))]
    if origin is not None:
        headers.append((b"origin", origin.encode("utf-8", "surrogatepass")))

    refusal = LOOPBACK.refusal(headers)

    bare = host.strip(" \t").lower().partition(":")[0]
    assert refusal is not None or bare in ("127.0.0.1", "localhost") or host.strip(" \t").startswith("[")


def test_more_names_than_are_remembered_are_still_judged() -> None:
    for number in range(3000):
        assert judged(EXPOSED, f"host: 192.0.2.7:{number}") == OK
        assert judged(EXPOSED, f"host: evil.example:{number}") == WRONG_NAME
