#!/usr/bin/env python3
"""Profile CSV text.

Reads one JSON object on standard input and writes one to standard output:

    {"csv": "city,visits\\nOslo,120\\n", "delimiter": ",", "has_header": true}

Only `csv` is required. Problems of the data are `warnings` in the result. Problems that
leave nothing to profile go to standard error, with exit status 1.
"""

import csv
import io
import json
import math
import re
import statistics
import sys
from collections import Counter
from datetime import date, datetime

DELIMITERS = ",;\t|"
MAX_COLUMNS = 200
MAX_SHOWN = 40  # characters of a cell that a result repeats
MAX_LISTED = 5  # values or line numbers that a result lists
MOSTLY = 0.9  # share of numbers from which the other values are worth a warning
MISSING = frozenset({"", "-", "n/a", "na", "nan", "none", "null"})
BOOLEANS = frozenset({"true", "false", "yes", "no"})

INTEGER = re.compile(r"[+-]?[0-9]{1,15}")  # beyond 15 digits it is an identifier, not a quantity
NUMBER = re.compile(r"[+-]?(?:[0-9]{1,15}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?")
LEADING_ZERO = re.compile(r"[+-]?0[0-9]+")
ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
ISO_DATETIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.{0,20}")


class UnusableInputError(Exception):
    """There is nothing to profile; the message tells the caller why."""


def main() -> int:
    try:
        result = profile(read_arguments(sys.stdin.buffer.read()))
    except UnusableInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, allow_nan=False))
    return 0


def read_arguments(data: bytes) -> dict:
    """Check the arguments here, once, so that the rest can rely on them."""
    try:
        arguments = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnusableInputError(f"standard input is not a JSON object in UTF-8: {error}") from error
    if not isinstance(arguments, dict):
        raise UnusableInputError('standard input must be a JSON object such as {"csv": "a,b\\n1,2\\n"}')
    unknown = sorted(arguments.keys() - {"csv", "delimiter", "has_header"})
    if unknown:
        raise UnusableInputError(f"unknown argument {shown(unknown[0])}; use csv, delimiter, has_header")
    text = arguments.get("csv")
    if isinstance(text, str):
        # JSON can spell half a character ("\ud800"), which no encoding can write back.
        text = text.removeprefix("\ufeff").encode("utf-8", "replace").decode("utf-8")
    if not isinstance(text, str) or not text.strip():
        raise UnusableInputError("`csv` must be a string with at least one line of text")
    delimiter = arguments.get("delimiter")
    if delimiter is not None and delimiter not in tuple(DELIMITERS):
        raise UnusableInputError("`delimiter` must be a comma, a semicolon, a tab or a vertical bar")
    has_header = arguments.get("has_header", True)
    if not isinstance(has_header, bool):
        raise UnusableInputError("`has_header` must be true or false")
    return {"text": text, "delimiter": delimiter or guess_delimiter(text), "has_header": has_header}


def guess_delimiter(text: str) -> str:
    """Take the candidate that is most frequent in the first line; a comma if there is none."""
    first_line = text.lstrip().splitlines()[0]
    return max(DELIMITERS, key=first_line.count)


def profile(arguments: dict) -> dict:
    rows = parse(arguments["text"], arguments["delimiter"])
    warnings: list[str] = []
    if arguments["has_header"]:
        header, rows = rows[0][1], rows[1:]
    else:
        header = [""] * max(len(cells) for _, cells in rows)
    if len(header) > MAX_COLUMNS:
        raise UnusableInputError(f"{len(header)} columns; at most {MAX_COLUMNS} can be profiled at once")
    names = column_names(header, arguments["has_header"], warnings)

    ragged = [line for line, cells in rows if len(cells) != len(names)]
    if ragged:
        warnings.append(f"rows that do not have {len(names)} values: {len(ragged)}, {on_lines(ragged)}")
    duplicates = len(rows) - len({tuple(cells) for _, cells in rows})
    if duplicates:
        warnings.append(f"rows that repeat an earlier row exactly: {duplicates}")
    if not rows:
        warnings.append("there are no rows below the header")

    columns = []
    for index, name in enumerate(names):
        cells = [(line, cells[index]) if index < len(cells) else (line, "") for line, cells in rows]
        columns.append(profile_column(name, cells, warnings))
    return {
        "rows": len(rows),
        "duplicate_rows": duplicates,
        "delimiter": arguments["delimiter"],
        "columns": columns,
        "warnings": warnings,
    }


def parse(text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """Return the rows, each with the line of the text on which it ends. Blank lines are no rows."""
    csv.field_size_limit(len(text) + 1)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        hint = "look for a quotation mark that is not closed"
        raise UnusableInputError(f"line {reader.line_num} is not valid CSV: {error}; {hint}") from error


def column_names(header: list[str], has_header: bool, warnings: list[str]) -> list[str]:
    """Give every column a name of its own, because results are read by name."""
    names: list[str] = []
    for number, cell in enumerate(header, start=1):
        name = shown(cell.strip()) if cell.strip() else f"column_{number}"
        if has_header and not cell.strip():
            warnings.append(f"column {number} has no name; it is called {name} here")
        if name in names:
            unique = f"{name}_{number}"
            warnings.append(
                f"the name {name} appears more than once; column {number} is called {unique} here"
            )
            name = unique
        names.append(name)
    return names


def profile_column(name: str, cells: list[tuple[int, str]], warnings: list[str]) -> dict:
    present = [(line, cell.strip()) for line, cell in cells if cell.strip().lower() not in MISSING]
    values = [cell for _, cell in present]
    counts = Counter(values)
    kind = kind_of(values)
    column: dict = {
        "name": name,
        "type": kind,
        "missing": len(cells) - len(values),
        "distinct": len(counts),
        "top": [{"value": shown(value), "count": count} for value, count in counts.most_common(MAX_LISTED)],
    }
    if kind in ("integer", "number"):
        column |= number_summary([float(value) for value in values], whole=kind == "integer")
        if column["outliers"]:
            warnings.append(f"{name}: values far outside the middle half of the data: {column['outliers']}")
    elif kind == "date":
        column |= {"min": min(values), "max": max(values)}
    elif kind == "datetime":
        column |= moment_range(name, values, warnings)
    elif kind == "text":
        lengths = [len(value) for value in values]
        column |= {"min_length": min(lengths), "max_length": max(lengths)}
        warn_about_text(name, present, warnings)
    if any(cell != cell.strip() for _, cell in cells):
        warnings.append(f"{name}: some values have spaces around them; they were removed before counting")
    if len(counts) == 1 and len(values) > 1:
        warnings.append(f"{name}: every value is {shown(values[0])}")
    return column


def kind_of(values: list[str]) -> str:
    """Name the narrowest type that every value has."""
    if not values:
        return "empty"
    if any(LEADING_ZERO.fullmatch(value) for value in values):
        return "text"
    if all(INTEGER.fullmatch(value) for value in values):
        return "integer"
    if all(NUMBER.fullmatch(value) for value in values):
        return "number"
    if all(value.lower() in BOOLEANS for value in values):
        return "boolean"
    if all(is_date(value) for value in values):
        return "date"
    if all(is_datetime(value) for value in values):
        return "datetime"
    return "text"


def is_date(value: str) -> bool:
    if not ISO_DATE.fullmatch(value):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def is_datetime(value: str) -> bool:
    if not ISO_DATETIME.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def number_summary(numbers: list[float], *, whole: bool) -> dict:
    low, high = min(numbers), max(numbers)
    if len(numbers) > 1:
        first, median, third = statistics.quantiles(numbers, n=4, method="inclusive")
    else:
        first = median = third = numbers[0]
    reach = 1.5 * (third - first)
    return {
        "min": int(low) if whole else low,
        "max": int(high) if whole else high,
        "mean": rounded(math.fsum(numbers) / len(numbers)),
        "stdev": rounded(statistics.stdev(numbers)) if len(numbers) > 1 else None,
        "quartiles": [rounded(first), rounded(median), rounded(third)],
        "outliers": sum(not first - reach <= number <= third + reach for number in numbers) if reach else 0,
    }


def moment_range(name: str, values: list[str], warnings: list[str]) -> dict:
    moments = {value: datetime.fromisoformat(value) for value in values}
    if len({moment.tzinfo is None for moment in moments.values()}) > 1:
        warnings.append(f"{name}: only some values have a time zone, so there is no earliest or latest")
        return {"min": None, "max": None}
    return {"min": min(values, key=moments.__getitem__), "max": max(values, key=moments.__getitem__)}


def warn_about_text(name: str, present: list[tuple[int, str]], warnings: list[str]) -> None:
    if any(LEADING_ZERO.fullmatch(value) for _, value in present):
        warnings.append(f"{name}: leading zeros, so it is taken as an identifier and not as a number")
        return
    others = [(line, value) for line, value in present if not NUMBER.fullmatch(value)]
    if others and len(present) - len(others) >= MOSTLY * len(present):
        line, value = others[0]
        count = f"{len(others)} of {len(present)}"
        warnings.append(f"{name}: mostly numbers; others: {count} (first on line {line}: {shown(value)})")


def on_lines(lines: list[int]) -> str:
    listed = ", ".join(str(line) for line in lines[:MAX_LISTED])
    return f"on lines {listed}" + (" and others" if len(lines) > MAX_LISTED else "")


def rounded(number: float) -> float:
    """Six significant digits: more would claim a precision that the data rarely has."""
    return float(f"{number:.6g}")


def shown(value: str) -> str:
    return value if len(value) <= MAX_SHOWN else value[: MAX_SHOWN - 3] + "..."


if __name__ == "__main__":
    sys.exit(main())
