"""Numbers → the geometry of small charts, in the 260 × 130 units the templates draw in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LEFT, RIGHT, TOP, BOTTOM = 40.0, 256.0, 8.0, 108.0
MOST_POINTS = 240  # of a curve: about one per pixel
MOST_CURVES = 12
BINS = 25


def curves(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """One chart per column of metrics.csv that holds numbers, over its column `step`."""
    names = list(dict.fromkeys(name for row in rows for name in row if name and name != "step"))
    steps = np.array([_number(row.get("step")) for row in rows])
    charts = [curve(name, steps, np.array([_number(row.get(name)) for row in rows])) for name in names]
    return [chart for chart in charts if chart is not None][:MOST_CURVES]


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
    chosen = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_POINTS)).round().astype(int))
    first, last = y[0], y[-1]
    x, y = x[chosen], y[chosen]
    log = bool(y.min() > 0 and y.max() > 100 * y.min())
    height = np.log(y) if log else y
    across, up = _unit(x), _unit(height)
    points = zip(LEFT + across * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP), strict=True)
    return {
        "name": name,
        "points": " ".join(f"{a:.1f},{b:.1f}" for a, b in points),
        "log": log,
        "first": short(first),
        "last": short(last),
        "low": short(y.min()),
        "high": short(y.max()),
        "start": short(x[0]),
        "end": short(x[-1]),
    }


def _unit(values: np.ndarray) -> np.ndarray:
    span = float(values.max() - values.min())
    return (values - values.min()) / span if span > 0 else np.full(len(values), 0.5)


def histogram(name: str, values: np.ndarray, unit: str = "", neutral: float | None = None) -> dict[str, Any] | None:
    """Bars over the middle 99% of the values; the first and last bar also hold all that lies beyond.

    neutral is the value of "no change", marked with a dashed line where it falls inside.
    """
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return None
    low, high = (float(v) for v in np.quantile(known, [0.005, 0.995]))
    if high - low < 1e-6 * max(1.0, abs(low)):  # all the same: one bar in the middle
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(np.clip(known, low, high), bins=BINS, range=(low, high))
    width = (RIGHT - 4.0) / BINS
    top = max(int(counts.max()), 1)
    bars = [
        {
            "x": f"{4 + k * width:.1f}",
            "y": f"{BOTTOM - 100 * count / top:.1f}",
            "width": f"{width - 1:.1f}",
            "height": f"{100 * count / top:.1f}",
            "title": f"{count:,} between {short(edges[k])} and {short(edges[k + 1])} {unit}".rstrip(),
        }
        for k, count in enumerate(counts.tolist())
        if count
    ]
    # the middle 68%: one standard deviation where values are normal, and untouched by a few wild ones
    below, middle, above = (float(v) for v in np.quantile(known, [0.16, 0.5, 0.84]))
    inside = neutral is not None and low <= neutral <= high
    return {
        "name": name,
        "bars": bars,
        "mark": f"{4 + (neutral - low) / (high - low) * (RIGHT - 4):.1f}" if inside and neutral is not None else None,
        "summary": f"median {short(middle)}, spread ±{short((above - below) / 2)} {unit}".rstrip(),
        "low": f"{short(low)} {unit}".rstrip(),
        "high": f"{short(high)} {unit}".rstrip(),
    }


def two_figures(value: float) -> str:
    """As exact as an error bar is: 0.12, 2.0, 13."""
    return f"{value:.2g}" if abs(value) < 0.995 else f"{value:.1f}" if abs(value) < 9.95 else f"{value:,.0f}"


def short(value: float) -> str:
    """Three figures, without an exponent where that can be read."""
    if abs(value) < 1e-9:
        return "0"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.1e}"
