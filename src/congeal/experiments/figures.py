"""Pictures of an experiment, read from its run folders; matplotlib is only needed here (extra `figures`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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
        assert found.aligned_size is not None
        known = np.flatnonzero(finite_rows(found.matrices))
        chosen = known[evenly_spaced_rows(len(known), 12)]
        for transforms, end in ((start_of(run), "in"), (found, "out")):
            poses = zip(chosen, np.linalg.inv(transforms.matrices[chosen]), strict=True)
            shown = [warp_image(images.read(int(i)), pose, found.aligned_size).pixels for i, pose in poses]
            lines.append([tile(Pillow.fromarray(p[..., 0] if p.shape[-1] == 1 else p)) for p in shown])
            names.append(f"{row[down]} {end}")
    montage(path, lines, names, [])


def draw_curves(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    x: str,
    *,
    log: bool = False,
    levels: Mapping[str, float] | None = None,
) -> None:
    """One panel per title, with one line of points per label; levels: values of a panel drawn as a dashed line."""
    figure = require("matplotlib.figure", "figures").Figure(figsize=(3.2 * len(panels) + 1, 3.2), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for label, points in lines.items():
            if points:
                axes.plot(*zip(*points, strict=True), label=label, linewidth=1, marker="o" if log else None)
        if levels and title in levels:
            axes.axhline(levels[title], linestyle="--", color="black", linewidth=1)
        axes.set(title=title, xlabel=x, **({"xscale": "log", "yscale": "log"} if log else {}))
        axes.grid(True, which="both", alpha=0.3)
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
    size = (sheet.shape[1] / 72 + 1, sheet.shape[0] / 72 + 0.6)
    axes = require("matplotlib.figure", "figures").Figure(figsize=size).add_subplot()
    axes.imshow(sheet, interpolation="nearest")
    axes.set_yticks([i * (height + GAP) + height / 2 for i in range(len(downs))], downs, fontsize=8)
    axes.set_xticks([j * (width + GAP) + width / 2 for j in range(len(acrosses))], acrosses, fontsize=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for label in axes.get_xticklabels():
        label.set(rotation=30 if any(len(name) > 12 for name in acrosses) else 0, ha="center")
    axes.spines[:].set_visible(False)
    axes.get_figure().savefig(path, dpi=DOTS, bbox_inches="tight")
