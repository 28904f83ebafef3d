"""The states of skills and servers, as text and as JSON, shared by all commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from skillwire.cli.command import Output, Part, plural
from skillwire.core import (
    UNKNOWN_SIZE,
    Coverage,
    Manifest,
    archive_line,
    files_with_digests,
    is_script,
    needs_in,
    packed_skill_file,
)
from skillwire.host import (
    Approval,
    ApprovalState,
    KnownSkill,
    Refusal,
    ServerConfig,
    ServerStatus,
    ShowRule,
    StdioEndpoint,
    Trust,
    binding_of,
    requested_tools,
    uses_older_dialect,
)

if TYPE_CHECKING:
    from skillwire.host import Host


STATE_WORDS: Final[dict[ApprovalState, tuple[str, str]]] = {
    ApprovalState.LOCAL: ("local", "green"),
    ApprovalState.LOCKED: ("pinned in the lock", "green"),
    ApprovalState.APPROVED: ("approved", "green"),
    ApprovalState.ONCE: ("approved for now", "green"),
    ApprovalState.CHANGED: ("changed since approval", "bold yellow"),
    ApprovalState.NEW: ("not approved", "yellow"),
    ApprovalState.DYNAMIC: ("dynamic", "magenta"),
}
_SHOW_RULE_TEXTS: Final = {
    ShowRule.PIN: "pinned in listings",
    ShowRule.NAME_ONLY: "name only",
    ShowRule.MANUAL: "manual",
}
_MOST_CANDIDATES: Final = 4
_TRUSTS: Final = {Trust.APPROVED: "approved skills only", Trust.NEVER: "its skills are never loaded"}


def state_of(host: Host, skill: KnownSkill) -> Part:
    """Return the state of a skill and its style: the approval first, then settings and server."""
    rule = host.show_rule(skill)
    if rule is ShowRule.OFF:
        return "off", "dim"
    words, style = STATE_WORDS[host.approval_state(skill)]
    if skill.offline_since is not None:
        words, style = f"offline, {words} {skill.offline_since}", "cyan"
    more = [_SHOW_RULE_TEXTS[rule]] if rule in _SHOW_RULE_TEXTS else []
    if not skill.is_listed and skill.offline_since is None:
        more.append("not listed")
    if uses_older_dialect(skill):
        more.append(f"dialect {skill.dialect}")
    return ", ".join([words, *more]), style


def common_json(host: Host, skill: KnownSkill) -> dict[str, object]:
    """Return the members that every JSON document with a skill has."""
    origin = skill.id.origin
    return {
        "reference": skill.reference,
        "name": skill.name,
        "origin": {"kind": origin.kind.value, "label": origin.label, "fingerprint": origin.fingerprint},
        "uri": skill.id.uri,
        "dialect": None if skill.offline_since is not None else skill.dialect.value,
        "covers": None if skill.entry.coverage is None else skill.entry.coverage.value,
        "description": skill.description,
        "standing": host.approval_state(skill).value,
        "attention": host.show_rule(skill).value,
        "listed": skill.is_listed or not skill.is_remote,
        "offlineSince": skill.offline_since,
        "directory": None if skill.directory is None else str(skill.directory),
    }


def place_of(server: ServerConfig) -> str:
    """Return a server's URL or program, without anything that may be a secret."""
    endpoint = server.endpoint
    if isinstance(endpoint, StdioEndpoint):
        return f"{endpoint.command} …" if endpoint.args else endpoint.command
    return endpoint.shown


def is_used(server: ServerConfig) -> bool:
    return server.is_enabled and server.skills.is_on


def server_state(server: ServerConfig, status: ServerStatus | None) -> str:
    """Return the state of a server in one word, as it is in the JSON."""
    if not is_used(server):
        return "off"
    state = "waiting" if status is None else status.state
    return "connected" if state in ("listed", "stale") else state


def server_words(server: ServerConfig, status: ServerStatus | None) -> Part:
    """Return the state of a server for people, and its style."""
    state = server_state(server, status)
    if state == "off":
        return "turned off in the configuration", "dim"
    if status is None or state == "waiting":
        return "no answer yet; allow more time with --wait", "yellow"
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
    """Return in one clause what went wrong."""
    return "" if refusal is None else (refusal.detail or refusal.sentence).rstrip(".")


def print_refusal(output: Output, refusal: Refusal, *, indent: int = 2) -> None:
    """Print a refusal to standard error: its code, its subject, and its remedy."""
    about = f"{refusal.subject}: " if refusal.subject else ""
    output.message(
        (refusal.code, "yellow"), f"  {about}{reason_of(refusal) or refusal.sentence}", indent=indent, hang=4
    )
    if output.verbose and refusal.detail:
        output.message(f"{refusal.sentence} [{refusal.requirement}]", indent=indent + 2, hang=2)
    output.message(("fix:", "bold"), f" {refusal.remedy}", indent=indent + 2, hang=2)


def print_notice(output: Output, notice: Refusal, *, indent: int = 2) -> None:
    """Print a notice about skills that are used."""
    names = ", ".join(notice.candidates[:_MOST_CANDIDATES])
    more = ", …" if len(notice.candidates) > _MOST_CANDIDATES else ""
    found = f" ({names}{more})" if names else ""
    output.message(
        (notice.code, "cyan"), f"  {notice.subject}: {notice.sentence}{found}", indent=indent, hang=4
    )
    output.message(("fix:", "bold"), f" {notice.remedy}", indent=indent + 2, hang=2)


def approvals_of(host: Host, skill: KnownSkill) -> list[tuple[str, Approval]]:
    """Return the approvals of a skill, each with where it is stored: `machine` or `lock`."""
    kept = [("machine", approval) for approval in host.approvals if not host.lock.is_frozen]
    kept += [("lock", approval) for approval in host.lock.approvals]
    return [(place, approval) for place, approval in kept if approval.skill == skill.id]


def skill_json(host: Host, skill: KnownSkill) -> dict[str, object]:
    """Return everything known about a skill as JSON, for several commands."""
    manifest, files = skill.entry.manifest, files_with_digests(skill.entry)
    is_whole = skill.entry.files is not None and UNKNOWN_SIZE not in skill.entry.files.sizes
    return {
        **common_json(host, skill),
        "binding": None if manifest is None else binding_of(manifest),
        "approvals": [
            _approval_json(place, approval, skill) for place, approval in approvals_of(host, skill)
        ],
        "frontmatter": dict(skill.entry.frontmatter.fields),
        "requestedTools": requested_tools(skill),
        "needs": _needs_json(skill),
        "archive": _archive_json(skill),
        "files": None if files is None else [*_files_json(skill, files)],
        "totalSize": files.total_size if files is not None and is_whole else None,
        "findings": [finding.to_json() for finding in skill.findings],
    }


def _approval_json(place: str, approval: Approval, skill: KnownSkill) -> dict[str, object]:
    return {
        "place": place,
        "grants": sorted(approval.grants),
        "approvedAt": approval.granted_at.isoformat(),
        "approvedBy": approval.granted_by,
        "binding": binding_of(approval.manifest),
        "current": approval.is_for(skill.entry),
    }


def _needs_json(skill: KnownSkill) -> dict[str, object]:
    needs = needs_in(skill.entry.frontmatter)
    return {
        "dependencies": [dependency.to_json() for dependency in needs.dependencies],
        "scopes": [scope.to_json() for scope in needs.scopes],
    }


def _archive_json(skill: KnownSkill) -> dict[str, object] | None:
    manifest = skill.entry.manifest
    if manifest is None or manifest.coverage is not Coverage.ARCHIVE:
        return None
    line = archive_line(manifest, skill.id.uri)
    inside = packed_skill_file(manifest, skill.id.uri)
    return {
        "uri": line.uri,
        "digest": line.digest,
        "size": line.known_size,
        "skillFileDigest": None if inside is None else inside.digest,
    }


def _files_json(skill: KnownSkill, manifest: Manifest) -> Iterator[dict[str, object]]:
    for file in manifest.files:
        path = skill.entry.uri.relative_path(file.uri)
        yield {
            "path": path,
            "uri": file.uri,
            "size": file.known_size,
            "digest": file.digest,
            "script": is_script(path),
        }


def listed_skill_json(host: Host, skill: KnownSkill) -> dict[str, object]:
    """Return what listings show of a skill, as JSON."""
    files = skill.entry.files
    is_sized = files is not None and UNKNOWN_SIZE not in files.sizes
    return {
        **common_json(host, skill),
        "files": None if files is None else len(files),
        "size": files.total_size if files is not None and is_sized else None,
    }


def print_nothing_configured(output: Output) -> None:
    """Print that there is neither a server nor a local skill, and the remedy."""
    output.message("no servers are configured here, and there are no local skills")
    output.message(
        ("fix:", "bold"),
        " run `skillwire add LABEL URL`, name a target, or put skills into ~/.agents/skills",
    )
