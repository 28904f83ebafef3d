"""What skills declare to need around them: the lines authors write, and what becomes of odd ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.fields import (
    DEPENDENCIES,
    MAX_NEED_DESCRIPTION,
    MAX_NEEDS,
    NO_NEEDS,
    SCOPES,
    Dependency,
    Scope,
    needs_in,
)
from skillwire.core.finding import Severity
from skillwire.core.yaml12 import JsonValue


def declaring(**metadata: JsonValue) -> Frontmatter:
    fields: dict[str, JsonValue] = {"name": "demo", "description": "Use when testing."}
    return Frontmatter({**fields, "metadata": {f"skillwire/{key}": value for key, value in metadata.items()}})


@pytest.mark.requirement("ASK-14")
def test_a_dependency_has_a_name_and_maybe_a_version_and_a_description() -> None:
    needs = needs_in(
        declaring(
            dependencies="pandas (>=2.2): Reads the tables.\nGNU Make\n\nnode (20)\npoppler: Reads PDF.\n"
        )
    )

    assert needs.dependencies == (
        Dependency("pandas", ">=2.2", "Reads the tables."),
        Dependency("GNU Make"),
        Dependency("node", "20"),
        Dependency("poppler", "", "Reads PDF."),
    )
    assert (needs.scopes, needs.findings) == ((), ())


@pytest.mark.requirement("ASK-14")
def test_the_name_of_a_scope_may_hold_colons_as_many_do() -> None:
    needs = needs_in(
        declaring(scopes="tickets:read: Looks up tickets.\nhttps://api.example/auth/drive\nrepo:status:\n")
    )

    assert needs.scopes == (
        Scope("tickets:read", "Looks up tickets."),
        Scope("https://api.example/auth/drive"),
        Scope("repo:status"),
    )


@pytest.mark.requirement("ASK-14")
def test_what_is_declared_becomes_metadata_without_what_was_not_said() -> None:
    needs = needs_in(declaring(dependencies="pandas (2): Tables.\nmake", scopes="read: Reads."))

    assert needs.to_meta() == {
        DEPENDENCIES: [{"name": "pandas", "version": "2", "description": "Tables."}, {"name": "make"}],
        SCOPES: [{"name": "read", "description": "Reads."}],
    }
    assert NO_NEEDS.to_meta() == {}


@pytest.mark.requirement("ASK-14")
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("dependencies", "pandas (2"),
        ("dependencies", "(2): nothing"),
        ("dependencies", "a (1) (2)"),
        ("dependencies", "a) b"),
        ("dependencies", "x" * 257),
        ("dependencies", "pandas\npandas (2)"),
        ("scopes", "two words: What is it?"),
        ("scopes", "read (2)"),
        ("scopes", 7),
        ("dependencies", ["pandas"]),
    ],
)
def test_a_line_that_cannot_be_read_is_left_out_with_a_warning(key: str, text: JsonValue) -> None:
    needs = needs_in(declaring(**{key: text}), line=4)

    [finding] = needs.findings
    assert (finding.code, finding.rule, finding.severity) == ("needs-invalid", "ASK-14", Severity.WARNING)
    assert (finding.line, len(finding.message) < 200, bool(finding.fix)) == (4, True, True)
    assert len(needs.dependencies) + len(needs.scopes) <= 1


@pytest.mark.requirement("ASK-14")
def test_no_declaration_grows_without_bound() -> None:
    lines = "\n".join(f"need-{number}: {'x' * 2000}" for number in range(MAX_NEEDS + 5))

    needs = needs_in(declaring(dependencies=lines))

    assert len(needs.dependencies) == MAX_NEEDS
    assert {len(needed.description) for needed in needs.dependencies} == {MAX_NEED_DESCRIPTION}
    assert [finding.code for finding in needs.findings] == ["needs-invalid"]


@pytest.mark.requirement("ASK-14")
@given(st.text(), st.text())
def test_whatever_is_written_nothing_raises_and_names_are_distinct(dependencies: str, scopes: str) -> None:
    needs = needs_in(declaring(dependencies=dependencies, scopes=scopes))

    for names in ([item.name for item in needs.dependencies], [item.name for item in needs.scopes]):
        assert all(names) and len(set(names)) == len(names) <= MAX_NEEDS
