"""Pictures of an experiment, read from its run folders; matplotlib is only needed here (extra `figures`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from congeal.errors import require
from congeal.experiments.measures import start_of
from congeal.experiments.tables import Rows, distinct
from congeal.images import warp_image
from congeal.opening import open_images
from congeal.rows import evenly_spaced_rows, finite_rows
from congeal.runs.folder import RunFolder
from congeal.runs.originals import transforms_of

TILE, GAP = 56, 4  # side of one picture and the space between two, in pixels
DOTS = 150  # per inch

Picture = np.ndarray  # (side, side, 3) uint8


def means_and_variances(
    path: Path,
    folder: Path,
    rows: Rows,
    *,
    down: str = "digit",
    across: str = "method",
    names: Sequence[str] = ("mean", "variance"),
    side: int = TILE,
) -> None:
    """Mean and variance, side by side: one line per `down`, before alignment first, then one column per `across`."""

    def pictures(run: Path | None, end: str = "") -> Picture:
        return np.concatenate([tile(None if run is None else run / f"{name}{end}.png", side) for name in names], axis=1)

    columns, lines = distinct(rows, across), []
    for this in distinct(rows, down):
        runs = {row[across]: folder / row["run"] for row in rows if row[down] == this}
        start = RunFolder.existing(next(iter(runs.values()))).work
        lines.append([pictures(start, "_before"), *(pictures(runs.get(column)) for column in columns)])
    montage(path, lines, list(map(str, distinct(rows, down))), ["before", *map(str, columns)])


def samples(path: Path, folder: Path, rows: Rows, *, down: str = "digit") -> None:
    """Some images of each set as they came in and as they came out, spread evenly over the set."""
    lines, names = [], []
    for row in rows:
        run = folder / row["run"]
        images, found = open_images(row["source"], limit=row.get("limit")), transforms_of(run)
        if found.aligned_size is None:
            raise ValueError("transforms of a run know the size of the aligned picture")
        known = np.flatnonzero(finite_rows(found.matrices))
        chosen = known[evenly_spaced_rows(len(known), 12)]
        for transforms, end in ((start_of(run), "in"), (found, "out")):
            poses = zip(chosen, np.linalg.inv(transforms.matrices[chosen]), strict=True)
            shown = [warp_image(images.read(int(i)), pose, found.aligned_size).pixels for i, pose in poses]
            lines.append([tile(Pillow.fromarray(p[..., 0] if p.shape[-1] == 1 else p)) for p in shown])
            names.append(f"{row[down]} {end}")
    montage(path, lines, names, [])


def curves(path: Path, lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> None:
    """One line with points per label, both axes logarithmic."""
    axes = canvas(5.0, 3.6)
    for label, points in lines.items():
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axes.grid(True, which="both", alpha=0.3)
    if axes.lines:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(axes.lines), frameon=False)  # over no point
    save(axes, path)


def training(
    path: Path,
    histories: Mapping[str, Sequence[Mapping[str, str]]],
    panels: Mapping[str, str],
    levels: Mapping[str, float],
) -> None:
    """One panel per reported value (name: title) over the steps of training, one line per history.

    levels: where another method ends, drawn as a dashed line.
    """
    figure = require("matplotlib.figure", "figures").Figure(figsize=(3.2 * len(panels), 3.0), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for label, history in histories.items():
            points = [(int(row["step"]), float(row[name])) for row in history if row.get(name)]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, linewidth=1)
        if name in levels:
            axes.axhline(levels[name], linestyle="--", color="black", linewidth=1)
        axes.set(title=title, xlabel="step")
        axes.grid(True, alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=DOTS)


# ---- tiles


def tile(picture: Pillow.Image | Path | None, side: int = TILE) -> Picture:
    """A picture as RGB at the size of one tile; grey where there is none."""
    if isinstance(picture, Path):
        picture = Pillow.open(picture) if picture.is_file() else None
    if picture is None:
        return np.full((side, side, 3), 200, np.uint8)
    filtering = Pillow.Resampling.NEAREST if max(picture.size) < side else Pillow.Resampling.BICUBIC
    return np.asarray(picture.convert("RGB").resize((side, side), filtering))


def montage(path: Path, lines: Sequence[Sequence[Picture]], downs: Sequence[str], acrosses: Sequence[str]) -> None:
    """Tiles of one size in lines, with a name beside each line and above each column."""
    height, width = lines[0][0].shape[:2]
    columns = max(len(line) for line in lines)
    sheet = np.full((len(lines) * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), 255, np.uint8)
    for i, line in enumerate(lines):
        for j, one in enumerate(line):
            sheet[i * (height + GAP) :, j * (width + GAP) :][:height, :width] = one
    axes = canvas(sheet.shape[1] / 72 + 1, sheet.shape[0] / 72 + 0.6)
    axes.imshow(sheet, interpolation="nearest")
    axes.set_yticks([i * (height + GAP) + height / 2 for i in range(len(downs))], downs, fontsize=8)
    axes.set_xticks([j * (width + GAP) + width / 2 for j in range(len(acrosses))], acrosses, fontsize=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for label in axes.get_xticklabels():
        label.set(rotation=30 if any(len(name) > 12 for name in acrosses) else 0, ha="center")
    axes.spines[:].set_visible(False)
    save(axes, path)


def canvas(width: float, height: float) -> Any:
    """The axes of a new figure of so many inches, without matplotlib's global state."""
    return require("matplotlib.figure", "figures").Figure(figsize=(width, height)).add_subplot()


def save(axes: Any, path: Path) -> None:
    """Write the figure of these axes, cut to its content."""
    axes.get_figure().savefig(path, dpi=DOTS, bbox_inches="tight")
