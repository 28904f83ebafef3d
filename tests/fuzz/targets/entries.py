"""Entries of `skills/list`: three ways to read one, which must agree, and the way back to JSON."""

import json
from typing import cast

from fuzz.properties import json_of, require_fit, require_fit_findings
from skillwire.core.entry import check_entries, check_entry, parse_entry
from skillwire.core.errors import InvalidEntryError
from skillwire.wire.core import write_entry


def check(data: bytes) -> None:
    """The document is an entry, or a list of entries, which are read together."""
    value, is_json = json_of(data)
    if not is_json:
        return
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    together = list(check_entries(values))
    assert len(together) == len(values)
    for item, (entry, findings) in zip(values, together, strict=True):
        require_fit_findings(findings)
        assert (entry, findings) == check_entry(item)
        assert (entry, findings) == check_entry(item, shortcuts=False)
        has_error = entry is None or any(finding.is_error for finding in findings)
        try:
            parsed = parse_entry(item)
        except InvalidEntryError as error:
            require_fit(str(error)[:2000])
            assert has_error
            continue
        assert not has_error
        assert parsed == entry
        again, _ = check_entry(parsed.to_json())
        assert again == parsed
        if is_finite(parsed.to_json()):
            assert json.loads(write_entry(parsed)) == parsed.to_json()


def is_finite(value: object) -> bool:
    """Tell whether JSON has all of these numbers."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
