"""Rules: whom they mean, what they allow, and that a rule which is not understood allows nothing."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core import SkillUri
from skillwire.server.access.rules import FOR_ANYONE, FOR_CALLERS, MAX_SIZE, Rules, parse_rules
from skillwire.server.access.settings import ANONYMOUS, AccessError, Caller
from skillwire.server.visibility import ALL, NOTHING, Visibility

CI = Caller("ci", token="ci", groups=frozenset({"billing"}), scopes=frozenset({"read"}))
ALICE = Caller(
    "https://i alice", subject="alice", issuer="https://i", client="app", groups=frozenset({"billing", "ops"})
)
BILLING = Visibility(("skill://acme/billing",))

EXAMPLE = b"""
[[rule]]
anyone = true
see = ["shared", "docs://handbook"]

[[rule]]
groups = ["billing", "audit"]
see = ["acme/billing"]

[[rule]]
groups = ["ops"]
issuers = ["https://i"]
see = ["*"]
run = ["acme"]
operate = true
"""


def rules(text: str) -> Rules:
    return parse_rules(text.encode())


@pytest.mark.requirement("SEC-14")
def test_what_a_caller_may_see_is_all_that_the_rules_for_them_allow() -> None:
    found = parse_rules(EXAMPLE)

    shared = ("docs://handbook", "skill://shared")
    assert found.visibility_of(ANONYMOUS) == Visibility(shared)
    assert found.visibility_of(CI) == Visibility(
        ("docs://handbook", "skill://acme/billing", "skill://shared")
    )
    assert found.visibility_of(ALICE) == Visibility(("*",), ("skill://acme",), can_operate=True)


@pytest.mark.parametrize(
    ("who", "meant"),
    [
        ('tokens = ["ci", "other"]', [CI]),
        ('subjects = ["alice"]', [ALICE]),
        ('subjects = ["ci"]', []),
        ('tokens = ["alice"]', []),
        ('clients = ["app"]', [ALICE]),
        ('issuers = ["https://i"]', [ALICE]),
        ('groups = ["billing"]', [CI, ALICE]),
        ('scopes = ["read"]', [CI]),
        ('groups = ["billing"]\nscopes = ["read"]', [CI]),
        ('groups = ["ops"]\nscopes = ["read"]', []),
        ("authenticated = true", [CI, ALICE]),
        ('authenticated = true\ngroups = ["ops"]', [ALICE]),
        ("anyone = true", [CI, ALICE, ANONYMOUS]),
    ],
)
@pytest.mark.requirement("SEC-14")
def test_every_kind_that_a_rule_names_has_to_match(who: str, meant: list[Caller]) -> None:
    found = rules(f'[[rule]]\n{who}\nsee = ["acme/billing"]')

    assert [caller for caller in (CI, ALICE, ANONYMOUS) if found.visibility_of(caller) == BILLING] == meant
    assert all(
        found.visibility_of(caller) == NOTHING for caller in (CI, ALICE, ANONYMOUS) if caller not in meant
    )


@pytest.mark.requirement("SEC-14")
def test_a_manager_may_publish_and_a_publisher_sees_what_it_may_publish() -> None:
    found = rules(
        '[[rule]]\nauthenticated = true\nsee = ["acme/tea"]\npublish = ["acme/billing"]\n'
        '[[rule]]\ntokens = ["ci"]\nmanage = ["acme"]\n'
    )
    ci, alice = found.visibility_of(CI), found.visibility_of(ALICE)
    refunds, tea = SkillUri.build("acme/billing/refunds"), SkillUri.build("acme/tea")

    assert (ci.includes(tea), ci.may_publish(tea), ci.may_manage(tea)) == (True, True, True)
    assert (alice.includes(tea), alice.may_publish(tea), alice.may_manage(tea)) == (True, False, False)
    assert (alice.includes(refunds), alice.may_publish(refunds)) == (True, True)
    assert not ci.may_run(refunds) and not alice.may_manage(refunds)
    assert found.visibility_of(ANONYMOUS) == NOTHING
    assert not ALL.may_publish(tea)


def test_roles_are_no_part_of_a_view() -> None:
    reader = rules('[[rule]]\nauthenticated = true\nsee = ["acme"]').visibility_of(CI)
    more = 'see = ["acme"]\npublish = ["acme/tea"]\nmanage = ["acme/tea/x"]\noperate = true'
    admin = rules(f"[[rule]]\nauthenticated = true\n{more}").visibility_of(CI)
    runner = rules('[[rule]]\nauthenticated = true\nsee = ["acme"]\nrun = ["acme"]').visibility_of(CI)

    assert reader != admin and reader.of_view == admin.of_view
    assert reader.of_view != runner.of_view


def test_without_rules_callers_see_everything_and_strangers_only_where_nobody_is_asked() -> None:
    assert (FOR_CALLERS.visibility_of(CI), FOR_CALLERS.visibility_of(ANONYMOUS)) == (ALL, NOTHING)
    assert FOR_ANYONE.visibility_of(ANONYMOUS) == ALL
    assert rules("").visibility_of(CI) == NOTHING


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "x is unknown"),
        ("rule = 1", "[[rule]]"),
        ("[rule]\nanyone = true", "[[rule]]"),
        ('[[rule]]\nsee = ["a"]', "rule[1] does not name any callers"),
        ('[[rule]]\nanyone = false\nsee = ["a"]', "rule[1] does not name any callers"),
        ('[[rule]]\nanyone = 1\nsee = ["a"]', "rule[1].anyone"),
        ("[[rule]]\nanyone = true", "rule[1] allows nothing"),
        ('[[rule]]\nanyone = true\nsee = "a"', "rule[1].see"),
        ("[[rule]]\nanyone = true\nsee = []", "rule[1].see is empty"),
        ('[[rule]]\nanyone = true\nsee = ["a/../b"]', "'a/../b'"),
        ('[[rule]]\nanyone = true\nsee = ["a", ""]', "rule[1].see"),
        ('[[rule]]\nanyone = true\nsee = ["/"]', "rule[1].see"),
        ('[[rule]]\nanyone = true\nsee = ["a/*"]', "rule[1].see"),
        ('[[rule]]\ngroups = []\nsee = ["a"]', "rule[1].groups is empty"),
        ('[[rule]]\ngroups = [""]\nsee = ["a"]', "rule[1].groups"),
        ('[[rule]]\ngroups = [1]\nsee = ["a"]', "rule[1].groups"),
        ('[[rule]]\nanyone = true\ngroups = ["a"]\nsee = ["a"]', "rule[1].groups"),
        ('[[rule]]\nanyone = true\nauthenticated = true\nsee = ["a"]', "rule[1].authenticated"),
        ('[[rule]]\nanyone = true\nsee = ["a"]\n[[rule]]\nanyone = true\nsees = ["b"]', "rule[2].sees"),
        (f'[[rule]]\ngroups = ["{"a" * 513}"]\nsee = ["a"]', "rule[1].groups"),
        (f"[[rule]]\nanyone = true\nsee = {['a'] * 1001}", "rule[1].see"),
        ('[[rule]]\nanyone = true\nsee = ["a"]\n' * 1001, "1000 rules"),
        ('[[rule]]\nanyone = true\npublish = ["a"]', "rule[1] lets anyone publish"),
        ('[[rule]]\nanyone = true\nsee = ["a"]\nmanage = ["a"]', "rule[1] lets anyone publish"),
        ('[[rule]]\nauthenticated = true\npublish = ["a/../b"]', "rule[1].publish"),
        ("[[rule", "TOML"),
        ("a = " + "[" * 5000, "TOML"),
    ],
)  # fmt: skip
@pytest.mark.requirement("SEC-14")
def test_what_is_not_understood_is_named_and_nothing_of_it_counts(text: str, words: str) -> None:
    with pytest.raises(AccessError) as caught:
        rules(text)

    assert words in str(caught.value) or (words == "TOML" and "nest" in str(caught.value))


def test_too_much_and_what_is_no_text_is_refused() -> None:
    for content in (b"\xff", b"#" * (MAX_SIZE + 1)):
        with pytest.raises(AccessError):
            parse_rules(content)


WHO = st.sampled_from(["tokens", "subjects", "groups", "scopes", "clients", "issuers"])
WORDS = st.sampled_from(["a", "b", "a b", "é"])
PLACES = st.lists(st.sampled_from(["acme", "acme/billing", "b", "*", "docs://x/y"]), min_size=1, max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(WHO, st.lists(WORDS, min_size=1, max_size=3), PLACES), max_size=5), WORDS)
def test_one_rule_more_never_takes_anything_away(
    written: list[tuple[str, list[str], list[str]]], word: str
) -> None:
    caller = Caller("x", token=word, subject=word, groups=frozenset({word}), client="c", issuer="i")
    parts = [
        f"[[rule]]\n{kind} = [{', '.join(map(_toml, values))}]\nsee = [{', '.join(map(_toml, places))}]\n"
        for kind, values, places in written
    ]

    seen = [rules("".join(parts[:count])).visibility_of(caller) for count in range(len(parts) + 1)]

    assert all(before | after == after for before, after in pairwise(seen))


@settings(max_examples=100, deadline=None)
@given(
    st.text(st.characters(codec="utf-8"), max_size=100)
    | st.text('[]=",\n #rulesanyonetruefalse*/', max_size=100)
)
def test_any_text_is_rules_or_one_clear_error(text: str) -> None:
    try:
        parse_rules(text.encode())
    except AccessError as error:
        assert str(error)


def _toml(text: str) -> str:
    return f'"{text}"'
