"""Where tokens are kept: one file for each origin, replaced in one step, and believed only if it is ours."""

import stat
import time
from pathlib import Path

import anyio
import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl

from commands import names_in
from skillwire.host.connect.oauth import FileTokenStorage
from skillwire.host.model.endpoints import HttpEndpoint
from skillwire.host.model.origin import Origin, OriginKind

pytestmark = pytest.mark.anyio

TOKENS = OAuthToken(access_token="s3cret", refresh_token="s3cret-too", expires_in=60)
CLIENT = OAuthClientInformationFull(client_id="me", redirect_uris=[AnyUrl("http://127.0.0.1:1/callback")])


def origin(url: str = "https://example.org/mcp", label: str = "a") -> Origin:
    return Origin(OriginKind.SERVER, label, HttpEndpoint(url).fingerprint)


def only_file(folder: Path) -> Path:
    (name,) = names_in(folder)
    return folder / name


async def test_what_was_kept_is_there_for_the_next_start(tmp_path: Path) -> None:
    storage = FileTokenStorage(tmp_path / "new" / "tokens", origin())
    assert await storage.get_tokens() is None

    await storage.set_client_info(CLIENT, port=1234)
    await storage.set_tokens(TOKENS)

    again = FileTokenStorage(tmp_path / "new" / "tokens", origin())
    assert await again.get_tokens() == TOKENS
    assert await again.get_client_info() == CLIENT
    kept = await again.load()
    assert kept.port == 1234
    assert kept.expires_at is not None and 0 < kept.expires_at - time.time() <= 60


@pytest.mark.requirement("APPR-01")
async def test_a_label_given_to_another_endpoint_finds_no_tokens(tmp_path: Path) -> None:
    await FileTokenStorage(tmp_path, origin()).set_tokens(TOKENS)

    assert await FileTokenStorage(tmp_path, origin("https://example.com/mcp")).get_tokens() is None


async def test_the_file_is_private_and_nothing_else_is_left(tmp_path: Path) -> None:
    storage = FileTokenStorage(tmp_path / "tokens", origin())

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(storage.set_tokens, TOKENS)

    file = only_file(tmp_path / "tokens")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_file_that_others_could_write_is_not_believed(tmp_path: Path) -> None:
    storage = FileTokenStorage(tmp_path, origin())
    await storage.set_tokens(TOKENS)
    file = only_file(tmp_path)

    file.chmod(0o620)

    assert await storage.get_tokens() is None


async def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    storage = FileTokenStorage(tmp_path / "tokens", origin())
    await storage.set_tokens(TOKENS)
    file = only_file(tmp_path / "tokens")
    victim = file.rename(tmp_path / "victim")
    file.symlink_to(victim)
    before = victim.read_bytes()

    assert await storage.get_tokens() is None
    await storage.set_tokens(TOKENS)

    assert victim.read_bytes() == before
    assert not file.is_symlink()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"tokens": 1}', b'{"format": 2}', b"x" * 300_000])
async def test_a_file_that_makes_no_sense_holds_nothing_and_is_not_quoted(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    storage = FileTokenStorage(tmp_path, origin())
    await storage.set_tokens(TOKENS)
    file = only_file(tmp_path)
    file.write_bytes(content)

    assert await storage.get_tokens() is None
    assert "s3cret" not in caplog.text

    await storage.set_tokens(TOKENS)
    assert await storage.get_tokens() == TOKENS


async def test_a_file_that_cannot_be_written_keeps_what_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileTokenStorage(tmp_path, origin())
    await storage.set_tokens(TOKENS)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError):
        await storage.set_tokens(OAuthToken(access_token="other"))

    assert await storage.get_tokens() == TOKENS
    assert only_file(tmp_path).is_file()


async def test_forgetting_removes_the_file(tmp_path: Path) -> None:
    storage = FileTokenStorage(tmp_path, origin())
    await storage.set_tokens(TOKENS)

    await storage.forget()
    await storage.forget()

    assert names_in(tmp_path) == []
