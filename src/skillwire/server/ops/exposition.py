"""The numbers of all workers as text that Prometheus reads: its format 0.0.4."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from skillwire import __version__
from skillwire.server.ops import series
from skillwire.server.ops.metrics import Meter, Row
from skillwire.server.ops.series import Family

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BUILD = Family("skillwire_build_info", "gauge", "Always 1; the label tells which version is running.")
_CELLS = len(series.BUCKETS) + 1


def exposition(meter: Meter) -> bytes:
    """Return every series: counts of all workers together, and what is true now for each of them."""
    rows = meter.rows()
    lines = [
        *_family(_BUILD, [_sample(_BUILD.name, 1, version=__version__)]),
        *_family(series.REQUESTS, _requests(rows)),
        *_family(series.SECONDS, _seconds(rows)),
        *_family(series.BYTES, [_sample(series.BYTES.name, _total(rows, series.BYTES_AT))]),
        *_family(series.RELOADED, _reloads(rows)),
        *_family(series.LIMITED, [_sample(series.LIMITED.name, _total(rows, series.LIMITED_AT))]),
        *_family(series.UNLOGGED, [_sample(series.UNLOGGED.name, _total(rows, series.UNLOGGED_AT))]),
        *_family(series.ENDED, _ended(rows)),
        *_family(series.UP, _alive(rows)),
    ]
    for gauge, family in series.GAUGES.items():
        lines += _family(family, _of_each(family, rows, series.GAUGE_NUMBERS[gauge]))
    for part, family in series.PROCESS.items():
        known = [row if row.numbers[series.PROCESS_NUMBERS[part]] else None for row in rows]
        lines += _family(family, _of_each(family, known, series.PROCESS_NUMBERS[part]))
    return ("\n".join(lines) + "\n").encode()


def _family(family: Family, samples: Iterable[str]) -> list[str]:
    return [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *samples]


def _sample(name: str, value: float, **labels: str) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _total(rows: Sequence[Row], word: int) -> int:
    return sum(row.counts[word] for row in rows)


def _requests(rows: Sequence[Row]) -> Iterator[str]:
    """Only what has happened: most methods end in few of the ways there are."""
    word = series.REQUESTS_AT
    for method in series.METHODS:
        for outcome in series.OUTCOMES:
            count = _total(rows, word)
            if count:
                yield _sample(series.REQUESTS.name, count, method=method, outcome=outcome)
            word += 1


def _seconds(rows: Sequence[Row]) -> Iterator[str]:
    name = series.SECONDS.name
    for number, kind in enumerate(series.CLASSES):
        first = series.BUCKETS_AT + number * _CELLS
        upto = list(accumulate(_total(rows, first + cell) for cell in range(_CELLS)))
        if not upto[-1]:
            continue
        labels: Mapping[str, str] = {"class": kind}
        for bound, count in zip((*map(_number, series.BUCKETS), "+Inf"), upto, strict=True):
            yield _sample(f"{name}_bucket", count, **labels, le=bound)
        total = sum(row.numbers[series.SUMS_AT + number] for row in rows)
        yield _sample(f"{name}_sum", total, **labels)
        yield _sample(f"{name}_count", upto[-1], **labels)


def _reloads(rows: Sequence[Row]) -> Iterator[str]:
    for number, outcome in enumerate(series.RELOADS):
        yield _sample(series.RELOADED.name, _total(rows, series.RELOADED_AT + number), outcome=outcome)


def _ended(rows: Sequence[Row]) -> Iterator[str]:
    for number, ending in enumerate(series.ENDINGS):
        yield _sample(series.ENDED.name, _total(rows, series.ENDED_AT + number), reason=ending)


def _alive(rows: Sequence[Row]) -> Iterator[str]:
    for slot, row in enumerate(rows):
        yield _sample(series.UP.name, int(row.is_alive), worker=str(slot))


def _of_each(family: Family, rows: Sequence[Row | None], word: int) -> Iterator[str]:
    for slot, row in enumerate(rows):
        if row is not None and row.is_alive:
            yield _sample(family.name, row.numbers[word], worker=str(slot))
