"""`skillwire lock`: show, trust or write the project's lock, or compare it with the servers."""

import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

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
from skillwire.cli.lock_report import (
    STATES,
    PinCheck,
    PinState,
    check_lock,
    difference_json,
    difference_paragraphs,
    ended_pins,
    lock_json,
    pin_words,
    retry_servers,
    unwritten,
)
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.output import STYLES, ExitCode, MisuseError, Output, command_output, plural, progress
from skillwire.cli.prompt import NO, YES, TerminalAsk, print_lines
from skillwire.core import digest_of, is_digest
from skillwire.host.approval.lock import InvalidLockError, LockDifference
from skillwire.host.approval.lock_trust import LockReview, LockState
from skillwire.host.host import Host
from skillwire.host.model import (
    ApprovalDeniedError,
    ApprovalRequiredError,
    LockUntrustedError,
    Origin,
    Refusal,
)
from skillwire.host.use.question import Paragraph, lines_of, one_line

_MOST_UNPINNED = 20
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
        bool, typer.Option("--partial", help="With --frozen: accept skills that are not in the lock.")
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
    trusted, or a skill is different, missing, unreachable or not in the lock.
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
        async with Host(roots=(), lock=path) as host:
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
    more = unwritten(host, origins) if is_known else LockDifference()
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
    ended = [pin_words(skill) for skill in ended_pins(review)]
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
    fine = {PinState.SAME, *((PinState.NOT_IN_LOCK,) if is_partial else ())}
    ok = all(checked.state in fine for checked in found)
    if not ok:
        output.code = ExitCode.NO
    if output.json:
        checks = [checked.to_json() for checked in found]
        output.document(
            {"action": "frozen", "ok": ok, "lock": lock_json(path, _review(host)), "skills": checks}
        )
        return
    shown = _bounded(found)
    for checked in shown:
        _print_checked(output, checked)
    if len(shown) < len(found):
        output.line(f"… and {len(found) - len(shown):,} more that are not in the lock")
    counts = [(state, sum(1 for checked in found if checked.state is state)) for state in PinState]
    words = ", ".join(f"{count:,} {_CHECKED[state][0]}" for state, count in counts if count)
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
    ended = [pin_words(skill) for skill in ended_pins(review)]
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
