"""`skillwire load`: what the model would receive, exactly, after the same questions."""

import sys
from typing import Annotated

import typer

from skillwire.cli.answer import Answer, answering
from skillwire.cli.asking import TerminalAsk
from skillwire.cli.hosting import DEFAULT_WAIT, Archives, At, Config, Frozen, Lock, Wait, Wanted, with_host
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.states import print_refusal
from skillwire.host import Host, LoadedSkill
from skillwire.host.failures import ApprovalDeniedError

app = new_app()


@app.command()
def load(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The skill, as it is listed.")],
    page: Annotated[
        int | None,
        typer.Option("--page", min=1, metavar="N", help="Only this page of a long text.", show_default=False),
    ] = None,
    config: Config = None,
    at: At = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print what the model would receive of a skill.

    Where your approval is needed you are asked, if this is a terminal;
    otherwise it fails and says why. Nothing goes to a model.
    """
    with answering("load", json=json, verbose=verbose) as answer:
        wanted = Wanted(
            config=config, targets=at or (), lock=lock, frozen=frozen, wait=wait, archives=archives
        )
        asker = TerminalAsk.find()

        async def work(host: Host) -> None:
            if asker is not None:
                asker.host = host
            await _load(answer, host, reference, page)

        with_host(answer, wanted, work, approve=asker)


async def _load(answer: Answer, host: Host, reference: str, page: int | None) -> None:
    try:
        loaded = [await host.load(reference, page=page or 1, actor="user")]
    except ApprovalDeniedError as error:
        fix = "nothing was loaded, and nothing remembered; you can be asked again"
        raise ApprovalDeniedError("you did not agree to it", reference=error.reference, fix=fix) from error
    for problem in host.problems:
        print_refusal(answer, problem)
    if page is None:
        for number in range(2, loaded[0].pages + 1):
            loaded.append(await host.load(reference, page=number, actor="user"))
    if answer.json:
        answer.document(_document(loaded))
        return
    sys.stdout.flush()
    for part in loaded:
        sys.stdout.buffer.write(part.text.encode("utf-8", "replace") + b"\n")
    if page is not None and loaded[0].pages > 1:
        answer.word(f"page {page} of {loaded[0].pages:,}")


def _document(loaded: list[LoadedSkill]) -> dict[str, object]:
    first = loaded[0]
    return {
        "reference": first.reference,
        "origin": {
            "kind": first.origin.kind.value,
            "label": first.origin.label,
            "fingerprint": first.origin.fingerprint,
        },
        "uri": first.uri,
        "boundary": first.boundary,
        "pages": first.pages,
        "texts": [{"page": part.page, "text": part.text} for part in loaded],
        "files": [
            {
                "path": file.path,
                "size": file.size,
                "unverified": file.is_unverified,
                "mediaType": file.media_type,
            }
            for file in first.files
        ],
    }
