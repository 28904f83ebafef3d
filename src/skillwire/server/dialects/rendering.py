"""A skill's instructions, made with the arguments of whoever gets them."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Final, TypeAlias, cast

import anyio
import anyio.to_thread

from skillwire.core.characters import quoted
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.errors import SourceError
from skillwire.server.failures import invalid_params
from skillwire.wire.primitive import SkillArgument

Render: TypeAlias = Callable[[str, Mapping[str, str]], str | Awaitable[str]]
"""Makes the instructions of the body of `SKILL.md` and the arguments that were sent.

A plain function runs in a thread, a coroutine function in the loop.
"""

MAX_VALUES: Final = 64
MAX_VALUE_BYTES: Final = 64 * 1024
RENDER_SECONDS: Final = 30.0

_PLACEHOLDER = re.compile(r"\{\{[ \t]*([A-Za-z_][A-Za-z0-9_-]{0,63})[ \t]*\}\}")


def checked_values(sent: object, declared: Sequence[SkillArgument]) -> dict[str, str]:
    """Return the arguments that a client sent.

    Raises:
        MCPError: They are not a few texts of bearable size, or a required one is missing (-32602).
    """
    values: dict[str, str] = {}
    if sent is not None and not isinstance(sent, dict):
        raise invalid_params("`arguments` must be an object")
    items = cast("dict[str, object]", sent or {})
    if len(items) > MAX_VALUES:
        raise invalid_params(f"there are more than {MAX_VALUES} arguments")
    for name, value in items.items():
        if not isinstance(value, str):
            raise invalid_params(f"the argument {quoted(name)} must be a string")
        if len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
            raise invalid_params(f"the argument {quoted(name)} is larger than {MAX_VALUE_BYTES} bytes")
        if re.search("[\ud800-\udfff]", value):
            raise invalid_params(f"the argument {quoted(name)} holds half of a surrogate pair")
        values[name] = value
    missing = [argument.name for argument in declared if argument.required and argument.name not in values]
    if missing:
        raise invalid_params(f"required arguments are missing: {', '.join(missing)}")
    return values


def filled(body: str, declared: Sequence[SkillArgument], values: Mapping[str, str]) -> str:
    """Put values in the place of `{{name}}`, for declared names only; one that was not sent is empty.

    A body whose skill declares nothing stays as it is. What a value holds is
    never looked at again.

    Raises:
        MCPError: The result would be larger than a whole skill may be (-32602).
    """
    known = {argument.name: values.get(argument.name, "") for argument in declared}
    if not known:
        return body
    size = len(body)
    for match in _PLACEHOLDER.finditer(body):
        size += len(known.get(match[1], ""))
        if size > MAX_TOTAL_SIZE:
            raise invalid_params("with these arguments the instructions would be too large")
    return _PLACEHOLDER.sub(lambda match: known.get(match[1], match[0]), body)


async def rendered(render: Render, body: str, values: Mapping[str, str], uri: str) -> str:
    """Let an author's function make the instructions.

    Raises:
        SourceError: It failed, took too long, or made no text or too much of it.
    """
    try:
        with anyio.fail_after(RENDER_SECONDS):
            made = await anyio.to_thread.run_sync(render, body, dict(values), abandon_on_cancel=True)
            if isawaitable(made):
                made = await made
            size = len(made.encode())
    except Exception as error:
        raise SourceError(f"the instructions of {uri} could not be made") from error
    if size > MAX_TOTAL_SIZE:
        raise SourceError(f"the instructions of {uri} are larger than a skill may be")
    return made
