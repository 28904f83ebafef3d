"""Admission with tokens and rules: who gets in, what is remembered of them, and for how long."""

import base64
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from skillwire.core.errors import CredentialError
from skillwire.server.access import admission as module
from skillwire.server.access.admission import Admission, AdmittedCaller
from skillwire.server.access.settings import ANONYMOUS, AccessError, AccessSettings, Oidc
from skillwire.server.access.tokens import Token, digest_of, format_time, new_secret
from skillwire.server.visibility import ALL, NOTHING, Visibility


class World:
    """A token file with one token, perhaps rules, and clocks that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.tokens, self.rules = folder / "tokens", folder / "rules.toml"
        self.secret = new_secret("ci")
        self.seconds = 0.0
        self.keep("ci", self.secret)

    @property
    def header(self) -> bytes:
        return f"Bearer {self.secret}".encode()

    def keep(self, name: str, secret: str, *options: str) -> None:
        self.write(self.tokens, " ".join([Token(name, digest_of(secret)).line, *options]) + "\n")

    def write(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)

    def admission(self, *, rules: str = "", allow_anonymous: bool = False) -> Admission:
        if rules:
            self.write(self.rules, rules)
        access = AccessSettings(
            tokens=self.tokens, rules=self.rules if rules else None, allow_anonymous=allow_anonymous
        )
        return Admission(
            access, now=lambda: self.tokens.stat().st_ctime + 10 + self.seconds, ticks=self.ticks
        )

    def ticks(self) -> float:
        return self.seconds


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def refusal(admission: Admission, header: bytes | None) -> str:
    with pytest.raises(CredentialError) as caught:
        await admission.admit(header)
    return caught.value.reason


@pytest.mark.requirement("SEC-14")
async def test_a_token_is_admitted_and_everything_else_is_not(world: World) -> None:
    async with world.admission() as admission:
        admitted = await admission.admit(world.header)

        assert (admitted.caller.name, admitted.visibility) == ("ci", ALL)
        assert await refusal(admission, None) == "missing"
        assert await refusal(admission, b"Bearer " + new_secret("ci").encode()) == "unknown"
        assert await refusal(admission, b"Bearer eyJhbGciOiJub25lIn0.e30.") == "unknown"
        assert await refusal(admission, world.header + b", " + world.header) == "malformed"


@pytest.mark.requirement("SEC-14")
async def test_strangers_see_what_rules_allow_to_anyone_and_a_wrong_token_makes_nobody_a_stranger(
    world: World,
) -> None:
    rules = '[[rule]]\nanyone = true\nsee = ["shared"]\n[[rule]]\ntokens = ["ci"]\nsee = ["acme"]'
    async with world.admission(rules=rules, allow_anonymous=True) as admission:
        assert await admission.admit(None) == AdmittedCaller(ANONYMOUS, Visibility(("skill://shared",)))
        assert (await admission.admit(world.header)).visibility == Visibility(
            ("skill://acme", "skill://shared")
        )
        assert await refusal(admission, b"Bearer nonsense") == "unknown"
    async with world.admission(allow_anonymous=True) as admission:
        assert (await admission.admit(None)).visibility == NOTHING


async def test_an_open_server_asks_nobody_and_minds_no_header() -> None:
    async with Admission(AccessSettings()) as admission:
        for header in (None, b"Bearer x", b"nonsense"):
            assert await admission.admit(header) == AdmittedCaller(ANONYMOUS, ALL)


async def test_a_header_that_was_admitted_is_recalled_and_no_other(world: World) -> None:
    async with world.admission() as admission:
        assert admission.cached_result(world.header) is None
        admitted = await admission.admit(world.header)

        assert admission.cached_result(world.header) is admitted
        assert admission.cached_result(world.header + b" ") is None
        assert admission.cached_result(None) is None


async def test_no_header_is_kept_in_memory_as_it_is(world: World) -> None:
    async with world.admission() as admission:
        await admission.admit(world.header)

        known = vars(admission)["_known"]
        assert [len(key) for key in known] == [32]
        assert world.secret not in repr(vars(admission))


@pytest.mark.requirement("SEC-14")
async def test_a_password_of_a_browser_counts_only_on_pages_for_people(world: World) -> None:
    header = b"Basic " + base64.b64encode(b"me:" + world.secret.encode())
    async with world.admission() as admission:
        assert await refusal(admission, header) == "malformed"
        admitted = await admission.admit(header, basic=True)

        assert admission.cached_result(header, basic=True) is admitted
        assert admission.cached_result(header) is None
        assert await refusal(admission, header) == "malformed"


@pytest.mark.requirement("SEC-14")
async def test_a_revoked_token_is_worthless_although_it_was_just_used(world: World) -> None:
    async with world.admission() as admission:
        await admission.admit(world.header)
        world.write(world.tokens, "# nobody\n")
        world.seconds += 1

        assert admission.cached_result(world.header) is None
        assert await refusal(admission, world.header) == "unknown"


@pytest.mark.requirement("SEC-14")
async def test_rules_that_change_count_for_callers_who_are_known(world: World) -> None:
    rules = '[[rule]]\ntokens = ["ci"]\nsee = ["{}"]'
    async with world.admission(rules=rules.format("acme")) as admission:
        await admission.admit(world.header)
        world.write(world.rules, rules.format("other"))
        admission.reload()

        assert (await admission.admit(world.header)).visibility == Visibility(("skill://other",))
        world.write(world.rules, "nonsense")
        admission.reload()
        assert (await admission.admit(world.header)).visibility == Visibility(("skill://other",))


@pytest.mark.requirement("SEC-14")
async def test_a_token_that_expires_is_not_recalled(world: World) -> None:
    from_now = world.tokens.stat().st_ctime + 10 + 30
    world.keep("ci", world.secret, f"expires={format_time(datetime.fromtimestamp(from_now, UTC))}")
    async with world.admission() as admission:
        await admission.admit(world.header)
        world.seconds += 28
        assert admission.cached_result(world.header) is not None
        world.seconds += 5

        assert admission.cached_result(world.header) is None
        assert await refusal(admission, world.header) == "expired"


async def test_not_more_headers_are_remembered_than_there_is_room_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CACHED", 3)
    async with world.admission() as admission:
        for blanks in range(1, 6):
            await admission.admit(b"Bearer" + b" " * blanks + world.secret.encode())

        assert len(vars(admission)["_known"]) == 3
        assert admission.cached_result(b"Bearer     " + world.secret.encode()) is not None


async def test_files_that_cannot_be_used_keep_a_server_from_starting(world: World) -> None:
    world.write(world.tokens, "nonsense\n")
    with pytest.raises(AccessError):
        async with world.admission():
            pass


def test_without_what_checks_signatures_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://skills.example.org/mcp"
    monkeypatch.delitem(sys.modules, "skillwire.server.access.oidc", raising=False)
    monkeypatch.setitem(sys.modules, "joserfc", None)
    for name in [name for name in sys.modules if name.startswith("joserfc.")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(AccessError) as caught:
        Admission(AccessSettings(oidc=Oidc("https://login.example.org", url), public_url=url)).load()

    assert caught.value.fix == 'pip install "skillwire[auth]"'
