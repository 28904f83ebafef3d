"""Signed tokens against a real issuer: what is believed, what is asked of it, and what if it is away."""

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from joserfc.jwk import ECKey

from integration.issuers import (
    AUDIENCE,
    DISCOVERY,
    EC,
    ED,
    KEYS,
    NOW,
    OTHER,
    RSA,
    Issuer,
    encoded,
    issuing,
    part,
)
from integration.web_sites import Page, endless, slowly, web_site
from skillwire.core.errors import CredentialError, NotFoundError
from skillwire.server.access.admission import Admission, AdmittedCaller
from skillwire.server.access.oidc import MAX_BYTES, MAX_STALE_SECONDS, RETRY_SECONDS, SignedTokens
from skillwire.server.access.settings import MAX_CREDENTIAL, AccessSettings, Oidc
from skillwire.server.access.tokens import Token, digest_of, new_secret
from skillwire.server.visibility import ALL

DAY = 24 * 3600.0


class Clock:
    """Both clocks of a server, moved by the test."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return NOW + self.seconds

    def ticks(self) -> float:
        return self.seconds


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as found:
        yield found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@asynccontextmanager
async def admitting(
    issuer: Issuer, clock: Clock, *, tokens: Path | None = None, **oidc: Any
) -> AsyncGenerator[Admission]:
    settings = replace(Oidc(issuer.url, AUDIENCE), **oidc)
    access = AccessSettings(tokens=tokens, oidc=settings, public_url=AUDIENCE)
    with anyio.fail_after(30):
        async with Admission(access, now=clock.now, ticks=clock.ticks) as admission:
            yield admission


async def admit(admission: Admission, token: str) -> AdmittedCaller:
    return await admission.admit(f"Bearer {token}".encode())


async def refusal(admission: Admission, token: str) -> str:
    with pytest.raises(CredentialError) as caught:
        await admit(admission, token)
    assert token[:20] not in str(caught.value)
    return caught.value.reason


@pytest.mark.requirement("SEC-14")
async def test_good_tokens_of_every_kind_are_believed_and_the_issuer_is_asked_once(
    issuer: Issuer, clock: Clock
) -> None:
    async with admitting(issuer, clock) as admission:
        found = [
            await admit(admission, issuer.token(key, algorithm, kid, sub=algorithm))
            for key, algorithm, kid in [
                (RSA, "RS256", "rsa"),
                (RSA, "PS256", "rsa"),
                (EC, "ES256", "ec"),
                (ED, "EdDSA", "ed"),
                (ED, "Ed25519", "ed"),
                (EC, "ES256", ""),
            ]
        ]

    assert [one.caller.subject for one in found] == ["RS256", "PS256", "ES256", "EdDSA", "Ed25519", "ES256"]
    assert {one.visibility for one in found} == {ALL}
    assert found[0].caller.name == f"{issuer.url} RS256"
    assert issuer.site.paths == [DISCOVERY, KEYS]


def bad_tokens(issuer: Issuer) -> dict[str, tuple[str, str]]:
    public = RSA.as_pem(private=False)
    header, _, signature = issuer.token().split(".")
    twice = encoded(b'{"alg":"ES256","alg":"none"}')
    other = part(issuer.claims(sub="mallory"))
    return {
        "none": (issuer.forged("none"), "algorithm"),
        "none, written oddly": (issuer.forged("nOnE"), "algorithm"),
        "the public key as a secret": (issuer.forged("HS256", public), "algorithm"),
        "the public key as a secret, said to be RSA": (issuer.forged("RS256", public), "signature"),
        "another key under a known name": (issuer.token(OTHER), "signature"),
        "another key's name": (issuer.token(EC, kid="ed"), "signature"),
        "a key of another kind": (issuer.token(EC, kid="rsa"), "signature"),
        "an algorithm for another key": (issuer.token(RSA, "RS256", "ec"), "signature"),
        "an unknown key": (issuer.token(OTHER, kid="other"), "key"),
        "a key it brings along": (
            issuer.token(OTHER, kid="x", header={"jwk": OTHER.as_dict(private=False)}),
            "key",
        ),
        "an address of keys it brings along": (
            issuer.token(OTHER, kid="x", header={"jku": "http://127.0.0.1:9/keys"}),
            "key",
        ),
        "another payload": (f"{header}.{other}.{signature}", "signature"),
        "no signature": (f"{header}.{other}.", "signature"),
        "another issuer": (issuer.token(iss="https://evil.example"), "issuer"),
        "another audience": (issuer.token(aud="https://other.example"), "audience"),
        "expired": (issuer.token(exp=NOW - 61), "expired"),
        "not yet": (issuer.token(nbf=NOW + 61), "early"),
        "an ID token": (issuer.token(at_hash="x"), "type"),
        "a logout token": (issuer.token(header={"typ": "logout+jwt"}), "type"),
        "bound to a key": (issuer.token(cnf={"jkt": "x"}), "bound"),
        "demands what is unknown": (issuer.token(header={"crit": ["b64"], "b64": False}), "malformed"),
        "a name twice": (f"{twice}.{other}.{signature}", "malformed"),
        "deep": (f"{encoded(b'[' * 2000)}.{other}.{signature}", "malformed"),
        "too few parts": ("a.b", "malformed"),
        "too many parts": (f"{issuer.token()}.{encoded(b'x')}.{encoded(b'y')}", "malformed"),
        "not even that": ("nonsense", "malformed"),
        "huge": (issuer.token(padding="x" * MAX_CREDENTIAL), "malformed"),
    }


@pytest.mark.requirement("SEC-14")
async def test_no_bad_token_is_believed_and_each_says_why(issuer: Issuer, clock: Clock) -> None:
    expected = bad_tokens(issuer)
    async with admitting(issuer, clock) as admission:
        await admit(admission, issuer.token())
        found = {name: await refusal(admission, token) for name, (token, _) in expected.items()}

    assert found == {name: reason for name, (_, reason) in expected.items()}
    # Unknown keys make us look again, but not within ten seconds.
    assert issuer.fetches == 1


@pytest.mark.requirement("SEC-14")
async def test_an_algorithm_the_operator_left_out_is_not_taken(issuer: Issuer, clock: Clock) -> None:
    async with admitting(issuer, clock, algorithms=("RS256",)) as admission:
        assert await refusal(admission, issuer.token()) == "algorithm"
        assert (await admit(admission, issuer.token(RSA, "RS256", "rsa"))).caller.subject == "alice"


@pytest.mark.requirement("SEC-14")
async def test_a_rotated_key_is_fetched_when_a_token_names_it_and_the_old_one_is_forgotten(
    issuer: Issuer, clock: Clock
) -> None:
    fresh = ECKey.generate_key("P-256")
    async with admitting(issuer, clock) as admission:
        await admit(admission, issuer.token())
        issuer.publish(new=fresh)
        early = await refusal(admission, issuer.token(fresh, kid="new"))
        clock.seconds += RETRY_SECONDS
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(admit, admission, issuer.token(fresh, kid="new", jti=number))

        assert (early, issuer.fetches) == ("key", 2)
        assert await refusal(admission, issuer.token(jti="other")) == "key"
        assert issuer.fetches == 2


@pytest.mark.requirement("SEC-14")
async def test_a_rotated_key_is_fetched_for_tokens_that_name_none_too(issuer: Issuer, clock: Clock) -> None:
    fresh = ECKey.generate_key("P-256")
    async with admitting(issuer, clock) as admission:
        await admit(admission, issuer.token(kid=""))
        issuer.publish(new=fresh)
        early = await refusal(admission, issuer.token(fresh, kid=""))
        clock.seconds += RETRY_SECONDS

        assert (await admit(admission, issuer.token(fresh, kid=""))).caller.subject == "alice"
        assert (early, issuer.fetches) == ("signature", 2)


@pytest.mark.requirement("SEC-14")
async def test_tokens_with_invented_keys_do_not_make_us_press_the_issuer(
    issuer: Issuer, clock: Clock
) -> None:
    async with admitting(issuer, clock) as admission:
        for number in range(100):
            assert await refusal(admission, issuer.token(OTHER, kid=f"invented {number}")) == "key"
            clock.seconds += 0.25

    assert issuer.fetches == 3


async def test_whoever_gives_up_does_not_spoil_the_keys_for_others(issuer: Issuer, clock: Clock) -> None:
    async with admitting(issuer, clock) as admission:
        with anyio.move_on_after(0):
            await admit(admission, issuer.token())

        assert (await admit(admission, issuer.token())).caller.subject == "alice"
    assert issuer.fetches == 1


@pytest.mark.parametrize(
    ("max_age", "kept"), [(None, 3600), (0, 60), (1, 60), (600, 600), (10**9, DAY)]
)  # fmt: skip
async def test_keys_are_kept_for_as_long_as_the_issuer_says_within_bounds(
    issuer: Issuer, clock: Clock, max_age: int | None, kept: float
) -> None:
    issuer.publish(ec=EC, max_age=max_age)
    async with admitting(issuer, clock) as admission:
        await admit(admission, issuer.token())
        clock.seconds += kept - 1
        await admit(admission, issuer.token(exp=NOW + 3 * DAY))
        before = issuer.fetches
        clock.seconds += 1
        await admit(admission, issuer.token(exp=NOW + 3 * DAY, jti=2))
        await _until(lambda: issuer.fetches == 2)

    assert before == 1


@pytest.mark.requirement("SEC-14")
async def test_while_the_issuer_is_away_the_last_keys_go_on_for_a_day(
    issuer: Issuer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def token(number: int) -> str:
        return issuer.token(exp=NOW + 3 * DAY, jti=number)

    async with admitting(issuer, clock) as admission:
        await admit(admission, token(0))
        pages = dict(issuer.site.pages)
        issuer.site.pages.clear()
        for number in range(5):
            clock.seconds += 4000
            await admit(admission, token(number))
            # Whoever names an unknown key waits for the issuer's answer.
            await refusal(admission, issuer.token(OTHER, kid="other"))
        clock.seconds = MAX_STALE_SECONDS + RETRY_SECONDS
        late = await refusal(admission, token(9))
        issuer.site.pages.update(pages)
        clock.seconds += RETRY_SECONDS
        back = await admit(admission, token(10))

    assert (late, back.caller.subject) == ("unavailable", "alice")
    assert issuer.fetches == 3
    words = [record.message for record in caplog.records if "cannot be fetched" in record.message]
    assert len(words) == 1 and "the previous keys stay in use" in words[0]
    assert "can be fetched again" in caplog.text


async def test_an_issuer_that_is_away_at_the_start_is_asked_again_later(clock: Clock) -> None:
    with issuing() as issuer:
        pages = dict(issuer.site.pages)
        issuer.site.pages.clear()
        async with admitting(issuer, clock) as admission:
            assert await refusal(admission, issuer.token()) == "unavailable"
            issuer.site.pages.update(pages)
            assert await refusal(admission, issuer.token()) == "unavailable"
            clock.seconds += RETRY_SECONDS

            assert (await admit(admission, issuer.token())).caller.subject == "alice"


async def test_a_failure_inside_comes_out_as_it_is(issuer: Issuer, clock: Clock) -> None:
    with pytest.raises(NotFoundError):
        async with admitting(issuer, clock):
            raise NotFoundError("gone", uri="skill://gone")


async def test_a_slow_issuer_holds_nobody_up_whose_key_is_known(issuer: Issuer, clock: Clock) -> None:
    oidc = Oidc(issuer.url, AUDIENCE)
    with anyio.fail_after(20):
        async with SignedTokens(oidc, now=clock.now, ticks=clock.ticks, seconds=1.5) as signed:
            await signed.caller(issuer.token())
            issuer.site.pages[KEYS] = Page(write=slowly)
            clock.seconds += 3600
            started = time.monotonic()
            known = await signed.caller(issuer.token(exp=NOW + DAY))
            took = time.monotonic() - started
            with pytest.raises(CredentialError) as caught:
                await signed.caller(issuer.token(OTHER, kid="other", exp=NOW + DAY))

    assert (known.subject, caught.value.reason) == ("alice", "key")
    assert took < 2.5, "it takes three seconds to give the issuer up"


@pytest.mark.parametrize(
    "keys",
    [
        Page(b"<html>"),
        Page(b"[]"),
        Page(b'{"keys": []}'),
        Page(b'{"keys": [{"kty": "oct", "k": "AAAA"}, null, 7]}'),
        Page(b'{"keys": [' + b"1," * 200 + b"1]}"),
        Page(b" " * (MAX_BYTES + 1)),
        Page(write=endless),
        Page(write=slowly),
        Page(b"no", 500),
        Page(status=302, headers={"Location": "http://localhost:9/keys"}),
        Page(status=302, headers={"Location": "file:///etc/passwd"}),
        Page(status=302, headers={"Location": KEYS}),
    ],
    ids=lambda page: f"{page.status} {page.body[:20]!r} {page.write and page.write.__name__} {page.headers}",
)
@pytest.mark.requirement("SEC-14")
async def test_an_issuer_that_shows_no_usable_keys_is_as_good_as_away(
    issuer: Issuer, clock: Clock, keys: Page
) -> None:
    issuer.site.pages[KEYS] = keys
    with anyio.fail_after(20):
        async with SignedTokens(
            Oidc(issuer.url, AUDIENCE), now=clock.now, ticks=clock.ticks, seconds=0.5
        ) as signed:
            with pytest.raises(CredentialError) as caught:
                await signed.caller(issuer.token())

    assert caught.value.reason == "unavailable"


async def test_garbage_beside_a_good_key_does_no_harm(issuer: Issuer, clock: Clock) -> None:
    issuer.publish(None, "x", {"kty": "EC", "kid": "ec"}, {"kty": []}, ec=EC)
    async with admitting(issuer, clock) as admission:
        assert (await admit(admission, issuer.token())).caller.subject == "alice"


@pytest.mark.requirement("SEC-14")
async def test_no_redirect_leads_to_another_host(issuer: Issuer, clock: Clock) -> None:
    with web_site() as elsewhere:
        elsewhere.pages[KEYS] = issuer.site.pages[KEYS]
        issuer.site.redirect(KEYS, f"{elsewhere.url}{KEYS}")
        async with admitting(issuer, clock) as admission:
            assert await refusal(admission, issuer.token()) == "unavailable"
        assert elsewhere.asked == []


async def test_a_redirect_on_the_same_host_is_followed(issuer: Issuer, clock: Clock) -> None:
    issuer.site.pages["/moved"] = issuer.site.pages[KEYS]
    issuer.site.redirect(KEYS, "/moved")
    async with admitting(issuer, clock) as admission:
        assert (await admit(admission, issuer.token())).caller.subject == "alice"


@pytest.mark.parametrize(
    "said",
    [
        b"{}",
        b'{"issuer": "https://other.example", "jwks_uri": "x"}',
        b"nonsense",
        b'{"issuer": "ISSUER"}',
        b'{"issuer": "ISSUER", "jwks_uri": "http://[::1"}',
        b'{"issuer": "ISSUER", "jwks_uri": "http://keys.example/"}',
        b'{"issuer": "ISSUER", "jwks_uri": 7}',
    ],
)
async def test_an_issuer_that_calls_itself_otherwise_or_says_nothing_is_not_believed(
    issuer: Issuer, clock: Clock, said: bytes
) -> None:
    issuer.site.put(DISCOVERY, said.replace(b"ISSUER", issuer.url.encode()))
    async with admitting(issuer, clock) as admission:
        assert await refusal(admission, issuer.token()) == "unavailable"
    assert issuer.fetches == 0


async def test_an_issuer_may_say_where_its_keys_are_as_oauth_servers_do(issuer: Issuer, clock: Clock) -> None:
    del issuer.site.pages[DISCOVERY]
    issuer.url = f"{issuer.site.url}/realms/acme"
    issuer.describe(
        "/.well-known/oauth-authorization-server/realms/acme", jwks_uri=f"{issuer.site.url}{KEYS}"
    )
    async with admitting(issuer, clock) as admission:
        assert (await admit(admission, issuer.token())).caller.issuer == issuer.url


async def test_where_the_operator_says_where_the_keys_are_nothing_else_is_asked(
    issuer: Issuer, clock: Clock
) -> None:
    async with admitting(issuer, clock, jwks_url=f"{issuer.url}{KEYS}") as admission:
        await admit(admission, issuer.token())

    assert issuer.site.paths == [KEYS]


@pytest.mark.requirement("SEC-14")
async def test_a_token_that_was_believed_is_remembered_for_a_minute_and_never_beyond_its_end(
    issuer: Issuer, clock: Clock
) -> None:
    long, short = (f"Bearer {issuer.token(exp=NOW + seconds)}".encode() for seconds in (600, -50))
    async with admitting(issuer, clock) as admission:
        admitted = await admission.admit(long)
        await admission.admit(short)
        clock.seconds += 5
        assert admission.cached_result(long) is admitted
        assert admission.cached_result(short) is not None
        clock.seconds += 5
        assert admission.cached_result(short) is None
        clock.seconds += 50

        assert admission.cached_result(long) is None
        assert await admission.admit(long) == admitted


@pytest.mark.requirement("SEC-14")
async def test_tokens_of_our_own_and_of_an_issuer_are_taken_side_by_side(
    issuer: Issuer, clock: Clock, tmp_path: Path
) -> None:
    secret, path = new_secret("ci"), tmp_path / "tokens"
    path.write_text(Token("ci", digest_of(secret)).line)
    path.chmod(0o600)
    async with admitting(issuer, clock, tokens=path) as admission:
        assert (await admit(admission, secret)).caller.name == "ci"
        assert (await admit(admission, issuer.token())).caller.subject == "alice"
        assert await refusal(admission, new_secret("ci")) == "unknown"
        assert await refusal(admission, "nonsense-nonsense-nonsense") == "malformed"


async def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await anyio.sleep(0.01)
    raise AssertionError("it does not come about")
