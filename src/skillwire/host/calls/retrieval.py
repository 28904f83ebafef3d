"""`skills/get`: the entry of one skill, listed or not."""

from collections.abc import Callable

from mcp.client import Client

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry, check_entry
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri
from skillwire.errors import InvalidEntryError
from skillwire.host.calls.declaration import require_skills
from skillwire.host.calls.enumeration import shortened
from skillwire.host.calls.exchange import (
    DEFAULT_SECONDS,
    GetSkillRequest,
    UriParams,
    ask,
    looking_for,
    within,
)
from skillwire.host.failures import InvalidAnswerError
from skillwire.wire.core import GET_SKILL


async def get_skill(
    client: Client,
    uri: SkillUri | str,
    *,
    max_seconds: float | None = DEFAULT_SECONDS,
    check: Callable[[object], tuple[SkillEntry | None, list[Finding]]] = check_entry,
) -> SkillEntry:
    """Ask a server for the current entry of the skill at `uri`, the URI of a `SKILL.md`.

    The URI goes out as it is spelled: some servers know a skill by one
    spelling only. The answer may spell it otherwise, but must mean the same.
    `check` is for a server that keeps to other rules than the released ones.

    Raises:
        InvalidUriError: No skill may have this URI; nothing was sent.
        NotDeclaredError: The server has not declared the extension; nothing was sent.
        NotFoundError: The server does not serve such a skill.
        InvalidEntryError: The entry breaks the extension's rules.
        InvalidAnswerError: The answer holds another skill, or none.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    wanted = uri if isinstance(uri, SkillUri) else SkillUri.parse(uri)
    require_skills(client, GET_SKILL)
    request = GetSkillRequest(params=UriParams(uri=wanted.published))
    with within(max_seconds, GET_SKILL), looking_for(wanted.published):
        answer = await ask(client, request)
    if "skill" not in answer:
        raise InvalidAnswerError(f"the server's answer to {GET_SKILL} has no `skill`")
    entry = _checked(*check(answer["skill"]))
    if entry.uri != wanted:
        raise InvalidAnswerError(
            f"the server was asked for {quoted(wanted.text)} and returned {quoted(entry.uri.text)}",
            violates="GET-06",
        )
    return entry


def _checked(entry: SkillEntry | None, findings: list[Finding]) -> SkillEntry:
    """Return a stranger's entry, or say in few words what is wrong with it."""
    errors = [finding for finding in findings if finding.is_error]
    if entry is None or errors:
        raise InvalidEntryError("; ".join(finding.message for finding in shortened(errors)))
    return entry
