"""Asking a provenance provider: by content, within bounds, and without being fooled by its failures."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from skillwire.host.approval.consent import ProvenanceCheck
from skillwire.host.model.approval import (
    MAX_WORDS,
    Provenance,
    ProvenanceResult,
    ProvenanceVerdict,
    binding_of,
)
from skillwire.host.model.errors import VetoedError
from skillwire.host.model.origin import KnownSkill
from skillwire.host.state.audit import AuditLog
from unit.host.registry.remotes import entry_at, record

SKILL = record("shop", "skill://acme/refunds", "shop/refunds")


class StubProvider:
    """A provider that knows verdicts by binding, and notes what it was asked."""

    def __init__(self, verdicts: Mapping[str, Any]) -> None:
        self.verdicts = verdicts
        self.asked: list[Provenance] = []

    async def check(self, subject: Provenance) -> ProvenanceVerdict | None:
        self.asked.append(subject)
        found = self.verdicts.get(subject.binding)
        if isinstance(found, Exception):
            raise found
        return found


def binding(skill: KnownSkill) -> str:
    assert skill.entry.manifest is not None
    return binding_of(skill.entry.manifest)


@pytest.fixture
def audit(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "audit.jsonl")


@pytest.mark.requirement("ASK-05")
async def test_a_verdict_is_about_one_content_and_is_asked_for_once(audit: AuditLog) -> None:
    provider = StubProvider({binding(SKILL): ProvenanceVerdict("scanned on Monday")})
    check = ProvenanceCheck(provider, audit)
    changed = replace(SKILL, entry=entry_at("skill://acme/refunds", body=b"other"))

    found = [await check.result_for(SKILL), await check.result_for(SKILL), await check.result_for(changed)]

    assert found == [
        ProvenanceResult(binding(SKILL), "scanned on Monday"),
        ProvenanceResult(binding(SKILL), "scanned on Monday"),
        ProvenanceResult(binding(changed)),
    ]
    assert provider.asked == [
        Provenance(SKILL.id.origin, SKILL.id.uri, SKILL.entry.manifest, binding(SKILL)),
        Provenance(SKILL.id.origin, SKILL.id.uri, changed.entry.manifest, binding(changed)),
    ]


@pytest.mark.requirement("ASK-05")
async def test_a_veto_is_an_error_and_words_are_not(audit: AuditLog) -> None:
    check = ProvenanceCheck(
        StubProvider({binding(SKILL): ProvenanceVerdict("known to\nbe\x1b[31m bad", True)}), audit
    )

    with pytest.raises(VetoedError) as caught:
        await check.require_no_veto(SKILL)

    assert caught.value.refusal == "vetoed"
    assert "known to be" in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.requirement("ASK-05")
@pytest.mark.parametrize("answer", [OSError("the network is away"), "yes", 1, {"is_veto": True}])
async def test_what_fails_or_is_no_verdict_says_nothing_and_is_asked_again(
    audit: AuditLog, answer: object
) -> None:
    provider = StubProvider({binding(SKILL): answer})
    check = ProvenanceCheck(provider, audit)

    first, second = await check.require_no_veto(SKILL), await check.require_no_veto(SKILL)

    assert first is not None and first == second
    assert first.problem
    assert (first.words, first.is_veto) == ("", False)
    assert len(provider.asked) == 2


@pytest.mark.requirement("ASK-05")
async def test_a_provider_has_only_so_much_time(audit: AuditLog) -> None:
    class Silent:
        async def check(self, subject: Provenance) -> ProvenanceVerdict | None:
            await anyio.sleep_forever()

    with anyio.fail_after(30):
        found = await ProvenanceCheck(Silent(), audit, seconds=0.05).result_for(SKILL)

    assert found is not None
    assert "took more than" in found.problem


@pytest.mark.requirement("ASK-05")
async def test_words_are_cut_and_harmless(audit: AuditLog) -> None:
    check = ProvenanceCheck(
        StubProvider({binding(SKILL): ProvenanceVerdict("a\u202e" + "b" * 10_000)}), audit
    )

    found = await check.result_for(SKILL)

    assert found is not None
    assert len(found.words) <= MAX_WORDS + 1
    assert "\u202e" not in found.words


async def test_without_a_provider_nobody_says_anything(audit: AuditLog) -> None:
    assert await ProvenanceCheck(None, audit).result_for(SKILL) is None


@pytest.mark.requirement("ASK-05")
async def test_content_without_digests_is_asked_about_each_time(audit: AuditLog) -> None:
    provider = StubProvider({"": ProvenanceVerdict("this server is known")})
    check = ProvenanceCheck(provider, audit)
    dynamic = replace(SKILL, entry=replace(SKILL.entry, manifest=None))

    found = [await check.result_for(dynamic), await check.result_for(dynamic)]

    assert found == [ProvenanceResult("", "this server is known")] * 2
    assert len(provider.asked) == 2
