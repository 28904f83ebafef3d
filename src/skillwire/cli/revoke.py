"""`skillwire revoke`: taking back a yes, whether or not the server is there."""

from typing import Annotated

import typer

from skillwire.cli.answer import Answer, answering
from skillwire.cli.hosting import At, Config, Frozen, Lock, Wanted, with_host
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.states import print_refusal
from skillwire.host import Approval, Host, RefusedError
from skillwire.host.asking import one_line

PATIENCE = 0.1
"""Seconds that servers get: what was approved is known without them."""

app = new_app()


@app.command()
def revoke(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="The skill, as it is listed; or LABEL/URI.")
    ],
    config: Config = None,
    at: At = None,
    lock: Lock = None,
    frozen: Frozen = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Take back your approval of a skill.

    Everything granted to it ends on this machine, and pins of the project's
    lock count no more until you trust the lock again. The server need not be
    there.
    """
    with answering("revoke", json=json, verbose=verbose) as answer:
        wanted = Wanted(config=config, targets=at or (), lock=lock, frozen=frozen, wait=PATIENCE)
        with_host(answer, wanted, lambda host: _revoke(answer, host, reference))


async def _revoke(answer: Answer, host: Host, reference: str) -> None:
    if host.lock.is_frozen:
        raise RefusedError("the lock is frozen, and taken as it is", reference=reference)
    before, meant = _held(host), host.meant_by(reference)
    await host.revoke(reference)
    # A server that answers only now may be the first to say what is meant; what its listing ended is not.
    meant = meant or host.meant_by(reference)
    after = _held(host)
    taken = [
        (place, approval)
        for place, approval in before
        if approval.skill in meant and (place, approval) not in after
    ]
    for problem in host.problems:
        print_refusal(answer, problem)
    if answer.json:
        answer.document({"reference": reference, "revoked": [_json(*item) for item in taken]})
        return
    for place, approval in taken:
        answer.line(("revoked", "bold green"), f"  {_words(place, approval)}")
    if not taken:
        answer.line("nothing was approved for it")


def _held(host: Host) -> list[tuple[str, Approval]]:
    return [
        *(("machine", approval) for approval in host.approvals),
        *(("lock", approval) for approval in host.lock.approvals),
    ]


def _words(place: str, approval: Approval) -> str:
    grants = ", ".join(sorted(approval.grants))
    where = " in skills.lock" if place == "lock" else ""
    when = approval.granted_at.date().isoformat()
    return one_line(
        f"{grants} for {approval.skill.uri} from {approval.skill.origin}, approved on {when}{where}"
    )


def _json(place: str, approval: Approval) -> dict[str, object]:
    origin = approval.skill.origin
    return {
        "place": place,
        "origin": {"kind": origin.kind.value, "label": origin.label, "fingerprint": origin.fingerprint},
        "uri": approval.skill.uri,
        "grants": sorted(approval.grants),
        "approvedAt": approval.granted_at.isoformat(),
        "approvedBy": approval.granted_by,
    }
