"""Servers whose bytes, entries and frontmatter do not agree. The numbers are those of the threat model."""

from pathlib import Path
from typing import Any

import pytest

from hostile.catalog import BODY, refunds
from hostile.hosting import BODY_URI, LABEL, REFUNDS, REPORTS, ROOT, User, refused, visiting
from hostile.integrity import MARK
from hostile.running import WIRES
from skillwire.core.errors import (
    DigestMismatchError,
    FrontmatterMismatchError,
    InvalidEntryError,
    NotFoundError,
    SizeMismatchError,
    SkillError,
    UnlistedFileError,
)
from skillwire.host.model.approval import Occasion, Reply

everywhere = pytest.mark.parametrize(("transport", "era"), WIRES, ids=[f"{way}-{era}" for way, era in WIRES])

LOADS = ""


@everywhere
@pytest.mark.requirement("INT-02")
@pytest.mark.requirement("INT-08")
async def test_a_body_swapped_for_one_of_the_same_length_never_reaches_the_model(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 1."""
    async with visiting("swapped_body", tmp_path, transport=transport, era=era) as visit:
        error = await refused(visit.host.load(REFUNDS))
        other = await visit.host.load(REPORTS)

        assert error.refusal == "digest-mismatch"
        assert MARK not in str(error)
        # One look at the file and one at the entry, which says the same as before: no second try.
        assert visit.peer.reads() == [BODY_URI, "skill://acme/reports/SKILL.md"]
        assert [asked.uri for asked in visit.peer.requests("skills/get")] == [BODY_URI]
        assert [window.skill.reference for window in visit.host.loaded] == [REPORTS]
        assert "Write the report." in other.text


POLICY = "references/policy.md"
BROKEN_PROMISES: list[tuple[str, dict[str, object], str, type[SkillError], str]] = [
    ("swapped_body", {}, LOADS, DigestMismatchError, BODY_URI),
    ("wrong_length", {"form": "shorter"}, LOADS, SizeMismatchError, BODY_URI),
    ("frontmatter_lies", {"form": "changed"}, LOADS, FrontmatterMismatchError, BODY_URI),
    (
        "unlisted_reference",
        {},
        "references/hidden.md",
        UnlistedFileError,
        f"{ROOT}/references/hidden.md",
    ),
    ("swapped_file", {"swap": True}, POLICY, DigestMismatchError, f"{ROOT}/{POLICY}"),
    ("vanished_file", {"gone": True}, POLICY, NotFoundError, f"{ROOT}/{POLICY}"),
]


@pytest.mark.requirement("INT-11")
@pytest.mark.parametrize(
    ("scenario", "control", "path", "kind", "uri"), BROKEN_PROMISES, ids=lambda case: str(case)[:40]
)
async def test_each_broken_promise_has_its_own_type_and_names_the_server_and_the_uri(
    scenario: str, control: dict[str, Any], path: str, kind: type[SkillError], uri: str, tmp_path: Path
) -> None:
    async with visiting(scenario, tmp_path, **control) as visit:
        if path == LOADS:
            error = await refused(visit.host.load(REFUNDS))
        else:
            await visit.host.load(REFUNDS)
            error = await refused(visit.host.read_skill_file(REFUNDS, path))

    assert type(error) is kind
    assert (error.server, getattr(error, "uri", None)) == (LABEL, uri)


@pytest.mark.requirement("INT-11")
async def test_an_entry_that_breaks_a_rule_is_refused_with_its_server_and_its_uri(tmp_path: Path) -> None:
    async with visiting("odd_resources", tmp_path, form="twice") as visit:
        error = await refused(visit.host.load(f"{LABEL}/{ROOT}"))
        hidden = [refusal.subject for refusal in visit.host.view.hidden]

    assert isinstance(error, InvalidEntryError)
    assert (error.server, error.uri) == (LABEL, BODY_URI)
    assert hidden == [f"{LABEL}/{BODY_URI}"]


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ("longer", "size-mismatch"),
        ("shorter", "size-mismatch"),
        ("empty", "size-mismatch"),
        ("flood", "message-too-large"),
    ],
)
@pytest.mark.requirement("INT-03")
@pytest.mark.requirement("LIM-06")
async def test_a_file_longer_or_shorter_than_listed_is_refused(form: str, code: str, tmp_path: Path) -> None:
    """Attack 2."""
    async with visiting("wrong_length", tmp_path, transport="http", era="modern", form=form) as visit:
        error = await refused(visit.host.load(REFUNDS))

        assert error.refusal == code
        assert MARK not in str(error)
        assert visit.peer.reads() == [BODY_URI]
        assert visit.host.loaded == ()


@pytest.mark.parametrize(
    "form", ["changed", "only-in-file", "only-in-entry", "null-in-file", "renamed-in-file"]
)
@pytest.mark.requirement("INT-05")
async def test_a_file_whose_frontmatter_is_not_the_listed_one_is_refused_though_its_digest_is_right(
    form: str, tmp_path: Path
) -> None:
    """Attacks 3 and 4."""
    async with visiting("frontmatter_lies", tmp_path, era="modern", form=form) as visit:
        error = await refused(visit.host.load(REFUNDS))

        assert error.refusal == "frontmatter-mismatch"
        assert MARK not in str(error)
        assert visit.peer.reads() == [BODY_URI]
        assert visit.host.loaded == ()


@pytest.mark.requirement("INT-05")
@pytest.mark.requirement("FMT-10")
async def test_frontmatter_that_readers_disagree_about_has_one_meaning_or_none(tmp_path: Path) -> None:
    """Attacks 5 and 58."""
    expected = {
        "version-is-text": "frontmatter-mismatch",
        "version-is-number": LOADS,
        "yes-is-true": "frontmatter-mismatch",
        "yes-is-text": LOADS,
        "octal": "frontmatter-mismatch",
        "decimal": LOADS,
        "sexagesimal": "frontmatter-mismatch",
        "time-is-text": LOADS,
        "date": LOADS,
        "true-is-one": "frontmatter-mismatch",
        "twice": "invalid-frontmatter",
        "number-key": "invalid-frontmatter",
        "merge": "invalid-frontmatter",
        "tag": "invalid-frontmatter",
        "bomb": "invalid-frontmatter",
        "deep": "invalid-frontmatter",
        "long": "invalid-frontmatter",
    }
    outcome: dict[str, str] = {}
    async with visiting("odd_yaml", tmp_path, form="date") as visit:
        for form in expected:
            visit.peer.say(form=form)
            await visit.host.refresh(force=True)
            try:
                loaded = await visit.host.load(REFUNDS)
            except Exception as error:
                outcome[form] = getattr(error, "refusal", repr(error))
                assert MARK not in str(error)
            else:
                outcome[form] = LOADS
                assert MARK in loaded.text
                visit.host.close(REFUNDS)

    assert outcome == expected


@everywhere
@pytest.mark.requirement("INT-04")
async def test_a_file_the_body_names_and_the_entry_does_not_list_is_never_asked_for(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 6."""
    async with visiting("unlisted_reference", tmp_path, transport=transport, era=era) as visit:
        await visit.host.load(REFUNDS)
        by_path = await refused(visit.host.read_skill_file(REFUNDS, "references/hidden.md"))
        by_uri = await refused(visit.host.read_skill_file(REFUNDS, f"{ROOT}/references/more.md"))
        as_resource = await refused(visit.host.read_resource(LABEL, f"{ROOT}/references/hidden.md"))

        assert [error.refusal for error in (by_path, by_uri, as_resource)] == ["unlisted-file"] * 3
        assert visit.peer.reads() == [BODY_URI]


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.requirement("INT-04")
@pytest.mark.requirement("URI-10")
async def test_no_other_spelling_of_an_unlisted_file_leads_around_the_entry(
    transport: str, tmp_path: Path
) -> None:
    """Attacks 6 and 37."""
    spellings = (
        f"{ROOT}/references/hidden.md",
        f"{ROOT}/references/%68idden.md",
        f"{ROOT}//references/hidden.md",
        f"{ROOT}/./references/hidden.md",
        f"{ROOT}/references/../references/hidden.md",
        f"{ROOT}/references/%2e%2e/references/hidden.md",
        f"{ROOT}/references%2Fhidden.md",
        f"{ROOT}/references\\hidden.md",
        f"{ROOT}/references/hidden.md?x=1",
        f"{ROOT}/references/hidden.md#x",
        f"{ROOT}/references/hidden.md/",
        f"{ROOT.upper().replace('ACME/REFUNDS', 'acme/refunds')}/references/hidden.md",
        "skill:///acme/refunds/references/hidden.md",
        "skill://acme//refunds/references/hidden.md",
        "skill://acme/other/../refunds/references/hidden.md",
        "skill://./acme/refunds/references/hidden.md",
    )
    let_through: list[str] = []
    async with visiting("lenient_lookup", tmp_path, transport=transport, era="modern") as visit:
        await visit.host.load(REFUNDS)
        for spelling in spellings:
            for read in (
                visit.host.read_resource(LABEL, spelling),
                visit.host.read_skill_file(REFUNDS, spelling),
            ):
                try:
                    let_through.append((await read).uri)
                except SkillError as error:
                    assert error.refusal in ("unlisted-file", "invalid-uri"), spelling

        assert let_through == []
        assert visit.peer.reads() == [BODY_URI]


@everywhere
@pytest.mark.requirement("SDK-05")
@pytest.mark.requirement("LIST-19")
async def test_a_skill_that_is_listed_twice_is_not_used_in_either_form(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with visiting("listed_twice", tmp_path, transport=transport, era=era) as visit:
        error = await refused(visit.host.load(REFUNDS))

        assert visit.references() == [REPORTS]
        assert error.refusal == "unknown-reference"
        assert len(visit.codes()) == 2
        assert visit.peer.reads() == []


@pytest.mark.requirement("INT-02")
async def test_a_supporting_file_swapped_after_approval_is_refused_and_nobody_is_asked_to_run_it(
    tmp_path: Path,
) -> None:
    """Attack 7."""
    async with visiting("swapped_file", tmp_path, transport="http", era="legacy") as visit:
        await visit.host.load(REFUNDS)
        visit.peer.say(swap=True)
        read = await refused(visit.host.read_skill_file(REFUNDS, "references/policy.md"))
        run = await refused(visit.host.request_scripts(REFUNDS, "scripts/check.sh"))

        assert (read.refusal, run.refusal) == ("digest-mismatch", "digest-mismatch")
        assert MARK not in f"{read}{run}"
        assert visit.user.occasions == [Occasion.FIRST]


@pytest.mark.requirement("INT-10")
async def test_an_answer_that_is_not_the_one_item_asked_for_is_refused(tmp_path: Path) -> None:
    """Attack 8."""
    forms = ("other-uri", "two", "two-alike", "none", "null", "object", "no-uri", "child-uri")
    outcome: dict[str, str] = {}
    async with visiting("odd_contents", tmp_path, era="legacy", form="none") as visit:
        for form in forms:
            visit.peer.say(form=form)
            error = await refused(visit.host.load(REFUNDS))
            outcome[form] = error.refusal
            assert MARK not in str(error)
        other = await visit.host.load(REPORTS)

        assert outcome == dict.fromkeys(forms, "invalid-answer")
        assert visit.peer.reads().count(BODY_URI) == len(forms)
        assert "Write the report." in other.text


@everywhere
@pytest.mark.requirement("INT-10")
@pytest.mark.requirement("FMT-11")
async def test_bytes_are_compared_as_they_are_however_they_were_wrapped(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 9."""
    expected = {
        "bom": {LOADS},
        "crlf": {LOADS},
        "nul": {LOADS},
        "blob": {LOADS},
        "not-utf8": {"invalid-frontmatter"},
        "utf16": {"invalid-frontmatter"},
        "bom-stripped": {"size-mismatch"},
        "crlf-to-lf": {"size-mismatch"},
        "blob-with-spaces": {"invalid-answer"},
        "blob-without-padding": {"invalid-answer"},
        "blob-for-urls": {"invalid-answer"},
        "blob-is-none": {"invalid-answer"},
        "blob-and-text": {"invalid-answer"},
        "text-and-blob": {"invalid-answer"},
        "neither": {"invalid-answer"},
        "text-is-number": {"invalid-answer"},
    }
    wrong: dict[str, str] = {}
    async with visiting("odd_encoding", tmp_path, transport=transport, era=era, form="bom") as visit:
        for form, outcomes in expected.items():
            visit.peer.say(form=form)
            await visit.host.refresh(force=True)
            try:
                loaded = await visit.host.load(REFUNDS)
            except Exception as error:
                found = getattr(error, "refusal", repr(error))
                assert MARK not in str(error)
            else:
                found = LOADS
                assert "Read [the policy]" in loaded.text
                assert not any(character in loaded.text for character in "\0\ufeff")
                visit.host.close(REFUNDS)
            if found not in outcomes:
                wrong[form] = found

    assert wrong == {}


@everywhere
@pytest.mark.requirement("INT-10")
async def test_half_a_character_is_refused_and_the_server_stays_usable(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 9."""
    async with visiting(
        "odd_encoding", tmp_path, transport=transport, era=era, form="surrogate", seconds=3.0
    ) as visit:
        error = await refused(visit.host.load(REFUNDS))
        other = await visit.host.load(REPORTS)

    assert error.refusal in ("invalid-answer", "server-error", "too-slow")
    assert "Write the report." in other.text


@pytest.mark.requirement("GET-06")
async def test_an_entry_nobody_asked_for_does_not_become_the_one_that_was(tmp_path: Path) -> None:
    """Attack 10."""
    forms = ("other", "uri-only", "list", "missing", "skills")
    outcome: dict[str, str] = {}
    async with visiting("other_skill_for_get", tmp_path, transport="http", form="other") as visit:
        for form in forms:
            visit.peer.say(form=form)
            outcome[form] = (await refused(visit.host.load(f"{LABEL}/{BODY_URI}"))).refusal

        assert set(outcome.values()) <= {"invalid-answer", "invalid-entry"}
        assert visit.references() == [REPORTS]
        assert visit.peer.reads() == []
        assert visit.user.questions == []


@pytest.mark.parametrize(
    ("scenario", "forms"),
    [
        (
            "odd_resources",
            (
                "without-skill-file",
                "twice",
                "twice-by-encoding",
                "sibling",
                "prefix",
                "parent",
                "encoded-parent",
                "file-scheme",
                "other-scheme",
                "root-itself",
                "empty",
                "missing",
                "null",
                "object",
                "capital",
                "number",
                "text",
                "nested",
                "size-text",
                "size-negative",
                "size-float",
                "size-true",
                "size-missing",
            ),
        ),
        (
            "bad_digest",
            (
                "sha1",
                "sha512",
                "none",
                "upper",
                "capital-name",
                "short",
                "long",
                "constructor",
                "bare",
                "space",
                "newline",
                "base64",
                "empty",
                "null",
                "number",
                "missing",
            ),
        ),
    ],
    ids=["manifests", "digests"],
)
@pytest.mark.requirement("LIST-10")
@pytest.mark.requirement("LIST-11")
@pytest.mark.requirement("LIST-19")
@pytest.mark.requirement("INT-01")
async def test_an_entry_whose_manifest_breaks_a_rule_is_not_used_and_costs_only_itself(
    scenario: str, forms: tuple[str, ...], tmp_path: Path
) -> None:
    """Attacks 11, 12 and 13."""
    outcome: dict[str, list[object]] = {}
    async with visiting(scenario, tmp_path, era="modern", form=forms[0]) as visit:
        for form in forms:
            visit.peer.say(form=form)
            await visit.host.refresh(force=True)
            by_name = (await refused(visit.host.load(REFUNDS))).refusal
            by_uri = (await refused(visit.host.load(f"{LABEL}/{BODY_URI}"))).refusal
            outcome[form] = [visit.references(), visit.codes(), by_name, by_uri]

        expected = [[REPORTS], ["invalid-entry"], "unknown-reference", "invalid-entry"]
        assert outcome == dict.fromkeys(forms, expected)
        assert visit.peer.reads() == []
        assert visit.user.questions == []


@everywhere
@pytest.mark.requirement("INT-07")
@pytest.mark.requirement("APPR-02")
async def test_a_skill_redeployed_since_its_listing_is_asked_about_again_as_changed(
    transport: str, era: str, tmp_path: Path
) -> None:
    """Attack 14."""
    async with visiting("honest", tmp_path, transport=transport, era=era) as visit:
        visit.peer.say(version=2)
        loaded = await visit.host.load(REFUNDS)

        assert visit.user.occasions == [Occasion.FIRST, Occasion.CHANGED]
        [first, second] = visit.user.questions
        assert second.change is not None and second.change.modified == (BODY_URI,)
        assert first.skill is not None and second.skill is not None
        assert second.skill.entry.to_json() == refunds(2).entry
        assert "later, v02X" in loaded.text and BODY not in loaded.text
        assert visit.peer.reads() == [BODY_URI, BODY_URI]
        assert len(visit.peer.requests("skills/get")) == 1


@pytest.mark.parametrize(
    ("form", "path"), [("rotated", "scripts/check.sh"), ("removed", "references/policy.md")]
)
@pytest.mark.requirement("INT-07")
@pytest.mark.requirement("DIR-09")
@pytest.mark.requirement("DIR-10")
async def test_a_file_that_changed_or_went_while_the_skill_is_loaded_means_the_skill_changed(
    form: str, path: str, tmp_path: Path
) -> None:
    """Attack 14."""
    async with visiting("reshaped", tmp_path, transport="http", era="modern", form=form) as visit:
        await visit.host.load(REFUNDS)
        visit.peer.say(version=2)
        error = await refused(visit.host.read_skill_file(REFUNDS, path))
        again = await refused(visit.host.read_skill_file(REFUNDS, "references/policy.md"))

        assert (error.refusal, again.refusal) == ("skill-changed", "skill-changed")
        assert visit.user.occasions == [Occasion.FIRST]
        assert visit.peer.reads() == [BODY_URI, f"{ROOT}/{path}"]
        assert len(visit.peer.requests("skills/get")) == 1


@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("SEC-12")
async def test_a_server_that_changes_with_every_question_stops_being_asked_about(tmp_path: Path) -> None:
    """Attack 15."""
    async with visiting("flip_flop", tmp_path, user=User(Reply.DENY)) as visit:
        codes: list[str] = []
        for _ in range(8):
            codes.append((await refused(visit.host.load(REFUNDS))).refusal)
            await visit.host.refresh(force=True)

        asked = len(visit.user.questions)
        assert codes == ["approval-denied"] * asked + ["keeps-changing"] * (8 - asked)
        assert 0 < asked <= 3
        assert visit.peer.reads() == []


@pytest.mark.requirement("DIR-08")
@pytest.mark.requirement("DIR-11")
async def test_a_directory_that_shows_more_than_the_entry_adds_nothing_to_the_skill(tmp_path: Path) -> None:
    """Attack 16."""
    async with visiting("unlisted_child", tmp_path, era="modern") as visit:
        await visit.host.load(REFUNDS)
        files = visit.host.list_skill_files(REFUNDS)
        shown = await refused(visit.host.read_skill_directory(REFUNDS, "references"))
        read = await refused(visit.host.read_skill_file(REFUNDS, "references/added.md"))
        visit.peer.say(listed=True)
        changed = await refused(visit.host.read_skill_directory(REFUNDS, "references"))

        assert [error.refusal for error in (shown, read, changed)] == [
            "unlisted-file",
            "unlisted-file",
            "skill-changed",
        ]
        assert visit.host.list_skill_files(REFUNDS) == files
        assert "references/added.md" not in [file.path for file in files]
        assert visit.peer.reads() == [BODY_URI]


@pytest.mark.requirement("DIR-13")
async def test_a_directory_whose_children_lie_elsewhere_is_not_believed_at_all(tmp_path: Path) -> None:
    """Attack 17."""
    forms = ("parent", "encoded", "sibling", "deeper", "scheme", "authority", "itself")
    outcome: dict[str, str] = {}
    async with visiting("escaping_child", tmp_path, transport="http", form="parent") as visit:
        await visit.host.load(REFUNDS)
        for form in forms:
            visit.peer.say(form=form)
            outcome[form] = (await refused(visit.host.read_skill_directory(REFUNDS, "references"))).refusal

        assert outcome == dict.fromkeys(forms, "invalid-answer")
        assert visit.peer.reads() == [BODY_URI]


@pytest.mark.requirement("NEG-06")
async def test_a_directory_is_not_asked_for_unless_the_server_offered_it(tmp_path: Path) -> None:
    async with visiting("plain_directory", tmp_path, era="legacy") as visit:
        await visit.host.load(REFUNDS)
        error = await refused(visit.host.read_skill_directory(REFUNDS))

        assert error.refusal == "not-declared"
        assert visit.peer.requests("resources/directory/read") == []


@pytest.mark.requirement("DIR-10")
async def test_a_listed_file_that_is_not_served_is_looked_into_once(tmp_path: Path) -> None:
    async with visiting("vanished_file", tmp_path, era="modern") as visit:
        await visit.host.load(REFUNDS)
        visit.peer.say(gone=True)
        error = await refused(visit.host.read_skill_file(REFUNDS, "references/policy.md"))

        assert error.refusal == "not-found"
        assert len(visit.peer.requests("skills/get")) == 1
