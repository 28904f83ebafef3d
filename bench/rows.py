"""Budgets as rows of a table: what was measured, against what, and whether it holds."""

import sys
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One budget: what was measured, against what, and whether it holds."""

    what: str
    measured: str
    against: str
    ratio: float | None
    budget: str
    met: bool


def ratio_row(
    what: str,
    ours: list[float],
    floor_name: str,
    floor: list[float],
    budget: float,
    unit: str = "s",
) -> Row:
    """Compare runs that took turns: the median of the ratios of neighbours, which share the noise."""
    ratio = median_ratio(ours, floor)
    digits = 2 if unit == "s" else 0
    measured = f"{median(ours):.{digits}f} {unit}"
    against = f"{floor_name} {median(floor):.{digits}f} {unit}"
    return Row(what, measured, against, ratio, f"{budget} x floor", ratio <= budget)


def median_ratio(ours: list[float], floor: list[float]) -> float:
    return median(mine / least for mine, least in zip(ours, floor, strict=True))


def limit_row(what: str, measured: float, unit: str, limit: float) -> Row:
    return Row(what, f"{measured:.0f} {unit}", "", None, f"{limit:.0f} {unit}", measured <= limit)


def show(title: str, rows: list[Row]) -> None:
    table = Table(title=title)
    for column in ("what", "measured", "against", "ratio", "budget", ""):
        table.add_column(column, justify="right" if column in ("measured", "ratio") else "left")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        verdict = "[green]met[/]" if row.met else "[red]missed[/]"
        table.add_row(row.what, row.measured, row.against, ratio, row.budget, verdict)
    console().print(table)


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 140)
