"""Numbers → the geometry of small charts, in the units the templates draw in: 260 wide (360 for `lines`), 142 high."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from congeal.rows import evenly_spaced_rows

LEFT, RIGHT, TOP, BOTTOM = 40.0, 256.0, 8.0, 108.0
WIDE_RIGHT = 356.0
"""Right edge of charts over the order of the images."""
MAX_CURVE_POINTS = 240
"""Number of points of a curve, about one per pixel."""
BINS = 25
"""Number of bars of a histogram, of 9 pixels each. Chosen by judgement: wide enough to be clicked."""
OUTLIER_WIDTHS = 4.0
"""Bars end this many times the width of the middle 68% of the values from the median."""


def curves(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """One chart per column of metrics.csv that holds numbers, over its column `step`."""
    names = list(dict.fromkeys(name for row in rows for name in row if name and name != "step"))
    steps = np.array([_number(row.get("step")) for row in rows])
    charts = [curve(name, steps, np.array([_number(row.get(name)) for row in rows])) for name in names]
    return [chart for chart in charts if chart is not None]


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def curve(name: str, steps: np.ndarray, values: np.ndarray) -> dict[str, Any] | None:
    """A line; None with fewer than two finite points. Long ones are thinned, large ranges drawn on a log scale."""
    known = np.isfinite(steps) & np.isfinite(values)
    x, y = steps[known], values[known]
    if len(y) < 2:
        return None
    chosen = evenly_spaced_rows(len(y), MAX_CURVE_POINTS)
    first, last = y[0], y[-1]
    x, y = x[chosen], y[chosen]
    log = bool(y.min() > 0 and y.max() > 100 * y.min())
    height = np.log(y) if log else y
    limits = _widened(x.min(), x.max()), _widened(height.min(), height.max())
    return {
        "name": name,
        "points": _polyline(_scaled(x, limits[0], LEFT, RIGHT), _scaled(height, limits[1], BOTTOM, TOP)),
        "log": log,
        "first": short(first),
        "last": short(last),
        "low": short(y.min()),
        "high": short(y.max()),
        "start": short(x[0]),
        "end": short(x[-1]),
    }


def _widened(low: float, high: float) -> tuple[float, float]:
    """The limits of an axis, half a unit beyond values that are all the same."""
    return (low - 0.5, high + 0.5) if high - low < 1e-6 * max(1.0, abs(low)) else (low, high)


def _scaled(values: np.ndarray, limits: tuple[float, float], start: float, end: float) -> np.ndarray:
    """Values as places along an axis."""
    return start + (np.asarray(values) - limits[0]) / (limits[1] - limits[0]) * (end - start)


def _polyline(across: np.ndarray, up: np.ndarray) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))


# ---- values of the images, as bars


def histogram(name: str, values: np.ndarray, unit: str = "", neutral: float | None = None) -> dict[str, Any] | None:
    """Bars over the middle 99% of the values, within `OUTLIER_WIDTHS`; the outermost bars also hold all values beyond.

    neutral is the value of "no change", marked with a dashed line where it falls inside. `range` of the result is what
    `bin_of` goes by.
    """
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return None
    # the middle 68%: one standard deviation where values are normal, and untouched by a few wild ones
    low, below, middle, above, high = (float(v) for v in np.quantile(known, [0.005, 0.16, 0.5, 0.84, 0.995]))
    if above > below:  # one image gone wild must not squeeze all others into one bar
        reach = OUTLIER_WIDTHS * (above - below)
        low, high = max(low, middle - reach), min(high, middle + reach)
    low, high = limits = _widened(low, high)
    counts, edges = np.histogram(np.clip(known, low, high), bins=BINS, range=(low, high))
    width = (RIGHT - LEFT) / BINS
    top = max(int(counts.max()), 1)
    bars = [
        {
            "bin": k,
            "count": count,
            "x": f"{LEFT + k * width:.1f}",
            "y": f"{BOTTOM - 100 * count / top:.1f}",
            "width": f"{width - 1:.1f}",
            "height": f"{100 * count / top:.1f}",
            "title": f"{count:,} {'image' if count == 1 else 'images'} {_span(k, edges, unit)}",
            "span": _span(k, edges, unit),
        }
        for k, count in enumerate(counts.tolist())
        if count
    ]
    marks = ticks(low, high, 4)
    return {
        "name": name,
        "unit": unit,
        "bars": bars,
        "range": limits,
        "mark": None
        if neutral is None or not low <= neutral <= high
        else f"{_scaled(np.array(neutral), limits, LEFT, RIGHT):.1f}",
        "summary": f"median {short(middle)}, spread ±{short((above - below) / 2)} {unit}".rstrip(),
        "ticks": _axis("x", marks, _scaled(np.array(marks), limits, LEFT, RIGHT)),
        "top": f"{top:,}",
        "axis": unit_words(unit) or "likeness",
    }


def _span(k: int, edges: np.ndarray, unit: str) -> str:
    """Which values a bar holds, in words."""
    low, high = _few_digits(float(edges[k]), float(edges[k + 1]))
    if k == 0 and len(edges) > 2:
        return f"of {high}{_joined(unit)} or less"
    if k == len(edges) - 2:
        return f"of {low}{_joined(unit)} or more"
    return f"between {low} and {high}{_joined(unit)}"


def _few_digits(low: float, high: float) -> tuple[str, str]:
    """Both with as many digits as it takes to tell them apart, and one more."""
    digits = max(0, 1 - math.floor(math.log10(max(high - low, 1e-12))))
    return f"{low:,.{min(digits, 9)}f}", f"{high:,.{min(digits, 9)}f}"


def _joined(unit: str) -> str:
    return unit if unit in ("", "°", "×") else f" {unit}"


def unit_words(unit: str) -> str:
    """A unit as the title of an axis."""
    words = {"px": "pixels", "°": "degrees", "×": "times (1 = as before)", "%": "per cent"}
    return words.get(unit, unit)


def bin_of(chart: Mapping[str, Any], value: float) -> int | None:
    """Which bar of a histogram holds this value; None for one that is not known."""
    if not math.isfinite(value):
        return None
    low, high = chart["range"]
    return min(BINS - 1, int((min(max(value, low), high) - low) / (high - low) * BINS))


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most about `most` round numbers between low and high, at least one."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    values = [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
    return [round(value, 12) for value in values] or [low]


# ---- values of the images, in their order


def lines(name: str, unit: str, numbers: np.ndarray, series: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """Lines over the numbers of the images; None where there are not two values. Of many images each stretch is drawn
    by its lowest and highest one, so that no jump is lost."""
    known = {label: np.isfinite(values) for label, values in series.items()}
    if not any(mask.sum() > 1 for mask in known.values()):
        return None
    every = np.concatenate([values[known[label]] for label, values in series.items()])
    limits, heights = (float(numbers[0]), float(numbers[-1])), _widened(float(every.min()), float(every.max()))
    across, up = _scaled(numbers, limits, LEFT, WIDE_RIGHT), ticks(*heights, 4)
    images = [number for number in ticks(*limits, 5) if number == int(number)]
    drawn = []
    for label, values in series.items():
        rows = _extremes(np.flatnonzero(known[label]), values)
        points = _polyline(across[rows], _scaled(values[rows], heights, BOTTOM, TOP))
        ends = f"{short(values[rows[0]])} → {short(values[rows[-1]])}" if len(rows) else "not known"
        drawn.append({"label": label, "points": points, "ends": ends + _joined(unit)})
    return {
        "name": name,
        "series": drawn,
        "axis": unit_words(unit),
        "across": _axis("x", images, _scaled(np.array(images), limits, LEFT, WIDE_RIGHT)),
        "up": _axis("y", up, _scaled(np.array(up), heights, BOTTOM, TOP)),
    }


def _axis(key: str, values: Sequence[float], places: np.ndarray) -> list[dict[str, str]]:
    """The ticks of an axis: place and text of each."""
    return [{key: f"{place:.1f}", "text": short(value)} for value, place in zip(values, places, strict=True)]


def _extremes(rows: np.ndarray, values: np.ndarray) -> list[int]:
    """All rows, or of many the lowest and highest of each stretch, in order."""
    if len(rows) <= MAX_CURVE_POINTS:
        return [int(i) for i in rows]
    chosen: set[int] = {int(rows[0]), int(rows[-1])}
    for part in np.array_split(rows, MAX_CURVE_POINTS // 2):
        chosen |= {int(part[values[part].argmin()]), int(part[values[part].argmax()])}
    return sorted(chosen)


def two_figures(value: float) -> str:
    """As exact as an error bar is: 0.12, 2.0, 13."""
    return f"{value:.2g}" if abs(value) < 0.995 else f"{value:.1f}" if abs(value) < 9.95 else f"{value:,.0f}"


def short(value: float) -> str:
    """Three figures, without an exponent where that can be read."""
    if abs(value) < 1e-9:
        return "0"
    if (float(value).is_integer() and abs(value) < 1e6) or 1e3 <= abs(value) < 1e5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e3 else f"{value:.1e}"
