"""`skillwire token`: a token is shown once, its digest kept, and no line of the file is lost."""

import os
import stat
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from commands import Command, names_in
from skillwire.cli import token as command
from skillwire.server.access.tokens import Token, digest_of, read_tokens, with_token

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "cli" / "token.json"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.requirement("SEC-14")
def test_a_new_token_is_printed_once_and_the_file_knows_only_its_digest(
    skillwire: Command, here: Path
) -> None:
    made = skillwire("token", "new", "ci", "--file", "tokens", "--group", "a", "--group", "b", "--scope", "x")

    secret = made.out.strip()
    content = Path("tokens").read_text()
    known = read_tokens(Path("tokens")).by_name["ci"]
    assert (made.code, len(made.lines)) == (0, 1)
    assert secret not in content and secret not in made.err
    assert content == f"ci sha256:{digest_of(secret)} group=a,b scope=x\n"
    assert (known.groups, known.scopes, known.expires) == (("a", "b"), ("x",), None)
    assert mode(Path("tokens")) == 0o600


def test_what_was_in_the_file_stays_as_it_was(skillwire: Command, here: Path) -> None:
    before = f"# of the team\n\nold sha256:{'ab' * 32}   group=x\n# end"
    Path("tokens").write_text(before)
    Path("tokens").chmod(0o640)

    skillwire("token", "new", "ci", "--file", "tokens")
    added = Path("tokens").read_text()
    revoked = skillwire("token", "revoke", "ci", "--file", "tokens")

    assert added.startswith(f"{before}\nci sha256:")
    assert (revoked.code, revoked.out) == (0, "revoked ci\n")
    assert Path("tokens").read_text() == f"{before}\n"
    assert mode(Path("tokens")) == 0o640
    assert names_in(here) == [".tokens.lock", "tokens"]


def test_tokens_are_listed_without_their_secrets(skillwire: Command, here: Path) -> None:
    skillwire("token", "new", "ci", "--file", "tokens", "--group", "a", "--expires", "30")
    line = f"old sha256:{'ab' * 32} expires=2001-01-01T00:00:00Z\n"
    Path("tokens").write_text(Path("tokens").read_text() + line)

    listed = skillwire("token", "list", "--file", "tokens")
    document = skillwire("token", "list", "--file", "tokens", "--json").json

    assert listed.lines[0].startswith("ci  groups a  no scopes  expires 2")
    assert listed.lines[1] == "old  no groups  no scopes  expired 2001-01-01T00:00:00Z"
    assert [(one["name"], one["expired"]) for one in document["tokens"]] == [("ci", False), ("old", True)]
    assert "sha256" not in listed.out + str(document)


def test_programs_get_one_document_that_fits_its_schema(skillwire: Command, here: Path) -> None:
    made = skillwire("token", "new", "ci", "--file", "tokens", "--json").json
    listed = skillwire("token", "list", "--file", "tokens", "--json").json
    failed = skillwire("token", "new", "ci", "--file", "tokens", "--json").json
    revoked = skillwire("token", "revoke", "ci", "--file", "tokens", "--json").json

    validator: Any = Draft202012Validator(orjson.loads(SCHEMA.read_bytes()))
    for document in (made, listed, failed, revoked):
        validator.validate(document)
    assert made["token"].startswith("skw_ci_")
    assert "error" in failed
    assert revoked == {"schema": "skillwire/token/1", "action": "revoke", "file": "tokens", "name": "ci"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["new", "ci", "--file", "tokens"], 1),
        (["new", "Bad Name", "--file", "tokens"], 1),
        (["new", "x", "--file", "tokens", "--group", "a,b"], 1),
        (["new", "x", "--file", "gone/tokens"], 1),
        (["revoke", "nobody", "--file", "tokens"], 1),
        (["revoke", "ci", "--file", "gone"], 1),
        (["list", "--file", "gone"], 1),
        (["list", "--file", "."], 1),
        (["new", "x"], 2),
        (["new", "--file", "tokens"], 2),
        (["revoke", "--file", "tokens"], 2),
        (["list", "ci", "--file", "tokens"], 2),
        (["list", "--file", "tokens", "--group", "a"], 2),
        (["melt", "ci", "--file", "tokens"], 2),
        (["new", "x", "--file", "tokens", "--expires", "0"], 2),
    ],
)
def test_what_cannot_be_done_is_one_clear_error_and_changes_nothing(
    skillwire: Command, here: Path, words: list[str], code: int
) -> None:
    skillwire("token", "new", "ci", "--file", "tokens")
    before = Path("tokens").read_bytes()

    ended = skillwire("token", *words)

    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith("error: ")
    assert Path("tokens").read_bytes() == before


@pytest.mark.requirement("SEC-14")
def test_a_file_that_is_malformed_or_writable_by_others_is_left_alone(skillwire: Command, here: Path) -> None:
    Path("bad").write_text("nonsense\n")
    Path("open").write_text("")
    Path("open").chmod(0o666)

    bad = skillwire("token", "new", "ci", "--file", "bad")
    wide = skillwire("token", "new", "ci", "--file", "open")

    assert (bad.code, wide.code) == (1, 1)
    assert "line 1" in bad.err and "chmod go-w" in wide.err
    assert (Path("bad").read_text(), Path("open").read_text()) == ("nonsense\n", "")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_file_of_another_user_is_not_taken_over(
    skillwire: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skillwire("token", "new", "ci", "--file", "tokens")
    monkeypatch.setattr(command.os, "geteuid", lambda: Path("tokens").stat().st_uid + 1)

    ended = skillwire("token", "revoke", "ci", "--file", "tokens")

    assert ended.code == 1
    assert "ci" in read_tokens(Path("tokens")).by_name


def test_a_link_to_the_file_stays_one(skillwire: Command, here: Path) -> None:
    Path("real").mkdir()
    Path("tokens").symlink_to("real/tokens")

    skillwire("token", "new", "ci", "--file", "tokens")

    assert Path("tokens").is_symlink()
    assert "ci" in read_tokens(Path("real/tokens")).by_name


def test_tokens_made_at_once_are_all_kept(here: Path) -> None:
    names = [f"t{number}" for number in range(8)]

    def make(name: str) -> None:
        token = Token(name, "ab" * 32)
        command.change_file(Path("tokens"), lambda before: with_token(before, token), may_be_new=True)

    threads = [threading.Thread(target=make, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(read_tokens(Path("tokens")).by_name) == names
