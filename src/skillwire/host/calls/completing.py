"""`completion/complete`: values for a variable of a template, for the person who fills it in."""

from collections.abc import Mapping
from typing import Final, cast

from mcp.client import Client
from mcp.types import (
    CompleteRequest,
    CompleteRequestParams,
    CompletionArgument,
    CompletionContext,
    ResourceTemplateReference,
)

from skillwire.host.calls.exchange import DEFAULT_SECONDS, ask, within
from skillwire.host.failures import InvalidAnswerError
from skillwire.sources.templates import SkillTemplate

COMPLETE: Final = "completion/complete"
MAX_VALUES: Final = 100
MAX_VALUE_LENGTH: Final = 1024


async def complete(
    client: Client,
    template: SkillTemplate,
    variable: str,
    typed: str,
    *,
    others: Mapping[str, str] | None = None,
    max_seconds: float | None = DEFAULT_SECONDS,
) -> tuple[str, ...]:
    """Ask a server how `variable` could go on after `typed`; `others` are the variables filled in already.

    There is nothing when the server does not offer completion, and it is not
    asked then. The values are a stranger's words: at most 100 short ones, to be
    shown escaped, and checked when the template is expanded with them.

    Raises:
        InvalidAnswerError: The answer is not one.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    if client.server_capabilities.completions is None:
        return ()
    request = CompleteRequest(
        params=CompleteRequestParams(
            ref=ResourceTemplateReference(type="ref/resource", uri=template.template.text),
            argument=CompletionArgument(name=variable, value=typed),
            context=CompletionContext(arguments=dict(others)) if others else None,
        )
    )
    with within(max_seconds, COMPLETE):
        answer = await ask(client, request)
    completion = answer.get("completion")
    values = cast(Mapping[str, object], completion).get("values") if isinstance(completion, dict) else None
    if not isinstance(values, list):
        raise InvalidAnswerError(f"the server's answer to {COMPLETE} has no list of values")
    texts = [value for value in cast("list[object]", values)[:MAX_VALUES] if _is_usable(value)]
    return tuple(dict.fromkeys(cast("list[str]", texts)))


def _is_usable(value: object) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_VALUE_LENGTH:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
