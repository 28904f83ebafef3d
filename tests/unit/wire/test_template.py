"""URI templates: what they stand for, and what no value may make of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.errors import InvalidUriError
from skillwire.wire.index import MAX_VARIABLES, Template

pytestmark = pytest.mark.requirement("DRAFT-05")


@pytest.mark.parametrize(
    ("template", "values", "uri"),
    [
        ("skill://docs/{product}/SKILL.md", {"product": "tea pot"}, "skill://docs/tea%20pot/SKILL.md"),
        ("skill://docs/{a}/{b}/SKILL.md", {"a": "x", "b": "y"}, "skill://docs/x/y/SKILL.md"),
        ("skill://{+path}/SKILL.md", {"path": "acme/billing"}, "skill://acme/billing/SKILL.md"),
        ("skill://docs{/product}/SKILL.md", {"product": "é"}, "skill://docs/%C3%A9/SKILL.md"),
        ("docs://v{n}/{product.name}/SKILL.md", {"n": "2", "product.name": "x"}, "docs://v2/x/SKILL.md"),
    ],
)
def test_a_template_is_filled_with_values(template: str, values: dict[str, str], uri: str) -> None:
    parsed = Template.parse(template)

    assert set(parsed.variables) == values.keys()
    assert parsed.expand(values).text == uri


@pytest.mark.parametrize(
    "template",
    [
        *("", "skill://docs/SKILL.md", "skill://{a}", "skill://{a}/README.md", "{a}/SKILL.md"),
        *("skill://{}/SKILL.md", "skill://{a,b}/SKILL.md", "skill://{a:3}/SKILL.md", "skill://{a*}/SKILL.md"),
        *("skill://{#a}/SKILL.md", "skill://{?a}/SKILL.md", "skill://{a/SKILL.md", "skill://a}/{b}/SKILL.md"),
        *("skill://{a}/{a}/SKILL.md", "file:///{a}/SKILL.md", "skill://../{a}/SKILL.md"),
        "skill://" + "/".join(f"{{a{number}}}" for number in range(MAX_VARIABLES + 1)) + "/SKILL.md",
        "skill://" + "x" * 20_000 + "/{a}/SKILL.md",
    ],
)
def test_what_is_no_template_of_a_skills_uri_is_refused(template: str) -> None:
    with pytest.raises(InvalidUriError):
        Template.parse(template)


@pytest.mark.parametrize("value", ["", "..", ".", "a/b", "%2e%2e", "\x00", "\ud800", "a\\b"])
def test_a_value_stays_one_harmless_segment_or_is_refused(value: str) -> None:
    template = Template.parse("skill://docs/{product}/SKILL.md")

    with pytest.raises(InvalidUriError):
        template.expand({"product": value})


def test_a_missing_value_is_refused() -> None:
    with pytest.raises(InvalidUriError):
        Template.parse("skill://docs/{product}/SKILL.md").expand({})


@given(st.text(max_size=12))
def test_whatever_is_put_in_the_uri_stays_below_the_template(value: str) -> None:
    try:
        uri = Template.parse("skill://docs/{product}/SKILL.md").expand({"product": value})
    except InvalidUriError:
        return

    assert uri.text.startswith("skill://docs/")
    assert uri.text.count("/") == 4
    assert uri.name == value


@given(st.text(max_size=40))
def test_no_text_makes_parsing_fail_in_another_way(text: str) -> None:
    try:
        Template.parse(text)
    except InvalidUriError:
        pass
