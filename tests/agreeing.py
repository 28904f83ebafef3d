"""A user who has already agreed to a folder's configuration, so that commands use it unasked."""

from pathlib import Path

from skillwire.core.manifest import digest_of
from skillwire.host.state.trust import FileTrust


def agree_to(config: Path, home: Path) -> None:
    """Remember, for the user whose home this is, the very bytes that a configuration has now."""
    FileTrust(home / ".local" / "state" / "skillwire").trust(config, digest_of(config.read_bytes()))
