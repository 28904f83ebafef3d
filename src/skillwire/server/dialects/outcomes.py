"""What a run becomes on the wire: the result of `skills/execute`, or the error when a limit stopped it.

Nothing that a script wrote is taken for more than text or bytes, whatever it looks like.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from mcp.shared.exceptions import MCPError

from skillwire.core.characters import quoted
from skillwire.core.media import media_type_of
from skillwire.errors import EXECUTION_FAILED
from skillwire.runner import LimitHit, Outcome, OutputFile
from skillwire.server.outputs import Caller, OutputShelf
from skillwire.wire.core import JsonDict, file_contents
from skillwire.wire.encoding import encode

RUN: Final = "skillwire/run"
"""The key in a result's `_meta` under which a run's limits and use of them are told."""

MAX_EMBEDDED: Final = 256 * 1024
"""Up to how many bytes a file, or a text, is in the result itself; beyond that it is linked."""
MAX_TAIL: Final = 16 * 1024
"""How many characters of the end of a failed script's standard error are told."""

# Some clients refuse events of more than 1 MiB, and a long run is answered with one.
_BUDGET = 900 * 1024
_MAX_NAMED = 10
_WHOLE_OUTPUT = "stdout.txt"


def result_of(outcome: Outcome, shelf: OutputShelf, caller: Caller) -> JsonDict:
    """Make the result of a run that ended by itself, and keep what it left."""
    files, text = outcome.files, outcome.stdout
    is_long = len(text.encode()) > MAX_EMBEDDED
    if is_long:
        whole = OutputFile(_free_name(files), text.encode())
        files, text = (whole, *files), _head(text)
    uris = shelf.put(files, caller)
    content: list[JsonDict] = [_text(text)] if text else []
    if outcome.is_error:
        content.append(_text("\n".join(filter(None, (outcome.verdict, _tail(outcome.stderr))))))
    remarks = _remarks(outcome, files, uris, shelf.quota.seconds, is_long=is_long)
    if remarks:
        content.append(_text(remarks))
    result: JsonDict = {"content": content, "isError": outcome.is_error}
    room = _BUDGET - len(encode(result))
    if outcome.structured is not None and not is_long:
        structured = dict(outcome.structured)
        room -= len(encode(structured))
        result["structuredContent"] = structured
    content += _items(files, uris, room, linked=files[:1] if is_long else ())
    result["_meta"] = {RUN: _account(outcome, round(shelf.quota.seconds * 1000) if uris else None)}
    return result


def stopped(outcome: Outcome, limit: LimitHit, culprit: Mapping[str, str]) -> MCPError:
    """Make the error for a run that was stopped at a limit, with what it had written so far."""
    data: JsonDict = {
        **culprit,
        "reason": "limit",
        **_hit(limit),
        "stdout": _tail(outcome.stdout),
        "stderr": _tail(outcome.stderr),
        "runId": outcome.run_id,
    }
    return MCPError(EXECUTION_FAILED, f"{quoted(culprit['script'])} was {outcome.verdict}", data)


def _items(
    files: Sequence[OutputFile], uris: Mapping[str, str], room: int, *, linked: Sequence[OutputFile]
) -> list[JsonDict]:
    """Return the files that are kept: what is small as it is, and links to the rest."""
    items: list[JsonDict] = []
    for file in files:
        uri = uris.get(file.path)
        if uri is None:
            continue
        media_type = media_type_of(file.path)
        if len(file.content) <= MAX_EMBEDDED and file not in linked:
            resource = file_contents(uri, media_type=media_type, content=file.content)
            item: JsonDict = {"type": "resource", "resource": resource}
            size = len(encode(item))
            if size <= room:
                room -= size
                items.append(item)
                continue
        described = {"uri": uri, "name": file.path, "mimeType": media_type, "size": len(file.content)}
        items.append({"type": "resource_link", **described})
    return items


def _remarks(
    outcome: Outcome,
    files: Sequence[OutputFile],
    uris: Mapping[str, str],
    seconds: float,
    *,
    is_long: bool,
) -> str:
    """Say in one line what is missing from the result, and how long its files can be read."""
    said: list[str] = []
    if is_long:
        said.append("The output is cut here, and linked as a whole.")
    if uris:
        said.append(f"Files can be read for {_duration(seconds)}.")
    missing = [f"{quoted(one.path)}: {one.reason}" for one in outcome.skipped]
    missing += [f"{quoted(file.path)}: no room to keep it" for file in files if file.path not in uris]
    if missing:
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        said.append(f"Not returned: {'; '.join(missing[:_MAX_NAMED])}{more}.")
    if outcome.reached:
        said.append(f"Limits reached: {'; '.join(map(str, outcome.reached))}.")
    return " ".join(said)


def _account(outcome: Outcome, ttl_ms: int | None) -> JsonDict:
    account: JsonDict = {"runId": outcome.run_id, "ending": outcome.ending.value}
    if outcome.exit_code is not None:
        account["exitCode"] = outcome.exit_code
    if outcome.signal is not None:
        account["signal"] = outcome.signal
    account |= {"limits": asdict(outcome.limits), "usage": asdict(outcome.usage)}
    if outcome.reached:
        account["reached"] = [_hit(hit) for hit in outcome.reached]
    if ttl_ms is not None:
        account["outputTtlMs"] = ttl_ms
    return account


def _hit(hit: LimitHit) -> JsonDict:
    return {"limit": hit.name, "allowed": _number(hit.allowed), "used": _number(hit.used)}


def _number(value: float) -> float:
    return int(value) if value == int(value) else round(value, 3)


def _text(text: str) -> JsonDict:
    return {"type": "text", "text": text}


def _head(text: str) -> str:
    return text.encode()[:MAX_EMBEDDED].decode("utf-8", "ignore")


def _tail(text: str) -> str:
    return text if len(text) <= MAX_TAIL else "…" + text[-MAX_TAIL:]


def _free_name(files: Sequence[OutputFile]) -> str:
    name, taken = _WHOLE_OUTPUT, {file.path for file in files}
    while name in taken:
        name = f"_{name}"
    return name


def _duration(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} seconds"
