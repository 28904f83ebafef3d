"""How long an index may be kept, by the headers it comes with."""

import pytest

from skillwire.sources.wellknown.web import MAX_SECONDS, fresh_seconds, validators

DATE = "Sun, 15 Nov 2026 12:00:00 GMT"


@pytest.mark.requirement("DISC-08")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"cache-control": "max-age=60"}, 60.0),
        ({"cache-control": 'public, Max-Age="60"'}, 60.0),
        ({"cache-control": "max-age=60", "age": "45"}, 15.0),
        ({"cache-control": "max-age=60", "age": "90"}, 0.0),
        ({"cache-control": "max-age=60, no-cache"}, 0.0),
        ({"cache-control": "no-store"}, 0.0),
        ({"cache-control": "max-age=-5"}, 0.0),
        ({"cache-control": "max-age=1e9"}, 0.0),
        ({"cache-control": "max-age=9999999999"}, MAX_SECONDS),
        ({"cache-control": "max-age=99999999999999999999"}, 0.0),
        ({"date": DATE, "expires": "Sun, 15 Nov 2026 12:01:00 GMT"}, 60.0),
        ({"date": DATE, "expires": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"date": DATE, "expires": "0"}, 0.0),
        ({"expires": DATE}, 0.0),
        ({"cache-control": "max-age=5", "date": DATE, "expires": "Sun, 15 Nov 2026 13:00:00 GMT"}, 5.0),
        ({"cache-control": "public"}, None),
    ],
)
def test_an_index_is_kept_for_as_long_as_its_headers_say(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert fresh_seconds(headers) == seconds


@pytest.mark.requirement("DISC-08")
def test_what_changed_is_asked_about_by_tag_or_else_by_date() -> None:
    assert validators({"etag": '"a"', "last-modified": DATE}) == {"If-None-Match": '"a"'}
    assert validators({"last-modified": DATE}) == {"If-Modified-Since": DATE}
    assert validators({}) == {}


@pytest.mark.parametrize("tag", ["", "a" * 2000, "a\r\nX-Evil: 1", "\u00e9"])
def test_a_tag_that_no_header_can_hold_is_not_sent_back(tag: str) -> None:
    assert validators({"etag": tag}) == {}
