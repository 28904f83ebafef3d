"""The `well-known` dialect: the three forms of a site's index, read and written."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import INDEX_PATH
from skillwire.core.finding import RULES, Severity
from skillwire.wire.wellknown import (
    MAX_ENTRIES,
    SCHEMA,
    ArtifactType,
    FilesEntry,
    Site,
    SiteEntry,
    SiteFile,
    SiteForm,
    artifact_url,
    file_url,
    files_digest,
    parse_site,
    write_index,
)
from unit.wire.payloads import golden, is_valid

INDEX_URL = f"https://example.org{INDEX_PATH}"
DIGEST = "sha256:" + "0" * 64

names = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True)
texts = st.text(min_size=1, max_size=40).filter(lambda text: bool(text.strip()))
digests = st.binary(min_size=32, max_size=32).map(lambda raw: f"sha256:{raw.hex()}")
urls = st.from_regex(r"(https://[a-z]{1,9}\.example/)?[a-z0-9/._~%-]{1,30}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
extras = st.dictionaries(st.sampled_from(["x-note", "tags", "version"]), json_values, max_size=2)
entries = st.lists(
    st.builds(SiteEntry, names, st.sampled_from(ArtifactType), texts, urls, digests, extras),
    max_size=4,
    unique_by=lambda entry: entry.name,
)


def entry(**changes: object) -> dict[str, object]:
    """Return an entry of the form 0.2.0; a change to None takes a field away."""
    whole = {"name": "tea", "type": "skill-md", "description": "Brews.", "url": "tea.md", "digest": DIGEST}
    return {key: value for key, value in {**whole, **changes}.items() if value is not None}


def old_entry(*files: object, **changes: object) -> dict[str, object]:
    return {"name": "tea", "description": "Brews.", "files": list(files), **changes}


def interim_entry(*paths: str, **changes: object) -> dict[str, object]:
    digest = files_digest(SiteFile(path, DIGEST) for path in paths)
    files = [{"path": path, "digest": DIGEST} for path in paths]
    return {"name": "tea", "description": "Brews.", "digest": digest, "files": files, **changes}


def current(*skills: object) -> dict[str, object]:
    return {"$schema": SCHEMA, "skills": list(skills)}


def codes(value: object) -> list[str]:
    return [finding.code for finding in parse_site(value)[1]]


@pytest.mark.requirement("DISC-02")
@given(entries)
def test_an_index_that_is_written_reads_as_the_same_entries_and_fits_the_schema(
    written: list[SiteEntry],
) -> None:
    index = json.loads(write_index(written))

    assert parse_site(index) == (Site(SiteForm.V0_2_0, tuple(written)), [])
    assert is_valid("well-known", index)
    assert list(index) == ["$schema", "skills"]


@pytest.mark.requirement("DISC-02")
@pytest.mark.requirement("DISC-03")
@pytest.mark.requirement("CONF-22")
@pytest.mark.parametrize(
    ("form", "said"),
    [("current", []), ("first", ["site-unverifiable"]), ("interim", [])],
)
def test_each_golden_index_comes_back_as_it_is(form: str, said: list[str]) -> None:
    index = golden(f"well-known-{form}")

    site, findings = parse_site(index)

    assert [finding.code for finding in findings] == said
    assert site.to_json() == index


@pytest.mark.requirement("DISC-03")
@pytest.mark.parametrize(
    ("value", "form", "said"),
    [
        (current(), SiteForm.V0_2_0, []),
        ({"skills": []}, SiteForm.V0_1_0, ["site-unverifiable"]),
        ({"version": "0.2.0", "skills": []}, SiteForm.INTERIM, []),
        ({"version": "0.3.0", "skills": []}, None, ["site-form-unknown"]),
        ({"version": 2, "skills": []}, None, ["site-form-unknown"]),
        ({**current(entry()), "$schema": f"{SCHEMA}#"}, None, ["site-form-unknown"]),
        ({**current(entry()), "$schema": None}, None, ["site-form-unknown"]),
        ({**current(entry()), "$schema": "x" * 9999}, None, ["site-form-unknown"]),
        ({"$schema": SCHEMA}, SiteForm.V0_2_0, ["site-invalid"]),
        (current(*([0] * (MAX_ENTRIES + 1))), SiteForm.V0_2_0, ["site-invalid"]),
        ([], None, ["site-invalid"]),
        (None, None, ["site-invalid"]),
    ],
)
def test_the_shape_tells_the_form_and_an_unknown_one_has_no_entries(
    value: object, form: SiteForm | None, said: list[str]
) -> None:
    site, findings = parse_site(value)

    assert site == Site(form)
    assert [finding.code for finding in findings] == said
    assert all(len(finding.message) < 300 for finding in findings)


@pytest.mark.requirement("DISC-02")
@pytest.mark.parametrize("missing", ["name", "type", "description", "url", "digest"])
def test_an_entry_that_lacks_a_field_costs_only_itself(missing: str) -> None:
    index = current(entry(**{missing: None}), entry(name="water"), 7)

    site, findings = parse_site(index)

    assert [entry.name for entry in site.entries] == ["water"]
    assert [finding.code for finding in findings] == ["site-entry-invalid"] * 2
    assert all(finding.is_error for finding in findings)
    assert not is_valid("well-known", index)


@pytest.mark.requirement("DISC-02")
@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Tea"},
        {"name": "../tea"},
        {"name": "t" * 65},
        {"description": " \n"},
        {"description": "d" * 1025},
        {"description": ["d"]},
        {"url": ""},
        {"url": "tea md"},
        {"url": "te\na"},
        {"url": "\\\\evil\\share"},
        {"url": "tée"},
        {"url": "x" * 16385},
        {"digest": "sha256:" + "A" * 64},
        {"digest": "sha512:" + "0" * 64},
        {"digest": DIGEST + "\n"},
        {"type": 1},
    ],
)
def test_an_entry_with_a_field_that_cannot_be_is_left_out(changes: dict[str, object]) -> None:
    site, findings = parse_site(current(entry(**changes)))

    assert site.entries == ()
    assert [finding.code for finding in findings] == ["site-entry-invalid"]
    assert len(findings[0].message) < 300 and findings[0].message.isascii()


@pytest.mark.requirement("DISC-05")
def test_an_entry_of_an_unknown_type_is_skipped_with_a_warning() -> None:
    site, findings = parse_site(current(entry(type="bundle"), entry(name="water", type="archive")))

    assert [entry.name for entry in site.entries] == ["water"]
    assert [(finding.code, finding.severity) for finding in findings] == [
        ("site-type-unknown", Severity.WARNING)
    ]


@pytest.mark.requirement("DISC-02")
def test_entries_that_share_a_name_are_all_left_out() -> None:
    site, findings = parse_site(current(entry(), entry(name="water"), entry(url="other.md")))

    assert [entry.name for entry in site.entries] == ["water"]
    assert [finding.code for finding in findings] == ["site-entry-invalid"]


@pytest.mark.requirement("DISC-03")
@pytest.mark.parametrize(
    "files",
    [
        ["references/a.md"],
        ["SKILL.md", "../a.md"],
        ["SKILL.md", "/etc/passwd"],
        ["SKILL.md", "a\\b.md"],
        ["SKILL.md", "a.md", "a.md"],
        ["SKILL.md", "a.md", "A.md"],
        ["SKILL.md", "skill.MD"],
        ["SKILL.md", {"path": "a.md"}],
        ["SKILL.md", *(f"{number}.md" for number in range(512))],
        ["SKILL.md", ""],
        ["SKILL.md", "a//b.md"],
    ],
)
def test_files_of_the_first_form_must_be_paths_that_stay_inside(files: list[object]) -> None:
    assert codes({"skills": [old_entry(*files)]}) == ["site-unverifiable", "site-entry-invalid"]


@pytest.mark.requirement("DISC-03")
def test_files_of_the_first_form_are_kept_in_order_without_digests() -> None:
    site, _ = parse_site({"skills": [old_entry("a b.md", "SKILL.md", note=1)]})

    files = (SiteFile("a b.md"), SiteFile("SKILL.md"))
    assert site.entries == (FilesEntry("tea", "Brews.", files, extra={"note": 1}),)


@pytest.mark.requirement("DISC-12")
def test_the_digest_of_the_interim_form_is_over_sorted_lines_of_path_and_hexadecimal_digits() -> None:
    lines = b"SKILL.md\0" + b"a" * 64 + b"\n" + b"b/c.md\0" + b"f" * 64 + b"\n"
    files = (SiteFile("b/c.md", f"sha256:{'f' * 64}"), SiteFile("SKILL.md", f"sha256:{'a' * 64}"))

    assert files_digest(files) == f"sha256:{hashlib.sha256(lines).hexdigest()}"
    assert files_digest(files) == "sha256:" + (
        "9f7c0fb311ac34f786620dc7992ad85a8ea05c82b4f2519fd83da6b351fde794"
    )


@pytest.mark.requirement("DISC-12")
@pytest.mark.parametrize(
    "broken",
    [
        interim_entry("SKILL.md", digest=DIGEST),
        interim_entry("SKILL.md", "a?.md"),
        interim_entry("SKILL.md", "a#.md"),
        interim_entry("SKILL.md", "[a].md"),
        interim_entry("SKILL.md", "a\\b.md"),
        interim_entry("SKILL.md", "é.md"),
        interim_entry("SKILL.md", "a\tb.md"),
        interim_entry("SKILL.md", "../a.md"),
        interim_entry("a.md"),
        interim_entry("SKILL.md", files=["SKILL.md"]),
        interim_entry("SKILL.md", files=[{"digest": DIGEST}]),
        interim_entry("SKILL.md", package="x.zip"),
        interim_entry("SKILL.md", package={"url": "x.zip"}),
    ],
)
def test_an_entry_of_the_interim_form_that_breaks_its_rules_is_left_out(broken: object) -> None:
    assert codes({"version": "0.2.0", "skills": [broken]}) == ["site-entry-invalid"]


@pytest.mark.requirement("DISC-04")
@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("https://cdn.example/tea.zip", "https://cdn.example/tea.zip"),
        ("/tea/SKILL.md", "https://example.org/tea/SKILL.md"),
        ("tea/SKILL.md", "https://example.org/.well-known/agent-skills/tea/SKILL.md"),
        ("../tea.zip?v=1#top", "https://example.org/.well-known/tea.zip?v=1"),
        ("//cdn.example/tea.zip", "https://cdn.example/tea.zip"),
    ],
)
def test_a_url_is_resolved_against_the_one_of_the_index(reference: str, url: str) -> None:
    assert artifact_url(INDEX_URL, reference) == url


@pytest.mark.requirement("DISC-03")
def test_a_file_of_an_older_form_lies_beside_the_index_whatever_its_name_holds() -> None:
    assert file_url(INDEX_URL, "tea", "a b/100%?.md") == (
        "https://example.org/.well-known/agent-skills/tea/a%20b/100%25%3F.md"
    )
    assert file_url(INDEX_URL, "tea", "https://evil.example/x").startswith("https://example.org/")


@pytest.mark.requirement("DISC-02")
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "$schema": st.just(SCHEMA) | json_values,
            "version": st.just("0.2.0") | json_values,
            "skills": st.lists(
                st.fixed_dictionaries(
                    {"name": names | json_values, "description": texts | json_values},
                    optional={
                        "type": st.sampled_from(["skill-md", "archive"]) | json_values,
                        "url": urls | json_values,
                        "digest": digests | json_values,
                        "files": json_values
                        | st.lists(st.just("SKILL.md") | st.text(max_size=5) | json_values, max_size=3),
                        "package": json_values,
                    },
                )
                | json_values,
                max_size=4,
            )
            | json_values,
        },
    )
    | json_values
)
def test_whatever_a_site_says_is_read_without_failing_and_what_is_used_is_sound(value: Any) -> None:
    site, findings = parse_site(value)

    assert all(finding.code in RULES and len(finding.message) < 600 for finding in findings)
    assert parse_site(site.to_json())[0].entries == site.entries
    if site.form is not None:
        assert is_valid("well-known", site.to_json())
