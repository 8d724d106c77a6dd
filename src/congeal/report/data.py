"""Reads a run folder into a plain dict of text, numbers and data URIs; knows nothing of HTML."""

from __future__ import annotations

import base64
import io
import platform
from pathlib import Path
from typing import Any

from PIL import Image

from congeal.run import RunFolder, read_json

LONGEST = 720  # pixels of an inlined picture: sharp on a page, small in a file
MOST_SKIPPED = 100


def gather(run: RunFolder) -> dict[str, Any]:
    """Everything a report shows; parts that the run does not have are None or empty."""
    metrics = run.read_json("metrics.json")
    return {
        "name": run.path.resolve().name,
        "config": run.config,
        "metrics": metrics,
        "pictures": {
            "mean": {"before": picture(run.work / "mean_before.png"), "after": picture(run / "mean.png")},
            "variance": {"before": picture(run.work / "variance_before.png"), "after": picture(run / "variance.png")},
        },
        "samples": samples(run),
        "skipped": run.read_rows("skipped.csv")[:MOST_SKIPPED],
        "n_skipped": metrics.get("n_skipped", 0),
        "versions": versions(metrics),
    }


def picture(path: Path) -> dict[str, Any] | None:
    """A PNG as a data URI, made smaller where it is larger than a page needs."""
    if not path.exists():
        return None
    with Image.open(path) as image:
        size = image.size
        data = path.read_bytes()
        if max(size) > LONGEST:
            image.thumbnail((LONGEST, LONGEST))
            buffer = io.BytesIO()
            image.save(buffer, "PNG")
            data = buffer.getvalue()
    return {"uri": "data:image/png;base64," + base64.b64encode(data).decode(), "width": size[0], "height": size[1]}


def samples(run: RunFolder) -> dict[str, list[dict[str, Any]]]:
    """The pairs kept while rendering, {"best": […], "worst": […]}, each with before and after pictures."""
    listing = run.work / "samples.json"
    groups: dict[str, list[dict[str, Any]]] = {"best": [], "worst": []}
    if not listing.exists():
        return groups
    for sample in read_json(listing):
        stem = run.work / "samples" / str(sample["index"])
        pair = {side: picture(stem.with_name(f"{stem.name}_{side}.png")) for side in ("before", "after")}
        if all(pair.values()):
            groups[sample["group"]].append({**sample, **pair})
    return groups


def versions(metrics: dict[str, Any]) -> dict[str, str]:
    import numpy
    import torch

    return {
        "congeal": str(metrics.get("version", "")),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "NumPy": numpy.__version__,
    }
