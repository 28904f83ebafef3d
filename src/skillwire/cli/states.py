"""How skills and servers stand, in words and colours that all commands share."""

from typing import Final

from skillwire.cli.answer import Answer, Part, plural
from skillwire.host import Host, KnownSkill, Refusal, ServerConfig, ServerStatus, StdioEndpoint
from skillwire.host.approval.approvals import Standing
from skillwire.host.asking import is_older
from skillwire.host.attention import Attention, Trust

STANDINGS: Final[dict[Standing, tuple[str, str]]] = {
    Standing.LOCAL: ("local", "green"),
    Standing.LOCKED: ("pinned in the lock", "green"),
    Standing.APPROVED: ("approved", "green"),
    Standing.ONCE: ("approved for now", "green"),
    Standing.CHANGED: ("changed since approval", "bold yellow"),
    Standing.NEW: ("not approved", "yellow"),
    Standing.DYNAMIC: ("dynamic", "magenta"),
}
_ATTENTIONS: Final = {
    Attention.PIN: "pinned in listings",
    Attention.NAME_ONLY: "name only",
    Attention.MANUAL: "manual",
}
_MOST_CANDIDATES: Final = 4
_TRUSTS: Final = {Trust.APPROVED: "approved skills only", Trust.NEVER: "its skills are never loaded"}


def state_of(host: Host, skill: KnownSkill) -> Part:
    """Say how a skill stands: the user's word first, then what the settings and the server add."""
    attention = host.attention(skill)
    if attention is Attention.OFF:
        return "off", "dim"
    words, style = STANDINGS[host.standing(skill)]
    if skill.offline_since is not None:
        words, style = f"offline, {words} {skill.offline_since}", "cyan"
    more = [_ATTENTIONS[attention]] if attention in _ATTENTIONS else []
    if not skill.is_listed and skill.offline_since is None:
        more.append("not listed")
    if is_older(skill):
        more.append(f"dialect {skill.dialect}")
    return ", ".join([words, *more]), style


def common_json(host: Host, skill: KnownSkill) -> dict[str, object]:
    """Return what every document that has a skill says of it, in the same words."""
    origin = skill.id.origin
    return {
        "reference": skill.reference,
        "name": skill.name,
        "origin": {"kind": origin.kind.value, "label": origin.label, "fingerprint": origin.fingerprint},
        "uri": skill.id.uri,
        "dialect": None if skill.offline_since is not None else skill.dialect.value,
        "covers": None if skill.entry.coverage is None else skill.entry.coverage.value,
        "description": skill.description,
        "standing": host.standing(skill).value,
        "attention": host.attention(skill).value,
        "listed": skill.is_listed or not skill.is_remote,
        "offlineSince": skill.offline_since,
        "directory": None if skill.directory is None else str(skill.directory),
    }


def place_of(server: ServerConfig) -> str:
    """Say where a server is, without anything that may be a secret: a URL's host and path, or a program."""
    endpoint = server.endpoint
    if isinstance(endpoint, StdioEndpoint):
        return f"{endpoint.command} …" if endpoint.args else endpoint.command
    return endpoint.shown


def is_used(server: ServerConfig) -> bool:
    return server.is_enabled and server.skills.is_on


def server_state(server: ServerConfig, status: ServerStatus | None) -> str:
    """Return one word for how things stand with a server; the word is part of the JSON."""
    if not is_used(server):
        return "off"
    state = "waiting" if status is None else status.state
    return "connected" if state in ("listed", "stale") else state


def server_words(server: ServerConfig, status: ServerStatus | None) -> Part:
    """Say how things stand with a server."""
    state = server_state(server, status)
    if state == "off":
        return "turned off in the configuration", "dim"
    if status is None or state == "waiting":
        return "no answer yet; give it more time with --wait", "yellow"
    if state == "failed":
        return f"failed: {reason_of(status.problem)}", "red"
    if state == "no-skills":
        return "connected, serves no skills", "dim"
    words = [f"connected, {plural(status.listed, 'skill')}"]
    if status.refused:
        words.append(f"{status.refused:,} refused")
    if status.problem is not None:
        words.append(f"incomplete: {reason_of(status.problem)}")
    if server.skills.trust in _TRUSTS:
        words.append(_TRUSTS[server.skills.trust])
    return ", ".join(words), "yellow" if status.problem else "green"


def reason_of(refusal: Refusal | None) -> str:
    """Say in one clause what went wrong."""
    return "" if refusal is None else (refusal.detail or refusal.sentence).rstrip(".")


def print_refusal(answer: Answer, refusal: Refusal, *, indent: int = 2) -> None:
    """Print a refusal as words about the answer: its code, what it is about, and what to do."""
    about = f"{refusal.subject}: " if refusal.subject else ""
    answer.word(
        (refusal.code, "yellow"), f"  {about}{reason_of(refusal) or refusal.sentence}", indent=indent, hang=4
    )
    if answer.verbose and refusal.detail:
        answer.word(f"{refusal.sentence} [{refusal.requirement}]", indent=indent + 2, hang=2)
    answer.word(("fix:", "bold"), f" {refusal.remedy}", indent=indent + 2, hang=2)


def print_notice(answer: Answer, notice: Refusal, *, indent: int = 2) -> None:
    """Print what is good to know about skills that are used."""
    names = ", ".join(notice.candidates[:_MOST_CANDIDATES])
    more = ", …" if len(notice.candidates) > _MOST_CANDIDATES else ""
    found = f" ({names}{more})" if names else ""
    answer.word((notice.code, "cyan"), f"  {notice.subject}: {notice.sentence}{found}", indent=indent, hang=4)
    answer.word(("fix:", "bold"), f" {notice.remedy}", indent=indent + 2, hang=2)
