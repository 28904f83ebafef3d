"""What an author says about the audience and the priority of a skill."""

import pytest

from skillwire.core import Frontmatter
from skillwire.core.fields import annotations_in
from skillwire.core.skill import Skill
from skillwire.core.yaml12 import JsonValue
from skillwire.wire.core import skill_resource


def said(**metadata: JsonValue) -> Frontmatter:
    return Frontmatter(
        {"name": "a", "metadata": {f"skillwire/{key}": value for key, value in metadata.items()}}
    )


@pytest.mark.requirement("EXEC-09")
@pytest.mark.parametrize(
    ("metadata", "audience", "priority"),
    [
        ({"audience": "user"}, ("user",), None),
        ({"audience": "assistant, user"}, ("user", "assistant"), None),
        ({"audience": "user assistant", "priority": "0.9"}, ("user", "assistant"), 0.9),
        ({"priority": "0"}, (), 0.0),
        ({"priority": "1.0"}, (), 1.0),
        ({}, (), None),
    ],
)
def test_an_audience_and_a_priority_within_bounds_count(
    metadata: dict[str, JsonValue], audience: tuple[str, ...], priority: float | None
) -> None:
    found = annotations_in(said(**metadata))

    assert (found.audience, found.priority, found.findings) == (audience, priority, ())


@pytest.mark.requirement("EXEC-09")
@pytest.mark.parametrize(
    "metadata",
    [
        *({"audience": value} for value in ("", "everyone", "user, bots", "user;assistant", 1, ["user"])),
        *(
            {"priority": value}
            for value in ("", "1.1", "-0.1", "high", "nan", "1e-1", "0.1234567", 0.5, True)
        ),
    ],
)
def test_what_is_out_of_bounds_is_a_finding_and_counts_as_not_said(metadata: dict[str, JsonValue]) -> None:
    found = annotations_in(said(**metadata), line=4)

    assert (found.audience, found.priority) == ((), None)
    assert [(finding.code, finding.line) for finding in found.findings] == [("annotations-invalid", 4)]
    assert found.findings[0].fix


@pytest.mark.requirement("META-05", "EXEC-09")
def test_the_resource_of_a_skill_has_its_authors_annotations_and_else_the_usual_ones() -> None:
    chosen: dict[str, JsonValue] = {"metadata": {"skillwire/audience": "user", "skillwire/priority": "0.25"}}
    plain = Skill("a", description="Use it.", body="Steps.").entry()
    own = Skill("a", description="Use it.", body="Steps.", frontmatter=chosen).entry()

    assert skill_resource(plain)["annotations"] == {"audience": ["assistant"], "priority": 0.8}
    assert skill_resource(own)["annotations"] == {"audience": ["user"], "priority": 0.25}
