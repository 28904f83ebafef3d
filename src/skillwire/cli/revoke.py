"""`skillwire revoke`: revoke an approval, whether or not the server can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skillwire.cli.command import Json, Output, Verbose, command_output, new_app
from skillwire.cli.hosting import At, Config, Frozen, HostRequest, Lock, run_with_host
from skillwire.cli.states import print_refusal
from skillwire.host import Approval, RefusedError, one_line

if TYPE_CHECKING:
    from skillwire.host import Host


SERVER_WAIT = 0.1
"""Seconds to wait for servers: approvals are known without them."""

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
    """Revoke your approval of a skill.

    Revokes everything granted to it on this machine; its pin in the project's
    lock is not used until you trust the lock again. The server need not be
    reachable.
    """
    with command_output("revoke", json=json, verbose=verbose) as output:
        wanted = HostRequest.for_skill(reference, config, at, lock, frozen=frozen, wait=SERVER_WAIT)
        run_with_host(output, wanted, lambda host: _revoke(output, host, reference), must_answer=False)


async def _revoke(output: Output, host: Host, reference: str) -> None:
    if host.lock.is_frozen:
        raise RefusedError("the lock is frozen, so approvals cannot be revoked", reference=reference)
    before, meant = _all_approvals(host), host.matching(reference)
    await host.revoke(reference)
    # The reference may be known only after a server has answered.
    meant = meant or host.matching(reference)
    after = _all_approvals(host)
    taken = [
        (place, approval)
        for place, approval in before
        if approval.skill in meant and (place, approval) not in after
    ]
    for problem in host.problems:
        print_refusal(output, problem)
    if output.json:
        output.document({"reference": reference, "revoked": [_json(*item) for item in taken]})
        return
    for place, approval in taken:
        output.line(("revoked", "bold green"), f"  {_words(place, approval)}")
    if not taken:
        output.line("there was no approval to revoke")


def _all_approvals(host: Host) -> list[tuple[str, Approval]]:
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
