"""The gate: which calls may run while skills are loaded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.manifest import digest_of
from skillwire.host.model.approval import Grant
from skillwire.host.use.gate import Decision, OpenWindow, ToolCall, ToolKind, Verdict, allowed_tools, decide
from unit.host.known_skills import LOCAL, known, server

SCRIPT = b"print('refunded')\n"
RUN = ToolCall("bash", ToolKind.EXECUTE)


def window(*grants: Grant, label: str = "acme", extra: str = "") -> OpenWindow:
    skill = known(origin=server(label), extra=extra, files={"scripts/refund.py": SCRIPT})
    return OpenWindow(skill, frozenset({Grant.LOAD, *grants}))


def script(reference: str = "acme/refunds", content: bytes = SCRIPT) -> ToolCall:
    return ToolCall(
        "run_script",
        ToolKind.EXECUTE,
        skill=reference,
        script="scripts/refund.py",
        script_digest=digest_of(content),
    )


@pytest.mark.parametrize("kind", [None, *ToolKind])
def test_without_a_loaded_skill_every_call_may_run(kind: ToolKind | None) -> None:
    call = ToolCall("anything", kind)

    assert decide(call, []) == Decision(Verdict.ALLOW, call)


@pytest.mark.parametrize("kind", [None, *ToolKind])
def test_a_local_skill_restricts_nothing(kind: ToolKind | None) -> None:
    local = OpenWindow(known(origin=LOCAL), frozenset({Grant.LOAD}))

    assert decide(ToolCall("anything", kind), [local]).verdict is Verdict.ALLOW


@pytest.mark.requirement("SEC-04")
@pytest.mark.requirement("SEC-06")
@pytest.mark.requirement("SEC-15")
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ToolKind.EXECUTE, "execution"),
        (None, "execution"),
        (ToolKind.WRITE, "writing"),
        (ToolKind.NETWORK, "network"),
    ],
)
def test_acting_on_a_servers_skill_needs_a_yes_to_run_write_or_send(kind: ToolKind | None, code: str) -> None:
    decision = decide(ToolCall("tool", kind), [window()])

    assert (decision.verdict, decision.code) == (Verdict.ASK, code)
    assert decision.skills == ("acme/refunds",)
    assert decision.refusal is not None
    assert decision.refusal.code == code


def test_looking_at_local_files_is_left_to_the_agents_own_policy() -> None:
    assert decide(ToolCall("read_file", ToolKind.READ, path="notes.txt"), [window()]).verdict is Verdict.ALLOW


@pytest.mark.requirement("SEC-08")
def test_a_read_on_the_skills_own_server_may_run_and_one_elsewhere_needs_a_yes() -> None:
    own = ToolCall("read_resource", ToolKind.READ, server="acme", uri="skill://x/SKILL.md")
    other = ToolCall("read_resource", ToolKind.READ, server="bank", uri="file://secrets")

    assert decide(own, [window()]).verdict is Verdict.ALLOW
    decision = decide(other, [window()])
    assert (decision.verdict, decision.code, decision.origins) == (Verdict.ASK, "cross-origin", ("acme",))


def test_the_grant_for_scripts_covers_the_skills_own_bytes_and_nothing_else() -> None:
    granted = window(Grant.SCRIPTS)

    assert decide(script(), [granted]).verdict is Verdict.ALLOW
    assert decide(script(content=b"rm -rf /\n"), [granted]).verdict is Verdict.ASK
    assert decide(RUN, [granted]).verdict is Verdict.ASK
    assert decide(script(), [window()]).verdict is Verdict.ASK


def test_a_script_that_leads_out_of_the_skill_is_not_its_own() -> None:
    call = ToolCall("run", ToolKind.EXECUTE, skill="acme/refunds", script="../x.py", script_digest="sha256:0")

    assert decide(call, [window(Grant.SCRIPTS)]).verdict is Verdict.ASK


@pytest.mark.requirement("SEC-10")
def test_tools_a_skill_asks_for_count_only_when_granted_and_only_by_plain_name() -> None:
    extra = "allowed-tools: Read Bash Bash(git:*) mcp__x\n"
    call = ToolCall("Bash", ToolKind.EXECUTE)

    assert decide(call, [window(extra=extra)]).verdict is Verdict.ASK
    assert decide(call, [window(Grant.ALLOWED_TOOLS, extra=extra)]).verdict is Verdict.ALLOW
    assert allowed_tools(window(extra=extra).skill) == ("Read", "Bash", "mcp__x")
    assert decide(ToolCall("Edit", ToolKind.WRITE), [window(Grant.ALLOWED_TOOLS, extra=extra)]).verdict is (
        Verdict.ASK
    )


@pytest.mark.requirement("SEC-03")
def test_one_skills_grants_never_widen_anothers() -> None:
    granted, other = window(Grant.SCRIPTS), window(label="other")

    decision = decide(script(), [granted, other])

    assert (decision.verdict, decision.skills) == (Verdict.ASK, ("other/refunds",))


@pytest.mark.parametrize("windows", [[], [window(Grant.ALLOWED_TOOLS, extra="allowed-tools: Edit\n")]])
def test_nothing_may_write_where_approvals_and_cached_skills_lie(windows: list[OpenWindow]) -> None:
    for kind in (ToolKind.WRITE, ToolKind.EXECUTE, None):
        decision = decide(ToolCall("Edit", kind, path="/state/approvals"), windows, ["/state"])
        assert (decision.verdict, decision.code) == (Verdict.DENY, "protected-place")
    beside = decide(ToolCall("Edit", ToolKind.WRITE, path="/state-of-affairs"), [], ["/state"])
    assert beside.verdict is Verdict.ALLOW


def test_not_even_reading_is_allowed_where_the_key_and_unframed_skill_text_lie() -> None:
    for path in ("/state/key", "/STATE/key", "/state"):
        decision = decide(ToolCall("Read", ToolKind.READ, path=path), [], ["/p/skills.lock"], ["/state"])
        assert (decision.verdict, decision.code) == (Verdict.DENY, "protected-place")
    lock = ToolCall("Read", ToolKind.READ, path="/p/skills.lock")
    assert decide(lock, [], ["/p/skills.lock"], ["/state"]).verdict is Verdict.ALLOW


@given(
    kind=st.sampled_from([None, *ToolKind]),
    labels=st.lists(st.sampled_from(["a", "b", "c"]), max_size=3),
    grants=st.sets(st.sampled_from(list(Grant))),
    target=st.sampled_from(["", "a", "b", "z"]),
)
def test_opening_another_window_never_makes_a_call_easier(
    kind: ToolKind | None, labels: list[str], grants: set[Grant], target: str
) -> None:
    windows = [window(*grants, label=label) for label in labels]
    call = ToolCall("tool", kind, server=target)
    order = [Verdict.ALLOW, Verdict.ASK, Verdict.DENY]

    before = decide(call, windows)
    after = decide(call, [*windows, window(label="new")])

    assert order.index(after.verdict) >= order.index(before.verdict)
    assert decide(call, windows[::-1]) == before
