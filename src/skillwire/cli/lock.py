"""`skillwire lock`: the project's lock, shown, trusted, written, or held against the servers."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from skillwire.cli.answer import STYLES, Answer, answering, plural
from skillwire.cli.asking import NO, YES, TerminalAsk, print_lines
from skillwire.cli.failures import ExitCode, MisuseError
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    LOCK_NAME,
    Archives,
    At,
    Config,
    Lock,
    Wait,
    Wanted,
    places_of,
    with_host,
)
from skillwire.cli.lockcheck import Checked, PinState, check_lock
from skillwire.cli.lockwords import (
    STATES,
    difference_json,
    difference_paragraphs,
    ended_pins,
    lock_json,
    pin_words,
    unwritten,
)
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.core.manifest import digest_of, is_digest
from skillwire.host import Host, InvalidLockError, LockDifference, LockReview, LockState, Origin, Refusal
from skillwire.host.asking import Paragraph, lines_of, one_line
from skillwire.host.failures import ApprovalDeniedError, ApprovalRequiredError, LockUntrustedError

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
        bool, typer.Option("--write", help="Write what you approved on this machine into the lock.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Show what differs from what you saw last, and ask you to trust it."),
    ] = False,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Hold the lock, as it lies there, against the servers. For CI.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="With --frozen: skills that are not in the lock are no failure.")
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
            help="With --trust: the digest of the file, as `skillwire lock` prints it; another is refused.",
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

    Without an option: says whether the lock counts, how it differs from what
    you saw last, and what --write would change; no server is asked. A lock
    that changed outside skillwire counts only after --trust. With --frozen,
    which takes the lock as it is, lists each skill in it and each skill of
    the servers that is not. Exits with 1 when the lock does not count, or a
    skill is different, missing, unreachable or not in the lock.
    """
    with answering("lock", json=json, verbose=verbose) as answer:
        _check(write, trust, frozen, partial=partial, yes=yes, digest=digest)
        path = file or Path(LOCK_NAME)
        wanted = Wanted(
            config=config, targets=at or (), lock=path, frozen=frozen, wait=wait, archives=archives
        )
        if frozen:
            with_host(answer, wanted, lambda host: _frozen(answer, host, path, is_partial=partial))
        elif write:
            with_host(answer, wanted, lambda host: _write(answer, host, path))
        elif trust:
            _without_servers(path, lambda host: _trust(answer, host, path, digest, is_sure=yes))
        else:
            _show_file(answer, wanted, path)


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
            "--digest is no digest", fix="use sha256: and 64 digits, as `skillwire lock` prints it"
        )


def _without_servers(path: Path, work: Callable[[Host], Awaitable[None]]) -> None:
    """Open a host that knows the lock and the approvals, and nobody else."""

    async def main() -> None:
        async with Host(roots=(), lock=path) as host:
            await work(host)

    anyio.run(main)


def _show_file(answer: Answer, wanted: Wanted, path: Path) -> None:
    origins = [server.origin for server in places_of(wanted).servers]
    try:
        _without_servers(path, lambda host: _show(answer, host, path, origins))
    except InvalidLockError as error:
        refusal = Refusal.of(error, path.name)
        answer.code = ExitCode.NO
        if answer.json:
            answer.document({"action": "show", "ok": False, "lock": lock_json(path, None, refusal)})
        else:
            answer.line((one_line(str(path)), "bold"), "  invalid: ", (refusal.detail, STYLES["error"]))
            answer.word(("fix:", "bold"), f" {refusal.remedy}")


async def _show(answer: Answer, host: Host, path: Path, origins: Sequence[Origin]) -> None:
    review = _look(host)
    is_known = review.state in (LockState.TRUSTED, LockState.ABSENT)
    more = unwritten(host, origins) if is_known else LockDifference()
    if review.state is not LockState.TRUSTED:
        answer.code = ExitCode.NO
    if answer.json:
        answer.document(
            {
                "action": "show",
                "ok": review.state is LockState.TRUSTED,
                "lock": lock_json(path, review),
                "difference": difference_json(review.difference),
                "unwritten": difference_json(more),
            }
        )
        return
    _print_state(answer, path, review)
    if not is_known:
        _print_difference(answer, review.difference, "What differs from what you saw last")
        answer.word(("fix:", "bold"), " look at the difference, then `skillwire lock --trust`")
    if not more.is_empty:
        _print_difference(answer, more, "What --write would change")


async def _trust(answer: Answer, host: Host, path: Path, digest: str | None, *, is_sure: bool) -> None:
    review = _look(host)
    if review.lock is None:
        raise InvalidLockError("there is no lock", reference=path.name, fix="write one with --write")
    content = review.lock.content
    if digest is not None and digest_of(content) != digest:
        raise LockUntrustedError(
            f"the lock is not what --digest names: it is {digest_of(content)} now",
            reference=path.name,
            fix="look at it again with `skillwire lock`",
        )
    if review.state is not LockState.TRUSTED or review.revoked:
        if not is_sure:
            await _ask(path, review)
        await host.trust_lock(content)
    if answer.json:
        answer.document(
            {
                "action": "trust",
                "ok": True,
                "lock": lock_json(path, _look(host)),
                "difference": difference_json(review.difference),
            }
        )
        return
    _print_state(answer, path, _look(host))


async def _ask(path: Path, review: LockReview) -> None:
    asker = TerminalAsk.find()
    if asker is None:
        raise ApprovalRequiredError(
            "the lock cannot be trusted without someone to ask",
            reference=path.name,
            fix="run this on a terminal, or review it and pass --yes with --digest",
        )
    paragraphs = [
        Paragraph("You are about to trust a lock: every skill in it counts as approved.", is_warning=True),
        Paragraph("Lock", (one_line(str(path)),)),
        *difference_paragraphs(review.difference, "What differs from what you saw last"),
    ]
    ended = [pin_words(skill) for skill in ended_pins(review)]
    if ended:
        heading = "Pins that ended, because their server showed something else, and would count again"
        paragraphs.append(Paragraph(heading, tuple(ended), is_foreign=True, is_warning=True))
    if await asker.choose(None, paragraphs, f"Trust {one_line(path.name)}?", {NO: "no", YES: "yes"}) != YES:
        raise ApprovalDeniedError("the lock was not trusted", reference=path.name, fix="nothing was changed")


async def _write(answer: Answer, host: Host, path: Path) -> None:
    before = _look(host)
    await host.write_lock()
    after = _look(host)
    difference = LockDifference.between(before.lock, after.lock)
    if answer.json:
        answer.document(
            {
                "action": "write",
                "ok": True,
                "lock": lock_json(path, after),
                "difference": difference_json(difference),
            }
        )
        return
    _print_state(answer, path, after)
    _print_difference(answer, difference, "What was changed")


async def _frozen(answer: Answer, host: Host, path: Path, *, is_partial: bool) -> None:
    found = await check_lock(host)
    fine = {PinState.SAME, *((PinState.NOT_IN_LOCK,) if is_partial else ())}
    ok = all(checked.state in fine for checked in found)
    if not ok:
        answer.code = ExitCode.NO
    if answer.json:
        checks = [checked.to_json() for checked in found]
        answer.document(
            {"action": "frozen", "ok": ok, "lock": lock_json(path, _look(host)), "skills": checks}
        )
        return
    shown = _bounded(found)
    for checked in shown:
        _print_checked(answer, checked)
    if len(shown) < len(found):
        answer.line(f"… and {len(found) - len(shown):,} more that are not in the lock")
    counts = [(state, sum(1 for checked in found if checked.state is state)) for state in PinState]
    words = ", ".join(f"{count:,} {_CHECKED[state][0]}" for state, count in counts if count)
    summary = f"{one_line(str(path))}: {words or 'no skill is pinned, and none is shown'}"
    answer.line((summary, "bold green" if ok else STYLES["error"]))
    if not ok:
        answer.word(("fix:", "bold"), " `skillwire diff --frozen REF` shows what differs from the lock")


def _bounded(found: Iterable[Checked]) -> list[Checked]:
    """Keep all pins, and the first of what is not pinned: a catalog may be large."""
    some = list(found)
    pins = [checked for checked in some if checked.state is not PinState.NOT_IN_LOCK]
    others = [checked for checked in some if checked.state is PinState.NOT_IN_LOCK]
    return [*pins, *others[:_MOST_UNPINNED]]


def _print_checked(answer: Answer, checked: Checked) -> None:
    word, style = _CHECKED[checked.state]
    answer.line((f"{word:<12}", style), one_line(checked.reference))
    change, refusal = checked.change, checked.refusal
    if change is not None:
        counts = {"modified": change.modified, "added": change.added, "removed": change.removed}
        words = ", ".join(f"{plural(len(uris), 'file')} {kind}" for kind, uris in counts.items() if uris)
        answer.line(words, indent=12)
    elif refusal is not None and checked.state is not PinState.NOT_IN_LOCK:
        detail = (refusal.detail or refusal.sentence).rstrip(".")
        answer.line(f"{detail} [{refusal.code}]", indent=12)


def _print_state(answer: Answer, path: Path, review: LockReview) -> None:
    words, style = STATES[review.state]
    count = f", {plural(len(review.lock.approvals), 'skill')} pinned" if review.lock is not None else ""
    answer.line((one_line(str(path)), "bold"), "  ", (words, style), count)
    if review.lock is not None:
        answer.line(f"digest: {digest_of(review.lock.content)}", indent=2, wrap=False)
    ended = [pin_words(skill) for skill in ended_pins(review)]
    if ended:
        heading = "Pins that count no more, because their server showed something else"
        print_lines(answer, lines_of([Paragraph(heading, tuple(ended), True, True)], answer.width))


def _print_difference(answer: Answer, difference: LockDifference, heading: str) -> None:
    print_lines(answer, lines_of(difference_paragraphs(difference, heading), answer.width))


def _look(host: Host) -> LockReview:
    review = host.lock.look()
    assert review is not None, "this host was opened with a lock"
    return review
