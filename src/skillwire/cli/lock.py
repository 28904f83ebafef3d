"""`skillwire lock`: show, trust or write the project's lock, or compare it with the servers."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

import skillwire.host
from skillwire.cli.command import (
    STYLES,
    Json,
    MisuseError,
    Output,
    Verbose,
    command_output,
    new_app,
    plural,
    progress,
)
from skillwire.cli.common import ExitCode
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    LOCK_NAME,
    Archives,
    At,
    Config,
    HostRequest,
    Lock,
    Wait,
    resolve_targets,
    run_with_host,
)
from skillwire.cli.prompt import NO, YES, TerminalAsk, print_lines
from skillwire.core import (
    InvalidUriError,
    NotFoundError,
    SkillError,
    SkillUri,
    coverage_words,
    digest_of,
    is_digest,
    is_script,
)
from skillwire.host import (
    Approval,
    ApprovalDeniedError,
    ApprovalRequiredError,
    Change,
    InvalidLockError,
    KnownSkill,
    LockDifference,
    LockReview,
    LockState,
    LockUntrustedError,
    Origin,
    Paragraph,
    Refusal,
    ServerStatus,
    ShowRule,
    SkillId,
    binding_of,
    full_reference,
    lines_of,
    one_line,
)

if TYPE_CHECKING:
    from skillwire.host import Host


_PAUSES: Final = (0.5, 1.0, 2.0, 4.0)


class PinState(StrEnum):
    """How a skill relates to the lock."""

    SAME = "same"
    """It is pinned, and its server sends exactly that."""
    DIFFERENT = "different"
    """It is pinned, and its server sends something else, or its label has another endpoint."""
    MISSING = "missing"
    """It is pinned, and its server does not serve it."""
    UNREACHABLE = "unreachable"
    """It is pinned, and its server does not answer."""
    NOT_IN_LOCK = "not-in-lock"
    """A server lists it, and it is not pinned."""


@dataclass(frozen=True, slots=True)
class PinCheck:
    """The result for one skill: its state, the reason, and which of its files differ."""

    reference: str
    skill: SkillId
    state: PinState
    refusal: Refusal | None = None
    change: Change | None = None

    def to_json(self) -> dict[str, object]:
        change = self.change
        files = None
        if change is not None:
            files = {
                "added": list(change.added),
                "removed": list(change.removed),
                "modified": list(change.modified),
            }
        return {
            "reference": self.reference,
            "label": self.skill.origin.label,
            "uri": self.skill.uri,
            "state": self.state.value,
            "files": files,
            "refusal": None if self.refusal is None else self.refusal.to_json(),
        }


async def retry_servers(host: Host, seconds: float) -> None:
    """Retry servers that did not answer, for at most `seconds` altogether.

    A check must not fail because a server is still starting.
    """
    with anyio.move_on_after(seconds):
        for pause in _PAUSES:
            away = [status.origin.label for status in host.view.servers if _is_unavailable(status)]
            if not away:
                return
            await anyio.sleep(pause)
            await host.refresh(away, by_user=True, wait_seconds=seconds)


async def check_lock(host: Host) -> list[PinCheck]:
    """Compare the lock of a host with its servers: its pins in order, then the skills that are not in it."""
    known = {skill.id: skill for skill in host.view.skills if skill.is_remote}
    pins = host.lock.approvals
    found = [await _check_pin(host, approval, known) for approval in pins]
    pinned = {approval.skill for approval in pins}
    found += [
        PinCheck(skill.reference, skill.id, PinState.NOT_IN_LOCK, _not_in_lock(skill.reference))
        for skill in known.values()
        if skill.id not in pinned and host.show_rule(skill) is not ShowRule.OFF
    ]
    return found


async def _check_pin(host: Host, approval: Approval, known: Mapping[SkillId, KnownSkill]) -> PinCheck:
    pin = approval.skill
    label, reference = pin.origin.label, full_reference(pin.origin.label, pin.uri)
    status = next((server for server in host.view.servers if server.origin.label == label), None)
    if status is None:
        return PinCheck(reference, pin, PinState.UNREACHABLE, await _why_no_server(host, label))
    if status.origin != pin.origin:
        refusal = _not_in_lock(reference, "the label has another endpoint than the pinned one")
        return PinCheck(reference, pin, PinState.DIFFERENT, refusal)
    skill = known.get(pin)
    if skill is None:
        if _is_unavailable(status):
            return PinCheck(reference, pin, PinState.UNREACHABLE, _problem(status))
        try:
            skill = await host.find(reference)
        except NotFoundError as error:
            return PinCheck(reference, pin, PinState.MISSING, Refusal.of(error, reference))
        except SkillError as error:
            return PinCheck(reference, pin, PinState.UNREACHABLE, Refusal.of(error, reference))
    if skill.offline_since is not None:
        return PinCheck(skill.reference, pin, PinState.UNREACHABLE, _problem(status))
    if approval.is_for(skill.entry):
        return PinCheck(skill.reference, pin, PinState.SAME)
    manifest = skill.entry.manifest
    detail = "it no longer has digests" if manifest is None else ""
    if manifest is not None and manifest.coverage is not approval.manifest.coverage:
        detail = f"now {coverage_words(manifest, pin.uri)}"
    change = None if manifest is None else Change.between(approval.manifest, manifest)
    return PinCheck(skill.reference, pin, PinState.DIFFERENT, _not_in_lock(skill.reference, detail), change)


async def _why_no_server(host: Host, label: str) -> Refusal:
    """Return why a pin's server is not available: turned off, misconfigured, or not configured."""
    chain = await host.explain(label)
    refusals = [step.refusal for step in chain.steps if not step.ok and step.refusal is not None]
    if chain.kind == "server" and refusals:
        return refusals[0]
    fix = "configure the server, or write the lock again without its skills"
    return Refusal("unknown-reference", label, "no server with this label is configured", fix=fix)


def unanswered_servers(host: Host) -> list[Refusal]:
    """Return why each server that did not answer did not; its skills are not known."""
    return [_problem(status) for status in host.view.servers if _is_unavailable(status)]


def _is_unavailable(status: ServerStatus) -> bool:
    return status.state in ("failed", "waiting")


def _problem(status: ServerStatus) -> Refusal:
    return status.problem or Refusal("too-slow", status.origin.label, "it has not answered yet")


def _not_in_lock(reference: str, detail: str = "") -> Refusal:
    return Refusal("not-in-lock", reference, detail)


# A lock and its differences from another one, as text and as JSON.


STATES: Final = {
    LockState.TRUSTED: ("trusted", "green"),
    LockState.CHANGED: ("changed outside skillwire, so it is not used", "bold red"),
    LockState.NEW: ("never trusted on this machine, so it is not used", "bold red"),
    LockState.ABSENT: ("does not exist", "yellow"),
}
MOST_PINS: Final = 50
MOST_FILES: Final = 20


def unsaved_difference(host: Host, origins: Sequence[Origin]) -> LockDifference:
    """Return what writing the lock would change for these servers."""
    pins = {approval.skill: approval for approval in host.lock.approvals}
    new = [approval for approval in host.approvals if approval.skill.origin in origins]
    added = tuple(approval for approval in new if approval.skill not in pins)
    both = [(pins[approval.skill], approval) for approval in new if approval.skill in pins]
    return LockDifference(added, (), tuple(pair for pair in both if not _is_alike(*pair)))


def _is_alike(one: Approval, other: Approval) -> bool:
    return one.grants == other.grants and binding_of(one.manifest) == binding_of(other.manifest)


def pin_words(skill: SkillId) -> str:
    return one_line(f"{skill.origin.label}  {skill.uri}")


def difference_paragraphs(difference: LockDifference, heading: str) -> list[Paragraph]:
    """Return the pins that were added, removed or changed, with every line escaped."""
    if difference.is_empty:
        return [Paragraph(f"{heading}: no skill")]
    found = [Paragraph(heading)]
    found += _pins("added", difference.added)
    found += _pins("removed", difference.removed)
    for before, after in difference.changed[:MOST_PINS]:
        lines = (pin_words(after.skill), *_changes(before, after))
        found.append(Paragraph("changed", lines, is_untrusted=True, is_warning=True))
    rest = len(difference.changed) - MOST_PINS
    return [*found, Paragraph(f"and {rest:,} more that changed", is_warning=True)] if rest > 0 else found


def _pins(word: str, approvals: Sequence[Approval]) -> Iterator[Paragraph]:
    # Pins with more grants or with scripts come first, so that a long list cannot hide them.
    ordered = sorted(approvals, key=lambda approval: (-len(approval.grants), not _scripts(approval)))
    for approval in ordered[:MOST_PINS]:
        scripts = _scripts(approval)
        lines = [
            pin_words(approval.skill),
            f"grants: {', '.join(sorted(approval.grants))}; {_covers(approval)}",
        ]
        lines += [one_line(f"scripts: {', '.join(scripts[:MOST_FILES])}")] if scripts else []
        yield Paragraph(
            word, tuple(lines), is_untrusted=True, is_warning=bool(scripts) or len(approval.grants) > 1
        )
    if len(approvals) > MOST_PINS:
        yield Paragraph(f"and {len(approvals) - MOST_PINS:,} more that were {word}", is_warning=True)


def _changes(before: Approval, after: Approval) -> Iterator[str]:
    if before.grants != after.grants:
        yield f"grants: {', '.join(sorted(before.grants))} to {', '.join(sorted(after.grants))}"
    if before.manifest.coverage is not after.manifest.coverage:
        yield f"before: {_covers(before)}"
        yield f"now: {_covers(after)}"
    change = Change.between(before.manifest, after.manifest)
    lines = [
        (word, uri)
        for word, uris in (("added", change.added), ("removed", change.removed), ("changed", change.modified))
        for uri in uris
    ]
    for word, uri in lines[:MOST_FILES]:
        path = _path(after.skill.uri, uri)
        yield one_line(f"{word} {path}{'  (a script)' if is_script(path) else ''}")
    if len(lines) > MOST_FILES:
        yield f"and {len(lines) - MOST_FILES:,} more files"
    if change.is_empty and before.grants == after.grants:
        yield "only who approved it, or when"


def _covers(approval: Approval) -> str:
    return coverage_words(approval.manifest, approval.skill.uri)


def _scripts(approval: Approval) -> list[str]:
    paths = (_path(approval.skill.uri, uri) for uri in approval.manifest.uris)
    return [path for path in paths if is_script(path)]


def _path(skill: str, uri: str) -> str:
    try:
        return SkillUri.parse(skill).relative_path(uri)
    except InvalidUriError:
        return uri


def lock_json(path: Path, review: LockReview | None, problem: Refusal | None = None) -> dict[str, object]:
    """Return a lock as JSON; without a review it is one that cannot be read."""
    lock = None if review is None else review.lock
    ended = [] if review is None else revoked_pins(review)
    return {
        "path": str(path),
        "state": "invalid" if review is None else review.state.value,
        "digest": None if lock is None else digest_of(lock.content),
        "skills": [] if lock is None else [_pin_json(approval) for approval in lock.approvals],
        "ended": [{"label": skill.origin.label, "uri": skill.uri} for skill in ended],
        "problem": None if problem is None else problem.to_json(),
    }


def revoked_pins(review: LockReview) -> list[SkillId]:
    """Return the skills of a lock whose pins were revoked because their server sent other content."""
    approvals = review.lock.approvals if review.lock is not None else ()
    pinned = {approval.skill for approval in approvals}
    return sorted({skill for skill, _ in review.revoked} & pinned, key=_order)


def _order(skill: SkillId) -> tuple[str, str, str]:
    return skill.origin.label, skill.origin.fingerprint, skill.uri


def difference_json(difference: LockDifference) -> dict[str, object]:
    return {
        "added": [_pin_json(approval) for approval in difference.added],
        "removed": [_pin_json(approval) for approval in difference.removed],
        "changed": [
            {"before": _pin_json(before), "after": _pin_json(after)} for before, after in difference.changed
        ],
    }


def _pin_json(approval: Approval) -> dict[str, object]:
    return {
        "label": approval.skill.origin.label,
        "fingerprint": approval.skill.origin.fingerprint,
        "uri": approval.skill.uri,
        "binding": binding_of(approval.manifest),
        "covers": approval.manifest.coverage.value,
        "files": len(approval.manifest),
        "grants": sorted(approval.grants),
        "approvedAt": approval.granted_at.isoformat().replace("+00:00", "Z"),
        "approvedBy": approval.granted_by,
    }


_MOST_UNPINNED = 20
UNANSWERED: Final = "no answer"
_CHECKED = {
    PinState.SAME: ("same", "green"),
    PinState.DIFFERENT: ("different", STYLES["error"]),
    PinState.MISSING: ("missing", STYLES["error"]),
    PinState.UNREACHABLE: ("unreachable", STYLES["error"]),
    PinState.NOT_IN_LOCK: ("not in lock", STYLES["warning"]),
}

app = new_app()


@app.command()
def lock(
    write: Annotated[
        bool, typer.Option("--write", help="Write your approvals on this machine into the lock.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Show what changed since you last trusted it, and ask you to trust it."),
    ] = False,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Compare the lock, as it is, with the servers. For CI.")
    ] = False,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="With --frozen: accept skills that are not in the lock, and servers that do not answer.",
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="With --trust: do not ask. Needs --digest, to trust what was reviewed."),
    ] = False,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest",
            metavar="SHA256:…",
            help="With --trust: the digest that `skillwire lock` prints: other content is refused.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    at: At = None,
    file: Lock = None,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show, trust, write or check the project's lock.

    Without an option, shows whether the lock is trusted, what changed since
    you last trusted it, and what --write would change; no server is contacted.
    A lock that changed outside skillwire is used only after --trust. With
    --frozen, which uses the lock as it is, lists each skill in it and each
    skill of the servers that is not in it. Exits with 1 when the lock is not
    trusted, a skill is different, missing, unreachable or not in the lock, or
    a server does not answer.
    """
    with command_output("lock", json=json, verbose=verbose) as output:
        _check(write, trust, frozen, partial=partial, yes=yes, digest=digest)
        path = file or Path(LOCK_NAME)
        wanted = HostRequest(
            config=config, targets=at or (), lock=path, frozen=frozen, wait=wait, archives=archives
        )
        if frozen:
            run_with_host(output, wanted, lambda host: _frozen(output, host, path, wait, is_partial=partial))
        elif write:
            run_with_host(output, wanted, lambda host: _write(output, host, path))
        elif trust:
            _without_servers(path, lambda host: _trust(output, host, path, digest, is_sure=yes))
        else:
            _show_file(output, wanted, path)


def _check(write: bool, trust: bool, frozen: bool, *, partial: bool, yes: bool, digest: str | None) -> None:
    if write + trust + frozen > 1:
        raise MisuseError("--write, --trust and --frozen exclude each other", fix="use one of them at a time")
    if partial and not frozen:
        raise MisuseError("--partial belongs to --frozen")
    if (yes or digest is not None) and not trust:
        raise MisuseError("--yes and --digest belong to --trust")
    if yes and digest is None:
        raise MisuseError(
            "--yes needs --digest, so that exactly what was reviewed is trusted",
            fix="take `lock.digest` from `skillwire lock --json`, or leave out --yes to be asked",
        )
    if digest is not None and not is_digest(digest):
        raise MisuseError(
            "--digest is not a digest", fix="use sha256: and 64 digits, as `skillwire lock` prints it"
        )


def _without_servers(path: Path, work: Callable[[Host], Awaitable[None]]) -> None:
    """Open a host with the lock and the approvals, and without servers."""

    async def main() -> None:
        async with skillwire.host.Host(roots=(), lock=path) as host:
            await work(host)

    anyio.run(main)


def _show_file(output: Output, wanted: HostRequest, path: Path) -> None:
    origins = [server.origin for server in resolve_targets(wanted).servers]
    try:
        _without_servers(path, lambda host: _show(output, host, path, origins))
    except InvalidLockError as error:
        refusal = Refusal.of(error, path.name)
        output.code = ExitCode.NO
        if output.json:
            output.document({"action": "show", "ok": False, "lock": lock_json(path, None, refusal)})
        else:
            output.line((one_line(str(path)), "bold"), "  invalid: ", (refusal.detail, STYLES["error"]))
            output.message(("fix:", "bold"), f" {refusal.remedy}")


async def _show(output: Output, host: Host, path: Path, origins: Sequence[Origin]) -> None:
    review = _review(host)
    is_known = review.state in (LockState.TRUSTED, LockState.ABSENT)
    more = unsaved_difference(host, origins) if is_known else LockDifference()
    if review.state is not LockState.TRUSTED:
        output.code = ExitCode.NO
    if output.json:
        output.document(
            {
                "action": "show",
                "ok": review.state is LockState.TRUSTED,
                "lock": lock_json(path, review),
                "difference": difference_json(review.difference),
                "unwritten": difference_json(more),
            }
        )
        return
    _print_state(output, path, review)
    if not is_known:
        _print_difference(output, review.difference, "What changed since you last trusted it")
        output.message(
            ("fix:", "bold"), f" review the difference, then run `skillwire lock --trust{_option(path)}`"
        )
    if not more.is_empty:
        _print_difference(output, more, "What --write would change")


async def _trust(output: Output, host: Host, path: Path, digest: str | None, *, is_sure: bool) -> None:
    review = _review(host)
    if review.lock is None:
        raise InvalidLockError("there is no lock", reference=path.name, fix="write one with --write")
    content = review.lock.content
    if digest is not None and digest_of(content) != digest:
        raise LockUntrustedError(
            f"the lock does not match --digest: its digest is {digest_of(content)} now",
            reference=path.name,
            fix=f"review it again with `skillwire lock{_option(path)}`",
        )
    if review.state is not LockState.TRUSTED or review.revoked:
        if not is_sure:
            await _ask(path, review)
        await host.trust_lock(content)
    if output.json:
        output.document(
            {
                "action": "trust",
                "ok": True,
                "lock": lock_json(path, _review(host)),
                "difference": difference_json(review.difference),
            }
        )
        return
    _print_state(output, path, _review(host))


async def _ask(path: Path, review: LockReview) -> None:
    asker = TerminalAsk.find()
    if asker is None:
        raise ApprovalRequiredError(
            "the lock cannot be trusted without a terminal to ask on",
            reference=path.name,
            fix="run this on a terminal, or review it and pass --yes with --digest",
        )
    paragraphs = [
        Paragraph("You are about to trust a lock: every skill in it counts as approved.", is_warning=True),
        Paragraph("Lock", (one_line(str(path)),)),
        *difference_paragraphs(review.difference, "What changed since you last trusted it"),
    ]
    ended = [pin_words(skill) for skill in revoked_pins(review)]
    if ended:
        heading = "Pins that were revoked because their server sent other content, and would be valid again"
        paragraphs.append(Paragraph(heading, tuple(ended), is_untrusted=True, is_warning=True))
    if await asker.choose(None, paragraphs, f"Trust {one_line(path.name)}?", {NO: "no", YES: "yes"}) != YES:
        raise ApprovalDeniedError("the lock was not trusted", reference=path.name, fix="nothing was changed")


async def _write(output: Output, host: Host, path: Path) -> None:
    before = _review(host)
    await host.write_lock()
    after = _review(host)
    difference = LockDifference.between(before.lock, after.lock)
    if output.json:
        output.document(
            {
                "action": "write",
                "ok": True,
                "lock": lock_json(path, after),
                "difference": difference_json(difference),
            }
        )
        return
    _print_state(output, path, after)
    _print_difference(output, difference, "What was changed")


async def _frozen(output: Output, host: Host, path: Path, wait: float, *, is_partial: bool) -> None:
    with progress(output, "retrying servers"):
        await retry_servers(host, wait)
    found = await check_lock(host)
    unanswered = unanswered_servers(host)
    fine = {PinState.SAME, *((PinState.NOT_IN_LOCK,) if is_partial else ())}
    ok = all(checked.state in fine for checked in found) and (is_partial or not unanswered)
    if not ok:
        output.code = ExitCode.NO
    if output.json:
        output.document(
            {
                "action": "frozen",
                "ok": ok,
                "lock": lock_json(path, _review(host)),
                "skills": [checked.to_json() for checked in found],
                "unanswered": [refusal.to_json() for refusal in unanswered],
            }
        )
        return
    shown = _bounded(found)
    for checked in shown:
        _print_checked(output, checked)
    for refusal in unanswered:
        output.line((f"{UNANSWERED:<12}", STYLES["error"]), one_line(refusal.subject))
        output.line(f"{(refusal.detail or refusal.sentence).rstrip('.')} [{refusal.code}]", indent=12)
    if len(shown) < len(found):
        output.line(f"… and {len(found) - len(shown):,} more that are not in the lock")
    counts = [(state, sum(1 for checked in found if checked.state is state)) for state in PinState]
    words = ", ".join(f"{count:,} {_CHECKED[state][0]}" for state, count in counts if count)
    if unanswered:
        without = f"{plural(len(unanswered), 'server')} without an answer"
        words = f"{words}, {without}" if words else f"no skill is pinned; {without}"
    summary = f"{one_line(str(path))}: {words or 'no skill is pinned, and none is listed'}"
    output.line((summary, "bold green" if ok else STYLES["error"]))
    if not ok:
        output.message(
            ("fix:", "bold"),
            f" `skillwire diff --frozen REF{_option(path)}` shows what differs from the lock",
        )


def _bounded(found: Iterable[PinCheck]) -> list[PinCheck]:
    """Return all pins, and the first of the skills that are not pinned: a catalog may be large."""
    some = list(found)
    pins = [checked for checked in some if checked.state is not PinState.NOT_IN_LOCK]
    others = [checked for checked in some if checked.state is PinState.NOT_IN_LOCK]
    return [*pins, *others[:_MOST_UNPINNED]]


def _print_checked(output: Output, checked: PinCheck) -> None:
    word, style = _CHECKED[checked.state]
    output.line((f"{word:<12}", style), one_line(checked.reference))
    change, refusal = checked.change, checked.refusal
    if change is not None:
        counts = {"modified": change.modified, "added": change.added, "removed": change.removed}
        words = ", ".join(f"{plural(len(uris), 'file')} {kind}" for kind, uris in counts.items() if uris)
        output.line(words, indent=12)
    elif refusal is not None and checked.state is not PinState.NOT_IN_LOCK:
        detail = (refusal.detail or refusal.sentence).rstrip(".")
        output.line(f"{detail} [{refusal.code}]", indent=12)


def _print_state(output: Output, path: Path, review: LockReview) -> None:
    words, style = STATES[review.state]
    count = f", {plural(len(review.lock.approvals), 'skill')} pinned" if review.lock is not None else ""
    output.line((one_line(str(path)), "bold"), "  ", (words, style), count)
    if review.lock is not None:
        output.line(f"digest: {digest_of(review.lock.content)}", indent=2, wrap=False)
    ended = [pin_words(skill) for skill in revoked_pins(review)]
    if ended:
        heading = "Pins that were revoked because their server sent other content"
        print_lines(output, lines_of([Paragraph(heading, tuple(ended), True, True)], output.width))


def _print_difference(output: Output, difference: LockDifference, heading: str) -> None:
    print_lines(output, lines_of(difference_paragraphs(difference, heading), output.width))


def _option(path: Path) -> str:
    """Return the option that names this lock, for suggested commands; the default one needs none."""
    return "" if path == Path(LOCK_NAME) else f" --lock {shlex.quote(str(path))}"


def _review(host: Host) -> LockReview:
    review = host.lock.reload()
    assert review is not None, "this host was opened with a lock"
    return review
