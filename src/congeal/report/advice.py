"""What to try next, in sentences, from a run's numbers."""

from __future__ import annotations

from typing import Any

SIMPLER = {"homography": "affine", "affine": "similarity", "similarity": "rigid", "rigid": "translation"}
DISTORTED = ("shrunk", "zoomed")
RICHER = {simpler: motion for motion, simpler in SIMPLER.items()}


def next_steps(metrics: dict[str, Any], config: dict[str, Any], run: str) -> list[str]:
    """At most four sentences that name the flag or command to use."""
    steps = [*_for_verdict(metrics, config)]
    if metrics["verdict"] == "mixed":
        steps.append(f"Leave out what does not belong: 'congeal studio {run}' shows the images, worst first.")
    status = metrics.get("status") or {}
    flagged = sum(status.get(name, 0) for name in ("outlier", "failed", "blank"))
    if flagged:
        steps.append(
            f"Flagged: {counted(flagged)} of {metrics['n_images']:,}, first in the gallery below. "
            f"'congeal studio {run}' marks images as excluded."
        )
    if metrics.get("n_skipped"):
        steps.append(f"Not used: {counted(metrics['n_skipped'])}; the reasons are in the list of skipped images.")
    if not metrics["collapsed"] and metrics["verdict"] == "good":
        steps.append(
            f"Mark the mean once and get it on every image: 'congeal studio {run}' or 'congeal propagate {run}'."
        )
    return steps[:4]


def counted(n: int) -> str:
    """A number of images in words."""
    return f"{n:,} image" if n == 1 else f"{n:,} images"


def _for_verdict(metrics: dict[str, Any], config: dict[str, Any]) -> list[str]:
    verdict, motion = metrics["verdict"], metrics.get("motion")
    chosen = metrics.get("motion_asked") == "auto"
    steps = []
    if verdict in (*DISTORTED, "worse") and motion in SIMPLER:
        steps.append(f"Try --motion {SIMPLER[motion]} (this run: {motion}), which has fewer ways to go wrong.")
    if verdict == "unchanged" and motion in RICHER and not chosen:
        steps.append(f"If the images are not aligned yet, try --motion {RICHER[motion]} (this run: {motion}).")
    if verdict in (*DISTORTED, "worse"):
        steps.append("Try a clear, typical image as --reference PATH, or compare methods with 'congeal compare'.")
    if verdict == "failed" and not config.get("init"):
        steps.append("Give a rough start with --init boxes.csv if the object lies at very different places.")
    return steps
