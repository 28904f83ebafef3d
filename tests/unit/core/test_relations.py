"""Relations between skills: references, the graph, circles, and what is said about bad ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.relations import MAX_REFERENCES, Node, Relation, RelationGraph, Unresolved, relations_in
from skillwire.core.skill import Skill
from skillwire.core.yaml12 import JsonValue

REQUIRES, RELATED, PART_OF = Relation.REQUIRES, Relation.RELATED, Relation.PART_OF


def entry(path: str, **relations: JsonValue) -> SkillEntry:
    metadata: JsonValue = {f"skillwire/{key.replace('_', '-')}": value for key, value in relations.items()}
    name, extra = path.rpartition("/")[2], {"metadata": metadata} if relations else None
    built = Skill(name, path=path, description="Use when testing.", body="Do it.\n", frontmatter=extra)
    return built.entry()


def uri(path: str) -> str:
    return f"skill://{path}/SKILL.md"


def chain(requires: dict[str, list[str]]) -> RelationGraph:
    return RelationGraph(
        Node(name, name, Frontmatter({"name": name, "metadata": {"skillwire/requires": ",".join(targets)}}))
        for name, targets in requires.items()
    )


@pytest.mark.requirement("ASK-13")
def test_the_graph_answers_who_names_whom() -> None:
    graph = RelationGraph.of(
        [
            entry("acme/billing"),
            entry("acme/billing-ledger", part_of="billing"),
            entry("acme/refunds", requires="billing-ledger, tea", related="tea", part_of="acme/billing"),
            entry("tea", requires="skill://acme/billing-ledger/SKILL.md"),
        ]
    )

    assert graph.targets(uri("acme/refunds"), REQUIRES) == (uri("acme/billing-ledger"), uri("tea"))
    assert graph.targets(uri("acme/refunds"), RELATED) == (uri("tea"),)
    assert graph.sources(uri("acme/billing"), PART_OF) == (uri("acme/billing-ledger"), uri("acme/refunds"))
    assert graph.sources(uri("acme/billing-ledger"), REQUIRES) == (uri("acme/refunds"), uri("tea"))
    assert graph.targets(uri("tea"), PART_OF) == graph.sources(uri("acme/refunds"), RELATED) == ()
    assert (graph.unresolved, graph.findings()) == ([], {})


@pytest.mark.requirement("ASK-13")
def test_what_a_skill_requires_through_others_is_found_nearest_first() -> None:
    graph = chain({"a": ["b", "c"], "b": ["d"], "c": ["d", "a"], "d": []})

    assert graph.reach("a", REQUIRES) == ("b", "c", "d")
    assert graph.reach("d", REQUIRES) == ()


@pytest.mark.requirement("ASK-13")
@pytest.mark.parametrize(
    ("reference", "meant"),
    [
        ("ledger", None),
        ("billing/ledger", uri("acme/billing/ledger")),
        ("acme/ledger", uri("acme/ledger")),
        ("skill://acme/ledger", uri("acme/ledger")),
        ("github://acme/ledger", None),
        ("edger", None),
        ("cme/ledger", None),
        ("acme", None),
        ("ledger/", None),
        ("../ledger", None),
    ],
)
def test_a_reference_fits_whole_segments_from_the_end_of_a_path(reference: str, meant: str | None) -> None:
    others = [entry("acme/ledger"), entry("acme/billing/ledger"), entry("other/ledger")]

    graph = RelationGraph.of([*others, entry("tea", requires=reference)])

    assert graph.targets(uri("tea"), REQUIRES) == ((meant,) if meant else ())
    assert [item.reference for item in graph.unresolved] == ([] if meant else [reference])


@pytest.mark.requirement("ASK-13")
def test_a_reference_that_is_a_whole_path_is_that_skill_and_no_longer_one() -> None:
    graph = RelationGraph.of(
        [entry("acme/tea"), entry("more/acme/tea"), entry("x", requires="skill://acme/tea")]
    )

    assert graph.targets(uri("x"), REQUIRES) == (uri("acme/tea"),)


@pytest.mark.requirement("ASK-13")
def test_unknown_and_ambiguous_references_are_warnings_that_quote_little() -> None:
    graph = RelationGraph.of(
        [entry("a/tea"), entry("b/tea"), entry("x", requires="gone", related="tea " + "y" * 500)]
    )

    assert graph.unresolved[:2] == [
        Unresolved(uri("x"), REQUIRES, "gone"),
        Unresolved(uri("x"), RELATED, "tea", (uri("a/tea"), uri("b/tea"))),
    ]
    findings = graph.findings()[uri("x")]
    assert [(found.code, found.is_error) for found in findings] == [("relation-unknown", False)] * 3
    assert all(len(found.message) < 300 for found in findings)


@pytest.mark.requirement("ASK-13")
@pytest.mark.parametrize(
    "value", [7, ["a"], {"a": "b"}, " ".join(map(str, range(MAX_REFERENCES + 1))), "x" * 513]
)
def test_what_is_no_list_of_references_is_a_warning_and_no_relation(value: JsonValue) -> None:
    relations, findings = relations_in(Frontmatter({"metadata": {"skillwire/requires": value}}))

    assert relations == {}
    assert [found.code for found in findings] == ["relation-invalid"]


@pytest.mark.requirement("ASK-13")
@pytest.mark.parametrize(
    "fields", [{}, {"metadata": "x"}, {"metadata": {"requires": "a"}}, {"requires": "a"}]
)
def test_without_our_prefix_nothing_is_a_relation(fields: dict[str, JsonValue]) -> None:
    assert relations_in(Frontmatter(fields)) == ({}, [])


@pytest.mark.requirement("ASK-13")
def test_skills_that_require_each_other_are_found_whatever_lies_around_them() -> None:
    graph = chain({"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": [], "e": ["e"], "f": ["a"]})

    assert graph.cycles(REQUIRES) == [("b", "c"), ("e",)]
    codes = {key: [found.code for found in findings] for key, findings in graph.findings().items()}
    assert codes == {"b": ["relation-cycle"], "c": ["relation-cycle"], "e": ["relation-cycle"]}


@pytest.mark.requirement("ASK-13")
def test_being_related_to_each_other_is_no_circle() -> None:
    graph = RelationGraph.of([entry("a", related="b"), entry("b", related="a")])

    assert graph.cycles(RELATED) == []
    assert graph.findings() == {}


@pytest.mark.requirement("ASK-13")
def test_a_chain_of_ten_thousand_skills_is_no_matter_of_recursion() -> None:
    count = 10_000
    graph = chain({f"s{number}": [f"s{(number + 1) % count}"] for number in range(count)})

    [circle] = graph.cycles(REQUIRES)

    assert len(circle) == count
    assert len(graph.reach("s0", REQUIRES)) == count - 1


NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.mark.requirement("ASK-13")
@given(st.fixed_dictionaries({name: st.lists(st.sampled_from(NAMES), max_size=4) for name in NAMES}))
def test_circles_are_exactly_the_skills_that_can_reach_themselves(requires: dict[str, list[str]]) -> None:
    graph = chain(requires)

    def comes_back(name: str) -> bool:
        return any(name == target or name in graph.reach(target, REQUIRES) for target in requires[name])

    circles = graph.cycles(REQUIRES)
    assert sorted(name for circle in circles for name in circle) == [
        name for name in NAMES if comes_back(name)
    ]
    for circle in circles:
        for name in circle:
            assert set(circle) - {name} <= set(graph.reach(name, REQUIRES))
