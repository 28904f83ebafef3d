"""What a script wrote, as text that can be shown anywhere, and as JSON if it is nothing else.

Bytes of a script are never obeyed: not by a terminal, and not by us. Sequences
that a terminal would act on go as a whole, so that a coloured word stays a
word; whatever else hides goes character by character.
"""

import codecs
import re
from typing import Final, cast

from skillwire.core.characters import stripped
from skillwire.core.strictjson import StrictJsonError, parse_strictly
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.redaction import Redactor

MAX_STRUCTURED: Final = 1024 * 1024
"""The longest standard output, in bytes, that is looked at as JSON."""

_LONGEST_STRING: Final = 64 * 1024
"""How much of a title, a link or a picture for a terminal vanishes with it; what is longer is shown."""

# ECMA-48: control sequences, control strings, and the short escapes, each in both spellings. A title or
# link (OSC) has one line. Strings end at their terminator, or where a terminal would give them up.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    rf"|(?:\x1b\]|\x9d)[^\x07\x18\x1a\x1b\x80-\x9f\n\r]{{0,{_LONGEST_STRING}}}"
    r"(?:[\x07\x18\x1a\x9c]|\x1b\\|(?=[\x1b\x80-\x9f]))"
    rf"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x18\x1a\x1b\x80-\x9f]{{0,{_LONGEST_STRING}}}"
    r"(?:[\x18\x1a\x9c]|\x1b\\|(?=[\x1b\x80-\x9f]))"
    r"|\x1b[ -/]*[0-~]?"
)


def shown_text(raw: bytes, *, total: int, keep: int, redactor: Redactor | None = None) -> str:
    """Return the beginning of what a script wrote, as text in which nothing hides.

    `raw` is what there is of it, `total` how many bytes it was in all, and
    `keep` how many are shown. Bytes that are no UTF-8 become U+FFFD. If there
    was more, a last line says so. With a redactor, secrets are taken out
    before and after: taking hidden characters away could put one together.
    Without one, `raw` may have become shorter than what was kept of it.
    """
    is_cut = total > (keep if redactor is None else len(raw))
    safe = raw if redactor is None else redactor.redact(raw, is_cut=is_cut)
    is_cut = is_cut or len(safe) > keep
    # A character that was cut in half by us is no mistake of the script.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = without_escapes(decoder.decode(safe[:keep], final=not is_cut))
    if redactor is not None:
        text = redactor.redact_text(text, is_cut=is_cut)
    if not is_cut:
        return text
    kept = keep if redactor is None or len(safe) > keep else min(keep, len(raw))
    return f"{text}\n[truncated: {kept} of {max(total, len(safe))} bytes]"


def structured_from(raw: bytes, *, redactor: Redactor | None = None) -> dict[str, JsonValue] | None:
    """Return a script's whole standard output as a JSON object; None when it is anything else.

    It is nothing else when it repeats a key, is too long or too deep, or holds
    numbers or characters that not every reader of JSON can hold. Its texts are
    made safe to show like any other; if that makes two keys one, it is none.
    """
    if len(raw) > MAX_STRUCTURED or not raw.lstrip().startswith(b"{"):
        return None
    try:
        value = parse_strictly(raw if redactor is None else redactor.redact(raw))
        return cast("dict[str, JsonValue]", _made_safe(value, redactor))
    except (StrictJsonError, _UnfitError):
        return None


def without_escapes(text: str) -> str:
    """Return `text` without what a terminal would obey and without hidden characters."""
    return stripped(_ESCAPES.sub("", text))


class _UnfitError(Exception):
    """A value of JSON that not every reader could hold."""


def _made_safe(value: object, redactor: Redactor | None) -> JsonValue:
    if isinstance(value, str):
        text = without_escapes(value)
        return text if redactor is None else redactor.redact_text(text)
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        safe = {
            cast(str, _made_safe(name, redactor)): _made_safe(item, redactor)
            for name, item in members.items()
        }
        if len(safe) < len(members):
            raise _UnfitError
        return safe
    if isinstance(value, list):
        return [_made_safe(item, redactor) for item in cast("list[object]", value)]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise _UnfitError
    return cast(JsonValue, value)
